"""Results as tables: Markdown, CSV, and in the terminal.

A view says which factors make a panel, a row, and the x axis. Numbers are averaged over all other factors,
such as seeds.
"""

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from typing import TYPE_CHECKING

from tauflow.errors import printable
from tauflow.evaluation.results import REAL, Factor, Factors, Measured, Results, Scale
from tauflow.samplers.registry import spec_name

if TYPE_CHECKING:
    from rich.table import Table as RichTable

WORDS = {
    "guidance": "guidance {}",
    "history": "history: {}",
    "rates": "{} rates",
    "nfe": "NFE {}",
    "law": "{} law",
    "domain": "{} domain",
    "temperature": "T = {}",
    "seed": "seed {}",
}
"""How a value of a factor is written in a label, where it does not speak for itself."""


@dataclass(frozen=True)
class View:
    """Which factors of a record say where it stands; numbers are averaged over all others, such as seeds."""

    x: str = "nfe"
    row: tuple[str, ...] = ("sampler", "guidance")
    panel: tuple[str, ...] = ()
    x_name: str = "NFE"

    def label(self, factors: Factors, names: Sequence[str]) -> str:
        """Return the values of some factors in words."""
        there = [(name, factors[name]) for name in names if name in factors]
        texts = [(name, each if isinstance(each, str) else f"{each:g}") for name, each in there]
        return ", ".join(WORDS.get(name, "{}").format(text) for name, text in texts)


def cell_name(factors: Factors) -> str:
    """Return the factors of a cell in words, such as "tr_cie, NFE 8"."""
    return View().label(factors, list(factors))


Pair = frozenset[tuple[str, Factor]]  # all factors but those of the row: what two rows are compared at


class Frame:
    """Results seen through a view."""

    def __init__(self, results: Results, view: View | None = None):
        self.results = results
        self.view = view or View()
        self._found: dict[tuple[str, str, str], dict[float | None, list[Measured]]] = {}
        self._places: dict[str, dict[str, list[str]]] = {}  # panel -> metric -> rows
        self._names: dict[str, str] = {}  # row -> the name of its sampler
        self._auto: set[str] = set()  # rows of the sampler that auto stands for
        self._items: dict[tuple[str, str, str], dict[Pair, list[float]]] = {}
        for record in results.records:
            panel = self.view.label(record.factors, self.view.panel)
            row = self.view.label(record.factors, self.view.row)
            x = record.factors.get(self.view.x)
            place = self._found.setdefault((panel, row, record.metric), {})
            place.setdefault(None if x is None else float(x), []).append(record.measured)
            rows = self._places.setdefault(panel, {}).setdefault(record.metric, [])
            if row not in rows:
                rows.append(row)
            self._names[row] = spec_name(str(record.factors.get("sampler", row)))
        self.problems: dict[str, dict[tuple[str, Factor | None], str]] = {}  # panel -> (row, x) -> kind
        for cell in results.cells:
            panel = self.view.label(cell.factors, self.view.panel)
            row = self.view.label(cell.factors, self.view.row)
            if results.is_auto(cell.factors):
                self._auto.add(row)
            pair = frozenset(item for item in cell.factors.items() if item[0] not in self.view.row)
            for metric, numbers in cell.items.items():
                self._items.setdefault((panel, row, metric), {})[pair] = numbers
            if cell.problem:
                self.problems.setdefault(panel, {})[row, cell.factors.get(self.view.x)] = cell.kind

    def names(self, rows: Iterable[str]) -> dict[str, str]:
        """Return the name of the sampler of each row, without its options."""
        return {row: self._names.get(row, row) for row in rows}

    def title(self, row: str) -> str:
        """Return the name of a row in tables: `auto = spaced_even` if `auto` was asked for."""
        return f"auto = {row}" if row in self._auto else row

    @property
    def panels(self) -> list[str]:
        return list(self._places)

    def metrics(self, patterns: Sequence[str] = ()) -> list[str]:
        """Return the metrics that tables show: those with a scale, or that fit the patterns, in order."""
        there = list(dict.fromkeys(metric for metrics in self._places.values() for metric in metrics))
        wanted = patterns or tuple(self.results.scales)
        return list(dict.fromkeys(name for pattern in wanted for name in there if fnmatch(name, pattern)))

    def rows(self, panel: str, metric: str) -> list[str]:
        return self._places.get(panel, {}).get(metric, [])

    def xs(self, panel: str, metric: str) -> list[float]:
        found = {
            x for row in self.rows(panel, metric) for x in self._found[panel, row, metric] if x is not None
        }
        return sorted(found)

    def measured(self, panel: str, row: str, x: float, metric: str) -> Measured | None:
        """Return the mean over the other factors; its standard error is that over the samples of all of them.

        What was measured without an x, such as real data, is the same at every x.
        """
        found = self._found.get((panel, row, metric), {})
        values = found.get(float(x)) or found.get(None)
        if not values:
            return None
        if len(values) == 1:
            return values[0]
        if items := self._means(self._at(panel, row, x, metric).values()):
            return Measured.mean(items)
        n = len(values)
        error = math.sqrt(sum(each.standard_error**2 for each in values)) / n
        counts = [each.count for each in values if each.count is not None]
        return Measured(sum(each.value for each in values) / n, error, count=sum(counts) if counts else None)

    def paired(self, panel: str, metric: str) -> list[str]:
        """Return the rows that have a number of this metric for each real item."""
        return [row for row in self.rows(panel, metric) if (panel, row, metric) in self._items]

    def difference(self, panel: str, row: str, base: str, x: float, metric: str) -> Measured | None:
        """Return the mean over real items of their number less that of another row, with its error."""
        ours, theirs = (self._at(panel, each, x, metric) for each in (row, base))
        both = [(ours[pair], theirs[pair]) for pair in ours if pair in theirs]
        items = self._means([a - b for a, b in zip(*lists, strict=False)] for lists in both)
        return Measured.mean(items) if items else None

    def _at(self, panel: str, row: str, x: float, metric: str) -> dict[Pair, list[float]]:
        found = self._items.get((panel, row, metric), {})
        return {pair: numbers for pair, numbers in found.items() if (self.view.x, x) in pair}

    @staticmethod
    def _means(lists: Iterable[Sequence[float]]) -> list[float]:
        """Return the mean of each item over seeds, which all look at the same items."""
        return [sum(numbers) / len(numbers) for numbers in zip(*lists, strict=False)]

    def best(self, panel: str, x: float, metric: str) -> list[str]:
        """Return the rows with the best value at an x; none if all are equal, and never real data."""
        scale = self.results.scales.get(metric) or Scale()
        if scale.higher_is_better is None:
            return []
        values = {}
        for row in self.rows(panel, metric):
            measured = self.measured(panel, row, x, metric)
            if measured and math.isfinite(measured.value) and row != REAL:
                values[row] = measured.value
        if not values or (len(values) > 1 and len(set(values.values())) == 1):
            return []
        best = (max if scale.higher_is_better else min)(values.values())
        return [row for row, value in values.items() if value == best]


