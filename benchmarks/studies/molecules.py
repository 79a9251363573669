"""Molecules: samplers at few evaluations, the MOSES table, temperature, scaffolds and asked properties."""

import dataclasses
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast

from benchmarks.studies.models import OnModels, Subject
from tauflow import files, tasks
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import Sampling, task_of
from tauflow.evaluation.images import samples_figure
from tauflow.evaluation.results import REAL, Cell, Factors, Results
from tauflow.evaluation.tables import Frame, View, number_text
from tauflow.samplers import Prompt, Sampler, sampler_from
from tauflow.tasks.sequences.metrics import lengths_of
from tauflow.tasks.sequences.tokens import PATTERNS, make_splitter
from tauflow.train import Trained

# Rows of the MOSES benchmark as its authors publish them


MOSES = {
    "valid": "Valid",
    "unique_1000": "Unique@1k",
    "unique_10000": "Unique@10k",
    "fcd_test": "FCD Test",
    "fcd_testsf": "FCD TestSF",
    "snn_test": "SNN Test",
    "snn_testsf": "SNN TestSF",
    "frag_test": "Frag Test",
    "frag_testsf": "Frag TestSF",
    "scaf_test": "Scaf Test",
    "scaf_testsf": "Scaf TestSF",
    "intdiv": "IntDiv",
    "intdiv2": "IntDiv2",
    "filters": "Filters",
    "novelty": "Novelty",
}
"""Our names of the metrics, and those of the published table, in its order."""

PUBLISHED = {
    "training data": "1 1 1 0.008 0.4755 0.6419 0.5859 1 0.9986 0.9907 0 0.8567 0.8508 1 1",
    "CharRNN": (
        "0.9748±0.0264 1±0 0.9994±0.0003 0.0732±0.0247 0.5204±0.0379 0.6015±0.0206 0.5649±0.0142 "
        "0.9998±0.0002 0.9983±0.0003 0.9242±0.0058 0.1101±0.0081 0.8562±0.0005 0.8503±0.0005 "
        "0.9943±0.0034 0.8419±0.0509"
    ),
    "AAE": (
        "0.9368±0.0341 1±0 0.9973±0.002 0.5555±0.2033 1.0572±0.2375 0.6081±0.0043 0.5677±0.0045 "
        "0.991±0.0051 0.9905±0.0039 0.9022±0.0375 0.0789±0.009 0.8557±0.0031 0.8499±0.003 "
        "0.996±0.0006 0.7931±0.0285"
    ),
    "VAE": (
        "0.9767±0.0012 1±0 0.9984±0.0005 0.099±0.0125 0.567±0.0338 0.6257±0.0005 0.5783±0.0008 "
        "0.9994±0.0001 0.9984±0.0003 0.9386±0.0021 0.0588±0.0095 0.8558±0.0004 0.8498±0.0004 "
        "0.997±0.0002 0.6949±0.0069"
    ),
    "JTN-VAE": (
        "1±0 1±0 0.9996±0.0003 0.3954±0.0234 0.9382±0.0531 0.5477±0.0076 0.5194±0.007 "
        "0.9965±0.0003 0.9947±0.0002 0.8964±0.0039 0.1009±0.0105 0.8551±0.0034 0.8493±0.0035 "
        "0.976±0.0016 0.9143±0.0058"
    ),
    "LatentGAN": (
        "0.8966±0.0029 1±0 0.9968±0.0002 0.2968±0.0087 0.8281±0.0117 0.5371±0.0004 0.5132±0.0002 "
        "0.9986±0.0004 0.9972±0.0007 0.8867±0.0009 0.1072±0.0098 0.8565±0.0007 0.8505±0.0006 "
        "0.9735±0.0006 0.9498±0.0006"
    ),
}
"""The numbers of each row in the order of MOSES, with their spread."""

SOURCE = (
    "The rows that name no source of noise are published by the authors of MOSES (Polykovskiy et al., 2020, "
    "arXiv:1811.12823; README of github.com/molecularsets/moses), with their spread; ours are of one trained "
    "model, with standard errors over samples."
)


