"""Tweedie tau-leaping: the exact kernel of a frozen posterior.

With rho = (kappa_{n+1} - kappa_n) / (1 - kappa_n) = 1 - exp(-dtau), the probability that a coordinate that has not flipped yet flips in
the step:

    tweedie         P(y) = (1 - rho) 1{y = x} + rho p(y)
    tweedie_d3pm    P(y) = (b 1{y = x} + (1 - b) / V) (kappa_s p(y) / Dn(y) + (1 - kappa_s) / V C), uniform source only,
                    s = t_{n+1}, t = t_n, b = kappa_t / kappa_s, Dn(y) = kappa_t 1{y = x} + (1 - kappa_t) / V,
                    C = p(x) / (kappa_t + (1 - kappa_t) / V) + (1 - p(x)) V / (1 - kappa_t)

The second is the reverse kernel of D3PM and SEDD, a chain with the same marginals that re-noises.
"""

import math
from dataclasses import dataclass

import torch

from tauflow.samplers.base import State, StepInfo
from tauflow.samplers.leap import CHUNK, categorical, draw, precise, uniforms
from tauflow.samplers.leaping import GridSampler
from tauflow.sources import Uniform


@dataclass(frozen=True)
class Tweedie(GridSampler):
    def step(self, problem, state, grid, n, generator):
        x, movable = state.x, problem.movable(state.x)
        now = problem.evaluate(x, grid.t[n])
        rho = -math.expm1(-grid.dtau(n))
        places = movable.flatten().nonzero().squeeze(1)
        chosen = places[uniforms(len(places), generator, x.device) < rho]
        result = x.clone().flatten()
        result[chosen] = draw(now, chosen, problem.source.num_tokens, generator)
        moved = (result.view_as(x) != x).sum().item() / max(1, len(places))
        return State(result.view_as(x), now, x), StepInfo(n, grid.t[n].item(), grid.t[n + 1].item(), moved)


@dataclass(frozen=True)
class TweedieD3PM(GridSampler):
    sources = (Uniform,)

    def step(self, problem, state, grid, n, generator):
        x, movable, v = state.x, problem.movable(state.x), problem.source.num_tokens
        now = problem.evaluate(x, grid.t[n])
        kappa_t, kappa_s = (problem.schedule.kappa(grid.t[i].item()) for i in (n, n + 1))
        b = kappa_t / kappa_s
        places, result = movable.flatten().nonzero().squeeze(1), x.clone().flatten()
        for index in places.split(max(1, CHUNK // v)):
            p, own = now.rows(index).to(precise(x.device)), x.flatten()[index][:, None]
            p_own = p.gather(1, own)
            c = p_own / (kappa_t + (1 - kappa_t) / v) + (1 - p_own) * v / (1 - kappa_t)
            here = torch.zeros_like(p).scatter_(1, own, 1.0)
            law = (b * here + (1 - b) / v) * (kappa_s * p / (kappa_t * here + (1 - kappa_t) / v) + (1 - kappa_s) / v * c)
            result[index] = categorical(law, generator)
        moved = (result.view_as(x) != x).sum().item() / max(1, len(places))
        return State(result.view_as(x), now, x), StepInfo(n, grid.t[n].item(), grid.t[n + 1].item(), moved)
