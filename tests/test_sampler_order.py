"""Orders of convergence in law, by exact propagation: the known facts of the samplers, each with its slope.

Where a slope is fitted, the run ends at kappa = 0.8 without a finishing draw and is compared with the exact law there. (On a grid that is
uniform in t up to 1 the last steps have a fixed length in tau, so a slope up to the data would measure the finishing.)
"""

import pytest
import torch

from tauflow import Masked, Uniform, schedule_from
from tauflow.denoisers import CallableDenoiser
from tauflow.oracles import EnumerableLaw, Propagator, slope
from tauflow.samplers import SAMPLERS
from tauflow.samplers.base import Problem, State
from tauflow.samplers.grids import Grid
from tauflow.samplers.leap import intensities

WEAK = EnumerableLaw.random(num_tokens=2, length=3, spread=0.2)
STRONG = EnumerableLaw.random(num_tokens=2, length=3, spread=1.5)
SOURCES = [Masked, Uniform]
COUNTS = [32, 64, 128]


def fitted(law, source, name, schedule="quadratic", **options) -> float:
    propagator = Propagator(law, source(law.num_tokens), schedule_from(schedule))
    sampler = SAMPLERS[name](**({"grid": "tau", "finish": "none", "cutoff": 0.2} | options))
    return slope([propagator.error(sampler, count) for count in COUNTS], COUNTS)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("grid", ["t", "tau"])
def test_tr_cie_is_second_order_in_law(source, grid):
    assert fitted(WEAK, source, "tr_cie", grid=grid) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["tr", "euler", "theta_rk2", "tr_cie_exact"])
def test_first_order_methods(source, name):
    assert fitted(WEAK, source, name) == pytest.approx(1.0, abs=0.13)


@pytest.mark.parametrize("source", SOURCES)
def test_tweedie_is_first_order(source):
    propagator = Propagator(WEAK, source(2), schedule_from("quadratic"))
    exact = propagator.marginal(0.8)
    errors = [(propagator.tweedie_law("tau", count, cutoff=0.2, draws=False) - exact).abs().sum().item() / 2 for count in COUNTS]
    assert slope(errors, COUNTS) == pytest.approx(1.0, abs=0.13)


@pytest.mark.parametrize("source", SOURCES)
def test_cie_is_second_order_where_the_grid_and_the_rate_are_smooth(source):
    """On the t grid. On the tau grid a quadratic kappa makes the first step in t long, and the order falls."""
    assert fitted(WEAK, source, "cie", grid="t") == pytest.approx(1.92, abs=0.13)
    assert fitted(WEAK, source, "cie", grid="tau") < 1.6


@pytest.mark.parametrize("source", SOURCES)
def test_theta_trapezoidal_is_second_order_while_its_clamp_is_idle(source):
    assert fitted(WEAK, source, "theta_trapezoidal", grid="t") == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["tr", "cie", "tr_cie", "tr_cie_exact", "theta_rk2", "theta_trapezoidal"])
def test_one_event_reduces_every_method_to_first_order(source, name):
    assert fitted(WEAK, source, name, jump="one_event") == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("source", SOURCES)
def test_the_paper_preset_is_about_first_order(source):
    assert fitted(WEAK, source, "tr_cie_paper") == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("source", SOURCES)
def test_strong_dependence_makes_the_clamp_fire_and_order_fall(source):
    assert fitted(STRONG, source, "tr_cie") == pytest.approx(1.0, abs=0.1)


def test_the_clamp_is_idle_exactly_when_the_posterior_falls_slowly():
    """1.5 p_n - 0.5 p_{n-1} is negative iff p_n / p_{n-1} < 1/3, at r = 1."""
    logits = torch.tensor([[[0.34, 0.5, 0.16]], [[0.32, 0.5, 0.18]]]).log()
    before = torch.tensor([[[1.0, 1e-9, 1e-9]]]).log().expand(2, 1, 3)
    problem = Problem(CallableDenoiser(lambda x, t: logits, 3), Masked(3), schedule_from("linear"), None, False)
    x = torch.full((2, 1), 3)
    grid = Grid(torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64), torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64))
    history = CallableDenoiser(lambda x, t: before, 3).evaluate(x, torch.zeros(2))
    terms, clamp = SAMPLERS["tr_cie"]().terms(problem, State(x, history, x), grid, 1)
    intensity, negative = intensities(terms, slice(None), x, clamp)
    assert negative == 1
    torch.testing.assert_close(intensity[:, 0], 0.1 * torch.tensor([1.5 * 0.34 - 0.5, 0.0]))


