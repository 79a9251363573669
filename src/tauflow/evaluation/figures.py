"""Figures: quality against NFE, panels of a study, how a sample comes to be; without pyplot's globals."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, ScalarFormatter
from torch import Tensor

from tauflow.evaluation.store import REAL, Measured
from tauflow.evaluation.styles import styles
from tauflow.evaluation.tables import COLUMNS, direction
from tauflow.evaluation.views import Frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def quality_figure(frame: Frame, metric: str, panel: str = "") -> Figure:
    """Draw a metric against NFE: a line for each row with bars of one standard error, real data dashed."""
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    draw_panel(axes, frame, panel, metric)
    axes.set(title="", xlabel="network evaluations (NFE)" if frame.view.x == "nfe" else frame.view.x_name)
    axes.set_ylabel(f"{metric} ({direction(frame, metric)} is better)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    return figure


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


def draw_panel(
    axes: "Axes", frame: Frame, panel: str, metric: str, looks: dict[str, dict[str, Any]] | None = None
) -> None:
    """Draw the lines of one panel and metric."""
    rows = frame.rows(panel, metric)
    looks = looks or styles(frame.names(row for row in rows if row != REAL))
    xs = frame.xs(panel, metric)
    lines = {row: _points(frame, panel, row, metric) for row in rows}
    values = [each.value for points in lines.values() for _, each in points]
    scale = frame.results.scales.get(metric)
    positive = [value for value in values if value > 0]
    logarithmic = bool(positive) and (scale is None or scale.logarithmic)
    floor = min(positive) / 1.5 if logarithmic else -math.inf
    for row, points in lines.items():
        if row == REAL and points:
            axes.axhline(
                max(floor, points[0][1].value), color="black", linestyle="--", linewidth=1, label=row
            )
        elif points:
            _line(axes, row, points, looks[row], floor)
    axes.set(title=panel, xlabel=frame.view.x_name, ylabel=metric)
    _scale_x(axes, xs, frame.view.x)
    if logarithmic:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=floor)
        if max(positive) / min(positive) < 30:
            axes.yaxis.set_major_formatter(_plain())
            axes.yaxis.set_minor_formatter(_plain())
        if min(values) <= 0:
            axes.text(0.01, 0.015, "at the lower edge: 0", transform=axes.transAxes, fontsize=8, color="gray")
    axes.grid(visible=True, which="both", alpha=0.25)


def _points(frame: Frame, panel: str, row: str, metric: str) -> list[tuple[float, Measured]]:
    found = [(x, frame.measured(panel, row, x, metric)) for x in frame.xs(panel, metric)]
    return [(x, each) for x, each in found if each is not None and math.isfinite(each.value)]


def _line(
    axes: "Axes", row: str, points: list[tuple[float, Measured]], look: dict[str, Any], floor: float
) -> None:
    """Draw one line with its errors; values below the floor of a logarithmic axis stand on it."""
    errors = [each.standard_error if math.isfinite(each.standard_error) else 0.0 for _, each in points]
    xs = [x for x, _ in points]
    options: dict[str, Any] = {"label": row, "capsize": 2, "markersize": 4, "linewidth": 1.4} | look
    axes.errorbar(xs, [max(floor, each.value) for _, each in points], yerr=errors, **options)


def _scale_x(axes: "Axes", xs: Sequence[float], name: str) -> None:
    if xs and min(xs) > 0 and name != "t":
        axes.set_xscale("log")
        if len(xs) <= COLUMNS:
            axes.set_xticks(list(xs), [f"{x:g}" for x in xs])
            axes.xaxis.set_minor_formatter(NullFormatter())
    elif xs and max(xs) > 0 and name != "t":
        axes.set_xscale("symlog", linthresh=min(x for x in xs if x > 0))


def evolution(states: Tensor, num_tokens: int, title: str) -> Figure:
    """Draw one sample from x_0 (top) to the end (bottom): colour is token, grey a mask, a dot a change."""
    tokens = states.numpy()  # (N, D)
    steps, length = tokens.shape
    size = (max(6.0, min(14.0, length * 0.06)), max(2.0, min(8.0, 1.2 + steps * 0.16)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    rainbow = colormaps["viridis"](np.linspace(0, 1, max(2, num_tokens)))[:num_tokens]
    colours = ListedColormap(list(np.vstack([rainbow, [[0.85, 0.85, 0.85, 1.0]]])))  # the mask is state V
    changed = np.zeros_like(tokens, dtype=bool)
    changed[1:] = tokens[1:] != tokens[:-1]
    for layer, alpha in ((tokens, 0.55), (np.ma.masked_where(~changed, tokens), 1.0)):
        image = axes.imshow(layer, aspect="auto", interpolation="nearest", cmap=colours, alpha=alpha)
        image.set_clim(-0.5, num_tokens + 0.5)
    row, column = changed.nonzero()
    axes.scatter(column, row, s=max(1.0, min(9.0, 60 / steps)), c="black", marker="s", linewidths=0)
    axes.set(xlabel="position", ylabel="step")
    axes.set_title(title, fontsize=10)
    mark = Line2D(
        [], [], color="black", marker="s", markersize=3, linestyle="none", label="changed in this step"
    )
    axes.legend(handles=[mark], loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    return figure


def _plain() -> ScalarFormatter:
    formatter = ScalarFormatter()
    formatter.set_scientific(False)
    return formatter
