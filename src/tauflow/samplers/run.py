"""run: the only loop. Steps of a plan, evaluations counted at the denoiser, then the finishing policy."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise import BatchedDenoiser, CountingDenoiser, Denoiser, Model, RememberingDenoiser
from tauflow.errors import BadLogits, SamplingError
from tauflow.process import Process
from tauflow.samplers.base import FinishName, Info, Observer, Problem, Result, Sampler, State, StepInfo
from tauflow.samplers.draws import DRAWN, Drawing, draw


@dataclass(frozen=True)
class Request:
    """Everything `run` needs besides the sampler; made and checked by `tauflow.sample`."""

    model: Model
    nfe: int
    x_0: Tensor  # (B, D)
    generator: torch.Generator
    frozen: Tensor | None = None  # (B, D) bool, true on the prompt
    condition: Tensor | None = None  # (B, C)
    progress: bool = False
    observer: Observer | None = None
    batch_size: int | None = None  # sequences that the denoiser is given at once; None: all
    settings: dict[str, Any] = field(default_factory=dict)
    drawing: Drawing = DRAWN


@torch.no_grad()
def run(sampler: Sampler, request: Request) -> Result:
    """Sample a model: the same loop for all samplers."""
    model, request = request.model, _padded(request)
    network = counter = CountingDenoiser(model.denoiser)
    if request.batch_size is not None and request.batch_size < len(request.x_0):
        counter = CountingDenoiser(BatchedDenoiser(network, request.batch_size))
    problem = problem_of(sampler, request, RememberingDenoiser(counter))
    counts = problem.movable(request.x_0).sum(1)
    free = int(counts.max())
    if not free:  # the prompt is everything
        return Result(request.x_0, 0, Info([], 0.0, 0, request.settings))
    infos: list[StepInfo] = []
    taken = torch.zeros(len(request.x_0), dtype=torch.long)  # evaluations of each sample
    try:
        plan = sampler.plan(model.process, free, request.nfe)
        state = sampler.init(problem, request.x_0, plan, request.generator)
        for n in _bar(range(plan.steps), request.progress):
            going, before = problem.movable(state.x).any(1).cpu(), counter.evaluations
            if n and not going.any():
                break  # every token is revealed: more evaluations would change nothing
            state, info = sampler.step(problem, state, plan, n, request.generator)
            taken += going * (counter.evaluations - before)
            info = dataclasses.replace(info, masks=_masks(state.x, model.process))
            infos.append(info)
            if state.visit and (request.observer or not sampler.keeps):
                state = dataclasses.replace(state, visit=state.visit.kept())
            if request.observer:
                request.observer(info, state)
        leftover = _masks(state.x, model.process)
        going, before = problem.movable(state.x).any(1).cpu(), counter.evaluations
        state = finish(sampler.finishing, problem, state, plan.end, request.generator)
        taken += going * (counter.evaluations - before)
    except BadLogits as error:
        if error.t is None:
            raise
        when = f"step {len(infos)}, t = {float(error.t.mean()):.4f}"
        raise BadLogits(f"{error} ({when}); check the model and its precision at that time") from None
    forwards = network.evaluations * model.denoiser.forwards
    about = Info(infos, leftover, forwards, request.settings, int(counts.sum()))
    differ = bool((taken != counter.evaluations).any())
    return Result(state.x, counter.evaluations, about, taken if differ else None)


def _padded(request: Request) -> Request:
    """Return the request with padding that no sampler moves; refuse another number of samples than known."""
    denoiser, count = request.model.denoiser, len(request.x_0)
    if denoiser.samples not in (None, count):
        raise SamplingError(
            f"the model is made for {denoiser.samples} samples (attending or allowing), {count} are asked "
            f"for; give count={denoiser.samples}"
        )
    if denoiser.attention is None:
        return request
    padding = ~denoiser.attention.to(request.x_0.device)
    known = torch.zeros_like(padding) if request.frozen is None else request.frozen
    x_0 = request.x_0.masked_fill(padding & ~known, 0)
    return dataclasses.replace(request, x_0=x_0, frozen=padding | known)


def problem_of(sampler: Sampler, request: Request, denoiser: Denoiser) -> Problem:
    """Return what is sampled, with this denoiser; refuse a sampler that cannot do it."""
    if reason := sampler.refuses(request.model):
        raise SamplingError(reason)
    problem = Problem.of(request.model, request.frozen, request.condition)
    return dataclasses.replace(problem, denoiser=denoiser, drawing=request.drawing)


def finish(policy: FinishName, problem: Problem, state: State, t: float, generator: torch.Generator) -> State:
    """Draw what may still move from one more evaluation (`draw`), or masks from the last (`reuse`)."""
    if policy == "none":
        return state
    movable = problem.movable(state.x)
    if policy == "reuse":
        movable = movable & problem.process.masks(state.x)
    places = movable.flatten().nonzero().squeeze(1)
    if not len(places):
        return state
    visit = state.visit if policy == "reuse" and state.visit else problem.visit(state.x, t)
    x = state.x.clone().flatten()
    num_tokens = problem.process.num_tokens
    x[places] = draw(visit.evaluation, places, num_tokens, generator, problem.drawing)
    return State(x.view_as(state.x), visit)


def _masks(x: Tensor, process: Process) -> float:
    return process.masks(x).sum().item() / max(1, x.numel()) if process.absorbing else 0.0


def _bar(steps: range, progress: bool) -> Iterable[int]:
    if not progress:
        return steps
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps")
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))

    def tracked() -> Iterable[int]:
        with bar:
            yield from bar.track(steps, description="sampling")

    return tracked()
