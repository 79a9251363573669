"""Evaluate samplers: samples of every sampler at every budget, measured with the task's metrics.

A cell is one sampler at one budget, perhaps with a guidance weight. Its samples are drawn in batches, and
batch i has its own seed, made of (seed, i). So every sampler starts from the same x_0, and samples don't
depend on how many devices share the batches. Inside a process group (Lightning's DDP, in training or in
sample.py) each rank takes every world_size-th batch, torchmetrics reduces the metrics, and counts are summed
over ranks.

The nll of real items is measured next to the samples, where a sampler has a likelihood. Every sampler sees
the same validation items in the same batches with the same seeds, and a cell keeps the number of each item.
So differences between samplers are paired.
"""

import dataclasses
import math
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from tauflow.denoise import DROPPED, Model, TimedDenoiser
from tauflow.denoise.denoiser import now
from tauflow.distributed import (
    all_reduce,
    all_reduce_max,
    backend,
    is_lost_rank,
    rank,
    run_on_all_ranks,
    run_on_rank_zero,
    world_size,
)
from tauflow.errors import SamplingError, TauflowError, WriteError
from tauflow.evaluation.results import (
    REAL,
    AllSamples,
    Cell,
    Factors,
    Measured,
    Record,
    Results,
    SampleTable,
    Scale,
    Shown,
    gather_batches,
    join_tables,
    key,
    make_table,
)
from tauflow.evaluation.tables import cell_name
from tauflow.numerics import generator_for
from tauflow.samplers import (
    SAMPLERS,
    SETS,
    Prompt,
    Result,
    Sampler,
    nll,
    sample,
    sampler_from,
    split_specs,
)
from tauflow.samplers.likelihood import no_likelihood
from tauflow.samplers.run import check_condition, check_prompt, check_seed, positive_int, unprompted
from tauflow.samplers.sampler import check as check_that
from tauflow.tasks import SampleMean, SampleMetric, Task
from tauflow.tasks.task import items_of
from tauflow.train import Trained

if TYPE_CHECKING:
    from rich.progress import Progress


STEPS = ("moved", "clamped", "several", "discarded")  # shares of coordinates in each step
SUMS = (
    *("samples", "seconds", "network_seconds", *STEPS, "leftover", "nfe", "forwards"),
    *("evaluations", "evaluations_squared", "tokens"),
)
"""What is summed over the samples of a cell; `tokens` are those that could move."""


def count_batch(samples: int, seconds: float, network_seconds: float, result: Result) -> dict[str, float]:
    """Return the sums of one batch."""
    info = result.info
    means = {
        name: sum(getattr(step, name) for step in info.steps) / max(1, len(info.steps)) for name in STEPS
    }
    means |= {"leftover": info.leftover_masks, "nfe": result.nfe, "forwards": info.forwards}
    taken = [result.nfe] * samples if result.evaluations is None else result.evaluations.tolist()
    return {name: samples * value for name, value in means.items()} | {
        "samples": samples,
        "seconds": seconds,
        "network_seconds": network_seconds,
        "evaluations": sum(taken),
        "evaluations_squared": sum(each**2 for each in taken),
        "tokens": info.free,
    }


