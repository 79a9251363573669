"""A bidirectional Transformer denoiser.

Shapes: B batch, D coordinates, V data tokens, W width, H heads, K = W / H, C columns of a condition.
"""

import functools
import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.networks.network import ConditionFeatures, Network, NetworkConfig, TimeFeatures

NEWER = {"condition": "added", "rotary_base": 10_000.0, "output_scale": 0.0, "places": False}
"""Settings that earlier versions didn't have, with what they did."""
ConditionName = Literal["added", "tokens"]
MAX_SIZES = {"width": 2**16, "blocks": 256, "heads": 1024, "mlp_ratio": 64, "time_width": 2**16}
"""Sizes beyond any network that has been trained: larger ones are mistakes."""


@dataclass(frozen=True)
class TransformerConfig(NetworkConfig):
    """Sizes of the denoiser.

    Args:
        width: size of the hidden states.
        blocks: number of Transformer blocks.
        heads: attention heads; must divide the width into heads of even size.
        mlp_ratio: width of the MLP over the width of the hidden states.
        time: condition on t by adaptive layer norm; a masked denoiser may ignore time (false), its exact
            posterior does not depend on t.
        time_width: number of learned functions of t from which each block's first layer norm takes its scale
            and shift.
        condition: how a condition enters: added to every state (a class), or as tokens that the states attend
            to (the words of a caption).
        output_scale: standard deviation of the output's weights at the beginning. With 0 the first loss is
            ln V exactly; with a small one, tokens that are made of parts (a shape and a color) are sooner
            told apart from other combinations of the same parts.
        rotary_base: the longest wavelength of the rotary positions, over 2 pi; a small one suits a small
            grid.
        places: add a learned vector of its position to every state, on a grid one for its row and one for its
            column. Rotary positions only tell how far apart tokens are: without learned ones, all positions
            of an all-masked input look the same. With them, a sequence has one length only. By default
            `DFMModule` adds them if the facts of the data are `positional`.
    """

    takes_condition: ClassVar[bool] = True

    width: int = 128
    blocks: int = 4
    heads: int = 4
    mlp_ratio: int = 4
    time: bool = True
    time_width: int = 64
    condition: ConditionName = "added"
    rotary_base: float = 10_000.0
    output_scale: float = 0.0
    places: bool | None = None

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in MAX_SIZES}
        if not all(1 <= size <= MAX_SIZES[name] for name, size in sizes.items()) or self.rotary_base <= 1:
            raise SettingsError(
                f"Network sizes must be from 1 to {MAX_SIZES}, and rotary_base above 1, got {self}."
            )
        if self.width % (2 * self.heads):
            raise SettingsError(
                f"width must be a multiple of 2 * heads = {2 * self.heads}, got {self.width}: each head is "
                "rotated in pairs."
            )

    @property
    def init_args(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: what is newer only where it is used, as in earlier versions."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value
            for name, value in found.items()
            if name not in NEWER or value not in (NEWER[name], None)
        }

    def build(
        self, shape: tuple[int, ...], num_states: int, num_tokens: int, conditions: tuple[int, ...] = ()
    ) -> "Transformer":
        if self.condition == "tokens" and not conditions:
            raise SettingsError("condition=tokens needs a task with conditions. Remove it.")
        return Transformer(self, num_states, num_tokens, conditions, shape)


class Transformer(Network):
    """States with rotary positions, of a sequence or a grid; a condition is added or stands before them."""

    attends: ClassVar[bool] = True

    def __init__(
        self,
        config: TransformerConfig,
        num_states: int,
        num_tokens: int,
        conditions: tuple[int, ...] = (),
        shape: tuple[int, ...] = (),
    ):
        super().__init__()
        self.config = config
        axes = tuple(size for size in shape if size > 1)
        self.grid = axes if len(axes) > 1 else None  # a sequence may have any length
        self.conditions = tuple(conditions)
        self.embedding = nn.Embedding(num_states, config.width)
        self.time = TimeFeatures(config.time_width) if config.time else None
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.blocks))
        self.norm = Norm(config)
        self.output = nn.Linear(config.width, num_tokens)
        self._initialize()
        if conditions:  # made last: without conditions nothing else is drawn
            kind = ConditionTokens if config.condition == "tokens" else ConditionFeatures
            self.condition = kind(self.conditions, config.width)
        self.places = Places(axes or (1,), config.width) if config.places else None

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.in_features))
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=1.0)
        for block in self.blocks:  # the residual stream keeps its scale at any depth
            assert isinstance(block, TransformerBlock)
            for out in (block.attention_out, block.mlp_out):
                out.weight.data.mul_(1 / math.sqrt(2 * len(self.blocks)))
        for module in self.modules():
            if isinstance(module, Norm) and module.modulation is not None:
                nn.init.zeros_(module.modulation.weight)  # a plain layer norm to begin with
        if self.config.output_scale:
            nn.init.normal_(self.output.weight, std=self.config.output_scale)
        else:
            nn.init.zeros_(self.output.weight)  # all logits 0: the first loss is ln V exactly

    def hidden(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None, attention: Tensor | None = None
    ) -> Tensor:
        """Return hidden states (B, D, W); `attention` (B, D) is false on padding."""
        h = self.embedding(x)  # (B, D, W)
        if self.places is not None:
            h = h + self.places()
        words = 0  # tokens of the condition, before those of x
        if self.conditions:
            told = self.condition(condition, len(x))  # (B, W) or (B, C, W)
            words = told.shape[1] if told.ndim == 3 else 0
            h = torch.cat([told, h], dim=1) if words else h + told[:, None]
        time = None if self.time is None else self.time(t)  # (B, time_width)
        axes, size = self.grid or (x.shape[1],), self.config.width // self.config.heads
        rotation = rotation_tables(axes, size, h.device, h.dtype, words, self.config.rotary_base)
        if attention is not None:
            attention = F.pad(attention, (words, 0), value=True)[:, None, None, :]  # (B, 1, 1, C + D)
        for block in self.blocks:
            h = block(h, time, rotation, attention)
        return self.norm(h[:, words:], time)

    def head(self, rows: Tensor) -> Tensor:
        return self.output(rows)

    def compile_parts(self) -> None:
        for block in self.blocks:
            block.compile()


