"""Sampler (init, step), what it works on and what it reports, and `run`: the only loop.

Shapes: B sequences, D coordinates, V data tokens. State holds what the next step needs, StepInfo what a reader of logs wants.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from tauflow.denoisers import CountingDenoiser, Denoiser, Evaluation
from tauflow.errors import BadLogits, SamplingError
from tauflow.samplers.grids import Grid
from tauflow.samplers.leap import Clamp, CoinName, JumpName, Jumps, Term, draw, leap, leap_dense
from tauflow.schedules import Schedule
from tauflow.sources import Masked, Source, Uniform

FinishName = Literal["draw", "reuse", "none"]


def refuse_unknown(name: str, value: str, choices) -> None:
    if value not in get_args(choices):
        raise SamplingError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")


@dataclass(frozen=True)
class Problem:
    """What is sampled; the same for every step."""

    denoiser: Denoiser
    source: Source
    schedule: Schedule
    frozen: Tensor | None  # (B, D) bool, true on the prompt
    dense: bool
    geometry: tuple[int, ...] | None = None  # sizes of a grid of D cells; None is a sequence
    ranks: Tensor | None = None  # (D,) a learned order of the coordinates

    def movable(self, x: Tensor) -> Tensor:
        """(B, D) bool: the source lets it move and it is no prompt."""
        movable = self.source.movable(x)
        return movable if self.frozen is None else movable & ~self.frozen

    def evaluate(self, x: Tensor, t: float | Tensor) -> Evaluation:
        """One NFE, at one time or one time a sequence."""
        t = torch.as_tensor(t, dtype=torch.float64).float().to(x.device).expand(len(x))  # in this order: a device may lack float64
        return self.denoiser.evaluate(x, t)

    def term(self, coefficient: float, evaluation: Evaluation, state: Tensor) -> Term:
        return Term(coefficient, evaluation, state, self.source)

    def leap(
        self, terms: list[Term], x: Tensor, jump: JumpName, clamp: Clamp, generator: torch.Generator, coins: CoinName = "independent"
    ) -> Jumps:
        if self.dense and coins != "independent":
            raise SamplingError(f"the dense algorithm has independent Poisson counts, not {coins} coins; leave dense or coins out")
        if self.dense:
            return leap_dense(terms, x, self.movable(x), self.source.num_tokens, jump, clamp, generator)
        return leap(terms, x, self.movable(x), self.source.num_tokens, jump, clamp, generator, coins)


@dataclass(frozen=True)
class State:
    """x_n, and the last Evaluation with the state it was made at: the cache of the methods that look back."""

    x: Tensor  # (B, D)
    evaluation: Evaluation | None = None
    evaluated_at: Tensor | None = None  # (B, D)
    memory: Any = None  # what only this sampler understands


@dataclass(frozen=True)
class StepInfo:
    n: int
    t: float  # where the step was evaluated (the mean over sequences where they differ)
    t_next: float
    moved: float  # share of the movable coordinates that moved
    clamped: float = 0.0  # share of the read channels whose extrapolated intensity was negative
    several: float = 0.0  # share of the movable coordinates with more than one event
    masks: float = 0.0  # share of coordinates still masked after the step


@dataclass(frozen=True)
class Sampler(ABC):
    """Abstract; finals are frozen dataclasses whose fields are the options."""

    sources: ClassVar[tuple[type[Source], ...]] = (Masked, Uniform)
    leaps: ClassVar[bool] = False  # whether intensities become jumps, for which there is a dense algorithm

    @abstractmethod
    def plan(self, nfe: int, schedule: Schedule, free: int) -> tuple[Grid, int]:
        """The grid for a budget of evaluations, and how many steps `run` makes on it; `free` is the largest number of free coordinates."""

    def init(self, problem: Problem, x_0: Tensor, grid: Grid) -> State:
        return State(x_0)

    @abstractmethod
    def step(self, problem: Problem, state: State, grid: Grid, n: int, generator: torch.Generator) -> tuple[State, StepInfo]: ...

    @property
    def finishing(self) -> FinishName:
        """What `run` does with coordinates after the last step."""
        return "none"

    @property
    def needs_ranks(self) -> bool:
        """Whether it needs a learned order of the coordinates."""
        return False


@dataclass(frozen=True)
class Info:
    steps: list[StepInfo]
    leftover_masks: float  # share of coordinates still masked before finishing
    forwards: int  # network calls; with guidance, two for each evaluation
    settings: dict[str, Any]


@dataclass(frozen=True)
class Result:
    tokens: Tensor  # (B, D) int64
    nfe: int  # evaluations of the (guided) denoiser, counted
    info: Info


Observer = Callable[[StepInfo, State], None]


@dataclass(frozen=True)
class Request:
    """Everything `run` needs besides the sampler; made and checked by `tauflow.sample`."""

    denoiser: Denoiser
    source: Source
    schedule: Schedule
    x_0: Tensor
    frozen: Tensor | None
    nfe: int
    temperature: float
    generator: torch.Generator
    geometry: tuple[int, ...] | None = None
    ranks: Tensor | None = None
    dense: bool = False
    progress: bool = False
    observer: Observer | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@torch.no_grad()
def run(sampler: Sampler, request: Request) -> Result:
    """The only loop: steps on the sampler's grid, evaluations counted at the denoiser, then the finishing policy."""
    if not isinstance(request.source, sampler.sources):
        names = " or ".join(source.__name__.lower() for source in sampler.sources)
        raise SamplingError(
            f"this sampler supports a {names} source only; the model was trained from a {type(request.source).__name__.lower()} source - "
            "try sampler='tr_cie'"
        )
    counter = CountingDenoiser(request.denoiser, request.temperature)
    problem = Problem(counter, request.source, request.schedule, request.frozen, request.dense, request.geometry, request.ranks)
    free = int(problem.movable(request.x_0).sum(1).max()) if request.x_0.numel() else 0
    grid, steps = sampler.plan(request.nfe, request.schedule, free) if free else (None, 0)
    state, infos = sampler.init(problem, request.x_0, grid), []
    t = 0.0
    try:
        for n in _bar(range(steps), request.progress):
            if n and not problem.movable(state.x).any():
                break  # every token is revealed: more evaluations would change nothing
            t = grid.t[n].item()
            state, info = sampler.step(problem, state, grid, n, request.generator)
            masks = _masks(state.x, request.source)
            info = StepInfo(**(vars(info) | {"masks": masks}))
            infos.append(info)
            if request.observer:
                request.observer(info, state)
        leftover = _masks(state.x, request.source)
        if free:
            t = grid.t[-1].item()
            state = _finish(sampler.finishing, problem, state, t, request.generator)
    except BadLogits as error:
        t = float(error.t.mean()) if error.t is not None else t
        raise BadLogits(f"{error} (step {len(infos)}, t = {t:.4f}); check the model and its precision at that time") from None
    return Result(state.x, counter.evaluations, Info(infos, leftover, counter.evaluations * request.denoiser.forwards, request.settings))


def _finish(policy: FinishName, problem: Problem, state: State, t: float, generator: torch.Generator) -> State:
    """`draw`: one more evaluation, x_1 ~ p(. | x) where a coordinate may move. `reuse`: leftover masks from the last evaluation made."""
    if policy == "none":
        return state
    movable = problem.movable(state.x)
    if policy == "reuse":
        movable = movable & problem.source.movable(state.x) if isinstance(problem.source, Masked) else torch.zeros_like(movable)
    places = movable.flatten().nonzero().squeeze(1)
    if not len(places):
        return state
    evaluation = problem.evaluate(state.x, t) if policy == "draw" else state.evaluation
    x = state.x.clone().flatten()
    x[places] = draw(evaluation, places, problem.source.num_tokens, generator)
    return State(x.view_as(state.x), evaluation, state.x)


def _masks(x: Tensor, source: Source) -> float:
    return (x == source.mask_id).sum().item() / max(1, x.numel()) if isinstance(source, Masked) else 0.0


def _bar(steps: range, progress: bool):
    if not progress:
        return steps
    from tqdm.auto import tqdm

    return tqdm(steps, desc="sampling", unit="step")
