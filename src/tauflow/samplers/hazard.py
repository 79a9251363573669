"""Hazard: stratified hazard sampling (Jang et al. 2026), a baseline. Jumps come when hazard has added up.

With q the kernel of `tweedie_d3pm` (from masks `tweedie`), a coordinate adds up its probabilities of leaving,
S <- S + 1 - q(x), and jumps when S passes theta + k, k = 0, 1, ...; theta is uniform, and drawn once. Where
to is drawn from q without the own token. So the number of jumps varies by less than one about its mean.

From noise it does not keep the law, however many evaluations there are, even at D = 1. Whether a coordinate
jumps depends on when it last did, not only on the state, so a token that has waited is more often noise than
the denoiser takes it for. Systematic coins (draws.py::toss) stratify over coordinates, with new numbers in
every step, and keep each coordinate's law. From masks it is a reveal in random order that is done before the
path ends.
"""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.devices import precise
from tauflow.process import Mixture
from tauflow.samplers.base import Problem, State, StepInfo, Visit
from tauflow.samplers.draws import chunks, places_of, uniforms
from tauflow.samplers.grids import Grid
from tauflow.samplers.leaping import GridSampler
from tauflow.samplers.tweedie import d3pm_kernel, mixture


@dataclass(frozen=True)
class HazardState(State):
    _: KW_ONLY
    left: Tensor  # (B, D): hazard until the next jump


@dataclass(frozen=True)
class Hazard(GridSampler):
    def refuses(self, model: Model) -> str:
        if isinstance(model.process, Mixture):
            return ""
        return f"shs is made for a mixture, this model has a {model.process.name} path; try tr_cie(grid=tau)"

    def init(self, problem: Problem, x_0: Tensor, plan: Grid, generator: torch.Generator) -> HazardState:
        return HazardState(x_0, left=uniforms(x_0.numel(), generator, x_0.device).view_as(x_0))

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        assert isinstance(state, HazardState)
        x, left = state.x, state.left.clone().flatten()
        visit = problem.visit(x, plan.t[n])
        places, result = places_of(problem.movable(x)), x.clone().flatten()
        for index in chunks(places, problem.process.num_tokens):
            targets, leaving = self.leaving(problem, visit, plan, n, index)
            left[index] -= leaving
            jumps = ((left[index] <= 0) & (leaving > 0)).nonzero().squeeze(1)
            moving = index[jumps]
            result[moving] = problem.drawing.tokens(targets[jumps], moving, generator)
            left[moving] += 1
        moved = (result.view_as(x) != x).sum().item() / max(1, len(places))
        info = StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), moved)
        return HazardState(result.view_as(x), visit, left=left.view_as(x)), info

    def leaving(
        self, problem: Problem, visit: Visit, plan: Grid, n: int, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return where the coordinates index (R,) go if they leave (R, V), and the probability of it (R,)."""
        rows, process = visit.evaluation.rows(index), problem.process
        if process.absorbing:
            reach = process.reach(plan.tau[n].item(), plan.tau[n + 1].item())
            return rows, rows.new_full((len(rows),), reach, dtype=precise(rows.device))
        own = visit.x.flatten()[index]
        kernel = d3pm_kernel(mixture(problem), rows, own, plan.t[n].item(), plan.t[n + 1].item())
        kernel = kernel / kernel.sum(-1, keepdim=True)
        targets = kernel.scatter(1, own[:, None], 0)
        return targets, targets.sum(-1)
