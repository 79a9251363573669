"""Captions in, scenes out: the weight of guidance, and samplers at few evaluations (mini-GenEval)."""

import dataclasses
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.studies.images import PICTURED, PICTURES, verdict, write_pictures
from benchmarks.studies.layout import TableSpec
from benchmarks.studies.models import OnModels
from benchmarks.studies.paired import difference
from tauflow import tasks
from tauflow.denoise import Model
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import Sampling, choose_samplers, task_of
from tauflow.evaluation.results import REAL, Cell, Factors, Results, Scale
from tauflow.evaluation.tables import Frame, View, number_text
from tauflow.process import Metric
from tauflow.samplers import Sampler, sampler_from
from tauflow.samplers.registry import SETS
from tauflow.train import Trained

NEEDS = "a checkpoint of scenes, as `python train.py -c configs/scenes.yaml` makes them"
IMAGES = 1106  # of a cell: two of each prompt
CHOICE_PROMPTS = 1  # prompt_seed of the prompts that guidance is chosen by
TRIED = ("tr_cie", "tr_cie(grid=tau, cutoff=none)", "tr_cie_paper")
RIVALS = ("fudoki", "euler", "tweedie", "theta_rk2", "theta_trapezoidal")
OURS = ("spaced", "spaced_even", "best_learned", "bridge_systematic", "renoise", "tr_cie(grid=tau)")  # auto
IN_PICTURES = ("fudoki", "euler", "tweedie", "theta_trapezoidal", "tr_cie", *OURS)
BUDGETS = (4, 8, 16, 32)
PAPER = {
    "GenEval accuracy of FUDOKI, % (tab:fudoki_geneval)": {
        "euler": (43.85, 60.67, 65.31, 68.21),
        "tweedie": (44.56, 61.40, 64.10, 67.60),
        "theta_trapezoidal": (52.45, 59.03, 65.80, 68.71),
        "theta_rk2": (54.32, 58.40, 64.48, 68.15),
        "TR-CIE": (53.05, 64.27, 66.08, 69.59),
    },
    "CLIP score of FUDOKI (tab:clip_score)": {
        "euler": (0.311, 0.323, 0.325, 0.334),
        "tweedie": (0.307, 0.323, 0.324, 0.325),
        "theta_rk2": (0.290, 0.322, 0.330, 0.334),
        "theta_trapezoidal": (0.284, 0.319, 0.326, 0.332),
        "TR-CIE": (0.321, 0.331, 0.334, 0.336),
    },
}
"""What the paper reports: another model, other pictures and prompts, the same question."""
CLAIM = (
    "In the paper TR-CIE is first at 8, 16 and 32 evaluations by GenEval's accuracy and second after "
    "theta-RK2 at 4, and first at all four by CLIP score. Here each form of it (t grid; tau grid that "
    "ends where the t grid does; to the letter) is compared with the best of the samplers that the paper "
    "compares it with, and FUDOKI's own, at the same budget; above 0 it is better. The verdict is yes if "
    "it is above each of them by two standard errors of the difference, no if one of them is above it by "
    "two and a half. Differences of the strict score are paired by prompt. On metric rates the rate at t "
    "= 0 is taken for 0, as FUDOKI does: the first evaluation of euler, the thetas and fudoki moves "
    "nothing there, that of TR-CIE does.\n"
)
COLUMNS = ("NFE", "best of the others", "TR-CIE less it", "TR-CIE first?", "recommended less TR-CIE")
JUDGED = ("strict", "geneval", "caption_score_towers")


class OnScenes(OnModels):
    """Abstract: samplers on models of scenes with captions."""

    samples = IMAGES
    seeds = (0,)
    needs = NEEDS
    ignores = ("judge",)
    smoke: ClassVar[dict[str, Any]] = OnModels.smoke | {"samples": 12, "nfes": (2, 3), "batch_size": 12}

    @cached_property
    def loaded(self) -> list[Trained]:
        found = super().loaded
        for trained in found:
            if not isinstance(task_of(trained), tasks.Scenes):
                raise SettingsError(
                    f"the study {self.name} needs {NEEDS}; this one is of {type(trained.task).__name__}"
                )
        return found

    def scales(self) -> dict[str, Scale]:
        return super().scales() | {"forwards": Scale(None, logarithmic=False)}


class Guidance(OnScenes):
    """Which weight of guidance scenes like best, on prompts drawn with another seed than those that results
    are reported on (the grammar is small, so captions come in both): strict score, score by GenEval's rules,
    broken codes and diversity against the weight, of a sampler with many evaluations. A weight other than 1
    takes two forwards for each evaluation. Needs --ckpt."""

    nfes = (64,)
    samplers = ("tweedie",)
    guidance = (1.0, 1.5, 2.0, 3.0)
    samples = 553
    view = View(x="guidance", row=("sampler", "nfe"), panel=("source",), x_name="guidance")
    shown = ("strict", "geneval", "broken_codes", "diversity*", "forwards")

    @cached_property
    def loaded(self) -> list[Trained]:
        def chosen(trained: Trained) -> Trained:
            task: Any = task_of(trained)
            return dataclasses.replace(trained, task=dataclasses.replace(task, prompt_seed=CHOICE_PROMPTS))

        return [chosen(trained) for trained in super().loaded]

    def cells(self) -> list[Factors]:
        weights = self.settings.guidance
        return [cell | {"guidance": weight} for cell in super().cells() for weight in weights]


