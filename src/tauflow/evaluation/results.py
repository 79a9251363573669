"""Results: what was measured, how it is stored in a folder, and as a data frame.

Factors say what a number belongs to: {"source": "masked", "sampler": "tr_cie", "nfe": 8, "seed": 0}. A cell
is one combination of factors that was measured, with all its records: a metric, its value, and its error.
results.json contains everything. It's written after every cell, so that an interrupted grid resumes.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tauflow import files
from tauflow.distributed import run_on_rank_zero, world_size
from tauflow.errors import SettingsError, TauflowError, WriteError, first_line

if TYPE_CHECKING:
    import pandas

Factor = str | int | float
Factors = dict[str, Factor]
T = TypeVar("T")
SampleTable = dict[str, list[str] | list[bool] | list[float]]  # columns of one length, by name

REAL = "(real data)"  # the sampler of records of real data
FORMAT = 2  # of results.json
FILE = "results.json"
SAMPLE_FILES = ("samples.png", "evolution.png", "properties.png", "samples.csv")
"""What a task may show of its samples in addition to text."""
WRITTEN = ".written"  # lists the sample files that the last call wrote to a folder, with their digests


@runtime_checkable
class DrawsSamples(Protocol):
    """A task that shows texts and has an image of each."""

    def draw(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        """Return images uint8 (B, H, W, 3) of samples (B, D)."""


@runtime_checkable
class TabulatesSamples(Protocol):
    """A task that knows more of a sample than its tokens."""

    def table(self, tokens: Tensor, condition: Tensor | None = None) -> SampleTable:
        """Return what is known of samples (B, D), a row for each; a number that one does not have is NaN."""


def make_table(task: Any, tokens: Tensor, condition: Tensor | None = None) -> SampleTable:
    """Return what a task knows of samples (B, D) in columns; none where it has no table."""
    return task.table(tokens.cpu(), condition) if isinstance(task, TabulatesSamples) else {}


def gather_batches(batches: Mapping[int, T]) -> list[T]:
    """Return what numbered batches have, those of all ranks, in their order."""
    everywhere: list[Any] = [batches]
    if world_size() > 1:
        everywhere = [None] * world_size()
        torch.distributed.all_gather_object(everywhere, dict(batches))
    parts = {number: part for each in everywhere for number, part in each.items()}
    return [parts[number] for number in sorted(parts)]


def join_tables(tables: Mapping[int, SampleTable]) -> SampleTable:
    """Return the rows of numbered batches, those of all ranks, in their order."""
    parts: list[Any] = gather_batches(tables)
    names = parts[0] if parts else {}
    return {name: [value for part in parts for value in part[name]] for name in names}


@dataclass(frozen=True)
class Measured:
    """A number with its error."""

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
class AllSamples:
    """All samples of a cell, with what they were asked to be."""

    tokens: np.ndarray  # (N, D)
    condition: np.ndarray | None = None  # (N, C)


@dataclass(frozen=True)
class Cell:
    """A measured combination of factors, or one that has a problem instead of numbers."""

    factors: Factors
    records: list[Record] = field(default_factory=list)
    shown: Shown | None = None
    problem: str = ""
    kind: Literal["", "failed", "skipped"] = ""  # of the problem
    items: dict[str, list[float]] = field(default_factory=dict)  # metric: its number on each real item
    table: SampleTable = field(default_factory=dict)  # what the task knows of each sample, in columns
    samples: AllSamples | None = None  # until they're written; not in results.json


@dataclass
class Results:
    """Measured cells, as `tauflow.evaluate` returns them and `Results.read` reads them from a folder.

    Use `to_markdown` for tables, `to_frame` to work with the numbers, and `save` to keep them.

    Args:
        name: of the study.
        settings: everything that the numbers depend on.
        cells: one per combination of sampler, budget, and so on.
        scales: how to read the metrics that tables show, in their order.
        notes: what a reader should know, such as samplers that were skipped.
        commands: the commands that made the results.
        versions: of the packages that numbers depend on.
        auto: the sampler that `auto` stood for, "" if it wasn't asked for.

    Examples:
        >>> results = tauflow.Results.read("runs/countdown/evaluation")  # doctest: +SKIP
        >>> print(results.to_markdown())  # doctest: +SKIP
    """

    name: str = "samples"
    settings: dict[str, Any] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    scales: dict[str, Scale] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=lambda: versions())
    auto: str = ""

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

    def title(self, factors: Factors) -> str:
        """Return the factors of a cell in words: "auto = spaced_even, NFE 8"."""
        from tauflow.evaluation.tables import cell_name

        return f"auto = {cell_name(factors)}" if self.is_auto(factors) else cell_name(factors)

    def is_auto(self, factors: Factors) -> bool:
        """Return whether these are samples of the sampler that `auto` stood for."""
        return bool(self.auto) and factors.get("sampler") == self.auto

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas data frame with one row per record: a cell and one of its metrics.

        Use it to group, pivot, and plot results with the tools you know.

        Returns:
            Columns for the factors (sampler, nfe, guidance, ...), then metric, value, standard_error, low,
            high, and count. What a record doesn't have is NA: real data has no nfe, most metrics have no
            interval.

        Examples:
            >>> trained = tauflow.load(tauflow.train.SHIPPED / "countdown_uniform.ckpt")
            >>> results = tauflow.evaluate(trained, ["euler", "tr_cie"], [8, 16], num_samples=4, nll_items=0)
            >>> frame = results.to_frame()
            >>> errors = frame.query("metric == 'error_rate' and sampler != '(real data)'")
            >>> errors.pivot(index="sampler", columns="nfe", values="value").shape
            (2, 2)
        """
        import pandas

        rows = [record.factors | {"metric": record.metric} | vars(record.measured) for record in self.records]
        names = list(dict.fromkeys(name for record in self.records for name in record.factors))
        frame = pandas.DataFrame(rows, columns=[*names, "metric", *NUMBERS])
        for name in names:
            frame[name] = frame[name].convert_dtypes()  # whole numbers stay whole where some are missing
        return frame

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
            "auto": self.auto,
        }
        text = json.dumps(plain(head), indent=1, allow_nan=False)[:-2]
        lines = ",\n".join(_cell_text(cell) for cell in self.cells)
        files.write(folder / FILE, f'{text},\n "cells": [\n{lines}\n ]\n}}\n')

    @classmethod
    def read(cls, folder: str | Path) -> "Results":
        """Read results.json of a folder."""
        path = Path(folder) / FILE
        if not path.exists():
            raise TauflowError(f"File not found: {path}. Choose a folder with results.")
        try:
            values = json.loads(path.read_bytes())
            if values.pop("format") != FORMAT:
                raise ValueError(f"its format isn't {FORMAT}")
            scales = {name: Scale(**scale) for name, scale in values.pop("scales").items()}
            cells = [_cell_from(entry) for entry in values.pop("cells")]
            return cls(**values, scales=scales, cells=cells)
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise TauflowError(
                f"{path} has no results that this version can read ({first_line(error)}). Remove it to start "
                "again, or choose another folder."
            ) from None


