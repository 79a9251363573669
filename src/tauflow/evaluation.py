"""evaluate: every sampler at every budget on one run, measured by the task's own metrics.

Samples are drawn in batches, and batch i has a seed of its own, made of (seed, i): so every sampler begins from the same x_0, and the
samples do not depend on how many devices share the batches. Inside a process group (Lightning's DDP, in training or in sample.py) each
rank takes every world_size-th batch; metrics are reduced by torchmetrics, and the counts are those of all ranks.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from tauflow.denoisers import Denoiser, Evaluation, denoiser_from
from tauflow.errors import SamplingError
from tauflow.processes import backend, highest, over_ranks, rank, world_size
from tauflow.runs import Run
from tauflow.samplers import SAMPLERS, Result, Sampler, StepInfo
from tauflow.sampling import OPTIONS, budget, check_dense, check_temperature, sample, sampler_from
from tauflow.seeds import seed_of
from tauflow.tables import Cell, Measured, Table
from tauflow.tasks.base import Task

SETS = {
    "all": list(SAMPLERS),
    "paper": ["euler", "tweedie", "theta_rk2", "theta_trapezoidal", "fhs", "ho_fhs", "tr_cie", "tr_cie_paper"],
    "ablation": ["euler", "euler_tau_grid", "tr", "cie", "tr_cie", "tr_cie_exact"],
    "beyond": [
        *("euler", "tweedie", "tr_cie", "ho_fhs", "fhs_pairs", "spaced", "spaced_even", "spaced_sharp", "learned_order"),
        *("entropy_budget", "bridge", "bridge_systematic"),
    ],
}
"""Samplers by the name of a set; members that do not support the source, or lack a learned order, are left out, and said so."""

Samplers = str | Sequence[str] | Mapping[str, Sampler | str]
CONDITIONS = ("temperature", "guidance", "dense", "prompt", "prompt_mask")  # options of tauflow.sample that hold for all samplers


def evaluate(
    run: Run,
    samplers: Samplers = "tr_cie",
    nfes: Sequence[int] = (32,),
    num_samples: int = 256,
    *,
    batch_size: int = 64,
    seed: int = 0,
    show: int = 4,
    device: str | torch.device | None = None,
    progress: Any = False,
    keep_going: bool = False,
    until: Callable[[], str] | None = None,
    done: Iterable[Cell] = (),
    real: dict[str, Measured] | None = None,
    on_cell: Callable[[Table], None] | None = None,
    settings: dict[str, Any] | None = None,
    **options,
) -> Table:
    """Samples with every sampler at every budget and measures them with the task's metrics.

    Args:
        run: task, denoiser, source and schedule: from `tauflow.load`, or your own `tauflow.Run`.
        samplers: names (a list, or separated by commas), a set (all, paper, ablation, beyond), or {name: Sampler}.
        nfes: budgets of evaluations.
        num_samples: samples of each cell, over all devices.
        batch_size: samples drawn together. It is the unit that devices share, and part of what makes a sample: each batch has its seed.
        seed: of all samples; every sampler begins from the same x_0.
        show: how many samples of each cell to keep, from the first batch.
        device: where the denoiser is; by default where its parameters are.
        progress: true for a progress bar of its own, or a rich.progress.Progress to add one to.
        keep_going: note a sampler that fails in its cell and go on; else raise.
        until: asked before each cell for a reason to stop; the remaining cells are noted as skipped for that reason.
        done: cells of an earlier call that need not be made again.
        real: numbers of real data from an earlier call; measured if there are none.
        on_cell: called with the table so far after each cell, on every rank.
        settings: kept in the table, for the record.
        options: of `tauflow.sample`: those of samplers (tauflow.sampling.OPTIONS) go to the samplers that have them; temperature, guidance,
            dense, and prompt with prompt_mask (D,) to all. The geometry is the task's, the learned order the run's.
    """
    samplers, notes = choose_samplers(samplers, run, **{name: options.pop(name, None) for name in OPTIONS})
    if unknown := [name for name in options if name not in CONDITIONS]:
        raise TypeError(f"evaluate has no option {unknown[0]!r}; those of samplers are {', '.join((*OPTIONS, *CONDITIONS))}")
    check_dense(options.get("dense", False), *samplers.values())
    nfes = check(run, samplers, nfes, num_samples, batch_size, options.get("temperature", 1.0))
    metrics = run.task.sample_metrics()
    names = sorted(metrics, key=lambda name: name != run.task.headline)  # the headline first
    higher = {name: bool(metrics[name].higher_is_better) for name in names}
    order = [(name, nfe) for nfe in nfes for name in samplers]
    cells = {(cell.sampler, cell.nfe): cell for cell in done if not cell.problem and (cell.sampler, cell.nfe) in order}
    todo = [key for key in order if key not in cells]
    batches = Batches(num_samples, batch_size, seed)
    if batches.count < world_size() and rank() == 0:
        warnings.warn(f"{batches.count} batches of samples leave devices idle; lower batch_size to use all {world_size()}", stacklevel=2)

    def table() -> Table:
        return Table([cells[key] for key in order if key in cells], higher, real, settings or {}, notes)

    if real is None:
        real, notes = ({}, [*notes, run.task.alone]) if run.task.alone else _reference(run.task, num_samples, notes, keep_going)
    with _progress(progress) as bar:
        task = bar.add_task("sampling", total=len(todo) * len(batches.mine())) if bar else None
        for name, nfe in todo:
            if bar:
                bar.update(task, description=f"sampling {name}, NFE {nfe}", refresh=True)
            reason = until() if until else ""
            if highest(float(bool(reason))):
                cells[name, nfe] = Cell(name, nfe, problem=f"skipped: {reason or 'stopped on another device'}")
            else:
                advance = (lambda: bar.update(task, advance=1, refresh=True)) if bar else (lambda: None)
                cells[name, nfe] = _cell(run, name, samplers[name], nfe, batches, metrics, show, device, keep_going, advance, options)
            if on_cell:
                on_cell(table())
        if bar:
            bar.remove_task(task)
    return table()


def choose_samplers(samplers: Samplers, run: Run, **options) -> tuple[dict[str, Sampler], list[str]]:
    """Samplers by name with the options they have, and notes on what was left out; refuses one that does not support the run's source."""
    if isinstance(samplers, Mapping):
        chosen, names = {name: sampler_from(sampler) for name, sampler in samplers.items()}, []
    else:
        names = samplers.split(",") if isinstance(samplers, str) else list(samplers)
        names, chosen = [name.strip().lower().replace("-", "_") for name in names], {}
    named = set(chosen) or set(names)
    given = {name: value for name, value in options.items() if value is not None}
    source, notes = type(run.source).__name__.lower(), []
    for name in names:
        for member in SETS.get(name, [name]):
            sampler = sampler_from(member)
            if name in SETS and not isinstance(run.source, sampler.sources):
                notes.append(f"{member} is left out: it does not support the {source} source of this model")
            elif name in SETS and sampler.needs_ranks and run.ranks is None:
                notes.append(f"{member} is left out: this run has no learned order; make one with tauflow.learn_order")
            else:
                chosen.setdefault(member, sampler)
    if not chosen:
        raise SamplingError(f"no samplers to evaluate; name some of {', '.join(SAMPLERS)}, or a set: {', '.join(SETS)}")
    failures: dict[str, SamplingError] = {}
    changed = 0
    for name, sampler in chosen.items():
        if not isinstance(run.source, sampler.sources):
            others = [other for other in SAMPLERS if isinstance(run.source, sampler_from(other).sources)]
            raise SamplingError(f"{name} does not support the {source} source of this model; try one of {', '.join(others)}")
        fields = {item.name for item in dataclasses.fields(sampler)}
        try:
            chosen[name] = sampler_from(sampler, **{option: value for option, value in given.items() if option in fields})
            changed += bool(fields & set(given))
        except SamplingError as error:
            failures[name] = error
        if chosen[name].needs_ranks and run.ranks is None:
            raise SamplingError(
                f"{name} needs a learned order, and this run has none: make one with tauflow.learn_order and keep it beside the checkpoint "
                "with tauflow.orders.save; or use spaced"
            )
    for name, error in failures.items():
        if name in named or not changed:
            raise SamplingError(f"{name}: {error}")
        notes.append(f"{name} keeps its own options: {error}")
    for option, value in given.items():
        without = [name for name, sampler in chosen.items() if option not in {item.name for item in dataclasses.fields(sampler)}]
        if len(without) == len(chosen):
            raise SamplingError(f"none of {', '.join(chosen)} has the option {option}; leave {option}={value} out")
        if without:
            notes.append(f"{option}={value} does not apply to {', '.join(without)}")
    return chosen, list(dict.fromkeys(notes))


