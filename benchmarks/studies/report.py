"""What a person looks at: the results of a study as CSV, as Markdown tables and as one figure."""

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.studies.layout import TableSpec, markdown_table, panels_figure
from benchmarks.studies.paired import difference_table, with_differences
from tauflow import files
from tauflow.evaluation.results import Results
from tauflow.evaluation.tables import Frame, remarks, to_csv

if TYPE_CHECKING:
    from benchmarks.studies.study import Study

FILES = ("results.csv", "results.md", "figure.png", "pictures*.png")
"""What a study writes in addition to results.json."""


def save(study: "type[Study]", results: Results, folder: Path, command: str = "") -> list[str]:
    """Write results.csv, results.md and figure.png beside results.json, each atomically; keep the command.

    Returns the names of the files.
    """
    if command and command not in results.commands:
        results.commands.append(command)
    results.save(folder)
    files.write(folder / "results.csv", to_csv(results))
    files.write(folder / "results.md", to_markdown(study, results))
    frame = Frame(with_differences(results, study.view), study.view)
    metrics = frame.metrics(study.drawn) or frame.metrics()
    with files.atomic(folder / "figure.png") as file:
        panels_figure(frame, metrics, study.panels_down).savefig(file, format="png", dpi=110)
    return ["results.json", "results.csv", "results.md", "figure.png"]


def to_markdown(study: "type[Study]", results: Results) -> str:
    """Return the question, the commands, the notes, and a table for each panel and metric."""
    parts = [f"# {results.name}\n\n{question(study)}\n"]
    if results.commands:
        commands = "\n".join(results.commands)
        parts.append(f"```bash\n{commands}\n```\n")
    settings = results.settings
    if settings["samples"]:
        size = f"{settings['samples']} samples of each of {len(settings['seeds'])} seeds"
        parts.append(f"{size}; mean over seeds ± standard error over all samples.\n")
    said = remarks(results)
    if said:
        parts.append("".join(f"- {line}\n" for line in said))
    frame = Frame(results, study.view)
    for panel in frame.panels:
        for metric in frame.metrics():
            if frame.rows(panel, metric):
                title = f"{panel}: {metric} by {study.view.x_name}"
                table = markdown_table(frame, TableSpec(panel, metric, title=title))
                parts.append(table + counted(frame, panel, metric))
                if len(paired := frame.paired(panel, metric)) > 1:
                    parts.append(difference_table(frame, TableSpec(panel, metric), paired[0]))
    parts += [f"## {name}\n\n{text}" for name, text in study.findings(results).items()]
    return "\n".join(parts)


def question(study: "type[Study]") -> str:
    return " ".join((study.__doc__ or "").split())


def counted(frame: Frame, panel: str, metric: str) -> str:
    """Return of how many items or judged tokens the numbers of a table are, where they were counted."""
    counts = []
    for record in frame.results.records:
        here = frame.view.label(record.factors, frame.view.panel) == panel and record.metric == metric
        if here and record.measured.count is not None:
            counts.append(record.measured.count)
    if not counts:
        return ""
    if frame.paired(panel, metric):
        return f"\nEach number is of the same {counts[0]:,.0f} real items.\n"
    return f"\nEach number is of {min(counts):,.0f} to {max(counts):,.0f} judged tokens per seed.\n"
