"""FUDOKI's own sampler: a guess of the data, and a leap of the chain towards it.

In every step each coordinate draws x_1 from its posterior. With u(s; x, x_1) the rate of its jumps on the
path to that x_1, per unit of t, and L = h sum_s u(s), it moves with the probability 1 - exp(-L), to s in
proportion to u(s). The grid is t_n = n / N, and the last of N evaluations draws x_1. Where the rate is
infinite at t = 0 a metric process says 0, as FUDOKI does, so the first evaluation then moves nothing.

As in leap.py a coordinate is a candidate with the probability 1 - exp(-A) first, A = h lam(t) mass(t) >= L,
and only rows of candidates are read.
"""

import math
from dataclasses import dataclass

import torch

from tauflow.samplers.base import Problem, State, StepInfo
from tauflow.samplers.draws import chunks, places_of, uniforms
from tauflow.samplers.grids import Grid
from tauflow.samplers.leaping import GridSampler


@dataclass(frozen=True)
class Fudoki(GridSampler):
    @property
    def uses_rate(self) -> bool:
        return True

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x, process, t = state.x, problem.process, plan.t[n].item()
        visit = problem.visit(x, t)
        scale = plan.dt(n) * process.rate_factor(t)
        candidate = -math.expm1(-scale * process.mass(t))
        places = places_of(problem.movable(x))
        count = len(places)
        places = places[uniforms(count, generator, x.device) < candidate]
        result = x.clone().flatten()
        for index in chunks(places, process.num_tokens):
            x_1 = problem.drawing.tokens(visit.evaluation.rows(index), index, generator)
            rates = process.toward(x_1, result[index], t) * scale
            chance = -torch.expm1(-rates.sum(-1))
            moves = (uniforms(len(index), generator, x.device) * candidate < chance).nonzero().squeeze(1)
            moving = index.index_select(0, moves)
            result[moving] = problem.drawing.tokens(rates.index_select(0, moves), moving, generator)
        moved = (result.view_as(x) != x).sum().item() / max(1, count)
        return State(result.view_as(x), visit), StepInfo(n, t, plan.t[n + 1].item(), moved)
