"""Tweedie tau-leaping: the exact kernel of a frozen posterior.

With rho = (kappa_{n+1} - kappa_n) / (1 - kappa_n) = 1 - exp(-dtau), the probability that a coordinate that
has not flipped yet flips in the step, and pi the law of the source:

    tweedie         P(y) = (1 - rho) 1{y = x} + rho p(y)
    tweedie_d3pm    P(y) = (b 1{y = x} + (1 - b) pi(x)) (kappa_s p(y) / Dn(y) + (1 - kappa_s) pi(y) C),
                    s = t_{n+1}, t = t_n, b = kappa_t / kappa_s,
                    Dn(y) = kappa_t 1{y = x} + (1 - kappa_t) pi(x),
                    C = p(x) / (kappa_t + (1 - kappa_t) pi(x)) + (1 - p(x)) / ((1 - kappa_t) pi(x))

The second is the reverse kernel of D3PM and SEDD, a chain with the same marginals that re-noises. It is for
sources with a law over data tokens; from masks the two coincide.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.devices import precise
from tauflow.process import Mixture
from tauflow.samplers.base import Problem, State, StepInfo
from tauflow.samplers.draws import chunks, draw, places_of, uniforms
from tauflow.samplers.grids import Grid
from tauflow.samplers.leaping import GridSampler


@dataclass(frozen=True)
class Tweedie(GridSampler):
    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x = state.x
        visit = problem.visit(x, plan.t[n])
        process = problem.process
        clock, clock_next = plan.tau[n].item(), plan.tau[n + 1].item()
        places = places_of(problem.movable(x))
        chosen = places[uniforms(len(places), generator, x.device) < process.reach(clock, clock_next)]
        result = x.clone().flatten()
        x_1 = draw(visit.evaluation, chosen, process.num_tokens, generator, problem.drawing)
        result[chosen] = process.follow(result[chosen], x_1, clock, clock_next, generator)
        moved = (result.view_as(x) != x).sum().item() / max(1, len(places))
        return State(result.view_as(x), visit), StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), moved)


@dataclass(frozen=True)
class TweedieD3PM(GridSampler):
    def refuses(self, model: Model) -> str:
        return needs_noise(model, "tweedie_d3pm redraws tokens")

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x = state.x
        visit = problem.visit(x, plan.t[n])
        times = plan.t[n].item(), plan.t[n + 1].item()
        places = places_of(problem.movable(x))
        result = x.clone().flatten()
        for index in chunks(places, problem.process.num_tokens):
            law = d3pm_kernel(mixture(problem), visit.evaluation.rows(index), x.flatten()[index], *times)
            result[index] = problem.drawing.tokens(law, index, generator)
        moved = (result.view_as(x) != x).sum().item() / max(1, len(places))
        return State(result.view_as(x), visit), StepInfo(n, *times, moved)


def d3pm_kernel(process: Mixture, rows: Tensor, tokens: Tensor, t: float, t_next: float) -> Tensor:
    """Return the kernel (R, V) of tweedie_d3pm from tokens (R,) at t to t_next, with rows (R, V)."""
    kappa_t, kappa_s = (process.schedule.kappa(each) for each in (t, t_next))
    b = kappa_t / kappa_s
    p = rows.to(precise(rows.device))
    every = torch.arange(process.num_tokens, device=rows.device)
    everywhere = process.source.inverse_law(every)  # 1 / pi(y), (V,)
    own = tokens[:, None]
    v = process.source.inverse_law(own)  # 1 / pi(x), (R, 1)
    p_own = p.gather(1, own)
    c = p_own / (kappa_t + (1 - kappa_t) / v) + (1 - p_own) * v / (1 - kappa_t)
    here = torch.zeros_like(p).scatter_(1, own, 1.0)
    kept = kappa_s * p / (kappa_t * here + (1 - kappa_t) / v)
    return (b * here + (1 - b) / v) * (kept + (1 - kappa_s) / everywhere * c)


def needs_noise(model: Model, why: str) -> str:
    """Return why a model without a noise law over data tokens is refused, or nothing if it has one."""
    if isinstance(model.process, Mixture) and not model.process.absorbing:
        return ""
    return (
        f"{why}: it needs a uniform or marginal source, this model has a {model.process.name} one; try tr_cie"
    )


def mixture(problem: Problem) -> Mixture:
    """Return the process as the mixture that `refuses` has found it to be."""
    assert isinstance(problem.process, Mixture)
    return problem.process
