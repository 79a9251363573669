"""The law of samples: two versions of a leap, every sampler against exact propagation, draws from tails.

Statistics: with n samples over k cells the total variation of an empirical law to its own is about sqrt(k /
(2 pi n)); tests allow twice that (helpers.allowed). Seeds are fixed.
"""

import dataclasses

import pytest
import torch
from helpers import (
    SOURCES,
    allowed,
    distance,
    empirical,
    equal_counts,
    mixture,
    near,
    process_named,
)

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import PROPAGATED, Propagator
from tauflow import Model
from tauflow.denoise import CallableDenoiser
from tauflow.samplers import SAMPLERS, sampler_from
from tauflow.samplers.leaping import Clamp, LeapingOptions, Rule, Term, intensities, leap
from tauflow.samplers.random import sample_categorical
from tauflow.tasks.countdown import posterior, violations

V, D = 3, 2
LAW = EnumerableLaw.random(num_tokens=V, length=D, spread=1.0, seed=1)


# ratio of this step to the one before (0 is no history), floor of the intensities, step in tau
@pytest.mark.parametrize(("ratio", "eps_0", "h"), [(0.0, 0.0, 0.7), (0.6, 0.05, 2.0), (1.7, 0.05, 0.7)])
@pytest.mark.parametrize("jump", ["exponential", "one_event"])
@pytest.mark.parametrize("kind", ["masked", "marginal"])
def test_one_leap_two_ways(kind, ratio, eps_0, jump, h):
    """One coordinate from a fixed state: coin-first and literal leaps both follow P(s) given by the
    intensities."""
    n, process = 60_000, mixture(kind, 4)
    now, before = torch.tensor([0.5, 0.28, 0.2, 0.02]), torch.tensor([0.15, 0.3, 0.25, 0.3])
    state = torch.full((n, 1), 4 if kind == "masked" else 1)
    old = state if kind == "masked" else torch.full((n, 1), 2)
    movable = torch.ones(n, 1, dtype=torch.bool)

    def term(coefficient, row, at):
        denoiser = CallableDenoiser(lambda x, t: row.log().expand(n, 1, 4), 4)
        return Term(coefficient, denoiser.evaluate(at, torch.zeros(n)).evaluated_at(at, 0.0))

    terms = [term(h * (1 + ratio / 2), now, state)] + ([term(-h * ratio / 2, before, old)] if ratio else [])
    rates = (1 + ratio / 2) * now
    history = before.clone()
    if kind != "masked":
        history[2] = 0  # its own token then
    rates = (rates - ratio / 2 * history).clamp(min=eps_0) * h
    if kind != "masked":
        rates[1] = 0  # its own token now
    total = rates.sum()
    chance = rates * (-torch.expm1(-total) / total if jump == "exponential" else torch.exp(-total))
    expected = torch.cat([chance, torch.zeros(1)]).double()
    expected[state[0, 0]] += 1 - chance.sum()
    for dense in (False, True):
        rule = Rule(jump, Clamp(floor=eps_0 * h), dense=dense)
        jumps = leap(process, terms, state, movable, rule, torch.Generator().manual_seed(3))
        assert distance(empirical(jumps.x, 5), expected) < allowed(5, n), f"dense={dense}"
        assert jumps.moved == pytest.approx(chance.sum().item(), abs=0.01)
        several = 1 - torch.exp(-total) * (1 + total)
        assert jumps.several == pytest.approx(several.item(), abs=0.01)


LEAPING = [name for name, make in SAMPLERS.items() if isinstance(make(), PROPAGATED)]


def independent(name):
    """The sampler with coins that can be propagated."""
    return SAMPLERS[name](**({"coins": "independent"} if name == "renoise" else {}))


CASES = [
    *[(name, "masked", 4) for name in LEAPING if name not in ("bridge", "renoise")],
    *[(name, "uniform", 4) for name in LEAPING],
    *[("bridge", "marginal", 9), ("renoise", "marginal", 9), ("tr_cie", "marginal", 9)],
    *[("tr_cie", "masked", nfe) for nfe in (1, 9)],
    *[(name, "metric", 9) for name in ("tr_cie", "theta_trapezoidal")],
]


@pytest.mark.parametrize(("name", "kind", "nfe"), CASES)
def test_samples_follow_the_propagated_law(name, kind, nfe):
    """The loop, the grid, the history and the finishing of leaping samplers and of bridge, against their own
    law without Monte Carlo."""
    count, process = 30_000, process_named(kind, V)
    propagator = Propagator(LAW, process)
    sampler, states = independent(name), process.num_states
    expected = propagator.terminal_law(sampler, nfe)
    leaps = isinstance(sampler, LeapingOptions)
    for options in ({}, {"dense": True})[: 1 + leaps]:
        each = dataclasses.replace(sampler, **options)
        result = tauflow.sample(propagator.model, each, nfe, count=count, seed=nfe)
        assert distance(empirical(result.tokens, states), expected) < allowed(states**D, count), options