# Studies


NEEDS = "one or two checkpoints of molecules, as `python train.py -c configs/molecules.yaml` makes them"
CEILINGS = ("fhs", "tweedie")  # samplers of the ceiling, from masks and from noise
CEILING = 256  # evaluations of the ceiling from noise; from masks one for each token is all there is
ENOUGH = 0.95  # of the validity of the ceiling
PICTURED = 8  # the budget whose molecules are drawn
PICTURES = 10  # of a row
SHORTEST = 2  # underscores of a blank
CHAINS = (10, 8)  # tokens of the side chains of a scaffold, in plain SMILES
SCAFFOLDS = ("{}c1ccc({})cc1", "{}c1ccc({})nc1", "{}N1CCN({})CC1", "{}c1csc({})n1", "{}C1CCN({})CC1")
"""Ring systems with places of two side chains; all that follows is open too."""


class OnMolecules(OnModels):
    """Abstract: samplers on models of molecules, judged by MOSES' metrics."""

    samples = 2000
    seeds = (0,)
    needs = NEEDS
    judges: ClassVar[str] = "fcd"  # unless --judge says others
    smoke: ClassVar[dict[str, Any]] = OnModels.smoke | {"samples": 6, "nfes": (2, 3), "batch_size": 6}
    shown: ClassVar[tuple[str, ...]] = (
        *("valid", "unique", "novel", "fcd_test", "length_tv", "unigram_tv", "broken_padding"),
    )

    @cached_property
    def loaded(self) -> list[Trained]:
        found = super().loaded
        for trained in found:
            task = task_of(trained)
            if not isinstance(task, tasks.Molecules):
                raise SettingsError(
                    f"the study {self.name} needs {NEEDS}; this one is of {type(task).__name__}"
                )
            if not self.settings.judge and self.judges:
                task.use_judges(self.judges)
        return found

    def sampled(self, trained: Trained, sampler: Sampler, factors: Factors) -> Cell:
        """Measure fresh samples; the table of thousands of molecules is not kept."""
        return dataclasses.replace(super().sampled(trained, sampler, factors), table={})


class MoleculesStudy(OnMolecules):
    """Validity, uniqueness, novelty and FCD of molecules against NFE, for every sampler. The same model with
    one token an evaluation (from noise: with 256 evaluations) is the ceiling, and a finding says how many
    evaluations 95 % of its validity take. pictures_<source>.png shows molecules of each sampler at 8
    evaluations. Needs --ckpt."""

    nfes = (4, 8, 16, 32, 64)
    drawn = ("valid", "fcd_test", "unique")

    def cells(self) -> list[Factors]:
        ceilings: list[Factors] = []
        for subject, seed in product(self.subjects, self.settings.seeds):
            ceilings.append(subject.factors | ceiling_of(subject) | {"seed": seed})
        there = super().cells()
        return there + [cell for cell in ceilings if cell not in there]

    def measure(self, factors: Factors) -> Cell:
        if factors["sampler"] == REAL:
            return super().measure(factors)
        subject, name = self.subject_of(factors), str(factors["sampler"])
        return self.sampled(subject.trained, subject.samplers.get(name) or sampler_from(name), factors)

    def sampling(self, factors: Factors) -> Sampling:
        shown = PICTURES if (factors.get("nfe"), factors["seed"]) == (PICTURED, self.settings.seeds[0]) else 0
        return dataclasses.replace(super().sampling(factors), show=shown)

    def illustrate(self, results: Results, folder: Path) -> list[str]:
        written = []
        for subject in self.subjects:
            own = [cell for cell in results.cells if subject.factors.items() <= cell.factors.items()]
            figure = samples_figure([cell for cell in own if cell.shown], task_of(subject.trained))
            if figure is not None:
                written.append(f"pictures_{subject.factors['source']}.png")
                with files.atomic(folder / written[-1]) as file:
                    figure.savefig(file, format="png")
        return written

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, cls.view)
        tables = [enough_table(frame, panel) for panel in frame.panels]
        return {"Evaluations for 95 % of the validity": "\n".join(tables)}


