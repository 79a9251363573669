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
    """A token for each word of a caption, whose columns have one vocabulary; its last row is "not given".

    A token is the sum of what the word is, where it stands, and the pair that it makes with the word before
    it: what belongs together in "a red circle and a blue square" is seen at once, where attention alone takes
    very long to find it. Of a large vocabulary some pairs share a row.
    """

    most_pairs = 2**14  # rows of their table

    def __init__(self, conditions: tuple[int, ...], width: int):
        super().__init__()
        if len(set(conditions)) > 1:
            raise SettingsError(
                f"condition=tokens reads columns of one vocabulary, these have {conditions} values; use "
                "condition=added"
            )
        words = conditions[0] + 1
        self.words = nn.Embedding(words, width)
        self.columns = nn.Parameter(torch.randn(len(conditions), width))
        self.pairs = nn.Embedding(min(words**2, self.most_pairs), width)
        nn.init.zeros_(self.pairs.weight)

    def forward(self, condition: Tensor | None, count: int) -> Tensor:
        """Return tokens (B, C, W) of a condition (B, C); none at all is one that drops every column."""
        words = self.words.num_embeddings
        if condition is None:
            condition = torch.full((count, len(self.columns)), DROPPED, device=self.columns.device)
        condition = torch.where(condition == DROPPED, words - 1, condition)
        before = torch.nn.functional.pad(condition[:, :-1], (1, 0), value=words - 1)
        pairs = (before * words + condition) % self.pairs.num_embeddings
        return self.words(condition) + self.columns + self.pairs(pairs)


class Places(nn.Module):
    """A learned vector of each place: the sum of one for each axis, its row and its column for instance."""

    def __init__(self, axes: tuple[int, ...], width: int):
        super().__init__()
        scale = 1 / (2 * math.sqrt(max(1, len(axes))))  # together half as large as the embedding of a token
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(size, width) * scale) for size in axes)

    def forward(self) -> Tensor:
        """Return vectors (D, W), the last axis fastest."""
        total = self.tables[0]
        for table in list(self.tables)[1:]:
            total = total[..., None, :] + table
        return total.flatten(0, -2)


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
