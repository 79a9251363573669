"""Figures: quality against NFE, how a sample evolves, properties of samples; and the files of an evaluation.

A sampler has one color and marker in all figures, and no two lines of a figure look the same. A variant such
as tr_cie(grid=tau) has the color of its sampler, with a dashed line and its own marker. A new sampler gets an
entry in STYLES, so no other one changes its color. Nothing here uses pyplot's globals.
"""

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, ScalarFormatter
from torch import Tensor

from tauflow import files
from tauflow.evaluation.evaluate import real_items, val_count
from tauflow.evaluation.images import Known, film_figure, samples_figure, samples_text, shows_images
from tauflow.evaluation.results import (
    REAL,
    SAMPLE_FILES,
    Measured,
    Results,
    SampleTable,
    TabulatesSamples,
    make_table,
)
from tauflow.evaluation.tables import COLUMNS, Frame, View, direction, to_csv, to_markdown
from tauflow.samplers.registry import spec_name
from tauflow.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes


STYLES: dict[str, tuple[str, str]] = {
    "euler": ("#4477aa", "o"),
    "euler_tau_grid": ("#99bbdd", "s"),
    "tr": ("#228833", "^"),
    "cie": ("#ccbb44", "v"),
    "tr_cie": ("#d62728", "D"),
    "tr_cie_exact": ("#ff9896", "P"),
    "tr_cie_paper": ("#7b1113", "X"),
    "tweedie": ("#66ccee", "*"),
    "tweedie_d3pm": ("#117777", "d"),
    "theta_rk2": ("#aa7744", "<"),
    "theta_trapezoidal": ("#774411", ">"),
    "fhs": ("#777777", "p"),
    "ho_fhs": ("#bbbbbb", "h"),
    "fhs_pairs": ("#444444", "H"),
    "spaced": ("#aa3377", "s"),
    "spaced_even": ("#000000", "o"),
    "spaced_sharp": ("#dd88bb", "^"),
    "learned_order": ("#ee8866", "v"),
    "entropy_budget": ("#aaaa00", "D"),
    "bridge": ("#9467bd", "P"),
    "bridge_systematic": ("#332288", "X"),
    "fudoki": ("#e6a000", "s"),
    "confidence": ("#0b5394", "o"),
    "margin": ("#3d85c6", "v"),
    "entropy_order": ("#6fa8dc", "^"),
    "threshold": ("#b45f06", "D"),
    "entropy_bound": ("#f6b26b", "P"),
    "klass": ("#783f04", "X"),
    "remdm_cap": ("#38761d", "o"),
    "remdm_rescale": ("#6aa84f", "s"),
    "remdm_loop": ("#b6d7a8", "^"),
    "forward_backward": ("#0f9d8a", "v"),
    "psi": ("#45818e", "D"),
    "remask_spaced": ("#00b050", "*"),
    "renoise": ("#e6007e", "*"),
    "gibbs": ("#674ea7", "P"),
    "gibbs_margin": ("#b4a7d6", "X"),
    "shs": ("#8e7cc3", "d"),
    "spaced_learned": ("#cc0011", "*"),
    "random_learned": ("#ff7766", "<"),
    "best_learned": ("#cc3300", "P"),
    "independent": ("#0000cc", "*"),
}
"""Color and marker of each sampler."""

OTHERS = [
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#e377c2", "#8c564b", "#17becf", "#bcbd22", "#9edae5"),
    *("#f7b6d2", "#c49c94", "#98df8a", "#ffbb78", "#c5b0d5", "#393b79", "#637939", "#8c6d31"),
]
MARKERS = "os^vDP*Xd<>"  # none of the polygons that look like a circle when they are small
LINES = ("--", ":", "-.")


def styles(names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return color, marker and line of each label of one figure, from the name of its sampler."""
    found: dict[str, dict[str, Any]] = {}
    taken: set[tuple[str, str, str]] = set()
    for label in sorted(names, key=lambda each: (each not in STYLES, each)):
        free = (each for each in _looks(label, names[label]) if each not in taken)
        # beyond 33 variants of one sampler some must share a look
        look = next(free, next(_looks(label, names[label])))
        taken.add(look)
        found[label] = dict(zip(("color", "marker", "linestyle"), look, strict=True))
    return found


def _looks(label: str, base: str) -> Iterator[tuple[str, str, str]]:
    """Yield the looks that a label may have; the first of them depends on nothing but the label."""
    if label in STYLES:
        yield (*STYLES[label], "-")
    number = hashlib.blake2b(label.encode(), digest_size=4).digest()[0]
    if base in STYLES:
        colors = [STYLES[base][0]]
        turn = number % len(LINES)
        lines: tuple[str, ...] = (*LINES[turn:], *LINES[:turn])  # variants differ by their line first
    else:
        shift = number % len(OTHERS)
        colors = OTHERS[shift:] + OTHERS[:shift]
        lines = ("-", *LINES)
    for step in range(len(MARKERS)):
        for line in lines:
            for color in colors:
                yield color, MARKERS[(number // 16 + step) % len(MARKERS)], line


SIZE = (6.4, 4.0)  # inches of a figure; 640 x 400 pixels in TensorBoard, which shows it smaller
FEW = 6  # rows whose legend fits into the figure


def quality_figure(frame: Frame, metric: str, panel: str = "") -> Figure:
    """Draw a metric against NFE: a line for each row with bars of one standard error, real data dashed."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    draw_panel(axes, frame, panel, metric)
    axes.set(title="")
    axes.set_xlabel("network evaluations (NFE)" if frame.view.x == "nfe" else frame.view.x_name, fontsize=13)
    axes.set_ylabel(f"{metric}\n({direction(frame, metric)} is better)", fontsize=13)
    axes.tick_params(which="both", labelsize=12)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > FEW:
        options: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "fontsize": 9}
    else:
        options = {"loc": "best", "framealpha": 0.7, "fontsize": 12}
    if labels:
        axes.legend(handles, [frame.title(label) for label in labels], **options)
    return figure


