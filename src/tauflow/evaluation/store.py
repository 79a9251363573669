"""Results: the one store of measurements: factors, a metric, and a measured value with its error.

Factors say what a number belongs to: {"source": "masked", "sampler": "tr_cie", "nfe": 8, "seed": 0}. A cell
is one combination of factors that was measured, with all its records. results.json holds everything; it is
written after every cell, so that an interrupted grid resumes.
"""

import contextlib
import dataclasses
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from tauflow import files
from tauflow.errors import TauflowError, first_line
from tauflow.evaluation.hooks import Table
from tauflow.evaluation.kinds import check_kinds

Factor = str | int | float
Factors = dict[str, Factor]

REAL = "(real data)"  # the sampler of records of real data
FORMAT = 2  # of results.json
FILE = "results.json"

Number = float | Literal["inf", "-inf"] | None  # as JSON holds it
HEAD: dict[str, Any] = {
    "name": str,
    "settings": dict[str, object],
    "scales": dict[str, dict[str, bool | None]],
    "notes": list[str],
    "commands": list[str],
    "versions": dict[str, str],
    "cells": list[dict[str, object]],
}
SCALE: dict[str, Any] = {"higher_is_better": bool | None, "logarithmic": bool}
CELL: dict[str, Any] = {
    "factors": dict[str, Factor],
    "records": list[list[object]],
    "problem": str | None,
    "kind": Literal["", "failed", "skipped"] | None,
    "shown": dict[str, object] | None,
    "items": dict[str, list[Number]] | None,
    "table": dict[str, list[str | bool | Number]] | None,
}
NUMBERED: dict[str, Any] = dict.fromkeys(("nfe", "seed", "guidance"), float | None)  # factors
RECORD: dict[str, Any] = {"metric": str, "numbers": list[Number], "factors": dict[str, Factor]}
SHOWN: dict[str, Any] = {"tokens": list[list[int]], "condition": list[list[int]] | None}
"""What results.json holds, by name; a cell may lack what can be None."""


@dataclass(frozen=True)
class Measured:
    value: float
    standard_error: float = 0.0  # over samples
    low: float | None = None  # 95 % interval, where there is one
    high: float | None = None
    count: float | None = None  # of what was measured, such as judged tokens

    @classmethod
    def mean(cls, values: Sequence[float]) -> "Measured":
        """Return the mean of the numbers of independent items; a single one has no standard error."""
        n = len(values)
        mean = sum(values) / n
        squares = sum((value - mean) * (value - mean) for value in values)  # NaN where one is infinite
        return cls(mean, math.sqrt(squares / (n - 1) / n) if n > 1 else math.nan, count=float(n))


NUMBERS = [each.name for each in dataclasses.fields(Measured)]


@dataclass(frozen=True)
class Record:
    factors: Factors
    metric: str
    measured: Measured


@dataclass(frozen=True)
class Scale:
    """How the numbers of a metric are read."""

    higher_is_better: bool | None = False  # None: near that of real data
    logarithmic: bool = True


@dataclass(frozen=True)
class Shown:
    """The first samples of a cell, for people."""

    tokens: list[list[int]]
    condition: list[list[int]] | None = None
    states: Tensor | None = None  # (N, D) the first sample from x_0 to the end; not written to files


@dataclass(frozen=True)
class Cell:
    """A measured combination of factors, or one that has a problem instead of numbers."""

    factors: Factors
    records: list[Record] = field(default_factory=list)
    shown: Shown | None = None
    problem: str = ""
    kind: Literal["", "failed", "skipped"] = ""  # of the problem
    items: dict[str, list[float]] = field(default_factory=dict)  # metric: its number on each real item
    table: Table = field(default_factory=dict)  # what the task knows of each sample, in columns


