"""Samplers that take tokens back or redraw them: their kernels, which of them keep the law, what they cost.

The kernels are written here again, from the formulas, and pushed through all states of a small law without
Monte Carlo. Statistics: samples are compared with `allowed`, twice the total variation of an empirical law to
its own. Seeds are fixed.
"""

import itertools

import pytest
import torch
from helpers import Small, allowed, distance, draw, empirical, metric, mixture
from torch.nn.functional import one_hot

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import Propagator
from tauflow import Masked, Mixture, Model
from tauflow.errors import SamplingError
from tauflow.samplers import sampler_from
from tauflow.samplers.gibbs import conditional

V, D = 2, 3
LAW = EnumerableLaw.random(V, D, spread=1.5)
COUNT = 10_000
KINDS = ("masked", "uniform", "marginal")
ETAS = {"remdm_cap": 0.3, "remdm_rescale": 0.6, "forward_backward": 1.5, "psi": 0.7}


def floor(law=LAW):
    return allowed(len(law.probabilities), COUNT)


def rows_at(propagator, t):
    states = propagator.states
    return propagator.model.denoiser.evaluate(states, torch.full((len(states),), t)).dense().double()


def sigma_of(rule, eta, absorbing, now, after):
    most = 1 - after if not absorbing else 1.0 if now == 0 else min(1.0, (1 - after) / now)
    wanted = {
        "remdm_cap": eta,
        "remdm_rescale": eta * most,
        "forward_backward": eta * (after - now) / now if now else 0.0,
        "psi": eta * (1 - after),
    }
    return min(most, wanted[rule])


def remask_kernel(propagator, now, sigma, r):
    """What becomes of every coordinate (M, D, S) of all states."""
    process, x = propagator.process, propagator.states
    stay = one_hot(x, process.num_states).double()
    drawn = torch.nn.functional.pad(rows_at(propagator, now), (0, process.num_states - V))
    source = process.start_distribution()
    if not process.absorbing:
        return sigma * source + r * drawn + (1 - sigma - r) * stay
    masks = (x == process.num_tokens)[:, :, None]
    return torch.where(masks, r * drawn + (1 - r) * stay, sigma * source + (1 - sigma) * stay)


def path(kind, rule, eta, levels, window=(0.0, 1.0)):
    """The law of the states after each step along levels of kappa = t, and of the first coordinate before and
    after it (S, S)."""
    propagator = Propagator(LAW, mixture(kind, V))
    law, nfe = propagator.start(), len(levels) - 1
    first = one_hot(propagator.states[:, 0], propagator.process.num_states).double()
    for n, (now, after) in enumerate(itertools.pairwise(levels)):
        within = window[0] <= n / nfe < window[1]
        sigma = sigma_of(rule, eta, propagator.process.absorbing, now, after) if within else 0.0
        kernel = remask_kernel(propagator, now, sigma, (after - (1 - sigma) * now) / (1 - now))
        table = torch.einsum("m,ms,mr->sr", law, first, kernel[:, 0])
        law = law @ propagator.product(kernel)
        yield law, table


def even(nfe):
    return [n / nfe for n in range(nfe + 1)]


def error(kind, rule, eta, levels, window=(0.0, 1.0)):
    """The total variation to the data law at the end of a path."""
    *_, (law, _) = path(kind, rule, eta, levels, window)
    propagator = Propagator(LAW, mixture(kind, V))
    return distance(law[(propagator.states < V).all(1)], LAW.probabilities)