LETTERS = 64  # of a line of a figure of texts
LINES_OF_TEXT = 18


def text_figure(texts: list[str], title: str) -> Figure:
    """Draw the first lines of texts, for places that show figures only; □ is a letter the font lacks."""
    font = get_font(findfont(FontProperties(family="monospace")))
    letters = "\n\n".join(texts).expandtabs(4)
    drawn = "".join(each if each == "\n" or font.get_char_index(ord(each)) else "□" for each in letters)
    lines = []
    for line in drawn.splitlines():
        lines += [line[begin : begin + LETTERS] for begin in range(0, max(1, len(line)), LETTERS)]
    figure = Figure(figsize=SIZE, dpi=100)
    figure.text(0.02, 0.97, title, fontsize=13, va="top", parse_math=False)
    shown = "\n".join(lines[:LINES_OF_TEXT])
    figure.text(0.02, 0.88, shown, fontsize=11.5, va="top", family="monospace", parse_math=False)
    return figure


def draw_panel(
    axes: "Axes", frame: Frame, panel: str, metric: str, looks: dict[str, dict[str, Any]] | None = None
) -> None:
    """Draw the lines of one panel and metric."""
    rows = frame.rows(panel, metric)
    looks = looks or styles(frame.names(row for row in rows if row != REAL))
    xs = frame.xs(panel, metric)
    lines: dict[str, list[tuple[float, Measured]]] = {}
    for row in rows:
        found = [(x, frame.measured(panel, row, x, metric)) for x in xs]
        lines[row] = [(x, each) for x, each in found if each is not None and math.isfinite(each.value)]
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
            errors = [
                each.standard_error if math.isfinite(each.standard_error) else 0.0 for _, each in points
            ]
            options: dict[str, Any] = {"label": row, "capsize": 2, "markersize": 4, "linewidth": 1.4}
            heights = [max(floor, each.value) for _, each in points]
            axes.errorbar([x for x, _ in points], heights, yerr=errors, **options, **looks[row])
    axes.set(title=panel, xlabel=frame.view.x_name, ylabel=metric)
    if xs and min(xs) > 0 and frame.view.x != "t":
        axes.set_xscale("log")
        if len(xs) <= COLUMNS:
            axes.set_xticks(list(xs), [f"{x:g}" for x in xs])
            axes.xaxis.set_minor_formatter(NullFormatter())
    elif xs and max(xs) > 0 and frame.view.x != "t":
        axes.set_xscale("symlog", linthresh=min(x for x in xs if x > 0))
    if logarithmic:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=floor)
        if max(positive) / min(positive) < 30:
            for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                formatter = ScalarFormatter()
                formatter.set_scientific(False)
                set_formatter(formatter)
        if min(values) <= 0:
            axes.text(0.01, 0.015, "at the lower edge: 0", transform=axes.transAxes, fontsize=8, color="gray")
    axes.grid(visible=True, which="both", alpha=0.25)


def evolution(states: Tensor, num_tokens: int, title: str) -> Figure:
    """Draw one sample from x_0 (top) to the end (bottom): color is token, gray a mask, a dot a change."""
    tokens = states.numpy()  # (N, D)
    steps = len(tokens)
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    rainbow = colormaps["viridis"](np.linspace(0, 1, max(2, num_tokens)))[:num_tokens]
    colors = ListedColormap(list(np.vstack([rainbow, [[0.85, 0.85, 0.85, 1.0]]])))  # the mask is state V
    changed = np.zeros_like(tokens, dtype=bool)
    changed[1:] = tokens[1:] != tokens[:-1]
    for layer, alpha in ((tokens, 0.55), (np.ma.masked_where(~changed, tokens), 1.0)):
        image = axes.imshow(layer, aspect="auto", interpolation="nearest", cmap=colors, alpha=alpha)
        image.set_clim(-0.5, num_tokens + 0.5)
    row, column = changed.nonzero()
    axes.scatter(column, row, s=max(1.0, min(9.0, 60 / steps)), c="black", marker="s", linewidths=0)
    axes.set_xlabel("position", fontsize=13)
    axes.set_ylabel("step", fontsize=13)
    axes.tick_params(labelsize=12)
    axes.set_title(title, fontsize=12, loc="left")
    mark = Line2D(
        [], [], color="black", marker="s", markersize=3, linestyle="none", label="changed in this step"
    )
    figure.legend(handles=[mark], loc="outside lower right", frameon=False, fontsize=11)
    return figure


