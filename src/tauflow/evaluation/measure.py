"""Measure one cell: samples of one sampler at one budget, by the task's own metrics.

Samples are drawn in batches, and batch i has a seed of its own, made of (seed, i): so every sampler begins
from the same x_0, and the samples do not depend on how many devices share the batches. Inside a process group
(Lightning's DDP, in training or in sample.py) each rank takes every world_size-th batch; metrics are reduced
by torchmetrics, and the counts are those of all ranks.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from tauflow.denoise import Model, TimedDenoiser
from tauflow.denoise.denoiser import now
from tauflow.errors import SamplingError, WriteError
from tauflow.evaluation.counts import Counts
from tauflow.evaluation.hooks import Table, joined_tables, table_of
from tauflow.evaluation.store import Cell, Factors, Measured, Record, Scale, Shown
from tauflow.ranks import backend, largest, rank, world_size
from tauflow.samplers import Prompt, Result, Sampler, sample
from tauflow.samplers.base import require
from tauflow.samplers.run import checked_prompt, checked_seed, unprompted, whole
from tauflow.seeds import generator_for
from tauflow.tasks import SampleMetric, Task

DETAILS = {
    "steps": (
        *("jumped", "clamped", "several_events", "discarded"),
        *("leftover_masks", "samples", "counted_nfe", "forwards", "evaluations", "tokens_per_evaluation"),
    ),
    "time": ("ms_per_sample", "sampler_ms_per_sample", "network_share"),
}
"""What is recorded of a cell besides the task's metrics, by the group of charts it stands in."""