def follows(kind, spec, expected):
    """Whether samples go from state to state as expected; also the times of the evaluations."""
    process, states, times = mixture(kind, V), [], []

    def network(x, t):
        states.append(x)
        times.append(t[0].item())
        return LAW.posterior(x, t, process).log()

    result = tauflow.sample(Model(network, process, (D,)), spec, len(expected), count=COUNT)
    pairs = zip([*states, result.tokens][:-1], [*states, result.tokens][1:], expected, strict=True)
    size = process.num_states
    for before, after, (law, table) in pairs:
        assert distance(empirical(after, size), law) < allowed(size**D, COUNT)
        moves = empirical(torch.stack([before[:, 0], after[:, 0]], 1), size).view(size, size)
        assert distance(moves, table) < allowed(size**2, COUNT)
    return times


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ETAS)
def test_samples_follow_the_kernel(rule, kind):
    expected = list(path(kind, rule, ETAS[rule], even(5), (0.2, 0.8)))
    follows(kind, sampler_from(rule, eta=ETAS[rule], begin=0.2, end=0.8), expected)


@pytest.mark.parametrize("kind", ["masked", "uniform"])
def test_a_loop_holds_kappa(kind):
    """Kappa rises to 0.8 over a quarter of the evaluations, stays for a half, and rises to 1."""
    levels = [0, 0.4, 0.8, 0.8, 0.8, 0.8, 0.8, 0.9, 1]
    expected = list(path(kind, "remdm_cap", 0.2, levels, (0.25, 0.75)))
    times = follows(kind, "remdm_loop(hold=0.8, begin=0.25, end=0.75, eta=0.2)", expected)
    assert times == pytest.approx(levels[:-1])


def held(nfe):
    """The levels of remdm_loop."""
    shares = even(nfe)
    return [min(0.9, 2 * u) if u < 0.95 else 0.9 + 2 * (u - 0.95) for u in shares]


@pytest.mark.parametrize("kind", KINDS)
def test_which_rules_keep_the_law(kind):
    """Exact laws. Twice the evaluations halve the error of forward-backward, as of plain steps; a fixed eta
    leaves one, which is small where little is taken back."""
    plain, forward = (
        [error(kind, rule, eta, even(nfe)) for nfe in (32, 64)]
        for rule, eta in (("remdm_cap", 0.0), ("forward_backward", 1.0))
    )
    for coarse, fine in (plain, forward):
        assert 1.6 < coarse / fine < 2.6
    assert forward[1] < 0.02
    for rule, eta in (("remdm_rescale", 0.015), ("psi", 0.05)):
        assert error(kind, rule, eta, even(64)) < 0.01
    loops = [error(kind, "remdm_cap", 0.1, held(nfe), (0.45, 0.95)) for nfe in (40, 160)]
    assert loops[1] > 0.9 * loops[0] > 0.01


def dense(nfe):
    """The levels of renoise."""
    return [1 - (1 - u ** (7 / 4)) ** (5 / 2) for u in even(nfe)]


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
@pytest.mark.parametrize("eta", [0.4, 1.0])
def test_renoise_follows_the_kernel_of_forward_backward(eta, kind):
    """Without extrapolation, on its own grid, from a quarter of the evaluations on. With extrapolation it is
    compared with the propagated law (test_sampler_law.py)."""
    expected = list(path(kind, "forward_backward", eta, dense(6), (0.25, 1.0)))
    times = follows(kind, f"renoise(gain=0, coins=independent, eta={eta})", expected)
    assert times == pytest.approx(dense(6)[:-1], abs=1e-6)


def test_renoise_extrapolates_by_the_share_that_moves():
    """w = 3/4 (sigma + r) (kappa_2 - kappa_1) / (2 (kappa_1 - kappa_0)); 0 where there is no history."""
    sampler = sampler_from("renoise")
    grid = sampler.plan(mixture("uniform", V), D, 4)
    first, second, third = dense(4)[:3]
    sigma = min((third - second) / second, 1 - third)
    share = sigma + (third - (1 - sigma) * second) / (1 - second)
    wanted = 0.75 * share * (third - second) / (2 * (second - first))
    assert sampler.exponent(grid, 1) == pytest.approx(wanted, rel=1e-6)
    assert sampler.exponent(grid, 0) == 0


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_renoise_keeps_the_law(kind):
    """Exact at D = 1 with any number of steps. Else twice the evaluations halve the error, without Monte
    Carlo; samples with systematic coins are no farther from the law."""
    one = EnumerableLaw.random(3, 1, spread=1.0)
    for nfe in (2, 5):
        assert reached(kind, "renoise", nfe, one) < floor(one)
    propagator = Propagator(LAW, mixture(kind, V))
    coarse, fine = (
        distance(propagator.terminal_law(sampler_from("renoise(coins=independent)"), nfe), LAW.probabilities)
        for nfe in (32, 64)
    )
    assert 1.6 < coarse / fine < 2.6
    assert fine < 0.015
    assert reached(kind, "renoise", 64) < fine + floor()
    assert not sampler_from("renoise").sharpens


