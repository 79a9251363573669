"""First-hitting samplers (Zheng et al. 2025), masked source only: the times at which tokens are revealed are drawn exactly.

With n coordinates still masked and a = 1 - kappa, the next one is revealed at a <- u^(1/n) a, u uniform. N evaluations of a sequence with
F free coordinates reveal floor((i + 1) F / N) - floor(i F / N) coordinates each, uniformly chosen, all from the evaluation at the time of
the last one revealed before (`fhs`; exact at N = F). `ho_fhs` draws each token from the clamped extrapolation mu_i + (t - t_i) / (t_i -
t_{i-1}) (mu_i - mu_{i-1}) to its own hitting time t.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tauflow.samplers.base import Sampler, State, StepInfo
from tauflow.samplers.grids import Grid
from tauflow.samplers.leap import CHUNK, categorical, uniforms
from tauflow.sources import Masked


class Memory(NamedTuple):
    """Drawn before the first evaluation: nothing of it depends on tokens."""

    order: Tensor  # (B, D): when each coordinate is revealed, 0 .. F - 1; F or more if it is not free
    free: Tensor  # (B,) number of free coordinates F
    times: Tensor  # (B, D + 1) float64: t of the evaluation before the k-th reveal; times[:, 0] = 0
    t_before: Tensor | None  # (B,) time of the evaluation before this one


@dataclass(frozen=True)
class FirstHitting(Sampler):
    sources = (Masked,)

    high_order: bool = False

    def plan(self, nfe, schedule, free):
        steps = min(nfe, free)
        t = torch.zeros(steps + 1, dtype=torch.float64)  # every sequence has its own times, drawn in the first step
        return Grid(t, t), steps

    def step(self, problem, state, grid, n, generator):
        x, steps = state.x, grid.steps
        memory = state.memory or self._draw_order(problem, x, generator)
        first, last = (memory.free * n // steps, memory.free * (n + 1) // steps)  # (B,) reveals first .. last - 1
        t = memory.times.gather(1, first[:, None]).squeeze(1)  # (B,)
        now = problem.evaluate(x, t)
        revealed = (memory.order >= first[:, None]) & (memory.order < last[:, None])
        places = revealed.flatten().nonzero().squeeze(1).to(x.device)
        result = x.clone().flatten()
        clamped = channels = 0
        for index in places.split(max(1, CHUNK // problem.source.num_tokens)):
            rows = now.rows(index)
            if self.high_order and memory.t_before is not None:
                sequence = index.cpu() // x.shape[1]
                own_time = memory.times[sequence, memory.order.flatten()[index.cpu()] + 1]
                gap = t[sequence] - memory.t_before[sequence]  # 0 for a sequence that revealed nothing in the step before: no history
                weight = torch.where(gap > 0, (own_time - t[sequence]) / gap, 0.0)
                rows = rows + weight.to(rows)[:, None] * (rows - state.evaluation.rows(index))
                clamped, channels = clamped + (rows < 0).sum().item(), channels + rows.numel()
                rows = rows.clamp(min=0)
            result[index] = categorical(rows, generator)
        t_next = memory.times.gather(1, last[:, None]).mean().item()
        moved = len(places) / max(1, int(problem.movable(x).sum()))
        info = StepInfo(n, t.mean().item(), t_next, moved, clamped / max(1, channels))
        return State(result.view_as(x), now, x, memory._replace(t_before=t)), info

    def _draw_order(self, problem, x: Tensor, generator: torch.Generator) -> Memory:
        movable = problem.movable(x).cpu()
        batch, length = x.shape
        keys = uniforms(batch * length, generator, torch.device("cpu")).view(batch, length)
        order = (keys + 2 * ~movable).argsort(1).argsort(1)  # free coordinates first, in random order
        free = movable.sum(1)
        remaining = (free[:, None] - torch.arange(length)).clamp(min=1)  # (B, D): masked coordinates before the k-th reveal
        logs = uniforms(batch * length, generator, torch.device("cpu")).view(batch, length).clamp(min=1e-300).log()
        survival = torch.cat([torch.zeros(batch, 1), logs.double() / remaining], dim=1).cumsum(1).exp()  # a after k reveals
        return Memory(order, free, problem.schedule.t_from_kappa(1 - survival), None)
