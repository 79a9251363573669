"""Denoiser: what answers a query with a posterior, which is one network evaluation (NFE).

Shapes: B sequences, D coordinates, V data tokens, C columns of the condition, W width, R rows. A condition
(B, C) holds integers; `DROPPED` in a column says nothing about it, and a row of them asks for the
unconditional posterior.

A network or callable declares by attributes what it takes besides states x (B, D) and times t (B,), and gets
only that:

    conditions = (10, 3)   a condition (B, C) with this many values in each column, third
    attends = True         attention=, true (B, D) where a coordinate is read and not padding; None: all are
    remembers = True       memory=, what it answered at the last evaluation: hidden states (B, D, W) of a
                           network with hidden() and head(), logits (B, D, V) of a callable; None at first

It is given copies, which it may overwrite, and gradients are never kept. With null_condition(condition) it
declares itself what drops a condition.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tauflow.denoise.posterior import (
    HiddenPosterior,
    LogitsPosterior,
    Memory,
    Posterior,
    Query,
    WrappedPosterior,
    drop_mask,
)
from tauflow.errors import BadLogits, SamplingError

DROPPED = -1  # in a condition: not given
MAX_BYTES = 2**29  # of the parts of a batch that are kept for reading them again


class Denoiser(ABC):
    """Abstract: maps states and times to a posterior of the data.

    You rarely need to subclass it: `Model` takes any network or callable (x, t) -> logits. Do so for a
    posterior that isn't made of logits, and return a `LogitsPosterior` or your own `Posterior`.

    Examples:
        >>> import torch
        >>> from tauflow.denoise import Denoiser, LogitsPosterior
        >>> class Flat(Denoiser):
        ...     def evaluate(self, x, t, condition=None):
        ...         return LogitsPosterior(torch.zeros(*x.shape, 3))
        >>> Flat().evaluate(torch.zeros(1, 2).long(), torch.zeros(1)).dense().shape
        torch.Size([1, 2, 3])
    """

    forwards: int = 1  # network calls that one evaluation takes
    conditions: tuple[int, ...] = ()  # how many values each column of a condition has; empty: it takes none
    num_tokens: int | None = None  # V that it was made for, where it is known
    attends: bool = False  # whether it can be told which coordinates are read
    remembers: bool = False  # whether it reads what its last evaluation left
    samples: int | None = None  # B, where it knows something about each sequence of a batch
    attention: Tensor | None = None  # (B, D), true where a coordinate is read; None: everywhere

    @abstractmethod
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Posterior:
        """Evaluate the network once at states x (B, D), times t (B,), and a condition (B, C).

        They are the sampler's own: don't write into them.
        """

    def posterior(self, query: Query) -> Posterior:
        """Answer a query. Override this if you need its attention, memory, or sequences."""
        return self.evaluate(query.x, query.t, query.condition)

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        """Return what asks for the unconditional posterior in place of a condition (B, C).

        None, no condition at all, unless the network was trained to drop conditions in its own way.
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

    @abstractmethod
    def posterior(self, query: Query) -> Posterior: ...

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Posterior:
        return self.posterior(Query(x, t, condition))

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        return self.denoiser.null_condition(condition)

    @property
    def device(self) -> torch.device:
        return self.denoiser.device


class NetworkDenoiser(Denoiser):
    """Abstract: asks a network or a callable, and gives it what it declares to take.

    `masked` says that it may give V + 1 logits, the mask last.
    """

    def __init__(self, network: Any, num_tokens: int | None = None, masked: bool = False):
        self.network = network
        self.num_tokens = num_tokens
        self.masked = masked
        self.conditions = tuple(getattr(network, "conditions", ()))
        self.attends = bool(getattr(network, "attends", False))
        self.remembers = bool(getattr(network, "remembers", False))

    @abstractmethod
    def posterior(self, query: Query) -> Posterior: ...

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Posterior:
        return self.posterior(Query(x, t, condition))

    def ask(self, function: Callable[..., Tensor], query: Query) -> Tensor:
        """Return what a function of the network answers to what it takes."""
        device = query.x.device
        inputs = [query.x.clone(), query.t.clone()]
        if self.conditions:
            condition = query.condition
            if condition is None:
                condition = torch.full((len(query.x), len(self.conditions)), DROPPED, device=device)
            inputs.append(condition.to(device, copy=True))
        more: dict[str, Tensor | None] = {}
        if self.attends:
            more["attention"] = None if query.attention is None else query.attention.to(device, copy=True)
        if self.remembers:
            more["memory"] = query.memory.clone() if isinstance(query.memory, Tensor) else None
        return function(*inputs, **more)

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        drop = getattr(self.network, "null_condition", None)
        return drop(condition) if callable(drop) else None

    @property
    def device(self) -> torch.device:
        parameters = getattr(self.network, "parameters", None)
        parameter = next(iter(parameters()), None) if callable(parameters) else None
        return parameter.device if isinstance(parameter, nn.Parameter | Tensor) else torch.device("cpu")