FILE_WIDTH = 200  # of tables that are printed to a file
COLUMNS = 10  # of a table; a longer series is thinned out
COST = {"counted_nfe": "evaluations", "forwards": "forwards", "samples": "samples"}


def number_text(measured: Measured | None) -> str:
    """Write a number as every table and page shows it: with as many digits as mean something."""
    if measured is None or math.isnan(measured.value):
        return ""
    error = measured.standard_error
    size = abs(measured.value)
    if size and not 1e-3 <= size < 1e5:
        return f"{measured.value:.2e}" + (f" ± {error:.1e}" if error > 0 else "")
    digits = 4 if size < 1 else 3 if size < 10 else 1
    text = f"{measured.value:.{digits}f}"
    if not error > 0:
        return text
    rounded = f"{error:.{digits}f}"
    return f"{text} ± {rounded if float(rounded) else f'{error:.0e}'}"


def to_csv(results: Results) -> str:
    """Return one line per record: its factors, its metric, its numbers."""
    frame = results.to_frame()
    for name in frame.select_dtypes("Float64"):  # factors
        frame[name] = frame[name].map("{:g}".format, na_action="ignore")
    for name in ("value", "standard_error"):
        frame[name] = frame[name].map(str)  # nan, where a number that isn't there is empty
    return frame.to_csv(index=False, lineterminator="\n")


def to_markdown(results: Results, view: View | None = None) -> str:
    """Return the tables, the best of each budget in bold, then what it cost and the notes."""
    frame = Frame(results, view)
    parts = []
    for panel in frame.panels:
        for table in tables_of(frame, panel, "**{}**"):
            lines = [f"| {' | '.join(row)} |" for row in (table.header, *table.rows)]
            parts += [f"{table.title}\n", lines[0], "|---" * len(table.header) + "|", *lines[1:], ""]
        parts += cost_table(frame, panel)
    said = remarks(results)
    return "\n".join(parts) + "".join(f"\n- {line}" for line in said) + ("\n" if said else "")


