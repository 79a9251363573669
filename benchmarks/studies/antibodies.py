"""Antibodies: samplers at few evaluations on AntiBERTy, a real pretrained model, judged by Sapiens."""

import dataclasses
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks.studies.models import OnModels, Subject
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import Sampling
from tauflow.evaluation.results import REAL, Cell, Factors, Results
from tauflow.evaluation.tables import Frame, View, number_text
from tauflow.recipes.antibodies import ADALIMUMAB, ANTIBERTY, PERTUZUMAB, TRASTUZUMAB
from tauflow.recipes.antibodies.chains import Design
from tauflow.recipes.antibodies.task import JUDGE, HeavyChains, designed
from tauflow.recipes.folders import folder_of, weight_files
from tauflow.recipes.loading import pretrained
from tauflow.samplers import sampler_from
from tauflow.train import Trained

DESIGNS = (Design.beginning(PERTUZUMAB), Design.loops(TRASTUZUMAB), Design.loops(ADALIMUMAB))
CEILING = "fhs"  # with one residue an evaluation
COMPARED = 8  # evaluations at which all metrics stand in one table
DTYPE = torch.bfloat16  # twice as fast where processors have it; what it changes: docs/antibodies.md


class Antibodies(OnModels):
    """Samplers at few evaluations on AntiBERTy (from masks, 26 M parameters, inside the package antiberty):
    chains of 119 residues from their first nine, and the three loops (IMGT) of trastuzumab and adalimumab in
    their frameworks. Pseudo-perplexity under Sapiens of the residues that were drawn, recovery of the true
    ones, pairwise identity of samples, valid frameworks. The same model with one residue an evaluation is the
    ceiling. --ckpt takes another folder of such a model."""

    nfes = (4, 8, 16, 32)
    samples = 64
    seeds = (0,)
    smoke: ClassVar[dict[str, Any]] = OnModels.smoke | {"nfes": (2, COMPARED), "samplers": ("euler", "auto")}
    view = View(row=("sampler",), panel=("design",))
    shown = (f"ppl_{JUDGE}", "recovery", "recovery_*", "valid", "identity")
    drawn = (f"ppl_{JUDGE}", "identity")
    ignores = ("judge", "data")

    @property
    def folder(self) -> Path:
        """Return the folder of the model: that of --ckpt, or the one in the installed package."""
        asked = self.settings.checkpoints or (ANTIBERTY.name,)
        if len(asked) > 1:
            raise SettingsError(f"the study {self.name} is of one model; give --ckpt one name")
        return folder_of(asked[0], [ANTIBERTY])

    def paths(self) -> list[str | Path]:
        return list(weight_files(self.folder, ANTIBERTY.pickles))

    @cached_property
    def loaded(self) -> list[Trained]:
        trained = pretrained(self.folder, recipes=[ANTIBERTY], dtype=DTYPE)
        assert isinstance(trained.task, HeavyChains)
        trained.task.use_judges(JUDGE)
        return [trained]

    def named_models(self) -> list[tuple[Factors, Trained]]:
        return [({"design": each.name}, designed(self.loaded[0], each)) for each in DESIGNS]

    def cells(self) -> list[Factors]:
        open_places = {each.name: len(each.open) for each in DESIGNS}
        cells = [
            cell for cell in super().cells() if int(cell.get("nfe", 0)) < open_places[str(cell["design"])]
        ]
        for subject, seed in product(self.subjects, self.settings.seeds):
            residues = open_places[str(subject.factors["design"])]
            cells.append(subject.factors | {"sampler": CEILING, "nfe": residues, "seed": seed})
        return cells

    def has_real_data(self, subject: Subject) -> bool:
        return True  # one chain, of which there is no more to say

    def measure(self, factors: Factors) -> Cell:
        subject, name = self.subject_of(factors), str(factors["sampler"])
        if name == REAL:
            return self.real(subject.trained, factors)
        return self.sampled(subject.trained, subject.samplers.get(name) or sampler_from(name), factors)

    def sampling(self, factors: Factors) -> Sampling:
        found = super().sampling(factors)
        if "design" not in factors:
            return found
        task = self.subject_of(factors).trained.task
        assert isinstance(task, HeavyChains)
        return dataclasses.replace(found, prompt=task.known)

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, cls.view)
        return {f"At {COMPARED} evaluations: {panel}": _compared(frame, panel) for panel in frame.panels}


def _compared(frame: Frame, panel: str) -> str:
    """Return all metrics of one budget in one table, with real data and the ceiling beside them."""
    metrics = [each for each in frame.metrics() if frame.rows(panel, each)]
    most = max(frame.xs(panel, metrics[0]), default=0.0)
    places = [(row, row, float(COMPARED)) for row in frame.rows(panel, metrics[0])]
    if most > COMPARED:
        places.append((f"{CEILING}, NFE {most:g}", CEILING, most))
    lines = [f"| sampler | {' | '.join(metrics)} |", "|---" * (1 + len(metrics)) + "|"]
    for name, row, x in places:
        found = [number_text(frame.measured(panel, row, x, metric)) for metric in metrics]
        if any(found):
            lines.append(f"| {name} | {' | '.join(found)} |")
    return "\n".join([*lines, ""])
