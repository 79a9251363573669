"""The files of a finished evaluation: results.json, .csv, .md, figures, and the samples."""

from pathlib import Path

from tauflow import files
from tauflow.evaluation.distributions import properties_figure, samples_csv
from tauflow.evaluation.figures import quality_figure
from tauflow.evaluation.hooks import Tabled
from tauflow.evaluation.pictures import Known, film_figure, samples_figure, samples_text, shows_pictures
from tauflow.evaluation.store import Results
from tauflow.evaluation.tables import to_csv, to_markdown
from tauflow.evaluation.views import Frame
from tauflow.tasks import Task

BESIDE = ("samples.png", "evolution.png", "properties.png", "samples.csv")
"""What a task may have to show of samples besides texts."""
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
    return names + save_pictures(results, folder, task, given)


def shows_more_than_text(task: Task) -> bool:
    """Return whether a task has pictures of its samples, or a table."""
    return shows_pictures(task) or isinstance(task, Tabled)


def save_pictures(results: Results, folder: Path, task: Task, given: Known | None = None) -> list[str]:
    """Write what the task has to show of samples besides texts; return the names of the files.

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
    found = {name: figure for name, figure in drawn.items() if figure is not None}
    for name, figure in found.items():
        with files.atomic(folder / name) as file:
            figure.savefig(file, format="png", dpi="figure")
    table = samples_csv(results)
    if table:
        files.write(folder / "samples.csv", table)
    return [*found, *(["samples.csv"] if table else [])]
