"""Confident samplers, for masks only: what is revealed next is what the network is surest of.

Of M coordinates that are still masked, evaluation n of at most N draws the k_n best from its rows p_n; k_n is
never less than their share ceil(M / (N - n)), so that the budget is kept.

    order     confidence   p(x), x drawn from the row (LLaDA low_confidence, Dream maskgit_plus, MaskGIT)
              margin       p_1 - p_2 of the two likeliest tokens (Kim et al. 2025, Dream topk_margin)
              entropy      -H of the row (Dream entropy)
    counts    equal        k_n is the share
              threshold    all with a score of at least `level` (Fast-dLLM)
              factor       the largest k with (k + 1) (1 - score of the k-th best) <= `level` (Fast-dLLM)
              bound        the largest k whose entropies have sum - max <= `level`, which bounds the mutual
                           information that the step ignores (EB-sampler, Ben-Hamu et al. 2025)
              stable       all with a score above `level` whose row moved by less than `drift`, KL(p_n ||
                           p_{n-1}), at each of the last two evaluations (KLASS, Kim et al. 2025)

With `noise` the set is drawn from softmax(score / noise) without replacement instead (Dream's alg_temp).

These samplers sharpen: they reveal what is easy first, and tokens that are likely together with that. At one
token an evaluation the orders margin and entropy are exact, since what is revealed next follows from what is
revealed already. `confidence` is not: it looks at the token that it is about to keep.
"""

import dataclasses
import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.process import Process
from tauflow.samplers.random import chunks, places_of, uniforms
from tauflow.samplers.reveal import CPU, RevealPlan, needs_masks
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, Visit, option, require

ScoreName = Literal["confidence", "margin", "entropy"]
RuleName = Literal["equal", "threshold", "factor", "bound", "stable"]
LEVELS = {"threshold": 0.9, "factor": 1.0, "bound": 0.1, "stable": 0.9}
DRIFT = 0.01
CALM = 2  # evaluations in a row whose rows hardly moved
GRAIN = 1e-5  # scores that differ by rounding alone are equal, and equal ones go from left to right


@dataclass(frozen=True)
class ConfidentState(State):
    """How many coordinates were free at first, and for how long each row has hardly moved."""

    _: KW_ONLY
    free: Tensor  # (B,)
    calm: Tensor  # (B, D) evaluations in a row, for counts=stable


@dataclass(frozen=True)
class Looked:
    """What an evaluation says of the masked coordinates."""

    visit: Visit
    movable: Tensor  # (B, D) bool, on the CPU
    score: Tensor  # (B, D) float64, -inf where a coordinate cannot move
    entropy: Tensor  # (B, D) float64, where the counts read it
    calm: Tensor  # (B, D) evaluations in a row
    tokens: Tensor | None  # (B * D,) drawn already, where the score is that of the token