def ceiling_of(subject: Subject) -> Factors:
    """Return the sampler and the budget of the ceiling."""
    model = subject.trained.model
    if model.process.absorbing:
        return {"sampler": CEILINGS[0], "nfe": model.length}
    return {"sampler": CEILINGS[1], "nfe": CEILING}


def enough_table(frame: Frame, panel: str) -> str:
    """Return how many evaluations each sampler needs for 95 % of the validity of the ceiling.

    A share that is below this by no more than its standard error is enough.
    """
    xs = frame.xs(panel, "valid")
    rows = [row for row in frame.rows(panel, "valid") if row != REAL]
    best = CEILINGS[0] if CEILINGS[0] in rows else CEILINGS[1]
    at, ceiling = [(x, own) for x in xs if (own := frame.measured(panel, best, x, "valid"))][-1]
    lines = [
        f"{panel}: valid {number_text(ceiling)} by {best} at NFE {at:g}\n",
        "| sampler | evaluations | valid there | valid at most |",
        "|---|---|---|---|",
    ]
    for row in rows:
        found = {x: own for x in xs if (own := frame.measured(panel, row, x, "valid"))}
        wanted = ENOUGH * ceiling.value
        enough = [x for x, each in found.items() if each.value + each.standard_error >= wanted]
        most = number_text(max(found.values(), key=lambda each: each.value))
        there = (f"{enough[0]:g}", number_text(found[enough[0]])) if enough else ("more", "")
        lines.append(f"| {row} | {' | '.join(there)} | {most} |")
    return "\n".join([*lines, ""])


class Moses(OnMolecules):
    """The metrics of the MOSES benchmark for 30 000 molecules at the recommended setting, beside the rows
    that its authors publish. Standard errors are over parts of the samples. Needs --ckpt."""

    nfes = (64,)
    samples = 30_000
    samplers = ("auto",)
    judges = "moses"
    shown = tuple(MOSES)

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, cls.view)
        head = ["|", *(f" {name} |" for name in ("model", *MOSES.values()))]
        lines = ["".join(head), "|---" * (1 + len(MOSES)) + "|"]
        for panel in frame.panels:
            rows = dict.fromkeys(row for metric in frame.metrics() for row in frame.rows(panel, metric))
            for row in rows:
                xs = [0.0] if row == REAL else frame.xs(panel, "valid")
                lines += [
                    _own_line(frame, panel, row, x) for x in xs if frame.measured(panel, row, x, "valid")
                ]
        for name, numbers in PUBLISHED.items():
            lines.append(f"| {name} | {' | '.join(each.replace('±', ' ± ') for each in numbers.split())} |")
        return {"MOSES table": "\n".join([*lines, "", SOURCE, ""])}


def _own_line(frame: Frame, panel: str, row: str, x: float) -> str:
    """Return the line of one of our rows in the MOSES table."""
    name = f"{panel}, {row}" + ("" if row == REAL else f", NFE {x:g}")
    found = (frame.measured(panel, row, x, metric) for metric in MOSES)
    return f"| {name} | {' | '.join(number_text(each) if each else '' for each in found)} |"


class MoleculeTemperatures(OnMolecules):
    """What a lower temperature buys and costs: validity against FCD, internal diversity and novelty, for the
    recommended sampler at few evaluations and at many. Needs --ckpt."""

    nfes = (8, 64)
    samplers = ("auto",)
    judges = "fcd,diversity"
    view = View(x="temperature", row=("sampler", "nfe"), panel=("source",), x_name="temperature")
    shown = ("valid", "fcd_test", "intdiv", "unique", "novel", "length_tv")
    temperatures: ClassVar[tuple[float, ...]] = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)

    def cells(self) -> list[Factors]:
        cells: list[Factors] = []
        for cell in super().cells():
            warm: list[Factors] = [{"temperature": each} for each in self.temperatures]
            cells += [cell] if cell["sampler"] == REAL else [cell | each for each in warm]
        return cells

    def sampling(self, factors: Factors) -> Sampling:
        return dataclasses.replace(
            super().sampling(factors), temperature=float(factors.get("temperature", 1.0))
        )


