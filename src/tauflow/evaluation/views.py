"""Views: how results are laid out - which factors make a panel, a row and the axis."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from tauflow.evaluation.store import REAL, Factor, Factors, Measured, Results, Scale
from tauflow.samplers.registry import spec_name

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
        words = [WORDS.get(name, "{}").format(_text(factors[name])) for name in names if name in factors]
        return ", ".join(words)


def cell_name(factors: Factors) -> str:
    """Return the factors of a cell in words, such as "tr_cie, NFE 8"."""
    return View().label(factors, list(factors))


def _text(value: str | int | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


Pair = frozenset[tuple[str, Factor]]  # all factors but those of the row: what two rows are compared at


class Frame:
    """Results seen through a view."""

    def __init__(self, results: Results, view: View | None = None):
        self.results = results
        self.view = view or View()
        self._found: dict[tuple[str, str, str], dict[float | None, list[Measured]]] = {}
        self._places: dict[str, dict[str, list[str]]] = {}  # panel -> metric -> rows
        self._names: dict[str, str] = {}  # row -> the name of its sampler
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
        for cell in results.cells:
            panel, row = (self.view.label(cell.factors, names) for names in (self.view.panel, self.view.row))
            pair = frozenset(item for item in cell.factors.items() if item[0] not in self.view.row)
            for metric, numbers in cell.items.items():
                self._items.setdefault((panel, row, metric), {})[pair] = numbers
        self._problems = [
            (
                self.view.label(cell.factors, self.view.panel),
                self.view.label(cell.factors, self.view.row),
                cell,
            )
            for cell in results.problems
        ]

    def names(self, rows: Iterable[str]) -> dict[str, str]:
        """Return the name of the sampler of each row, without its options."""
        return {row: self._names.get(row, row) for row in rows}

    def problem_rows(self, panel: str) -> list[str]:
        """Return the rows of a panel that have a cell without numbers."""
        return list(dict.fromkeys(row for place, row, _ in self._problems if place == panel))

    def problem(self, panel: str, row: str, x: float) -> str:
        """Return in a word why a cell has no numbers, `failed` or `skipped`; nothing if it has some."""
        words = [
            cell.kind
            for place, name, cell in self._problems
            if (place, name) == (panel, row) and cell.factors.get(self.view.x) == x
        ]
        return words[0] if words else ""

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