def mask_states(spec, nfe, count, length):
    """The states before each evaluation and the samples, where all tokens are as likely."""
    states = []

    def network(x, t):
        states.append(x)
        return torch.zeros(*x.shape, V)

    result = draw(network, Masked(V), (count, length), spec, nfe)
    return [*states, result.tokens], result


def test_more_evaluations_than_coordinates():
    """Tokens are taken back again and again, and nothing is evaluated where no mask is left to be drawn."""
    states, result = mask_states("remdm_loop(eta=0.1)", 60, 1, D)
    assert D < result.nfe == len(states) - 1 < 60
    back = sum(int(((x != V) & (y == V)).sum()) for x, y in itertools.pairwise(states))
    assert back >= 4, "about 9 are expected in 30 steps that hold kappa, were it not for steps without one"
    assert all((x == V).any() for x in states[:-1])
    assert not (states[-1] == V).any()
    assert draw(lambda x, t: torch.zeros(*x.shape, V), Masked(V), (1, D), "spaced_even", 60).nfe == D


@pytest.mark.parametrize("coins", ["independent", "systematic"])
def test_what_is_taken_back_together_lies_apart(coins):
    """Each coordinate is taken back with the probability eta, systematic coins never two neighbours."""
    spec = f"remdm_loop(hold=0.5, begin=0.1, end=0.9, eta=0.2, coins={coins})"
    states, _ = mask_states(spec, 20, 500, 16)
    held = states[3:17]
    back = torch.cat([(x != V) & (y == V) for x, y in itertools.pairwise(held)])
    shares = back.double().sum(0) / torch.cat([x != V for x in held[:-1]]).double().sum(0)
    # about 3000 tokens of a coordinate: a standard error of 0.007 or less
    torch.testing.assert_close(shares, torch.full_like(shares, 0.2), atol=0.035, rtol=0)
    neighbours = (back[:, 1:] & back[:, :-1]).double().mean().item()
    if coins == "systematic":
        assert neighbours == 0
    else:
        assert neighbours == pytest.approx(0.01, abs=0.003)


def at_kappa(propagator, kappa):
    """The law of all states at kappa."""
    noised = kappa * torch.eye(V) + (1 - kappa) * propagator.process.start_distribution()
    return LAW.probabilities @ propagator.product(noised[LAW.sequences])


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_redrawing_one_coordinate_keeps_the_law_at_its_noise(kind):
    propagator = Propagator(LAW, mixture(kind, V))
    law, x = at_kappa(propagator, 0.4), propagator.states
    posterior = propagator.problem.evaluate(x, 0.4)
    rows = conditional(propagator.problem, posterior, torch.arange(x.numel())).view(*x.shape, V)
    for d in range(D):
        joint = torch.stack([law[x.eq(x[n]).sum(1) == D - (x[:, d] != x[n, d]).long()] for n in range(V**D)])
        torch.testing.assert_close(rows[:, d], joint / joint.sum(1, keepdim=True), atol=1e-6, rtol=0)
        kernel = one_hot(x, V).double()
        kernel[:, d] = rows[:, d]
        torch.testing.assert_close(law @ propagator.product(kernel), law, atol=1e-7, rtol=0)


