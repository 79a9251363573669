"""The law of samples: two versions of a leap, every sampler against exact propagation, draws from tails.

Statistics: with n samples over k cells the total variation of an empirical law to its own is about sqrt(k / (2 pi n)); tests allow twice
that , which at these sizes is more than five standard deviations. Seeds are fixed.
"""

import math

import pytest
import torch

import tauflow
from tauflow import Masked, Uniform, schedule_from
from tauflow.denoisers import CallableDenoiser
from tauflow.oracles import PROPAGATED, EnumerableLaw, Propagator, countdown_posterior
from tauflow.samplers import SAMPLERS
from tauflow.samplers.leap import Clamp, Term, categorical, intensities, leap, leap_dense
from tauflow.tasks.countdown import violations

V, D = 3, 2
LAW = EnumerableLaw.random(num_tokens=V, length=D, spread=1.0, seed=1)
LINEAR = schedule_from("linear")


def exact(source, law=LAW):
    return lambda x, t: law.posterior(x, t, source, LINEAR).log()


def empirical(tokens: torch.Tensor, base: int) -> torch.Tensor:
    code = (tokens * base ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(1)
    return torch.bincount(code, minlength=base ** tokens.shape[1]).double() / len(tokens)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().sum().item() / 2


def allowed(cells: int, samples: int) -> float:
    return 2 * math.sqrt(cells / (2 * math.pi * samples))


@pytest.mark.parametrize("h", [0.05, 0.7, 2.0])
@pytest.mark.parametrize("jump", ["exponential", "one_event"])
@pytest.mark.parametrize("eps_0", [0.0, 0.05])
@pytest.mark.parametrize("ratio", [0.0, 0.6, 1.7])  # of this step to the one before: non-uniform grids; 0 is no history
@pytest.mark.parametrize("source", [Masked(4), Uniform(4)])
def test_one_leap_two_ways(source, ratio, eps_0, jump, h):
    """One coordinate from a fixed state: coin-first and literal leaps both follow P(s) given by the intensities."""
    n = 60_000
    now, before = torch.tensor([0.5, 0.28, 0.2, 0.02]), torch.tensor([0.15, 0.3, 0.25, 0.3])
    state = torch.full((n, 1), 4 if isinstance(source, Masked) else 1)
    old = state if isinstance(source, Masked) else torch.full((n, 1), 2)
    movable = torch.ones(n, 1, dtype=torch.bool)

    def term(coefficient, row, at):
        denoiser = CallableDenoiser(lambda x, t: row.log().expand(n, 1, 4), 4)
        return Term(coefficient, denoiser.evaluate(at, torch.zeros(n)), at, source)

    terms = [term(h * (1 + ratio / 2), now, state)] + ([term(-h * ratio / 2, before, old)] if ratio else [])
    clamp = Clamp(floor=eps_0 * h)
    rates = (1 + ratio / 2) * now
    history = before.clone()
    if isinstance(source, Uniform):
        history[2] = 0  # its own token then
    rates = (rates - ratio / 2 * history).clamp(min=eps_0) * h
    if isinstance(source, Uniform):
        rates[1] = 0  # its own token now
    total = rates.sum()
    chance = rates * (-torch.expm1(-total) / total if jump == "exponential" else torch.exp(-total))
    expected = torch.cat([chance, torch.zeros(1)]).double()
    expected[state[0, 0]] += 1 - chance.sum()
    for function in (leap, leap_dense):
        jumps = function(terms, state, movable, 4, jump, clamp, torch.Generator().manual_seed(3))
        assert distance(empirical(jumps.x, 5), expected) < allowed(5, n), function.__name__
        assert jumps.moved == pytest.approx(chance.sum().item(), abs=0.01)
        several = 1 - torch.exp(-total) * (1 + total)
        assert jumps.several == pytest.approx(several.item(), abs=0.01)


@pytest.mark.parametrize("source", [Masked, Uniform])
@pytest.mark.parametrize("nfe", [1, 4, 9])
@pytest.mark.parametrize("name", [name for name in SAMPLERS if isinstance(SAMPLERS[name](), PROPAGATED) and name != "bridge_systematic"])
def test_samples_follow_the_propagated_law(name, nfe, source):
    """The loop, the grid, the history and the finishing of leaping samplers and of bridge, against their own law without Monte Carlo."""
    if source not in SAMPLERS[name]().sources:
        return
    count = 30_000
    propagator = Propagator(LAW, source(V), LINEAR)
    expected = propagator.terminal_law(SAMPLERS[name](), nfe)
    states = source(V).num_states
    for dense in (False, True)[: 1 + SAMPLERS[name]().leaps]:
        result = tauflow.sample(exact(source(V)), source(V), "linear", (count, D), name, nfe, seed=nfe, dense=dense)
        assert distance(empirical(result.tokens, states), expected) < allowed(states**D, count), f"dense={dense}"


@pytest.mark.parametrize(
    "options",
    [{"grid": "tau"}, {"grid": "early"}, {"jump": "one_event"}, {"eps_0": 0.2}, {"finish": "reuse"}, {"finish": "none", "cutoff": 0.3}],
)
@pytest.mark.parametrize("source", [Masked, Uniform])
def test_options_change_the_law_as_they_say(options, source):
    count, propagator = 30_000, Propagator(LAW, source(V), LINEAR)
    expected = propagator.terminal_law(SAMPLERS["tr_cie"](**options), 6)
    assert distance(expected, propagator.terminal_law(SAMPLERS["tr_cie"](), 6)) > 0.004
    result = tauflow.sample(exact(source(V)), source(V), "linear", (count, D), "tr_cie", 6, **options)
    states = source(V).num_states
    assert distance(empirical(result.tokens, states), expected) < allowed(states**D, count)


def test_tweedie_follows_its_law():
    for source in (Masked(V), Uniform(V)):
        expected = Propagator(LAW, source, LINEAR).tweedie_law("t", 5)
        result = tauflow.sample(exact(source), source, "linear", (30_000, D), "tweedie", 5)
        assert distance(empirical(result.tokens, source.num_states), expected) < allowed(source.num_states**D, 30_000)


@pytest.mark.parametrize("name", ["tweedie", "tweedie_d3pm"])
def test_tweedie_kernels_are_exact_in_one_dimension(name):
    """At D = 1 both kernels have the right marginals whatever the step: three evaluations give the data law."""
    law, source = EnumerableLaw.random(num_tokens=4, length=1, spread=1.0), Uniform(4)
    result = tauflow.sample(exact(source, law), source, "linear", (40_000, 1), name, 3)
    assert distance(empirical(result.tokens, 4), law.probabilities) < allowed(4, 40_000)
    stopped = tauflow.sample(exact(source, law), source, "linear", (40_000, 1), name, 3, finish="none", cutoff=0.4)
    assert distance(empirical(stopped.tokens, 4), 0.6 * law.probabilities + 0.4 / 4) < allowed(4, 40_000)


def test_fhs_is_exact_at_one_token_an_evaluation():
    law = EnumerableLaw.random(num_tokens=3, length=3, spread=1.5)
    result = tauflow.sample(exact(Masked(3), law), Masked(3), "quadratic", (40_000, 3), "fhs", 3)
    assert result.nfe == 3
    assert distance(empirical(result.tokens, 3), law.probabilities) < allowed(27, 40_000)
    fewer = tauflow.sample(exact(Masked(3), law), Masked(3), "quadratic", (40_000, 3), "fhs", 2)
    assert distance(empirical(fewer.tokens, 3), law.probabilities) > 3 * allowed(27, 40_000)


def test_fhs_hitting_times_and_equal_counts():
    """Times of reveals are those of independent coordinates with P(T <= t) = kappa(t); each evaluation reveals an equal share."""
    seen, times = [], []

    def model(x, t):
        seen.append((x == 2).sum(1))
        times.append(t)
        return torch.zeros(*x.shape, 2)

    tauflow.sample(model, Masked(2), "quadratic", (4000, 8), "fhs", 4)
    assert [count.unique().tolist() for count in seen] == [[8], [6], [4], [2]]
    for number, t in enumerate(times):  # the 2n-th of 8 hitting times: kappa is Beta(2n, 9 - 2n), with this mean and variance below 1/36
        assert (t.double() ** 2).mean().item() == pytest.approx(2 * number / 9, abs=5 / 6 / math.sqrt(4000))


def test_ho_fhs_extrapolates_to_the_hitting_time():
    """A posterior that moves linearly in t is extrapolated exactly, up to the clamp: the tokens follow the posterior at their own time."""

    def row(t):
        return torch.stack([0.2 + 0.5 * t, 0.8 - 0.5 * t], -1)

    def model(x, t):
        return row(t).log()[:, None].expand(-1, 8, 2)

    count = {}
    for name in ("fhs", "ho_fhs"):
        tokens = tauflow.sample(model, Masked(2), "linear", (20_000, 8), name, 4).tokens
        count[name] = (tokens == 0).double().mean().item()
    ideal = 0.2 + 0.5 * 0.5  # a hitting time is uniform under kappa = t, its mean is 1/2
    first_step = 0.5 * (1.5 / 9) * 2 / 8  # the first two tokens are drawn at t = 0 instead of at 1.5 / 9 on average: no history there
    assert count["ho_fhs"] == pytest.approx(ideal - first_step, abs=0.006)
    assert count["fhs"] < ideal - 2 * first_step


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("source", [Masked(8), Uniform(8)])
def test_samplers_converge_on_a_chain(name, source):
    """Countdown of length 32, its exact denoiser, 64 evaluations: at most 8 % wrong transitions with every sampler, noise makes 82 %."""
    if not isinstance(source, SAMPLERS[name]().sources):
        return  # test_sampler_contract says how that is refused
    schedule = schedule_from("linear")

    def model(x, t):
        return countdown_posterior(x, t, source, schedule, leak=1e-4).log()

    ranks = (13 * torch.arange(32)) % 32 if name == "learned_order" else None
    result = tauflow.sample(model, source, schedule, (64, 32), name, 64, ranks=ranks)
    assert violations(result.tokens, 8).double().mean() < 0.08


def test_categorical_finds_tails():
    """40 tokens of 1e-7 each beside one of nearly 1, four million draws: 16 hits expected, Poisson."""
    weights = torch.full((1, 41), 1e-7)
    weights[0, 20] = 1 - 40e-7
    generator = torch.Generator().manual_seed(0)
    hits = sum((categorical(weights.expand(100_000, 41), generator) != 20).sum().item() for _ in range(40))
    assert 3 <= hits <= 36  # Poisson(16): outside with probability 3e-5


def test_intensities_have_no_own_token_and_history_has_none_then():
    n = torch.tensor([[1], [0]])
    old = torch.tensor([[2], [2]])
    evaluation = CallableDenoiser(lambda x, t: torch.zeros(2, 1, 3), 3).evaluate(n, torch.zeros(2))
    total, negative = intensities([Term(1.5, evaluation, n, Uniform(3)), Term(-0.5, evaluation, old, Uniform(3))], slice(None), n, Clamp())
    torch.testing.assert_close(total, torch.tensor([[1 / 3, 0, 0.5], [0, 1 / 3, 0.5]]))
    assert negative == 2  # the own token before it is set to 0: -1/6 of the history alone
