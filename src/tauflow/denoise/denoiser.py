"""Context: what an evaluation is told besides states, times and conditions.

`Denoiser.within(context)` gives the denoiser that answers so; every denoiser around another one hands it on.
"""

import copy
import dataclasses
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from tauflow.errors import BadLogits, SamplingError

Memory: TypeAlias = "Tensor | tuple[Memory, ...] | None"
"""What an evaluation leaves for the next: hidden states or logits (B, D, ...), or a memory for each of the
networks or parts of a batch that it is made of."""


@dataclass(frozen=True)
class Context:
    """What an evaluation is told besides states, times and conditions.

    Args:
        first: number of the first sequence in the batch that is sampled, where a part of it is evaluated;
            None: all are.
        attention: true (B, D) where a coordinate is read; the others are padding.
        memory: what the evaluation before left.
    """

    first: int | None = None
    attention: Tensor | None = None
    memory: Memory = None

    def part(self, begin: int, end: int, memory: Memory) -> "Context":
        """Return the context of the sequences from begin to end, which remember something of their own."""
        attention = None if self.attention is None else self.attention[begin:end]
        return Context((self.first or 0) + begin, attention, memory)

    def own(self, values: Tensor, count: int) -> Tensor:
        """Return what belongs to `count` sequences of this context, of values (B, ...) of all."""
        return values if self.first is None else values[self.first : self.first + count]

    def remembering(self, memory: Memory) -> "Context":
        """Return the context with another memory."""
        return dataclasses.replace(self, memory=memory)


# Evaluation: the posterior p(x_1^d = s | x_t) of all coordinates after one network evaluation, read lazily.
#
# Shapes: B sequences, D coordinates, V data tokens, R rows. A row is named by its place in the flattened (B *
# D,). An Evaluation is one NFE. For a network that is split into hidden() and head() it holds hidden states
# and applies the head only to the rows that are read; for any other callable it holds the logits. Rows are
# float32, or float64 where the logits are.
#
# A network may write its next answer over the last one (CUDA graphs, `torch.compile(mode="reduce-
# overhead")`), so an Evaluation is good until the denoiser is evaluated again; `kept` gives one that is good
# beyond that.


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


# Denoisers: (x, t, condition) -> Evaluation, which is one NFE.
#
# Shapes: B sequences, D coordinates, V data tokens, C columns of the condition. A condition (B, C) holds
# integers; `DROPPED` in a column says nothing about it, and a row of them asks for the unconditional
# posterior.


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


# RememberingDenoiser: evaluations of one run, each of which is given what the one before it left.
#
# That is self-conditioning: a network that says `remembers` reads what it answered last. A network of a
# guided denoiser, and a part of a batch, has a memory of its own, and what it remembers is its own answer:
# neither guided nor tempered nor restricted to allowed tokens.


class RememberingDenoiser(Wrapper):
    """Gives every evaluation what the one before it left, and the first nothing.

    Stages of a step follow one another like steps: in a method with two, the first stage leaves its memory to
    the second, and that to the first of the next step. Only an evaluation at an earlier time than the last
    one is no part of this chain (`tr_cie_exact` evaluates the new state at the old time): it is given what
    the last one was given, so that both differ in time alone, and leaves nothing. An evaluation that fails
    changes nothing.
    """

    def __init__(self, denoiser: Denoiser):
        super().__init__(denoiser)
        self._last: Evaluation | None = None
        self._t: Tensor | None = None  # (B,) of the last one
        self._given: Memory = None  # what the last one was given
        self._left: Memory = None  # what it left, once that was asked for

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        if not self.remembers:
            return self.denoiser.evaluate(x, t, condition)
        if self._last is not None:
            self._left, self._last = self._last.memory, None  # read before the network writes over it
        back = self._t is not None and len(t) == len(self._t) and bool((t < self._t).any())
        given = self._given if back else self._left
        evaluation = self.denoiser.within(Context(memory=given)).evaluate(x, t, condition)
        if not back:
            self._last, self._t, self._given = evaluation, t, given
        return evaluation


