"""pictures.png of a study: samples of several samplers at one budget, a row for each."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.studies.models import Subject
from tauflow import files
from tauflow.evaluation.evaluate import task_of
from tauflow.evaluation.images import ImageBlock, Strip, captions_of, mosaic, samples_of
from tauflow.evaluation.results import Cell, Results
from tauflow.evaluation.tables import View

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
