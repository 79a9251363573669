"""Orders in which neighbours come far apart: coordinates of near ranks lie far from each other.

Rank 0 is revealed first. A sequence is ranked by the reversed bits of its positions (van der Corput). In two
dimensions the rank is Bayer's dither matrix: the reversed bits of row xor column, interleaved with those of
the row, so that the first half of the ranks is a checkerboard, the first quarter every second cell of every
second row, and so on. A size that is no power of two is 2^a m, m odd: a bits are those of the position, the
others those of its share of m in binary.

The other order of a grid is greedy: next comes the cell that is farthest from all that came before it, or are
known, round the edges of the grid; among equals the one with the higher noise. It is as even at every size,
and begins from what a prompt gives.

Shapes: B sequences, D coordinates, A axes.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor


def spaced_ranks(geometry: tuple[int, ...]) -> Tensor:
    """Return ranks (D,) of the cells of a grid of these sizes, the last axis fastest."""
    axes = torch.meshgrid(*(spread(size) for size in geometry), indexing="ij")
    digits = [*(axis ^ axes[0] for axis in axes[1:]), axes[0]]
    code = torch.zeros(geometry, dtype=torch.long)
    levels = max(int(axis.max()) for axis in axes).bit_length()
    for level in range(levels):  # the lowest bits of the position are the first of the code
        for digit in digits:
            code = 2 * code + (digit >> level & 1)
    return code.flatten().argsort().argsort()


def spread(size: int) -> Tensor:
    """Return positions (size,) as distinct binary numbers that are spread evenly over a power of two."""
    low = size & -size
    high = size // low
    position = torch.arange(size)
    return (position // low * 2 ** (high - 1).bit_length() // high) * low + position % low


def shifted(ranks: Tensor, geometry: tuple[int, ...], shift: Tensor) -> Tensor:
    """Return ranks (B, D), moved round every axis by shift (B, A)."""
    index = torch.zeros(len(shift), 1, dtype=torch.long)
    for axis, size in enumerate(geometry):
        along = (torch.arange(size) + shift[:, axis, None]) % size  # (B, size)
        index = (index[:, :, None] * size + along[:, None]).flatten(1)
    return ranks[index.view(-1, math.prod(geometry))]


def is_grid(shape: tuple[int, ...]) -> bool:
    """Return whether a shape has more than one dimension."""
    return sum(size > 1 for size in shape) > 1


@lru_cache(maxsize=16)
def evenly_ranks(geometry: tuple[int, ...]) -> Tensor:
    """Return the greedy ranks (D,) of the cells of an empty grid, with noise of a fixed seed."""
    size = math.prod(geometry)
    noise = torch.rand(1, size, generator=torch.Generator().manual_seed(0))
    return farthest_ranks(geometry, torch.zeros(1, size, dtype=torch.bool), noise)[0]


def farthest_ranks(geometry: tuple[int, ...], known: Tensor, noise: Tensor) -> Tensor:
    """Return greedy ranks (B, D) of the cells of grids; those that are known (B, D) come last.

    Noise (B, D) in [0, 1) decides between cells that are equally far.
    """
    rows = torch.arange(len(known))
    apart = _squares(geometry)
    far = float(sum(size * size for size in geometry))
    near = torch.full(known.shape, far)  # squared distance to the nearest cell that is taken
    taken = known.clone()
    for cell in known.any(0).nonzero().flatten().tolist():
        near = torch.where(known[:, cell, None], torch.minimum(near, apart(torch.tensor([cell]))), near)
    ranks = torch.full(known.shape, known.shape[1])
    for rank in range(int((~known).sum(1).max())):
        wanted = (near + noise / 2).masked_fill(taken, -1)
        best = wanted.argmax(1)
        open_still = ~taken[rows, best]
        ranks[rows[open_still], best[open_still]] = rank
        taken[rows, best] = True
        near = torch.minimum(near, apart(best))
    return ranks


def _squares(geometry: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Return a function that gives squared distances (B, D) round a grid from cells (B,)."""
    tables = []
    for size in geometry:
        steps = (torch.arange(size)[:, None] - torch.arange(size)).abs()
        tables.append(torch.minimum(steps, size - steps).square().float())

    def squares(cells: Tensor) -> Tensor:
        total = torch.zeros(len(cells), 1)
        for axis, size in enumerate(geometry):
            place = cells // math.prod(geometry[axis + 1 :]) % size
            total = (total[:, :, None] + tables[axis][place][:, None]).flatten(1)
        return total

    return squares
