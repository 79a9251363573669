"""A custom sampler with an option: reveals masked coordinates from left to right."""

from dataclasses import dataclass

from tauflow import Sampler, option
from tauflow.samplers import State, StepInfo
from tauflow.samplers.grids import Grid, make_grid
from tauflow.samplers.random import index_of


@dataclass(frozen=True)
class LeftToRight(Sampler[Grid, State]):
    stride: int = option(1, "coordinates between two that are revealed together")

    finishing = "draw"

    def unsupported_reason(self, model):
        return "" if model.process.absorbing else "left to right needs masks"

    def plan(self, process, free, nfe):
        return make_grid("t", nfe - 1, process, cutoff=1e-3, draws=True)

    def init(self, problem, x_0, plan, generator):
        return State(x_0)

    def step(self, problem, state, plan, n, generator):
        posterior = problem.evaluate(state.x, plan.t[n])
        movable = problem.movable(state.x)
        first = movable & (movable.cumsum(1) % self.stride == 0) & (movable.cumsum(1) <= 2 * self.stride)
        index = index_of(first)
        x = state.x.clone()
        x.view(-1)[index] = problem.draw_from(posterior, index, generator)
        info = StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), len(index) / max(1, int(movable.sum())))
        return State(x, posterior), info
