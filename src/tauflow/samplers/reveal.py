"""Reveal samplers, masked source only: an order of the coordinates x how many an evaluation reveals x extrapolation of their rows.

A sequence with F free coordinates is revealed in N evaluations; evaluation n draws the next k_n coordinates of the order from its rows.

    order     random    uniformly chosen, at first-hitting times (Zheng et al. 2025): with j coordinates still masked and a = 1 - kappa, the
                        next one is revealed at a <- u^(1/j) a, u uniform
              spaced    neighbours far apart (spacing.py), shifted round by a random offset a sequence
              even      anew in every step: every (M / k_n)-th of the M coordinates that are still masked, from a random offset on
              learned   the ranks that came with the model (tauflow.learn_order)
    counts    equal     k_n = floor((n + 1) F / N) - floor(n F / N)
              power     increments of round(F (n / N)^power), at least 1 each: few tokens first, when little is known
              entropy   as many as fit into the budget b = rho_n sum_d H_d, H_d the entropy of row d and rho_n the share of the masked
                        coordinates that `power` would reveal: first the surest, up to b / 10, then along the order; at least 1
    extrapolation of a row p_n with that of the evaluation before, clamped at 0
              pairs     p_n + w_n (p_n - p_{n-1}), w_n = (k_{n-1} - 1) / (2 k_n), in the last step plus (k_n - 1) / (2 k_{n-1}), at most
                        `weight`: k (k - 1) / 2 pairs of tokens were drawn together as if independent, which the k_{n-1} k_n pairs of the
                        next step make up for; `weight` = 0 is none
              hitting   p_n + (t - t_n) / (t_n - t_{n-1}) (p_n - p_{n-1}), t the hitting time of the token

Without drawn hitting times t is their mean, kappa = k / (F + 1) after k reveals. Order and counts, except `entropy`, never look at tokens
or rows. With k_n = 1 throughout (N = F) each token is drawn from its posterior given all that are revealed: exact, whatever the order, with
`pairs` of any weight and with `entropy` too, since what is revealed next then follows from what is revealed already.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tauflow.denoisers import Evaluation
from tauflow.errors import SamplingError
from tauflow.samplers.base import Problem, Sampler, State, StepInfo, refuse_unknown
from tauflow.samplers.grids import Grid
from tauflow.samplers.leap import CHUNK, categorical, uniforms
from tauflow.samplers.spacing import shifted, spaced_ranks
from tauflow.sources import Masked

OrderName = Literal["random", "spaced", "even", "learned"]
CountName = Literal["equal", "power", "entropy"]
ExtrapolationName = Literal["pairs", "hitting"]
SURE = 0.1  # share of an entropy budget for the surest coordinates


class Memory(NamedTuple):
    """Order, free and times are drawn before the first evaluation: nothing of them depends on tokens."""

    order: Tensor  # (B, D): when each coordinate is revealed, 0 .. F - 1; F or more if it is not free
    free: Tensor  # (B,) number of free coordinates F
    times: Tensor  # (B, D + 1) float64: t of the evaluation before the k-th reveal; times[:, 0] = 0
    done: Tensor  # (B,) reveals so far
    count_before: Tensor  # (B,) reveals of the step before
    t_before: Tensor | None = None  # (B,) time of the evaluation before this one
    offsets: Tensor | None = None  # (B, N) in [0, 1): where each step of the order `even` begins


@dataclass(frozen=True)
class Reveal(Sampler):
    sources = (Masked,)

    order: OrderName = "random"
    counts: CountName = "equal"
    power: float | None = None  # of the counts `power` and `entropy`; None is 2
    extrapolation: ExtrapolationName = "pairs"
    weight: float = 0.0

    def __post_init__(self):
        refuse_unknown("order", self.order, OrderName)
        refuse_unknown("counts", self.counts, CountName)
        refuse_unknown("extrapolation", self.extrapolation, ExtrapolationName)
        if self.power is not None and self.counts == "equal":
            raise SamplingError("power belongs to counts='power' or 'entropy'; equal counts have none: name counts too, or leave it out")
        if not 0 < self.exponent < math.inf:
            raise SamplingError(f"power must be a number above 0, got {self.power}; 1 reveals equal counts, 2 is a good start")
        if not 0 <= self.weight <= 1:
            raise SamplingError(f"weight must be in [0, 1], got {self.weight}; 0 is no extrapolation, 0.15 a little")
        if self.order == "even" and self.counts == "entropy":
            raise SamplingError("counts='entropy' goes along an order that is fixed before; use it with order='spaced' or 'random'")
        if self.weight and self.extrapolation == "hitting":
            raise SamplingError("weight belongs to extrapolation='pairs'; hitting times have weights of their own: leave weight out")

    @property
    def exponent(self) -> float:
        return 2.0 if self.power is None else self.power

    @property
    def needs_ranks(self):
        return self.order == "learned"

    def plan(self, nfe, schedule, free):
        steps = min(nfe, free)
        t = torch.zeros(steps + 1, dtype=torch.float64)  # every sequence has its own times, drawn in the first step
        return Grid(t, t), steps

    def step(self, problem, state, grid, n, generator):
        x, memory = state.x, state.memory or self._begin(problem, state.x, grid.steps, generator)
        t = memory.times.gather(1, memory.done[:, None]).squeeze(1)  # (B,)
        now = problem.evaluate(x, t)
        turn, count = self._turns(problem, memory, now, x, n, grid.steps)
        places = ((turn >= 0) & (turn < count[:, None])).flatten().nonzero().squeeze(1)
        result = x.clone().flatten()
        clamped = channels = 0
        for index in places.split(max(1, CHUNK // problem.source.num_tokens)):
            weight = self._weights(memory, t, turn, count, index)  # (R,)
            index = index.to(x.device)
            rows = now.rows(index)
            if weight is not None:
                rows = rows + weight.to(rows)[:, None] * (rows - state.evaluation.rows(index))
                clamped, channels = clamped + (rows < 0).sum().item(), channels + rows.numel()
                rows = rows.clamp(min=0)
            result[index] = categorical(rows, generator)
        done = memory.done + count
        t_next = memory.times.gather(1, done[:, None]).mean().item()
        moved = len(places) / max(1, int(problem.movable(x).sum()))
        info = StepInfo(n, t.mean().item(), t_next, moved, clamped / max(1, channels))
        return State(result.view_as(x), now, x, memory._replace(done=done, count_before=count, t_before=t)), info

    def revealed(self, free: Tensor, n: int, steps: int) -> Tensor:
        """How many of the free (B,) coordinates are revealed after n of so many steps."""
        equal = free * n // steps
        if self.counts == "equal":
            return equal
        wanted = (free.double() * (n / steps) ** self.exponent + 0.5).floor().long()
        return torch.where(free < steps, equal, torch.minimum(wanted.clamp(min=n), free - (steps - n)))

    def _turns(self, problem: Problem, memory: Memory, now: Evaluation, x: Tensor, n: int, steps: int) -> tuple[Tensor, Tensor]:
        """When in this step each coordinate is revealed (B, D), and how many are (B,): turns 0 .. count - 1 are."""
        movable, length = problem.movable(x).cpu(), x.shape[1]
        if self.counts != "entropy":
            count = self.revealed(memory.free, n + 1, steps) - memory.done
            if self.order != "even":
                return memory.order - memory.done[:, None], count
            number, left = movable.cumsum(1).double(), (memory.free - memory.done).clamp(min=1)[:, None]
            after, before = ((memory.offsets[:, n, None] + part * count[:, None] / left).floor() for part in (number, number - 1))
            picked = movable & (after > before)
            return (picked.cumsum(1) - 1).masked_fill(~picked, length), count
        entropy = _entropies(now, movable, problem.source.num_tokens, x.device)  # (B, D), infinite where nothing is to be revealed
        survival = [1 - (i / steps) ** self.exponent for i in (n, n + 1)]
        budget = (1 - survival[1] / survival[0]) * entropy.masked_fill(~movable, 0).sum(1, keepdim=True)
        low, by_entropy = entropy.sort(1)
        sure = torch.zeros_like(movable).scatter_(1, by_entropy, low.cumsum(1) <= SURE * budget)
        turn = torch.where(sure, by_entropy.argsort(1), length + memory.order).masked_fill(~movable, 3 * length).argsort(1).argsort(1)
        within = (entropy.gather(1, turn.argsort(1)).cumsum(1) <= budget).sum(1)
        left = memory.free - memory.done
        most = (left - (steps - 1 - n)).clamp(min=1)  # so that every later evaluation has something to reveal
        count = within.clamp(min=1) if n < steps - 1 else left
        return turn, torch.minimum(torch.minimum(count, most), left)

    def _weights(self, memory: Memory, t: Tensor, turn: Tensor, count: Tensor, index: Tensor) -> Tensor | None:
        """The extrapolation weights (R,) of the coordinates index (R,), or None if there is nothing to extrapolate."""
        if memory.t_before is None or (self.extrapolation == "pairs" and not self.weight):
            return None
        sequence = index // turn.shape[1]
        if self.extrapolation == "hitting":
            own_time = memory.times[sequence, memory.done[sequence] + turn.flatten()[index] + 1]
            gap = (t - memory.t_before)[sequence]  # 0 for a sequence that revealed nothing in the step before: no history
            return torch.where(gap > 0, (own_time - t[sequence]) / gap, 0.0)
        before = memory.count_before
        weight = (before - 1) / (2 * count.clamp(min=1))
        ends = memory.done + count == memory.free
        weight = weight + torch.where(ends, (count - 1) / (2 * before.clamp(min=1)), 0.0)
        return torch.where(before > 0, weight, 0.0).clamp(0, self.weight).double()[sequence]

    def _begin(self, problem: Problem, x: Tensor, steps: int, generator: torch.Generator) -> Memory:
        movable = problem.movable(x).cpu()
        batch, length = x.shape
        cpu = torch.device("cpu")
        if self.order == "random":
            keys = uniforms(batch * length, generator, cpu).view(batch, length)
        elif self.order == "spaced":
            geometry = problem.geometry or (length,)
            shift = uniforms(batch * len(geometry), generator, cpu).view(batch, -1)
            keys = shifted(spaced_ranks(geometry), geometry, (shift * torch.tensor(geometry)).long())
        elif self.order == "even":
            if sum(size > 1 for size in problem.geometry or ()) > 1:
                raise SamplingError("order='even' is for sequences: on a grid it would reveal whole columns; use order='spaced'")
            keys = torch.arange(length).expand(batch, length)
        elif problem.ranks is None:
            raise SamplingError(
                "there is no learned order: make one with tauflow.learn_order(denoiser, source, schedule, length) and give it as ranks=, "
                "or keep it beside the checkpoint with tauflow.orders.save; or use sampler='spaced'"
            )
        else:
            keys = problem.ranks.expand(batch, length)
        order = (keys + length * ~movable).argsort(1).argsort(1)  # free coordinates first
        free = movable.sum(1)
        if self.order == "random":
            remaining = (free[:, None] - torch.arange(length)).clamp(min=1)  # (B, D): masked coordinates before the k-th reveal
            logs = uniforms(batch * length, generator, cpu).view(batch, length).clamp(min=1e-300).log()
            survival = torch.cat([torch.zeros(batch, 1), logs.double() / remaining], dim=1).cumsum(1).exp()  # a after k reveals
            kappa = 1 - survival
        else:
            kappa = (torch.arange(length + 1, dtype=torch.float64) / (free[:, None] + 1)).clamp(max=1)
        none = torch.zeros_like(free)
        offsets = uniforms(batch * steps, generator, cpu).view(batch, steps) if self.order == "even" else None
        return Memory(order, free, problem.schedule.t_from_kappa(kappa), done=none, count_before=none, offsets=offsets)


def _entropies(now: Evaluation, movable: Tensor, num_tokens: int, device: torch.device) -> Tensor:
    """Entropies (B, D) of the rows that may still be drawn, in nats; infinite elsewhere."""
    entropy = torch.full(movable.shape, torch.inf, dtype=torch.float64).flatten()
    for index in movable.flatten().nonzero().squeeze(1).split(max(1, CHUNK // num_tokens)):
        entropy[index] = torch.special.entr(now.rows(index.to(device))).sum(-1).cpu().double()
    return entropy.view(movable.shape)
