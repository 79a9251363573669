"""Tau-leaping: jumps from a linear combination of posteriors, and the leaping samplers of the paper.

Every leaping method has cumulative intensities L_s = max(0, sum_i c_i p_i(s)) for s != x:

    euler          h lam(t_n) p_n                                                  (Eq. 7)
    tr             dtau p_n
    cie            h [(1 + r/2) lam(t_n) p_n - (r/2) lam(t_{n-1}) p_{n-1}]         r in t
    tr_cie         dtau [(1 + r/2) p_n - (r/2) p_{n-1}]                            r in tau (Eq. 14)
    tr_cie_exact   as tr_cie, with p_{n-1} evaluated again at (t_{n-1}, x_n)          (Eq. 17)

with h = t_{n+1} - t_n, dtau = tau_{n+1} - tau_n, lam = d tau / dt and r the ratio of this step to the one
before. The first step has no history: cie is euler there, tr_cie and tr_cie_exact are tr.

The intensities of a row sum to at most the process's mass at its time (1 for a mixture), so the positive
terms bound their sum by A = sum_{c_i > 0} c_i mass(t_i) *before any row is read*. Two versions with the same
distribution:

- `leap` tosses a coin first: a coordinate is a candidate with probability 1 - exp(-A). Only rows of
  candidates are read; there L = sum L_s is known, and the candidate moves with probability (1 - exp(-L)) / (1
  - exp(-A)) under the `exponential` rule, L exp(-L) / (1 - exp(-A)) under `one_event`, to s with probability
  L_s / L. With A large every row is a candidate and this is the dense pass, in chunks of rows. `systematic`
  coins choose candidates that are evenly apart; each coordinate still moves with the same probability.
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

from tauflow.denoise.posterior import Posterior, take
from tauflow.errors import SamplingError
from tauflow.numerics import precise
from tauflow.process import Process
from tauflow.samplers.grids import Grid, GridName, check_steps, make_grid
from tauflow.samplers.random import DRAWN, CoinName, Drawing, chunks, sample_coins, uniforms
from tauflow.samplers.sampler import FinishName, Problem, Sampler, State, StepInfo, check, fixed, option

JumpName = Literal["exponential", "one_event"]
RuleName = Literal["euler", "tr", "cie", "tr_cie", "tr_cie_exact"]
MAX_EVENTS = 2**40  # in a chunk of rows


@dataclass(frozen=True)
class Term:
    """c p(s) of one posterior, for the jumps that were possible there."""

    coefficient: float
    posterior: Posterior

    def rates(self, index: Tensor | slice, process: Process, probs: Tensor | None = None) -> Tensor:
        """Return c p(s) of the coordinates index (R,), 0 where the state then allowed no jump, (R, V).

        `probs` are those of the posterior, where they have been read.
        """
        probs = self.posterior.probs(index) if probs is None else probs
        tokens = take(self.posterior.x.flatten(), index)
        assert self.posterior.t is not None
        return process.intensity(probs * self.coefficient, tokens, self.posterior.t)


Terms = Sequence[Term]


class Intensities(NamedTuple):
    """Cumulative intensities of jumps, and what became of them on the way."""

    total: Tensor  # (R, V), clamped
    negative: int  # channels that were negative before
    discarded: float  # posterior mass, of all rows together, that the process did not look at


@dataclass(frozen=True)
class Clamp:
    """Bounds on the cumulative intensity of a channel: eps_0 and M of the paper's Eq. 15, times the step."""

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
        """Return the log of step n, in which this share of the coordinates moved."""
        t, t_next = grid.t[n].item(), grid.t[n + 1].item()
        return StepInfo(n, t, t_next, moved, self.clamped, self.several, discarded=self.discarded)


def candidate_probability(process: Process, terms: Sequence[tuple[float, float]], rule: Rule) -> float:
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
    candidates: Tensor | None = None,
    drawing: Drawing = DRAWN,
) -> Jumps:
    """Leap once from x: coin first, rows of candidates only; or literally, where the rule says dense.

    `candidates` (R,) are coordinates for which the coins were tossed before, such as systematic coins along
    the curve of a grid.
    """
    if rule.dense:
        return leap_dense(process, terms, x, movable, rule, generator)
    times = [(term.coefficient, term.posterior.t or 0.0) for term in terms]
    candidate = candidate_probability(process, times, rule)
    count = int(movable.sum())
    if candidates is None:
        candidates = sample_coins(movable, candidate, generator, rule.coins)
    result = x.clone().flatten()
    moved = clamped = channels = 0
    several: Tensor | float = 0.0
    discarded = 0.0
    for index in chunks(candidates, process.num_tokens):
        intensity, negative, lost = intensities(process, terms, index, x, rule.clamp)  # (R, V)
        total = intensity.sum(-1, dtype=precise(x.device))  # L, (R,)
        stay = torch.exp(-total)
        probability = -torch.expm1(-total) if rule.jump == "exponential" else total * stay
        coins = uniforms(len(index), generator, index.device) * candidate < probability
        moves = drawing.moves(coins, probability / candidate, intensity, index).nonzero().squeeze(1)
        moving = index.index_select(0, moves)
        result[moving] = drawing.tokens(intensity.index_select(0, moves), moving, generator)
        moved += len(moving)
        clamped += negative
        discarded += lost
        channels += intensity.numel()
        several = several + (1 - stay - total * stay).sum() / candidate
    shares = moved / max(1, count), clamped / max(1, channels), float(several) / max(1, count)
    return Jumps(result.view_as(x), *shares, discarded / max(1, len(candidates)))


