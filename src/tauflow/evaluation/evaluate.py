"""evaluate: every sampler at every budget on one trained model, measured by the task's own metrics."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tauflow.denoise import Model
from tauflow.errors import SamplingError, WriteError
from tauflow.evaluation.grid import GridOptions, progress_bar, run_grid
from tauflow.evaluation.likelihood import NLL, nll_batches, nll_scales, no_nll, with_nll
from tauflow.evaluation.measure import Sampling, adaptive_scales, measure_cell, scales
from tauflow.evaluation.reference import reference_cell
from tauflow.evaluation.store import REAL, Cell, Factors, Results
from tauflow.ranks import rank, world_size
from tauflow.samplers import SAMPLERS, SETS, Prompt, Sampler, sampler_from, split_specs
from tauflow.samplers.run import checked_condition, whole
from tauflow.tasks import Task
from tauflow.train import Trained

if TYPE_CHECKING:
    from rich.progress import Progress

Samplers = str | Sampler | Iterable[str | Sampler]


def evaluate(
    trained: Trained,
    samplers: Samplers = "auto",
    nfes: int | Sequence[int] = (32,),
    num_samples: int = 256,
    *,
    batch_size: int = 64,
    seed: int = 0,
    guidance: float | Sequence[float] = (),
    condition: Tensor | None = None,
    prompt: Prompt | tuple[Tensor, Tensor] | None = None,
    nll_items: int = 16,
) -> Results:
    """Sample with every sampler at every budget and measure the samples with the task's metrics.

    Where a sampler has a likelihood (`tauflow.nll`), its cells have the `nll` of validation items too, in
    nats for each coordinate; all samplers see the same items, so that differences are paired.

    Args:
        trained: model and task, from `tauflow.load`, or your own `tauflow.Trained(model, task)`.
        samplers: specs such as "tr_cie(grid=tau)", sets (paper, beyond, users, ...), "auto", or Samplers; a
            list, or text in which commas separate them.
        nfes: budgets of evaluations.
        num_samples: samples of each cell, over all devices.
        batch_size: samples drawn together; devices share batches, and each batch has a seed of its own.
        seed: of all samples; every sampler begins from the same x_0.
        guidance: a weight of guidance, or several, each a row of its own; 1 is none. By the condition of a
            model that takes one, else by the prompt.
        condition: what all samples are asked to be (C,); by default what validation items are.
        prompt: what is known: tokens and known (D,) for every sample, or a row for each, (num_samples, D).
        nll_items: validation items, from the first on, whose nll is measured, in batches; 0 for none.
    """
    if not isinstance(trained, Trained):
        raise SamplingError(
            f"trained must be a tauflow.Trained, got {type(trained).__name__}. Load one with "
            "tauflow.load(path), or make one with tauflow.Trained(model, task)."
        )
    size = (num_samples, batch_size, seed)
    sampling = Sampling(*size, condition=condition, prompt=prompt, nll_items=nll_items)
    weights = [guidance] if isinstance(guidance, int | float) else guidance
    grid = SamplerGrid.of(trained, samplers, nfes, weights, sampling)
    return grid.run(Results(), GridOptions())


class SamplerGrid:
    """The cells of samplers x budgets x guidance weights on a trained model; refuses early what cannot be."""

    def __init__(
        self,
        trained: Trained,
        samplers: dict[str, Sampler],
        nfes: Sequence[int],
        guidance: Sequence[float],
        sampling: Sampling,
    ):
        self.model = trained.model
        task, prompt = task_of(trained), sampling.prompt
        self.task = task if prompt is None else task.knowing(Prompt(*prompt))
        self.samplers = samplers
        self.nfes = list(nfes)
        self.guidance = list(guidance)
        self.sampling = sampling
        self.notes: list[str] = []
        self.likely: set[str] = set()  # the samplers whose nll is measured

    @classmethod
    def of(
        cls,
        trained: Trained,
        samplers: Samplers,
        nfes: int | Sequence[int],
        guidance: Sequence[float],
        sampling: Sampling,
    ) -> "SamplerGrid":
        """Make the grid from what a user asked for."""
        chosen, notes = choose_samplers(samplers, trained.model)
        grid = cls(trained, chosen, check(trained.model, chosen, nfes, sampling), guidance, sampling)
        grid.notes = notes
        if sampling.condition is not None:
            checked_condition(sampling.condition, 1, trained.model)
            grid.notes.append(f"all samples were asked for: {grid.task.caption(sampling.condition)}")
        for weight in guidance:
            sampling.model(trained.model, weight, sampling.prompt_for(0))
        grid._choose_likely()
        return grid

    def _choose_likely(self) -> None:
        """Choose the samplers whose nll is measured, and note why others have none."""
        if not self.sampling.nll_items:
            return
        without: dict[str, list[str]] = {}
        for name, sampler in self.samplers.items():
            without.setdefault(no_nll(sampler, self.model, self.task, self.sampling), []).append(name)
        self.likely = set(without.pop("", []))
        for reason, names in without.items():
            whose = f" of {', '.join(names)}" if self.likely else ""
            self.notes.append(f"no nll{whose}: {reason}")

    def cells(self) -> list[Factors]:
        """Return the cells, budget by budget."""
        cells: list[Factors] = []
        for nfe, name in product(self.nfes, self.samplers):
            weights: list[Factors] = [{"guidance": weight} for weight in self.guidance] or [{}]
            cells += [{"sampler": name, "nfe": nfe} | weight for weight in weights]
        return cells

    def run(self, results: Results, options: GridOptions) -> Results:
        """Measure the cells that the results do not have yet, and real data beside them."""
        self._warn_of_idle_devices()
        adaptive = adaptive_scales(self.samplers.values(), results.scales)
        results.scales = scales(self.task) | nll_scales(self.task) | adaptive
        self._tell(results)
        if not any(cell.factors.get("sampler") == REAL for cell in results.cells):
            self._add_reference(results, options)
        done = [cell for cell in results.cells if not cell.problem]
        if any(cell.factors.get("sampler") in self.likely and NLL not in cell.items for cell in done):
            results.note("cells that were measured without nll stay so; to have it, choose another folder")

        def measure(factors: Factors) -> Cell:
            cell = self.measure(factors, bar)
            self._tell(results)
            return cell

        with progress_bar(options.progress) as bar:
            options = dataclasses.replace(options, progress=bar or False)
            return run_grid(results, self.cells(), measure, options)

    def _tell(self, results: Results) -> None:
        for note in self.notes:
            results.note(note)

    def measure(self, factors: Factors, bar: "Progress | None" = None) -> Cell:
        """Measure one cell; a progress bar is told of its batches."""
        sampler = self.samplers[str(factors["sampler"])]
        batches = len(self.sampling.mine())
        if factors["sampler"] in self.likely:
            batches += len(nll_batches(self.task, self.sampling)[rank() :: world_size()])
        with _line(bar, batches) as advance:
            cell = measure_cell(self.model, self.task, sampler, factors, self.sampling, advance)
            return self._with_nll(cell, sampler, advance)

    def _with_nll(self, cell: Cell, sampler: Sampler, advance: Callable[[], None]) -> Cell:
        name = str(cell.factors["sampler"])
        if name not in self.likely:
            return cell
        try:
            cell = with_nll(cell, self.model, self.task, sampler, self.sampling, advance)
        except SamplingError as error:  # such as one of a user's own that draws its tokens by itself
            self.likely.remove(name)
            self.notes.append(f"no nll of {name}: {error}")
            return cell
        count = len(cell.items[NLL])
        if count < self.sampling.nll_items:
            self.notes.append(f"nll is over all {count} validation items: there are no more")
        return cell

    def _add_reference(self, results: Results, options: GridOptions) -> None:
        try:
            cell, note = reference_cell(self.task, self.sampling.num_samples, self.sampling.condition)
        except WriteError:
            raise
        except Exception as error:
            if not options.keep_going:
                raise
            cell, note = None, f"there are no numbers of real data: {type(error).__name__}: {error}"
            self.likely = set()
        results.note(note)
        if cell and self.sampling.prompt is not None:
            results.note("samples share what is known: compare samplers with each other, not with real data")
        if cell:
            results.add(cell)

    def _warn_of_idle_devices(self) -> None:
        if self.sampling.batches < world_size() and rank() == 0:
            warnings.warn(
                f"{self.sampling.batches} batches of samples leave devices idle; lower batch_size to use all "
                f"{world_size()}",
                stacklevel=3,
            )


@contextmanager
def _line(bar: "Progress | None", batches: int) -> Iterator[Callable[[], None]]:
    """Show the batches of a cell as a line of a progress bar; yield what advances it."""
    if bar is None or batches < 2:
        yield lambda: None
        return
    line = bar.add_task("batches", total=batches)
    try:
        yield lambda: bar.update(line, advance=1, refresh=True)
    finally:
        bar.remove_task(line)


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
    given: list[Any] = [samplers] if isinstance(samplers, str | Sampler) else list(samplers)
    chosen: dict[str, Sampler] = {}
    notes: list[str] = []
    for entry in given:
        for spec in split_specs(entry) if isinstance(entry, str) else [entry]:
            members = SETS.get(spec.lower()) if isinstance(spec, str) else None
            for member in members or [spec]:
                sampler = sampler_from(member, model)
                reason = sampler.refuses(model)
                if reason and members is None:
                    raise SamplingError(f"{sampler}: {reason}")
                if reason:
                    notes.append(f"{member} is skipped: {reason}")
                else:
                    chosen.setdefault(str(sampler), sampler)
                if str(member).strip().lower() == "auto":
                    notes.append(f"auto is {sampler} for this model")
    if not chosen:
        raise SamplingError(
            f"no samplers to evaluate; name some of {', '.join(SAMPLERS)}, or a set: {', '.join(SETS)}"
        )
    sharp = [name for name, sampler in chosen.items() if sampler.sharpens]
    if sharp:
        notes.append(f"these sharpen, and do not keep the law of the data: {', '.join(sharp)}")
    return chosen, list(dict.fromkeys(notes))


def check(
    model: Model, samplers: dict[str, Sampler], nfes: int | Sequence[int], sampling: Sampling
) -> list[int]:
    """Return the budgets in order; refuse, before any work, what cannot be done."""
    asked = list(nfes) if isinstance(nfes, Iterable) else [nfes]
    if not asked:
        raise SamplingError("nfes holds no budget; name one, such as 32")
    budgets = sorted({whole(nfe, "nfe") for nfe in asked})
    sampling.refuse_unfit(model)
    for nfe, (name, sampler) in product(budgets, samplers.items()):
        try:
            sampler.plan(model.process, model.length, nfe)
        except SamplingError as error:
            raise SamplingError(f"{name} at NFE {nfe}: {error}") from None
    return budgets
