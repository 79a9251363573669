"""Features of what a network is told besides the states: the time and the condition.

Shapes: B batch, W width, C columns of a condition.
"""

import math

import torch
from torch import Tensor, nn

from tauflow.denoise import DROPPED


class ConditionFeatures(nn.Module):
    """The sum of one embedding for each column of a condition; the last row of a table is "not given"."""

    def __init__(self, conditions: tuple[int, ...], width: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size + 1, width) for size in conditions)

    def forward(self, condition: Tensor | None, count: int) -> Tensor:
        """Return features (B, W) of a condition (B, C); none at all is one that drops every column."""
        if condition is None:
            device = next(self.parameters()).device
            condition = torch.full((count, len(self.tables)), DROPPED, device=device)
        total = torch.zeros((), device=condition.device)
        for column, table in zip(condition.unbind(1), self.tables, strict=True):
            assert isinstance(table, nn.Embedding)
            total = total + table(torch.where(column == DROPPED, table.num_embeddings - 1, column))
        return total


class TimeFeatures(nn.Module):
    """Smooth learned functions of t: a Fourier basis up to frequency 16 and a small MLP."""

    frequencies = 32

    def __init__(self, width: int):
        super().__init__()
        first = nn.Linear(2 * self.frequencies, 2 * width)
        self.mlp = nn.Sequential(first, nn.SiLU(), nn.Linear(2 * width, width), nn.SiLU())

    def forward(self, t: Tensor) -> Tensor:
        weight = next(self.mlp.parameters())
        frequencies = torch.linspace(0, 16 * math.pi, self.frequencies, device=weight.device)
        angles = t.to(weight.dtype)[:, None] * frequencies
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))
