"""Evaluation: the posterior p(x_1^d = s | x_t) of all coordinates after one network evaluation, read lazily.

Shapes: B sequences, D coordinates, V data tokens, R rows. A row is named by its place in the flattened (B *
D,). An Evaluation is one NFE. For a network that is split into hidden() and head() it holds hidden states and
applies the head only to the rows that are read; for any other callable it holds the logits. Rows are float32,
or float64 where the logits are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

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


class HiddenEvaluation(Evaluation):
    """Hidden states (B, D, W), and the head that makes rows of them."""

    def __init__(self, head: Callable[[Tensor], Tensor], hidden: Tensor, num_tokens: int | None):
        self.shape = (hidden.shape[0], hidden.shape[1])
        self._head = head
        self._hidden = hidden.flatten(0, 1)  # (B * D, W)
        self._num_tokens = num_tokens

    @torch.no_grad()
    def logits(self, index: Tensor | slice) -> Tensor:
        return drop_mask(self._head(take(self._hidden, index)), self._num_tokens)


class LogitsEvaluation(Evaluation):
    """Logits (B, D, V)."""

    def __init__(self, logits: Tensor):
        self.shape = (logits.shape[0], logits.shape[1])
        self._logits = logits.flatten(0, 1)  # (B * D, V)

    def logits(self, index: Tensor | slice) -> Tensor:
        return take(self._logits, index)


class TemperedEvaluation(Evaluation):
    """Logits divided by a temperature."""

    def __init__(self, evaluation: Evaluation, temperature: float):
        self.shape = evaluation.shape
        self._evaluation = evaluation
        self._temperature = temperature

    def logits(self, index: Tensor | slice) -> Tensor:
        return single(self._evaluation.logits(index)) / self._temperature


class GuidedEvaluation(Evaluation):
    """ln p = ln p_unconditional + weight (ln p_conditional - ln p_unconditional)."""

    def __init__(self, conditional: Evaluation, unconditional: Evaluation, weight: float):
        self.shape = conditional.shape
        self._conditional = conditional
        self._unconditional = unconditional
        self._weight = weight

    def logits(self, index: Tensor | slice) -> Tensor:
        first = single(self._conditional.logits(index)).log_softmax(-1)
        second = single(self._unconditional.logits(index)).log_softmax(-1)
        if self._weight == 0:
            return second
        impossible = torch.full_like(first, -torch.inf)
        mixed = torch.where(first == -torch.inf, impossible, second + self._weight * (first - second))
        return torch.where(second == -torch.inf, first if self._weight >= 1 else impossible, mixed)


def drop_mask(logits: Tensor, num_tokens: int | None) -> Tensor:
    """Drop the column of the mask, if there is one; refuse another number of columns."""
    width = logits.shape[-1]
    if num_tokens is None or width == num_tokens:
        return logits
    if width == num_tokens + 1:
        return logits[..., :num_tokens]
    raise BadLogits(
        f"the denoiser returned {width} logits for a coordinate, the process has {num_tokens} data tokens "
        "(or one more: the mask)"
    )
