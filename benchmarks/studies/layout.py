"""Tables and figures of a study: one panel and metric as Markdown, and all panels in one figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from tauflow.errors import TauflowError
from tauflow.evaluation.figures import draw_panel, styles
from tauflow.evaluation.results import REAL, Measured
from tauflow.evaluation.tables import COLUMNS, Frame, number_text


@dataclass(frozen=True)
class TableSpec:
    """Which numbers a table shows; by default all rows and a choice of columns."""

    panel: str
    metric: str
    xs: Sequence[float] = ()
    rows: Sequence[str] = ()
    ratio: str = ""  # a row that the others are divided by
    title: str = ""


def markdown_table(frame: Frame, spec: TableSpec) -> str:
    """Return a Markdown table of one panel and metric: a line for each row, a column for each x."""
    there = frame.xs(spec.panel, spec.metric)
    xs = list(spec.xs) or thinned(there)
    rows = list(spec.rows) or frame.rows(spec.panel, spec.metric)
    known = frame.rows(spec.panel, spec.metric)
    missing = sorted({*rows, *([spec.ratio] if spec.ratio else [])} - set(known))
    missing += [f"{x:g}" for x in xs if x not in there]
    if not rows or not xs or missing:
        detail = f" for {', '.join(missing)}" if missing else ""
        raise TauflowError(
            f"the results of {frame.results.name} have no {spec.metric} of {spec.panel}{detail}"
        )
    title = spec.title or (f"{spec.panel}: {spec.metric}" if spec.panel else spec.metric)
    title += f", ratio to {spec.ratio}" if spec.ratio else ""
    lines = [f"| {title} | {' | '.join(f'{x:.4g}' for x in xs)} |", "|---" * (len(xs) + 1) + "|"]
    for row in rows:
        words = [_cell_text(frame, spec, row, x) for x in xs]
        lines.append(f"| {row} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def _cell_text(frame: Frame, spec: TableSpec, row: str, x: float) -> str:
    measured = frame.measured(spec.panel, row, x, spec.metric)
    if spec.ratio:
        base = frame.measured(spec.panel, spec.ratio, x, spec.metric)
        return ratio_text(measured, base, row == spec.ratio)
    return number_text(measured)


def thinned(xs: Sequence[float]) -> list[float]:
    """Return at most so many values of x as a table has columns."""
    if len(xs) <= COLUMNS:
        return list(xs)
    return [xs[round(i * (len(xs) - 1) / (COLUMNS - 1))] for i in range(COLUMNS)]


def ratio_text(measured: Measured | None, base: Measured | None, same: bool) -> str:
    """Write a number over another one, with the error of the ratio; none for a number over itself."""
    if measured is None or not base or not base.value or math.isnan(measured.value):
        return ""
    share = measured.value / base.value
    if same or not measured.value:
        return f"{share:.3f}"
    error = math.hypot(measured.standard_error / measured.value, base.standard_error / base.value)
    return f"{share:.3f}" + (f" ± {share * error:.3f}" if error else "")


def panels_figure(frame: Frame, metrics: Sequence[str], panels_down: bool = False) -> Figure:
    """Draw a panel against a metric in each place, two in a row if there is one panel; one legend for all."""
    panels = frame.panels
    places = [(panel, metric) for metric in metrics for panel in panels]
    across = len(panels)
    if panels_down:
        places = [(panel, metric) for panel in panels for metric in metrics]
        across = len(metrics)
    if across <= 1:
        across = min(2, len(places))
    down = math.ceil(len(places) / across)
    figure = Figure(figsize=(5.6 * across + 2.2, 3.9 * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    labels = list(
        dict.fromkeys(row for panel, metric in places for row in frame.rows(panel, metric) if row != REAL)
    )
    looks = styles(frame.names(labels))
    for place, (panel, metric) in zip(axes, places, strict=False):
        draw_panel(place, frame, panel, metric, looks)
    for place in axes[len(places) :]:
        place.set_visible(False)
    handles: dict[str, Any] = {}
    for place in axes:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = 1 + len(handles) // 41
    place = {"loc": "outside right center", "frameon": False, "fontsize": 9 if columns == 1 else 7}
    figure.legend(handles.values(), handles.keys(), ncols=columns, **place)
    return figure