def details(counts: Mapping[str, float], adapts: bool) -> dict[str, Measured]:
    """Return the means over the samples of all ranks; how many evaluations each took if they adapt."""
    total = dict(zip(SUMS, all_reduce([counts[name] for name in SUMS], "SUM"), strict=True))
    n = max(1.0, total["samples"])
    values = {
        "jumped": total["moved"] / n,
        "clamped": total["clamped"] / n,
        "several_events": total["several"] / n,
        "discarded": total["discarded"] / n,
        "leftover_masks": total["leftover"] / n,
        "ms_per_sample": 1e3 * total["seconds"] / n,
        "sampler_ms_per_sample": 1e3 * (total["seconds"] - total["network_seconds"]) / n,
        "network_share": total["network_seconds"] / total["seconds"] if total["seconds"] else 0.0,
        "samples": total["samples"],
        "counted_nfe": total["nfe"] / n,
        "forwards": total["forwards"] / n,
    }
    found = {name: Measured(value) for name, value in values.items()}
    if adapts:
        mean = total["evaluations"] / n
        error = (max(0.0, total["evaluations_squared"] / n - mean**2) / n) ** 0.5
        found["evaluations"] = Measured(mean, error)
        found["tokens_per_evaluation"] = Measured(total["tokens"] / max(1.0, total["evaluations"]))
    return found


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
        show: how many samples of each cell to keep for people, from the first on.
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
            positive_int(getattr(self, name), name)
        object.__setattr__(self, "seed", check_seed(self.seed))
        for name in ("show", "nll_items"):
            check_that(getattr(self, name) >= 0, f"{name} must be at least 0, got {getattr(self, name)}")

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

    def model(self, model: Model, guidance: float = 1.0, prompt: Prompt | None = None) -> Model:
        """Return the model with guidance, temperature, top-k, and top-p, for samples with a prompt."""
        if guidance != 1:
            other = self.unconditional
            if other is None and prompt is not None and not model.conditions:
                other = unprompted(model, prompt)
            model = model.guided(guidance, other)
        if self.temperature != 1:
            model = model.tempered(self.temperature)
        cut = self.top_k is not None or self.top_p is not None
        return model.truncated(self.top_k, self.top_p) if cut else model


def measure_cell(
    model: Model,
    task: Task,
    sampler: Sampler,
    factors: Factors,
    sampling: Sampling,
    advance: Callable[[], None] = lambda: None,
    keep: bool = False,
) -> Cell:
    """Sample a cell and measure it; `factors` say the budget (nfe) and perhaps the guidance weight.

    With `keep`, the cell has all samples.
    """
    nfe = int(factors["nfe"])
    home = torch.device("cuda", torch.cuda.current_device()) if backend() == "nccl" else torch.device("cpu")
    metrics = task.sample_metrics().to(home)
    counts = dict.fromkeys(SUMS, 0.0)
    kept = sampling.num_samples if keep else min(sampling.show, sampling.num_samples)
    drawn: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
    states: list[Tensor] = []  # of the first sample, on the rank that drew it
    tables: dict[int, SampleTable] = {}
    kind = np.int16 if model.process.num_states <= np.iinfo(np.int16).max else np.int32
    none = partial(torch.zeros, dtype=torch.long, device=home)

    def draw() -> None:
        # a rank without samples takes part in reductions too
        update(metrics, none(0, task.length), none(0, len(task.conditions)) if task.conditions else None)
        for batch in sampling.mine():
            condition = sampling.conditions_for(batch, task)
            own = sampling.model(model, float(factors.get("guidance", 1)), sampling.prompt_for(batch))
            timed = TimedDenoiser(own.denoiser)
            own = dataclasses.replace(own, denoiser=timed)
            begin = now()
            result, watched = _sample(own, sampler, nfe, batch, condition, sampling)
            new = count_batch(sampling.size(batch), now() - begin, timed.seconds, result)
            for name in SUMS:
                counts[name] += new[name]
            update(metrics, result.tokens.to(home), None if condition is None else condition.to(home))
            tables[batch] = make_table(task, result.tokens, condition)
            if batch * sampling.batch_size < kept:
                asked = None if condition is None else condition.cpu().numpy().astype(np.int32)
                drawn[batch] = (result.tokens.cpu().numpy().astype(kind), asked)
            if batch == 0:
                end = result.tokens[0].cpu()
                if not torch.equal(watched[-1], end):  # something was left to finish
                    watched.append(end)
                states.extend(watched)
            advance()

    run_on_all_ranks(draw)
    found: dict[str, Measured] = {}
    run_on_all_ranks(lambda: found.update(measured(metrics)))
    found |= details(counts, sampler.adapts)
    records = [Record(factors, name, each) for name, each in found.items()]
    items: dict[str, list[float]] = {}
    if world_size() == 1:  # ranks keep their samples in another order
        comparable = {name: each for name, each in metrics.items() if isinstance(each, SampleMetric)}
        items = {name: units for name, each in comparable.items() if (units := each.units())}
    samples = _join(gather_batches(drawn) if kept > sampling.batch_size else list(drawn.values()))
    shown = Shown(
        samples.tokens[: sampling.show].tolist(),
        None if samples.condition is None else samples.condition[: sampling.show].tolist(),
        torch.stack(states) if states else None,
    )
    table = join_tables(tables)
    return Cell(factors, records, shown, items=items, table=table, samples=samples if keep else None)


