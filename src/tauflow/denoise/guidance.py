"""Guidance: away from what a network says without its condition, or without its prompt.

    ln p = ln p_unconditional + weight (ln p_conditional - ln p_unconditional), renormalized

Weight 1 is no guidance. An evaluation takes the forward passes of both networks. A token that is impossible
under the condition stays impossible. One that is impossible without it has no finite guidance: it keeps its
conditional log-probability (weight >= 1), or is impossible (less).

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

from numbers import Real

import torch
from torch import Tensor

from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.posterior import Posterior, Query, WrappedPosterior, at_least_float32
from tauflow.errors import SamplingError

MAX_WEIGHT = 1e6  # far beyond it float32 overflows


class GuidedDenoiser(Wrapper):
    """A denoiser guided by another one, or by itself with its condition dropped.

    Args:
        conditional: the denoiser that sees the condition.
        unconditional: one that doesn't; None: the same one with its condition dropped (classifier-free
            guidance).
        weight: of the guidance; 1 is none.
    """

    def __init__(self, conditional: Denoiser, unconditional: Denoiser | None, weight: float):
        super().__init__(conditional)
        other = unconditional or conditional
        self.unconditional = other
        self.weight = check_weight(weight)
        self.forwards = conditional.forwards + other.forwards
        self.attends = conditional.attends and other.attends
        self.remembers = conditional.remembers or other.remembers
        self.samples = conditional.samples or other.samples
        if not _is_same(conditional.attention, other.attention):
            raise SamplingError(
                "the two networks of guidance read different coordinates; guide first: "
                "guided(...).with_attention_mask(...)"
            )

    def posterior(self, query: Query) -> Posterior:
        first, second = query.memory if isinstance(query.memory, tuple) else (None, None)
        conditional = self.denoiser.posterior(query.replace(memory=first)).clone()  # both may be one network
        dropped = self.unconditional.null_condition(query.condition)
        unconditional = self.unconditional.posterior(query.replace(condition=dropped, memory=second))
        return GuidedPosterior(conditional, unconditional, self.weight)


class GuidedPosterior(WrappedPosterior):
    """ln p = ln p_unconditional + weight (ln p_conditional - ln p_unconditional)."""

    def __init__(self, conditional: Posterior, unconditional: Posterior, weight: float):
        super().__init__(conditional, unconditional)
        self._weight = weight

    def logits(self, index: Tensor | slice) -> Tensor:
        first, second = (at_least_float32(each.logits(index)).log_softmax(-1) for each in self.posteriors)
        if self._weight == 0:
            return second
        impossible = torch.full_like(first, -torch.inf)
        mixed = torch.where(first == -torch.inf, impossible, second + self._weight * (first - second))
        return torch.where(second == -torch.inf, first if self._weight >= 1 else impossible, mixed)


class UnpromptedDenoiser(Wrapper):
    """Hides a prompt, true (D,) for every sequence or (B, D) where it is known, from the network.

    With a mask the prompt is masked; without one the network is told not to read it.
    """

    def __init__(self, denoiser: Denoiser, known: Tensor, mask: int | None):
        super().__init__(denoiser)
        self.known = known
        self.mask = mask
        if known.ndim == 2:
            self.samples = len(known)

    def posterior(self, query: Query) -> Posterior:
        known = self.known if self.known.ndim == 1 else query.own(self.known)
        known = known.to(query.x.device).expand_as(query.x)
        if self.mask is not None:
            return self.denoiser.posterior(query.replace(x=query.x.masked_fill(known, self.mask)))
        read = ~known
        if query.attention is not None:
            read = read & query.attention.to(query.x.device)
        read = read | ~read.any(1, keepdim=True)  # a sequence that is all known has no use for an answer
        return self.denoiser.posterior(query.replace(attention=read))


def check_weight(weight: float) -> float:
    """Return a guidance weight; raise an error if it isn't a finite number."""
    if not isinstance(weight, Real) or not abs(weight) <= MAX_WEIGHT:
        raise SamplingError(
            f"the guidance weight must be a finite number up to {MAX_WEIGHT:g}, got {weight!r}; 1 is no "
            "guidance"
        )
    return float(weight)


def _is_same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second.to(first.device))
