"""Gibbs: predictor steps, and sweeps that redraw tokens at the noise they have, for sources of noise.

A predictor step is that of `bridge` without history, P(y) = (1 - rho) 1{y = x} + rho p(y) on the early grid.
Then x is at kappa = kappa_{n+1}, and `sweeps` of one evaluation each redraw coordinates from their
distribution given all others,

    P(y) = kappa l(y) + (1 - kappa) pi(y),    l the leave-one-out row (denoise/processors.py), pi the noise

Redrawing one coordinate leaves the distribution at kappa as it is (Gourevitch et al. 2026), if the choice of
the coordinate doesn't look at the state. Several together do so as far as they don't depend on each other.

    choice    blind     by coins, each with the probability `share`; systematic coins are evenly apart
              margin    a baseline: so many by a race with the weights exp(-margin),
                        margin = ln P(x) - max_{y != x} ln P(y). It looks at the state, and sharpens

With C sweeps, N evaluations are N - C ((N - 1) // (1 + C)) predictor steps, the last of which draws all
tokens; sweeps follow the last ones before it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import Model, Posterior
from tauflow.denoise.processors import leave_one_out
from tauflow.numerics import precise
from tauflow.process import Process
from tauflow.samplers.bridge import Bridge
from tauflow.samplers.grids import Grid
from tauflow.samplers.random import CoinName, chunks, index_of, sample_coins, uniforms
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, option
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
    choice: Literal["blind", "margin"] = option("blind", "how a sweep chooses what it redraws")
    share: float = option(0.0625, "share of the coordinates that a sweep redraws", above=0, high=1)
    sweeps: int = option(1, "corrector evaluations after a predictor step", low=1)
    coins: CoinName = option("independent", "whether neighbors may move together as often as others")

    clones_history = True

    @property
    def sharpens(self) -> bool:  # type: ignore[override]
        return self.choice == "margin"

    @property
    def predictor(self) -> Bridge:
        return Bridge(self.coins, gain=0.0)

    def unsupported_reason(self, model: Model) -> str:
        return needs_noise(model, "Gibbs sweeps redraw tokens from noise and rows")

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
        """Redraw coordinates of x (B, D), which is at t."""
        posterior = problem.evaluate(x, t)
        movable = problem.movable(x)
        if self.choice == "margin":
            chosen = self.choose_by_margin(problem, posterior, movable, generator)
        else:
            chosen = sample_coins(movable, self.share, generator, self.coins, problem.curve)
        x_next = x.clone()
        for index in chunks(chosen, problem.process.num_tokens):
            x_next.view(-1)[index] = problem.draw(conditional(problem, posterior, index), index, generator)
        return State(x_next, posterior)

    def choose_by_margin(
        self, problem: Problem, posterior: Posterior, movable: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Choose a share of the movable (B, D) coordinates, small margins first; return their index (R,)."""
        margin = torch.full((movable.numel(),), torch.inf, dtype=precise(movable.device))
        margin = margin.to(movable.device)
        for index in chunks(index_of(movable), problem.process.num_tokens):
            logs = conditional(problem, posterior, index).log()
            own = posterior.x.flatten()[index][:, None]
            margin[index] = logs.gather(1, own).squeeze(1) - logs.scatter(1, own, -torch.inf).amax(1)
        noise = uniforms(movable.numel(), generator, movable.device)
        keys = (-margin - (-noise.log()).log()).view(movable.shape)  # a Gumbel race
        rank = keys.argsort(1, descending=True).argsort(1)
        count = (movable.sum(1, keepdim=True) * self.share).round().clamp(min=1)
        return index_of((rank < count) & movable)


def conditional(problem: Problem, posterior: Posterior, index: Tensor) -> Tensor:
    """Return the distribution (R, V) of coordinates index (R,) at the posterior's time, given the others."""
    process = mixture(problem)
    assert posterior.t is not None
    tokens = posterior.x.flatten()[index]
    probs = posterior.probs(index).to(precise(index.device))
    probs = leave_one_out(probs, tokens, process.own_odds(tokens[:, None], posterior.t))
    kappa = process.schedule.kappa(posterior.t)
    return probs.mul_(kappa).add_((1 - kappa) * process.source.distribution.to(probs))
