"""Orders of convergence in law, by exact propagation: the known facts of the samplers, each with its slope.

Where a slope is fitted, the run ends at kappa = 0.8 without a finishing draw and is compared with the exact
law there. (On a grid that is uniform in t up to 1 the last steps have a fixed length in tau, so a slope up to
the data would measure the finishing.)
"""

import pytest
import torch
from helpers import distance, metric, mixture

from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import Propagator, slope
from tauflow.denoise import CallableDenoiser, Model
from tauflow.samplers import SAMPLERS, Problem, State, sampler_from
from tauflow.samplers.grids import Grid
from tauflow.samplers.leaping import intensities

WEAK = EnumerableLaw.random(num_tokens=2, length=3, spread=0.2)
STRONG = EnumerableLaw.random(num_tokens=2, length=3, spread=1.5)
COUNTS = [32, 64, 128]


def fitted(law, kind, name, schedule="quadratic", **options) -> float:
    propagator = Propagator(law, mixture(kind, law.num_tokens, schedule))
    sampler = sampler_from(name, **({"grid": "tau", "finish": "none", "cutoff": 0.2} | options))
    return slope([propagator.error(sampler, count) for count in COUNTS], COUNTS)


@pytest.mark.parametrize("kind", ["masked", "marginal"])
@pytest.mark.parametrize("grid", ["t", "tau"])
def test_tr_cie_is_second_order_in_law(kind, grid):
    assert fitted(WEAK, kind, "tr_cie", grid=grid) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("kind", ["masked", "marginal"])
@pytest.mark.parametrize("name", ["tr", "euler", "theta_rk2", "tr_cie_exact"])
def test_first_order_methods(kind, name):
    assert fitted(WEAK, kind, name) == pytest.approx(1.0, abs=0.13)


@pytest.mark.parametrize(("name", "order"), [("tr", 1), ("tr_cie", 2)])
def test_between_two_codes_a_metric_path_has_the_orders_of_a_mixture(name, order):
    """It is the path of one, in another time. With more codes: test_metric."""
    propagator = Propagator(WEAK, metric(2, "quadratic"))
    sampler = SAMPLERS[name](grid="tau", finish="none", cutoff=0.2)
    errors = [propagator.error(sampler, count) for count in COUNTS]
    assert slope(errors, COUNTS) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("kind", ["masked", "marginal"])
def test_tweedie_is_first_order(kind):
    propagator = Propagator(WEAK, mixture(kind, 2, "quadratic"))
    laws = [propagator.tweedie_law("tau", count, cutoff=0.2, draws=False) for count in COUNTS]
    errors = [distance(law, propagator.marginal(0.8)) for law in laws]
    assert slope(errors, COUNTS) == pytest.approx(1.0, abs=0.13)


@pytest.mark.parametrize("kind", ["masked", "marginal"])
def test_cie_is_second_order_where_the_grid_and_the_rate_are_smooth(kind):
    """On the t grid. On the tau grid a quadratic kappa makes the first step in t long, and the order
    falls."""
    assert fitted(WEAK, kind, "cie", grid="t") == pytest.approx(1.92, abs=0.13)
    assert fitted(WEAK, kind, "cie", grid="tau") < 1.6


@pytest.mark.parametrize("kind", ["masked", "marginal"])
def test_theta_trapezoidal_is_second_order_while_its_clamp_is_idle(kind):
    assert fitted(WEAK, kind, "theta_trapezoidal", grid="t") == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("kind", ["masked", "marginal"])
@pytest.mark.parametrize("name", ["cie", "tr_cie", "theta_trapezoidal"])
def test_one_event_reduces_every_method_to_first_order(kind, name):
    assert fitted(WEAK, kind, name, jump="one_event") == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("kind", ["masked", "marginal"])
def test_the_paper_preset_is_about_first_order(kind):
    assert fitted(WEAK, kind, "tr_cie_paper") == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("kind", ["masked", "marginal"])
def test_strong_dependence_makes_the_clamp_fire_and_order_fall(kind):
    assert fitted(STRONG, kind, "tr_cie") == pytest.approx(1.0, abs=0.1)


def test_the_clamp_is_idle_exactly_when_the_posterior_falls_slowly():
    """1.5 p_n - 0.5 p_{n-1} is negative iff p_n / p_{n-1} < 1/3, at r = 1."""
    logits = torch.tensor([[[0.34, 0.5, 0.16]], [[0.32, 0.5, 0.18]]]).log()
    before = torch.tensor([[[1.0, 1e-9, 1e-9]]]).log().expand(2, 1, 3)
    problem = Problem(Model(lambda x, t: logits, mixture("masked", 3), (1,)))
    x = torch.full((2, 1), 3)
    times = torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64)
    grid, sampler = Grid(times, times), SAMPLERS["tr_cie"]()
    history = CallableDenoiser(lambda x, t: before, 3).evaluate(x, torch.zeros(2)).evaluated_at(x, 0.0)
    terms = sampler.terms(problem, State(x, history), grid, 1)
    clamp = sampler.leap_rule(grid, 1).clamp
    intensity, negative, _ = intensities(problem.process, terms, slice(None), x, clamp)
    assert negative == 1
    torch.testing.assert_close(intensity[:, 0], 0.1 * torch.tensor([1.5 * 0.34 - 0.5, 0.0]))