def reached(kind, spec, nfe, law=LAW):
    """The total variation of samples to the law."""
    result = tauflow.sample(law.model(mixture(kind, law.num_tokens)), spec, nfe, count=COUNT)
    assert result.nfe == nfe
    return distance(empirical(result.tokens, law.num_tokens), law.probabilities)


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_blind_sweeps_keep_the_law_and_a_choice_by_margins_does_not(kind):
    """Systematic coins redraw exactly one of three coordinates in a sweep: what the 17 steps of the predictor
    do wrong is made good."""
    assert reached(kind, "gibbs(share=0.3333, coins=systematic)", 32) < floor() / 2
    assert reached(kind, "bridge(gain=0)", 17) > floor()
    assert reached(kind, "gibbs_margin(share=0.3333)", 32) > 2 * floor()
    assert sampler_from("gibbs_margin").sharpens
    assert not sampler_from("gibbs").sharpens


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_stratified_hazards_do_not_keep_the_law(kind):
    """Even of one coordinate, whose law the kernel behind them reaches with any number of steps; more of them
    do not help."""
    one = EnumerableLaw.random(3, 1, spread=1.0)
    assert reached(kind, "tweedie_d3pm", 16, one) < floor(one)
    for nfe in (16, 48):
        assert reached(kind, "shs", nfe, one) > 3 * floor(one)


def test_stratified_hazards_fix_the_number_of_jumps():
    """Where all tokens are as likely every coordinate has the same hazard, and jumps as often up to one."""
    states = []
    draw(
        lambda x, t: torch.zeros(*x.shape, 8),
        mixture("uniform", 8),
        (1, 2000),
        "shs(finish=none)",
        64,
        observer=lambda info, state: states.append(state.x),
    )
    jumps = sum((x != y).long() for x, y in itertools.pairwise(states))
    assert jumps.float().mean() > 1.2
    assert jumps.max() - jumps.min() == 1


def test_sweeps_share_the_budget():
    """Sweeps are at the time of the next step, and none follows the last one, which draws all tokens."""
    for sweeps, nfe in itertools.product((1, 2), range(1, 9)):
        times = []

        def network(x, t, times=times):
            times.append(t[0].item())
            return torch.zeros(*x.shape, V)

        result = draw(network, mixture("uniform", V), (2, D), f"gibbs(sweeps={sweeps})", nfe)
        assert result.nfe == len(times) == nfe
        steps = nfe - sweeps * ((nfe - 1) // (1 + sweeps))
        assert len(set(times)) == steps
        assert times == sorted(times)
        counts = [times.count(t) for t in sorted(set(times))]
        assert counts[0] == 1
        assert counts == sorted(counts), "sweeps where there is least noise"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("remdm_cap(eta=1.1)", "eta must be a number from 0 to 1"),
        ("psi(begin=0.8, end=0.2)", "shares of the evaluations"),
        ("remdm_loop(begin=0)", "hold=0.9 is a kappa between 0 and 1"),
        ("remdm_loop(grid=early)", "hold has a grid of its own"),
        ("renoise(begin=2)", "begin must be at least 0 and at most 1"),
        ("gibbs(share=0)", "share must be above 0"),
        ("gibbs(sweeps=0)", "sweeps must be at least 1"),
    ],
)
def test_bad_options_are_refused(spec, message):
    with pytest.raises(SamplingError, match=message):
        sampler_from(spec)


@pytest.mark.parametrize("name", ["remdm_cap", "renoise", "gibbs", "shs"])
def test_what_they_cannot_do(name):
    with pytest.raises(SamplingError, match=r"mixture|uniform or marginal"):
        draw(Small(V, V), metric(V), (2, D), name, 4)
    if name in ("gibbs", "renoise"):
        with pytest.raises(SamplingError, match="needs a uniform or marginal source"):
            draw(Small(V + 1, V), Masked(V), (2, D), name, 4)
    if name == "remdm_cap":
        model = Model(Small(V + 1, V), Mixture(Masked(V), "linear"), (D,))
        with pytest.raises(SamplingError, match="draws a token several times"):
            tauflow.nll(model, name, 4, torch.zeros(2, D, dtype=torch.long))
