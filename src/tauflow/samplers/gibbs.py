"""Gibbs: predictor steps, and sweeps that redraw tokens at the noise they have, for sources of noise.

A predictor step is that of `bridge` without history, P(y) = (1 - rho) 1{y = x} + rho p(y) on the early grid.
Then x is at kappa = kappa_{n+1}, and `sweeps` of one evaluation each redraw coordinates from their law given
all others,

    P(y) = kappa l(y) + (1 - kappa) pi(y),    l the leave-one-out row (denoise/leave_one_out.py), pi the noise

Redrawing one coordinate leaves the law at kappa as it is (Gourevitch et al. 2026), if the choice of the
coordinate does not look at the state. Several at once do so as far as they do not depend on each other.

    choice    blind     by coins, each with the probability `share`; systematic coins lie evenly apart
              margin    `gibbs_margin`, a baseline: so many by a race with the weights exp(-margin),
                        margin = ln P(x) - max_{y != x} ln P(y). It looks at the state, and sharpens

With C sweeps, N evaluations are N - C ((N - 1) // (1 + C)) predictor steps, the last of which draws all
tokens; sweeps follow the last ones before it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.denoise.processors import leave_one_out
from tauflow.numerics import precise
from tauflow.process import Process
from tauflow.samplers.bridge import Bridge
from tauflow.samplers.grids import Grid
from tauflow.samplers.random import CoinName, chunks, places_of, toss, uniforms
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, Visit, fixed, option, require
from tauflow.samplers.tweedie import mixture, needs_noise


@dataclass(frozen=True)
class GibbsPlan:
    """The predictor's grid, and after how many of its steps no sweep follows yet."""

    grid: Grid
    plain: int

    @property
    def steps(self) -> int:
        return self.grid.steps

    @property
    def end(self) -> float:
        return self.grid.end

    def sweeps(self, n: int) -> bool:
        """Return whether sweeps follow step n."""
        return self.plain <= n < self.steps - 1


@dataclass(frozen=True)
class Gibbs(Sampler[GibbsPlan, State]):
    choice: Literal["blind", "margin"] = fixed("blind")
    share: float = option(0.0625, "share of the coordinates that a sweep redraws")
    sweeps: int = option(1, "corrector evaluations after a predictor step")
    coins: CoinName = option("independent", "whether neighbours may move together as often as others")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.share <= 1,
            f"share must be above 0 and at most 1, got {self.share}; try 0.05",
        )
        require(self.sweeps >= 1, f"sweeps must be at least 1, got {self.sweeps}; bridge(gain=0) is none")

    @property
    def sharpens(self) -> bool:
        return self.choice == "margin"

    @property
    def predictor(self) -> Bridge:
        return Bridge(self.coins, gain=0.0)

    def refuses(self, model: Model) -> str:
        return needs_noise(model, "Gibbs sweeps redraw tokens from noise and rows")

    @property
    def keeps(self) -> bool:
        return True

    def plan(self, process: Process, free: int, nfe: int) -> GibbsPlan:
        rounds = (nfe - 1) // (1 + self.sweeps)
        steps = nfe - self.sweeps * rounds
        return GibbsPlan(self.predictor.plan(process, free, steps), steps - 1 - rounds)

    def init(self, problem: Problem, x_0: Tensor, plan: GibbsPlan, generator: torch.Generator) -> State:
        return State(x_0)

    def step(
        self, problem: Problem, state: State, plan: GibbsPlan, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        state, info = self.predictor.step(problem, state, plan.grid, n, generator)
        if plan.sweeps(n):
            for _ in range(self.sweeps):
                state = self.sweep(problem, state.x, plan.grid.t[n + 1].item(), generator)
        return state, info

    def sweep(self, problem: Problem, x: Tensor, t: float, generator: torch.Generator) -> State:
        """Draw coordinates of x (B, D), which is at t, anew."""
        visit = problem.visit(x, t)
        free = problem.movable(x)
        if self.choice == "margin":
            chosen = self.doubtful(problem, visit, free, generator)
        else:
            chosen = toss(free, self.share, self.coins, generator, problem.walk)
        result = x.clone().flatten()
        for index in chunks(chosen, problem.process.num_tokens):
            law = conditional(problem, visit, index)
            result[index] = problem.drawing.tokens(law, index, generator)
        return State(result.view_as(x), visit)

    def doubtful(self, problem: Problem, visit: Visit, free: Tensor, generator: torch.Generator) -> Tensor:
        """Return places (R,) of a share of the free (B, D) coordinates, of small margin rather than large."""
        margin = torch.full(free.shape, torch.inf, dtype=precise(free.device), device=free.device).flatten()
        for index in chunks(places_of(free), problem.process.num_tokens):
            law = conditional(problem, visit, index).log()
            own = visit.x.flatten()[index][:, None]
            margin[index] = law.gather(1, own).squeeze(1) - law.scatter(1, own, -torch.inf).amax(1)
        noise = uniforms(free.numel(), generator, free.device)
        keys = (-margin - (-noise.log()).log()).view(free.shape)  # a Gumbel race
        rank = keys.argsort(1, descending=True).argsort(1)
        count = (free.sum(1, keepdim=True) * self.share).round().clamp(min=1)
        return places_of((rank < count) & free)


def conditional(problem: Problem, visit: Visit, index: Tensor) -> Tensor:
    """Return the law (R, V) of the coordinates index (R,) at the time of a visit, given all others."""
    process = mixture(problem)
    tokens = visit.x.flatten()[index]
    rows = visit.evaluation.rows(index).to(precise(index.device))
    rows = leave_one_out(rows, tokens, process.own_odds(tokens[:, None], visit.t))
    kappa = process.schedule.kappa(visit.t)
    law = process.source.law.to(rows)
    return rows.mul_(kappa).add_((1 - kappa) * law)
