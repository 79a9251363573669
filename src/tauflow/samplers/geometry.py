"""Where coordinates are: curves along which neighbors follow each other, orders in which they are far apart.

**Curves.** Systematic coins take every so many-th coordinate of a curve, so that what is chosen together is
far apart. A sequence is passed from its first coordinate to its last, a grid along Hilbert's curve: cells
that are near on the curve are near on the grid, so every stretch of it is a patch, not a row. Sizes that
aren't powers of two keep those cells of the next larger curve that their evenly spread positions are.
Channels revealed together share their pixel's place on the curve. Channels that are apart follow one after
the other, and each starts elsewhere on the curve, so that a choice hits different pixels in each.

**Orders.** Rank 0 is revealed first. A sequence is ranked by the reversed bits of its positions (van der
Corput). In two dimensions the rank is Bayer's dither matrix: the reversed bits of row xor column, interleaved
with those of the row, so that the first half of the ranks is a checkerboard, the first quarter every second
cell of every second row, and so on. A size that isn't a power of two is 2^a m, m odd: a bits are those of the
position, the others those of its share of m in binary. The other order of a grid is greedy: next comes the
cell that is farthest from all that came before it, round the edges of the grid. It is as even at sizes that
aren't powers of two.

Shapes: B sequences, D coordinates, G groups of coordinates, A axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tauflow.denoise.model import ChannelsName

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class Curve:
    """Coordinates in the order of a curve; `group` of them are chosen together."""

    order: Tensor | None = None  # (D,) coordinates; None: as they are
    group: int = 1

    def number(self, movable: Tensor) -> Tensor:
        """Return which of the groups with movable (B, D) coordinates each belongs to (B, D), from 1 on."""
        if self.order is None:
            return movable.cumsum(1)
        order = self.order.to(movable.device)
        along = movable[:, order].unflatten(1, (-1, self.group)).any(2)  # (B, G)
        number = along.cumsum(1).repeat_interleave(self.group, 1)
        return torch.empty_like(number).scatter_(1, order.expand_as(number), number)


RASTER = Curve()


@lru_cache(maxsize=64)
def curve_of(shape: tuple[int, ...], channels: ChannelsName | None = None) -> Curve:
    """Return the curve through samples of a shape, whose last axis may hold channels."""
    grid = shape if channels is None else shape[:-1]
    if channels is None and sum(size > 1 for size in grid) < 2:
        return RASTER
    cells = hilbert(grid)
    if channels is None:
        return Curve(cells)
    count = shape[-1]
    if channels == "together":
        return Curve((cells[:, None] * count + torch.arange(count)).flatten(), count)
    begins = [round(len(cells) * GOLDEN * channel) for channel in range(count)]
    return Curve(torch.cat([cells.roll(begin) * count + channel for channel, begin in enumerate(begins)]))


def hilbert(grid: Sequence[int]) -> Tensor:
    """Return the cells (D,) of a grid along Hilbert's curve, in any number of dimensions (Skilling 2004)."""
    axes = list(torch.meshgrid(*(spread(size) for size in grid), indexing="ij"))
    bits = max(int(axis.max()) for axis in axes).bit_length()
    for bit in reversed(range(1, bits)):  # turn every cube as the curve passes it, the largest first
        low = 2**bit - 1
        for n, axis in enumerate(axes):
            upper = (axis >> bit & 1).bool()
            swap = torch.where(upper, 0, (axes[0] ^ axes[n]) & low)
            axes[n] = axes[n] ^ swap
            axes[0] = torch.where(upper, axes[0] ^ low, axes[0] ^ swap)
    for n in range(1, len(axes)):  # Gray code
        axes[n] = axes[n] ^ axes[n - 1]
    flips = torch.zeros_like(axes[0])
    for bit in range(1, bits):
        flips = torch.where((axes[-1] >> bit & 1).bool(), flips ^ (2**bit - 1), flips)
    code = torch.zeros_like(flips)
    for bit in reversed(range(bits)):
        for axis in axes:
            code = 2 * code + ((axis ^ flips) >> bit & 1)
    return code.flatten().argsort()


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


def is_lattice(shape: tuple[int, ...]) -> bool:
    """Return whether a shape is a grid whose sides are powers of two."""
    return is_grid(shape) and all(size & (size - 1) == 0 for size in shape)


@lru_cache(maxsize=16)
def farthest_ranks(geometry: tuple[int, ...]) -> Tensor:
    """Return greedy ranks (D,) of the cells of a grid: next is the one farthest from all before it.

    Distances go round the edges; noise of a fixed seed decides between cells that are equally far. D^2
    operations, once for a grid: 0.4 s for 64 x 64 cells.
    """
    size = math.prod(geometry)
    tables = [_squares(side) for side in geometry]
    noise = torch.rand(size, generator=torch.Generator().manual_seed(0)) / 2
    near = torch.full((size,), float(sum(side * side for side in geometry)))  # squared distance to what came
    ranks = torch.zeros(size, dtype=torch.long)
    for rank in range(size):
        cell = int((near + noise).argmax())
        ranks[cell] = rank
        apart = torch.zeros(1)
        for axis, table in enumerate(tables):
            place = cell // math.prod(geometry[axis + 1 :]) % geometry[axis]
            apart = (apart[:, None] + table[place]).flatten()
        near = torch.minimum(near, apart)
        near[cell] = -1.0
    return ranks


def _squares(size: int) -> Tensor:
    """Return squared distances (size, size) round an axis."""
    steps = (torch.arange(size)[:, None] - torch.arange(size)).abs()
    return torch.minimum(steps, size - steps).square().float()
