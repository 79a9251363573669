"""theta-RK2 and theta-trapezoidal (Ren et al. 2025): two evaluations per step, in physical time.

    stage 1            x* from x_n with theta h u_n(s; x_n), at t* = t_n + theta h
    theta_rk2          from x_n over h:           h [(1 - 1/(2 theta)) u_n(s; x_n) + u_*(s; x*) / (2 theta)]_+
    theta_trapezoidal  from x* over (1 - theta) h:  (1 - theta) h [a1 u_*(s; x*) - a2 u_n(s; x_n)]_+

with a1 = 1/(2 theta (1 - theta)), a2 = a1 - 1 and the rate u_t(s; x) = lam(t) p(s | x) for s != x, none from
a coordinate that may not move.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.samplers.grids import Grid
from tauflow.samplers.leaping import LeapingOptions, Term, leap
from tauflow.samplers.random import DRAWN
from tauflow.samplers.sampler import Problem, State, StepInfo, check, fixed, option


@dataclass(frozen=True)
class Theta(LeapingOptions):
    trapezoidal: bool = fixed(False)
    theta: float = option(0.5, "where in the step the second stage is", above=0, high=1)

    uses_rate = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.theta < 1 or not self.trapezoidal,
            f"theta must be in (0, 1) for theta_trapezoidal, got {self.theta}; try 0.5",
        )

    def evaluations(self, steps: int) -> int:
        return 2 * steps

    def first_stage(self, problem: Problem, x: Tensor, grid: Grid, n: int) -> Term:
        h = self.theta * grid.dt(n)
        return Term(h * problem.process.rate_factor(grid.t[n].item()), problem.evaluate(x, grid.t[n]))

    def second_stage(self, problem: Problem, first: Term, x_star: Tensor, grid: Grid, n: int) -> list[Term]:
        """Return terms of a jump from x* (trapezoidal) or from x_n (RK2); the new evaluation is the first."""
        theta, h = self.theta, grid.dt(n)
        t_star = grid.t[n].item() + theta * h
        rate = problem.process.rate_factor(grid.t[n].item())
        rate_star = problem.process.rate_factor(t_star)
        star = problem.evaluate(x_star, t_star)
        if self.trapezoidal:
            a1 = 1 / (2 * theta * (1 - theta))
            h = (1 - theta) * h
            return [Term(a1 * h * rate_star, star), Term((1 - a1) * h * rate, first.posterior)]
        history = Term((1 - 1 / (2 * theta)) * h * rate, first.posterior)
        return [Term(h * rate_star / (2 * theta), star), history]

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x, h, process = state.x, plan.dt(n), problem.process
        movable = problem.movable(x)
        first = self.first_stage(problem, x, plan, n)
        drawing = problem.drawing if self.trapezoidal else DRAWN  # RK2 throws the tokens of x* away
        rule = self.rule_for(self.theta * h)
        x_star = leap(process, [first], x, movable, rule, generator, drawing=drawing).x
        first = Term(first.coefficient, first.posterior.clone())
        terms = self.second_stage(problem, first, x_star, plan, n)
        start, rest = (x_star, (1 - self.theta) * h) if self.trapezoidal else (x, h)
        rule, drawing = self.rule_for(rest), problem.drawing
        jumps = leap(process, terms, start, problem.movable(start), rule, generator, drawing=drawing)
        moved = (jumps.x != x).sum().item() / max(1, int(movable.sum()))
        info = jumps.info(n, plan, moved)
        # RK2 keeps the first posterior: where a mask is left it was masked at x, but perhaps not at x*
        return State(jumps.x, terms[0].posterior if self.trapezoidal else first.posterior), info
