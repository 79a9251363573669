"""A U-Net denoiser for images, with a head for ordered tokens.

Shapes: B batch, D = H * P * C coordinates of an image with H rows of P pixels with C channels (the channel
fastest), S states, V data tokens, W width of a hidden row, F channels of a feature map, E features of time
and condition, K columns of a condition.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow.errors import SettingsError, shorten
from tauflow.networks.network import ConditionFeatures, Network, NetworkConfig, TimeFeatures

GROUPS = 8  # of channels that are normalized together
EMBEDDED = 16  # features of an embedded token
MAX_SIZES = {"width": 2**14, "blocks": 64, "mixtures": 1024}
"""Sizes beyond any network that has been trained: larger ones are mistakes."""
BOXES = (3, 7, 15)  # pixels on a side of the boxes of anchors
CHUNK = 128  # rows at once on a CPU: more run out of its cache
GPU_CHUNK = 2**13  # rows at once elsewhere: fewer leave a GPU idle, more take gigabytes
MIN_PROBABILITY = torch.finfo(torch.float32).tiny  # of the probabilities in logits; 87 nats


@dataclass(frozen=True)
class UNetConfig(NetworkConfig):
    """Sizes of the U-Net.

    Args:
        width: channels at full resolution, and the width of a coordinate's hidden row; a multiple of 8.
        multipliers: channels over the width at each resolution; each is half of the one before.
        blocks: residual blocks at each resolution, on the way down and on the way up.
        attention: self-attention after each residual block at the lowest resolution.
        input: how a token enters: as its value (ordered tokens, such as gray levels) or by an embedding
            (tokens without an order, such as colors of a palette).
        head: linear, or logistic: a mixture of discretized logistics, for ordered tokens.
        mixtures: logistics of the mixture.
        anchors: let the logistics start from blurs of the values that are known around a coordinate; for a
            masked source.
        time: tell the network t; a masked denoiser may ignore it, its exact posterior does not depend on t.
    """

    takes_condition: ClassVar[bool] = True

    width: int = 32
    multipliers: list[int] | tuple[int, ...] = (1, 2, 4)
    blocks: int = 2
    attention: bool = True
    input: Literal["value", "embedding"] = "value"
    head: Literal["linear", "logistic"] = "logistic"
    mixtures: int = 5
    anchors: bool = False
    time: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "multipliers", tuple(self.multipliers))
        sizes = {name: getattr(self, name) for name in MAX_SIZES}
        fits = all(1 <= size <= MAX_SIZES[name] for name, size in sizes.items())
        fits &= 1 <= len(self.multipliers) <= 10 and all(1 <= each <= 64 for each in self.multipliers)
        if not fits or self.width % GROUPS:
            raise SettingsError(
                f"Sizes of a U-Net must be from 1 to {MAX_SIZES}, with 1 to 10 multipliers from 1 to 64 and "
                f"a width that is a multiple of {GROUPS}, got {shorten(str(self))}."
            )
        if self.head == "logistic" and self.input != "value":
            raise SettingsError(
                "head=logistic is for ordered tokens, which enter as values. Set input to value, or head to "
                "linear."
            )
        if self.anchors and self.head != "logistic":
            raise SettingsError("anchors need head=logistic. Set it, or remove anchors.")

    def build(
        self, shape: tuple[int, ...], num_states: int, num_tokens: int, conditions: tuple[int, ...] = ()
    ) -> "UNet":
        return UNet(self, shape, num_states, num_tokens, conditions)


class UNet(Network):
    """Residual blocks at falling and rising resolution; the maps of the way down are added on the way up."""

    def __init__(
        self,
        config: UNetConfig,
        shape: tuple[int, ...],
        num_states: int,
        num_tokens: int,
        conditions: tuple[int, ...] = (),
    ):
        super().__init__()
        if len(shape) not in (2, 3):
            raise SettingsError(f"A U-Net is for images of shape (H, W) or (H, W, C), not {tuple(shape)}.")
        self.config = config
        self.shape = (*shape, 1)[:3]
        self.conditions = tuple(conditions)
        channels = self.shape[2]
        self.inputs = Inputs(config.input, channels, num_states, num_tokens)
        width = [config.width * multiplier for multiplier in config.multipliers]
        features = 4 * config.width if config.time or conditions else 0
        self.stem = nn.Conv2d(self.inputs.planes, width[0], 3, padding=1)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        for level, size in enumerate(width):
            attention = config.attention and level == len(width) - 1
            below = width[level + 1] if level + 1 < len(width) else None
            self.down.append(UNetLevel(size, config.blocks, attention, features))
            self.up.append(UNetLevel(size, config.blocks, attention, features))
            if below is not None:
                self.down.append(nn.Conv2d(size, below, 3, stride=2, padding=1))
                self.up.append(nn.Conv2d(below, size, 1))
        self.norm = nn.GroupNorm(GROUPS, width[0])
        self.rows = nn.Conv2d(width[0], channels * config.width, 1)
        self.anchors = Anchors(self.shape, num_states, num_tokens) if config.anchors else None
        if config.head == "linear":
            self.output: LinearHead | LogisticHead = LinearHead(config.width, num_tokens)
        else:
            anchors = self.anchors.count if self.anchors else 0
            self.output = LogisticHead(config.width, num_tokens, config.mixtures, anchors)
        self.time = TimeFeatures(features) if config.time else None
        self.condition = ConditionFeatures(self.conditions, features) if conditions else None

    def hidden(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        rows, columns, channels = self.shape
        x = x.view(-1, rows, columns, channels)
        features = self._features(t, condition, len(x))
        h = self.stem(self.inputs(x))  # (B, F, H, P)
        kept = []
        for part in self.down:
            if isinstance(part, UNetLevel):
                h = part(h, features)
                kept.append(h)
            else:
                h = part(h)
        for part in reversed(self.up):
            if isinstance(part, UNetLevel):
                skip = kept.pop()
                h = part(h if h is skip else h + skip, features)
            else:
                h = F.interpolate(part(h), size=kept[-1].shape[-2:])
        h = self.rows(F.silu(self.norm(h)))  # (B, C * W, H, P)
        h = h.permute(0, 2, 3, 1).reshape(len(x), rows * columns * channels, self.config.width)
        return h if self.anchors is None else torch.cat([h, self.anchors(x).to(h.dtype)], dim=-1)

    def _features(self, t: Tensor, condition: Tensor | None, count: int) -> Tensor | None:
        """Return what every block is told (B, E)."""
        parts = []
        if self.time is not None:
            parts.append(self.time(t))
        if self.condition is not None:
            parts.append(self.condition(condition, count))
        return F.silu(sum(parts)) if parts else None  # type: ignore[arg-type]  # a sum of tensors is one

    def head(self, rows: Tensor) -> Tensor:
        return self.output(rows)

    def nll(self, rows: Tensor, x_1: Tensor) -> Tensor:
        return self.output.nll(rows, x_1)

    def compile_parts(self) -> None:
        for part in (*self.down, *self.up):
            part.compile()


class Inputs(nn.Module):
    """Tokens as planes (B, planes, H, P): their values and whether they are known, or embeddings."""

    def __init__(self, kind: str, channels: int, num_states: int, num_tokens: int):
        super().__init__()
        self.num_tokens = num_tokens
        self.masked = num_states > num_tokens
        self.embedding = nn.Embedding(num_states, EMBEDDED) if kind == "embedding" else None
        self.planes = channels * (EMBEDDED if self.embedding is not None else 1 + self.masked)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            return self.embedding(x).flatten(-2).permute(0, 3, 1, 2)
        known = (x < self.num_tokens).float()
        value = (x * (2 / max(1, self.num_tokens - 1)) - 1) * known  # in [-1, 1], 0 where masked
        return (torch.cat([value, known], dim=-1) if self.masked else value).permute(0, 3, 1, 2)


class UNetLevel(nn.Module):
    """The residual blocks of one resolution."""

    def __init__(self, size: int, blocks: int, attention: bool, features: int):
        super().__init__()
        self.blocks = nn.ModuleList(Residual(size, features) for _ in range(blocks))
        self.attention = nn.ModuleList(Attention(size) for _ in range(blocks if attention else 0))

    def forward(self, h: Tensor, features: Tensor | None) -> Tensor:
        for number, block in enumerate(self.blocks):
            h = block(h, features)
            if self.attention:
                h = self.attention[number](h)
        return h


class Residual(nn.Module):
    """Two convolutions; time and condition scale and shift the map between them."""

    def __init__(self, size: int, features: int):
        super().__init__()
        self.first_norm = nn.GroupNorm(GROUPS, size)
        self.first = nn.Conv2d(size, size, 3, padding=1)
        self.modulation = nn.Linear(features, 2 * size) if features else None
        self.second_norm = nn.GroupNorm(GROUPS, size)
        self.second = nn.Conv2d(size, size, 3, padding=1)
        nn.init.zeros_(self.second.weight)  # the identity to begin with
        assert self.second.bias is not None
        nn.init.zeros_(self.second.bias)
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)

    def forward(self, h: Tensor, features: Tensor | None) -> Tensor:
        inner = self.second_norm(self.first(F.silu(self.first_norm(h))))
        if self.modulation is not None:
            scale, shift = self.modulation(features)[:, :, None, None].chunk(2, dim=1)
            inner = torch.addcmul(shift, inner, 1 + scale)
        return h + self.second(F.silu(inner))


class Attention(nn.Module):
    """Self-attention over the pixels of a map, in heads of 32 channels where they fit."""

    def __init__(self, size: int):
        super().__init__()
        self.heads = max(1, size // 32) if size % 32 == 0 else 1
        self.norm = nn.GroupNorm(GROUPS, size)
        self.qkv = nn.Conv2d(size, 3 * size, 1)
        self.out = nn.Conv2d(size, size, 1)
        nn.init.normal_(self.out.weight, std=1 / math.sqrt(100 * size))

    def forward(self, h: Tensor) -> Tensor:
        batch, size, rows, columns = h.shape
        qkv = self.qkv(self.norm(h)).view(batch, 3, self.heads, size // self.heads, rows * columns)
        q, k, v = (part.transpose(-1, -2) for part in qkv.unbind(1))  # (B, heads, H * P, F / heads) each
        seen = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return h + self.out(seen.reshape(batch, size, rows, columns))


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

    centers: Tensor  # (M,)

    def __init__(self, width: int, num_tokens: int, mixtures: int, anchors: int = 0):
        super().__init__()
        self.num_tokens = num_tokens
        self.mixtures = mixtures
        self.anchors = anchors
        self.margin = 1 / (num_tokens - 1)  # of the width of a bin
        self.output = nn.Linear(width, mixtures * (3 + anchors))
        nn.init.normal_(self.output.weight, std=0.1 / math.sqrt(width))
        nn.init.zeros_(self.output.bias)
        spread = torch.linspace(-1, 1, mixtures + 2)[1:-1] * (0.25 if anchors else 1.0)
        self.register_buffer("centers", spread, persistent=False)
        self.start = math.log(0.15 if anchors else 0.3)  # of the scale

    def forward(self, rows: Tensor) -> Tensor:
        """Return log-probabilities (..., V) of rows (..., W + A), none of them below ln MIN_PROBABILITY."""
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
        mean = numbers[..., 1, :] + self.centers
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
        return torch.cat([part.sum(-2) for part in parts], dim=-1).clamp(min=MIN_PROBABILITY).log()


def _width(width: float, log_scale: Tensor) -> Tensor:
    """Return 1 - exp(-width / scale): the mass of a bin is this, times the masses on both its sides."""
    return -torch.expm1(-width * torch.exp(-log_scale))
