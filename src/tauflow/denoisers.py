"""Denoisers: one network evaluation at (x, t), read lazily as rows of the posterior p(x_1^d = s | x_t).

Shapes: B sequences, D coordinates, V data tokens, R rows. A row is named by its place in the flattened (B * D,).

An Evaluation is one NFE. For a network that is split into hidden() and head() it holds hidden states and applies the head only to the rows
that are read; for any other callable it holds the logits. Rows are float32, or float64 where the logits are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tauflow.errors import BadLogits
from tauflow.sources import Source

HALF = (torch.float16, torch.bfloat16)


def take(values: Tensor, index: Tensor | slice) -> Tensor:
    """values[index] along the first dimension; index_select is several times faster than indexing for few rows."""
    return values.index_select(0, index) if isinstance(index, Tensor) else values[index]


class Evaluation(ABC):
    """The posterior of all coordinates after one evaluation."""

    shape: tuple[int, int]  # (B, D)
    temperature: float = 1.0
    t: Tensor | None = None  # (B,) when it was made

    @abstractmethod
    def logits(self, index: Tensor | slice) -> Tensor:
        """Logits (R, V) of the coordinates index (R,)."""

    @torch.no_grad()
    def rows(self, index: Tensor | slice) -> Tensor:
        """Posterior rows (R, V) of the coordinates index (R,)."""
        logits = self.logits(index)
        if not logits.is_floating_point():
            raise BadLogits(f"the denoiser returned {logits.dtype} for logits; return floating-point numbers")
        logits = logits.float() if logits.dtype in HALF else logits
        if self.temperature != 1:
            logits = logits / self.temperature
        rows = logits.softmax(-1)
        if not math.isfinite(rows[:, 0].sum()):  # a NaN, +inf or a row of -inf makes the whole row NaN
            raise BadLogits("the denoiser returned NaN, +inf or only -inf logits for a coordinate", self.t)
        return rows

    def at(self, index: Tensor, tokens: Tensor) -> Tensor:
        """Posterior entries (R,) of one token for each of the coordinates index (R,)."""
        return self.rows(index).gather(1, tokens[:, None]).squeeze(1)

    def dense(self) -> Tensor:
        """The whole posterior (B, D, V)."""
        return self.rows(slice(None)).unflatten(0, self.shape)


class Denoiser(ABC):
    """(x (B, D), t (B,)) -> Evaluation; `forwards` is the number of network calls that one evaluation takes."""

    forwards: int = 1

    @abstractmethod
    def evaluate(self, x: Tensor, t: Tensor) -> Evaluation: ...

    @property
    def device(self) -> torch.device:
        """Where to sample unless told otherwise: where the parameters are, if there are any."""
        return torch.device("cpu")


class HiddenEvaluation(Evaluation):
    def __init__(self, head: Callable[[Tensor], Tensor], hidden: Tensor, num_tokens: int | None):
        self.shape = tuple(hidden.shape[:2])
        self._head = head
        self._hidden = hidden.flatten(0, 1)  # (B * D, W)
        self._num_tokens = num_tokens

    @torch.no_grad()
    def logits(self, index):
        return _drop_mask(self._head(take(self._hidden, index)), self._num_tokens)


class SplitDenoiser(Denoiser):
    """A network with hidden(x, t) -> (B, D, W) and head(rows) -> (..., V); gradients are never kept."""

    def __init__(self, network: nn.Module, num_tokens: int | None = None):
        self.network = network
        self.num_tokens = num_tokens

    @torch.no_grad()
    def evaluate(self, x, t):
        return HiddenEvaluation(self.network.head, self.network.hidden(x, t), self.num_tokens)

    @property
    def device(self):
        return _device_of(self.network)


class LogitsEvaluation(Evaluation):
    def __init__(self, logits: Tensor):
        self.shape = tuple(logits.shape[:2])
        self._logits = logits.flatten(0, 1)  # (B * D, V)

    def logits(self, index):
        return take(self._logits, index)


class CallableDenoiser(Denoiser):
    """Any callable (x (B, D) int64, t (B,) float) -> logits (B, D, V), or (B, D, V + 1) with the mask last."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], num_tokens: int):
        self.function = function
        self.num_tokens = num_tokens

    @torch.no_grad()
    def evaluate(self, x, t):
        logits = self.function(x, t)
        if not isinstance(logits, Tensor) or logits.shape[:2] != x.shape or logits.ndim != 3:
            raise BadLogits(f"the denoiser must return logits of shape {(*x.shape, self.num_tokens)}, got {_shape_of(logits)}")
        return LogitsEvaluation(_drop_mask(logits, self.num_tokens))

    @property
    def device(self):
        return _device_of(self.function)