@dataclass(frozen=True)
class Confident(Sampler[RevealPlan, ConfidentState]):
    order: ScoreName = option("confidence", "what the network is surest of comes first, by this score")
    counts: RuleName = option("equal", "how many coordinates an evaluation reveals")
    level: float | None = option(
        None, "of the counts: 0.9 by default for threshold and stable, 1 for factor, 0.1 nats for bound"
    )
    drift: float | None = option(None, "of the counts stable: largest move of a row in nats, 0.01 by default")
    noise: float = option(0.0, "of equal counts: temperature of the scores a set is drawn by; 0: the best")
    temperature: float = option(
        1.0, "of tokens that are drawn, not of scores; 0 takes the likeliest token of a row"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.level is None or self.counts != "equal",
            "level belongs to counts=threshold, factor, bound or stable; equal counts have none: drop level",
        )
        require(
            0 <= self._level < math.inf,
            f"level must be a number of at least 0, got {self.level}; {LEVELS.get(self.counts)} is usual",
        )
        require(
            self.drift is None or self.counts == "stable",
            "drift belongs to counts=stable, which looks at how far rows move; drop drift",
        )
        require(self._drift > 0, f"drift must be a number above 0, got {self.drift}; 0.01 is usual")
        require(
            self.order != "entropy" or self.counts not in ("threshold", "factor", "stable"),
            f"counts={self.counts} needs a score from 0 to 1: use order=confidence or margin",
        )
        require(
            0 <= self.noise < math.inf and 0 <= self.temperature < math.inf,
            f"noise and temperature must be at least 0, got {self.noise} and {self.temperature}",
        )
        require(
            not self.noise or self.counts == "equal",
            f"noise belongs to equal counts, whose sets have a fixed size; drop it, or counts={self.counts}",
        )

    @property
    def _level(self) -> float:
        return LEVELS.get(self.counts, 0.0) if self.level is None else self.level

    @property
    def _drift(self) -> float:
        return DRIFT if self.drift is None else self.drift

    @property
    def keeps(self) -> bool:
        return True

    @property
    def sharpens(self) -> bool:
        return True

    @property
    def adapts(self) -> bool:
        return self.counts != "equal"

    @property
    def no_likelihood(self) -> str:
        if self.order != "confidence":
            return ""
        return (
            "order=confidence keeps a token or not by what was drawn, so nothing says how probable data is; "
            "use order=margin or entropy"
        )

    def refuses(self, model: Model) -> str:
        return needs_masks(model, "random")

    def plan(self, process: Process, free: int, nfe: int) -> RevealPlan:
        return RevealPlan(min(nfe, free))

    def init(
        self, problem: Problem, x_0: Tensor, plan: RevealPlan, generator: torch.Generator
    ) -> ConfidentState:
        free = problem.movable(x_0).sum(1).cpu()
        return ConfidentState(x_0, free=free, calm=torch.zeros(x_0.shape, dtype=torch.long))

    def step(
        self,
        problem: Problem,
        state: ConfidentState,
        plan: RevealPlan,
        n: int,
        generator: torch.Generator,
    ) -> tuple[ConfidentState, StepInfo]:
        looked = self._look(problem, state, generator)
        left = looked.movable.sum(1)
        share = -(-left // (plan.steps - n))
        chosen = self._chosen(looked, share, generator)
        x, num_tokens = state.x.clone().flatten(), problem.process.num_tokens
        for index in chunks(places_of(chosen).to(x.device), num_tokens):
            if looked.tokens is not None:
                x[index] = looked.tokens[index]
            else:
                weights = self._weights(looked.visit.evaluation.rows(index))
                x[index] = problem.drawing.tokens(weights, index, generator)
        t, t_next = (_times(problem.process, state.free, masked) for masked in (left, left - chosen.sum(1)))
        moved = int(chosen.sum()) / max(1, int(left.sum()))
        info = StepInfo(n, t.mean().item(), t_next.mean().item(), moved)
        return dataclasses.replace(state, x=x.view_as(state.x), visit=looked.visit, calm=looked.calm), info

    def _look(self, problem: Problem, state: ConfidentState, generator: torch.Generator) -> Looked:
        """Evaluate, and score the coordinates that may move; draw their tokens where that says the score."""
        movable = problem.movable(state.x)
        places, num_tokens = places_of(movable), problem.process.num_tokens
        before = state.visit.kept(places) if state.visit and self.counts == "stable" else None
        movable = movable.cpu()
        visit = problem.visit(state.x, _times(problem.process, state.free, movable.sum(1)))
        score = torch.full((movable.numel(),), -torch.inf, dtype=torch.float64)
        entropy, moves = torch.zeros_like(score), torch.full_like(score, torch.inf)
        tokens = state.x.clone().flatten() if self.order == "confidence" else None
        for index in chunks(places, num_tokens):
            rows = visit.evaluation.rows(index)
            if tokens is not None:
                tokens[index] = problem.drawing.tokens(self._weights(rows), index, generator)
                found = rows.gather(1, tokens[index, None]).squeeze(1)
            else:
                found = _margin(rows) if self.order == "margin" else -_entropy(rows)
            score[index.cpu()] = found.cpu().double()
            if self.counts == "bound":
                entropy[index.cpu()] = _entropy(rows).cpu().double()
            if before is not None:
                moves[index.cpu()] = _divergence(rows, before.evaluation.rows(index)).cpu().double()
        calm = torch.where(moves.view_as(movable) < self._drift, state.calm + 1, 0)
        return Looked(visit, movable, score.view_as(movable), entropy.view_as(movable), calm, tokens)

    def _chosen(self, looked: Looked, share: Tensor, generator: torch.Generator) -> Tensor:
        """Choose what is revealed (B, D): the best by the rule, and at least a share (B,)."""
        score, level = looked.score, self._level
        if self.noise:
            uniform = uniforms(score.numel(), generator, CPU).view_as(score).clamp(min=1e-300)
            score = score / self.noise - (-uniform.log()).log()  # the best of these are a draw by softmax
        ready = torch.zeros_like(looked.movable)
        if self.counts == "threshold":
            ready = score >= level
        elif self.counts == "stable":
            ready = (score > level) & (looked.calm >= CALM)
        key = (score / GRAIN).round() + (2 / GRAIN) * ready  # those that are ready are the first
        order = key.argsort(dim=1, descending=True, stable=True)
        count = ready.sum(1)
        if self.counts == "factor":
            number = torch.arange(1, score.shape[1] + 1)
            count = ((number + 1) * (1 - score.gather(1, order)) <= level).sum(1)
        elif self.counts == "bound":
            entropy = looked.entropy.gather(1, order)
            count = (entropy.cumsum(1) - entropy.cummax(1).values <= level).sum(1)
        rank = order.argsort(1)
        return looked.movable & (rank < torch.maximum(count, share)[:, None])

    def _weights(self, rows: Tensor) -> Tensor:
        """Return what tokens are drawn by (R, V): rows at the temperature of the sampler."""
        if self.temperature == 1:
            return rows
        if self.temperature == 0:
            return torch.zeros_like(rows).scatter_(1, rows.argmax(1, keepdim=True), 1.0)
        return (rows.log() / self.temperature).softmax(-1)


def _times(process: Process, free: Tensor, masked: Tensor) -> Tensor:
    """Return the mean hitting times (B,) of the next reveal, by the free and the masked coordinates (B,)."""
    return process.t_from_share((free - masked).double() / (free + 1))


def _margin(rows: Tensor) -> Tensor:
    first, second = rows.topk(2, dim=-1).values.unbind(-1)
    return first - second


def _entropy(rows: Tensor) -> Tensor:
    return torch.special.entr(rows).sum(-1)


def _divergence(rows: Tensor, before: Tensor) -> Tensor:
    """Return KL(rows || before), (R,), infinite where a token was impossible before."""
    return (torch.xlogy(rows, rows) - torch.xlogy(rows, before)).sum(-1)
