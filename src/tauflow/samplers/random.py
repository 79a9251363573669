"""Random draws: coins, and tokens from rows.

Shapes: B sequences, D coordinates, V data tokens, R rows. A place is a coordinate in the flattened (B * D,).
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import Evaluation
from tauflow.errors import SamplingError
from tauflow.numerics import precise
from tauflow.samplers.geometry import Walk

CoinName = Literal["independent", "systematic"]
CHUNK = 2**19  # entries of a chunk of rows: a few megabytes of work space
LARGE = 2**16  # V above which a chunk of that size has so few rows that a head mostly reads its own weights
FEWEST = 16  # rows of a chunk at such a V


def chunks(places: Tensor, num_tokens: int) -> Sequence[Tensor]:
    """Split places (R,) so that the rows of a part take a few megabytes, or a few rows where V is large."""
    rows = FEWEST if num_tokens > LARGE else max(1, CHUNK // num_tokens)
    return places.split(rows) if len(places) else ()


def places_of(chosen: Tensor) -> Tensor:
    """Return the places (R,) of the true coordinates of chosen (B, D)."""
    return chosen.flatten().nonzero().squeeze(1)


def uniforms(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw uniforms in [0, 1) where the generator is, so that they are the same on every device."""
    return torch.rand(count, generator=generator, dtype=precise(device), device=generator.device).to(device)


def categorical(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw tokens (R,) in proportion to weights (R, V) by inverse CDF, with one float64 uniform for each row.

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
    """How tokens come out of rows: drawn. `likelihood.Forced` takes them from data instead.

    Every token that a sampler keeps must come from here.
    """

    def tokens(self, weights: Tensor, places: Tensor, generator: torch.Generator) -> Tensor:
        """Return a token for each of the coordinates places (R,), drawn by weights (R, V)."""
        return categorical(weights, generator)

    def moves(self, moves: Tensor, chance: Tensor, weights: Tensor, places: Tensor) -> Tensor:
        """Return which of the coordinates places (R,) move, given what coins of these chances (R,) said."""
        return moves


DRAWN = Drawing()


def draw(
    evaluation: Evaluation,
    places: Tensor,
    num_tokens: int,
    generator: torch.Generator,
    drawing: Drawing = DRAWN,
) -> Tensor:
    """Draw tokens (R,) from the posterior rows of the coordinates places (R,)."""
    parts = [drawing.tokens(evaluation.rows(index), index, generator) for index in chunks(places, num_tokens)]
    return torch.cat(parts) if parts else places


def toss(movable: Tensor, chance: float, coins: CoinName, generator: torch.Generator, walk: Walk) -> Tensor:
    """Choose places (R,) of movable (B, D) coordinates, each with the probability `chance`.

    `systematic`: one uniform U for each sequence, and the j-th movable coordinate along the walk is chosen
    iff floor(U + j chance) > floor(U + (j - 1) chance): every coordinate with its probability, but about 1 /
    chance apart, so that neighbours are rarely chosen together.
    """
    if coins == "independent":
        places = places_of(movable)
        return places[uniforms(len(places), generator, places.device) < chance]
    start = uniforms(len(movable), generator, movable.device)[:, None]
    number = walk.number(movable).to(start.dtype)  # (B, D)
    jumps = (start + chance * number).floor() > (start + chance * (number - 1)).floor()
    return places_of(jumps & movable)
