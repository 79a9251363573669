"""Laws with an exact denoiser and trained models in one study, with entropy and repetition beside quality."""

import dataclasses
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure
from torch import Tensor
from torchmetrics import MetricCollection

from benchmarks.studies.laws import exact, laws
from benchmarks.studies.models import OnModels, Subject
from benchmarks.studies.transitions import TransitionEntropy
from tauflow import files
from tauflow.denoise import Model
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import choose_samplers, scales, task_of
from tauflow.evaluation.figures import draw_panel, styles
from tauflow.evaluation.results import REAL, Factors, Results, Scale
from tauflow.evaluation.tables import Frame, View
from tauflow.samplers import SETS, Sampler, sampler_from, split_specs
from tauflow.samplers.independent import Independent
from tauflow.samplers.learned import learn_counts, learn_influence, learn_order, orders_of
from tauflow.samplers.reveal import Best, Reveal, order_of_counts
from tauflow.tasks import Task
from tauflow.tasks.text.metrics import Distinct, Entropy
from tauflow.train import Trained

ENTROPY, TRANSITION, DISTINCT = "entropy_bits", "transition_bits", "distinct_2"
ITEMS = 4096  # validation items of a law
CONTEXTS = 16  # in which orders, influence and counts are learned
FEW = 256  # tokens of a vocabulary whose transitions can be counted in samples


