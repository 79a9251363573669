"""Denoisers: (x, t, condition) -> Evaluation, which is one NFE.

Shapes: B sequences, D coordinates, V data tokens, C columns of the condition. A condition (B, C) holds
integers; `DROPPED` in a column says nothing about it, and a row of them asks for the unconditional posterior.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from tauflow.denoise.evaluation import (
    Evaluation,
    GuidedEvaluation,
    HiddenEvaluation,
    LogitsEvaluation,
    TemperedEvaluation,
    Wrapped,
    drop_mask,
)
from tauflow.errors import BadLogits, SamplingError

DROPPED = -1  # of a condition: not given
LARGEST = 1e6  # temperature or guidance weight: far more, and float32 overflows instead of the model


class Denoiser(ABC):
    """Abstract. `forwards` is the number of network calls that one evaluation takes."""

    forwards: int = 1
    conditions: tuple[int, ...] = ()  # how many values each column of a condition has; empty: it takes none
    num_tokens: int | None = None  # V that it was made for, where it is known

    @abstractmethod
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        """Evaluate the network once at states x (B, D), times t (B,) and a condition (B, C).

        They are the sampler's own: a denoiser does not write into them.
        """

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        """Return what asks for the unconditional posterior beside a condition (B, C).

        None, no condition at all, unless the network was trained to drop conditions in a way of its own.
        """
        return None

    @property
    def device(self) -> torch.device:
        """Return where to sample: where the parameters are, if there are any."""
        return torch.device("cpu")


class SplitDenoiser(Denoiser):
    """A network with hidden(x, t) -> (B, D, W) and head(rows) -> (..., V); gradients are never kept.

    A network that says `conditions`, a size for each column, is called as hidden(x, t, condition). It is
    given copies, which it may overwrite. `masked` says that it may give V + 1 logits, the mask last. A
    network with null_condition(condition) says itself what drops a condition.
    """

    def __init__(self, network: Any, num_tokens: int | None = None, masked: bool = False):
        self.network = network
        self.num_tokens = num_tokens
        self.masked = masked
        self.conditions = tuple(getattr(network, "conditions", ()))

    @torch.no_grad()
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        hidden = self.network.hidden(*_copies(x, t, condition, self.conditions))
        return HiddenEvaluation(self.network.head, hidden, self.num_tokens, self.masked)

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        return _null_condition(self.network, condition)

    @property
    def device(self) -> torch.device:
        return _device_of(self.network)


class CallableDenoiser(Denoiser):
    """Any callable (x (B, D) int64, t (B,) float) -> logits (B, D, V).

    A callable that says `conditions`, a size for each column, is called with (x, t, condition). It is given
    copies, which it may overwrite. `masked` says that it may give (B, D, V + 1) with the mask last.
    """

    def __init__(self, function: Callable[..., Tensor], num_tokens: int, masked: bool = False):
        self.function = function
        self.num_tokens = num_tokens
        self.masked = masked
        self.conditions = tuple(getattr(function, "conditions", ()))

    @torch.no_grad()
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        logits = self.function(*_copies(x, t, condition, self.conditions))
        if not isinstance(logits, Tensor) or logits.shape[:2] != x.shape or logits.ndim != 3:
            got = str(tuple(logits.shape)) if isinstance(logits, Tensor) else type(logits).__name__
            raise BadLogits(
                f"the denoiser must return logits of shape {(*x.shape, self.num_tokens)}, got {got}"
            )
        return LogitsEvaluation(drop_mask(logits, self.num_tokens, self.masked))

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        return _null_condition(self.function, condition)

    @property
    def device(self) -> torch.device:
        return _device_of(self.function)


class Wrapper(Denoiser):
    """Abstract: a denoiser around another one."""

    def __init__(self, denoiser: Denoiser):
        self.denoiser = denoiser
        self.forwards = denoiser.forwards
        self.conditions = denoiser.conditions
        self.num_tokens = denoiser.num_tokens

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        return self.denoiser.null_condition(condition)

    @property
    def device(self) -> torch.device:
        return self.denoiser.device


class GuidedDenoiser(Wrapper):
    """ln p = ln p_unconditional + weight (ln p_conditional - ln p_unconditional), renormalised.

    Weight 1 is no guidance. `unconditional` is a denoiser of its own, or None: the same one with its
    condition dropped (classifier-free guidance). Either way an evaluation takes the forwards of both. A token
    that is impossible under the condition stays so. One that is impossible without it has no finite guidance:
    it keeps its conditional log-probability (weight >= 1), or is impossible (less).
    """

    unconditional: Denoiser | None
    weight: float

    def __init__(self, conditional: Denoiser, unconditional: Denoiser | None, weight: float):
        super().__init__(conditional)
        self.unconditional = unconditional
        self.weight = checked_weight(weight)
        self.forwards = conditional.forwards + (unconditional or conditional).forwards

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        first = self.denoiser.evaluate(x, t, condition).kept()  # both may be one network
        other = self.unconditional or self.denoiser
        second = other.evaluate(x, t, other.null_condition(condition))
        return GuidedEvaluation(first, second, self.weight)


def checked_weight(weight: float) -> float:
    """Return a guidance weight; refuse one that is no finite number."""
    if not isinstance(weight, Real) or not abs(weight) <= LARGEST:
        raise SamplingError(
            f"the guidance weight must be a finite number up to {LARGEST:g}, got {weight!r}; 1 is no guidance"
        )
    return float(weight)


class TemperedDenoiser(Wrapper):
    """Divides the logits by a temperature: below 1 is surer than the network."""

    temperature: float

    def __init__(self, denoiser: Denoiser, temperature: float):
        super().__init__(denoiser)
        if not isinstance(temperature, Real) or not 1 / LARGEST <= temperature <= LARGEST:
            raise SamplingError(
                f"temperature must be above 0, from {1 / LARGEST:g} to {LARGEST:g}, got {temperature!r}; a "
                "small one such as 0.1 is nearly greedy"
            )
        self.temperature = float(temperature)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        return TemperedEvaluation(self.denoiser.evaluate(x, t, condition), self.temperature)


class RetimedDenoiser(Wrapper):
    """Tells the network another time than that of the sampler."""

    def __init__(self, denoiser: Denoiser, own_time: Callable[[Tensor], Tensor]):
        super().__init__(denoiser)
        self.own_time = own_time

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        return self.denoiser.evaluate(x, self.own_time(t).to(t), condition)


class CountingDenoiser(Wrapper):
    """Counts what is really evaluated, and notes when."""

    def __init__(self, denoiser: Denoiser):
        super().__init__(denoiser)
        self.evaluations = 0

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        self.evaluations += 1
        evaluation = self.denoiser.evaluate(x, t, condition)
        evaluation.t = t
        return evaluation


class TimedDenoiser(Wrapper):
    """Sums up the seconds spent in the network, the head on single rows included."""

    def __init__(self, denoiser: Denoiser):
        super().__init__(denoiser)
        self.seconds = 0.0

    def timed(self, function: Callable[[], Any]) -> Any:
        begin = now()
        result = function()
        self.seconds += now() - begin
        return result

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        return TimedEvaluation(self.timed(lambda: self.denoiser.evaluate(x, t, condition)), self)


class TimedEvaluation(Wrapped):
    def __init__(self, evaluation: Evaluation, timer: TimedDenoiser):
        super().__init__(evaluation)
        self._timer = timer

    def logits(self, index: Tensor | slice) -> Tensor:
        return self._timer.timed(lambda: self._evaluations[0].logits(index))


def now() -> float:
    """Return seconds, after all queued work of a GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def denoiser_from(model: Any, num_tokens: int, masked: bool = False) -> Denoiser:
    """Return a Denoiser from itself, a network with hidden() and head(), or any callable (x, t) -> logits.

    `masked` says that the process has a mask, whose column of the logits is dropped.
    """
    if isinstance(model, Denoiser):
        if model.num_tokens not in (None, num_tokens):
            raise BadLogits(
                f"the denoiser is made for {model.num_tokens} data tokens, the process has {num_tokens}; "
                "give the process of its training"
            )
        return model
    if hasattr(model, "hidden") and hasattr(model, "head"):
        return SplitDenoiser(model, num_tokens, masked)
    if callable(model):
        return CallableDenoiser(model, num_tokens, masked)
    known = "a Denoiser, a network with hidden() and head(), or a callable (x, t) -> logits"
    raise TypeError(f"a denoiser is {known}, not {type(model).__name__}")


def _copies(
    x: Tensor, t: Tensor, condition: Tensor | None, conditions: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """Return what a network is called with, which it may overwrite."""
    copies = x.clone(), t.clone()
    if not conditions:
        return copies
    if condition is None:
        return *copies, torch.full((len(x), len(conditions)), DROPPED, device=x.device)
    return *copies, condition.to(x.device, copy=True)


def _null_condition(model: Any, condition: Tensor | None) -> Tensor | None:
    """Return what a network or callable makes of a condition to drop it; None where it says nothing."""
    drop = getattr(model, "null_condition", None)
    return drop(condition) if callable(drop) else None


def _device_of(model: Any) -> torch.device:
    parameters = getattr(model, "parameters", None)
    parameter = next(iter(parameters()), None) if callable(parameters) else None
    return parameter.device if isinstance(parameter, nn.Parameter | Tensor) else torch.device("cpu")
