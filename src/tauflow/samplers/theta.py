"""theta-RK2 and theta-trapezoidal (Ren et al. 2025): two evaluations a step, in physical time.

    stage 1         x* from x_n with theta h u_n(s; x_n), at t* = t_n + theta h
    theta_rk2           from x_n over h:              h [(1 - 1/(2 theta)) u_n(s; x_n) + u_{t*}(s; x*) / (2 theta)]_+
    theta_trapezoidal   from x* over (1 - theta) h:   (1 - theta) h [a1 u_{t*}(s; x*) - a2 u_n(s; x_n)]_+

with a1 = 1/(2 theta (1 - theta)), a2 = a1 - 1 and the rate u_t(s; x) = lam(t) p(s | x) for s != x, none from a coordinate that may not
move.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from tauflow.errors import SamplingError
from tauflow.samplers.base import Problem, State, StepInfo, refuse_unknown
from tauflow.samplers.grids import Grid
from tauflow.samplers.leap import Clamp, JumpName, Term
from tauflow.samplers.leaping import GridSampler


@dataclass(frozen=True)
class Theta(GridSampler):
    leaps = True

    trapezoidal: bool = False
    jump: JumpName = "exponential"
    theta: float = 0.5
    eps_0: float = 0.0
    ceiling: float = math.inf

    def __post_init__(self):
        super().__post_init__()
        if not (0 < self.theta < 1 if self.trapezoidal else 0 < self.theta <= 1):
            interval = "(0, 1) for theta_trapezoidal" if self.trapezoidal else "(0, 1] for theta_rk2"
            raise SamplingError(f"theta must be in {interval}, got {self.theta}; try 0.5")
        refuse_unknown("jump", self.jump, JumpName)
        if not 0 <= self.eps_0 <= self.ceiling:
            raise SamplingError(f"need 0 <= eps_0 <= ceiling, got eps_0={self.eps_0} and ceiling={self.ceiling}")

    uses_rate = True

    def evaluations(self, steps):
        return 2 * steps

    def first_stage(self, problem: Problem, x: Tensor, grid: Grid, n: int) -> list[Term]:
        h, rate = self.theta * grid.dt(n), problem.schedule.rate_factor(grid.t[n].item())
        return [problem.term(h * rate, problem.evaluate(x, grid.t[n]), x)]

    def second_stage(self, problem: Problem, first: Term, x_star: Tensor, grid: Grid, n: int) -> list[Term]:
        """Terms of the jump from x* (trapezoidal) or from the first stage's state again (RK2); the new evaluation's term is the first."""
        theta, h = self.theta, grid.dt(n)
        t_star = grid.t[n].item() + theta * h
        rate, rate_star = (problem.schedule.rate_factor(t) for t in (grid.t[n].item(), t_star))
        star = problem.evaluate(x_star, t_star)
        if self.trapezoidal:
            a1, h = 1 / (2 * theta * (1 - theta)), (1 - theta) * h
            return [problem.term(a1 * h * rate_star, star, x_star), problem.term((1 - a1) * h * rate, first.evaluation, first.state)]
        return [
            problem.term(h * rate_star / (2 * theta), star, x_star),
            problem.term((1 - 1 / (2 * theta)) * h * rate, first.evaluation, first.state),
        ]

    def clamp(self, h: float) -> Clamp:
        return Clamp(self.eps_0 * h, self.ceiling * h)

    def step(self, problem, state, grid, n, generator):
        x, h = state.x, grid.dt(n)
        (first,) = self.first_stage(problem, x, grid, n)
        x_star = problem.leap([first], x, self.jump, self.clamp(self.theta * h), generator).x
        terms = self.second_stage(problem, first, x_star, grid, n)
        start, rest = (x_star, (1 - self.theta) * h) if self.trapezoidal else (x, h)
        jumps = problem.leap(terms, start, self.jump, self.clamp(rest), generator)
        moved = (jumps.x != x).sum().item() / max(1, int(problem.movable(x).sum()))
        info = StepInfo(n, grid.t[n].item(), grid.t[n + 1].item(), moved, jumps.clamped, jumps.several)
        if self.trapezoidal:
            return State(jumps.x, terms[0].evaluation, x_star), info
        return State(jumps.x, first.evaluation, x), info  # where a mask is left it was masked at x, but perhaps not at x*
