"""All families of samplers in one table; and a picture of what each of them reveals when."""

from itertools import pairwise, product
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.studies.models import OnModels, Subject
from benchmarks.studies.study import records
from benchmarks.studies.subjects import OnLawsAndModels
from tauflow.denoise import Model
from tauflow.evaluation.results import Cell, Factors, Measured, Results, Scale
from tauflow.evaluation.tables import Frame, View
from tauflow.samplers import Sampler, sample
from tauflow.train import Trained


class Overview(OnLawsAndModels):
    """All families at once: the paper's samplers, spaced and learned reveals, bridges, what users run, and
    correctors; quality, entropy and repetition, on trained models and on two laws of long range with an exact
    denoiser, or on the models of --ckpt."""

    nfes = (4, 8, 16, 32, 64)
    samples = 256
    samplers = (
        *("euler", "tr_cie", "spaced_even", "bridge_systematic", "auto"),
        *("learned", "dependence", "users", "correctors"),
    )
    laws = ("hidden markov", "copy")
    paths = OnModels.paths  # the shipped models beside the laws


class Orders(OnLawsAndModels):
    """Which positions are revealed in which step: one sample of each seed, from masks. Copies half a sequence
    apart are the law on which it matters what is revealed together. The figure has a line for each sample."""

    nfes = (8,)
    samples = 1
    smoke: ClassVar[dict[str, Any]] = OnLawsAndModels.smoke | {"samples": 1}
    samplers = (
        *("fhs", "spaced", "spaced_even", "learned_order", "spaced_learned", "independent", "confidence"),
    )
    view = View(x="position", row=("sampler",), panel=("data", "nfe"), x_name="position")
    ignores = ("samples", "judge", "batch_size")
    laws = ("copy",)

    def named_models(self) -> list[tuple[Factors, Trained]]:
        return [(name, each) for name, each in super().named_models() if each.model.process.absorbing]

    def has_real_data(self, subject: Subject) -> bool:
        return False

    def scales(self) -> dict[str, Scale]:
        return {"step": Scale(None, logarithmic=False)}

    def measure(self, factors: Factors) -> Cell:
        subject = self.subject_of(factors)
        sampler = subject.samplers[str(factors["sampler"])]
        steps = revealed_in(subject.trained.model, sampler, int(factors["nfe"]), int(factors["seed"]))
        found = []
        for position, step in enumerate(steps.tolist()):
            found += records(factors | {"position": position}, {"step": Measured(float(step))})
        return Cell(factors, found)

    def figure(self, results: Results) -> Figure:
        return orders_figure(Frame(results, self.view))


def revealed_in(model: Model, sampler: Sampler, nfe: int, seed: int) -> Tensor:
    """Return the step (D,), from 1, in which each position of a sample got its last token."""
    states: list[Tensor] = [model.process.start((1, model.length), torch.Generator().manual_seed(seed))]
    result = sample(model, sampler, nfe, seed=seed, observer=lambda info, state: states.append(state.x.cpu()))
    states.append(result.tokens.cpu())  # something may have been left to finish
    found = torch.zeros(model.length, dtype=torch.long)
    for step, (before, after) in enumerate(pairwise(states), start=1):
        found[(before != after).squeeze(0)] = step
    return found


def orders_figure(frame: Frame) -> Figure:
    """Draw the steps of all positions as colours: a picture for each sampler, a line for each sample."""
    lines: dict[tuple[str, str], list[list[float]]] = {}
    for cell in frame.results.cells:
        names = [frame.view.label(cell.factors, each) for each in (frame.view.panel, frame.view.row)]
        lines.setdefault((names[0], names[1]), []).append([each.measured.value for each in cell.records])
    panels, rows = (list(dict.fromkeys(key[which] for key in lines)) for which in (0, 1))
    figure = Figure(figsize=(7.5 * len(panels), 0.95 * len(rows) + 1.0), layout="constrained")
    places = figure.subplots(len(rows), len(panels), squeeze=False)
    for (number, row), (across, panel) in product(enumerate(rows), enumerate(panels)):
        axes = places[number][across]
        if (panel, row) not in lines:
            axes.set_visible(False)
            continue
        options: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "cmap": "viridis_r"}
        most = max(max(map(max, values)) for (own, _), values in lines.items() if own == panel)
        image = axes.imshow(np.array(lines[panel, row]), vmin=1, vmax=most, **options)
        axes.set_ylabel(row, rotation=0, ha="right", va="center", fontsize=9)
        axes.set(yticks=[])
        if number == 0:
            axes.set_title(panel, fontsize=10)
        if number == len(rows) - 1:
            axes.set_xlabel("position")
            figure.colorbar(image, ax=list(places[:, across]), label="step", shrink=0.8)
        else:
            axes.set(xticks=[])
    return figure