def _join(batches: list[tuple[np.ndarray, np.ndarray | None]]) -> AllSamples:
    """Return the samples of batches together; none where a rank drew none."""
    if not batches:
        return AllSamples(np.empty((0, 0)))
    asked = [condition for _, condition in batches if condition is not None]
    return AllSamples(
        np.concatenate([tokens for tokens, _ in batches]), np.concatenate(asked) if asked else None
    )


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


def update(metrics: MetricCollection, tokens: Tensor, condition: Tensor | None) -> None:
    """Feed metrics with samples, and with what they were asked to be if the task has conditions."""
    if condition is None:
        metrics.update(tokens)
    else:
        metrics.update(tokens, condition=condition)


def measured(metrics: MetricCollection) -> dict[str, Measured]:
    """Compute metrics: a value, or (value, standard error, ...)."""
    results = {}
    for name, found in metrics.compute().items():
        plain = isinstance(found, Tensor) and found.ndim == 0  # a metric of torchmetrics: no standard error
        results[name] = Measured(float(found), math.nan) if plain else Measured(*map(float, found))
    return results


def adaptive_scales(samplers: Iterable[Sampler], before: Iterable[str] = ()) -> dict[str, Scale]:
    """Return how evaluations are read where they are an outcome: of any of these samplers, or before."""
    found = {"evaluations": Scale(False, False), "tokens_per_evaluation": Scale(True, False)}
    return found if any(sampler.adapts for sampler in samplers) or set(found) <= set(before) else {}


def scales(task: Task) -> dict[str, Scale]:
    """Return how the task's metrics are read, the primary metric first."""
    metrics: dict[str, Any] = dict(task.sample_metrics().items())
    names = sorted(metrics, key=lambda name: name != task.primary_metric)
    return {
        name: Scale(metrics[name].higher_is_better, bool(getattr(metrics[name], "logarithmic", True)))
        for name in names
    }


# The likelihood of real items


NLL = "nll"  # in nats for each coordinate


def nll_units(task: Task) -> dict[str, float]:
    """Return the names of nll with their factors: nats for each coordinate, and the units of the task."""
    return {NLL: 1.0} | {f"nll_{name}": factor for name, factor in task.units.items()}


def nll_scales(task: Task) -> dict[str, Scale]:
    """Return how nll is read, in each unit."""
    return dict.fromkeys(nll_units(task), Scale(logarithmic=False))


def no_nll(sampler: Sampler, model: Model, task: Task, sampling: Sampling) -> str:
    """Return why the nll of a sampler is not measured, or nothing if it is."""
    if sampling.condition is not None or sampling.prompt is not None:
        return "it is measured on validation items, which don't have your condition or prompt"
    if sampling.top_k is not None or sampling.top_p is not None:
        return "top-k and top-p give some tokens of real data no probability"
    if task.alone:
        return "there is no real data"
    return no_likelihood(sampler, model)


def nll_batches(task: Task, sampling: Sampling) -> list[range]:
    """Return the numbers of the items of each batch."""
    count, size = min(sampling.nll_items, val_count(task)), sampling.batch_size
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def with_nll(
    cell: Cell,
    model: Model,
    task: Task,
    sampler: Sampler,
    sampling: Sampling,
    advance: Callable[[], None] = lambda: None,
) -> Cell:
    """Return a measured cell with the nll of validation items, in all units."""
    model = sampling.model(model, float(cell.factors.get("guidance", 1)))
    batches = nll_batches(task, sampling)
    nats = [0.0] * sum(map(len, batches))  # of each item, where it is this rank's

    def force() -> None:
        for batch in range(rank(), len(batches), world_size()):
            tokens, condition = real_items(task, batches[batch])
            generator = sampling.generator_for(batch)
            nfe = int(cell.factors["nfe"])
            found = nll(model, sampler, nfe, tokens, condition=condition, seed=generator)
            nats[batches[batch].start : batches[batch].stop] = found.tolist()
            advance()

    run_on_all_ranks(force)
    each = [number / task.length for number in all_reduce(nats, "SUM")]
    items = {name: [factor * number for number in each] for name, factor in nll_units(task).items()}
    records = [Record(cell.factors, name, Measured.mean(numbers)) for name, numbers in items.items()]
    return dataclasses.replace(cell, records=cell.records + records, items=cell.items | items)


