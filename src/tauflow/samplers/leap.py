"""Jumps from a linear combination of Evaluations.

Every leaping method has cumulative intensities L_s = max(0, sum_i c_i p_i(s)) for s != x. The intensities of
a row sum to at most the process's mass at its time (1 for a mixture), so the positive terms bound their sum
by A = sum_{c_i > 0} c_i mass(t_i) *before any row is read*. Two versions with the same law:

- `leap` tosses a coin first: a coordinate is a candidate with probability 1 - exp(-A). Only rows of
  candidates are read; there L = sum L_s is known, and the candidate moves with probability (1 - exp(-L)) / (1
  - exp(-A)) under the `exponential` rule, L exp(-L) / (1 - exp(-A)) under `one_event`, to s with probability
  L_s / L. With A large every row is a candidate and this is the dense pass, in chunks of rows. `systematic`
  coins (see `toss`) choose candidates that lie evenly apart; each coordinate still moves with the same
  probability.
- `leap_dense` is the literal algorithm: B * D * V Poisson counts. Tests compare the two.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from tauflow.denoise.evaluation import take
from tauflow.devices import precise
from tauflow.errors import SamplingError
from tauflow.process import Process
from tauflow.samplers.base import StepInfo, Visit
from tauflow.samplers.draws import DRAWN, CoinName, Drawing, chunks, toss, uniforms
from tauflow.samplers.grids import Grid
from tauflow.samplers.walks import RASTER

JumpName = Literal["exponential", "one_event"]
MOST_EVENTS = 2**40  # in a chunk of rows


@dataclass(frozen=True)
class Term:
    """c p(s) of one visit, for the jumps that were possible there."""

    coefficient: float
    visit: Visit

    def rates(self, index: Tensor | slice, process: Process, rows: Tensor | None = None) -> Tensor:
        """Return c p(s) of the coordinates index (R,), 0 where the state then allowed no jump, (R, V).

        `rows` are those of the visit, where they have been read.
        """
        rows = self.visit.evaluation.rows(index) if rows is None else rows
        tokens = take(self.visit.x.flatten(), index)
        return process.intensity(rows * self.coefficient, tokens, self.visit.t)


Terms = Sequence[Term]


class Intensities(NamedTuple):
    """Cumulative intensities of jumps, and what became of them on the way."""

    total: Tensor  # (R, V), clamped
    negative: int  # channels that were negative before
    discarded: float  # posterior mass, of all rows together, that the process did not look at


@dataclass(frozen=True)
class Clamp:
    """Bounds on the cumulative intensity of a channel: eps_0 and M of Eq. clamping, times the step."""

    floor: float = 0.0
    ceiling: float = math.inf


@dataclass(frozen=True)
class Rule:
    """How intensities become jumps."""

    jump: JumpName = "exponential"
    clamp: Clamp = Clamp()
    coins: CoinName = "independent"
    dense: bool = False


@dataclass(frozen=True)
class Jumps:
    """What a leap did: the new state, and expected shares of the movable coordinates for the log."""

    x: Tensor  # (B, D)
    moved: float  # share that moved
    clamped: float  # share of the read channels whose extrapolated intensity was negative
    several: float  # probability of more than one event
    discarded: float  # share of the posterior mass of the read rows that the process did not look at

    def info(self, n: int, grid: Grid, moved: float) -> StepInfo:
        """Return what is said of step n, in which this share of the coordinates moved."""
        t, t_next = grid.t[n].item(), grid.t[n + 1].item()
        return StepInfo(n, t, t_next, moved, self.clamped, self.several, discarded=self.discarded)


def candidacy(process: Process, terms: Sequence[tuple[float, float]], rule: Rule) -> float:
    """Return 1 - exp(-A), the probability of a coordinate to be a candidate, from coefficients and times."""
    mass = sum(max(0.0, coefficient) * process.mass(t) for coefficient, t in terms)
    return -math.expm1(-mass - rule.clamp.floor * process.num_tokens)


def leap(
    process: Process,
    terms: Terms,
    x: Tensor,
    movable: Tensor,
    rule: Rule,
    generator: Generator,
    places: Tensor | None = None,
    drawing: Drawing = DRAWN,
) -> Jumps:
    """Leap once from x: coin first, rows of candidates only; or literally, where the rule says dense.

    `places` are candidates for which the coins were tossed before; where systematic coins should go along a
    walk through a grid, toss them so.
    """
    if rule.dense:
        return leap_dense(process, terms, x, movable, rule, generator)
    num_tokens, clamp = process.num_tokens, rule.clamp
    candidate = candidacy(process, [(term.coefficient, term.visit.t) for term in terms], rule)
    count = int(movable.sum())
    if places is None:
        places = toss(movable, candidate, rule.coins, generator, RASTER)
    result = x.clone().flatten()
    moved = clamped = channels = 0
    several: Tensor | float = 0.0
    discarded = 0.0
    for index in chunks(places, num_tokens):
        intensity, negative, lost = intensities(process, terms, index, x, clamp)  # (R, V)
        total = intensity.sum(-1, dtype=precise(x.device))  # L, (R,)
        stay = torch.exp(-total)
        chance = -torch.expm1(-total) if rule.jump == "exponential" else total * stay
        coins = uniforms(len(index), generator, index.device) * candidate < chance
        moves = drawing.moves(coins, chance / candidate, intensity, index).nonzero().squeeze(1)
        moving = index.index_select(0, moves)
        tokens = drawing.tokens(intensity.index_select(0, moves), moving, generator)
        result[moving] = tokens
        moved += len(tokens)
        clamped += negative
        discarded += lost
        channels += intensity.numel()
        several = several + (1 - stay - total * stay).sum() / candidate
    shares = moved / max(1, count), clamped / max(1, channels), float(several) / max(1, count)
    return Jumps(result.view_as(x), *shares, discarded / max(1, len(places)))


def leap_dense(
    process: Process, terms: Terms, x: Tensor, movable: Tensor, rule: Rule, generator: Generator
) -> Jumps:
    """Leap by the literal algorithm: independent Poisson counts for all B * D * V channels."""
    places, rows, tokens, events = [], [], [], []  # of what moves (M,); and its channels with an event (E,)
    negative = several = moved = 0
    discarded = 0.0
    for index in chunks(torch.arange(x.numel(), device=x.device), process.num_tokens):
        intensity, below, lost = intensities(process, terms, index, x, rule.clamp)
        intensity = intensity * movable.flatten()[index][:, None]
        if not intensity.sum(dtype=precise(x.device)) < MOST_EVENTS:
            raise SamplingError(
                "an intensity is not finite or far too large; check the schedule and the sampler's options"
            )
        counts = torch.poisson(intensity.to(generator.device), generator=generator).to(x.device).long()
        total = counts.sum(-1)
        moves = (total >= 1 if rule.jump == "exponential" else total == 1).nonzero().squeeze(1)
        row, token = counts[moves].nonzero().T
        places.append(index[moves])
        rows.append(row + moved)
        tokens.append(token)
        events.append(counts[moves[row], token])
        moved += len(moves)
        negative += below
        discarded += lost
        several += int((total > 1).sum())
    result = x.clone().flatten()
    chosen = _any_event(torch.cat(rows), torch.cat(events), uniforms(moved, generator, x.device))
    result[torch.cat(places)] = torch.cat(tokens)[chosen]
    most = max(1, int(movable.sum()))
    shares = moved / most, negative / (x.numel() * process.num_tokens), several / most
    return Jumps(result.view_as(x), *shares, discarded / x.numel())


def _any_event(rows: Tensor, events: Tensor, coins: Tensor) -> Tensor:
    """Return a channel (M,) for each row, one of the E that lie in rows (E,) in order, by its events (E,)."""
    last = events.cumsum(0)
    count = torch.zeros_like(coins, dtype=torch.long).index_add_(0, rows, events)  # (M,)
    which = (coins * count).long().minimum(count - 1)  # events are exchangeable
    return torch.searchsorted(last, count.cumsum(0) - count + which, right=True)


def intensities(
    process: Process, terms: Terms, index: Tensor | slice, x: Tensor, clamp: Clamp
) -> Intensities:
    """Return clamped cumulative intensities (R, V) of jumps from x (B, D)."""
    rows = terms[0].visit.evaluation.rows(index)
    discarded = process.discarded(rows) * len(rows)
    total = terms[0].rates(index, process, rows)
    for term in terms[1:]:
        total.add_(term.rates(index, process))
    negative = int((total < 0).sum()) if len(terms) > 1 else 0
    total.clamp_(clamp.floor, clamp.ceiling)
    return Intensities(process.only_jumps(total, take(x.flatten(), index)), negative, discarded)