def leap_dense(
    process: Process, terms: Terms, x: Tensor, movable: Tensor, rule: Rule, generator: Generator
) -> Jumps:
    """Leap by the literal algorithm: independent Poisson counts for all B * D * V channels."""
    moving, rows, tokens, events = [], [], [], []  # of what moves (M,); and its channels with an event (E,)
    negative = several = moved = 0
    discarded = 0.0
    for index in chunks(torch.arange(x.numel(), device=x.device), process.num_tokens):
        intensity, below, lost = intensities(process, terms, index, x, rule.clamp)
        intensity = intensity * movable.flatten()[index][:, None]
        if not intensity.sum(dtype=precise(x.device)) < MAX_EVENTS:
            raise SamplingError(
                "an intensity is not finite or far too large; check the schedule and the sampler's options"
            )
        counts = torch.poisson(intensity.to(generator.device), generator=generator).to(x.device).long()
        total = counts.sum(-1)
        moves = (total >= 1 if rule.jump == "exponential" else total == 1).nonzero().squeeze(1)
        row, token = counts[moves].nonzero().T
        moving.append(index[moves])
        rows.append(row + moved)
        tokens.append(token)
        events.append(counts[moves[row], token])
        moved += len(moves)
        negative += below
        discarded += lost
        several += int((total > 1).sum())
    result = x.clone().flatten()
    chosen = _any_event(torch.cat(rows), torch.cat(events), uniforms(moved, generator, x.device))
    result[torch.cat(moving)] = torch.cat(tokens)[chosen]
    count = max(1, int(movable.sum()))
    shares = moved / count, negative / (x.numel() * process.num_tokens), several / count
    return Jumps(result.view_as(x), *shares, discarded / x.numel())


def _any_event(rows: Tensor, events: Tensor, coins: Tensor) -> Tensor:
    """Return a channel (M,) per row, one of the E that are in rows (E,) in order, by its events (E,)."""
    last = events.cumsum(0)
    count = torch.zeros_like(coins, dtype=torch.long).index_add_(0, rows, events)  # (M,)
    which = (coins * count).long().minimum(count - 1)  # events are exchangeable
    return torch.searchsorted(last, count.cumsum(0) - count + which, right=True)


def intensities(
    process: Process, terms: Terms, index: Tensor | slice, x: Tensor, clamp: Clamp
) -> Intensities:
    """Return clamped cumulative intensities (R, V) of jumps from x (B, D)."""
    probs = terms[0].posterior.probs(index)
    discarded = process.discarded(probs) * len(probs)
    total = terms[0].rates(index, process, probs)
    for term in terms[1:]:
        total.add_(term.rates(index, process))
    negative = int((total < 0).sum()) if len(terms) > 1 else 0
    total.clamp_(clamp.floor, clamp.ceiling)
    return Intensities(process.only_jumps(total, take(x.flatten(), index)), negative, discarded)


