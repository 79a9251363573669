"""Confident samplers, for masks only: what is revealed next is what the network is most certain of.

Of M coordinates that are still masked, evaluation n of at most N draws the k_n best from its rows p_n; k_n is
never less than their share ceil(M / (N - n)), so that the budget is kept.

    order     confidence   p(x), x drawn from the row (LLaDA low_confidence, Dream maskgit_plus, MaskGIT)
              margin       p_1 - p_2 of the two most likely tokens (Kim et al. 2025, Dream topk_margin)
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
token per evaluation the orders margin and entropy are exact, since what is revealed next follows from what is
revealed already. `confidence` is not: it looks at the token that it is about to keep.
"""

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import Model, Posterior
from tauflow.process import Process
from tauflow.samplers.random import chunks, index_of, uniforms
from tauflow.samplers.reveal import CPU, RevealPlan, needs_masks
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, check, option

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
class Scores:
    """How certain an evaluation is of the masked coordinates."""

    posterior: Posterior
    movable: Tensor  # (B, D) bool, on the CPU
    score: Tensor  # (B, D) float64, -inf where a coordinate cannot move
    entropy: Tensor  # (B, D) float64, where the counts read it
    calm: Tensor  # (B, D) evaluations in a row
    tokens: Tensor | None  # (B * D,) drawn already, where the score is the token's