# BatchedDenoiser: evaluates a batch in parts, so that the logits of one part fit into memory.
#
# Shapes: B sequences, D coordinates, V data tokens, R rows.


HELD = 2**29  # bytes of the parts of an evaluation that are kept for reading them again


class BatchedDenoiser(Wrapper):
    """Evaluates so many sequences at a time, when their rows are read."""

    def __init__(self, denoiser: Denoiser, batch_size: int):
        super().__init__(denoiser)
        self.batch_size = batch_size
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        return self.copied(_context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        return BatchedEvaluation(self._parts(len(x)), self.batch_size, x, t, condition)

    def _parts(self, count: int) -> list[Denoiser]:
        """Return the denoiser of each part, with what belongs to its sequences."""
        begins = range(0, count, self.batch_size)
        if not self.remembers and self.samples is None and self._context.attention is None:
            return [self.denoiser] * len(begins)
        memories = self._context.memory
        own = memories if isinstance(memories, tuple) else (None,) * len(begins)
        return [
            self.denoiser.within(self._context.part(begin, begin + self.batch_size, memory))
            for begin, memory in zip(begins, own, strict=True)
        ]


class BatchedEvaluation(Evaluation):
    """Evaluations of parts of a batch, each by its own denoiser.

    All are kept if that takes at most HELD bytes. Otherwise only the last one is, and a part whose rows are
    read again is evaluated again: a method that looks back then calls the network twice as often. What a part
    leaves for the next evaluation is kept.
    """

    def __init__(
        self,
        denoisers: list[Denoiser],
        batch_size: int,
        x: Tensor,
        t: Tensor,
        condition: Tensor | None = None,
    ):
        self.shape = (x.shape[0], x.shape[1])
        self._denoisers = denoisers
        conditions = [None] * len(denoisers) if condition is None else condition.split(batch_size)
        self._inputs = list(zip(x.split(batch_size), t.split(batch_size), conditions, strict=True))
        self._rows = batch_size * x.shape[1]  # of a part
        self._parts: dict[int, Evaluation] = {}
        self._left: dict[int, Memory] = {}  # by parts that are not kept
        self._keeps_all = True

    def part(self, number: int) -> Evaluation:
        """Return the evaluation of one part."""
        if number not in self._parts:
            if not self._keeps_all:
                self._forget()
            part = self._denoisers[number].evaluate(*self._inputs[number]).kept()
            self._keeps_all = part.nbytes * len(self._inputs) <= HELD
            self._parts[number] = part
        return self._parts[number]

    def _forget(self) -> None:
        """Drop the parts, but for what each leaves for the next evaluation."""
        for number, part in self._parts.items():
            if self._denoisers[number].remembers:
                self._left[number] = part.memory
        self._parts.clear()

    @property
    def memory(self) -> Memory:
        """Return what each part leaves; one that nobody has read is evaluated for it."""
        numbers = range(len(self._inputs))
        return tuple(self._left[n] if n in self._left else self.part(n).memory for n in numbers)

    def logits(self, index: Tensor | slice) -> Tensor:
        if isinstance(index, slice):
            batch, length = self.shape
            index = torch.arange(batch * length, device=self._inputs[0][0].device)[index]
        numbers = index // self._rows
        found = None
        for number in numbers.unique().tolist() or [0]:
            own = (numbers == number).nonzero().squeeze(1)
            logits = self.part(number).logits(index[own] % self._rows)
            if len(own) == len(index):
                return logits
            if found is None:
                found = logits.new_empty(len(index), logits.shape[-1])
            found[own] = logits  # copied at once: the head may answer in the same memory next time
        assert found is not None
        return found


# Networks and callables as denoisers.
#
# Shapes: B sequences, D coordinates, V data tokens, C columns of the condition, W width. A network or
# callable says by attributes what it takes besides states x (B, D) and times t (B,), and gets only that:
#
#     conditions = (10, 3)   a condition (B, C) of so many values in each column, third
#     attends = True         attention=, true (B, D) where a coordinate is read and not padding; None: all are
#     remembers = True       memory=, what it answered at the last evaluation: hidden states (B, D, W) of a
#                            network with hidden() and head(), logits (B, D, V) of a callable; None at first
#
# It is given copies, which it may overwrite, and gradients are never kept. With null_condition(condition) it
# says itself what drops a condition.


class AskingDenoiser(Denoiser):
    """Abstract: asks a network or a callable, which says by attributes what it takes.

    `masked` says that it may give V + 1 logits, the mask last.
    """

    def __init__(self, asked: Any, num_tokens: int | None, masked: bool = False):
        self.num_tokens = num_tokens
        self.masked = masked
        self.conditions = tuple(getattr(asked, "conditions", ()))
        self.attends = bool(getattr(asked, "attends", False))
        self.remembers = bool(getattr(asked, "remembers", False))
        self._asked = asked
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        if not (self.attends or self.remembers):
            return self
        result = copy.copy(self)
        result._context = context
        return result

    def ask(self, function: Callable[..., Tensor], x: Tensor, t: Tensor, condition: Tensor | None) -> Tensor:
        """Return what a function of the network answers to what it takes."""
        inputs = [x.clone(), t.clone()]
        if self.conditions:
            dropped = torch.full((len(x), len(self.conditions)), DROPPED, device=x.device)
            inputs.append(dropped if condition is None else condition.to(x.device, copy=True))
        more: dict[str, Tensor | None] = {}
        if self.attends:
            attention = self._context.attention
            more["attention"] = None if attention is None else attention.to(x.device, copy=True)
        if self.remembers:
            more["memory"] = _own_memory(self._context.memory, x)
        return function(*inputs, **more)

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        drop = getattr(self._asked, "null_condition", None)
        return drop(condition) if callable(drop) else None

    @property
    def device(self) -> torch.device:
        parameters = getattr(self._asked, "parameters", None)
        parameter = next(iter(parameters()), None) if callable(parameters) else None
        return parameter.device if isinstance(parameter, nn.Parameter | Tensor) else torch.device("cpu")


class SplitDenoiser(AskingDenoiser):
    """A network with hidden(x, t, ...) -> (B, D, W) and head(rows) -> (..., V)."""

    def __init__(self, network: Any, num_tokens: int | None = None, masked: bool = False):
        super().__init__(network, num_tokens, masked)
        self.network = network

    @torch.no_grad()
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        hidden = self.ask(self.network.hidden, x, t, condition)
        return HiddenEvaluation(self.network.head, hidden, self.num_tokens, self.masked)


class CallableDenoiser(AskingDenoiser):
    """Any callable (x (B, D) int64, t (B,) float, ...) -> logits (B, D, V), or (B, D, V + 1) if masked."""

    def __init__(self, function: Callable[..., Tensor], num_tokens: int, masked: bool = False):
        super().__init__(function, num_tokens, masked)
        self.function = function

    @torch.no_grad()
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        logits = self.ask(self.function, x, t, condition)
        if not isinstance(logits, Tensor) or logits.shape[:2] != x.shape or logits.ndim != 3:
            got = str(tuple(logits.shape)) if isinstance(logits, Tensor) else type(logits).__name__
            raise BadLogits(
                f"the denoiser must return logits of shape {(*x.shape, self.num_tokens)}, got {got}"
            )
        return LogitsEvaluation(drop_mask(logits, self.num_tokens, self.masked))


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


def _own_memory(memory: Any, x: Tensor) -> Tensor | None:
    """Return a copy of a memory (B, D, ...) of the sequences x (B, D)."""
    if memory is None:
        return None
    return memory.clone()
