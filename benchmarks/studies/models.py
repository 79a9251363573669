"""Studies of samplers on trained models, by the task's own metrics."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from itertools import product
from typing import ClassVar

from benchmarks.studies.study import Study, records
from tauflow.denoise import Model
from tauflow.evaluation.evaluate import (
    DETAILS,
    Sampling,
    adaptive_scales,
    check,
    choose_samplers,
    measure_cell,
    nll_scales,
    no_nll,
    reference,
    scales,
    task_of,
    with_nll,
)
from tauflow.evaluation.results import REAL, Cell, Factors, Scale
from tauflow.evaluation.tables import View
from tauflow.samplers import Sampler, sampler_from
from tauflow.train import Trained


@dataclass(frozen=True)
class Subject:
    """A model under study: the factors that name it, and the samplers to measure on it."""

    factors: Factors
    trained: Trained
    samplers: dict[str, Sampler]


class OnModels(Study):
    """Abstract: samplers at budgets on models; real data stands beside them."""

    samplers: ClassVar[tuple[str, ...]] = ("all",)
    grows = ("nfes", "samplers")
    shown: ClassVar[tuple[str, ...]] = ("error_rate", "sequence_error_rate", "unigram_tv")
    """Metrics of the task that tables show; ppl_* stands for all that begin so."""

    def named_models(self) -> list[tuple[Factors, Trained]]:
        """Return what is studied, with the factors that name it."""
        return [({"source": source}, trained) for source, trained in self.models.items()]

    def samplers_for(self, model: Model) -> dict[str, Sampler]:
        """Return the samplers to measure on a model by their specs."""
        chosen, notes = choose_samplers(self.settings.samplers, model)
        self.notes.extend(notes)
        return chosen

    @cached_property
    def subjects(self) -> list[Subject]:
        found = []
        for factors, trained in self.named_models():
            samplers = self.samplers_for(trained.model)
            check(trained.model, samplers, self.settings.nfes, self.sampling({"seed": 0}))
            self.notes.extend(self.without_nll(trained, samplers))
            found.append(Subject(factors, trained, samplers))
        return found

    def without_nll(self, trained: Trained, samplers: dict[str, Sampler]) -> list[str]:
        """Return notes on the samplers whose likelihood is not measured, though it is asked for."""
        if not self.settings.nll_items:
            return []
        sampling, whose = self.sampling({"seed": 0}), trained.model.process.name
        reasons: dict[str, list[str]] = {}
        for name, sampler in samplers.items():
            reasons.setdefault(no_nll(sampler, trained.model, task_of(trained), sampling), []).append(name)
        return [f"{whose}: no nll of {', '.join(names)}: {why}" for why, names in reasons.items() if why]

    def subject_of(self, factors: Factors) -> Subject:
        """Return the model that a cell belongs to."""
        return next(each for each in self.subjects if each.factors.items() <= factors.items())

    def cells(self) -> list[Factors]:
        cells: list[Factors] = []
        nfes, seeds = self.settings.nfes, self.settings.seeds
        for subject in self.subjects:
            if self.has_real_data(subject):
                cells += [subject.factors | {"sampler": REAL, "seed": seed} for seed in seeds]
            for nfe, sampler, seed in product(nfes, subject.samplers, seeds):
                cells.append(subject.factors | {"sampler": sampler, "nfe": nfe, "seed": seed})
        return cells

    def has_real_data(self, subject: Subject) -> bool:
        """Return whether there is real data to measure beside samples; note where seeds must share it."""
        task = task_of(subject.trained)
        if task.alone:
            self.notes.append(task.alone)
            return False
        if not hasattr(task, "val_data"):
            task.setup("validate")
        if len(self.settings.seeds) * self.settings.samples > len(task.val_data):
            name = self.view.label(subject.factors, self.view.panel)
            few = "fewer than samples" if self.settings.samples > len(task.val_data) else "which seeds share"
            self.notes.append(f"{name}: there are only {len(task.val_data)} real items, {few}")
        return True

    def scales(self) -> dict[str, Scale]:
        there: dict[str, Scale] = {}
        for subject in self.subjects:
            task = task_of(subject.trained)
            there |= (nll_scales(task) if self.settings.nll_items else {}) | scales(task)
        shown = {name: there[name] for pattern in self.shown for name in there if fnmatch(name, pattern)}
        samplers = [sampler for subject in self.subjects for sampler in subject.samplers.values()]
        return shown | adaptive_scales(samplers)

    def measure(self, factors: Factors) -> Cell:
        subject = self.subject_of(factors)
        if factors["sampler"] == REAL:
            return self.real(subject.trained, factors)
        return self.sampled(subject.trained, subject.samplers[str(factors["sampler"])], factors)

    def real(self, trained: Trained, factors: Factors) -> Cell:
        """Measure as many real items as a cell has samples, so that small numbers bias both alike.

        Each seed has items of its own, as long as there are enough.
        """
        samples = self.settings.samples
        number = list(self.settings.seeds).index(int(factors["seed"]))
        return Cell(factors, records(factors, reference(task_of(trained), samples, first=number * samples)))

    def sampled(self, trained: Trained, sampler: Sampler, factors: Factors) -> Cell:
        """Measure fresh samples, and keep what follows from the seed: all but the time they took."""
        model, task, sampling = trained.model, task_of(trained), self.sampling(factors)
        cell = measure_cell(model, task, sampler, factors, sampling)
        if sampling.nll_items and not no_nll(sampler, model, task, sampling):
            cell = with_nll(cell, model, task, sampler, sampling)
        kept = [record for record in cell.records if record.metric not in DETAILS["time"]]
        return dataclasses.replace(cell, records=kept, shown=cell.shown if sampling.show else None)

    def sampling(self, factors: Factors) -> Sampling:
        """Return what decides the samples of a cell."""
        size = (self.settings.samples, self.settings.batch_size)
        return Sampling(*size, int(factors["seed"]), show=0, nll_items=self.settings.nll_items)


class CountdownStudy(OnModels):
    """Error against NFE of every sampler on the countdown models (paper: fig:countdown_exp): per transition,
    per sequence, and the unigram total variation that says whether a low error is bought with a wrong law."""

    nfes = (4, 8, 16, 32, 64, 128, 256)


class TextStudy(OnModels):
    """Perplexity against NFE of every sampler on text models (paper: tab:text_masked, tab:text_uniform), with
    entropy, distinct n-grams and memorisation beside it. Needs --ckpt: text models are not shipped."""

    nfes = (8, 16, 32, 64, 128)
    samples = 256
    shown = ("ppl_corpus_*", "ppl_mean_*", "entropy_bits", "distinct_2", "unigram_tv", "memorised_8grams")
    needs = "one or two checkpoints of text models, of which none are shipped"


class Ablation(OnModels):
    """What each part of TR-CIE brings (paper: tab:ablation_tr_text): Euler, TR, CIE, the nonuniform t grid,
    TR-CIE, TR-CIE-Exact; then our own axes, grid x cutoff x finishing x jump rule, for TR-CIE."""

    samplers = ("ablation",)
    shown = ("error_rate", "unigram_tv", "ppl_corpus_*", "entropy_bits", "distinct_2")

    def samplers_for(self, model: Model) -> dict[str, Sampler]:
        found = super().samplers_for(model)
        for spec in tr_cie_variants():
            sampler = sampler_from(spec)
            if sampler not in found.values():
                found[spec] = sampler
        return found


def tr_cie_variants() -> list[str]:
    """Return tr_cie with each choice of its options; a t grid that ends in a draw has no cutoff."""
    axes = (("", "grid=tau"), ("", "jump=one_event"), ("", "finish=reuse"), ("cutoff=0.01", ""))
    found = []
    for grid, jump, finish, cutoff in product(*axes):
        if grid or finish or not cutoff:
            options = ", ".join(word for word in (grid, cutoff, finish, jump) if word)
            found.append(f"tr_cie({options})" if options else "tr_cie")
    return found


class Epsilon(OnModels):
    """How sensitive TR-CIE is to the floor eps_0 of an intensity (paper: tab:epsilon_sensitivity). A floor
    puts mass eps_0 (V - 1) on tokens that the model excludes: 5e-6 is a lot at V = 50257 and nothing at V =
    32, so the sweep continues to floors of equal mass."""

    view = View(x="eps_0", row=("nfe",), panel=("source",), x_name="eps_0")
    ignores = ("samplers",)
    shown = ("error_rate", "unigram_tv", "ppl_corpus_*", "entropy_bits", "distinct_2")
    values: ClassVar[Sequence[float]] = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 5e-6, 1e-4, 1e-3, 8e-3)

    def samplers_for(self, model: Model) -> dict[str, Sampler]:
        return {"tr_cie": sampler_from("tr_cie")}

    def cells(self) -> list[Factors]:
        numbers = product(self.settings.nfes, self.values, self.settings.seeds)
        more: list[Factors] = [{"nfe": nfe, "eps_0": eps_0, "seed": seed} for nfe, eps_0, seed in numbers]
        return [subject.factors | each for subject in self.subjects for each in more]

    def measure(self, factors: Factors) -> Cell:
        sampler = sampler_from("tr_cie", eps_0=factors["eps_0"])
        return self.sampled(self.subject_of(factors).trained, sampler, factors)
