"""Spaced ranks, curves through grids, and systematic coins: what moves together lies far apart.

A share p of n independent draws has the standard error sqrt(p (1 - p) / n), and tests allow five. Seeds are
fixed.
"""

import itertools
import math

import pytest
import torch
from helpers import draw, mixture

from tauflow import Masked
from tauflow.denoise import CallableDenoiser
from tauflow.samplers.geometry import RASTER, curve_of, farthest_ranks, hilbert, shifted, spaced_ranks
from tauflow.samplers.leaping import Rule, Term, leap
from tauflow.samplers.random import sample_coins


def states_of(sampler, denoiser, source, shape, nfe, **options) -> torch.Tensor:
    """The states that the denoiser is called with, and the end (N + 1, B, D)."""
    states = []

    def model(x, t):
        states.append(x.clone())
        return denoiser(x, t)

    result = draw(model, source, shape, sampler, nfe, **options)
    return torch.stack([*states, result.tokens])


def flat(x, t):
    """Logits of three tokens that are equally likely."""
    return torch.zeros(*x.shape, 3)


def positions(geometry):
    """Cells in the order of their ranks (D, A), and cyclic distances between them (D, D)."""
    cells = torch.tensor(list(itertools.product(*(range(size) for size in geometry))))[
        spaced_ranks(geometry).argsort()
    ]
    apart = (cells[:, None] - cells).abs()
    return cells, torch.minimum(apart, torch.tensor(geometry) - apart).double().square().sum(-1).sqrt()


@pytest.mark.parametrize("geometry", [(64,), (16, 16), (8, 32)])
def test_near_ranks_lie_far_apart(geometry):
    """Blocks of k = 2^i ranks are lattices: no two of their cells are nearer than the spacing (D / k)^(1/A)
    of k cells spread evenly.

    So any k successive ranks, which lie in two such blocks, are two sets each of which is spaced. (In a long
    strip this begins where k is the ratio of its sides.)
    """
    _, apart = positions(geometry)
    size = len(apart)
    apart.fill_diagonal_(math.inf)
    for k in (2**i for i in range(1, size.bit_length() - 1)):
        if k < max(geometry) / min(geometry):
            continue
        nearest = min(apart[i : i + k, i : i + k].min().item() for i in range(0, size, k))
        assert nearest >= (size / k) ** (1 / len(geometry)) - 1e-9, k
    assert apart[:4, :4].min() > 3, "row by row it would be 1"


