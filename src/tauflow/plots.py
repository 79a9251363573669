"""Figures: quality against NFE, and how a sample comes to be. Made without pyplot, so that nothing global is touched."""

import math

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, ScalarFormatter
from torch import Tensor

from tauflow.samplers import SAMPLERS
from tauflow.tables import Table

COLOURS = [
    *("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"),
    *("#bb2233", "#777777", "#bbbbbb", "#ee8866", "#774411", "#000000"),
]
MARKERS = "os^vDP*Xd<>p"


def style_of(sampler: str) -> dict:
    """Colour and marker of a sampler: the same in every figure."""
    names = [*SAMPLERS]
    number = names.index(sampler) if sampler in names else len(names) + sum(sampler.encode())
    turn = number // len(COLOURS)  # a second one through the colours is dashed
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[(number + turn) % len(MARKERS)], "linestyle": "--" if turn else "-"}


def quality_vs_nfe(table: Table, metric: str) -> Figure:
    """A line for each sampler on log axes, with bars of one standard error; real data as a dashed line."""
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    positive = []
    for sampler in table.samplers:
        points = [(nfe, found) for nfe in table.nfes if (found := table.measured(metric, sampler, nfe)) and math.isfinite(found.value)]
        if not points:
            continue
        nfes, values = [nfe for nfe, _ in points], [found.value for _, found in points]
        positive += [value for value in values if value > 0]
        errors = [found.standard_error if math.isfinite(found.standard_error) else 0.0 for _, found in points]
        axes.errorbar(nfes, values, yerr=errors, label=sampler, capsize=2, markersize=5, linewidth=1.4, **style_of(sampler))
    real = table.reference.get(metric)
    if real and real.value > 0:
        axes.axhline(real.value, color="black", linestyle="--", linewidth=1, label="real data")
    axes.set_xscale("log", base=2)
    axes.set_xticks(table.nfes, [str(nfe) for nfe in table.nfes])
    axes.xaxis.set_minor_formatter(NullFormatter())
    if positive:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=min(positive + ([real.value] if real and real.value > 0 else [])) / 1.5)
        if max(positive) / min(positive) < 30:
            for axis_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                axis_formatter(_plain())
    axes.set_xlabel("network evaluations (NFE)")
    better = "higher" if table.higher_is_better[metric] else "lower"
    axes.set_ylabel(f"{metric} ({better} is better)")
    axes.grid(visible=True, which="both", alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    return figure


def evolution(states: Tensor, num_tokens: int, title: str) -> Figure:
    """One sample from x_0 (top) to the end (bottom): colour is the token, grey a mask, a black dot a token that just changed."""
    tokens = states.numpy()  # (N, D)
    steps, length = tokens.shape
    figure = Figure(figsize=(max(6.0, min(14.0, length * 0.06)), max(2.0, min(8.0, 1.2 + steps * 0.16))), layout="constrained")
    axes = figure.add_subplot()
    colours = np.vstack([_rainbow(num_tokens), [[0.85, 0.85, 0.85, 1.0]]])  # the mask is state V
    axes.imshow(tokens, aspect="auto", interpolation="nearest", cmap=ListedColormap(colours), vmin=-0.5, vmax=num_tokens + 0.5, alpha=0.55)
    changed = np.zeros_like(tokens, dtype=bool)
    changed[1:] = tokens[1:] != tokens[:-1]
    bright = np.ma.masked_where(~changed, tokens)
    axes.imshow(bright, aspect="auto", interpolation="nearest", cmap=ListedColormap(colours), vmin=-0.5, vmax=num_tokens + 0.5)
    row, column = changed.nonzero()
    size = 60 / steps
    axes.scatter(column, row, s=max(1.0, min(9.0, size)), c="black", marker="s", linewidths=0)
    axes.set_xlabel("position")
    axes.set_ylabel("step")
    axes.set_title(title, fontsize=10)
    mark = Line2D([], [], color="black", marker="s", markersize=3, linestyle="none", label="changed in this step")
    axes.legend(handles=[mark], loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    return figure


def _rainbow(count: int) -> np.ndarray:
    from matplotlib import colormaps

    return colormaps["viridis"](np.linspace(0, 1, max(2, count)))[:count]


def _plain() -> ScalarFormatter:
    formatter = ScalarFormatter()
    formatter.set_scientific(False)
    return formatter
