"""What a task knows of each sample: as a table for other programs, and as laws against those of real data."""

import csv
import io
import math

import numpy as np
from matplotlib.figure import Figure

from tauflow.evaluation.hooks import Table, Tabled, table_of
from tauflow.evaluation.reference import real_items, val_count
from tauflow.evaluation.store import REAL, Cell, Results
from tauflow.evaluation.styles import styles
from tauflow.evaluation.views import View
from tauflow.samplers.registry import spec_name
from tauflow.tasks import Task

REAL_ITEMS = 1000  # validation items whose numbers stand for real data
BINS = 30
ACROSS = 2  # panels of a row


def samples_csv(results: Results) -> str:
    """Return the tables of all cells as CSV, after the factors of each; nothing where no cell has one."""
    cells = [cell for cell in results.cells if cell.table]
    factors = list(dict.fromkeys(name for cell in cells for name in cell.factors))
    columns = list(dict.fromkeys(name for cell in cells for name in cell.table))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*factors, *columns])
    for cell in cells:
        head = [cell.factors.get(name, "") for name in factors]
        for row in zip(*(cell.table[name] for name in columns), strict=True):
            writer.writerow([*head, *(_word(value) for value in row)])
    return text.getvalue() if cells else ""


def _word(value: str | bool | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    return "" if math.isnan(value) else f"{value:g}"


def properties_figure(results: Results, task: Task) -> Figure | None:
    """Draw the numbers that each sample of the largest budget has, against those of real data.

    None where the task knows no numbers.
    """
    cells = [cell for cell in results.cells if cell.table and cell.factors.get("sampler") != REAL]
    largest = max((cell.factors["nfe"] for cell in cells), default=0)
    rows = {View().label(cell.factors, View().row): cell for cell in cells if cell.factors["nfe"] == largest}
    names = list(dict.fromkeys(name for cell in rows.values() for name in numbers_of(cell.table)))
    if not names:
        return None
    real = numbers_of(_real(task))
    looks = styles({row: spec_name(str(cell.factors["sampler"])) for row, cell in rows.items()})
    down = math.ceil(len(names) / ACROSS)
    figure = Figure(figsize=(4.4 * ACROSS + 2.2, 3.2 * down), layout="constrained")
    axes = list(figure.subplots(down, ACROSS, squeeze=False).flat)
    for place, name in zip(axes, names, strict=False):
        found = {row: numbers_of(cell.table)[name] for row, cell in rows.items() if _has(cell, name)}
        edges = _edges([*found.values(), real.get(name, np.empty(0))])
        if len(real.get(name, ())):
            place.hist(real[name], edges, density=True, color="0.8", label=REAL)
        for row, numbers in found.items():
            place.hist(numbers, edges, density=True, histtype="step", color=looks[row]["color"], label=row)
        place.set(xlabel=name, ylabel="density")
    for place in axes[len(names) :]:
        place.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    title = f"NFE {largest}"
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, title=title)
    return figure


def numbers_of(table: Table) -> dict[str, np.ndarray]:
    """Return the columns of a table that hold numbers, without rows that have none."""
    columns = {
        name: np.array(values)
        for name, values in table.items()
        if values and all(isinstance(value, float) for value in values)
    }
    return {name: values[np.isfinite(values)] for name, values in columns.items()}


def _has(cell: Cell, name: str) -> bool:
    return bool(len(numbers_of(cell.table).get(name, ())))


def _real(task: Task) -> Table:
    """Return the table of real validation items, where there are some."""
    if task.alone or not isinstance(task, Tabled):
        return {}
    return table_of(task, *real_items(task, range(min(REAL_ITEMS, val_count(task)))))


def _edges(columns: list[np.ndarray]) -> np.ndarray:
    """Return the edges of bins that hold all numbers of some columns."""
    together = np.concatenate(columns)
    if not len(together):
        return np.linspace(0.0, 1.0, BINS + 1)
    return np.histogram_bin_edges(together, BINS)