@dataclass(frozen=True)
class TextTable:
    """A table as text."""

    title: str
    header: list[str]
    rows: list[list[str]]


def tables_of(frame: Frame, panel: str, emphasis: str) -> list[TextTable]:
    """Return the tables of a panel: one with the metrics as columns for one budget, else one a metric."""
    metrics = [metric for metric in frame.metrics() if _has_numbers(frame, panel, metric)]
    xs = sorted({x for metric in metrics for x in frame.xs(panel, metric)})
    paired = [metric for metric in metrics if len(frame.paired(panel, metric)) > 1]
    differences = [_paired_table(frame, panel, metric) for metric in paired[-1:]]  # in the task's own unit
    if len(xs) == 1:
        return [_side_by_side(frame, panel, xs[0], metrics, emphasis), *differences]
    return [_metric_table(frame, panel, metric, emphasis) for metric in metrics] + differences


def _has_numbers(frame: Frame, panel: str, metric: str) -> bool:
    """Return whether samples have this metric: the error rate of a label nobody asked for has no value."""
    rows = [row for row in frame.rows(panel, metric) if row != REAL]
    found = [frame.measured(panel, row, x, metric) for row in rows for x in frame.xs(panel, metric)]
    return any(each is not None and not math.isnan(each.value) for each in found)


def _metric_table(frame: Frame, panel: str, metric: str, emphasis: str) -> TextTable:
    xs = frame.xs(panel, metric)
    way = f"{direction(frame, metric)} is better"
    over = " over real items" if frame.paired(panel, metric) else ""
    title = f"{metric} by {frame.view.x_name}, {way}, ± one standard error{over}"
    rows = [
        [frame.title(row), *(_cell(frame, panel, row, x, metric, emphasis) for x in xs)]
        for row in _all_rows(frame, panel, frame.rows(panel, metric))
    ]
    return TextTable(f"{panel}: {title}" if panel else title, ["sampler", *(f"{x:g}" for x in xs)], rows)


def _paired_table(frame: Frame, panel: str, metric: str) -> TextTable:
    """Return by how much each row differs from the first one on the same items."""
    first, *others = frame.paired(panel, metric)
    xs = frame.xs(panel, metric)
    rows = [
        [frame.title(row), *(number_text(frame.difference(panel, row, first, x, metric)) for x in xs)]
        for row in others
    ]
    title = f"{metric} minus {metric} of {frame.title(first)} on the same items, by {frame.view.x_name}, ±"
    title += " one standard error"
    return TextTable(f"{panel}: {title}" if panel else title, ["sampler", *(f"{x:g}" for x in xs)], rows)


def _side_by_side(frame: Frame, panel: str, x: float, metrics: list[str], emphasis: str) -> TextTable:
    rows = [row for metric in metrics for row in frame.rows(panel, metric)]
    lines = [
        [frame.title(row), *(_cell(frame, panel, row, x, metric, emphasis) for metric in metrics)]
        for row in _all_rows(frame, panel, rows)
    ]
    arrows = {"higher": "↑", "lower": "↓", "near real data": "≈"}
    header = ["sampler", *(f"{metric} {arrows[direction(frame, metric)]}" for metric in metrics)]
    over = ", of nll over real items" if "nll" in metrics else ""
    title = f"{frame.view.x_name} {x:g}, ± one standard error{over}"
    return TextTable(f"{panel}: {title}" if panel else title, header, lines)


def _all_rows(frame: Frame, panel: str, rows: list[str]) -> list[str]:
    """Return the rows and those that only have problems, each once, with real data at the end."""
    without = [row for row, _ in frame.problems.get(panel, {})]
    return sorted(dict.fromkeys([*rows, *without]), key=lambda row: row == REAL)


def direction(frame: Frame, metric: str) -> str:
    """Return which values of a metric are better: higher or lower ones, or those near real data's."""
    scale = frame.results.scales.get(metric) or Scale()
    return {True: "higher", False: "lower", None: "near real data"}[scale.higher_is_better]


def _cell(
    frame: Frame, panel: str, row: str, x: float, metric: str, emphasis: str, errors: bool = True
) -> str:
    measured = frame.measured(panel, row, x, metric)
    text = number_text(measured if errors or measured is None else Measured(measured.value))
    if not text:
        return frame.problems.get(panel, {}).get((row, x), "")
    return emphasis.format(text) if row in frame.best(panel, x, metric) else text


