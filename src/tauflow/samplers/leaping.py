"""The leaping samplers of the paper: grid x coefficients x jump rule.

Eqs. euler_approx, lite_ab2, exact_ab2, clamping. With h = t_{n+1} - t_n, dtau = tau_{n+1} - tau_n,
lam = d tau / dt and r the ratio of this step to the one before:

    euler          h lam(t_n) p_n
    tr             dtau p_n
    cie            h [(1 + r/2) lam(t_n) p_n - (r/2) lam(t_{n-1}) p_{n-1}]         r in t
    tr_cie         dtau [(1 + r/2) p_n - (r/2) p_{n-1}]                            r in tau
    tr_cie_exact   as tr_cie, with p_{n-1} evaluated again at (t_{n-1}, x_n)

The first step has no history: cie is euler there, tr_cie and tr_cie_exact are tr.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tauflow.process import Process
from tauflow.samplers.base import FinishName, Problem, Sampler, State, StepInfo, fixed, option, require
from tauflow.samplers.draws import CoinName, toss
from tauflow.samplers.grids import Grid, GridName, make_grid, refuse_too_long
from tauflow.samplers.leap import Clamp, JumpName, Rule, Term, candidacy, leap

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
