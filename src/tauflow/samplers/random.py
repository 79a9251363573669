"""Random draws: coins, and tokens from probabilities.

Shapes: B sequences, D coordinates, V data tokens, R rows. An index (R,) names coordinates by their place in
the flattened (B * D,).
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tauflow.errors import SamplingError
from tauflow.numerics import precise
from tauflow.samplers.geometry import RASTER, Curve

CoinName = Literal["independent", "systematic"]
CHUNK = 2**19  # entries of a chunk of rows: a few megabytes of work space
LARGE = 2**16  # V above which a chunk of that size has so few rows that a head mostly reads its own weights
MIN_ROWS = 16  # of a chunk at such a V


def chunks(index: Tensor, num_tokens: int) -> Sequence[Tensor]:
    """Split an index (R,) so that the rows of a part take a few megabytes, or a few rows where V is large."""
    rows = MIN_ROWS if num_tokens > LARGE else max(1, CHUNK // num_tokens)
    return index.split(rows) if len(index) else ()


def index_of(chosen: Tensor) -> Tensor:
    """Return the index (R,) of the true coordinates of chosen (B, D)."""
    return chosen.flatten().nonzero().squeeze(1)


def uniforms(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw uniforms in [0, 1) where the generator is, so that they are the same on every device."""
    return torch.rand(count, generator=generator, dtype=precise(device), device=generator.device).to(device)


def sample_categorical(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw tokens (R,) in proportion to weights (R, V) by inverse CDF, with one float64 uniform per row.

    Float32 Gumbel noise would cut the tails off and act like a lower temperature. Where float64 does not
    exist the sums are in float32, which resolves tails down to about 1e-7.
    """
    total = weights.cumsum(-1, dtype=precise(weights.device))
    if not math.isfinite(total[:, -1].sum()):
        raise SamplingError(
            "an intensity or a probability is not finite; check the schedule and the options of the sampler"
        )
    threshold = uniforms(len(weights), generator, weights.device)[:, None] * total[:, -1:]
    return torch.searchsorted(total, threshold, right=True).squeeze(1).clamp_(max=weights.shape[-1] - 1)


class Drawing:
    """How tokens come out of probabilities: drawn. `likelihood.Forced` takes them from data instead.

    Every token that a sampler keeps must come from here.
    """

    def tokens(self, weights: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return a token for each of the coordinates index (R,), drawn by weights (R, V)."""
        return sample_categorical(weights, generator)

    def moves(self, moves: Tensor, probability: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """Return which of the coordinates index (R,) move, given what coins of these probabilities said."""
        return moves


DRAWN = Drawing()


def sample_coins(
    movable: Tensor,
    probability: float,
    generator: torch.Generator,
    coins: CoinName = "independent",
    curve: Curve = RASTER,
) -> Tensor:
    """Choose movable (B, D) coordinates, each with the same probability; return their index (R,).

    `systematic`: one uniform U per sequence, and the j-th movable coordinate along the curve is chosen iff
    floor(U + j p) > floor(U + (j - 1) p): every coordinate with its probability, but about 1 / p apart, so
    that neighbors are rarely chosen together.
    """
    if coins == "independent":
        index = index_of(movable)
        return index[uniforms(len(index), generator, index.device) < probability]
    start = uniforms(len(movable), generator, movable.device)[:, None]
    number = curve.number(movable).to(start.dtype)  # (B, D)
    jumps = (start + probability * number).floor() > (start + probability * (number - 1)).floor()
    return index_of(jumps & movable)
