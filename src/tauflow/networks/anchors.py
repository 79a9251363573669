"""Anchors: guesses of a coordinate's value from the values that are known around it.

Shapes: B batch, H rows of P pixels with C channels, A anchors.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow.errors import SettingsError

BOXES = (3, 7, 15)  # pixels on a side


class Anchors(nn.Module):
    """Means over boxes of known values of the own channel, over all of them, and a guess by other channels.

    A box without a known value takes the mean over the next larger one. The guess by another channel is its
    value at the pixel plus the difference of the means of the two channels nearby; where it is not known, the
    mean over the smallest box.
    """

    def __init__(self, shape: tuple[int, ...], num_states: int, num_tokens: int):
        super().__init__()
        if num_states == num_tokens:
            raise SettingsError(
                "anchors need a masked source, whose known values are clean; set anchors to false"
            )
        self.num_tokens = num_tokens
        self.channels = shape[2]
        self.count = len(BOXES) + 1 + self.channels - 1

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return anchors (B, H * P * C, A) of states x (B, H, P, C)."""
        known = (x < self.num_tokens).float().permute(0, 3, 1, 2)  # (B, C, H, P)
        value = (x.permute(0, 3, 1, 2) * (2 / (self.num_tokens - 1)) - 1) * known
        total = known.sum((2, 3), keepdim=True)
        mean = (value.sum((2, 3), keepdim=True) / total.clamp(min=1)).expand_as(value)
        anchors = [mean]
        for size in reversed(BOXES):  # the largest first
            sums, counts = _sums(torch.cat([value, known]), size).chunk(2)
            anchors.append(torch.where(counts > 0, sums / counts.clamp(min=1), anchors[-1]))
        near = anchors[-1]
        for other in range(1, self.channels):
            there = known.roll(other, 1)
            guess = value.roll(other, 1) + near - near.roll(other, 1)
            anchors.append(torch.where(there > 0, guess, near))
        stacked = torch.stack(anchors, dim=-1)  # (B, C, H, P, A)
        return stacked.permute(0, 2, 3, 1, 4).flatten(1, 3)


def _sums(maps: Tensor, size: int) -> Tensor:
    """Return the sums over boxes around each pixel of maps (B, C, H, P): over columns, then over rows."""
    columns = F.avg_pool2d(maps, (size, 1), 1, (size // 2, 0), divisor_override=1)
    return F.avg_pool2d(columns, (1, size), 1, (0, size // 2), divisor_override=1)
