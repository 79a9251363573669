"""Denoisers: (x, t, condition) -> Evaluation, which is one NFE.

Shapes: B sequences, D coordinates, V data tokens, C columns of the condition. A condition (B, C) holds
integers; `DROPPED` in a column says nothing about it, and a row of them asks for the unconditional posterior.
"""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from tauflow.denoise.context import Context
from tauflow.denoise.evaluation import Evaluation, GuidedEvaluation, TemperedEvaluation, Wrapped
from tauflow.errors import SamplingError

DROPPED = -1  # of a condition: not given
LARGEST = 1e6  # temperature or guidance weight: far more, and float32 overflows instead of the model


class Denoiser(ABC):
    """Abstract. `forwards` is the number of network calls that one evaluation takes."""

    forwards: int = 1
    conditions: tuple[int, ...] = ()  # how many values each column of a condition has; empty: it takes none
    num_tokens: int | None = None  # V that it was made for, where it is known
    attends: bool = False  # whether it can be told which coordinates are read
    remembers: bool = False  # whether it reads what its last evaluation left
    samples: int | None = None  # B, where it knows something of each sequence of a batch
    attention: Tensor | None = None  # (B, D), true where a coordinate is read; None: everywhere

    @abstractmethod
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        """Evaluate the network once at states x (B, D), times t (B,) and a condition (B, C).

        They are the sampler's own: a denoiser does not write into them.
        """

    def within(self, context: Context) -> "Denoiser":
        """Return the denoiser for evaluations within a context; itself, where it needs nothing of it."""
        return self

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        """Return what asks for the unconditional posterior beside a condition (B, C).

        None, no condition at all, unless the network was trained to drop conditions in a way of its own.
        """
        return None

    @property
    def device(self) -> torch.device:
        """Return where to sample: where the parameters are, if there are any."""
        return torch.device("cpu")


class Wrapper(Denoiser):
    """Abstract: a denoiser around another one."""

    def __init__(self, denoiser: Denoiser):
        self.denoiser = denoiser
        self.forwards = denoiser.forwards
        self.conditions = denoiser.conditions
        self.num_tokens = denoiser.num_tokens
        self.attends = denoiser.attends
        self.remembers = denoiser.remembers
        self.samples = denoiser.samples
        self.attention = denoiser.attention

    def within(self, context: Context) -> Denoiser:
        return self.copied(denoiser=self.denoiser.within(context))

    def copied(self, **changes: Any) -> Self:
        """Return a copy with other attributes, which shares all else."""
        result = copy.copy(self)
        for name, value in changes.items():
            setattr(result, name, value)
        return result

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
        other = unconditional or conditional
        self.forwards = conditional.forwards + other.forwards
        self.attends = conditional.attends and other.attends
        self.remembers = conditional.remembers or other.remembers
        self.samples = conditional.samples or other.samples
        if not _same(conditional.attention, other.attention):
            raise SamplingError(
                "the two networks of guidance read different coordinates; guide first: "
                "guided(...).attending(...)"
            )

    def within(self, context: Context) -> Denoiser:
        first, second = context.memory if isinstance(context.memory, tuple) else (None, None)
        other = self.unconditional or self.denoiser
        return self.copied(
            denoiser=self.denoiser.within(context.remembering(first)),
            unconditional=other.within(context.remembering(second)),
        )

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        first = self.denoiser.evaluate(x, t, condition).kept()  # both may be one network
        other = self.unconditional or self.denoiser
        second = other.evaluate(x, t, other.null_condition(condition))
        return GuidedEvaluation(first, second, self.weight)


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second.to(first.device))


def checked_weight(weight: float) -> float:
    """Return a guidance weight; refuse one that is no finite number."""
    if not isinstance(weight, Real) or not abs(weight) <= LARGEST:
        raise SamplingError(
            f"the guidance weight must be a finite number up to {LARGEST:g}, got {weight!r}; 1 is no guidance"
        )
    return float(weight)


def checked_temperature(temperature: float) -> float:
    """Return a temperature; refuse one that is no finite number above 0."""
    if not isinstance(temperature, Real) or not 1 / LARGEST <= temperature <= LARGEST:
        raise SamplingError(
            f"temperature must be above 0, from {1 / LARGEST:g} to {LARGEST:g}, got {temperature!r}; a small "
            "one such as 0.1 is nearly greedy"
        )
    return float(temperature)


class TemperedDenoiser(Wrapper):
    """Divides the logits by a temperature: below 1 is surer than the network."""

    temperature: float

    def __init__(self, denoiser: Denoiser, temperature: float):
        super().__init__(denoiser)
        self.temperature = checked_temperature(temperature)

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
    """Counts what is really evaluated, within whatever context, and notes when."""

    def __init__(self, denoiser: Denoiser):
        super().__init__(denoiser)
        self._count = [0]  # shared with the copies of other contexts

    @property
    def evaluations(self) -> int:
        """Return how many there were."""
        return self._count[0]

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        self._count[0] += 1
        evaluation = self.denoiser.evaluate(x, t, condition)
        evaluation.t = t
        return evaluation


class TimedDenoiser(Wrapper):
    """Sums up the seconds spent in the network, the head on single rows included."""

    def __init__(self, denoiser: Denoiser):
        super().__init__(denoiser)
        self._spent = [0.0]  # shared with the copies of other contexts

    @property
    def seconds(self) -> float:
        """Return the seconds so far."""
        return self._spent[0]

    def timed(self, function: Callable[[], Any]) -> Any:
        begin = now()
        result = function()
        self._spent[0] += now() - begin
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
