"""AllowedDenoiser: samples of a model that have certain tokens only, coordinate by coordinate.

The network is asked as always; the logits of tokens that are not allowed at their coordinate are -inf, so
that a posterior row is the network's own, conditioned on the allowed tokens. The noise stays that of the
training: a state may hold any token of the source, and only what is drawn from a posterior is restricted.
That is the process of the data whose coordinates are each conditioned so, whatever the source is: given x_1,
noise does not depend on what x_1 was allowed to be. So the law of samples is exact where coordinates are
independent; else each token is conditioned on its own set and on the tokens before it, not on the sets of
those to come.

Shapes: B sequences, D coordinates, V data tokens, R rows, K sets of tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise.context import Context
from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.evaluation import Evaluation, Wrapped
from tauflow.errors import SamplingError


class AllowedDenoiser(Wrapper):
    """Gives tokens that are not allowed at their coordinate the probability 0."""

    def __init__(self, denoiser: Denoiser, allowed: "Allowed"):
        super().__init__(denoiser)
        self.samples = allowed.samples or denoiser.samples
        self.allowed = allowed.to(denoiser.device)
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        return self.copied(denoiser=self.denoiser.within(context), _context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        places = self.allowed.which(len(x), self._context)
        return AllowedEvaluation(self.denoiser.evaluate(x, t, condition), self.allowed.sets, places)


class AllowedEvaluation(Wrapped):
    """Logits that are -inf where a token is not in the set (K, V) of its coordinate, by number (B, D)."""

    def __init__(self, evaluation: Evaluation, sets: Tensor, which: Tensor):
        super().__init__(evaluation)
        self._sets = sets
        self._which = which.flatten()  # (B * D,)

    def logits(self, index: Tensor | slice) -> Tensor:
        logits = self._evaluations[0].logits(index)
        sets = self._sets.to(logits.device)
        if len(sets) > 1:
            sets = sets[self._which.to(logits.device)[index]]  # (R, V)
        return logits.masked_fill(~sets, -torch.inf)


@dataclass(frozen=True)
class Allowed:
    """Sets of tokens (K, V), and the number of its set for each coordinate (D,), or of each sample (B, D).

    So few sets take little memory where V is large: image and text tokens of one vocabulary are two.
    """

    sets: Tensor
    numbers: Tensor

    @property
    def samples(self) -> int | None:
        """Return B, where samples differ."""
        return len(self.numbers) if self.numbers.ndim == 2 else None

    def which(self, count: int, context: Context) -> Tensor:
        """Return the numbers of the sets (count, D) of so many samples in a context."""
        if self.numbers.ndim == 1:
            return self.numbers.expand(count, -1)
        return context.own(self.numbers, count)

    def to(self, device: torch.device) -> "Allowed":
        """Return the same on a device."""
        return Allowed(self.sets.to(device), self.numbers.to(device))


def checked_allowed(allowed: Any, length: int, num_tokens: int, sets: Any = None) -> Allowed:
    """Return allowed tokens from true (V,), (D, V) or (B, D, V), or from numbers of sets; refuse all else."""
    if sets is not None:
        return _checked_sets(allowed, length, num_tokens, sets)
    shapes = f"({length}, {num_tokens}) or ({num_tokens},)"
    tail = tuple(allowed.shape)[-2:] if isinstance(allowed, Tensor) else ()
    fits = tail == (num_tokens,) or tail == (length, num_tokens)
    if not fits or allowed.dtype != torch.bool or allowed.ndim > 3 or not len(allowed):
        raise SamplingError(
            f"allowed must be a boolean tensor of the shape {shapes}, or one (B, {length}, {num_tokens}) of "
            f"each sample, true where a token may stand; got {_kind(allowed)}"
        )
    sets = allowed.reshape(-1, num_tokens)
    numbers = torch.arange(len(sets), device=sets.device).reshape(allowed.shape[:-1])
    return _refuse_empty(Allowed(sets, numbers.expand(length) if allowed.ndim == 1 else numbers))


def _checked_sets(numbers: Any, length: int, num_tokens: int, sets: Any) -> Allowed:
    good = isinstance(sets, Tensor) and sets.dtype == torch.bool and sets.ndim == 2 and len(sets)
    if not good or sets.shape[1] != num_tokens:
        raise SamplingError(
            f"sets must be a boolean tensor (K, {num_tokens}), true on the tokens of each; got {_kind(sets)}"
        )
    whole = isinstance(numbers, Tensor) and not (numbers.is_floating_point() or numbers.dtype == torch.bool)
    fits = whole and numbers.ndim in (1, 2) and numbers.shape[-1] == length and numbers.numel()
    if not fits or int(numbers.min()) < 0 or int(numbers.max()) >= len(sets):
        raise SamplingError(
            f"with {len(sets)} sets, allowed must be their numbers 0 to {len(sets) - 1}, ({length},) or "
            f"(B, {length}); got {_kind(numbers)}"
        )
    return _refuse_empty(Allowed(sets, numbers.long()))


def _kind(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _refuse_empty(allowed: Allowed) -> Allowed:
    """Return allowed tokens; raise where a coordinate is allowed none."""
    empty = (~allowed.sets.any(1))[allowed.numbers].nonzero()
    if len(empty):
        place = empty[0].tolist()
        sample = f" of sample {place[0]}" if len(place) == 2 else ""
        raise SamplingError(f"coordinate {place[-1]}{sample} is allowed no token at all; allow at least one")
    return allowed
