"""The files of a finished evaluation: results.json, .csv, .md, a figure, and the samples."""

from pathlib import Path

import numpy as np

from tauflow import files
from tauflow.evaluation.figures import quality_figure
from tauflow.evaluation.pictures import captions_of, picture_rows, samples_of, samples_text
from tauflow.evaluation.store import Results
from tauflow.evaluation.tables import to_csv, to_markdown
from tauflow.evaluation.views import Frame, cell_name
from tauflow.tasks import Task

MOST_ROWS = 24  # of samples.png, before it shows the largest budget alone


def save_report(results: Results, folder: Path, task: Task) -> list[str]:
    """Write the files of an evaluation, each atomically; return their names."""
    results.save(folder)
    files.write(folder / "results.csv", to_csv(results))
    files.write(folder / "results.md", to_markdown(results))
    files.write(folder / "samples.txt", samples_text(results, task))
    names = ["results.json", "results.csv", "results.md", "samples.txt"]
    frame = Frame(results)
    metrics = [metric for metric in frame.metrics() if frame.xs("", metric)]
    if metrics:
        with files.atomic(folder / "quality_vs_nfe.png") as file:
            quality_figure(frame, metrics[0]).savefig(file, format="png", dpi=120)
        names.append("quality_vs_nfe.png")
    return names + save_pictures(results, folder, task)


def save_pictures(results: Results, folder: Path, task: Task) -> list[str]:
    """Write samples.png, a row of pictures for each cell, where the task shows pictures.

    Of a large grid it has the cells of the largest budget.
    """
    cells = [cell for cell in results.cells if cell.shown]
    if len(cells) > MOST_ROWS:
        largest = max(cell.factors["nfe"] for cell in cells)
        cells = [cell for cell in cells if cell.factors["nfe"] == largest]
    rows = []
    for cell in cells:
        shown = samples_of(cell, task)
        if isinstance(shown, np.ndarray) and len(shown):
            rows.append((cell_name(cell.factors), shown, captions_of(cell, task)))
    if not rows:
        return []
    with files.atomic(folder / "samples.png") as file:
        picture_rows(rows).savefig(file, format="png", dpi=120)
    return ["samples.png"]