def key(factors: Factors) -> frozenset[tuple[str, Factor]]:
    return frozenset(factors.items())


def _cell_text(cell: Cell) -> str:
    entry: dict[str, Any] = {"factors": cell.factors}
    if cell.problem:
        entry |= {"problem": cell.problem, "kind": cell.kind}
    if cell.shown:
        entry["shown"] = {"tokens": cell.shown.tokens, "condition": cell.shown.condition}
    entry |= {name: value for name, value in (("items", cell.items), ("table", cell.table)) if value}
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


def _cell_from(entry: dict[str, Any]) -> Cell:
    factors = entry["factors"]
    records = []
    for metric, *numbers in entry["records"]:
        extra = numbers.pop() if isinstance(numbers[-1], dict) else {}
        value, error, *rest = map(number, numbers)
        more = [None if math.isnan(each) else each for each in rest]
        records.append(Record(factors | extra, metric, Measured(value, error, *more)))
    shown = Shown(**entry["shown"]) if entry.get("shown") else None
    items = {name: list(map(number, values)) for name, values in entry.get("items", {}).items()}
    table: SampleTable = {
        name: [math.nan if each is None else each for each in values]
        for name, values in entry.get("table", {}).items()
    }
    return Cell(factors, records, shown, entry.get("problem", ""), entry.get("kind", ""), items, table)


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


