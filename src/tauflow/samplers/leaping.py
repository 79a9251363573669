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
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from tauflow.denoise.denoiser import take
from tauflow.errors import SamplingError
from tauflow.numerics import precise
from tauflow.process import Process
from tauflow.samplers.geometry import RASTER
from tauflow.samplers.grids import Grid, GridName, make_grid, refuse_too_long
from tauflow.samplers.random import DRAWN, CoinName, Drawing, chunks, toss, uniforms
from tauflow.samplers.sampler import (
    FinishName,
    Problem,
    Sampler,
    State,
    StepInfo,
    Visit,
    fixed,
    option,
    require,
)

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


# The leaping samplers of the paper: grid x coefficients x jump rule.
#
# Eqs. euler_approx, lite_ab2, exact_ab2, clamping. With h = t_{n+1} - t_n, dtau = tau_{n+1} - tau_n, lam = d
# tau / dt and r the ratio of this step to the one before:
#
#     euler          h lam(t_n) p_n
#     tr             dtau p_n
#     cie            h [(1 + r/2) lam(t_n) p_n - (r/2) lam(t_{n-1}) p_{n-1}]         r in t
#     tr_cie         dtau [(1 + r/2) p_n - (r/2) p_{n-1}]                            r in tau
#     tr_cie_exact   as tr_cie, with p_{n-1} evaluated again at (t_{n-1}, x_n)
#
# The first step has no history: cie is euler there, tr_cie and tr_cie_exact are tr.


RuleName = Literal["euler", "tr", "cie", "tr_cie", "tr_cie_exact"]


@dataclass(frozen=True)
class GridSampler(Sampler[Grid, State]):
    """What all samplers on a time grid share: the grid, the finishing policy and the budget."""

    grid: GridName = option("t", "where the steps are: equally long in t or in tau, or dense early")
    cutoff: float | None = option(
        1e-3, "1 - kappa (1 - share on a metric path) where the grid ends; none: where the t grid ends"
    )
    finish: FinishName = option("draw", "what happens after the last step")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.cutoff is None or 0 < self.cutoff < 1,
            f"cutoff = 1 - kappa at the end of the grid must be in (0, 1), got {self.cutoff}; try 1e-3",
        )
        require(
            self.cutoff is not None or self.finish == "draw",
            f"cutoff=none ends where the t grid draws, which finish={self.finish} does not; give a number",
        )

    def evaluations(self, steps: int) -> int:
        """Return the network evaluations that this many steps take."""
        return steps

    @property
    def uses_rate(self) -> bool:
        """Return whether the rate factor itself enters, and not only its integral tau."""
        return False

    @property
    def finishing(self) -> FinishName:
        return self.finish

    @property
    def keeps(self) -> bool:
        return True

    def plan(self, process: Process, free: int, nfe: int) -> Grid:
        require(
            not self.uses_rate or math.isfinite(process.rate_factor(0.0)),
            f"the process ({process}) has an infinite rate at t = 0, which this sampler multiplies with; "
            "use tr, tr_cie or tweedie",
        )
        refuse_too_long(nfe)
        draws = self.finish == "draw"
        budget = nfe - draws
        steps = bisect_right(range(budget + 1), budget, key=self.evaluations) - 1
        require(
            steps > 0 or draws,
            f"{nfe} evaluations are not enough for one step without a finishing draw; use nfe=2 or "
            "finish=draw",
        )
        return make_grid(self.grid, steps, process, self.cutoff, draws)

    def init(self, problem: Problem, x_0: Tensor, plan: Grid, generator: torch.Generator) -> State:
        return State(x_0)


@dataclass(frozen=True)
class LeapingOptions(GridSampler):
    """What samplers that turn intensities into jumps share."""

    jump: JumpName = option("exponential", "jump rule of a leap")
    eps_0: float = option(0.0, "floor of an intensity")
    ceiling: float = option(math.inf, "ceiling of an intensity")
    dense: bool = option(False, "the literal algorithm with B D V Poisson counts: slow, the same law")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.eps_0 <= self.ceiling,
            f"need 0 <= eps_0 <= ceiling, got eps_0={self.eps_0} and ceiling={self.ceiling}",
        )

    def rule_for(self, step: float, coins: CoinName = "independent") -> Rule:
        return Rule(self.jump, Clamp(self.eps_0 * step, self.ceiling * step), coins, self.dense)


@dataclass(frozen=True)
class Leaping(LeapingOptions):
    """The samplers of the table above, by `rule`."""

    rule: RuleName = fixed("tr_cie")
    coins: CoinName = option("independent", "whether neighbours may move together as often as others")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not (self.dense and self.coins != "independent"),
            f"the dense algorithm has independent Poisson counts, not {self.coins} coins; drop one of them",
        )

    @property
    def uses_rate(self) -> bool:
        return self.rule in ("euler", "cie")

    def evaluations(self, steps: int) -> int:
        return max(0, 2 * steps - 1) if self.rule == "tr_cie_exact" else steps

    def coefficients(self, process: Process, grid: Grid, n: int) -> tuple[float, float]:
        """Return those of the current and of the previous posterior in the cumulative intensity of step n."""
        if self.uses_rate:
            h = grid.dt(n)
            now = h * process.rate_factor(grid.t[n].item())
            if self.rule == "euler" or n == 0:
                return now, 0.0
            r = h / grid.dt(n - 1)
            return (1 + r / 2) * now, -r / 2 * h * process.rate_factor(grid.t[n - 1].item())
        dtau = grid.dtau(n)
        r = dtau / grid.dtau(n - 1) if n > 0 and self.rule != "tr" else 0.0
        return (1 + r / 2) * dtau, -r / 2 * dtau

    def terms(self, problem: Problem, state: State, grid: Grid, n: int) -> list[Term]:
        """Return the cumulative intensities of step n from state.x; the first term is the new evaluation."""
        current, previous = self.coefficients(problem.process, grid, n)
        terms = [Term(current, problem.visit(state.x, grid.t[n]))]
        if previous and self.rule == "tr_cie_exact":
            terms = [Term(current, terms[0].visit.kept())]
            terms.append(Term(previous, problem.visit(state.x, grid.t[n - 1])))
        elif previous and state.visit:
            terms.append(Term(previous, state.visit))
        return terms

    def leap_rule(self, grid: Grid, n: int) -> Rule:
        return self.rule_for(grid.dt(n) if self.uses_rate else grid.dtau(n), self.coins)

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        process, movable, rule = problem.process, problem.movable(state.x), self.leap_rule(plan, n)
        places = None
        if not rule.dense:  # coins first, so that only the rows of candidates are kept
            times = plan.t[n].item(), plan.t[max(0, n - 1)].item()
            coefficients = self.coefficients(process, plan, n)
            chance = candidacy(process, list(zip(coefficients, times, strict=True)), rule)
            places = toss(movable, chance, rule.coins, generator, problem.walk)
        if state.visit and self.rule in ("cie", "tr_cie"):
            state = State(state.x, state.visit.kept(places))
        terms = self.terms(problem, state, plan, n)
        jumps = leap(process, terms, state.x, movable, rule, generator, places, problem.drawing)
        return State(jumps.x, terms[0].visit), jumps.info(n, plan, jumps.moved)