class SplitDenoiser(NetworkDenoiser):
    """A network with hidden(x, t, ...) -> (B, D, W) and head(rows) -> (..., V)."""

    @torch.no_grad()
    def posterior(self, query: Query) -> Posterior:
        hidden = self.ask(self.network.hidden, query)
        return HiddenPosterior(self.network.head, hidden, self.num_tokens, self.masked)


class CallableDenoiser(NetworkDenoiser):
    """Any callable (x (B, D) int64, t (B,) float, ...) -> logits (B, D, V), or (B, D, V + 1) if masked."""

    @torch.no_grad()
    def posterior(self, query: Query) -> Posterior:
        logits = self.ask(self.network, query)
        if not isinstance(logits, Tensor) or logits.shape[:2] != query.x.shape or logits.ndim != 3:
            got = str(tuple(logits.shape)) if isinstance(logits, Tensor) else type(logits).__name__
            raise BadLogits(
                f"the denoiser must return logits of shape {(*query.x.shape, self.num_tokens)}, got {got}"
            )
        return LogitsPosterior(drop_mask(logits, self.num_tokens, self.masked))


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


class RetimedDenoiser(Wrapper):
    """Tells the network a different time than the sampler's."""

    def __init__(self, denoiser: Denoiser, own_time: Callable[[Tensor], Tensor]):
        super().__init__(denoiser)
        self.own_time = own_time

    def posterior(self, query: Query) -> Posterior:
        return self.denoiser.posterior(query.replace(t=self.own_time(query.t).to(query.t)))


class AttendingDenoiser(Wrapper):
    """Tells the network which coordinates (B, D) to read; the others are padding.

    So each sequence has the logits that it has alone, and samplers leave the padding as it is.
    """

    attention: Tensor

    def __init__(self, denoiser: Denoiser, attention: Tensor):
        super().__init__(denoiser)
        if not denoiser.attends:
            raise SamplingError(
                "this network reads every coordinate, so sequences of different lengths need batches of "
                "their own; use a network that says attends = True and takes hidden(..., attention=)"
            )
        self.attention = attention
        self.samples = len(attention)

    def posterior(self, query: Query) -> Posterior:
        return self.denoiser.posterior(query.replace(attention=query.own(self.attention).to(query.x.device)))


class TimedDenoiser(Wrapper):
    """Sums up the seconds spent in the network, including the head on single rows."""

    def __init__(self, denoiser: Denoiser):
        super().__init__(denoiser)
        self.seconds = 0.0

    def timed(self, function: Callable[[], Any]) -> Any:
        begin = now()
        result = function()
        self.seconds += now() - begin
        return result

    def posterior(self, query: Query) -> Posterior:
        return TimedPosterior(self.timed(lambda: self.denoiser.posterior(query)), self)


class TimedPosterior(WrappedPosterior):
    def __init__(self, posterior: Posterior, timer: TimedDenoiser):
        super().__init__(posterior)
        self._timer = timer

    def logits(self, index: Tensor | slice) -> Tensor:
        return self._timer.timed(lambda: self.posteriors[0].logits(index))


