"""Image studies: samplers compared, the order in which to reveal an image, and the paper's four schedules."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.studies.layout import TableSpec
from benchmarks.studies.models import OnModels, Subject
from benchmarks.studies.paired import difference
from benchmarks.studies.study import Study
from tauflow import files, tasks
from tauflow.denoise import Model
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import Sampling, check, nll_scales, no_nll, real_items, task_of, with_nll
from tauflow.evaluation.images import ImageBlock, Strip, captions_of, mosaic, samples_of
from tauflow.evaluation.results import REAL, Cell, Factors, Measured, Results, Scale, Shown
from tauflow.evaluation.tables import Frame, View, number_text
from tauflow.process import Mixture
from tauflow.samplers import Sampler, sampler_from
from tauflow.tasks import Images
from tauflow.train import Trained

# pictures.png: samples of several samplers at one budget, one row each


PICTURED = 8  # the budget whose samples are shown
PICTURES = 8  # of a row
NAME = "pictures.png"


def write_pictures(
    results: Results,
    subjects: Sequence[Subject],
    view: View,
    folder: Path,
    chosen: Callable[[Cell], bool] = lambda cell: True,
) -> list[str]:
    """Write the kept samples of the chosen cells, a block for each model; return the names of the files."""
    blocks = []
    for subject in subjects:
        task = task_of(subject.trained)
        strips: list[Strip] = []
        for cell in results.cells:
            if cell.shown and chosen(cell) and subject.factors.items() <= cell.factors.items():
                captions = [] if strips else captions_of(cell, task)  # every row was asked for the same
                shown = np.asarray(samples_of(cell, task))
                strips.append(Strip(shown, str(cell.factors["sampler"]), captions))
        if strips:
            blocks.append(ImageBlock(strips, f"{view.label(subject.factors, view.panel)}, NFE {PICTURED}"))
    if not blocks:
        return []
    with files.atomic(folder / NAME) as file:
        mosaic(blocks).savefig(file, format="png")
    return [NAME]


# Samplers on image models


FEATURES = "lite0"  # the network in whose features pictures are compared, unless --data features=... says
METRIC = "nll_bits_per_dim"
NEEDS = "a checkpoint of pictures, as `python train.py -c configs/fashion.yaml` makes them"


def image_task(trained: Trained, study: str) -> tasks.Images:
    """Return the task of a model of pictures; refuse another model."""
    task = task_of(trained)
    if not isinstance(task, tasks.Images):
        raise SettingsError(f"the study {study} needs {NEEDS}; this one is of {type(task).__name__}")
    return task


class OnImages(OnModels):
    """Abstract: samplers on models of pictures, by exact likelihood and by features of their samples."""

    samples = 256
    seeds = (0,)
    nll_items = 32
    needs = NEEDS
    ignores = ("judge",)
    smoke: ClassVar[dict[str, Any]] = OnModels.smoke | {"samples": 4, "nfes": (4, 8), "nll_items": 2}

    @cached_property
    def loaded(self) -> list[Trained]:
        found = super().loaded
        for trained in found:
            task = image_task(trained, self.name)
            if "features" not in self.settings.data:
                task.features = FEATURES
            task.sample_metrics()  # a network that is not there is refused now
        return found


class ImagesStudy(OnImages):
    """Samplers at few evaluations on models of pictures: exact likelihood in bits per dimension (of a masked
    source), distances in the features of a network, accuracy of the class asked for, noise in quiet areas and
    spread of the brightness; real data is the floor. pictures.png shows samples of 8 evaluations. Needs
    --ckpt; --data features=... names another network than lite0, features=null does without."""

    nfes = (4, 8, 16, 32, 64)
    samplers = ("paper", "beyond")
    shown = (
        *(METRIC, "kid_*", "fd16_*", "fid_*", "label_accuracy_*", "class_entropy_bits_*"),
        *("brightness_sd", "quiet_*", "unigram_tv"),
    )
    drawn = (METRIC, f"{METRIC} *", "kid_*", "fd16_*")

    def sampling(self, factors: Factors) -> Sampling:
        return dataclasses.replace(super().sampling(factors), show=PICTURES * self.pictured(factors))

    def pictured(self, factors: Factors) -> bool:
        """Return whether pictures of a cell are kept: of real data, and of samples at one budget."""
        return factors["seed"] == self.settings.seeds[0] and factors.get("nfe", PICTURED) == PICTURED

    def real(self, trained: Trained, factors: Factors) -> Cell:
        cell, task = super().real(trained, factors), task_of(trained)
        if not self.pictured(factors):
            return cell
        tokens, condition = real_items(task, range(min(PICTURES, len(task.val_data))))
        return dataclasses.replace(
            cell, shown=Shown(tokens.tolist(), None if condition is None else condition.tolist())
        )

    def illustrate(self, results: Results, folder: Path) -> list[str]:
        return write_pictures(results, self.subjects, self.view, folder)


# Order of revealing


@dataclass(frozen=True)
class Ordered:
    """A model whose coordinates are seen in a geometry, and the sampler that reveals them."""

    model: Model
    task: Images
    sampler: Sampler


class ImageOrders(Study):
    """In which order to reveal a picture: exact likelihood, in bits per dimension, of a masked model under
    random orders with equal and with growing counts, and under `spaced` and `spaced_even` in one dimension,
    on a grid of all axes, and with the channels of a pixel together or apart. All orders see the same real
    items, so differences to the random one are paired. Needs --ckpt, with or without channels."""

    samples = 0
    seeds = (0,)
    nfes = (8, 16, 32)
    nll_items = 32
    needs = NEEDS
    smoke = Study.smoke | {"nll_items": 2}
    view = View(row=("order",), panel=("tokens",))
    ignores = ("samples", "samplers", "judge")
    grows = ("nfes",)

    @cached_property
    def subjects(self) -> dict[tuple[str, str], Ordered]:
        """Return what is measured, by the kind of tokens and the order."""
        if not self.settings.nll_items:
            raise SettingsError(f"the study {self.name} measures nll alone; --nll_items must be at least 1")
        found: dict[tuple[str, str], Ordered] = {}
        for trained in self.loaded:
            task = image_task(trained, self.name)
            if any(tokens == task.tokens for tokens, _ in found):
                raise SettingsError(
                    f"two checkpoints have {task.tokens} tokens; give --ckpt at most one of each kind"
                )
            for name, (sampler, model) in orders(trained.model).items():
                if reason := no_nll(sampler, model, task, self.sampling(0)):
                    raise SettingsError(f"the study {self.name} measures likelihoods: {reason}")
                check(model, {str(sampler): sampler}, self.settings.nfes, self.sampling(0))
                found[str(task.tokens), name] = Ordered(model, task, sampler)
        return found

    def cells(self) -> list[Factors]:
        lines = product(self.subjects, self.settings.nfes, self.settings.seeds)
        return [
            {"tokens": tokens, "order": order, "nfe": nfe, "seed": seed}
            for (tokens, order), nfe, seed in lines
        ]

    def measure(self, factors: Factors) -> Cell:
        subject = self.subjects[str(factors["tokens"]), str(factors["order"])]
        sampling = self.sampling(int(factors["seed"]))
        cell = with_nll(Cell(factors), subject.model, subject.task, subject.sampler, sampling)
        named = factors | {"sampler": str(subject.sampler)}  # whose colour the order has in figures
        return dataclasses.replace(
            cell, records=[dataclasses.replace(each, factors=named) for each in cell.records]
        )

    def sampling(self, seed: int) -> Sampling:
        return Sampling(
            batch_size=self.settings.batch_size, seed=seed, show=0, nll_items=self.settings.nll_items
        )

    def scales(self) -> dict[str, Scale]:
        return {METRIC: nll_scales(task_of(self.loaded[0]))[METRIC]}


def orders(model: Model) -> dict[str, tuple[Sampler, Model]]:
    """Return samplers with the models on which they reveal in each order, by name; the first is the base."""
    found = {
        "random": (sampler_from("fhs"), model),
        "random, growing counts": (sampler_from("fhs", counts="power"), model),
    }
    for name in ("spaced", "spaced_even"):
        for words, seen in geometries(model).items():
            found[f"{name}, {words}"] = (sampler_from(name), seen)
    return found


def geometries(model: Model) -> dict[str, Model]:
    """Return the model with its coordinates seen as a line, as a grid, and as pixels with channels."""
    flat = dataclasses.replace(model, channels=None)
    found = {
        "one dimension": dataclasses.replace(flat, shape=(model.length,)),
        f"{len(model.shape)} dimensions": flat,
    }
    if len(model.shape) == 3:
        found["channels together"] = dataclasses.replace(model, channels="together")
        found["channels apart"] = dataclasses.replace(model, channels="apart")
    return found


# Schedules


CLAIM = (
    'The paper (fig:fid, without numbers): "Our method generally outperforms the baselines, especially when '
    'NFE is small." Here TR-CIE is compared with the best of these baselines at the same budget; below 0 it '
    "is better. The verdict is on all of them: yes if TR-CIE is below each by two standard errors of the "
    "difference, no if one of them is below TR-CIE by two and a half (the best of four noisy values is lower "
    "by chance). Differences are paired where real items are measured.\n"
)
COLUMNS = ("schedule", "NFE", "best of the others", "TR-CIE less it", "TR-CIE best?", "ours less TR-CIE")
TRIED = "tr_cie"
RIVALS = ("euler", "tweedie", "theta_rk2", "theta_trapezoidal")
BELOW, ABOVE = 2.0, 2.5  # standard errors beyond which TR-CIE is better than all, or one of four is better


class ImageSchedules(OnImages):
    """The paper's samplers and ours on pictures under the schedules linear, quadratic, cubic and cosine
    (paper: fig:fid), by exact likelihood and by distances in features, and whether TR-CIE is best under each.
    One network serves all schedules: the posterior depends on x_t and kappa only, and the network is told
    the time of its own schedule. Several checkpoints of a source are each studied under their own."""

    names: ClassVar[Sequence[str]] = ("linear", "quadratic", "cubic", "cosine")
    nfes = (8, 16, 32, 64)
    samplers = (*RIVALS, TRIED, "auto")
    view = View(row=("sampler",), panel=("source", "schedule"))
    shown = (METRIC, "kid_*", "fd16_*")

    def named_models(self) -> list[tuple[Factors, Trained]]:
        found: list[tuple[Factors, Trained]] = []
        for trained in self.loaded:
            for model in self.under_schedules(trained.model):
                process = mixture_of(model)
                factors: Factors = {"source": process.name, "schedule": process.schedule.name}
                if any(factors == other for other, _ in found):
                    raise SettingsError(
                        f"two checkpoints are {process}; give --ckpt one of a source, or one a schedule"
                    )
                found.append((factors, dataclasses.replace(trained, model=model)))
        for source in dict.fromkeys(factors["source"] for factors, _ in found):
            there = [factors["schedule"] for factors, _ in found if factors["source"] == source]
            if absent := [name for name in self.names if name not in there]:
                self.notes.append(f"{source}: there is no checkpoint of {', '.join(absent)}")
        return found

    def under_schedules(self, model: Model) -> list[Model]:
        """Return the model under all schedules, or under its own where others of its source are given."""
        source = mixture_of(model).name
        if sum(mixture_of(other.model).name == source for other in self.loaded) > 1:
            return [model]
        return [model.with_schedule(name) for name in self.names]

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, cls.view)
        found = {}
        for source in dict.fromkeys(str(cell.factors["source"]) for cell in results.cells):
            tables = [table for metric in frame.metrics() if (table := compared(frame, source, metric))]
            if tables:
                found[f"Is TR-CIE best? ({source})"] = "\n".join([CLAIM, *tables])
        return found


def compared(frame: Frame, source: str, metric: str) -> str:
    """Return a table with a line for each schedule and budget; nothing where TR-CIE has no such metric."""
    cells = frame.results.cells
    schedules = dict.fromkeys(str(c.factors["schedule"]) for c in cells if c.factors["source"] == source)
    lines = [line for schedule in schedules for line in _lines(frame, source, schedule, metric)]
    head = [f"| {metric}: {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*head, *lines, ""]) if lines else ""


def _lines(frame: Frame, source: str, schedule: str, metric: str) -> list[str]:
    """Return a line for each budget: TR-CIE against the best of its rivals, and ours against TR-CIE."""
    spec = TableSpec(f"{source}, {schedule}", metric)
    rows = frame.rows(spec.panel, metric)
    rivals = [row for row in rows if row in RIVALS]
    ours = [row for row in rows if row not in (*RIVALS, TRIED, REAL)]
    lines = []
    for x in frame.xs(spec.panel, metric) if TRIED in rows and rivals else []:
        rival, own = (_best(frame, spec, each, x) for each in (rivals, ours))
        less = difference(frame, spec, TRIED, rival, x) if rival else None
        gain = difference(frame, spec, own, TRIED, x) if own else None
        against = [difference(frame, spec, TRIED, each, x) for each in rivals]
        words = (schedule, f"{x:g}", rival, number_text(less), verdict(against))
        lines.append(f"| {' | '.join(words)} | {f'{own}: {number_text(gain)}' if own else ''} |")
    return lines


def _best(frame: Frame, spec: TableSpec, rows: Sequence[str], x: float) -> str:
    """Return the row with the lowest value at a budget; nothing if none has one."""
    found = {row: frame.measured(spec.panel, row, x, spec.metric) for row in rows}
    values = {row: each.value for row, each in found.items() if each and math.isfinite(each.value)}
    return min(values, key=lambda row: values[row], default="")


def verdict(against: Sequence[Measured | None]) -> str:
    """Return in a word whether the differences to all rivals are below 0, beyond the noise."""
    found = [each for each in against if each is not None and not math.isnan(each.value)]
    if not found:
        return "unknown"
    errors = [0.0 if math.isinf(each.value) else each.standard_error for each in found]
    if any(each.value > ABOVE * error for each, error in zip(found, errors, strict=True)):
        return "no"
    below = all(each.value < -BELOW * error for each, error in zip(found, errors, strict=True))
    return "yes" if below else "within noise"


def mixture_of(model: Model) -> Mixture:
    """Return the process of a model; refuse one without a schedule."""
    if not isinstance(model.process, Mixture):
        raise SettingsError(f"{model.process} has no schedule; study a model with a mixture process")
    return model.process