class MoleculeProperties(OnMolecules):
    """Whether molecules have the properties that they were asked for: the share of the valid ones that lie in
    the asked bins against NFE, for several weights of guidance, with validity and uniqueness beside it. The
    bins asked for are those of validation molecules. Needs --ckpt, a model with conditions, as `python
    train.py -c configs/molecules_properties.yaml` makes them."""

    nfes = (8, 16, 32, 64)
    samplers = ("auto",)
    guidance = (1.0, 1.5, 2.0, 3.0)
    judges = ""
    view = View(row=("sampler", "guidance"), panel=("source",))
    shown = ("hit", "hit_*", "valid", "unique", "novel")

    @cached_property
    def loaded(self) -> list[Trained]:
        found = super().loaded
        if any(not task_of(trained).conditions for trained in found):
            raise SettingsError(f"the study {self.name} needs models with conditions (--data.properties)")
        return found

    def cells(self) -> list[Factors]:
        weights: list[Factors] = [{"guidance": weight} for weight in self.settings.guidance]
        cells: list[Factors] = []
        for cell in super().cells():
            cells += [cell] if cell["sampler"] == REAL else [cell | weight for weight in weights]
        return cells


class MoleculeScaffolds(OnMolecules):
    """How well a ring system is completed at few evaluations: its atoms are fixed, its side chains and all
    that follows are open. Validity, the share of distinct molecules and their internal diversity, over five
    ring systems. The side chains have 10 and 8 tokens of plain SMILES, fewer of a vocabulary with merges.
    Needs --ckpt."""

    nfes = (8,)
    samples = 500
    judges = "diversity"
    shown = ("valid", "unique", "novel", "intdiv")

    def cells(self) -> list[Factors]:
        scaffolds = {str(each.factors["source"]): self.scaffolds(each) for each in self.subjects}
        cells = [cell for cell in super().cells() if cell["sampler"] != REAL]
        return [cell | {"scaffold": text} for cell in cells for text in scaffolds[str(cell["source"])]]

    def scaffolds(self, subject: Subject) -> list[str]:
        """Return the ring systems with blanks for a model; refuse one that cannot hold them."""
        task = cast(tasks.Molecules, task_of(subject.trained))
        sizes = chains_of(task)
        self.notes.append(f"{subject.factors['source']}: side chains of {sizes[0]} and {sizes[1]} tokens")
        found = [text.format(*("_" * size for size in sizes)) for text in SCAFFOLDS]
        for text in found:
            try:
                task.infill(text)
            except SettingsError as error:
                raise SettingsError(f"the study {self.name} has {text}, but {error}") from None
        return found

    def sampled(self, trained: Trained, sampler: Sampler, factors: Factors) -> Cell:
        allowed = cast(tasks.Molecules, task_of(trained)).allowed(self.prompt(trained, factors))
        if allowed is not None:
            trained = dataclasses.replace(trained, model=trained.model.with_allowed_tokens(allowed))
        return super().sampled(trained, sampler, factors)

    def sampling(self, factors: Factors) -> Sampling:
        if "scaffold" not in factors:
            return super().sampling(factors)
        prompt = self.prompt(self.subject_of(factors).trained, factors)
        return dataclasses.replace(super().sampling(factors), prompt=prompt)

    def prompt(self, trained: Trained, factors: Factors) -> Prompt:
        """Return what is known of the molecules of a cell."""
        return cast(tasks.Molecules, task_of(trained)).infill(str(factors["scaffold"]))


def chains_of(task: tasks.Molecules) -> list[int]:
    """Return how many tokens of a vocabulary the side chains take, from how many a molecule takes."""
    if task.tokens == "smiles" and task.merges is None:
        return list(CHAINS)
    tokens = task.real_tokens("the length of side chains in a vocabulary with merges")
    plain = sum(len(make_splitter(PATTERNS["smiles"])(text)) for text in task.texts(tokens))
    share = float(lengths_of(tokens).sum()) / plain
    return [max(SHORTEST, round(size * share)) for size in CHAINS]
