"""Samples for people: texts or pictures, in the terminal, in files, and for TensorBoard.

What a task's `show` returns is a list of texts, or pictures as an array uint8 (B, H, W, 3).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from tauflow.denoise import DROPPED
from tauflow.errors import TauflowError
from tauflow.evaluation.store import Cell, Results, Shown
from tauflow.evaluation.tables import number_text
from tauflow.evaluation.views import cell_name
from tauflow.tasks import Task

Samples = list[str] | np.ndarray


def samples_of(cell: Cell, task: Task) -> Samples:
    """Return the kept samples of a cell as the task shows them, texts with what they were asked to be."""
    if cell.shown is None or not cell.shown.tokens:
        return []
    _refuse_foreign(cell, cell.shown, task)
    condition = None if cell.shown.condition is None else torch.tensor(cell.shown.condition)
    shown = task.show(torch.tensor(cell.shown.tokens), condition)
    if isinstance(shown, np.ndarray) or condition is None:
        return shown
    return [f"{asked}\n{text}" for asked, text in zip(captions_of(cell, task), shown, strict=True)]


def _refuse_foreign(cell: Cell, shown: Shown, task: Task) -> None:
    """Refuse kept samples that the task cannot show, out of a damaged file."""
    sizes = [task.num_tokens + 1] * task.length  # a mask may be left
    fit = all(_within(row, 0, sizes) for row in shown.tokens)
    if shown.condition is not None:
        fit &= len(shown.condition) == len(shown.tokens)
        fit &= all(_within(row, DROPPED, task.conditions) for row in shown.condition)
    if not fit:
        raise TauflowError(
            f"the samples kept of {cell_name(cell.factors)} are none of this task: results.json is damaged; "
            "remove it to start again, or choose another folder"
        )


def _within(row: Sequence[int], least: int, sizes: Sequence[int]) -> bool:
    return len(row) == len(sizes) and all(
        least <= value < size for value, size in zip(row, sizes, strict=True)
    )


def captions_of(cell: Cell, task: Task) -> list[str]:
    """Return what each kept sample was asked to be."""
    if cell.shown is None or cell.shown.condition is None:
        return []
    return [task.caption(torch.tensor(row)) for row in cell.shown.condition]


def headline(cell: Cell, results: Results) -> str:
    """Return a line on a cell: what it is, and its metrics."""
    found = {each.metric: each.measured for each in cell.records}
    shown = [name for name in results.scales if name in found and not math.isnan(found[name].value)]
    facts = [f"{name} {number_text(found[name])}" for name in shown]
    counts = [each.measured.value for each in cell.records if each.metric == "samples"]
    over = f" over {counts[0]:g} samples" if counts else ""
    return f"{cell_name(cell.factors)}: {', '.join(facts)}{over}"


def samples_text(results: Results, task: Task) -> str:
    """Return the kept samples of all cells as text; pictures as blocks of characters."""
    parts = []
    for cell in results.cells:
        shown = samples_of(cell, task)
        if len(shown):
            parts.append(f"{headline(cell, results)}\n\n{as_text(shown)}\n")
    return "\n".join(parts)


def as_text(shown: Samples) -> str:
    """Return samples as plain text, with an empty line between them."""
    if isinstance(shown, np.ndarray):
        return "\n\n".join(_characters(picture) for picture in shown)
    return "\n\n".join(shown)


def _characters(picture: np.ndarray) -> str:
    """Return a picture (H, W, 3) as characters by brightness, two for each pixel."""
    ramp = " .:-=+*#%@"
    level = picture.mean(-1) / 256 * len(ramp)
    return "\n".join("".join(ramp[int(value)] * 2 for value in row) for row in level)


def print_samples(cell: Cell, results: Results, task: Task) -> None:
    """Print the kept samples of a cell; pictures in colour where the terminal has it."""
    from rich.console import Console
    from rich.text import Text

    shown = samples_of(cell, task)
    console = Console()
    console.print(headline(cell, results), markup=False, highlight=False, soft_wrap=True)
    if not isinstance(shown, np.ndarray):
        print(f"\n{as_text(shown)}\n")
        return
    captions = captions_of(cell, task)
    for number, picture in enumerate(shown):
        if captions:
            console.print(captions[number], markup=False, highlight=False)
        console.print(Text.from_ansi(_blocks(picture)) if console.is_terminal else as_text(picture[None]))


def _blocks(picture: np.ndarray) -> str:
    """Return a picture (H, W, 3) as half blocks in 24-bit colour: two rows of pixels in a line."""
    even = np.pad(picture, ((0, len(picture) % 2), (0, 0), (0, 0)))
    lines = []
    for upper, lower in zip(even[::2], even[1::2], strict=True):
        cells = [
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]}m\x1b[48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(upper, lower, strict=True)
        ]
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def picture_rows(rows: Sequence[tuple[str, np.ndarray, Sequence[str]]]) -> Figure:
    """Draw rows of pictures (B, H, W, 3), each with a title and captions."""
    across = max(len(pictures) for _, pictures, _ in rows)
    figure = Figure(figsize=(1.6 * across + 0.4, 1.95 * len(rows) + 0.2), layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False)
    for part, (title, pictures, captions) in zip(parts.flat, rows, strict=True):
        part.suptitle(title, fontsize=9)
        for number, place in enumerate(part.subplots(1, across, squeeze=False).flat):
            place.set_axis_off()
            if number < len(pictures):
                place.imshow(pictures[number], interpolation="nearest")
                place.set_title(captions[number] if captions else "", fontsize=8)
    return figure