def test_coefficients_on_a_nonuniform_grid():
    """Twice the step before: r = 2. The t-domain rule has its own r and the rate at both times."""
    tau = torch.tensor([0.0, 0.1, 0.3], dtype=torch.float64)
    process = mixture("masked", 2)
    grid = Grid(process.t_from_clock(tau), tau)
    assert SAMPLERS["tr_cie"]().coefficients(process, grid, 1) == pytest.approx((0.2 * 2, -0.2))
    h, r = grid.dt(1), grid.dt(1) / grid.dt(0)
    rates = [1 / (1 - t) for t in grid.t.tolist()]
    expected = (h * (1 + r / 2) * rates[1], -h * r / 2 * rates[0])
    assert SAMPLERS["cie"]().coefficients(process, grid, 1) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "order"), [("tr_cie_exact", 3), ("tr", 2), ("euler", 2)])
def test_local_error_of_the_cumulative_intensity(name, order):
    """Theorem exact_error: at a frozen state the integral of the rate over a step is wrong by O(h^3) for
    TR-CIE-Exact, O(h^2) for Euler."""
    process = mixture("marginal", 2, "quadratic")
    x, start = torch.tensor([[0, 1, 0]]), 0.5
    problem = Problem(STRONG.model(process))
    sampler, errors, steps = SAMPLERS[name](), [], [0.08, 0.04, 0.02, 0.01]
    for h in steps:
        tau = torch.tensor([start - h, start, start + h], dtype=torch.float64)
        grid = Grid(process.t_from_clock(tau), tau)
        terms = sampler.terms(problem, State(x, problem.evaluate(x, grid.t[0])), grid, 1)
        clamp = sampler.leap_rule(grid, 1).clamp
        estimate = intensities(process, terms, slice(None), x, clamp).total
        # midpoint rule: error below 1e-9
        nodes = start + h * (torch.arange(200, dtype=torch.float64) + 0.5) / 200
        fine = STRONG.posterior(x.expand(200, 3), process.t_from_clock(nodes), process).mean(0) * h
        fine.scatter_(1, x.T, 0.0)
        errors.append((estimate - fine).abs().max().item())
    assert slope(errors, [1 / h for h in steps]) == pytest.approx(order, abs=0.15)


def test_with_an_exact_masked_denoiser_time_does_not_matter():
    """tr_cie_exact equals tr, and tr equals tweedie, on the same grid, to rounding."""
    propagator = Propagator(STRONG, mixture("masked", 2))
    exact = propagator.terminal_law(SAMPLERS["tr_cie_exact"](), 2 * 7)  # 7 steps and the draw
    plain = propagator.terminal_law(SAMPLERS["tr"](), 8)
    torch.testing.assert_close(exact, plain, atol=1e-6, rtol=0)  # the denoiser is called with float32 times
    torch.testing.assert_close(plain, propagator.tweedie_law("t", 8), atol=1e-6, rtol=0)
    for kind in ("uniform", "marginal"):
        other = Propagator(STRONG, mixture(kind, 2))
        exact, plain = (
            other.terminal_law(SAMPLERS[name](), nfe) for name, nfe in (("tr_cie_exact", 14), ("tr", 8))
        )
        assert (exact - plain).abs().max() > 1e-3


def test_the_tau_grid_is_bad_for_a_masked_and_good_for_a_uniform_source():
    """At 8 evaluations and a small cutoff its first step reveals 1 - eps^(1/7) = 63 % of the tokens."""
    for kind, better, cutoff in (("masked", "t", 1e-3), ("uniform", "tau", 2e-2), ("marginal", "tau", 2e-2)):
        propagator = Propagator(STRONG, mixture(kind, 2))
        errors = {
            grid: propagator.error(SAMPLERS["tr_cie"](grid=grid, cutoff=cutoff), 8) for grid in ("t", "tau")
        }
        assert min(errors, key=errors.get) == better
    masked = Propagator(STRONG, mixture("masked", 2))
    assert masked.error(SAMPLERS["tr_cie"](grid="tau"), 8) > masked.error(SAMPLERS["euler"](), 8)


def test_euler_wastes_its_first_step_where_kappa_starts_flat():
    process = mixture("masked", 2, "quadratic")
    grid = SAMPLERS["euler"]().plan(process, 3, 8)
    assert SAMPLERS["euler"]().coefficients(process, grid, 0) == (0.0, 0.0)
    assert SAMPLERS["tr"]().coefficients(process, grid, 0)[0] > 0