def check(
    run: Run, samplers: dict[str, Sampler], nfes: Sequence[int], num_samples: int, batch_size: int, temperature: float = 1.0
) -> list[int]:
    """The budgets in order; refuses, before any work, what cannot be done."""
    check_temperature(temperature)
    nfes = [nfes] if isinstance(nfes, int) else list(nfes)
    if num_samples < 1 or batch_size < 1 or not nfes:
        raise SamplingError(f"need num_samples >= 1, batch_size >= 1 and a budget, got {num_samples}, {batch_size} and {list(nfes)}")
    nfes = sorted({budget(nfe) for nfe in nfes})
    for nfe in nfes:
        for name, sampler in samplers.items():
            try:
                sampler.plan(nfe, run.schedule, run.task.seq_len)
            except SamplingError as error:
                raise SamplingError(f"{name} at NFE {nfe}: {error}") from None
    return nfes


def reference(task: Task, count: int, first: int = 0) -> dict[str, Measured]:
    """The task's metrics of `count` real validation items from number `first` on; from the first if there are not so many."""
    if not hasattr(task, "val_data"):
        task.setup("validate")
    begin = first if first + count <= len(task.val_data) else 0
    metrics = task.sample_metrics()
    for metric in metrics.values():
        metric.sync_on_compute = False  # every rank looks at all of them
    tokens = [item["tokens"] for item in task.val_data.__getitems__(list(range(begin, min(begin + count, len(task.val_data)))))]
    metrics.update(torch.stack(tokens))
    return _measured(metrics)