@dataclass(frozen=True)
class GridSampler(Sampler[Grid, State]):
    """Base of the samplers on a time grid: it has the grid, the budget, and the finishing draw.

    Subclass it for a method that steps from t_n to t_{n+1}. `step` is all you need to write: one call of
    `problem.evaluate` per step, and tokens from `problem.draw` or `problem.draw_from`.

    Args:
        grid: where the steps are: equally long in t or in tau, or dense early.
        cutoff: 1 - kappa where the grid ends. None: where the grid in t ends.
        finish: what happens after the last step: "draw" spends one more evaluation on whatever may move,
            "reuse" fills masks from the last posterior, "none" does nothing.

    Returns:
        A sampler. Its plan is a `Grid` with times `t` and `tau`, and `dtau(n)`.

    Examples:
        >>> import math, tauflow, torch
        >>> from tauflow.samplers import State, StepInfo
        >>> from tauflow.samplers.random import sample_coins
        >>> class Replace(tauflow.GridSampler):  # Tweedie's step
        ...     def step(self, problem, state, plan, n, generator):
        ...         posterior = problem.evaluate(state.x, plan.t[n])
        ...         movable = problem.movable(state.x)
        ...         index = sample_coins(movable, -math.expm1(-plan.dtau(n)), generator)
        ...         x = state.x.clone()
        ...         x.view(-1)[index] = problem.draw_from(posterior, index, generator)
        ...         moved = len(index) / max(1, int(movable.sum()))
        ...         return State(x, posterior), StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), moved)
        >>> process = tauflow.Mixture(tauflow.Masked(5), "linear")
        >>> model = tauflow.Model(lambda x, t: torch.zeros(*x.shape, 5), process, (8,))
        >>> tauflow.sample(model, Replace(grid="tau"), nfe=4, count=2).tokens.shape
        torch.Size([2, 8])
    """

    grid: GridName = option("t", "where the steps are: equally long in t or in tau, or dense early")
    cutoff: float | None = option(
        1e-3,
        "1 - kappa (1 - share on a metric path) where the grid ends; none: where the t grid ends",
        above=0,
        below=1,
    )
    finish: FinishName = option("draw", "what happens after the last step")

    clones_history = True
    uses_rate = False  # whether the rate factor itself enters, and not only its integral tau

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.cutoff is not None or self.finish == "draw",
            f"cutoff=none ends where the t grid draws, which finish={self.finish} does not; give a number",
        )

    @property
    def finishing(self) -> str:  # type: ignore[override]
        return self.finish

    def evaluations(self, steps: int) -> int:
        """Return the network evaluations that this many steps take."""
        return steps

    def plan(self, process: Process, free: int, nfe: int) -> Grid:
        check(
            not self.uses_rate or math.isfinite(process.rate_factor(0.0)),
            f"the process ({process}) has an infinite rate at t = 0, which this sampler multiplies with; "
            "use tr, tr_cie or tweedie",
        )
        check_steps(nfe)
        draws = self.finish == "draw"
        budget = nfe - draws
        steps = bisect_right(range(budget + 1), budget, key=self.evaluations) - 1
        check(
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
    eps_0: float = option(0.0, "floor of an intensity", low=0)
    ceiling: float = option(math.inf, "ceiling of an intensity", low=0, high=math.inf)
    dense: bool = option(
        False, "the literal algorithm with B D V Poisson counts: slow, the same distribution"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.eps_0 <= self.ceiling,
            f"need 0 <= eps_0 <= ceiling, got eps_0={self.eps_0} and ceiling={self.ceiling}",
        )

    def rule_for(self, step: float, coins: CoinName = "independent") -> Rule:
        return Rule(self.jump, Clamp(self.eps_0 * step, self.ceiling * step), coins, self.dense)


@dataclass(frozen=True)
class Leaping(LeapingOptions):
    """The samplers of the table above, by `rule`."""

    rule: RuleName = fixed("tr_cie")
    coins: CoinName = option("independent", "whether neighbors may move together as often as others")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            not (self.dense and self.coins != "independent"),
            f"the dense algorithm has independent Poisson counts, not {self.coins} coins; drop one of them",
        )

    @property
    def uses_rate(self) -> bool:  # type: ignore[override]
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
        posterior = problem.evaluate(state.x, grid.t[n])
        if previous and self.rule == "tr_cie_exact":
            posterior = posterior.clone()
            return [Term(current, posterior), Term(previous, problem.evaluate(state.x, grid.t[n - 1]))]
        if previous and state.posterior:
            return [Term(current, posterior), Term(previous, state.posterior)]
        return [Term(current, posterior)]

    def leap_rule(self, grid: Grid, n: int) -> Rule:
        return self.rule_for(grid.dt(n) if self.uses_rate else grid.dtau(n), self.coins)

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        process = problem.process
        movable = problem.movable(state.x)
        rule = self.leap_rule(plan, n)
        candidates = None
        if not rule.dense:  # coins first, so that only the rows of candidates are cloned
            times = plan.t[n].item(), plan.t[max(0, n - 1)].item()
            coefficients = self.coefficients(process, plan, n)
            candidate = candidate_probability(process, list(zip(coefficients, times, strict=True)), rule)
            candidates = sample_coins(movable, candidate, generator, rule.coins, problem.curve)
        if state.posterior and self.rule in ("cie", "tr_cie"):
            state = State(state.x, state.posterior.clone(candidates))
        terms = self.terms(problem, state, plan, n)
        jumps = leap(process, terms, state.x, movable, rule, generator, candidates, problem.drawing)
        return State(jumps.x, terms[0].posterior), jumps.info(n, plan, jumps.moved)