class TextToImageStudy(OnScenes):
    """Samplers at few evaluations on mini-GenEval (paper: tab:fudoki_geneval, tab:clip_score): the share of
    scenes that show their caption by GenEval's rules, and strictly (nothing broken, nothing more than was
    asked for), for each of its six tasks; broken codes, diversity and a two-tower score beside them. Real
    scenes and the same model with many evaluations are the ceiling. pictures.png shows the same captions
    under several samplers at 8 evaluations. --guidance takes one weight for all models or one for each, as
    the study guidance finds it. Needs --ckpt."""

    nfes = (4, 8, 16, 32)
    samplers = (
        *("fudoki", "euler", "tweedie", "theta_rk2", "theta_trapezoidal"),
        *("tr", "tr(grid=tau, cutoff=none)", *TRIED, "auto"),
    )
    guidance = (1.0,)
    view = View(row=("sampler",), panel=("source", "rates", "guidance"))
    shown = (
        *("strict", "geneval", "strict_*", "geneval_*", "broken_codes", "extra_objects", "diversity*"),
        *("caption_score*", "forwards"),
    )
    drawn = ("strict", "geneval", "broken_codes")

    def named_models(self) -> list[tuple[Factors, Trained]]:
        weights = self.settings.guidance
        if len(weights) == 1:
            weights = [*weights] * len(self.models)
        if len(weights) != len(self.models):
            raise SettingsError(
                f"--guidance has {len(weights)} weights for {len(self.models)} models; give one for each, or "
                "one for all"
            )
        found: list[tuple[Factors, Trained]] = []
        for weight, (source, trained) in zip(weights, self.models.items(), strict=True):
            if not isinstance(trained.model.process, Metric):
                found.append(({"source": source, "guidance": weight}, trained))
                continue
            for rates in ("metric", "mixture"):
                model = trained.model.with_rates(rates)
                factors: Factors = {"source": source, "rates": rates, "guidance": weight}
                found.append((factors, dataclasses.replace(trained, model=model)))
        return found

    def samplers_for(self, model: Model) -> dict[str, Sampler]:
        usable = [spec for spec in self.settings.samplers if spec in SETS or not refused(spec, model)]
        if skipped := [spec for spec in self.settings.samplers if spec not in usable]:
            self.notes.append(f"{model.process}: {', '.join(skipped)} cannot sample it")
        return choose_samplers(usable, model)[0]

    def cells(self) -> list[Factors]:
        cells = super().cells()
        for subject, seed in product(self.subjects, self.settings.seeds):
            sampler, nfe = ceiling_of(subject.trained.model)
            cells.append(subject.factors | {"sampler": sampler, "nfe": nfe, "seed": seed})
        return [cell for number, cell in enumerate(cells) if cell not in cells[:number]]

    def measure(self, factors: Factors) -> Cell:
        subject, name = self.subject_of(factors), str(factors["sampler"])
        if name == REAL or name in subject.samplers:
            return super().measure(factors)
        return self.sampled(subject.trained, sampler_from(name), factors)  # the ceiling

    def sampling(self, factors: Factors) -> Sampling:
        pictured = factors["seed"] == self.settings.seeds[0] and factors.get("nfe") == PICTURED
        return dataclasses.replace(super().sampling(factors), show=PICTURES * pictured)

    def illustrate(self, results: Results, folder: Path) -> list[str]:
        def chosen(cell: Cell) -> bool:
            return str(cell.factors["sampler"]) in IN_PICTURES

        return write_pictures(results, self.subjects, self.view, folder, chosen)

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, cls.view)
        tables = []
        for panel, metric, tried in product(frame.panels, JUDGED, TRIED):
            if lines := _compared(frame, TableSpec(panel, metric), tried):
                head = [f"| {panel}, {metric}, {tried}: {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
                tables.append("\n".join([*head, *lines, ""]))
        return {"Is TR-CIE first?": "\n".join([CLAIM, *tables]), "What the paper reports": paper_tables()}


def refused(spec: str, model: Model) -> str:
    """Return why a sampler cannot sample a model, or nothing if it can."""
    return sampler_from(spec, model).unsupported_reason(model)


def ceiling_of(model: Model) -> tuple[str, int]:
    """Return the sampler and the budget of the ceiling: as many evaluations as there are tokens."""
    return ("fhs" if model.process.absorbing else "tweedie"), model.length


def paper_tables() -> str:
    """Return the tables of the paper."""
    tables = []
    for title, rows in PAPER.items():
        head = [f"| {title} | {' | '.join(map(str, BUDGETS))} |", "|---" * (1 + len(BUDGETS)) + "|"]
        lines = [f"| {name} | {' | '.join(f'{value:g}' for value in row)} |" for name, row in rows.items()]
        tables.append("\n".join([*head, *lines, ""]))
    return "\n".join(tables)


def _compared(frame: Frame, spec: TableSpec, tried: str) -> list[str]:
    """Return a line for each budget: a form of TR-CIE against the best of its rivals, and ours against it."""
    rows = frame.rows(spec.panel, spec.metric)
    rivals = [row for row in rows if row in RIVALS]
    ours = [row for row in rows if row in OURS]
    lines = []
    for x in frame.xs(spec.panel, spec.metric) if tried in rows else []:
        against = [(row, less) for row in rivals if (less := difference(frame, spec, tried, row, x))]
        if not against:
            continue
        rival, least = min(against, key=lambda each: each[1].value)
        gains = [(row, gain) for row in ours if (gain := difference(frame, spec, row, tried, x))]
        own, gain = max(gains, key=lambda each: each[1].value, default=("", None))
        behind = [dataclasses.replace(less, value=-less.value) for _, less in against]
        words = (f"{x:g}", rival, number_text(least), verdict(behind))
        lines.append(f"| {' | '.join(words)} | {f'{own}: {number_text(gain)}' if own else ''} |")
    return lines