@pytest.mark.parametrize("geometry", [(63,), (12, 20), (28, 28)])
def test_other_sizes_are_spaced_too(geometry):
    """The first k ranks, at sizes that are no powers of two: never nearer than 0.35 of the spacing of k cells
    spread evenly."""
    _, apart = positions(geometry)
    size = len(apart)
    apart.fill_diagonal_(math.inf)
    assert torch.equal(spaced_ranks(geometry).sort().values, torch.arange(size))
    for k in range(2, size // 2):
        assert apart[:k, :k].min() >= 0.35 * (size / k) ** (1 / len(geometry)) - 1e-9, k


def test_shifts_go_round_every_axis():
    ranks = spaced_ranks((3, 4))
    shift = torch.tensor([[0, 0], [1, 0], [2, 3]])
    for row, (down, right) in zip(shifted(ranks, (3, 4), shift), shift.tolist(), strict=True):
        assert torch.equal(row.view(3, 4), ranks.view(3, 4).roll((-down, -right), (0, 1)))


def five_errors(share: torch.Tensor, n: int) -> torch.Tensor:
    return 5 * (share * (1 - share) / n).sqrt() + 1e-9


@pytest.mark.parametrize("chance", [0.07, 0.5, 0.83, 1.0])
def test_systematic_coins_have_exact_marginals_and_lie_apart(chance):
    n, length = 20_000, 12
    movable = torch.ones(n, length, dtype=torch.bool)
    movable[: n // 2, 3:6] = False
    chosen = torch.zeros(n * length, dtype=torch.bool)
    chosen[sample_coins(movable, chance, torch.Generator().manual_seed(0), "systematic", RASTER)] = True
    chosen = chosen.view(n, length)
    assert not chosen[~movable].any()
    for rows, free in ((chosen[: n // 2], 9), (chosen[n // 2 :], 12)):
        share = torch.where(
            movable[0] if free == 9 else torch.ones(length, dtype=torch.bool), chance, 0.0
        ).double()
        assert ((rows.double().mean(0) - share).abs() <= five_errors(share, n // 2)).all()
        assert set(rows.sum(1).tolist()) <= {
            math.floor(chance * free + 1e-9),
            math.ceil(chance * free - 1e-9),
        }
    gaps = [
        b - a
        for row in chosen[n // 2 :][:500]
        for a, b in itertools.pairwise(row.nonzero().squeeze(1).tolist())
    ]
    assert not gaps or min(gaps) >= math.floor(1 / chance)


@pytest.mark.parametrize("grid", [(16, 16), (4, 4, 4)])
def test_a_walk_through_a_grid_goes_from_neighbour_to_neighbour(grid):
    walk = hilbert(grid)
    assert torch.equal(walk.sort().values, torch.arange(math.prod(grid)))
    cells = torch.tensor(list(itertools.product(*(range(size) for size in grid))))[walk]
    assert (cells.diff(dim=0).abs().sum(1) == 1).all()


@pytest.mark.parametrize("grid", [(28, 28), (7, 9)])
def test_a_walk_through_a_grid_of_other_sizes_leaves_no_cell_out_and_stays_near(grid):
    """Steps of the curve skip the cells that the grid has not: 1.2 cells on average, row by row it is more
    than 1.9 at the ends of rows alone."""
    walk = hilbert(grid)
    assert torch.equal(walk.sort().values, torch.arange(math.prod(grid)))
    cells = torch.tensor(list(itertools.product(*(range(size) for size in grid))))[walk].double()
    assert cells.diff(dim=0).norm(dim=1).mean() < 1.2
    patches = cells[: len(cells) // 16 * 16].unflatten(0, (-1, 16))
    assert (patches.amax(1) - patches.amin(1)).amax(1).mean() < 7, (
        "16 cells of the walk are a patch, not a row"
    )


def nearest(chosen: torch.Tensor) -> float:
    """The mean over chosen cells (H, W) of the distance to the next one, round the edges."""
    cells = chosen.nonzero().double()
    apart = (cells[:, None] - cells).abs()
    apart = torch.minimum(apart, torch.tensor(chosen.shape) - apart).norm(dim=-1).fill_diagonal_(math.inf)
    return apart.min(1).values.mean().item()


@pytest.mark.parametrize("grid", [(16, 16), (7, 9), (4, 4, 4)])
def test_greedy_ranks_are_a_permutation_with_every_cell_far_from_those_before(grid):
    """The first k ranks: never nearer than half of the spacing of k cells spread evenly, at any size."""
    ranks = farthest_ranks(grid)
    size = math.prod(grid)
    assert torch.equal(ranks.sort().values, torch.arange(size))
    cells = torch.tensor(list(itertools.product(*(range(side) for side in grid))))[ranks.argsort()]
    apart = (cells[:, None] - cells).abs()
    apart = torch.minimum(apart, torch.tensor(grid) - apart).double().norm(dim=-1).fill_diagonal_(math.inf)
    for k in range(2, size // 2):
        assert apart[:k, :k].min() >= 0.5 * (size / k) ** (1 / len(grid)) - 1e-9, k


@pytest.mark.parametrize("channels", [None, "together", "apart"])
def test_systematic_coins_on_a_grid_have_exact_marginals_and_lie_apart(channels):
    n, shape, chance = 4000, (8, 8) if channels is None else (8, 8, 3), 0.125
    size = math.prod(shape)
    movable = torch.ones(n, size, dtype=torch.bool)
    chosen = torch.zeros(n * size, dtype=torch.bool)
    places = sample_coins(
        movable, chance, torch.Generator().manual_seed(0), "systematic", curve_of(shape, channels)
    )
    chosen[places] = True
    chosen = chosen.view(n, 8, 8, -1)
    share = torch.full(chosen.shape[1:], chance, dtype=torch.float64)
    assert ((chosen.double().mean(0) - share).abs() <= five_errors(share, n)).all()
    if channels == "together":
        assert (chosen.all(-1) == chosen.any(-1)).all()
    apart = [nearest(row[..., 0]) for row in chosen[:100]]
    assert sum(apart) / 100 > 2, "8 of 64 cells: 2.8 if spread evenly, 1.6 at random"


def rows_of(n: int, seed: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).expand(n, 6, 4)


@pytest.mark.parametrize("jump", ["exponential", "one_event"])
@pytest.mark.parametrize("kind", ["masked", "marginal"])
def test_a_systematic_leap_moves_each_coordinate_with_its_probability(kind, jump):
    """Six coordinates with rows of their own, one of them frozen: each follows the analytic law, as with
    independent coins."""
    n = 40_000
    x = torch.full((n, 6), 4) if kind == "masked" else torch.tensor([0, 1, 2, 3, 0, 1]).expand(n, 6)
    movable = torch.ones(n, 6, dtype=torch.bool)
    movable[:, 2] = False
    denoiser = CallableDenoiser(lambda x, t: rows_of(n, 0), 4)
    term = Term(0.9, denoiser.evaluate(x, torch.zeros(n)).evaluated_at(x, 0.0))
    rule = Rule(jump, coins="systematic")
    jumps = leap(mixture(kind, 4), [term], x, movable, rule, torch.Generator().manual_seed(1))
    rates = 0.9 * rows_of(1, 0)[0].softmax(-1).double()
    if kind != "masked":
        rates.scatter_(1, x[0][:, None], 0)
    rates[2] = 0
    total = rates.sum(-1, keepdim=True)
    expected = rates * (
        -torch.expm1(-total) / total.clamp(min=1e-9) if jump == "exponential" else torch.exp(-total)
    )
    moved = torch.stack([((jumps.x == s) & (jumps.x != x)).double().mean(0) for s in range(4)], -1)
    assert ((moved - expected).abs() <= five_errors(expected, n)).all()
    together = (jumps.x != x)[:, :2].all(1).double().mean().item()
    assert together < 0.7 * expected.sum(-1)[:2].prod().item(), (
        "neighbours move together less often than by chance"
    )


def test_leaping_samplers_take_systematic_coins():
    """From a masked source every candidate of `tr` moves: half of 20 coordinates up to kappa = 1/2, in every
    sequence."""
    states = states_of("tr", flat, Masked(3), (50, 20), 2, coins="systematic")
    assert (states[1] == 3).sum(1).eq(10).all()
