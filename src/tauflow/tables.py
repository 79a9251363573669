"""Table: what `evaluate` found, a Cell for each sampler and budget; as Markdown, CSV, JSON, a figure, or printed in the terminal."""

import contextlib
import csv
import dataclasses
import io
import json
import math
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tauflow import files
from tauflow.errors import TauflowError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tauflow.tasks.base import Task


@dataclass(frozen=True)
class Measured:
    value: float
    standard_error: float  # over samples
    low: float | None = None  # 95 % interval, where there is one
    high: float | None = None
    count: float | None = None  # of what was measured, such as judged tokens

    def __str__(self) -> str:
        digits = 4 if abs(self.value) < 10 else 1  # rates and entropies; perplexities
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f}"


NUMBERS = [item.name for item in dataclasses.fields(Measured)]


@dataclass(frozen=True)
class Cell:
    """One sampler at one budget."""

    sampler: str
    nfe: int  # the budget
    samples: int = 0
    counted_nfe: int = 0  # evaluations really made for a sample
    forwards: int = 0  # network calls for a sample; with guidance two for each evaluation
    seconds: float = 0.0  # of sampling, summed over devices
    network_seconds: float = 0.0  # of these, inside the network
    metrics: dict[str, Measured] = field(default_factory=dict)
    jumped: float = 0.0  # share of the movable coordinates that moved, mean over steps
    clamped: float = 0.0  # share of the read channels whose extrapolated intensity was negative, mean over steps
    several_events: float = 0.0  # share of the movable coordinates with more than one event, mean over steps
    leftover_masks: float = 0.0  # share of coordinates still masked before finishing
    settings: dict[str, Any] = field(default_factory=dict)  # the sampler's options
    shown: list[list[int]] = field(default_factory=list)  # tokens of the first samples
    problem: str = ""  # why there are no numbers
    states: Tensor | None = None  # (N, D) trajectory of the first sample, from x_0 to the end; not written to files

    @property
    def network_share(self) -> float:
        return self.network_seconds / self.seconds if self.seconds else 0.0

    @property
    def sampler_ms_per_sample(self) -> float:
        return 1e3 * (self.seconds - self.network_seconds) / self.samples if self.samples else 0.0