# Real data, measured like samples


def reference(task: Task, count: int, first: int = 0) -> dict[str, Measured]:
    """Measure `count` real validation items from number `first` on; from 0 if there are not so many."""
    total = val_count(task)
    begin = first if first + count <= total else 0
    return _measured_items(task, range(begin, min(begin + count, total)))


def val_count(task: Task) -> int:
    """Return how many validation items there are, of a task that may have to make them first."""
    if not hasattr(task, "val_data"):
        task.setup("validate")
    return len(task.val_data)


def real_items(task: Task, numbers: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Return the tokens (N, D) of validation items, and what they are (N, C) if the task has conditions."""
    items = items_of(task.val_data, numbers)
    tokens = torch.stack([torch.as_tensor(item["tokens"]).flatten() for item in items])
    if not task.conditions:
        return tokens, None
    return tokens, torch.stack([torch.as_tensor(item["condition"]) for item in items]).long()


def _measured_items(task: Task, numbers: Sequence[int]) -> dict[str, Measured]:
    metrics = task.sample_metrics()
    for metric in metrics.values():
        metric.distributed_available_fn = lambda: False  # every rank looks at all of them
    update(metrics, *real_items(task, numbers))
    return measured(metrics)


def reference_cell(task: Task, count: int, condition: Tensor | None = None) -> tuple[Cell | None, str]:
    """Measure real data as a cell of its own, with a note where there is less of it, or none.

    For samples that are all asked for one condition (C,), real data are the items that have it; -1 in it fits
    any value.
    """
    if task.alone:
        return None, task.alone
    fitting = list(range(val_count(task)))
    if condition is not None and task.conditions:
        items = items_of(task.val_data, fitting)
        there = torch.stack([torch.as_tensor(item["condition"]) for item in items]).long()
        fits = ((there == condition.cpu()) | (condition.cpu() == DROPPED)).all(1)
        fitting = fits.nonzero().flatten().tolist()
    if not fitting:
        return None, "real data: none, because no validation item has this condition"
    found = _measured_items(task, fitting[:count])
    factors: Factors = {"sampler": REAL}
    fewer = len(fitting) < count
    note = f"real data: all {len(fitting)} validation items, fewer than samples" if fewer else ""
    return Cell(factors, [Record(factors, name, each) for name, each in found.items()]), note


# The resumable loop over cells, for sample.py, the callback, and the studies


DESCRIPTION = 36  # characters of a cell's name beside a progress bar


@dataclass(frozen=True)
class GridOptions:
    """How a grid is run; none of it changes a number.

    Args:
        folder: where results.json is written after every cell.
        progress: true for a progress bar of its own, or a rich.progress.Progress to add one to.
        keep_going: note a cell that fails and continue; else raise, as always where a file cannot be written.
        until: asked before each cell for a reason to stop; the remaining cells are noted as skipped for that
            reason.
        samples: write all samples of each cell to the folder.
    """

    folder: Path | None = None
    progress: "bool | Progress" = False
    keep_going: bool = False
    until: Callable[[], str] | None = None
    samples: bool = False


def run_grid(
    results: Results, cells: Sequence[Factors], measure: Callable[[Factors], Cell], options: GridOptions
) -> Results:
    """Measure the cells that the results do not have yet, and keep what is found after each.

    In a process group every rank runs the same grid; rank 0 writes.
    """
    todo = results.missing(cells)
    place = {key(cell.factors): number for number, cell in enumerate(results.cells)}
    for factors in cells:  # what was there before keeps its place
        place.setdefault(key(factors), len(place))
    with progress_bar(options.progress) as bar:
        line = bar.add_task(results.name, total=len(cells), completed=len(cells) - len(todo))
        for factors in todo:
            said = textwrap.shorten(cell_name(factors), DESCRIPTION, placeholder=" ...")
            bar.update(line, description=said, refresh=True)
            results.add(_measured(factors, measure, options))
            if options.folder:
                run_on_rank_zero(partial(results.save, options.folder))
            bar.update(line, advance=1, refresh=True)
        bar.remove_task(line)
    results.cells.sort(key=lambda cell: place[key(cell.factors)])
    return results


def _measured(factors: Factors, measure: Callable[[Factors], Cell], options: GridOptions) -> Cell:
    reason = options.until() if options.until else ""
    if options.until and all_reduce_max(float(bool(reason))):
        return Cell(factors, problem=f"skipped: {reason or 'stopped on another device'}", kind="skipped")
    try:
        return measure(factors)
    except Exception as error:
        # what cannot be written would fail in the next cell too
        if not options.keep_going or isinstance(error, WriteError) or is_lost_rank(error):
            raise
        return Cell(factors, problem=f"failed: {describe_failure(error)}", kind="failed")


def describe_failure(error: Exception) -> str:
    """Return an error on one line, with its file and line unless it's one that the user can fix."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, TauflowError):
        return said
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{said} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"


@contextmanager
def progress_bar(progress: "bool | Progress") -> "Iterator[Progress]":
    """Yield the given progress bar, or a new one on standard error, hidden if `progress` is false."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not isinstance(progress, bool):
        yield progress
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not progress or rank() > 0) as bar:
        yield bar


# The grid of samplers and budgets


Samplers = str | Sampler | Iterable[str | Sampler]


def evaluate(
    trained: Trained | Model,
    samplers: Samplers = "auto",
    nfes: int | Sequence[int] = (32,),
    num_samples: int = 256,
    *,
    task: Task | None = None,
    metric: Callable[[Tensor], Tensor] | None = None,
    higher_is_better: bool = True,
    batch_size: int = 64,
    seed: int = 0,
    guidance: float | Sequence[float] = (),
    condition: Tensor | None = None,
    prompt: Prompt | tuple[Tensor, Tensor] | None = None,
    nll_items: int = 16,
) -> Results:
    """Sample with every sampler at every budget, and measure the samples.

    Use it to choose a sampler and a budget for your model. Samples are measured with the task's metrics, or
    with your own function. Where a sampler has a likelihood (`tauflow.nll`), its cells also have the `nll` of
    validation items, in nats/token. All samplers see the same items, so differences are paired.

    Args:
        trained: model and task, from `tauflow.load`, or a `tauflow.Model` with `task` or `metric`.
        samplers: specs such as "tr_cie(grid=tau)", sets (paper, beyond, users, ...), "auto", or Samplers; a
            list, or text separated by commas.
        nfes: budgets of network evaluations.
        num_samples: samples per cell, over all devices.
        task: measures the samples of a `tauflow.Model`, and says what real data is.
        metric: your own metric instead of the task's: a function from tokens (B, D) to a number per sample
            (B,). Results contain its mean, under the function's name.
        higher_is_better: of `metric`, such as False for an error rate. Tables mark the best sampler by it.
        batch_size: samples drawn together. Devices share batches, and each batch has its own seed.
        seed: of all samples. Every sampler starts from the same x_0.
        guidance: a guidance weight, or several, each a row of the tables; 1 is none. Guides by the condition
            of a model that takes one, else by the prompt.
        condition: what all samples are asked to be (C,); by default what validation items are.
        prompt: what is known: tokens and known (D,) for every sample, or a row per sample, (num_samples, D).
        nll_items: validation items, from the first on, whose nll is measured, in batches; 0 for none.

    Returns:
        One cell per sampler, budget, and guidance weight, and one for real data.
        `print(results.to_markdown())` shows tables, `results.to_frame()` is a pandas data frame.

    Examples:
        >>> trained = tauflow.load(tauflow.train.SHIPPED / "countdown_uniform.ckpt")
        >>> def share_of_zeros(tokens):
        ...     return (tokens == 0).float().mean(1)
        >>> results = tauflow.evaluate(trained.model, "euler", [4, 8], num_samples=4, metric=share_of_zeros)
        >>> [cell.factors for cell in results.cells]
        [{'sampler': 'euler', 'nfe': 4}, {'sampler': 'euler', 'nfe': 8}]
    """
    model = trained.model if isinstance(trained, Trained) else trained
    if not isinstance(model, Model):
        raise SamplingError(
            f"evaluate needs what tauflow.load returns, or a tauflow.Model, got {type(model).__name__}."
        )
    if task is not None and metric is not None:
        raise SamplingError("evaluate takes a task or a metric, got both. Remove one of them.")
    if metric is not None:
        task = _FunctionTask(model, metric, higher_is_better)
    elif task is None and isinstance(trained, Trained):
        task = trained.task
    if task is None:
        raise SamplingError(
            "evaluate needs to know how to measure the samples of a Model. Pass task=, such as "
            "tauflow.Countdown(), or metric=, a function from tokens (B, D) to a number per sample (B,)."
        )
    sampling = Sampling(
        num_samples, batch_size, seed, condition=condition, prompt=prompt, nll_items=nll_items
    )
    weights = [guidance] if isinstance(guidance, int | float) else guidance
    grid = SamplerGrid(Trained(model, task), samplers, nfes, weights, sampling)
    return grid.run(Results(), GridOptions())


class FunctionMetric(SampleMean):
    """The mean of a function of samples."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, function: Callable[[Tensor], Tensor], **kwargs: Any):
        super().__init__(**kwargs)
        self.function = function

    def of(self, tokens: Tensor) -> Tensor:
        if not len(tokens):
            return torch.zeros(0)
        values = torch.as_tensor(self.function(tokens))
        if values.shape != tokens.shape[:1]:
            raise SamplingError(
                f"metric must return one number per sample, shape ({len(tokens)},), got shape "
                f"{tuple(values.shape)}."
            )
        return values


class LowerFunctionMetric(FunctionMetric):
    """The same for a function whose lower values are better."""

    higher_is_better = False


class _FunctionTask(Task):
    """The task of a model whose samples are measured with a function; it has no data."""

    alone = "there is no real data to compare with, only a metric"

    def __init__(self, model: Model, metric: Callable[[Tensor], Tensor], higher_is_better: bool):
        name = getattr(metric, "__name__", "")
        self.num_tokens = model.process.num_tokens
        self.shape = model.shape
        self.conditions = model.conditions
        self.channels = model.channels
        self.primary_metric = name if name.isidentifier() else "metric"
        self.metric = (FunctionMetric if higher_is_better else LowerFunctionMetric)(metric)

    def setup(self, stage: str | None = None) -> None:
        raise SamplingError("This model needs a condition. Pass condition, what all samples are asked to be.")

    def sample_metrics(self) -> MetricCollection:
        return MetricCollection({self.primary_metric: self.metric.clone()}, compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        return [" ".join(map(str, row)) for row in tokens.tolist()]


class SamplerGrid:
    """The cells of samplers x budgets x guidance weights on a trained model; refuses early what cannot be."""

    def __init__(
        self,
        trained: Trained,
        samplers: Samplers,
        nfes: int | Sequence[int],
        guidance: Sequence[float],
        sampling: Sampling,
    ):
        self.model = trained.model
        self.sampling = sampling
        self.guidance = list(guidance)
        self.samplers, self.notes, self.auto = resolve_samplers(samplers, self.model)
        self.nfes = check(self.model, self.samplers, nfes, sampling)
        task, prompt = task_of(trained), sampling.prompt
        self.task = task if prompt is None else task.knowing(Prompt(*prompt))
        if sampling.condition is not None:
            check_condition(sampling.condition, 1, self.model)
            self.notes.append(f"condition of all samples: {self.task.caption(sampling.condition)}")
        for weight in guidance:
            sampling.model(self.model, weight, sampling.prompt_for(0))
        without: dict[str, list[str]] = {}
        for name, sampler in self.samplers.items() if sampling.nll_items else ():
            without.setdefault(no_nll(sampler, self.model, self.task, sampling), []).append(name)
        self.likely = set(without.pop("", []))  # the samplers whose nll is measured
        for reason, names in without.items():
            whose = f" of {', '.join(names)}" if self.likely else ""
            self.notes.append(f"no nll{whose}: {reason}")

    def cells(self) -> list[Factors]:
        """Return the cells, budget by budget."""
        weights: list[Factors] = [{"guidance": weight} for weight in self.guidance] or [{}]
        cells = product(self.nfes, self.samplers, weights)
        return [{"sampler": name, "nfe": nfe} | weight for nfe, name, weight in cells]

    def run(self, results: Results, options: GridOptions) -> Results:
        """Measure the cells that the results do not have yet, and real data beside them."""
        if self.sampling.batches < world_size() and rank() == 0:
            warnings.warn(
                f"{self.sampling.batches} batches of samples leave devices idle; lower batch_size to use all "
                f"{world_size()}",
                stacklevel=2,
            )
        adaptive = adaptive_scales(self.samplers.values(), results.scales)
        results.scales = scales(self.task) | nll_scales(self.task) | adaptive
        results.auto = self.auto or results.auto
        self._tell(results)
        if not any(cell.factors.get("sampler") == REAL for cell in results.cells):
            self._add_reference(results, options)
        done = [cell for cell in results.cells if not cell.problem]
        if any(cell.factors.get("sampler") in self.likely and NLL not in cell.items for cell in done):
            results.note(
                "some cells have no nll: they were measured without. Choose another folder to measure it."
            )

        def measure(factors: Factors) -> Cell:
            cell = self.measure(factors, bar, keep=options.samples)
            if options.samples and options.folder:
                from tauflow.evaluation.samples import write_cell

                run_on_rank_zero(partial(write_cell, options.folder, cell, self.task))
            self._tell(results)
            return dataclasses.replace(cell, samples=None)

        with progress_bar(options.progress) as bar:
            return run_grid(results, self.cells(), measure, dataclasses.replace(options, progress=bar))

    def _tell(self, results: Results) -> None:
        for note in self.notes:
            results.note(note)

    def measure(self, factors: Factors, bar: "Progress", keep: bool = False) -> Cell:
        """Measure one cell; the progress bar has a line of its batches, the cell all samples with `keep`."""
        name = str(factors["sampler"])
        sampler = self.samplers[name]
        batches = len(self.sampling.mine())
        if name in self.likely:
            batches += len(nll_batches(self.task, self.sampling)[rank() :: world_size()])
        line = bar.add_task("batches", total=batches, visible=batches > 1)
        advance = partial(bar.update, line, advance=1, refresh=True)
        try:
            cell = measure_cell(self.model, self.task, sampler, factors, self.sampling, advance, keep)
            self._note_masks(name, cell)
            return self._add_nll(cell, sampler, advance) if name in self.likely else cell
        finally:
            bar.remove_task(line)

    def _note_masks(self, name: str, cell: Cell) -> None:
        """Note a sampler that leaves masks in its samples, such as a custom one that doesn't finish."""
        if cell.shown is None or not self.model.process.absorbing:
            return
        share = (torch.tensor(cell.shown.tokens) >= self.model.process.num_tokens).double().mean().item()
        if share:
            self.notes.append(
                f"{name} leaves masks in its samples: {share:.0%} of tokens at NFE {cell.factors['nfe']}. "
                'Use finish=draw, or set finishing = "draw" in your own class.'
            )

    def _add_nll(self, cell: Cell, sampler: Sampler, advance: Callable[[], None]) -> Cell:
        try:
            cell = with_nll(cell, self.model, self.task, sampler, self.sampling, advance)
        except SamplingError as error:  # such as one of a user's own that draws its tokens by itself
            name = str(cell.factors["sampler"])
            self.likely.remove(name)
            self.notes.append(f"no nll of {name}: {error}")
            return cell
        count = len(cell.items[NLL])
        if count < self.sampling.nll_items:
            self.notes.append(f"nll: all {count} validation items")
        return cell

    def _add_reference(self, results: Results, options: GridOptions) -> None:
        try:
            cell, note = reference_cell(self.task, self.sampling.num_samples, self.sampling.condition)
        except Exception as error:
            if not options.keep_going or isinstance(error, WriteError):
                raise
            cell, note = None, f"real data: none: {type(error).__name__}: {error}"
            self.likely = set()
        results.note(note)
        if cell and self.sampling.prompt is not None:
            results.note("all samples contain the known tokens, so don't compare them with real data")
        if cell:
            results.add(cell)


def task_of(trained: Trained) -> Task:
    """Return the task of a trained model; refuse one without a task, or with one of other sizes."""
    task, model = trained.task, trained.model
    if task is None:
        raise SamplingError(
            "this model has no task, so nothing says how good a sample is; give Trained(model, task)"
        )
    of_task = (task.num_tokens, tuple(task.shape), tuple(task.conditions))
    of_model = (model.process.num_tokens, model.shape, model.conditions)
    for name, wanted, found in zip(("tokens", "shape", "conditions"), of_task, of_model, strict=True):
        if wanted != found:
            raise SamplingError(
                f"the samples of this model cannot be measured by {type(task).__name__}: the {name} of the "
                f"task are {wanted}, those of the model {found}"
            )
    return task


def choose_samplers(samplers: Samplers, model: Model) -> tuple[dict[str, Sampler], list[str]]:
    """Return samplers by their specs; and notes on `auto`, on what sharpens, and on what is skipped."""
    chosen, notes, auto = resolve_samplers(samplers, model)
    return chosen, [*notes, *([f"auto is {auto} for this model"] if auto else [])]


def resolve_samplers(samplers: Samplers, model: Model) -> tuple[dict[str, Sampler], list[str], str]:
    """Return samplers by their specs, notes, and the spec that `auto` stands for ("" if it's not asked for).

    The notes are on what sharpens and on what is skipped.
    """
    given: list[Any] = [samplers] if isinstance(samplers, str | Sampler) else list(samplers)
    chosen: dict[str, Sampler] = {}
    notes: list[str] = []
    auto = ""
    for entry in given:
        for spec in split_specs(entry) if isinstance(entry, str) else [entry]:
            members = SETS.get(spec.lower()) if isinstance(spec, str) else None
            for member in members or [spec]:
                sampler = sampler_from(member, model)
                reason = sampler.unsupported_reason(model)
                if reason and members is None:
                    raise SamplingError(f"{sampler}: {reason}")
                if reason:
                    notes.append(f"{member} is skipped: {reason}")
                else:
                    chosen.setdefault(str(sampler), sampler)
                if str(member).strip().lower() == "auto":
                    auto = str(sampler)
    if not chosen:
        raise SamplingError(
            f"no samplers to evaluate; name some of {', '.join(SAMPLERS)}, or a set: {', '.join(SETS)}"
        )
    sharp = [name for name, sampler in chosen.items() if sampler.sharpens]
    if sharp:
        notes.append(f"these sharpen, so they don't keep the data distribution: {', '.join(sharp)}")
    return chosen, list(dict.fromkeys(notes)), auto


def check(
    model: Model, samplers: dict[str, Sampler], nfes: int | Sequence[int], sampling: Sampling
) -> list[int]:
    """Return the budgets in order; refuse, before any work, what cannot be done."""
    asked = list(nfes) if isinstance(nfes, Iterable) else [nfes]
    if not asked:
        raise SamplingError("nfes holds no budget; name one, such as 32")
    budgets = sorted({positive_int(nfe, "nfe") for nfe in asked})
    sampling.model(model)  # refuses a temperature
    if sampling.prompt is not None:
        parts = sampling.prompt if isinstance(sampling.prompt, tuple | list) else ()
        rows = sampling.num_samples if any(getattr(each, "ndim", 1) > 1 for each in parts) else 1
        check_prompt(sampling.prompt, (rows, model.length), model)
    for nfe, (name, sampler) in product(budgets, samplers.items()):
        try:
            sampler.plan(model.process, model.length, nfe)
        except SamplingError as error:
            raise SamplingError(f"{name} at NFE {nfe}: {error}") from None
    return budgets