def test_coefficients_on_a_nonuniform_grid():
    """Twice the step before: r = 2. The t-domain rule has its own r and the rate at both times."""
    tau = torch.tensor([0.0, 0.1, 0.3], dtype=torch.float64)
    schedule = schedule_from("linear")
    problem = Propagator(WEAK, Masked(2), schedule).problem
    grid = Grid(schedule.t_from_tau(tau), tau)
    assert SAMPLERS["tr_cie"]().coefficients(problem, grid, 1) == pytest.approx((0.2 * 2, -0.2))
    h, r = grid.dt(1), grid.dt(1) / grid.dt(0)
    rates = [1 / (1 - t) for t in grid.t.tolist()]
    assert SAMPLERS["cie"]().coefficients(problem, grid, 1) == pytest.approx((h * (1 + r / 2) * rates[1], -h * r / 2 * rates[0]))


@pytest.mark.parametrize(("name", "order"), [("tr_cie_exact", 3), ("tr", 2), ("euler", 2)])
def test_local_error_of_the_cumulative_intensity(name, order):
    """Theorem exact_error: at a frozen state the integral of the rate over a step is wrong by O(h^3) for TR-CIE-Exact, O(h^2) for Euler."""
    source, schedule = Uniform(2), schedule_from("quadratic")
    x, start = torch.tensor([[0, 1, 0]]), 0.5

    def logits(x, t):
        return STRONG.posterior(x, t, source, schedule).log()

    problem = Problem(CallableDenoiser(logits, 2), source, schedule, None, False)
    sampler, errors, steps = SAMPLERS[name](), [], [0.08, 0.04, 0.02, 0.01]
    for h in steps:
        tau = torch.tensor([start - h, start, start + h], dtype=torch.float64)
        grid = Grid(schedule.t_from_tau(tau), tau)
        state = State(x, problem.evaluate(x, grid.t[0]), x)
        estimate, _ = intensities(*[sampler.terms(problem, state, grid, 1)[0], slice(None), x, sampler.terms(problem, state, grid, 1)[1]])
        nodes = start + h * (torch.arange(200, dtype=torch.float64) + 0.5) / 200  # midpoint rule: error below 1e-9
        fine = STRONG.posterior(x.expand(200, 3), schedule.t_from_tau(nodes), source, schedule).mean(0) * h
        fine.scatter_(1, x.T, 0.0)
        errors.append((estimate - fine).abs().max().item())
    assert slope(errors, [1 / h for h in steps]) == pytest.approx(order, abs=0.15)


def test_with_an_exact_masked_denoiser_time_does_not_matter():
    """tr_cie_exact equals tr, and tr equals tweedie, on the same grid, to rounding."""
    propagator = Propagator(STRONG, Masked(2), schedule_from("linear"))
    exact = propagator.terminal_law(SAMPLERS["tr_cie_exact"](), 2 * 7)  # 7 steps and the draw
    plain = propagator.terminal_law(SAMPLERS["tr"](), 8)
    torch.testing.assert_close(exact, plain, atol=1e-6, rtol=0)  # the denoiser is called with float32 times
    torch.testing.assert_close(plain, propagator.tweedie_law("t", 8), atol=1e-6, rtol=0)
    uniform = Propagator(STRONG, Uniform(2), schedule_from("linear"))
    assert (uniform.terminal_law(SAMPLERS["tr_cie_exact"](), 14) - uniform.terminal_law(SAMPLERS["tr"](), 8)).abs().max() > 1e-3


def test_the_tau_grid_is_bad_for_a_masked_and_good_for_a_uniform_source():
    """At 8 evaluations and a small cutoff its first step reveals 1 - eps^(1/7) = 63 % of the tokens."""
    for source, better in ((Masked(2), "t"), (Uniform(2), "tau")):
        propagator = Propagator(STRONG, source, schedule_from("linear"))
        errors = {grid: propagator.error(SAMPLERS["tr_cie"](grid=grid, cutoff=1e-3 if better == "t" else 2e-2), 8) for grid in ("t", "tau")}
        assert min(errors, key=errors.get) == better
    masked = Propagator(STRONG, Masked(2), schedule_from("linear"))
    assert masked.error(SAMPLERS["tr_cie"](grid="tau"), 8) > masked.error(SAMPLERS["euler"](), 8)


def test_euler_wastes_its_first_step_where_kappa_starts_flat():
    propagator = Propagator(STRONG, Masked(2), schedule_from("quadratic"))
    grid, _ = SAMPLERS["euler"]().plan(8, propagator.schedule, 3)
    assert SAMPLERS["euler"]().coefficients(propagator.problem, grid, 0) == (0.0, 0.0)
    assert SAMPLERS["tr"]().coefficients(propagator.problem, grid, 0)[0] > 0