REAL_ITEMS = 1000  # validation items whose numbers stand for real data
BINS = 30
ACROSS = 2  # panels of a row


def samples_csv(results: Results) -> str:
    """Return the tables of all cells as CSV, after the factors of each; nothing where no cell has one."""
    cells = [cell for cell in results.cells if cell.table]
    if not cells:
        return ""
    factors = list(dict.fromkeys(name for cell in cells for name in cell.factors))
    columns = list(dict.fromkeys(name for cell in cells for name in cell.table))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*factors, *columns])
    for cell in cells:
        head = [cell.factors.get(name, "") for name in factors]
        for row in zip(*(cell.table[name] for name in columns), strict=True):
            writer.writerow([*head, *map(_word, row)])
    return text.getvalue()


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
    real: dict[str, np.ndarray] = {}
    if not task.alone:
        items = real_items(task, range(min(REAL_ITEMS, val_count(task))))
        real = numbers_of(make_table(task, *items))
    looks = styles({row: spec_name(str(cell.factors["sampler"])) for row, cell in rows.items()})
    down = math.ceil(len(names) / ACROSS)
    figure = Figure(figsize=(4.4 * ACROSS + 2.2, 3.2 * down), layout="constrained")
    axes = list(figure.subplots(down, ACROSS, squeeze=False).flat)
    for place, name in zip(axes, names, strict=False):
        none = np.empty(0)
        of_real = real.get(name, none)
        found = {row: numbers_of(cell.table).get(name, none) for row, cell in rows.items()}
        together = np.concatenate([*found.values(), of_real])
        edges = np.histogram_bin_edges(together, BINS)
        if len(of_real):
            place.hist(of_real, edges, density=True, color="0.8", label=REAL)
        for row, numbers in found.items():
            if len(numbers):
                color = looks[row]["color"]
                place.hist(numbers, edges, density=True, histtype="step", color=color, label=row)
        place.set(xlabel=name, ylabel="density")
    for place in axes[len(names) :]:
        place.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    title = f"NFE {largest}"
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, title=title)
    return figure


def numbers_of(table: SampleTable) -> dict[str, np.ndarray]:
    """Return the columns of a table that hold numbers, without rows that have none."""
    columns = {
        name: np.array(values)
        for name, values in table.items()
        if values and all(isinstance(value, float) for value in values)
    }
    return {name: values[np.isfinite(values)] for name, values in columns.items()}


FILES = (
    *("results.csv", "results.md", "samples.txt", "quality_vs_nfe.png", *SAMPLE_FILES),
    *("samples.jsonl", "samples/*", "tensorboard/**/events.out.tfevents.*"),
)
"""What sample.py writes to --out in addition to results.json."""
MAX_ROWS = 24  # of samples.png, before it shows the largest budget alone


def save_report(results: Results, folder: Path, task: Task, given: Known | None = None) -> list[str]:
    """Write the files of an evaluation, each atomically; return their names. `given` was to be completed."""
    results.save(folder)
    files.write(folder / "results.csv", to_csv(results))
    files.write(folder / "results.md", to_markdown(results))
    files.write(folder / "samples.txt", samples_text(results, task))
    names = ["results.json", "results.csv", "results.md", "samples.txt"]
    frame = Frame(results)
    metrics = [metric for metric in frame.metrics() if frame.xs("", metric)]
    if metrics:
        with files.atomic(folder / "quality_vs_nfe.png") as file:
            quality_figure(frame, metrics[0]).savefig(file, format="png", dpi=120)
        names.append("quality_vs_nfe.png")
    shown = sample_files(results, task, given)
    for name, content in shown.items():
        files.write(folder / name, content)
    return [*names, *shown]


def shows_more_than_text(task: Task) -> bool:
    """Return whether a task has images of its samples, or a table."""
    return shows_images(task) or isinstance(task, TabulatesSamples)


def sample_files(results: Results, task: Task, given: Known | None = None) -> dict[str, bytes]:
    """Return what the task has to show of samples in addition to text, as files by name.

    samples.png, and evolution.png of the cells measured just now, where there are images; samples.csv where
    the task has a table, and properties.png where that has numbers. `given` is what was to be completed. Of a
    large grid the images are those of the largest budget.
    """
    cells = [cell for cell in results.cells if cell.shown]
    if len(cells) > MAX_ROWS:
        largest = max(cell.factors["nfe"] for cell in cells)
        cells = [cell for cell in cells if cell.factors["nfe"] == largest]
    drawn = {"samples.png": samples_figure(cells, task, given), "evolution.png": film_figure(cells, task)}
    drawn["properties.png"] = properties_figure(results, task)
    found = {}
    for name, figure in drawn.items():
        if figure is not None:
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi="figure")
            found[name] = file.getvalue()
    table = samples_csv(results)
    return found | ({"samples.csv": table.encode()} if table else {})
