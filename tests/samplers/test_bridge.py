"""The bridge sampler: its order by exact propagation, exactness at D = 1, its grid, exponents, and coins."""

import math

import pytest
import torch
from helpers import mixture

from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import Propagator, slope
from tauflow import Mixture, Model, Uniform, schedule_from
from tauflow.samplers import SAMPLERS, Problem, State
from tauflow.samplers.bridge import Bridge

WEAK = EnumerableLaw.random(num_tokens=2, length=3, spread=0.2)


FAINT = EnumerableLaw.random(num_tokens=2, length=3, spread=0.02)


@pytest.mark.parametrize(
    ("schedule", "kind", "law"),
    [("linear", "uniform", WEAK), ("cosine", "uniform", FAINT), ("quadratic", "marginal", FAINT)],
)
def test_bridge_is_second_order_up_to_the_data(schedule, kind, law):
    """The final draw included, while coordinates depend little on each other; without extrapolation it is
    first order."""
    propagator, counts = Propagator(law, mixture(kind, 2, schedule)), [32, 64, 128]
    assert slope([propagator.error(Bridge(), n) for n in counts], counts) == pytest.approx(2.0, abs=0.1)
    assert slope([propagator.error(Bridge(gain=0.0), n) for n in counts], counts) == pytest.approx(
        1.0, abs=0.1
    )


def test_a_power_of_rows_leaves_a_small_first_order_error():
    """q is a power of p_n / h. What is of second degree in a change of rows does not cancel in the mean, and
    a jump of another coordinate changes rows by much, with a probability of the order of the step. From a
    source with rare tokens, whose jumps say more, this shows at 256 evaluations: 3 % of the error without
    extrapolation is left."""
    propagator, counts = Propagator(WEAK, mixture("marginal", 2)), [128, 256, 512]
    errors, plain = ([propagator.error(Bridge(gain=gain), n) for n in counts] for gain in (None, 0.0))
    assert slope(errors, counts) < 1.3
    assert max(error / other for error, other in zip(errors, plain, strict=True)) < 0.05


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_bridge_is_exact_in_one_dimension(kind):
    """For any number of evaluations. The network gets float32 times, which hold these kappa = t exactly where
    nfe is a power of two."""
    propagator = Propagator(EnumerableLaw.random(num_tokens=4, length=1, spread=1.0), mixture(kind, 4))
    for nfe in (1, 2, 3, 8):
        assert propagator.error(Bridge(), nfe) < (1e-10 if nfe & (nfe - 1) == 0 else 1e-7)


def test_the_early_grid():
    """kappa = u^2 (2 - u^2) whatever the schedule: to the draw at u = (N - 1) / N, to the cutoff, or for
    bridge to 1."""
    for schedule in map(schedule_from, ("linear", "quadratic", "cosine")):
        u = torch.arange(9, dtype=torch.float64) / 8
        process = Mixture(Uniform(2), schedule)
        grid = Bridge().plan(process, 4, 8)
        assert grid.steps == 8
        torch.testing.assert_close(schedule.kappa(grid.t), u**2 * (2 - u**2))
        grid = SAMPLERS["tr_cie"](grid="early").plan(process, 4, 8)
        assert grid.steps == 7
        torch.testing.assert_close(schedule.kappa(grid.t), (u**2 * (2 - u**2))[:8])
        grid = SAMPLERS["tr_cie"](grid="early", finish="none", cutoff=0.01).plan(process, 4, 8)
        assert schedule.kappa(grid.t[-1].item()) == pytest.approx(0.99)
        torch.testing.assert_close(schedule.tau(grid.t), grid.tau)


def test_exponents_of_bridge():
    grid = Bridge().plan(mixture("uniform", 4), 4, 4)
    kappa = [u**2 * (2 - u**2) for u in (0.0, 0.25, 0.5, 0.75, 1.0)]
    half = [0.0] + [(kappa[n + 1] - kappa[n]) / (2 * (kappa[n] - kappa[n - 1])) for n in (1, 2, 3)]
    assert [Bridge().exponent(grid, n) for n in range(4)] == pytest.approx(half)
    gains = [1.0, 1 / (1 + kappa[1]) ** 2, 1 / (1 + kappa[2]) ** 2, 1.0]
    derived = [w * g for w, g in zip(half, gains, strict=True)]
    assert [Bridge(coins="systematic").exponent(grid, n) for n in range(4)] == pytest.approx(derived)
    halved = [Bridge(coins="systematic", gain=0.5).exponent(grid, n) for n in range(4)]
    assert halved == pytest.approx([w / 2 for w in half])


def five_errors(share: torch.Tensor, n: int) -> torch.Tensor:
    return 5 * (share * (1 - share) / n).sqrt() + 1e-9


def rows_of(n: int, seed: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).expand(n, 6, 4)


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_a_systematic_bridge_moves_each_coordinate_with_its_probability(kind):
    """One step with history, one coordinate frozen: every coordinate has the law (1 - rho) 1{y = x} + rho
    q(y)."""
    n, process, sampler = 40_000, mixture(kind, 4), Bridge(coins="systematic")
    frozen = torch.zeros(n, 6, dtype=torch.bool)
    frozen[:, 4] = True
    problem = Problem(Model(lambda x, t: rows_of(n, int(t[0] > 0)), process, (6,)), frozen)
    grid = sampler.plan(process, 6, 5)
    old, x = (torch.tensor(row).expand(n, 6) for row in ([0, 1, 2, 3, 0, 1], [0, 2, 2, 3, 1, 1]))
    state = State(x, problem.evaluate(old, 0.0))
    after, _ = sampler.step(problem, state, grid, 1, torch.Generator().manual_seed(2))
    rho = -math.expm1(-grid.dtau(1))
    q = sampler.probs(problem, state, problem.evaluate(x, grid.t[1]), grid, 1, torch.arange(6))
    stay = torch.nn.functional.one_hot(x[0], 4).double()
    expected = (1 - rho) * stay + rho * q
    expected[4] = stay[4]
    found = torch.stack([(after.x == s).double().mean(0) for s in range(4)], -1)
    assert ((found - expected).abs() <= five_errors(expected, n)).all()
    neighbours = ((after.x != x)[:, 0] & (after.x != x)[:, 1]).double().mean().item()
    assert neighbours < 0.1 * (1 - (expected * stay).sum(-1))[:2].prod().item(), (
        "neighbours do not move together"
    )
