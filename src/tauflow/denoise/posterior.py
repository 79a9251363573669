"""Posterior: p(x_1^d = s | x_t) of all coordinates after one evaluation of the network, read lazily.

Shapes: B sequences, D coordinates, V data tokens, R rows. A row is one coordinate; `index` (R,) names rows by
their place in the flattened (B * D,). For a network split into hidden() and head() a posterior holds hidden
states and applies the head only to the rows that are read; for any other callable it holds the logits.
Probabilities are float32, or float64 where the logits are.

A network may write its next answer over the last one (CUDA graphs, `torch.compile(mode="reduce-overhead")`),
so a posterior is valid until the network is evaluated again. `clone` returns one that stays valid.
"""

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from tauflow.errors import BadLogits

Memory: TypeAlias = "Tensor | tuple[Memory, ...] | None"
"""What an evaluation leaves for the next one: hidden states or logits (B, D, ...), or one memory per network
of guidance or per part of a batch."""

HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class Query:
    """Everything a network is asked in one evaluation.

    Args:
        x: states (B, D).
        t: times (B,).
        condition: integers (B, C), or None.
        attention: true (B, D) where a coordinate is read, the others are padding; None: all are read.
        memory: what the evaluation before left, for networks that remember.
        sequences: which sequences of the sampled batch these are; None: all of them.
        cache: what processors compute once per query.
    """

    x: Tensor
    t: Tensor
    condition: Tensor | None = None
    attention: Tensor | None = None
    memory: Memory = None
    sequences: slice | None = None
    cache: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def own(self, values: Tensor) -> Tensor:
        """Return what belongs to these sequences, given values (B, ...) of all sampled ones."""
        return values if self.sequences is None else values[self.sequences]

    def split(self, batch_size: int) -> Iterator["Query"]:
        """Yield the queries of parts of the batch, each with its own memory."""
        begins = range(0, len(self.x), batch_size)
        memories = self.memory if isinstance(self.memory, tuple) else (None,) * len(begins)
        for begin, memory in zip(begins, memories, strict=True):
            part = slice(begin, begin + batch_size)
            yield Query(
                self.x[part],
                self.t[part],
                None if self.condition is None else self.condition[part],
                None if self.attention is None else self.attention[part],
                memory,
                part,
            )

    def replace(self, **changes: Any) -> "Query":
        """Return the query with other values."""
        return dataclasses.replace(self, **changes)


def take(values: Tensor, index: Tensor | slice) -> Tensor:
    """Return values[index] along the first dimension; index_select is several times faster for few rows."""
    return values.index_select(0, index) if isinstance(index, Tensor) else values[index]


def at_least_float32(logits: Tensor) -> Tensor:
    """Return logits in float32, or in float64 if they are."""
    return logits.float() if logits.dtype in HALF else logits


class Posterior(ABC):
    """Abstract: the posterior of all coordinates after one evaluation at states `x` and time `t`.

    Use `probs(index)` for the rows you need, and `dense()` for all of them where V is small.
    """

    shape: tuple[int, int]  # (B, D)
    x: Tensor  # (B, D) states it was evaluated at
    t: float | None = None  # when, the mean over sequences where they differ
    times: Tensor | None = None  # (B,) when

    def evaluated_at(self, x: Tensor, t: float, times: Tensor | None = None) -> Self:
        """Note the states (B, D) and the time of the evaluation, and return itself."""
        self.x = x
        self.t = t
        self.times = times
        return self

    @abstractmethod
    def logits(self, index: Tensor | slice) -> Tensor:
        """Return logits (R, V) of the coordinates index (R,)."""

    def clone(self, index: Tensor | None = None) -> "Posterior":
        """Return a posterior that stays valid after the next evaluation.

        With index (R,), in order, only these coordinates can be read. A posterior that holds nothing of the
        network's is returned as it is.
        """
        return self

    @property
    def nbytes(self) -> int:
        """Return the size of what it holds of the network's answer."""
        return 0

    @property
    def memory(self) -> Memory:
        """Return what this leaves for the next evaluation of a network that remembers: its whole answer."""
        return None

    @torch.no_grad()
    def probs(self, index: Tensor | slice) -> Tensor:
        """Return probabilities (R, V) of the coordinates index (R,)."""
        logits = self.logits(index)
        if not logits.is_floating_point():
            raise BadLogits(f"the denoiser returned {logits.dtype} for logits; return floating-point numbers")
        probs = at_least_float32(logits).softmax(-1)
        if not math.isfinite(probs[:, 0].sum()):  # a NaN, +inf or a row of -inf makes all of the row NaN
            raise BadLogits("the denoiser returned NaN, +inf or only -inf logits for a coordinate", self.t)
        return probs

    def dense(self) -> Tensor:
        """Return the probabilities of all coordinates (B, D, V)."""
        return self.probs(slice(None)).unflatten(0, self.shape)