@dataclass(frozen=True)
class Confident(Sampler[RevealPlan, ConfidentState]):
    order: ScoreName = option("confidence", "what the network is surest of comes first, by this score")
    counts: RuleName = option("equal", "how many coordinates an evaluation reveals")
    level: float | None = option(
        None,
        "of the counts: 0.9 by default for threshold and stable, 1 for factor, 0.1 nats for bound",
        low=0,
    )
    drift: float | None = option(
        None, "of the counts stable: largest move of a row in nats, 0.01 by default", above=0
    )
    noise: float = option(
        0.0, "of equal counts: temperature of the scores a set is drawn by; 0: the best", low=0
    )
    temperature: float = option(
        1.0, "of tokens that are drawn, not of scores; 0 takes the most likely token of a row", low=0
    )

    clones_history = True
    sharpens = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.level is None or self.counts != "equal",
            "level belongs to counts=threshold, factor, bound or stable; equal counts have none: drop level",
        )
        check(
            self.drift is None or self.counts == "stable",
            "drift belongs to counts=stable, which looks at how far rows move; drop drift",
        )
        check(
            self.order != "entropy" or self.counts not in ("threshold", "factor", "stable"),
            f"counts={self.counts} needs a score from 0 to 1: use order=confidence or margin",
        )
        check(
            not self.noise or self.counts == "equal",
            f"noise belongs to equal counts, whose sets have a fixed size; drop it, or counts={self.counts}",
        )

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        return self.counts != "equal"

    @property
    def no_likelihood(self) -> str:  # type: ignore[override]
        if self.order != "confidence":
            return ""
        return (
            "order=confidence keeps a token or not by what was drawn, so nothing says how probable data is; "
            "use order=margin or entropy"
        )

    def unsupported_reason(self, model: Model) -> str:
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
        scores = self._scores(problem, state, generator)
        left = scores.movable.sum(1)
        share = -(-left // (plan.steps - n))
        chosen = self._choose(scores, share, generator)
        x = state.x.clone()
        for index in chunks(index_of(chosen).to(x.device), problem.process.num_tokens):
            if scores.tokens is not None:
                x.view(-1)[index] = scores.tokens[index]
            else:
                weights = self._weights(scores.posterior.probs(index))
                x.view(-1)[index] = problem.draw(weights, index, generator)
        t, t_next = (_times(problem.process, state.free, masked) for masked in (left, left - chosen.sum(1)))
        moved = int(chosen.sum()) / max(1, int(left.sum()))
        info = StepInfo(n, t.mean().item(), t_next.mean().item(), moved)
        return dataclasses.replace(state, x=x, posterior=scores.posterior, calm=scores.calm), info

    def _scores(self, problem: Problem, state: ConfidentState, generator: torch.Generator) -> Scores:
        """Evaluate, and score the coordinates that may move; draw their tokens where those are the score."""
        movable = problem.movable(state.x)
        masked = index_of(movable)
        before = state.posterior.clone(masked) if state.posterior and self.counts == "stable" else None
        movable = movable.cpu()
        posterior = problem.evaluate(state.x, _times(problem.process, state.free, movable.sum(1)))
        score = torch.full((movable.numel(),), -torch.inf, dtype=torch.float64)
        entropy, moves = torch.zeros_like(score), torch.full_like(score, torch.inf)
        tokens = state.x.clone().flatten() if self.order == "confidence" else None
        for index in chunks(masked, problem.process.num_tokens):
            probs = posterior.probs(index)
            if tokens is not None:
                tokens[index] = problem.draw(self._weights(probs), index, generator)
                found = probs.gather(1, tokens[index, None]).squeeze(1)
            else:
                found = _margin(probs) if self.order == "margin" else -_entropy(probs)
            score[index.cpu()] = found.cpu().double()
            if self.counts == "bound":
                entropy[index.cpu()] = _entropy(probs).cpu().double()
            if before is not None:
                moves[index.cpu()] = _divergence(probs, before.probs(index)).cpu().double()
        drift = DRIFT if self.drift is None else self.drift
        calm = torch.where(moves.view_as(movable) < drift, state.calm + 1, 0)
        return Scores(posterior, movable, score.view_as(movable), entropy.view_as(movable), calm, tokens)

    def _choose(self, scores: Scores, share: Tensor, generator: torch.Generator) -> Tensor:
        """Choose what is revealed (B, D): the best by the rule, and at least a share (B,)."""
        score = scores.score
        level = LEVELS.get(self.counts, 0.0) if self.level is None else self.level
        if self.noise:
            uniform = uniforms(score.numel(), generator, CPU).view_as(score).clamp(min=1e-300)
            score = score / self.noise - (-uniform.log()).log()  # the best of these are a draw by softmax
        ready = torch.zeros_like(scores.movable)
        if self.counts == "threshold":
            ready = score >= level
        elif self.counts == "stable":
            ready = (score > level) & (scores.calm >= CALM)
        key = (score / GRAIN).round() + (2 / GRAIN) * ready  # those that are ready are the first
        order = key.argsort(dim=1, descending=True, stable=True)
        count = ready.sum(1)
        if self.counts == "factor":
            number = torch.arange(1, score.shape[1] + 1)
            count = ((number + 1) * (1 - score.gather(1, order)) <= level).sum(1)
        elif self.counts == "bound":
            entropy = scores.entropy.gather(1, order)
            count = (entropy.cumsum(1) - entropy.cummax(1).values <= level).sum(1)
        rank = order.argsort(1)
        return scores.movable & (rank < torch.maximum(count, share)[:, None])

    def _weights(self, probs: Tensor) -> Tensor:
        """Return what tokens are drawn by (R, V): probs at the temperature of the sampler."""
        if self.temperature == 1:
            return probs
        if self.temperature == 0:
            return torch.zeros_like(probs).scatter_(1, probs.argmax(1, keepdim=True), 1.0)
        return (probs.log() / self.temperature).softmax(-1)


def _times(process: Process, free: Tensor, masked: Tensor) -> Tensor:
    """Return the mean hitting times (B,) of the next reveal, by the free and the masked coordinates (B,)."""
    return process.t_from_share((free - masked).double() / (free + 1))


def _margin(probs: Tensor) -> Tensor:
    first, second = probs.topk(2, dim=-1).values.unbind(-1)
    return first - second


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1)


def _divergence(probs: Tensor, before: Tensor) -> Tensor:
    """Return KL(probs || before), (R,), infinite where a token was impossible before."""
    return (torch.xlogy(probs, probs) - torch.xlogy(probs, before)).sum(-1)