@dataclass(frozen=True)
class Table:
    cells: list[Cell]
    higher_is_better: dict[str, bool]  # of each metric
    reference: dict[str, Measured] = field(default_factory=dict)  # the same metrics of real data
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=lambda: versions())

    @property
    def samplers(self) -> list[str]:
        return list(dict.fromkeys(cell.sampler for cell in self.cells))

    @property
    def nfes(self) -> list[int]:
        return sorted({cell.nfe for cell in self.cells})

    @property
    def problems(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.problem]

    def cell(self, sampler: str, nfe: int) -> Cell | None:
        return next((cell for cell in self.cells if (cell.sampler, cell.nfe) == (sampler, nfe)), None)

    def measured(self, metric: str, sampler: str, nfe: int) -> Measured | None:
        cell = self.cell(sampler, nfe)
        return cell.metrics.get(metric) if cell else None

    def best(self, metric: str, nfe: int) -> list[str]:
        """The samplers with the best value at a budget; none if all are equal."""
        values = {cell.sampler: cell.metrics[metric].value for cell in self.cells if cell.nfe == nfe and metric in cell.metrics}
        values = {sampler: value for sampler, value in values.items() if math.isfinite(value)}
        if not values or (len(values) > 1 and len(set(values.values())) == 1):
            return []
        best = (max if self.higher_is_better[metric] else min)(values.values())
        return [sampler for sampler, value in values.items() if value == best]

    def rows(self, metric: str, emphasis: str) -> Iterable[list[str]]:
        """Rows of text, a sampler each: its name, then value ± standard error at each budget; the best of a budget emphasised."""
        best = {nfe: self.best(metric, nfe) for nfe in self.nfes}
        for sampler in self.samplers:
            row = [sampler]
            for nfe in self.nfes:
                measured = self.measured(metric, sampler, nfe)
                cell = self.cell(sampler, nfe)
                text = str(measured) if measured else cell.problem.split(":")[0] if cell else ""
                row.append(emphasis.format(text) if sampler in best[nfe] else text)
            yield row
        if metric in self.reference:
            yield ["(real data)", *[str(self.reference[metric])] * len(self.nfes)]

    def to_markdown(self) -> str:
        parts = []
        for metric, higher in self.higher_is_better.items():
            parts.append(f"{metric} by NFE, {'higher' if higher else 'lower'} is better, ± standard error over samples\n")
            parts.append(f"| sampler | {' | '.join(map(str, self.nfes))} |\n|---|{'---|' * len(self.nfes)}")
            parts.extend(f"| {' | '.join(row)} |" for row in self.rows(metric, "**{}**"))
            parts.append("")
        parts.append("Cost\n\n| sampler | NFE | counted | samples | ms a sample | of it network |\n|---|---|---|---|---|---|")
        for cell in self.cells:
            if not cell.problem:
                each, share = 1e3 * cell.seconds / cell.samples, cell.network_share
                parts.append(f"| {cell.sampler} | {cell.nfe} | {cell.counted_nfe} | {cell.samples} | {each:.1f} | {share:.0%} |")
        said = [*self.notes, *(f"{cell.sampler} at NFE {cell.nfe}: {cell.problem}" for cell in self.problems)]
        return "\n".join(parts) + "\n" + "".join(f"\n- {line}" for line in said) + ("\n" if said else "")

    def to_csv(self) -> str:
        """One line for each cell and metric."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        facts = ["sampler", "nfe", "counted_nfe", "forwards", "samples", "seconds", "network_seconds"]
        facts += ["jumped", "clamped", "several_events", "leftover_masks"]
        writer.writerow([*facts, "metric", *NUMBERS, "problem"])
        for cell in self.cells:
            start = [getattr(cell, name) for name in facts]
            for metric, measured in (cell.metrics or {"": Measured("", "")}).items():
                writer.writerow([*start, metric, *dataclasses.astuple(measured), cell.problem])
        for metric, measured in self.reference.items():
            writer.writerow(["(real data)", *[""] * (len(facts) - 1), metric, *dataclasses.astuple(measured), ""])
        return text.getvalue()

    def to_json(self) -> str:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["cells"] = [dataclasses.asdict(dataclasses.replace(cell, states=None)) for cell in self.cells]
        for cell in values["cells"]:
            del cell["states"]
        values["reference"] = {name: dataclasses.asdict(measured) for name, measured in self.reference.items()}
        return json.dumps(plain(values), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Table":
        values = json.loads(text)

        def measured(metrics: dict) -> dict[str, Measured]:
            nan = {"value": math.nan, "standard_error": math.nan}
            return {name: Measured(**(nan | {k: v for k, v in entry.items() if v is not None})) for name, entry in metrics.items()}

        cells = [Cell(**(cell | {"metrics": measured(cell["metrics"])})) for cell in values["cells"]]
        return cls(**(values | {"cells": cells, "reference": measured(values["reference"])}))

    def plot(self, metric: str | None = None) -> "Figure":
        """Quality against NFE, log-log; the first metric unless one is named."""
        from tauflow.plots import quality_vs_nfe

        return quality_vs_nfe(self, metric or next(iter(self.higher_is_better)))

    def save(self, folder: str | Path, task: "Task | None" = None) -> None:
        """Writes results.json, results.csv, results.md, quality_vs_nfe.png and, with a task to show them, samples.txt; each file whole."""
        folder = Path(folder)
        files.write(folder / "results.json", self.to_json())
        files.write(folder / "results.csv", self.to_csv())
        files.write(folder / "results.md", self.to_markdown())
        if any(cell.metrics for cell in self.cells):
            with files.whole(folder / "quality_vs_nfe.png") as file:
                self.plot().savefig(file, format="png", dpi=120)
        if task:
            files.write(folder / "samples.txt", self.samples_text(task))

    @classmethod
    def read(cls, folder: str | Path) -> "Table":
        path = Path(folder) / "results.json"
        try:
            return cls.from_json(path.read_text())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TauflowError(f"{path} is no table of results that this version can read ({error}); choose another folder") from None

    def samples_text(self, task: "Task") -> str:
        from torch import tensor

        parts = []
        for cell in self.cells:
            if cell.shown:
                facts = ", ".join(f"{name} {measured}" for name, measured in cell.metrics.items())
                parts.append(f"{cell.sampler}, NFE {cell.nfe}: {facts} over {cell.samples} samples\n\n{task.show(tensor(cell.shown))}\n")
        return "\n".join(parts)

    def print(self) -> None:
        """The table of each metric in the terminal, the best of each budget in bold."""
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table as RichTable

        console = Console()
        for metric, higher in self.higher_is_better.items():
            title = f"{metric} by NFE ({'higher' if higher else 'lower'} is better, ± standard error over samples)"
            table = RichTable(title=title, title_justify="left")
            table.add_column("sampler")
            for nfe in self.nfes:
                table.add_column(str(nfe), justify="right", overflow="fold")
            for name, *row in self.rows(metric, "[bold]{}[/bold]"):
                table.add_row(escape(name), *row)
            console.print(table)
        for line in [*self.notes, *(f"{cell.sampler} at NFE {cell.nfe}: {cell.problem}" for cell in self.problems)]:
            console.print(line, markup=False)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("tauflow", "torch", "lightning"):
        with contextlib.suppress(metadata.PackageNotFoundError):  # run from a source tree that is not installed
            found[name] = metadata.version(name)
    return found


def plain(value: Any) -> Any:
    """As JSON can hold it: a number that does not exist is null, an infinite one a word."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
