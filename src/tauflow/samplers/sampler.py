"""Sampler (plan, init, step), what it works on and what it reports.

Shapes: B sequences, D coordinates, V data tokens. A Plan is what follows from the budget alone, a State holds
what the next step needs, StepInfo what a reader of logs wants.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from tauflow.denoise import Denoiser, Evaluation, LearnedCounts, Model
from tauflow.denoise.model import ChannelsName
from tauflow.errors import SamplingError
from tauflow.process import Process
from tauflow.samplers.geometry import Walk, walk_of
from tauflow.samplers.random import DRAWN, Drawing

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
    """What is sampled; the same for every step."""

    denoiser: Denoiser
    process: Process
    shape: tuple[int, ...]  # of one sample
    order: Tensor | None = None  # (D,) a learned order of the coordinates
    frozen: Tensor | None = None  # (B, D) bool, true on the prompt
    condition: Tensor | None = None  # (B, C)
    channels: ChannelsName | None = None  # what the last axis of the shape is
    drawing: Drawing = DRAWN
    counts: tuple[LearnedCounts, ...] = ()  # of reveals, one for each order that has learned ones
    influence: Tensor | None = None  # (D, D) of coordinates on each other, learned

    @classmethod
    def of(cls, model: Model, frozen: Tensor | None = None, condition: Tensor | None = None) -> "Problem":
        return cls(
            model.denoiser,
            model.process,
            model.shape,
            model.order,
            frozen,
            condition,
            model.channels,
            counts=model.counts,
            influence=model.influence,
        )

    @property
    def walk(self) -> Walk:
        """Return the walk through all coordinates along which systematic choices are made."""
        return walk_of(self.shape, self.channels)

    def movable(self, x: Tensor) -> Tensor:
        """Return which coordinates (B, D) may move: the process lets them, and they are no prompt."""
        movable = self.process.movable(x)
        return movable if self.frozen is None else movable & ~self.frozen

    def evaluate(self, x: Tensor, t: float | Tensor) -> Evaluation:
        """Evaluate the denoiser once, at one time or one time for each sequence: one NFE."""
        # rounded before it is moved: a device may lack float64
        t = torch.as_tensor(t, dtype=torch.float64).float().to(x.device)
        return self.denoiser.evaluate(x, t.expand(len(x)), self.condition)

    def visit(self, x: Tensor, t: float | Tensor) -> "Visit":
        """Evaluate the denoiser once and remember where; this ends earlier visits that were not kept."""
        when = float(t.mean()) if isinstance(t, Tensor) and t.ndim else float(t)
        return Visit(self.evaluate(x, t), x, when)


@dataclass(frozen=True)
class Visit:
    """An evaluation, and the states (B, D) and the time (the mean over sequences) it was made at."""

    evaluation: Evaluation
    x: Tensor
    t: float

    def kept(self, places: Tensor | None = None) -> "Visit":
        """Return a visit that is good beyond the next one: all rows, or those of places (R,) in order."""
        return Visit(self.evaluation.kept(places), self.x, self.t)


@dataclass(frozen=True)
class State:
    """x_n, and the last evaluation: the history of the methods that look back."""

    x: Tensor  # (B, D)
    visit: Visit | None = None


@dataclass(frozen=True)
class StepInfo:
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
    """Abstract; finals are frozen dataclasses whose fields are their options.

    A field is an `option`, or `fixed` where it belongs to the name. A sampler is written as its name with
    options, "tr_cie(grid=tau)": `str(sampler)` writes it so, and `tauflow.samplers.sampler_from` reads it.
    """

    def __post_init__(self) -> None:
        for name, choices in choices_of(type(self)).items():
            value = getattr(self, name)
            require(value in choices, f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")

    def refuses(self, model: Model) -> str:
        """Return why this sampler cannot sample the model, or nothing if it can."""
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
        """Make step n = 0, 1, ... and say what happened."""

    @property
    def keeps(self) -> bool:
        """Return whether a step keeps what it reads of earlier visits itself (`Visit.kept`).

        If not, `run` keeps all of the last one after every step, which is slow where V is large.
        """
        return False

    @property
    def finishing(self) -> FinishName:
        """Return what `run` does with coordinates after the last step."""
        return "none"

    @property
    def sharpens(self) -> bool:
        """Return whether samples concentrate on likely sequences, beyond what few evaluations cost anyway.

        With an exact denoiser the law of the data is then lost, or kept at one token an evaluation only.
        Tables, help and docs say so, and `auto` is never such a sampler.
        """
        return False

    @property
    def adapts(self) -> bool:
        """Return whether a sample takes as many evaluations as it needs, and the budget is a cap."""
        return False

    @property
    def no_likelihood(self) -> str:
        """Return why data cannot be forced through this sampler (`tauflow.nll`), or nothing if it can."""
        return ""

    def __str__(self) -> str:
        from tauflow.samplers.registry import written

        return written(self)


@dataclass(frozen=True)
class Info:
    steps: list[StepInfo]
    leftover_masks: float  # share of coordinates still masked before finishing
    forwards: int  # network calls: two for each evaluation with guidance, one for each part of a batch
    settings: dict[str, Any]
    free: int = 0  # coordinates of all samples that could move


@dataclass(frozen=True)
class Result:
    tokens: Tensor  # (B, D) int64
    nfe: int  # evaluations of the (guided) denoiser, counted
    info: Info
    evaluations: Tensor | None = None  # (B,) those before a sample was finished; None: all took part in all

    @property
    def tokens_per_evaluation(self) -> float:
        """Return coordinates that could move for each evaluation that a sample took part in."""
        whole = len(self.tokens) * self.nfe
        return self.info.free / max(1, whole if self.evaluations is None else int(self.evaluations.sum()))


Observer = Callable[[StepInfo, State], None]


def option(default: Any, help: str) -> Any:
    """Declare an option of a sampler; its help stands in `sample.py --help` and in the docs."""
    return field(default=default, metadata={"help": help})


def fixed(default: Any) -> Any:
    """Declare a field that belongs to the name of a sampler, and is no option."""
    return field(default=default, metadata={"fixed": True})


@cache
def choices_of(cls: type) -> dict[str, tuple[Any, ...]]:
    """Return the fields of a dataclass that have a fixed choice of values."""
    return {name: get_args(hint) for name, hint in get_type_hints(cls).items() if get_origin(hint) is Literal}


def require(condition: bool, message: str) -> None:
    if not condition:
        raise SamplingError(message)
