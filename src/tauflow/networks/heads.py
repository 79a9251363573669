"""Heads: hidden rows to logits, one row at a time.

Shapes: R rows, W width, V data tokens, M logistics of a mixture, A anchors of a row.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow.errors import SettingsError

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