def cost_table(frame: Frame, panel: str) -> list[str]:
    """Return the lines of a table of what samples cost."""
    rows = frame.rows(panel, "ms_per_sample")
    if not rows:
        return []
    lines = [f"| sampler | {frame.view.x_name} | {' | '.join(COST.values())} | ms/sample | in network |"]
    lines.append("|---" * (len(COST) + 4) + "|")
    for row, x in product(rows, frame.xs(panel, "ms_per_sample")):
        time, share, *counts = (
            frame.measured(panel, row, x, name) for name in ("ms_per_sample", "network_share", *COST)
        )
        if time and share:
            words = [f"{each.value:g}" if each else "" for each in counts]
            lines.append(
                f"| {frame.title(row)} | {x:g} | {' | '.join(words)} | {time.value:.1f} | {share.value:.0%} |"
            )
    return ["Cost\n", *lines, ""]


def remarks(results: Results) -> list[str]:
    """Return the notes, and what went wrong with single cells."""
    problems = [f"{results.title(cell.factors)}: {cell.problem}" for cell in results.problems]
    return [printable(line) for line in (*results.notes, *problems)]  # a file may say anything


def print_summary(results: Results) -> None:
    """Print one table: the first metric and nll at each budget, then what went wrong."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=FILE_WIDTH)
    frame = Frame(results)
    first, *others = [name for name in frame.metrics() if _has_numbers(frame, "", name)] or [""]
    if first:
        metrics = [first, *(name for name in others if name == "nll")]
        table = _sections(frame, metrics)
        if console.measure(table).minimum > console.width:
            table = _sections(frame, metrics, errors=False)
        console.print(table)
    for cell in results.problems:
        problem = printable(f"{results.title(cell.factors)}: {cell.problem}")
        console.print(problem, markup=False, highlight=False)


def headline(results: Results) -> str:
    """Return the first metric of each row at the middle budget, in one line; "" if there is none."""
    frame = Frame(results)
    for metric in frame.metrics():
        budgets = frame.xs("", metric)
        if budgets:
            nfe = budgets[len(budgets) // 2]
            found = {row: frame.measured("", row, nfe, metric) for row in frame.rows("", metric)}
            values = ", ".join(f"{frame.title(row)} {each.value:.3g}" for row, each in found.items() if each)
            return f"{metric} at NFE {nfe:g}: {values}"
    return ""


def _sections(frame: Frame, metrics: list[str], errors: bool = True) -> "RichTable":
    """Return a table with a section per metric and a column per budget."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    xs = sorted({x for metric in metrics for x in frame.xs("", metric)})
    printed = RichTable("sampler")
    for x in xs:
        printed.add_column(f"{frame.view.x_name} {x:g}", justify="right", no_wrap=True)
    for metric in metrics:
        printed.add_section()
        printed.add_row(f"[bold]{metric}[/bold] ({direction(frame, metric)} is better)")
        for row in _all_rows(frame, "", frame.rows("", metric)):
            words = [_cell(frame, "", row, x, metric, "[bold]{}[/bold]", errors) for x in xs]
            printed.add_row(f"  {escape(frame.title(row))}", *words)
    return printed


def print_results(results: Results, view: View | None = None) -> None:
    """Print results in the terminal: the tables, then the notes."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    frame = Frame(results, view)
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=FILE_WIDTH)  # nothing is wrapped in a file
    for panel in frame.panels:
        for table in tables_of(frame, panel, "[bold]{}[/bold]"):
            table = turned(table, console.width)
            console.print(f"\n[italic]{escape(table.title)}[/italic]", highlight=False, soft_wrap=True)
            printed = RichTable(table.header[0])
            for name in table.header[1:]:
                printed.add_column(name, justify="right", overflow="fold")
            for name, *row in table.rows:
                printed.add_row(escape(name), *row)
            console.print(printed)
    for line in remarks(results):
        console.print(line, markup=False, highlight=False)


def turned(content: TextTable, width: int) -> TextTable:
    """Return a table with its columns as rows where it is too wide for the terminal and gets narrower so."""
    lines = [content.header, *content.rows]
    columns = [[re.sub(r"\[/?bold\]", "", word) for word in column] for column in zip(*lines, strict=True)]
    wide = sum(3 + max(map(len, column)) for column in columns) + 1
    if wide <= width or len(lines) >= len(columns):
        return content
    header, *rows = [list(column) for column in zip(*lines, strict=True)]
    return TextTable(content.title, ["metric", *header[1:]], rows)
