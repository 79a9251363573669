"""Orders in which neighbours come far apart: coordinates of near ranks lie far from each other.

Rank 0 is revealed first. A sequence is ranked by the reversed bits of its positions (van der Corput). In two
dimensions the rank is Bayer's dither matrix: the reversed bits of row xor column, interleaved with those of
the row, so that the first half of the ranks is a checkerboard, the first quarter every second cell of every
second row, and so on. A size that is no power of two is 2^a m, m odd: a bits are those of the position, the
others those of its share of m in binary.

Shapes: B sequences, D coordinates, A axes.
"""

import math

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
