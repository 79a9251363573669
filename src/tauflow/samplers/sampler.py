"""Sampler (plan, init, step), what it works on and what it reports.

Shapes: B sequences, D coordinates, V data tokens, R rows. A Plan is what follows from the budget alone, a
State holds what the next step needs, StepInfo what a reader of logs wants.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from tauflow.denoise import Evaluator, LearnedCounts, Model, Posterior, Query
from tauflow.denoise.model import ChannelsName
from tauflow.errors import SamplingError
from tauflow.process import Process
from tauflow.samplers.geometry import Curve, curve_of
from tauflow.samplers.random import DRAWN, Drawing, chunks

FinishName = Literal["draw", "reuse", "none"]


class Plan(Protocol):
    """What a sampler does with a budget, before anything is drawn."""

    @property
    def steps(self) -> int:
        """Return the number of steps that `run` makes."""
        ...

    @property
    def end(self) -> float:
        """Return the time of the finishing evaluation."""
        ...


@dataclass(frozen=True)
class Problem:
    """What is sampled; the same for every step.

    Args:
        model: the denoiser with its process and shape, and what was learned about it.
        known: true (B, D) on the prompt, or None.
        condition: integers (B, C), or None.
        drawing: how tokens come out of probabilities.
        evaluator: the evaluations of this run; None: they aren't counted.
    """

    model: Model
    known: Tensor | None = None
    condition: Tensor | None = None
    drawing: Drawing = DRAWN
    evaluator: Evaluator | None = None

    @property
    def process(self) -> Process:
        return self.model.process

    @property
    def shape(self) -> tuple[int, ...]:
        return self.model.shape

    @property
    def channels(self) -> ChannelsName | None:
        return self.model.channels

    @property
    def order(self) -> Tensor | None:
        return self.model.order

    @property
    def counts(self) -> tuple[LearnedCounts, ...]:
        return self.model.counts

    @property
    def influence(self) -> Tensor | None:
        return self.model.influence

    @property
    def curve(self) -> Curve:
        """Return the curve through all coordinates along which systematic coins are tossed."""
        return curve_of(self.shape, self.channels)

    def movable(self, x: Tensor) -> Tensor:
        """Return which coordinates (B, D) may move: the process lets them, and they aren't known."""
        movable = self.process.movable(x)
        return movable if self.known is None else movable & ~self.known

    def evaluate(self, x: Tensor, t: float | Tensor) -> Posterior:
        """Evaluate the denoiser once, at one time or one time per sequence (B,): one NFE.

        Earlier posteriors may not be read after it, unless they were cloned.
        """
        times = torch.as_tensor(t, dtype=torch.float64)
        # rounded before it is moved: a device may lack float64
        query = Query(x, times.float().to(x.device).expand(len(x)), self.condition)
        evaluate = self.evaluator or self.model.denoiser.posterior
        mean = times.mean() if times.ndim else times
        return evaluate(query).evaluated_at(x, mean.item(), query.t)

    def draw(self, weights: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
        """Draw tokens (R,) of the coordinates index (R,) in proportion to weights (R, V)."""
        return self.drawing.tokens(weights, index, generator)

    def draw_from(self, posterior: Posterior, index: Tensor, generator: torch.Generator) -> Tensor:
        """Draw tokens (R,) of the coordinates index (R,) from a posterior, a few megabytes at a time."""
        parts = [
            self.draw(posterior.probs(part), part, generator)
            for part in chunks(index, self.process.num_tokens)
        ]
        return torch.cat(parts) if parts else index


@dataclass(frozen=True)
class State:
    """x_n, and the last posterior: the history of the methods that look back."""

    x: Tensor  # (B, D)
    posterior: Posterior | None = None


@dataclass(frozen=True)
class StepInfo:
    """What happened in a step."""

    n: int
    t: float  # where the step was evaluated (the mean over sequences where they differ)
    t_next: float
    moved: float  # share of the movable coordinates that moved
    clamped: float = 0.0  # share of the read channels whose extrapolated intensity was negative
    several: float = 0.0  # share of the movable coordinates with more than one event
    masks: float = 0.0  # share of coordinates still masked after the step
    discarded: float = 0.0  # share of the posterior mass, of the read rows, that the process did not look at


P = TypeVar("P", bound=Plan)
S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Sampler(ABC, Generic[P, S]):
    """Abstract: a sampling method, a frozen dataclass whose fields are its options.

    Subclass it to write your own method with any plan and state. On a time grid, subclass `GridSampler`,
    which only needs a `step`. Pass an instance wherever a sampler is expected, or its import path as a spec:
    "my_sampler.py:Mine(start=right)". `str(sampler)` writes that spec, and `sampler_from` reads it.

    Fields are options (`tauflow.option`), or `tauflow.fixed` where they belong to a published name. These
    class variables aren't options, and a subclass may set them:

        finishing       what the loop does after the last step: "none", "draw" or "reuse"
        clones_history  whether a step clones what it reads of earlier posteriors itself. If not, the loop
                        clones all of the last one after every step, which is slow where V is large
        sharpens        whether samples concentrate on likely sequences, beyond what few evaluations cost
                        anyway. With an exact denoiser the distribution of the data is then lost, or kept at
                        one token per evaluation only. Tables, help, and docs show it, and `auto` is never one
        adapts          whether a sample takes as many evaluations as it needs, and the budget is a cap
        no_likelihood   why data can't be forced through this sampler (`tauflow.nll`); empty: it can

    Examples:
        >>> import tauflow
        >>> sampler = tauflow.sampler_from("tr_cie", grid="tau")
        >>> isinstance(sampler, tauflow.Sampler), str(sampler)
        (True, 'tr_cie(grid=tau)')

        CONTRIBUTING.md has a whole sampler to start from.
    """

    finishing = "none"
    clones_history = False
    sharpens = False
    adapts = False
    no_likelihood = ""

    def __post_init__(self) -> None:
        for name, choices in choices_of(type(self)).items():
            value = getattr(self, name)
            check(value in choices, f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
        for each in dataclasses.fields(self):
            if "range" in each.metadata:
                each.metadata["range"].check(each.name, getattr(self, each.name), each.default)

    def unsupported_reason(self, model: Model) -> str:
        """Return why this sampler can't sample the model; empty if it can."""
        return ""

    @abstractmethod
    def plan(self, process: Process, free: int, nfe: int) -> P:
        """Plan the steps for a budget of evaluations; `free` is the largest number of free coordinates."""

    @abstractmethod
    def init(self, problem: Problem, x_0: Tensor, plan: P, generator: torch.Generator) -> S:
        """Return the state before the first step; what is random about all steps is drawn here."""

    @abstractmethod
    def step(
        self, problem: Problem, state: S, plan: P, n: int, generator: torch.Generator
    ) -> tuple[S, StepInfo]:
        """Make step n = 0, 1, ... and return the next state and what happened."""

    def __str__(self) -> str:
        from tauflow.samplers.registry import written

        return written(self)


@dataclass(frozen=True)
class Info:
    """What happened in a run."""

    steps: list[StepInfo]
    leftover_masks: float  # share of coordinates still masked before finishing
    forwards: int  # network calls: two per evaluation with guidance, one per part of a batch
    settings: dict[str, Any]
    free: int = 0  # coordinates of all samples that could move


@dataclass(frozen=True)
class Result:
    """What `tauflow.sample` returns: the samples, and how many evaluations they took.

    Read `tokens` for the samples, and `info` to see what happened in each step.

    Args:
        tokens: the samples, int64 (B, D).
        nfe: counted evaluations of the denoiser.
        info: a `StepInfo` per step, the network calls, and the settings.
        evaluations: evaluations per sample (B,) for samplers that adapt. None: all samples took `nfe`.

    Examples:
        >>> import tauflow, torch
        >>> process = tauflow.Mixture(tauflow.Masked(5), "linear")
        >>> model = tauflow.Model(lambda x, t: torch.zeros(*x.shape, 5), process, (8,))
        >>> result = tauflow.sample(model, "tr_cie", nfe=4)
        >>> result.nfe, len(result.info.steps), result.tokens_per_evaluation
        (4, 3, 2.0)
    """

    tokens: Tensor  # (B, D) int64
    nfe: int  # evaluations of the (guided) denoiser, counted
    info: Info
    evaluations: Tensor | None = None  # (B,) those before a sample was finished; None: all took part in all

    @property
    def tokens_per_evaluation(self) -> float:
        """Return the coordinates that could move per evaluation that a sample took part in."""
        whole = len(self.tokens) * self.nfe
        return self.info.free / max(1, whole if self.evaluations is None else int(self.evaluations.sum()))


Observer = Callable[[StepInfo, State], None]


@dataclass(frozen=True)
class Range:
    """Numbers that an option takes; an end that isn't given is open, and values are finite."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        if self.low is not None and not value >= self.low:
            return False
        if self.above is not None and not value > self.above:
            return False
        if self.high is not None:
            return value <= self.high
        return value < (math.inf if self.below is None else self.below)

    def __str__(self) -> str:
        low = f"at least {self.low:g}" if self.low is not None else ""
        low = f"above {self.above:g}" if self.above is not None else low
        high = f"at most {self.high:g}" if self.high is not None and self.high < math.inf else ""
        high = f"below {self.below:g}" if self.below is not None else high
        return " and ".join(filter(None, (low, high)))

    def check(self, name: str, value: Any, default: Any) -> None:
        """Raise an error if a value is out of range; None is no number, and means what the option says."""
        if value is not None:
            check(value in self, f"{name} must be {self}, got {value}. The default is {default}.")


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare an option of a sampler: a dataclass field with a help text and a range.

    Use it for every field that users may set. A `Literal` type gives the choices; `int`, `float`, `bool`, and
    `... | None` are read from text.

    Args:
        default: the value if it isn't given.
        help: what it means, for `sample.py --help` and the docs.
        low: smallest number allowed.
        high: largest number allowed.
        above: the number must be larger than this.
        below: the number must be smaller than this.

    Returns:
        A dataclass field.

    Examples:
        ```python
        @dataclass(frozen=True)
        class Mine(tauflow.GridSampler):
            theta: float = tauflow.option(0.5, "where the second stage is", above=0, high=1)
        ```
    """
    limits = Range(low, high, above, below)
    metadata: dict[str, Any] = {"help": help}
    if limits != Range():
        metadata["range"] = limits
    return field(default=default, metadata=metadata)


def fixed(default: Any) -> Any:
    """Declare a field that belongs to the name of a sampler and isn't an option.

    Use it where one class has several published names. A spec can't set it.

    Args:
        default: the value of the class.

    Returns:
        A dataclass field.

    Examples:
        ```python
        @dataclass(frozen=True)
        class Leap(tauflow.GridSampler):
            rule: Literal["cap", "rescale"] = tauflow.fixed("rescale")

        SAMPLERS["leap_cap"] = functools.partial(Leap, rule="cap")
        ```
    """
    return field(default=default, metadata={"fixed": True})


@cache
def choices_of(cls: type) -> dict[str, tuple[Any, ...]]:
    """Return the fields of a dataclass that have a fixed choice of values."""
    return {name: get_args(hint) for name, hint in get_type_hints(cls).items() if get_origin(hint) is Literal}


def check(condition: bool, message: str) -> None:
    """Raise a SamplingError with this message unless the condition holds."""
    if not condition:
        raise SamplingError(message)