def now() -> float:
    """Return seconds, after all queued work of a GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Evaluator:
    """The evaluations of one run: counted, in parts that fit into memory, each given what the last one left.

    Memory is self-conditioning: a network that `remembers` reads what it answered last. The stages of a step
    follow one another like steps. Only an evaluation at an earlier time than the last one isn't part of this
    chain (`tr_cie_exact` evaluates the new state at the old time): it is given what the last one was given,
    so that both differ in time alone, and leaves nothing. An evaluation that fails changes nothing.

    Args:
        denoiser: what is evaluated.
        batch_size: sequences evaluated together, when their rows are read; None: all.
    """

    def __init__(self, denoiser: Denoiser, batch_size: int | None = None):
        self.denoiser = denoiser
        self.batch_size = batch_size
        self.evaluations = 0
        self.forwards = 0  # network calls: two per evaluation with guidance, one per part of a batch
        self._last: Posterior | None = None
        self._t: Tensor | None = None  # (B,) of the last one
        self._given: Memory = None  # what the last one was given
        self._left: Memory = None  # what it left, once that was asked for

    def __call__(self, query: Query) -> Posterior:
        """Evaluate once."""
        self.evaluations += 1
        if not self.denoiser.remembers:
            return self._evaluate(query)
        if self._last is not None:
            self._left = self._last.memory  # read before the network writes over it
            self._last = None
        goes_back = self._t is not None and len(query.t) == len(self._t) and bool((query.t < self._t).any())
        given = self._given if goes_back else self._left
        posterior = self._evaluate(query.replace(memory=given))
        if not goes_back:
            self._last = posterior
            self._t = query.t
            self._given = given
        return posterior

    def _evaluate(self, query: Query) -> Posterior:
        if self.batch_size is None or self.batch_size >= len(query.x):
            return self._forward(query)
        return BatchedPosterior(self._forward, query, self.batch_size, self.denoiser.remembers)

    def _forward(self, query: Query) -> Posterior:
        self.forwards += self.denoiser.forwards
        return self.denoiser.posterior(query)


class BatchedPosterior(Posterior):
    """Posteriors of parts of a batch, each evaluated when its rows are read.

    All are kept if that takes at most MAX_BYTES. Otherwise only the last one is, and a part whose rows are
    read again is evaluated again: a method that looks back then calls the network twice as often. What a part
    leaves for the next evaluation is kept.
    """

    def __init__(
        self, evaluate: Callable[[Query], Posterior], query: Query, batch_size: int, remembers: bool
    ):
        self.shape = (query.x.shape[0], query.x.shape[1])
        self._evaluate = evaluate
        self._queries = list(query.split(batch_size))
        self._remembers = remembers
        self._rows = batch_size * query.x.shape[1]  # of a part
        self._parts: dict[int, Posterior] = {}
        self._left: dict[int, Memory] = {}  # by parts that are not kept
        self._keeps_all = True

    def part(self, number: int) -> Posterior:
        """Return the posterior of one part."""
        if number not in self._parts:
            if not self._keeps_all:
                self._forget()
            part = self._evaluate(self._queries[number]).clone()
            self._keeps_all = part.nbytes * len(self._queries) <= MAX_BYTES
            self._parts[number] = part
        return self._parts[number]

    def _forget(self) -> None:
        """Drop the parts, except what each leaves for the next evaluation."""
        if self._remembers:
            self._left |= {number: part.memory for number, part in self._parts.items()}
        self._parts.clear()

    @property
    def memory(self) -> Memory:
        """Return what each part leaves; one that nobody has read is evaluated for it."""
        numbers = range(len(self._queries))
        return tuple(self._left[n] if n in self._left else self.part(n).memory for n in numbers)

    def logits(self, index: Tensor | slice) -> Tensor:
        if isinstance(index, slice):
            batch, length = self.shape
            index = torch.arange(batch * length, device=self._queries[0].x.device)[index]
        numbers = index // self._rows
        found = None
        for number in numbers.unique().tolist() or [0]:
            own = (numbers == number).nonzero().squeeze(1)
            logits = self.part(number).logits(index[own] % self._rows)
            if len(own) == len(index):
                return logits
            if found is None:
                found = logits.new_empty(len(index), logits.shape[-1])
            found[own] = logits  # copied now: the head may answer in the same memory next time
        assert found is not None
        return found
