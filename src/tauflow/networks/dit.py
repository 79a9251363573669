"""DiT: the Transformer that many discrete diffusion models of others were trained with.

Every layer norm takes its shift and scale from the time, and so do the gates of the residual branches;
positions are rotary, attention is full. Weights of other projects fit it under a map of their names
(`tauflow.recipes`).

Shapes: B batch, D coordinates, V data tokens, W width, H heads, K = W / H, E features of the time.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow.errors import SettingsError
from tauflow.networks.network import Network
from tauflow.networks.transformer import Rotate, rotation_tables

TimeName = Literal["sigma", "t"]
MAX_SIZES = {"width": 2**16, "blocks": 1024, "heads": 1024, "time_width": 2**16, "num_states": 2**24 + 1}
"""Sizes beyond any network that has been trained: larger ones are mistakes."""
FREQUENCIES = 128  # of the time
LONGEST = 10_000.0  # wavelength of time and positions, over 2 pi
NOISIEST = 1e-3  # the least kappa that a network which is told sigma has seen in its training


@dataclass(frozen=True)
class DiTSizes:
    """Sizes of a DiT.

    Args:
        width: size of the hidden states.
        blocks: number of blocks.
        heads: attention heads; must divide the width into heads of even size.
        time_width: size of the features of the time.
        num_states: states that are embedded, S.
        num_tokens: data tokens, V; the first V of the output's rows are theirs.
        apart: that q, k and v have a matrix each, instead of one for all three.
    """

    width: int
    blocks: int
    heads: int
    time_width: int
    num_states: int
    num_tokens: int
    apart: bool = False

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in MAX_SIZES}
        fits = all(type(size) is int and 1 <= size <= MAX_SIZES[name] for name, size in sizes.items())
        if not fits or self.width % (2 * self.heads) or self.num_states - self.num_tokens not in (0, 1):
            raise SettingsError(
                f"Sizes of a DiT must be from 1 to {MAX_SIZES}, with a width that is a multiple of 2 * heads "
                f"and at most one state more than tokens, got {self}."
            )


class DiT(Network):
    """States with rotary positions, under adaptive layer norms.

    `told` is what it is told of the time: sigma = -ln kappa where kappa = t, t itself, or nothing (None).
    """

    attends = True
    told: TimeName | None = None

    def __init__(self, sizes: DiTSizes):
        super().__init__()
        self.sizes = sizes
        width, features = sizes.width, sizes.time_width
        self.embedding = nn.Embedding(sizes.num_states, width)
        self.time = nn.Sequential(
            nn.Linear(2 * FREQUENCIES, features), nn.SiLU(), nn.Linear(features, features), nn.SiLU()
        )
        self.blocks = nn.ModuleList(DiTBlock(sizes) for _ in range(sizes.blocks))
        self.norm = nn.LayerNorm(width, bias=False)
        self.modulation = nn.Linear(features, 2 * width)
        self.output = nn.Linear(width, sizes.num_states)

    def hidden(
        self, x: Tensor, t: Tensor, condition: Tensor | None = None, attention: Tensor | None = None
    ) -> Tensor:
        """Return hidden states (B, D, W); `attention` (B, D) is false on padding."""
        h = self.embedding(x)
        time = self.time(self.features(t).to(h.dtype))  # (B, E)
        tables = rotation_tables(
            (x.shape[1],), self.sizes.width // self.sizes.heads, h.device, h.dtype, 0, LONGEST
        )
        attended = None if attention is None else attention[:, None, None, :]
        for block in self.blocks:
            h = block(h, time, tables, attended)
        shift, scale = self.modulation(time)[:, None].chunk(2, dim=-1)  # (B, 1, W) each
        return modulate(self.norm(h), shift, scale)

    def head(self, rows: Tensor) -> Tensor:
        own = slice(self.sizes.num_tokens)  # a mask has the last row of the output, and no mass
        return F.linear(rows, self.output.weight[own], self.output.bias[own])

    def features(self, t: Tensor) -> Tensor:
        """Return cosines and sines (B, 256) of what the network is told of times t (B,), in float32."""
        if self.told == "sigma":
            t = -t.clamp(min=NOISIEST).log()
        value = torch.zeros_like(t) if self.told is None else t
        steps = torch.arange(FREQUENCIES, device=t.device) / FREQUENCIES
        angles = value.float()[:, None] * torch.exp(-math.log(LONGEST) * steps)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


class DiTBlock(nn.Module):
    def __init__(self, sizes: DiTSizes):
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.modulation = nn.Linear(sizes.time_width, 6 * width)
        self.attention_norm = nn.LayerNorm(width, bias=False)
        widths = [width] * 3 if sizes.apart else [3 * width]
        self.attention_in = nn.ModuleList(nn.Linear(width, each, bias=False) for each in widths)  # q, k, v
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(
        self, h: Tensor, time: Tensor, tables: tuple[Tensor, Tensor], attended: Tensor | None
    ) -> Tensor:
        batch, length, width = h.shape
        told = self.modulation(time)[:, None].chunk(6, dim=-1)  # shift, scale and gate of both branches
        rows = modulate(self.attention_norm(h), told[0], told[1])
        qkv = torch.cat([part(rows) for part in self.attention_in], -1).view(batch, length, 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in Rotate.apply(qkv, *tables).unbind(2))  # (B, H, D, K)
        values = F.scaled_dot_product_attention(q, k, v, attn_mask=attended)
        h = torch.addcmul(
            h, told[2], self.attention_out(values.transpose(1, 2).reshape(batch, length, width))
        )
        rows = modulate(self.mlp_norm(h), told[3], told[4])
        return torch.addcmul(h, told[5], self.mlp_out(F.gelu(self.mlp_in(rows), approximate="tanh")))


def modulate(rows: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return rows (B, D, W) with the shift and scale (B, 1, W) of their sample."""
    return torch.addcmul(shift, rows, 1 + scale)
