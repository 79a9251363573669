"""A sampler of one's own, with an option: reveals masked coordinates from left to right."""

from dataclasses import dataclass

from tauflow import Sampler, option
from tauflow.samplers import State, StepInfo
from tauflow.samplers.grids import Grid, make_grid
from tauflow.samplers.random import draw, places_of


@dataclass(frozen=True)
class LeftToRight(Sampler[Grid, State]):
    stride: int = option(1, "coordinates between two that are revealed together")

    def refuses(self, model):
        return "" if model.process.absorbing else "left to right needs masks"

    def plan(self, process, free, nfe):
        return make_grid("t", nfe - 1, process, cutoff=1e-3, draws=True)

    def init(self, problem, x_0, plan, generator):
        return State(x_0)

    @property
    def finishing(self):
        return "draw"

    def step(self, problem, state, plan, n, generator):
        visit = problem.visit(state.x, plan.t[n])
        movable = problem.movable(state.x)
        first = movable & (movable.cumsum(1) % self.stride == 0) & (movable.cumsum(1) <= 2 * self.stride)
        places = places_of(first)
        x = state.x.clone().flatten()
        x[places] = draw(visit.evaluation, places, problem.process.num_tokens, generator)
        info = StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), len(places) / max(1, int(movable.sum())))
        return State(x.view_as(state.x), visit), info
