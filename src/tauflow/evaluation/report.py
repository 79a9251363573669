"""The files of a finished evaluation: results.json, .csv, .md, figures, and the samples."""

import io
from pathlib import Path

from tauflow import files
from tauflow.evaluation.figures import properties_figure, quality_figure, samples_csv
from tauflow.evaluation.images import Known, film_figure, samples_figure, samples_text, shows_pictures
from tauflow.evaluation.store import SAMPLE_FILES, Results, Tabled
from tauflow.evaluation.tables import Frame, to_csv, to_markdown
from tauflow.tasks import Task

FILES = (
    *("results.csv", "results.md", "samples.txt", "quality_vs_nfe.png", *SAMPLE_FILES),
    "tensorboard/**/events.out.tfevents.*",
)
"""What sample.py writes to --out in addition to results.json."""
MOST_ROWS = 24  # of samples.png, before it shows the largest budget alone


def save_report(results: Results, folder: Path, task: Task, given: Known | None = None) -> list[str]:
    """Write the files of an evaluation, each atomically; return their names. `given` was to be completed."""
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
    shown = sample_files(results, task, given)
    for name, content in shown.items():
        files.write(folder / name, content)
    return [*names, *shown]


def shows_more_than_text(task: Task) -> bool:
    """Return whether a task has pictures of its samples, or a table."""
    return shows_pictures(task) or isinstance(task, Tabled)


def sample_files(results: Results, task: Task, given: Known | None = None) -> dict[str, bytes]:
    """Return what the task has to show of samples in addition to text, as files by name.

    samples.png, and evolution.png of the cells measured just now, where there are pictures; samples.csv where
    the task has a table, and properties.png where that has numbers. `given` is what was to be completed. Of a
    large grid the pictures are those of the largest budget.
    """
    cells = [cell for cell in results.cells if cell.shown]
    if len(cells) > MOST_ROWS:
        largest = max(cell.factors["nfe"] for cell in cells)
        cells = [cell for cell in cells if cell.factors["nfe"] == largest]
    drawn = {"samples.png": samples_figure(cells, task, given), "evolution.png": film_figure(cells, task)}
    drawn["properties.png"] = properties_figure(results, task)
    found = {}
    for name, figure in drawn.items():
        if figure is not None:
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi="figure")
            found[name] = file.getvalue()
    table = samples_csv(results)
    return found | ({"samples.csv": table.encode()} if table else {})
