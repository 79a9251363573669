"""Features of what a network is told besides the states: the time and the condition.

Shapes: B batch, W width, C columns of a condition.
"""

import math

import torch
from torch import Tensor, nn

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError


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


class ConditionTokens(nn.Module):
    """A token for each column of a condition, of one vocabulary; the last row of its table is "not given"."""

    def __init__(self, conditions: tuple[int, ...], width: int):
        super().__init__()
        if len(set(conditions)) > 1:
            raise SettingsError(
                f"condition=tokens reads columns of one vocabulary, these have {conditions} values; use "
                "condition=added"
            )
        self.words = nn.Embedding(conditions[0] + 1, width)
        self.columns = nn.Parameter(torch.randn(len(conditions), width))

    def forward(self, condition: Tensor | None, count: int) -> Tensor:
        """Return tokens (B, C, W) of a condition (B, C); none at all is one that drops every column."""
        dropped = self.words.num_embeddings - 1
        if condition is None:
            condition = torch.full((count, len(self.columns)), DROPPED, device=self.columns.device)
        return self.words(torch.where(condition == DROPPED, dropped, condition)) + self.columns


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
