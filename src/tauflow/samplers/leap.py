"""Jumps from a linear combination of Evaluations.

Every leaping method has cumulative intensities L_s = max(0, sum_i c_i p_i(s)) for s != x. Each row p_i sums to 1, so the positive terms
bound their sum by A = sum_{c_i > 0} c_i *before any row is read*. Two versions with the same law:

- `leap` throws a coin first: a coordinate is a candidate with probability 1 - exp(-A). Only rows of candidates are read; there L = sum L_s
  is known, and the candidate moves with probability (1 - exp(-L)) / (1 - exp(-A)) under the `exponential` rule, L exp(-L) / (1 - exp(-A))
  under `one_event`, to s with probability L_s / L. With A large every row is a candidate and this is the dense pass, in chunks of rows.
  `systematic` coins (see `toss`) choose candidates that lie evenly apart; each coordinate still moves with the same probability.
- `leap_dense` is the literal algorithm: B * D * V Poisson counts. Tests compare the two.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoisers import Evaluation, take
from tauflow.errors import SamplingError
from tauflow.sources import Masked, Source

JumpName = Literal["exponential", "one_event"]
CoinName = Literal["independent", "systematic"]
CHUNK = 2**19  # entries of a chunk of rows: a few megabytes of work space


@dataclass(frozen=True)
class Term:
    """c p(s) of one Evaluation, made at `state`: a coordinate that could not move there has no rate, and none to the token it then had."""

    coefficient: float
    evaluation: Evaluation
    state: Tensor  # (B, D)
    source: Source

    def rates(self, index: Tensor | slice) -> Tensor:
        """c p(s) of the coordinates index (R,), 0 where the state then allowed no jump, (R, V)."""
        rows = self.evaluation.rows(index) * self.coefficient
        return _only_jumps(rows, take(self.state.flatten(), index), self.source)


@dataclass(frozen=True)
class Clamp:
    """Bounds on the cumulative intensity of a channel: the floor eps_0 and the ceiling M of Eq. clamping, times the step."""

    floor: float = 0.0
    ceiling: float = math.inf


@dataclass(frozen=True)
class Jumps:
    """What a leap did: the new state, and expected shares of the movable coordinates for the log."""

    x: Tensor  # (B, D)
    moved: float  # share that moved
    clamped: float  # share of the read channels whose extrapolated intensity was negative
    several: float  # probability of more than one event


def toss(movable: Tensor, chance: float, coins: CoinName, generator: torch.Generator) -> Tensor:
    """Places (R,), in the flattened (B * D,), of movable (B, D) coordinates, each chosen with the probability `chance`.

    `systematic`: one uniform U a sequence, and the j-th movable coordinate is chosen iff floor(U + j chance) > floor(U + (j - 1) chance):
    every coordinate with its probability, but about 1 / chance apart, so that neighbours are rarely chosen together.
    """
    places = movable.flatten().nonzero().squeeze(1)
    if coins == "independent":
        return places[uniforms(len(places), generator, places.device) < chance]
    start = uniforms(len(movable), generator, movable.device)[:, None]
    number = movable.cumsum(1).to(start.dtype)  # (B, D)
    jumps = (start + chance * number).floor() > (start + chance * (number - 1)).floor()
    return (jumps & movable).flatten().nonzero().squeeze(1)


def leap(
    terms: list[Term],
    x: Tensor,
    movable: Tensor,
    num_tokens: int,
    jump: JumpName,
    clamp: Clamp,
    generator: torch.Generator,
    coins: CoinName = "independent",
) -> Jumps:
    """One leap from x, coin first, rows of candidates only."""
    mass = sum(max(0.0, term.coefficient) for term in terms) + clamp.floor * num_tokens
    candidate = -math.expm1(-mass)  # 1 - exp(-A)
    count = int(movable.sum())
    places = toss(movable, candidate, coins, generator)
    result, moved, clamped, several, channels = x.clone().flatten(), 0, 0, 0.0, 0
    for index in places.split(max(1, CHUNK // num_tokens)) if len(places) else ():
        intensity, negative = intensities(terms, index, x, clamp)  # (R, V)
        total = intensity.sum(-1, dtype=precise(x.device))  # L, (R,)
        stay = torch.exp(-total)
        chance = -torch.expm1(-total) if jump == "exponential" else total * stay
        moves = (uniforms(len(index), generator, index.device) * candidate < chance).nonzero().squeeze(1)
        tokens = categorical(intensity.index_select(0, moves), generator)
        result[index.index_select(0, moves)] = tokens
        moved += len(tokens)
        clamped, channels = clamped + negative, channels + intensity.numel()
        several = several + (1 - stay - total * stay).sum() / candidate
    return Jumps(result.view_as(x), moved / max(1, count), clamped / max(1, channels), float(several) / max(1, count))


def leap_dense(
    terms: list[Term], x: Tensor, movable: Tensor, num_tokens: int, jump: JumpName, clamp: Clamp, generator: torch.Generator
) -> Jumps:
    """The literal algorithm: independent Poisson counts for all B * D * V channels."""
    intensity, negative = intensities(terms, slice(None), x, clamp)
    intensity = intensity * movable.flatten()[:, None]
    events = torch.poisson(intensity.to(generator.device), generator=generator).to(x.device)  # (B * D, V)
    total = events.sum(-1)
    moves = total >= 1 if jump == "exponential" else total == 1
    tokens = categorical(events[moves], generator)  # of several events take any one: they are exchangeable
    result = x.clone().flatten()
    result[moves] = tokens
    count = max(1, int(movable.sum()))
    return Jumps(result.view_as(x), len(tokens) / count, negative / intensity.numel(), (total > 1).sum().item() / count)


def intensities(terms: list[Term], index: Tensor | slice, x: Tensor, clamp: Clamp) -> tuple[Tensor, float]:
    """Clamped cumulative intensities (R, V), 0 for the token already there; and how many channels were negative before."""
    total = terms[0].rates(index)
    for term in terms[1:]:
        total.add_(term.rates(index))
    negative = (total < 0).sum().item() if len(terms) > 1 else 0
    total.clamp_(clamp.floor, clamp.ceiling)
    return _only_jumps(total, take(x.flatten(), index), terms[0].source), negative


def _only_jumps(rows: Tensor, tokens: Tensor, source: Source) -> Tensor:
    """Sets to 0 what is no jump from the tokens (R,): from a revealed token of a masked source, to the own token of a uniform one."""
    if isinstance(source, Masked):
        return rows.mul_((tokens == source.mask_id)[:, None])
    return rows.scatter_(1, tokens[:, None], 0)


def draw(evaluation: Evaluation, places: Tensor, num_tokens: int, generator: torch.Generator) -> Tensor:
    """Tokens (R,) drawn from the posterior rows of the coordinates places (R,)."""
    parts = [categorical(evaluation.rows(index), generator) for index in places.split(max(1, CHUNK // num_tokens))]
    return torch.cat(parts) if parts else places


def precise(device: torch.device) -> torch.dtype:
    """float64, or float32 on devices that do not have it."""
    return torch.float32 if device.type == "mps" else torch.float64


def uniforms(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Uniforms in [0, 1), as precise as the device allows, drawn where the generator is: the same on every device."""
    return torch.rand(count, generator=generator, dtype=precise(device), device=generator.device).to(device)


def categorical(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Tokens (R,) drawn in proportion to weights (R, V) by inverse CDF, with one float64 uniform a row.

    Float32 Gumbel noise would cut the tails off and act like a lower temperature. Where float64 does not exist the sums are in float32,
    which resolves tails down to about 1e-7.
    """
    total = weights.cumsum(-1, dtype=precise(weights.device))
    if not math.isfinite(total[:, -1].sum()):
        raise SamplingError("an intensity or a probability is not finite; check the schedule and the options of the sampler")
    threshold = uniforms(len(weights), generator, weights.device)[:, None] * total[:, -1:]
    return torch.searchsorted(total, threshold, right=True).squeeze(1).clamp_(max=weights.shape[-1] - 1)
