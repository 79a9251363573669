"""Anchors: guesses of a coordinate's value from the values that are known around it.

Shapes: B batch, H rows of P pixels with C channels, A anchors.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow.denoise import DROPPED
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


# Features of what a network is told besides the states: the time and the condition.
#
# Shapes: B batch, W width, C columns of a condition.


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


# Heads: hidden rows to logits, one row at a time.
#
# Shapes: R rows, W width, V data tokens, M logistics of a mixture, A anchors of a row.


CHUNK = 128  # rows at once on a CPU: more run out of its cache
GPU_CHUNK = 2**13  # rows at once elsewhere: fewer leave a GPU idle, more take gigabytes
LEAST = torch.finfo(torch.float32).tiny  # of the probabilities in logits; 87 nats


class LinearHead(nn.Module):
    """Logits that are linear in the row; they begin at 0, so that the first loss is ln V."""

    def __init__(self, width: int, num_tokens: int):
        super().__init__()
        self.output = nn.Linear(width, num_tokens)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, rows: Tensor) -> Tensor:
        return self.output(rows)

    def nll(self, rows: Tensor, x_1: Tensor) -> Tensor:
        """Return -ln p(x_1) (R,) of the tokens x_1 (R,)."""
        return F.cross_entropy(self(rows).float(), x_1, reduction="none")


class LogisticHead(nn.Module):
    """A mixture of logistics over the values of ordered tokens, each cut into V bins.

    Token v has the value 2 v / (V - 1) - 1 and the bin around it; the bins at both ends are open, so the
    probabilities sum to 1. The mean of a logistic is an offset plus, where rows end with anchors, their
    weighted mean. The loss needs the bin of the token alone.
    """

    centres: Tensor  # (M,)

    def __init__(self, width: int, num_tokens: int, mixtures: int, anchors: int = 0):
        super().__init__()
        if num_tokens < 2:
            raise SettingsError("a mixture of logistics needs two tokens or more")
        self.num_tokens = num_tokens
        self.mixtures = mixtures
        self.anchors = anchors
        self.margin = 1 / (num_tokens - 1)  # of the width of a bin
        self.output = nn.Linear(width, mixtures * (3 + anchors))
        nn.init.normal_(self.output.weight, std=0.1 / math.sqrt(width))
        nn.init.zeros_(self.output.bias)
        spread = torch.linspace(-1, 1, mixtures + 2)[1:-1] * (0.25 if anchors else 1.0)
        self.register_buffer("centres", spread, persistent=False)
        self.start = math.log(0.15 if anchors else 0.3)  # of the scale

    def forward(self, rows: Tensor) -> Tensor:
        """Return log-probabilities (..., V) of rows (..., W + A), none of them below ln LEAST."""
        chunk = CHUNK if rows.device.type == "cpu" else GPU_CHUNK
        logits = [self._logits(part) for part in rows.flatten(0, -2).split(chunk)]
        return torch.cat(logits).unflatten(0, rows.shape[:-1])

    def nll(self, rows: Tensor, x_1: Tensor) -> Tensor:
        """Return -ln p(x_1) (R,) of the tokens x_1 (R,)."""
        log_weight, mean, log_scale = self._mixture(rows)  # (R, M) each
        value = (x_1 * (2 * self.margin) - 1)[:, None]
        low = (value - self.margin - mean) * torch.exp(-log_scale)
        high = (value + self.margin - mean) * torch.exp(-log_scale)
        above = torch.where(x_1[:, None] == 0, 0.0, F.softplus(low))
        below = torch.where(x_1[:, None] == self.num_tokens - 1, 0.0, F.softplus(-high))
        inner = (x_1[:, None] > 0) & (x_1[:, None] < self.num_tokens - 1)
        width = torch.where(inner, _width(2 * self.margin, log_scale).log(), 0.0)
        return -torch.logsumexp(log_weight + width - above - below, dim=-1)

    def _mixture(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-weights, means and log-scales (R, M) of rows (R, W + A), in float32."""
        width = rows.shape[-1] - self.anchors
        numbers = self.output(rows[..., :width]).float().unflatten(-1, (3 + self.anchors, self.mixtures))
        mean = numbers[..., 1, :] + self.centres
        if self.anchors:
            share = numbers[..., 3:, :].softmax(-2)  # (R, A, M)
            mean = mean + (share * rows[..., width:, None].float()).sum(-2)
        log_scale = (numbers[..., 2, :] + self.start).clamp(min=math.log(self.margin / 4), max=3.0)
        return numbers[..., 0, :].log_softmax(-1), mean, log_scale

    def _logits(self, rows: Tensor) -> Tensor:
        log_weight, mean, log_scale = self._mixture(rows)
        edges = torch.arange(1, self.num_tokens, device=rows.device) * (2 * self.margin) - 1 - self.margin
        z = (edges - mean[..., None]) * torch.exp(-log_scale)[..., None]  # (R, M, V - 1)
        below, above = torch.sigmoid(z), torch.sigmoid(-z)  # P(left of the edge), P(right of it)
        weight = torch.exp(log_weight)[..., None]
        width = _width(2 * self.margin, log_scale)[..., None]
        inner = weight * width * (below[..., 1:] * above[..., :-1])
        parts = (weight * below[..., :1], inner, weight * above[..., -1:])
        return torch.cat([part.sum(-2) for part in parts], dim=-1).clamp(min=LEAST).log()


def _width(width: float, log_scale: Tensor) -> Tensor:
    """Return 1 - exp(-width / scale): the mass of a bin is this, times the masses on both its sides."""
    return -torch.expm1(-width * torch.exp(-log_scale))