class GuidedEvaluation(Evaluation):
    def __init__(self, conditional: Evaluation, unconditional: Evaluation, weight: float):
        self.shape = conditional.shape
        self._conditional, self._unconditional, self._weight = conditional, unconditional, weight

    def logits(self, index):
        first, second = (part.logits(index) for part in (self._conditional, self._unconditional))
        first, second = (part.float() if part.dtype in HALF else part for part in (first, second))
        first, second = first.log_softmax(-1), second.log_softmax(-1)
        if self._weight == 0:
            return second
        impossible = torch.full_like(first, -torch.inf)
        mixed = torch.where(first == -torch.inf, impossible, second + self._weight * (first - second))
        return torch.where(second == -torch.inf, first if self._weight >= 1 else impossible, mixed)


class GuidedDenoiser(Denoiser):
    """ln p = ln p_unconditional + weight (ln p_conditional - ln p_unconditional), renormalised: weight 1 is no guidance, more is more.

    A token that is impossible under the condition stays so. One that is impossible without it has no finite guidance: it keeps its
    conditional log-probability (weight >= 1), or is impossible (less).
    """

    def __init__(self, conditional: Denoiser, unconditional: Denoiser, weight: float):
        self.conditional, self.unconditional, self.weight = conditional, unconditional, weight
        self.forwards = conditional.forwards + unconditional.forwards

    def evaluate(self, x, t):
        return GuidedEvaluation(self.conditional.evaluate(x, t), self.unconditional.evaluate(x, t), self.weight)

    @property
    def device(self):
        return self.conditional.device


@dataclass
class CountingDenoiser(Denoiser):
    """Counts what is really evaluated, and sets the temperature."""

    denoiser: Denoiser
    temperature: float = 1.0
    evaluations: int = 0

    def evaluate(self, x, t):
        self.evaluations += 1
        evaluation = self.denoiser.evaluate(x, t)
        evaluation.temperature, evaluation.t = self.temperature, t
        return evaluation


def denoiser_from(model, source: Source) -> Denoiser:
    """A Denoiser from itself, a network with hidden() and head(), or any callable (x, t) -> logits."""
    if isinstance(model, Denoiser):
        width = getattr(model, "num_tokens", None)
        if width not in (None, source.num_tokens):
            raise BadLogits(
                f"the denoiser is made for {width} data tokens, the source has {source.num_tokens}; give the source of its training"
            )
        return model
    if hasattr(model, "hidden") and hasattr(model, "head"):
        return SplitDenoiser(model, source.num_tokens)
    if callable(model):
        return CallableDenoiser(model, source.num_tokens)
    known = "a Denoiser, a network with hidden() and head(), or a callable (x, t) -> logits"
    raise TypeError(f"a denoiser is {known}, not {type(model).__name__}")


def from_probabilities(model: Callable) -> Callable[[Tensor, Tensor], Tensor]:
    """Adapter for models that return probabilities, such as a ModelWrapper of the flow_matching package: `from_probabilities(model)`."""
    return _like(model, lambda x, t: model(x=x, t=t).log())


def from_masked_lm(model: nn.Module, tokens: Tensor, mask_token_id: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Adapter for masked language models of transformers.

    `tokens` (V,) are the model's ids of the data tokens, without its special tokens: token s of tauflow is `tokens[s]` of the model, and
    the mask of a Masked(V) source becomes `mask_token_id`.
    """

    def function(x: Tensor, t: Tensor) -> Tensor:
        ids = torch.cat([tokens, tokens.new_tensor([mask_token_id])]).to(x.device)
        return model(input_ids=ids[x]).logits[..., ids[:-1]]

    return _like(model, function)


def _drop_mask(logits: Tensor, num_tokens: int | None) -> Tensor:
    width = logits.shape[-1]
    if num_tokens is None or width == num_tokens:
        return logits
    if width == num_tokens + 1:
        return logits[..., :num_tokens]
    raise BadLogits(f"the denoiser returned {width} logits a coordinate, the source has {num_tokens} data tokens (or one more: the mask)")


def _like(model, function: Callable) -> Callable:
    """The function, with the model's parameters: so its device is known."""
    if hasattr(model, "parameters"):
        function.parameters = model.parameters
    return function


def _device_of(model) -> torch.device:
    parameters = getattr(model, "parameters", None)
    parameter = next(iter(parameters()), None) if callable(parameters) else None
    return parameter.device if parameter is not None else torch.device("cpu")


def _shape_of(value) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
