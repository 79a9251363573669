"""Walks through the coordinates of a sample along which neighbours follow each other.

Systematic coins take every so many-th coordinate of a walk, so that what is chosen together lies far apart.
A sequence is walked from its first coordinate to its last, a grid along Hilbert's curve: cells that are near
on the curve are near on the grid, so every stretch of it is a patch, not a row. Sizes that are no power of
two keep those cells of the next larger curve that their evenly spread positions are. Channels that are
revealed together share their pixel's place on the curve; channels that are apart follow one after the other,
and each begins elsewhere on the curve, so that a choice hits different pixels in each.

Shapes: B sequences, D coordinates, G groups of coordinates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tauflow.denoise.model import ChannelsName
from tauflow.samplers.spacing import spread

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class Walk:
    """Coordinates in the order of a walk; `group` of them are chosen together."""

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


RASTER = Walk()


@lru_cache(maxsize=64)
def walk_of(shape: tuple[int, ...], channels: ChannelsName | None = None) -> Walk:
    """Return the walk through samples of a shape, whose last axis may hold channels."""
    grid = shape if channels is None else shape[:-1]
    if channels is None and sum(size > 1 for size in grid) < 2:
        return RASTER
    curve = hilbert(grid)
    if channels is None:
        return Walk(curve)
    count = shape[-1]
    if channels == "together":
        return Walk((curve[:, None] * count + torch.arange(count)).flatten(), count)
    begins = [round(len(curve) * GOLDEN * channel) for channel in range(count)]
    return Walk(torch.cat([curve.roll(begin) * count + channel for channel, begin in enumerate(begins)]))


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
    turn = torch.zeros_like(axes[0])
    for bit in range(1, bits):
        turn = torch.where((axes[-1] >> bit & 1).bool(), turn ^ (2**bit - 1), turn)
    code = torch.zeros_like(turn)
    for bit in reversed(range(bits)):
        for axis in axes:
            code = 2 * code + ((axis ^ turn) >> bit & 1)
    return code.flatten().argsort()
