"""The leaping samplers of the paper: grid x coefficients x jump rule (Eqs. euler_approx, lite_ab2, exact_ab2, clamping).

With h = t_{n+1} - t_n, dtau = tau_{n+1} - tau_n, lam = d tau / dt and r the ratio of this step to the one before:

    euler          h lam(t_n) p_n
    tr             dtau p_n
    cie            h [(1 + r/2) lam(t_n) p_n - (r/2) lam(t_{n-1}) p_{n-1}]         r in t
    tr_cie         dtau [(1 + r/2) p_n - (r/2) p_{n-1}]                            r in tau
    tr_cie_exact   as tr_cie, with p_{n-1} evaluated again at (t_{n-1}, x_n)

The first step has no history: cie is euler there, tr_cie and tr_cie_exact are tr.
"""

import math
from dataclasses import dataclass
from typing import Literal

from tauflow.errors import SamplingError
from tauflow.samplers.base import FinishName, Problem, Sampler, State, StepInfo, refuse_unknown
from tauflow.samplers.grids import Grid, GridName, make_grid
from tauflow.samplers.leap import Clamp, CoinName, JumpName, Term

RuleName = Literal["euler", "tr", "cie", "tr_cie", "tr_cie_exact"]


@dataclass(frozen=True)
class GridSampler(Sampler):
    """What all samplers on a time grid share: the grid, the finishing policy and the budget."""

    grid: GridName = "t"
    cutoff: float = 1e-3
    finish: FinishName = "draw"

    def __post_init__(self):
        refuse_unknown("grid", self.grid, GridName)
        refuse_unknown("finish", self.finish, FinishName)
        if not 0 < self.cutoff < 1:
            raise SamplingError(f"cutoff = 1 - kappa at the end of the grid must be in (0, 1), got {self.cutoff}; try 1e-3")

    def evaluations(self, steps: int) -> int:
        """Network evaluations that this many steps take."""
        return steps

    @property
    def uses_rate(self) -> bool:
        """Whether the rate factor itself enters, and not only its integral tau."""
        return False

    @property
    def finishing(self) -> FinishName:
        return self.finish

    def plan(self, nfe, schedule, free):
        if self.uses_rate and not math.isfinite(schedule.rate_factor(0.0)):
            raise SamplingError(f"{schedule} has an infinite rate at t = 0, which this sampler multiplies with; use tr, tr_cie or tweedie")
        budget = nfe - (self.finish == "draw")
        steps = max(steps for steps in range(budget + 1) if self.evaluations(steps) <= budget)
        if steps == 0 and self.finish != "draw":
            raise SamplingError(f"{nfe} evaluations are not enough for one step without a finishing draw; use nfe=2 or finish='draw'")
        return make_grid(self.grid, steps, schedule, self.cutoff, draws=self.finish == "draw"), steps


@dataclass(frozen=True)
class Leaping(GridSampler):
    leaps = True

    rule: RuleName = "tr_cie"
    jump: JumpName = "exponential"
    eps_0: float = 0.0
    ceiling: float = math.inf
    coins: CoinName = "independent"

    def __post_init__(self):
        super().__post_init__()
        refuse_unknown("rule", self.rule, RuleName)
        refuse_unknown("jump", self.jump, JumpName)
        refuse_unknown("coins", self.coins, CoinName)
        if not 0 <= self.eps_0 <= self.ceiling:
            raise SamplingError(f"need 0 <= eps_0 <= ceiling, got eps_0={self.eps_0} and ceiling={self.ceiling}")

    @property
    def uses_rate(self):
        return self.rule in ("euler", "cie")

    def evaluations(self, steps):
        return max(0, 2 * steps - 1) if self.rule == "tr_cie_exact" else steps

    def coefficients(self, problem: Problem, grid: Grid, n: int) -> tuple[float, float]:
        """Of the current and of the previous posterior, in the cumulative intensity of step n."""
        schedule = problem.schedule
        if self.uses_rate:
            h = grid.dt(n)
            now = h * schedule.rate_factor(grid.t[n].item())
            if self.rule == "euler" or n == 0:
                return now, 0.0
            r = h / grid.dt(n - 1)
            return (1 + r / 2) * now, -r / 2 * h * schedule.rate_factor(grid.t[n - 1].item())
        dtau = grid.dtau(n)
        r = dtau / grid.dtau(n - 1) if n > 0 and self.rule != "tr" else 0.0
        return (1 + r / 2) * dtau, -r / 2 * dtau

    def terms(self, problem: Problem, state: State, grid: Grid, n: int) -> tuple[list[Term], Clamp]:
        """The cumulative intensities of step n from state.x; the first term is the new evaluation."""
        current, previous = self.coefficients(problem, grid, n)
        terms = [problem.term(current, problem.evaluate(state.x, grid.t[n]), state.x)]
        if previous and self.rule == "tr_cie_exact":
            terms.append(problem.term(previous, problem.evaluate(state.x, grid.t[n - 1]), state.x))
        elif previous:
            terms.append(problem.term(previous, state.evaluation, state.evaluated_at))
        step = grid.dt(n) if self.uses_rate else grid.dtau(n)
        return terms, Clamp(self.eps_0 * step, self.ceiling * step)

    def step(self, problem, state, grid, n, generator):
        terms, clamp = self.terms(problem, state, grid, n)
        jumps = problem.leap(terms, state.x, self.jump, clamp, generator, self.coins)
        info = StepInfo(n, grid.t[n].item(), grid.t[n + 1].item(), jumps.moved, jumps.clamped, jumps.several)
        return State(jumps.x, terms[0].evaluation, state.x), info