# Folders of results: continued where they stopped, and written by one process at a time


@contextmanager
def open_results(
    folder: Path | None,
    name: str,
    settings: dict[str, Any],
    grows: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Iterator[Results]:
    """Open the results in a folder to continue them, or new ones; the folder is held until the block ends.

    Refuses a folder that another process writes to, or with results of other settings. Settings that `grows`
    names choose cells and change none: a folder may be given more of them. Settings that it does not have yet
    are added. A folder without results.json must not hold any of the files `names`, which will be written
    there: they are the user's. In a process group every rank gets the results, or the error, of rank 0. A
    WriteError in the block says what is safe and how to resume.
    """
    settings = json.loads(json.dumps(plain(settings)))
    if folder is None:
        yield Results(name, settings)
        return
    with ExitStack() as stack:

        def open_first() -> Results:
            stack.enter_context(lock_output(folder))
            if not (folder / FILE).exists():
                files.check_no_overwrite(folder, names)
            return _continued(folder, name, settings, grows)

        results = run_on_rank_zero(open_first)
        try:
            yield results
        except WriteError as error:
            safe = f"the cells finished before are safe in {folder / FILE}"
            kept = safe if (folder / FILE).exists() else "no cell was finished yet"
            said = f"{error}; {kept}; fix the cause, and the same command resumes"
            raise WriteError(said, error.errno) from error


@contextmanager
def lock_output(folder: Path) -> Iterator[None]:
    """Hold an output folder, and create it if it is missing."""
    files.check_writable(folder, "choose another one with --out DIR")
    with files.lock_folder(folder, "wait for it or choose another folder with --out DIR"):
        yield


@contextmanager
def lock_samples(folder: Path) -> Iterator[None]:
    """Hold a folder whose sample files each call replaces.

    The folder lists those that the last call wrote. Any others are the user's and raise an error.
    """
    with ExitStack() as stack:

        def hold_first() -> None:
            stack.enter_context(lock_output(folder))
            files.check_no_overwrite(folder, set(SAMPLE_FILES) - _written(folder))

        run_on_rank_zero(hold_first)
        yield


def replace_samples(folder: Path, contents: dict[str, bytes]) -> None:
    """Write sample files in place of those that the last call wrote, and list them."""
    for name in _written(folder) - contents.keys():
        (folder / name).unlink(missing_ok=True)
    before = [f"{files.digest(folder / name)} {name}" for name in _written(folder)]
    now = [f"{hashlib.sha256(content).hexdigest()} {name}" for name, content in contents.items()]
    files.write(folder / WRITTEN, "\n".join([*before, *now]))
    for name, content in contents.items():
        files.write(folder / name, content)


def _written(folder: Path) -> set[str]:
    """Return the names of sample files that are as tauflow wrote them."""
    path = folder / WRITTEN
    listed = path.read_text(errors="replace").splitlines() if path.is_file() else []
    there = [name for name in SAMPLE_FILES if (folder / name).is_file()]
    return {name for name in there if f"{files.digest(folder / name)} {name}" in listed}


def _continued(folder: Path, name: str, settings: dict[str, Any], grows: Sequence[str]) -> Results:
    """Return the results in a folder with its settings and the new ones, or new results."""
    if not (folder / FILE).exists():
        return Results(name, settings)
    results = Results.read(folder)
    old = results.settings
    fixed = [each for each in settings if each in old and each not in grows]
    changed = [each for each in fixed if old[each] != settings[each]]
    if results.name != name or changed:
        facts = "; ".join(f"{each}: {old[each]} there, {settings[each]} now" for each in changed)
        raise SettingsError(
            f"{folder} holds results with other settings ({facts or f'of {results.name}'}); choose another "
            "--out, or remove it to start again"
        )
    for each in grows:
        settings[each] = list(dict.fromkeys([*old.get(each, []), *settings[each]]))
    results.settings = old | settings
    return results