def _reference(task: Task, count: int, notes: list[str], keep_going: bool) -> tuple[dict[str, Measured], list[str]]:
    try:
        measured = reference(task, count)
        fewer = [f"real data are the {len(task.val_data)} validation items there are"] if len(task.val_data) < count else []
        return measured, [*notes, *fewer]
    except Exception as error:
        if not keep_going:
            raise
        return {}, [*notes, f"there are no numbers of real data: {_line(error)}"]


def _measured(metrics: MetricCollection) -> dict[str, Measured]:
    return {name: Measured(*(float(number) for number in found)) for name, found in metrics.compute().items()}


@dataclasses.dataclass(frozen=True)
class Batches:
    """The samples of a cell: batch i holds `size(i)` of them and has `seed_for(i)`."""

    num_samples: int
    batch_size: int
    seed: int

    @property
    def count(self) -> int:
        return -(-self.num_samples // self.batch_size)

    def mine(self) -> range:
        """The batches of this rank."""
        return range(rank(), self.count, world_size())

    def size(self, i: int) -> int:
        return min(self.batch_size, self.num_samples - i * self.batch_size)

    def seed_for(self, i: int) -> int:
        return seed_of("evaluation", self.seed, i)


def _cell(
    run: Run,
    name: str,
    sampler: Sampler,
    nfe: int,
    batches: Batches,
    metrics: MetricCollection,
    show: int,
    device: str | torch.device | None,
    keep_going: bool,
    advance: Callable[[], None],
    options: dict[str, Any],
) -> Cell:
    home = torch.device("cuda", torch.cuda.current_device()) if backend() == "nccl" else torch.device("cpu")
    metrics = metrics.to(home)
    metrics.reset()
    counts, largest, forwards, problem, first = Counts(), 0, 0, "", None
    timer = Timer()
    timed = TimedDenoiser(denoiser_from(run.denoiser, run.source), timer)
    if options.get("guidance") is not None:
        unconditional, weight = options["guidance"]
        options = options | {"guidance": (TimedDenoiser(denoiser_from(unconditional, run.source), timer), weight)}
    measured: dict[str, Measured] = {}
    try:
        metrics.update(torch.zeros(0, run.task.seq_len, dtype=torch.long, device=home))  # a rank without samples takes part too
        for i in batches.mine():
            shape = (batches.size(i), run.task.seq_len)
            states: list[Tensor] = []
            begin, before = _now(), timer.seconds
            result = sample(
                timed,
                run.source,
                run.schedule,
                shape,
                sampler,
                nfe,
                seed=batches.seed_for(i),
                device=device,
                geometry=run.task.geometry,
                ranks=run.ranks,
                observer=(lambda info, state, states=states: states.append(state.x[0].cpu())) if i == 0 else None,
                **_spread(options, shape),
            )
            counts = counts.plus(shape[0], _now() - begin, timer.seconds - before, result)
            largest, forwards = max(largest, result.nfe), max(forwards, result.info.forwards)
            metrics.update(result.tokens.to(home))
            if i == 0:
                first = (result.tokens[:show].tolist(), _trajectory(run, batches, shape, states, result, options))
            advance()
    except Exception as error:
        if not keep_going and world_size() == 1:
            raise
        problem = f"failed: {_line(error)}"
    problem = _agree(problem)
    if not problem:
        try:
            measured = _measured(metrics)
        except Exception as error:
            if not keep_going and world_size() == 1:
                raise
            problem = f"failed: {_line(error)}"
        problem = _agree(problem)
    if problem:
        if not keep_going:
            raise SamplingError(f"{name} at NFE {nfe} {problem}")
        return Cell(name, nfe, problem=problem)
    counts = counts.of_all_ranks()
    return Cell(
        sampler=name,
        nfe=nfe,
        samples=int(counts.samples),
        counted_nfe=int(highest(largest)),
        forwards=int(highest(forwards)),
        seconds=counts.seconds,
        network_seconds=counts.network_seconds,
        metrics=measured,
        jumped=counts.jumped / counts.samples,
        clamped=counts.clamped / counts.samples,
        several_events=counts.several / counts.samples,
        leftover_masks=counts.leftover / counts.samples,
        settings={"class": type(sampler).__name__, **dataclasses.asdict(sampler)},
        shown=first[0] if first else [],
        states=first[1] if first else None,
    )


def _trajectory(
    run: Run, batches: Batches, shape: tuple[int, int], states: list[Tensor], result: Result, options: dict[str, Any]
) -> Tensor:
    """The first sample from x_0 to the end, (N, D)."""
    x_0 = run.source.sample(shape, torch.Generator().manual_seed(batches.seed_for(0)))[0]
    if options.get("prompt") is not None:
        x_0 = torch.where(options["prompt_mask"].cpu(), options["prompt"].cpu(), x_0)
    end = result.tokens[0].cpu()
    unfinished = states and torch.equal(states[-1], end)  # nothing was left to finish
    return torch.stack([x_0, *states] if unfinished else [x_0, *states, end])


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _agree(problem: str) -> str:
    """A problem of any rank is everyone's."""
    return problem or "failed: on another device" if highest(float(bool(problem))) else ""


@dataclasses.dataclass(frozen=True)
class Counts:
    """Sums over the samples of a cell."""

    samples: float = 0.0
    seconds: float = 0.0
    network_seconds: float = 0.0
    jumped: float = 0.0
    clamped: float = 0.0
    several: float = 0.0
    leftover: float = 0.0

    def plus(self, samples: int, seconds: float, network_seconds: float, result: Result) -> "Counts":
        steps: list[StepInfo] = result.info.steps
        shares = [sum(getattr(step, name) for step in steps) / max(1, len(steps)) for name in ("moved", "clamped", "several")]
        new = (samples, seconds, network_seconds, *(samples * share for share in (*shares, result.info.leftover_masks)))
        return Counts(*(old + more for old, more in zip(dataclasses.astuple(self), new, strict=True)))

    def of_all_ranks(self) -> "Counts":
        return Counts(*over_ranks(dataclasses.astuple(self), "SUM"))


class Timer:
    """Sums up the time spent in the network, the head on single rows included."""

    def __init__(self):
        self.seconds = 0.0

    @contextmanager
    def __call__(self):
        begin = _now()
        yield
        self.seconds += _now() - begin


class TimedDenoiser(Denoiser):
    def __init__(self, denoiser: Denoiser, timer: Timer):
        self.denoiser, self.timer = denoiser, timer
        self.forwards = denoiser.forwards

    def evaluate(self, x, t):
        with self.timer():
            return TimedEvaluation(self.denoiser.evaluate(x, t), self.timer)

    @property
    def device(self):
        return self.denoiser.device


class TimedEvaluation(Evaluation):
    def __init__(self, evaluation: Evaluation, timer: Timer):
        self.shape = evaluation.shape
        self._evaluation, self._timer = evaluation, timer

    def logits(self, index):
        with self._timer():
            return self._evaluation.logits(index)


def _spread(options: dict[str, Any], shape: tuple[int, int]) -> dict[str, Any]:
    """A prompt (D,) holds for every sample of a batch."""
    prompts = {name: options[name].expand(shape) for name in ("prompt", "prompt_mask") if options.get(name) is not None}
    return options | prompts


@contextmanager
def _progress(progress: Any):
    if progress is not True:
        yield progress or None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if rank():
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("batches"), TimeRemainingColumn()
    with Progress(*columns) as bar:
        yield bar


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # work is queued: wait for what is timed
    return time.perf_counter()
