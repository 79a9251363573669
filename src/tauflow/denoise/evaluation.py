"""Evaluation: the posterior p(x_1^d = s | x_t) of all coordinates after one network evaluation, read lazily.

Shapes: B sequences, D coordinates, V data tokens, R rows. A row is named by its place in the flattened (B *
D,). An Evaluation is one NFE. For a network that is split into hidden() and head() it holds hidden states and
applies the head only to the rows that are read; for any other callable it holds the logits. Rows are float32,
or float64 where the logits are.

A network may write its next answer over the last one (CUDA graphs, `torch.compile(mode="reduce-overhead")`),
so an Evaluation is good until the denoiser is evaluated again; `kept` gives one that is good beyond that.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from tauflow.denoise.context import Memory
from tauflow.errors import BadLogits

HALF = (torch.float16, torch.bfloat16)


def take(values: Tensor, index: Tensor | slice) -> Tensor:
    """Return values[index] along the first dimension; index_select is several times faster for few rows."""
    return values.index_select(0, index) if isinstance(index, Tensor) else values[index]


def single(logits: Tensor) -> Tensor:
    """Return logits in float32 at least."""
    return logits.float() if logits.dtype in HALF else logits


class Evaluation(ABC):
    """The posterior of all coordinates after one evaluation."""

    shape: tuple[int, int]  # (B, D)
    t: Tensor | None = None  # (B,) when it was made

    @abstractmethod
    def logits(self, index: Tensor | slice) -> Tensor:
        """Return logits (R, V) of the coordinates index (R,)."""

    def kept(self, places: Tensor | None = None) -> "Evaluation":
        """Return this evaluation with copies of what is the network's, good beyond the next evaluation.

        With places (R,), in order, of these coordinates alone. One that holds nothing of a network's is
        itself.
        """
        return self

    @property
    def nbytes(self) -> int:
        """Return the size of what is held of the network's answer."""
        return 0

    @property
    def memory(self) -> Memory:
        """Return what this leaves for the next evaluation of a network that remembers, good beyond it.

        That is what the network answered, of all coordinates; None where nothing was asked of a network.
        """
        return None

    @torch.no_grad()
    def rows(self, index: Tensor | slice) -> Tensor:
        """Return posterior rows (R, V) of the coordinates index (R,)."""
        logits = self.logits(index)
        if not logits.is_floating_point():
            raise BadLogits(f"the denoiser returned {logits.dtype} for logits; return floating-point numbers")
        rows = single(logits).softmax(-1)
        if not math.isfinite(rows[:, 0].sum()):  # a NaN, +inf or a row of -inf makes all of the row NaN
            raise BadLogits("the denoiser returned NaN, +inf or only -inf logits for a coordinate", self.t)
        return rows

    def at(self, index: Tensor, tokens: Tensor) -> Tensor:
        """Return posterior entries (R,) of one token for each of the coordinates index (R,)."""
        return self.rows(index).gather(1, tokens[:, None]).squeeze(1)

    def dense(self) -> Tensor:
        """Return the posterior of all coordinates (B, D, V)."""
        return self.rows(slice(None)).unflatten(0, self.shape)


class Answered(Evaluation):
    """Abstract: holds what the network answered (B, D, ...)."""

    def __init__(self, answer: Tensor):
        self.shape = (answer.shape[0], answer.shape[1])
        self._answer = answer.flatten(0, 1)  # (B * D, ...)
        self._kept = False
        self._places: Tensor | None = None  # (R,) whose rows are kept; None: all

    def kept(self, places: Tensor | None = None) -> Evaluation:
        if self._kept:
            return self
        result = copy.copy(self)
        result._answer = self._answer.clone() if places is None else take(self._answer, places)
        result._places = places
        result._kept = True
        return result

    @property
    def nbytes(self) -> int:
        return self._answer.nbytes

    @property
    def memory(self) -> Memory:
        answer = self.answer(slice(None)).unflatten(0, self.shape)
        return answer if self._kept else answer.clone()

    def answer(self, index: Tensor | slice) -> Tensor:
        """Return what the network answered for the coordinates index (R,)."""
        if self._places is None:
            return take(self._answer, index)
        if isinstance(index, slice):
            index = torch.arange(self.shape[0] * self.shape[1], device=self._places.device)[index]
        if torch.equal(self._places, index):
            return self._answer
        at = torch.searchsorted(self._places, index).clamp(max=max(0, len(self._places) - 1))
        if not len(self._places) or not torch.equal(self._places[at], index):
            raise IndexError("only the rows that were kept can be read; keep all of the evaluation")
        return take(self._answer, at)


class HiddenEvaluation(Answered):
    """Hidden states (B, D, W), and the head that makes rows of them."""

    def __init__(
        self, head: Callable[[Tensor], Tensor], hidden: Tensor, num_tokens: int | None, masked: bool = False
    ):
        super().__init__(hidden)
        self._head = head
        self._num_tokens = num_tokens
        self._masked = masked

    @torch.no_grad()
    def logits(self, index: Tensor | slice) -> Tensor:
        rows = self.answer(index)
        if isinstance(index, slice) or rows is self._answer:
            rows = rows.clone()  # the head may write into them
        return drop_mask(self._head(rows), self._num_tokens, self._masked)


class LogitsEvaluation(Answered):
    """Logits (B, D, V)."""

    def logits(self, index: Tensor | slice) -> Tensor:
        return self.answer(index)


class Wrapped(Evaluation):
    """Abstract: an evaluation around others."""

    def __init__(self, *evaluations: Evaluation):
        self.shape = evaluations[0].shape
        self._evaluations = evaluations

    def kept(self, places: Tensor | None = None) -> Evaluation:
        result = copy.copy(self)
        result._evaluations = tuple(each.kept(places) for each in self._evaluations)
        return result

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self._evaluations)

    @property
    def memory(self) -> Memory:
        memories = tuple(each.memory for each in self._evaluations)
        return memories if len(memories) > 1 else memories[0]


class TemperedEvaluation(Wrapped):
    """Logits divided by a temperature."""

    def __init__(self, evaluation: Evaluation, temperature: float):
        super().__init__(evaluation)
        self._temperature = temperature

    def logits(self, index: Tensor | slice) -> Tensor:
        return single(self._evaluations[0].logits(index)) / self._temperature


class GuidedEvaluation(Wrapped):
    """ln p = ln p_unconditional + weight (ln p_conditional - ln p_unconditional)."""

    def __init__(self, conditional: Evaluation, unconditional: Evaluation, weight: float):
        super().__init__(conditional, unconditional)
        self._weight = weight

    def logits(self, index: Tensor | slice) -> Tensor:
        first, second = (single(each.logits(index)).log_softmax(-1) for each in self._evaluations)
        if self._weight == 0:
            return second
        impossible = torch.full_like(first, -torch.inf)
        mixed = torch.where(first == -torch.inf, impossible, second + self._weight * (first - second))
        return torch.where(second == -torch.inf, first if self._weight >= 1 else impossible, mixed)


def drop_mask(logits: Tensor, num_tokens: int | None, masked: bool) -> Tensor:
    """Drop the column of the mask, if there is one; refuse another number of columns."""
    width = logits.shape[-1]
    if num_tokens is None or width == num_tokens:
        return logits
    if masked and width == num_tokens + 1:
        return logits[..., :num_tokens]
    allowed = "(or one more: the mask)" if masked else "and no mask"
    raise BadLogits(
        f"the denoiser returned {width} logits for a coordinate, the process has {num_tokens} data tokens "
        f"{allowed}; give the process of its training"
    )