class AnswerPosterior(Posterior):
    """Abstract: holds what the network answered (B, D, ...)."""

    def __init__(self, answer: Tensor):
        self.shape = (answer.shape[0], answer.shape[1])
        self._answer = answer.flatten(0, 1)  # (B * D, ...)
        self._cloned = False
        self._index: Tensor | None = None  # (R,) whose rows were cloned; None: all

    def clone(self, index: Tensor | None = None) -> Posterior:
        if self._cloned:
            return self
        result = copy.copy(self)
        result._answer = self._answer.clone() if index is None else take(self._answer, index)
        result._index = index
        result._cloned = True
        return result

    @property
    def nbytes(self) -> int:
        return self._answer.nbytes

    @property
    def memory(self) -> Memory:
        answer = self.answer(slice(None)).unflatten(0, self.shape)
        return answer if self._cloned else answer.clone()

    def answer(self, index: Tensor | slice) -> Tensor:
        """Return what the network answered for the coordinates index (R,)."""
        if self._index is None:
            return take(self._answer, index)
        if isinstance(index, slice):
            index = torch.arange(self.shape[0] * self.shape[1], device=self._index.device)[index]
        if torch.equal(self._index, index):
            return self._answer
        at = torch.searchsorted(self._index, index).clamp(max=max(0, len(self._index) - 1))
        if not len(self._index) or not torch.equal(self._index[at], index):
            raise IndexError("only the cloned rows can be read; clone the whole posterior")
        return take(self._answer, at)


class HiddenPosterior(AnswerPosterior):
    """Hidden states (B, D, W), and the head that turns rows of them into logits."""

    def __init__(
        self, head: Callable[[Tensor], Tensor], hidden: Tensor, num_tokens: int | None, masked: bool = False
    ):
        super().__init__(hidden)
        self._head = head
        self._num_tokens = num_tokens
        self._masked = masked

    @torch.no_grad()
    def logits(self, index: Tensor | slice) -> Tensor:
        hidden = self.answer(index)
        if isinstance(index, slice) or hidden is self._answer:
            hidden = hidden.clone()  # the head may write into them
        return drop_mask(self._head(hidden), self._num_tokens, self._masked)


class LogitsPosterior(AnswerPosterior):
    """Logits (B, D, V)."""

    def logits(self, index: Tensor | slice) -> Tensor:
        return self.answer(index)


class WrappedPosterior(Posterior):
    """Abstract: a posterior made of others."""

    def __init__(self, *posteriors: Posterior):
        self.shape = posteriors[0].shape
        self.posteriors = posteriors

    def clone(self, index: Tensor | None = None) -> Posterior:
        result = copy.copy(self)
        result.posteriors = tuple(each.clone(index) for each in self.posteriors)
        return result

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.posteriors)

    @property
    def memory(self) -> Memory:
        memories = tuple(each.memory for each in self.posteriors)
        return memories if len(memories) > 1 else memories[0]


def drop_mask(logits: Tensor, num_tokens: int | None, masked: bool) -> Tensor:
    """Drop the column of the mask, if there is one; check the number of columns."""
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