@dataclass(frozen=True)
class Sampling:
    """What decides the samples of a cell, besides the sampler and the budget.

    Args:
        num_samples: samples of each cell, over all devices.
        batch_size: samples drawn together. It is the unit that devices share, and part of what makes a
            sample.
        seed: of all samples; every sampler begins from the same x_0.
        show: how many samples of each cell to keep, from the first batch.
        condition: what all samples are asked to be, (C,); by default the conditions of validation items.
        prompt: what is known: tokens and known (D,) for every sample, or a row for each, (num_samples, D).
        temperature: as `Model.tempered` takes it.
        unconditional: model to guide away from; by default the same one with its condition dropped, or
            without its prompt if it takes no condition.
        nll_items: validation items, from the first on, whose likelihood is measured; 0 for none.
        top_k: how many tokens of a row may be drawn, the likeliest ones; None: all.
        top_p: probability that these have together; None: 1.
    """

    num_samples: int = 256
    batch_size: int = 64
    seed: int = 0
    show: int = 4
    condition: Tensor | None = None
    prompt: Prompt | tuple[Tensor, Tensor] | None = None
    temperature: float = 1.0
    unconditional: Model | None = None
    nll_items: int = 16
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_samples", "batch_size"):
            whole(getattr(self, name), name)
        object.__setattr__(self, "seed", checked_seed(self.seed))
        for name in ("show", "nll_items"):
            require(getattr(self, name) >= 0, f"{name} must be at least 0, got {getattr(self, name)}")

    @property
    def batches(self) -> int:
        return -(-self.num_samples // self.batch_size)

    def mine(self) -> range:
        """Return the batches of this rank."""
        return range(rank(), self.batches, world_size())

    def size(self, batch: int) -> int:
        return min(self.batch_size, self.num_samples - batch * self.batch_size)

    def generator_for(self, batch: int) -> torch.Generator:
        return generator_for("evaluation", self.seed, batch)

    def conditions_for(self, batch: int, task: Task) -> Tensor | None:
        """Return the conditions (B, C) of a batch: the one asked for, or those of validation items."""
        if not task.conditions:
            return None
        if self.condition is not None:
            return self.condition.expand(self.size(batch), -1)
        return task.sample_conditions(self.size(batch), first=batch * self.batch_size)

    def prompt_for(self, batch: int) -> Prompt | None:
        """Return what is known of the samples of a batch."""
        if self.prompt is None:
            return None
        first = batch * self.batch_size
        rows = slice(first, first + self.size(batch))
        tokens, known = (each[rows] if each.ndim > 1 else each for each in self.prompt)
        return Prompt(tokens, known)

    def refuse_unfit(self, model: Model) -> None:
        """Refuse a temperature or a prompt that cannot be sampled of the model."""
        self.model(model, None)
        if self.prompt is not None:
            parts = self.prompt if isinstance(self.prompt, tuple | list) else ()
            rows = self.num_samples if any(getattr(each, "ndim", 1) > 1 for each in parts) else 1
            checked_prompt(self.prompt, (rows, model.length), model)

    def model(self, model: Model, guidance: float | None, prompt: Prompt | None = None) -> Model:
        """Return the model with guidance, temperature and its rows cut, for samples with a prompt."""
        if guidance is not None and guidance != 1:
            other = self.unconditional
            if other is None and prompt is not None and not model.conditions:
                other = unprompted(model, prompt)
            model = model.guided(guidance, other)
        if self.temperature != 1:
            model = model.tempered(self.temperature)
        cut = self.top_k is not None or self.top_p is not None
        return model.truncated(self.top_k, self.top_p) if cut else model

    def model_of(self, model: Model, factors: Factors, prompt: Prompt | None = None) -> Model:
        """Return the model of a cell, for samples with a prompt."""
        return self.model(model, float(factors["guidance"]) if "guidance" in factors else None, prompt)


def measure_cell(
    model: Model,
    task: Task,
    sampler: Sampler,
    factors: Factors,
    sampling: Sampling,
    advance: Callable[[], None] = lambda: None,
) -> Cell:
    """Sample a cell and measure it; `factors` say the budget (nfe) and perhaps the guidance weight."""
    nfe = int(factors["nfe"])
    home = torch.device("cuda", torch.cuda.current_device()) if backend() == "nccl" else torch.device("cpu")
    metrics = task.sample_metrics().to(home)
    counts = Counts()
    shown: list[Shown] = []
    tables: dict[int, Table] = {}

    def draw() -> None:
        nonlocal counts
        update(metrics, torch.zeros(0, task.length, dtype=torch.long, device=home), _empty(task, home))
        for batch in sampling.mine():
            condition = sampling.conditions_for(batch, task)
            own = sampling.model_of(model, factors, sampling.prompt_for(batch))
            timed = TimedDenoiser(own.denoiser)
            own = dataclasses.replace(own, denoiser=timed)
            begin = now()
            result, states = _sample(own, sampler, nfe, batch, condition, sampling)
            counts = counts.plus(sampling.size(batch), now() - begin, timed.seconds, result)
            update(metrics, result.tokens.to(home), None if condition is None else condition.to(home))
            tables[batch] = table_of(task, result.tokens, condition)
            if batch == 0:
                shown.append(_shown(result, condition, states, sampling))
            advance()

    together(draw)
    found: dict[str, Measured] = {}
    together(lambda: found.update(measured(metrics)))
    details = counts.details(sampler.adapts)
    records = [Record(factors, name, each) for name, each in (found | details).items()]
    items = units(metrics) if world_size() == 1 else {}  # ranks keep their samples in another order
    return Cell(factors, records, shown[0] if shown else None, items=items, table=joined_tables(tables))


def _sample(
    model: Model, sampler: Sampler, nfe: int, batch: int, condition: Tensor | None, sampling: Sampling
) -> tuple[Result, list[Tensor]]:
    """Draw one batch; of the first one also return the states of its first sample."""
    states: list[Tensor] = []
    watch = (lambda info, state: states.append(state.x[0].cpu())) if batch == 0 else None
    count = sampling.size(batch)
    prompt = sampling.prompt_for(batch)
    if batch == 0:
        x_0 = model.process.start((count, model.length), sampling.generator_for(batch))
        if prompt is not None:
            x_0 = torch.where(prompt.known.cpu(), prompt.tokens.cpu(), x_0)
        states.append(x_0[0])
    result = sample(
        model,
        sampler,
        nfe,
        count=count,
        condition=condition,
        prompt=prompt,
        seed=sampling.generator_for(batch),
        observer=watch,
    )
    return result, states


def _shown(result: Result, condition: Tensor | None, states: list[Tensor], sampling: Sampling) -> Shown:
    end = result.tokens[0].cpu()
    if not torch.equal(states[-1], end):  # something was left to finish
        states = [*states, end]
    asked = None if condition is None else condition[: sampling.show].tolist()
    return Shown(result.tokens[: sampling.show].tolist(), asked, torch.stack(states))


def update(metrics: MetricCollection, tokens: Tensor, condition: Tensor | None) -> None:
    """Feed metrics with samples, and with what they were asked to be if the task has conditions."""
    if condition is None:
        metrics.update(tokens)
    else:
        metrics.update(tokens, condition=condition)


def _empty(task: Task, device: torch.device) -> Tensor | None:
    """Return the condition of no samples: a rank without samples takes part in reductions too."""
    return torch.zeros(0, len(task.conditions), dtype=torch.long, device=device) if task.conditions else None


def together(work: Callable[[], None]) -> None:
    """Do the work on all ranks; an error of any rank is raised on all of them."""
    problem: Exception | None = None
    try:
        work()
    except Exception as error:
        if world_size() == 1:
            raise
        problem = error
    worst = largest(0.0 if problem is None else 2.0 if isinstance(problem, WriteError) else 1.0)
    if worst:
        said = f"{type(problem).__name__}: {problem}" if problem else "failed on another device"
        raise WriteError(said) if worst == 2 else SamplingError(said)


def measured(metrics: MetricCollection) -> dict[str, Measured]:
    """Compute metrics, each of which gives (value, standard error, ...)."""
    return {name: Measured(*(float(number) for number in found)) for name, found in metrics.compute().items()}


def units(metrics: MetricCollection) -> dict[str, list[float]]:
    """Return what samplers are compared by, unit by unit, of the metrics that have it."""
    found = {name: metric.units() for name, metric in metrics.items() if isinstance(metric, SampleMetric)}
    return {name: numbers for name, numbers in found.items() if numbers}


def adaptive_scales(samplers: Iterable[Sampler], before: Iterable[str] = ()) -> dict[str, Scale]:
    """Return how evaluations are read where they are an outcome: of any of these samplers, or before."""
    found = {"evaluations": Scale(False, False), "tokens_per_evaluation": Scale(True, False)}
    return found if any(sampler.adapts for sampler in samplers) or set(found) <= set(before) else {}


def scales(task: Task) -> dict[str, Scale]:
    """Return how the task's metrics are read, the headline first."""
    metrics: dict[str, Any] = dict(task.sample_metrics().items())
    names = sorted(metrics, key=lambda name: name != task.headline)
    return {
        name: Scale(metrics[name].higher_is_better, bool(getattr(metrics[name], "logarithmic", True)))
        for name in names
    }