@pytest.mark.parametrize(
    "options",
    [
        {"grid": "tau"},
        {"grid": "early"},
        {"jump": "one_event"},
        {"eps_0": 0.2},
        {"finish": "reuse"},
        {"finish": "none", "cutoff": 0.3},
    ],
)
@pytest.mark.parametrize("kind", ["masked", "uniform"])
def test_options_change_the_law_as_they_say(options, kind):
    count, process = 30_000, mixture(kind, V)
    propagator = Propagator(LAW, process)
    expected = propagator.terminal_law(SAMPLERS["tr_cie"](**options), 6)
    assert distance(expected, propagator.terminal_law(SAMPLERS["tr_cie"](), 6)) > 0.004
    result = tauflow.sample(propagator.model, sampler_from("tr_cie", **options), 6, count=count)
    states = process.num_states
    assert distance(empirical(result.tokens, states), expected) < allowed(states**D, count)


@pytest.mark.parametrize("kind", [*SOURCES, "metric"])
def test_tweedie_follows_its_law(kind):
    process = process_named(kind, V)
    propagator = Propagator(LAW, process)
    result = tauflow.sample(propagator.model, "tweedie", 5, count=30_000)
    found = empirical(result.tokens, process.num_states)
    assert distance(found, propagator.tweedie_law("t", 5)) < allowed(process.num_states**D, 30_000)


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
@pytest.mark.parametrize("name", ["tweedie", "tweedie_d3pm"])
def test_tweedie_kernels_are_exact_in_one_dimension(name, kind):
    """At D = 1 both kernels have the right marginals whatever the step: three evaluations give the data
    law."""
    law, process = EnumerableLaw.random(num_tokens=4, length=1, spread=1.0), mixture(kind, 4)
    model = law.model(process)
    result = tauflow.sample(model, name, 3, count=40_000)
    assert distance(empirical(result.tokens, 4), law.probabilities) < allowed(4, 40_000)
    stopped = tauflow.sample(model, f"{name}(finish=none, cutoff=0.4)", 3, count=40_000)
    there = 0.6 * law.probabilities + 0.4 * process.start_distribution()
    assert distance(empirical(stopped.tokens, 4), there) < allowed(4, 40_000)


CHAIN_ORDER = (13 * torch.arange(32)) % 32
COUNTS = equal_counts(32)


def chain(process):
    """Countdown of length 32 with its exact denoiser."""
    learned = {"order": CHAIN_ORDER, "counts": COUNTS, "influence": near(32)}
    return Model(lambda x, t: posterior(x, t, process, leak=1e-4).log(), process, (32,), **learned)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_converge_on_a_chain(name):
    """64 evaluations: at most 8 % wrong transitions with every sampler, noise makes 82 %."""
    for kind in ("masked", "uniform"):
        model = chain(mixture(kind, 8))
        if not SAMPLERS[name]().unsupported_reason(model):
            result = tauflow.sample(model, name, 64, count=64)
            assert violations(result.tokens, 8).double().mean() < 0.08, kind


def test_categorical_finds_tails():
    """40 tokens of 1e-7 each beside one of nearly 1, four million draws: 16 hits expected, Poisson."""
    weights = torch.full((1, 41), 1e-7)
    weights[0, 20] = 1 - 40e-7
    generator = torch.Generator().manual_seed(0)
    hits = sum(
        (sample_categorical(weights.expand(100_000, 41), generator) != 20).sum().item() for _ in range(40)
    )
    assert 3 <= hits <= 36  # Poisson(16): outside with probability 3e-5


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_intensities_have_no_own_token_and_history_has_none_then(kind):
    n = torch.tensor([[1], [0]])
    old = torch.tensor([[2], [2]])
    evaluation = CallableDenoiser(lambda x, t: torch.zeros(2, 1, 3), 3).evaluate(n, torch.zeros(2))
    terms = [
        Term(1.5, evaluation.evaluated_at(n, 0.1)),
        Term(-0.5, evaluation.clone().evaluated_at(old, 0.0)),
    ]
    total, negative, _ = intensities(mixture(kind, 3), terms, slice(None), n, Clamp())
    torch.testing.assert_close(total, torch.tensor([[1 / 3, 0, 0.5], [0, 1 / 3, 0.5]]))
    assert negative == 2  # the own token before it is set to 0: -1/6 of the history alone