class TransformerBlock(nn.Module):
    def __init__(self, config: TransformerConfig):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = Norm(config)
        self.attention_in = nn.Linear(width, 3 * width)  # q, k and v at once
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, config.mlp_ratio * width)
        self.mlp_out = nn.Linear(config.mlp_ratio * width, width)

    def forward(
        self, h: Tensor, time: Tensor | None, rotation: tuple[Tensor, Tensor], attended: Tensor | None
    ) -> Tensor:
        batch, length, width = h.shape
        qkv = self.attention_in(self.attention_norm(h, time)).view(batch, length, 3, self.heads, -1)
        rotated = Rotate.apply(qkv, *rotation)
        q, k, v = (part.transpose(1, 2) for part in rotated.unbind(2))  # (B, H, D, K) each
        values = attend(q, k, v, attended)
        h = h + self.attention_out(values.transpose(1, 2).reshape(batch, length, width))
        return h + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(h))))


MAX_PLAIN = 512  # positions up to which the scores of all pairs are cheap to keep


def attend(q: Tensor, k: Tensor, v: Tensor, attended: Tensor | None) -> Tensor:
    """Return softmax(q k^T / sqrt(K)) v of (B, H, D, K); positions where `attended` is false count as absent.

    When a CPU trains in bfloat16, the gradient of its fused kernel takes twice as long as that of plain
    products.
    """
    plain = q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled()
    if not plain or q.shape[2] > MAX_PLAIN:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attended)
    scores = (q * q.shape[3] ** -0.5) @ k.mT
    if attended is not None:
        scores = scores.masked_fill(~attended, -math.inf)
    return scores.softmax(-1) @ v


class Norm(nn.Module):
    """Layer norm whose scale and shift are learned constants, or linear in the features of t (adaptive)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.modulation = nn.Linear(config.time_width, 2 * config.width) if config.time else None
        self.norm = nn.LayerNorm(config.width, elementwise_affine=not config.time)

    def forward(self, h: Tensor, time: Tensor | None) -> Tensor:
        h = self.norm(h)
        if self.modulation is None:
            return h
        scale, shift = self.modulation(time)[:, None].chunk(2, dim=-1)  # (B, 1, W) each
        return torch.addcmul(shift, h, 1 + scale)


@functools.lru_cache(maxsize=16)
def rotation_tables(
    axes: tuple[int, ...],
    size: int,
    device: torch.device,
    dtype: torch.dtype,
    words: int = 0,
    base: float = 10_000.0,
) -> tuple[Tensor, Tensor]:
    """Return rotary tables (cos, sin), each (words + D, 1, 1, K / 2), cached by shape, device and dtype.

    On a grid each axis turns a share of the pairs by the position along it; words before it are not turned.
    """
    with torch.inference_mode(False):  # whoever calls first, training must be able to use the tables
        pairs = size // 2
        shares = [pairs // len(axes) + (number < pairs % len(axes)) for number in range(len(axes))]
        places = torch.meshgrid(*(torch.arange(length) for length in axes), indexing="ij")
        angles = []
        for place, share in zip(places, shares, strict=True):
            frequency = base ** -(torch.arange(share, dtype=torch.float64) / max(1, share))
            angles.append(place.flatten().double()[:, None] * frequency)
        angle = F.pad(torch.cat(angles, dim=1), (0, 0, words, 0))  # (words + D, K / 2)
        cos, sin = (table[:, None, None].to(dtype).to(device) for table in (angle.cos(), angle.sin()))
    return cos, sin


class Rotate(torch.autograd.Function):
    """The rotation of q and k of qkv (B, D, 3, H, K) by the angle of their position; v passes.

    Pairs are of the first and second half. Written out because it is linear: it works in place, keeps nothing
    but the tables, and its gradient is the rotation back.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(qkv)
        return _rotate_(qkv, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate_(gradient.contiguous(), cos, -sin), None, None


def _rotate_(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = qkv[:, :, :2].chunk(2, dim=-1)
    rotated = torch.addcmul(first * cos, second, sin, value=-1)
    second.mul_(cos).addcmul_(first, sin)
    first.copy_(rotated)
    return qkv


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
        before = F.pad(condition[:, :-1], (1, 0), value=words - 1)
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