class Diverse(Task):
    """A task whose samples are also measured by how much they repeat themselves."""

    def __init__(self, task: Task):
        self.task = task
        self.num_tokens, self.shape, self.conditions = task.num_tokens, task.shape, task.conditions
        self.primary_metric, self.alone = task.primary_metric, task.alone

    def setup(self, stage: str | None = None) -> None:
        if not hasattr(self.task, "val_data"):
            self.task.setup(stage)
        self.val_data = self.task.val_data

    def sample_metrics(self) -> MetricCollection:
        found: dict[str, Any] = {ENTROPY: Entropy(), DISTINCT: Distinct(2)}
        if len(self.shape) == 1 and self.num_tokens <= FEW:
            found[TRANSITION] = TransitionEntropy(self.num_tokens)
        return MetricCollection(found | dict(self.task.sample_metrics().items()), compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> Any:
        return self.task.show(tokens, condition)


def members_of(specs: Iterable[str]) -> list[str]:
    """Return single specs, with the members of sets in their place."""
    return [name for spec in split_specs(specs) for name in SETS.get(spec.lower(), [spec])]


def with_learned(trained: Trained, specs: Iterable[str], contexts: int) -> Trained:
    """Return a model of masks with what samplers of these specs ask for: an order, influence, counts.

    `auto` and `best_learned` choose among all orders, and ask for counts along each of them.
    """
    model, names = trained.model, members_of(specs)
    samplers = [sampler_from(name, model) for name in names]
    reveals = [each for each in samplers if isinstance(each, Reveal)]
    every = "auto" in names or any(isinstance(each, Best) for each in samplers)
    if model.order is None and (every or any(each.order == "learned" for each in reveals)):
        model = dataclasses.replace(model, order=learn_order(model, contexts=contexts))
    if model.influence is None and any(isinstance(each, Independent) for each in reveals):
        model = dataclasses.replace(model, influence=learn_influence(model, contexts=contexts))
    counts = {each.order: each for each in model.counts}
    orders = [each.order for each in reveals if each.counts == "learned"]
    for order in dict.fromkeys(orders + (orders_of(model) if every else [])):
        along = order_of_counts(order, model.shape)
        counts[along] = counts.get(along) or learn_counts(model, order, contexts=contexts)
    return dataclasses.replace(trained, model=dataclasses.replace(model, counts=tuple(counts.values())))


class OnLawsAndModels(OnModels):
    """Abstract: samplers where they can be used, on laws with an exact denoiser and on trained models; on the
    models of --ckpt alone if there are any."""

    view = View(row=("sampler",), panel=("data", "source"))
    smoke: ClassVar[dict[str, Any]] = OnModels.smoke | {"samplers": ("euler",), "nfes": (3,)}
    shown = (TRANSITION, ENTROPY, DISTINCT, "unigram_tv")
    drawn = (ENTROPY,)  # in the figure of all studies, which `figure` replaces
    laws: ClassVar[tuple[str, ...]] = ()

    def paths(self) -> list[str | Path]:
        return self.asked()

    def named_models(self) -> list[tuple[Factors, Trained]]:
        found: list[tuple[Factors, Trained]] = []
        for trained in self.loaded:
            task = task_of(trained)
            name: Factors = {"data": type(task).__name__.lower(), "source": trained.model.process.name}
            if name in [factors for factors, _ in found]:
                raise SettingsError(
                    f"two checkpoints are {self.view.label(name, self.view.panel)}; give --ckpt at most one "
                    "of each kind"
                )
            found.append((name, dataclasses.replace(trained, task=Diverse(task))))
        return found if self.settings.checkpoints else found + self.exact_laws()

    def exact_laws(self) -> list[tuple[Factors, Trained]]:
        """Return the laws of the study from masks and from noise."""
        found: list[tuple[Factors, Trained]] = []
        for law, task in laws(items=ITEMS).items():
            for source in ("masked", "uniform") if law in self.laws else ():
                found.append(({"data": f"{law} law", "source": source}, self.law(exact(task, source))))
        return found

    def law(self, trained: Trained) -> Trained:
        """Return an exact denoiser with what its samplers need, and with the metrics of the study."""
        if trained.model.process.absorbing:
            trained = with_learned(trained, self.settings.samplers, CONTEXTS)
        return dataclasses.replace(trained, task=Diverse(task_of(trained)))

    def samplers_for(self, model: Model) -> dict[str, Sampler]:
        """Return the samplers that can sample a model; others are noted."""
        fit = []
        for name in members_of(self.settings.samplers):
            if reason := sampler_from(name, model).unsupported_reason(model):
                self.notes.append(f"{name} is skipped: {reason}")
            else:
                fit.append(name)
        found, notes = choose_samplers(fit, model) if fit else ({}, [])
        self.notes.extend(notes)
        return found

    def has_real_data(self, subject: Subject) -> bool:
        return bool(subject.samplers) and super().has_real_data(subject)

    def scales(self) -> dict[str, Scale]:
        heads: dict[str, Scale] = {}
        for subject in self.subjects:
            task = task_of(subject.trained)
            heads[task.primary_metric] = scales(task)[task.primary_metric]
        return heads | super().scales()

    def illustrate(self, results: Results, folder: Path) -> list[str]:
        with files.atomic(folder / "figure.png") as file:
            self.figure(results).savefig(file, format="png", dpi=110)
        return []

    def figure(self, results: Results) -> Figure:
        """Draw quality against budgets: a place for each kind of data, down, and each source, across."""
        frame = Frame(results, self.view)
        kinds, sources = (
            list(dict.fromkeys(cell.factors[name] for cell in results.cells)) for name in ("data", "source")
        )
        figure = Figure(figsize=(5.6 * len(sources) + 2.2, 3.9 * len(kinds)), layout="constrained")
        places = figure.subplots(len(kinds), len(sources), squeeze=False)
        rows = dict.fromkeys(row for panel in frame.panels for row in frame.rows(panel, ENTROPY))
        looks = styles(frame.names(row for row in rows if row != REAL))
        for (down, kind), (across, source) in product(enumerate(kinds), enumerate(sources)):
            panel = self.view.label({"data": kind, "source": source}, ("data", "source"))
            places[down][across].set_visible(panel in frame.panels)
            if panel in frame.panels:
                draw_panel(places[down][across], frame, panel, quality_of(frame, panel), looks)
        return with_legend(figure)


def with_legend(figure: Figure) -> Figure:
    """Return a figure with one legend for all its places, beside them."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    options: dict[str, Any] = {"loc": "outside right center", "frameon": False, "fontsize": 9}
    figure.legend(handles.values(), handles.keys(), **options)
    return figure


def quality_of(frame: Frame, panel: str) -> str:
    """Return the name of the metric that a panel is judged by."""
    names = [name for name in frame.metrics() if name not in (ENTROPY, TRANSITION, DISTINCT)]
    return next(name for name in names if frame.rows(panel, name))


def entropy_of(frame: Frame, panel: str) -> str:
    """Return the name of the entropy that samples of a panel are compared at."""
    return TRANSITION if frame.rows(panel, TRANSITION) else ENTROPY