@dataclass
class Results:
    """What was measured so far."""

    name: str = "samples"  # of the study
    settings: dict[str, Any] = field(default_factory=dict)  # what decides the numbers
    cells: list[Cell] = field(default_factory=list)
    scales: dict[str, Scale] = field(default_factory=dict)  # of the metrics that tables show, in their order
    notes: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=lambda: versions())

    @property
    def records(self) -> list[Record]:
        return [record for cell in self.cells for record in cell.records]

    @property
    def problems(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.problem]

    def add(self, cell: Cell) -> None:
        """Add a cell in place of an earlier one with the same factors."""
        self.cells = [each for each in self.cells if each.factors != cell.factors]
        self.cells.append(cell)

    def missing(self, wanted: Sequence[Factors]) -> list[Factors]:
        """Return which of the wanted cells have no numbers yet."""
        done = {key(cell.factors) for cell in self.cells if not cell.problem}
        once = {key(factors): factors for factors in wanted}
        return [factors for each, factors in once.items() if each not in done]

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def to_markdown(self) -> str:
        """Return the tables of all metrics as Markdown, the best of each budget in bold."""
        from tauflow.evaluation.tables import to_markdown

        return to_markdown(self)

    def save(self, folder: Path) -> None:
        """Write results.json, atomically; one line for each cell and record, so that changes can be read."""
        head = {
            "format": FORMAT,
            "name": self.name,
            "settings": self.settings,
            "scales": {name: dataclasses.asdict(scale) for name, scale in self.scales.items()},
            "notes": self.notes,
            "commands": self.commands,
            "versions": self.versions,
        }
        text = json.dumps(plain(head), indent=1, allow_nan=False)[:-2]
        lines = ",\n".join(_cell_text(cell) for cell in self.cells)
        files.write(folder / FILE, f'{text},\n "cells": [\n{lines}\n ]\n}}\n')

    @classmethod
    def read(cls, folder: str | Path) -> "Results":
        """Read results.json of a folder; refuse a file that is not what `save` writes."""
        path = Path(folder) / FILE
        if not path.exists():
            raise TauflowError(f"there is no {path}; name a folder with results")
        try:
            return _results_from(json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise TauflowError(
                f"{path} holds no results that this version can read ({first_line(error)}); remove it to "
                "start again, or choose another folder"
            ) from None


def key(factors: Factors) -> frozenset[tuple[str, Factor]]:
    return frozenset(factors.items())


def _cell_text(cell: Cell) -> str:
    entry: dict[str, Any] = {"factors": cell.factors}
    if cell.problem:
        entry |= {"problem": cell.problem, "kind": cell.kind}
    if cell.shown:
        entry["shown"] = {"tokens": cell.shown.tokens, "condition": cell.shown.condition}
    if cell.items:
        entry["items"] = cell.items
    if cell.table:
        entry["table"] = cell.table
    lines = []
    for record in cell.records:
        extra = {name: value for name, value in record.factors.items() if cell.factors.get(name) != value}
        numbers = [getattr(record.measured, name) for name in NUMBERS]
        while numbers[-1] is None:
            numbers.pop()
        lines.append(
            json.dumps(plain([record.metric, *numbers, *([extra] if extra else [])]), allow_nan=False)
        )
    text = json.dumps(plain(entry), allow_nan=False)[:-1]
    rows = ",\n   ".join(lines)
    return f'  {text}, "records": [\n   {rows}\n  ]}}' if lines else f'  {text}, "records": []}}'


def _results_from(values: Any) -> Results:
    """Return the results that plain data describes; raise ValueError if it is anything else."""
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError(f"it has another format than {FORMAT}")
    check_kinds(values, HEAD, "it")
    scales = {}
    for name, scale in values.pop("scales").items():
        check_kinds(scale, SCALE, "a scale")
        if set(scale) != set(SCALE):
            raise ValueError(f"the scale of {name} is cut")
        scales[name] = Scale(**scale)
    cells = [_cell_from(entry, f"cell {n}") for n, entry in enumerate(values.pop("cells"), start=1)]
    return Results(**values, scales=scales, cells=cells)


def _cell_from(entry: dict[str, Any], place: str) -> Cell:
    check_kinds(entry, CELL, place)
    check_kinds(entry["factors"], NUMBERED, place, more=True)
    records = []
    for metric, *numbers in entry["records"]:
        extra = numbers.pop() if numbers and isinstance(numbers[-1], dict) else {}
        check_kinds({"metric": metric, "numbers": numbers, "factors": extra}, RECORD, place)
        if not 2 <= len(numbers) <= len(NUMBERS):
            raise ValueError(f"{place}: a record has {len(numbers)} numbers")
        value, error, *rest = map(number, numbers)
        more = [None if math.isnan(each) else each for each in rest]
        records.append(Record(entry["factors"] | extra, metric, Measured(value, error, *more)))
    shown = entry.get("shown")
    if shown:
        check_kinds(shown, SHOWN, place)
    return Cell(
        entry["factors"],
        records,
        Shown(**shown) if shown else None,
        entry.get("problem") or "",
        entry.get("kind") or "",
        {name: [number(each) for each in values] for name, values in (entry.get("items") or {}).items()},
        _table_from(entry.get("table") or {}),
    )


def _table_from(columns: dict[str, list[Any]]) -> Table:
    """Return the columns of a table, in which a number that a sample does not have is null."""
    return {name: [math.nan if each is None else each for each in values] for name, values in columns.items()}


def number(value: float | str | None) -> float:
    """Return a number from JSON, which has no NaN and no infinity."""
    return math.nan if value is None else float(value)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN is null, an infinite number a word."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def versions() -> dict[str, str]:
    """Return the versions that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in ("tauflow", "torch", "lightning"):
        with contextlib.suppress(metadata.PackageNotFoundError):  # a source tree that is not installed
            found[name] = metadata.version(name)
    return found
