"""Rows extrapolated with those of the evaluation before.

Shapes: V data tokens, R rows.
"""

from typing import Literal

import torch
from torch import Tensor

ExtrapolationName = Literal["pairs", "hitting", "learned"]
CAP = 10.0  # of the ratio of two rows
TINY = 1e-30


def extrapolated(rows: Tensor, before: Tensor, weight: Tensor, how: ExtrapolationName) -> Tensor:
    """Return rows (R, V) extrapolated with weights (R, 1): along a line, or, if `learned`, by a power."""
    if how != "learned":
        return rows + weight * (rows - before)
    ratio = torch.where(before > 0, rows / before.clamp(min=TINY), 1.0)  # a token may be cut in one of them
    return rows * ratio.clamp(max=CAP) ** weight
