"""Samples for people: texts or images, in the terminal, in files, and for TensorBoard.

A task's `show` returns a list of texts, or images as an array uint8 (B, H, W, 3). A task of texts may also
draw images (`results.DrawsSamples`). Figures are mosaics: blocks of strips of images with names, enlarged
without smoothing.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from torch import Tensor

from tauflow.evaluation.results import Cell, DrawsSamples, Results, Shown
from tauflow.evaluation.tables import View, cell_name, number_text
from tauflow.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TILE = 72  # pixels that the longer side of an image has at least
GAP = 4  # between images
MARGIN = 12  # around everything, and between blocks
LINE = 18  # of text
DPI = 100
TITLE, LABEL, CAPTION = 11.0, 9.0, 8.0  # sizes of text in points
CAPTION_LINE = 13  # pixels of a line of a caption that has several
MAX_LINES = 3  # of a caption
Samples = list[str] | np.ndarray
Known = tuple[Tensor, Tensor]  # tokens (D,), and true (D,) where they are known
ACROSS = 10  # images of a row
BESIDE = 16  # images of a row of blocks next to each other
FRAMES = 12  # of a film strip
AS_TEXT = 4  # images of a cell that samples.txt shows in characters
IN_TERMINAL = 32  # pixels of the longer side of an image in characters; larger ones are reduced


@dataclass(frozen=True)
class Strip:
    """A line of images.

    Args:
        images: uint8 (B, H, W, 3).
        label: stands at its left.
        captions: one above each image.
    """

    images: np.ndarray
    label: str = ""
    captions: Sequence[str] = ()

    @cached_property
    def tiles(self) -> np.ndarray:
        """Return the images, small ones enlarged by a whole number."""
        scale = max(1, -(-TILE // max(self.images.shape[1:3])))
        return self.images.repeat(scale, 1).repeat(scale, 2)

    @cached_property
    def lines(self) -> list[list[str]]:
        """Return the lines of each caption."""
        return [wrapped(caption, CAPTION, self.tiles.shape[2]) for caption in self.captions]

    @property
    def above(self) -> int:
        """Return the pixels that captions take above the images."""
        return LINE + CAPTION_LINE * (max(map(len, self.lines)) - 1) if self.captions else 0


@dataclass(frozen=True)
class ImageBlock:
    """Strips below each other, under a title."""

    strips: Sequence[Strip]
    title: str = ""

    @property
    def height(self) -> int:
        rows = sum(strip.above + strip.tiles.shape[1] + GAP for strip in self.strips)
        return (LINE + GAP if self.title else 0) + rows - GAP


def mosaic(blocks: Sequence[ImageBlock], across: int = 1) -> Figure:
    """Draw blocks, `across` of them beside each other; those on the right have no labels of their own."""
    strips = [strip for block in blocks for strip in block.strips]
    labels = max(text_width(strip.label, LABEL) for strip in strips)
    labels += 2 * GAP if labels else 0
    titles = max(text_width(block.title, TITLE) for block in blocks)
    widest = max(len(strip.images) * (strip.tiles.shape[2] + GAP) - GAP for strip in strips)
    column = max(widest, titles - (labels if across == 1 else 0)) + MARGIN
    lines = [blocks[number : number + across] for number in range(0, len(blocks), across)]
    heights = [max(block.height for block in line) + MARGIN for line in lines]
    height = MARGIN + sum(heights)
    width = MARGIN + labels + column * min(across, len(blocks))
    pixels = np.full((height, width, 3), 255, np.uint8)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    y = MARGIN
    for line, below in zip(lines, heights, strict=True):
        for number, block in enumerate(line):
            x = MARGIN + labels + number * column
            _draw(block, pixels, axes, x, y, labels if number == 0 else 0)
        y += below
    axes.imshow(pixels, interpolation="nearest", aspect="auto")
    return figure


def _draw(block: ImageBlock, pixels: np.ndarray, axes: "Axes", x: int, y: int, labels: int) -> None:
    """Draw a block whose images begin at (x, y), with labels in `labels` pixels left of them."""
    write = partial(axes.text, va="top", parse_math=False)
    if block.title:
        write(x - labels, y, block.title, fontsize=TITLE)
        y += LINE + GAP
    for strip in block.strips:
        y += strip.above
        height, width = strip.tiles.shape[1:3]
        for number, tile in enumerate(strip.tiles):
            left = x + number * (width + GAP)
            pixels[y : y + height, left : left + width] = tile
            for line, text in enumerate(reversed(strip.lines[number]) if strip.captions else ()):
                top = y - LINE - line * CAPTION_LINE
                write(left + width / 2, top, text, fontsize=CAPTION, ha="center")
        if labels:
            write(x - 2 * GAP, y + height / 2, strip.label, fontsize=LABEL, ha="right", va="center")
        y += height + GAP


def text_width(text: str, points: float) -> int:
    """Return how many pixels a line of text takes."""
    font = get_font(findfont(FontProperties()))
    font.set_size(points, DPI)
    font.set_text(text, 0.0)
    return math.ceil(font.get_width_height()[0] / 64)


def shortened(text: str, points: float, width: int) -> str:
    """Return a text that takes at most `width` pixels, with its end cut off where it is long."""
    if text_width(text, points) <= width:
        return text
    while text and text_width(f"{text}…", points) > width:
        text = text[:-1]
    return f"{text}…"


def wrapped(text: str, points: float, width: int) -> list[str]:
    """Return a text in lines of at most `width` pixels, MAX_LINES at most; what is longer is cut off."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if not lines[-1] or len(lines) == MAX_LINES or text_width(longer, points) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return [shortened(line, points, width) for line in lines]


def samples_of(cell: Cell, task: Task) -> Samples:
    """Return the kept samples of a cell as the task shows them, texts with what they were asked to be."""
    if cell.shown is None or not cell.shown.tokens:
        return []
    condition = None if cell.shown.condition is None else torch.tensor(cell.shown.condition)
    shown = task.show(torch.tensor(cell.shown.tokens), condition)
    if isinstance(shown, np.ndarray) or condition is None:
        return shown
    return [f"{asked}\n{text}" for asked, text in zip(captions_of(cell, task), shown, strict=True)]


def captions_of(cell: Cell, task: Task) -> list[str]:
    """Return what each kept sample was asked to be."""
    if cell.shown is None or cell.shown.condition is None:
        return []
    return [task.caption(torch.tensor(row)) for row in cell.shown.condition]


def summary_line(cell: Cell, results: Results) -> str:
    """Return a line on a cell: what it is, and its metrics without their parts, such as those of a class."""
    found = {each.metric: each.measured for each in cell.records}
    names = [name for name in results.scales if name in found and not math.isnan(found[name].value)]
    shown = [name for name in names if not any(name.startswith(f"{other}_") for other in names)]
    facts = [f"{name} {number_text(found[name])}" for name in shown]
    counts = [each.measured.value for each in cell.records if each.metric == "samples"]
    over = f" over {counts[0]:g} samples" if counts else ""
    return f"{results.title(cell.factors)}: {', '.join(facts)}{over}"


def samples_text(results: Results, task: Task) -> str:
    """Return the kept samples of all cells as text; images as blocks of characters."""
    parts = []
    for cell in results.cells:
        shown = samples_of(cell, task)
        if isinstance(shown, np.ndarray):
            texts = [_characters(image) for image in reduced(shown[:AS_TEXT])]
            names = captions_of(cell, task)
            shown = [f"{name}\n{text}" for name, text in zip(names, texts, strict=False)] if names else texts
        if shown:
            parts.append("\n\n".join([summary_line(cell, results), *shown, ""]))
    return "\n".join(parts)


def reduced(images: np.ndarray) -> np.ndarray:
    """Return images (B, H, W, 3) for a terminal: means over squares where they are large."""
    step = -(-max(images.shape[1:3]) // IN_TERMINAL)
    height, width = (max(1, size // step) for size in images.shape[1:3])
    squares = images[:, : height * step, : width * step].reshape(-1, height, step, width, step, 3)
    return squares.mean((2, 4)).round().astype(np.uint8)


def _characters(image: np.ndarray) -> str:
    """Return an image (H, W, 3) as characters by brightness, two for each pixel."""
    ramp = " .:-=+*#%@"
    level = image.mean(-1) / 256 * len(ramp)
    return "\n".join("".join(ramp[int(value)] * 2 for value in row) for row in level)


def print_samples(cell: Cell, task: Task, title: str) -> None:
    """Print the kept samples of a cell, and what marks in them mean. Images are those that fit on a line."""
    from rich.console import Console
    from rich.text import Text

    shown = samples_of(cell, task)
    console = Console()
    console.print(title, markup=False, highlight=False, soft_wrap=True)
    if not isinstance(shown, np.ndarray):
        print("\n".join(["", "\n\n".join(shown)]))
        for mark, meaning in task.marks.items():
            if any(mark in text for text in shown):
                print(f"\n{mark} {meaning}")
        return
    shown = reduced(shown)
    cells = shown.shape[2] * (1 if console.is_terminal else 2)  # of a line that an image takes
    fit = max(1, (console.width + 1) // (cells + 1))
    captions = [textwrap.wrap(name, cells) for name in captions_of(cell, task)[:fit]]
    for line in zip_longest(*captions, fillvalue=""):
        text = " ".join(f"{words:{cells}}" for words in line)
        console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
    draw = _blocks if console.is_terminal else _characters
    for line in zip(*(draw(image).splitlines() for image in shown[:fit]), strict=True):
        console.print(Text.from_ansi(" ".join(line)), soft_wrap=True)


def print_first_samples(results: Results, task: Task, count: int = 2) -> None:
    """Print a few samples of the first sampler at its largest budget, and an empty line."""
    cells = [cell for cell in results.cells if cell.shown and cell.shown.tokens]
    cell = max(
        (each for each in cells if each.factors["sampler"] == cells[0].factors["sampler"]),
        key=lambda each: each.factors["nfe"],
        default=None,
    )
    if cell is None or cell.shown is None:
        return
    condition = None if cell.shown.condition is None else cell.shown.condition[:count]
    few = Shown(cell.shown.tokens[:count], condition)
    print_samples(replace(cell, shown=few), task, results.title(cell.factors))
    print()


def _blocks(image: np.ndarray) -> str:
    """Return an image (H, W, 3) as half blocks in 24-bit color: two rows of pixels in a line."""
    even = np.pad(image, ((0, len(image) % 2), (0, 0), (0, 0)))
    pairs = np.concatenate([even[::2], even[1::2]], -1)  # (H / 2, W, 6)
    block = "\x1b[38;2;{};{};{}m\x1b[48;2;{};{};{}m▀"
    return "\n".join("".join(block.format(*pixel) for pixel in line) + "\x1b[0m" for line in pairs)


def shows_images(task: Task) -> bool:
    """Return whether the task has images of its samples."""
    return isinstance(task, DrawsSamples) or shows_only_images(task)


def shows_only_images(task: Task) -> bool:
    """Return whether the task shows its samples as images, not as texts."""
    condition = torch.zeros(1, len(task.conditions), dtype=torch.long) if task.conditions else None
    return isinstance(task.show(torch.zeros(1, task.length, dtype=torch.long), condition), np.ndarray)


def samples_figure(cells: Sequence[Cell], task: Task, given: Known | None = None) -> Figure | None:
    """Draw the kept images of cells; None if there are none.

    Cells of one sampler and budget are blocks, one for each weight of guidance, with a row for each class
    where several were asked for. Else each cell is a row, in a block for each budget. What was given to
    complete comes first.
    """
    found = {cell_name(cell.factors): cell for cell in cells if len(samples_of(cell, task))}
    if not found or not shows_images(task):
        return None
    cells = list(found.values())
    first = []
    if given is not None and shows_only_images(task):
        tokens, known = given
        covered = torch.where(known, tokens, task.num_tokens)
        strip = Strip(_images(torch.stack([covered, tokens]), task), captions=["known", "the image"])
        first = [ImageBlock([strip], "given")]
    if len({(cell.factors["sampler"], cell.factors["nfe"]) for cell in cells}) == 1:
        blocks = [ImageBlock(_rows(cell, task), name + _asked(cell, task)) for name, cell in found.items()]
        most = max(len(strip.images) for block in blocks for strip in block.strips)
        return mosaic([*first, *blocks], 1 if first else min(len(blocks), max(1, BESIDE // most)))
    for nfe in dict.fromkeys(cell.factors["nfe"] for cell in cells):
        strips: list[Strip] = []
        for cell in cells:
            if cell.factors["nfe"] == nfe and cell.shown is not None:
                images = _images(torch.tensor(cell.shown.tokens[:ACROSS]), task)
                # all rows have the same captions
                captions = [] if strips or _asked(cell, task) else captions_of(cell, task)[:ACROSS]
                strips.append(Strip(images, View().label(cell.factors, View().row), captions))
        first.append(ImageBlock(strips, f"NFE {nfe}{_asked(cells[0], task)}"))
    return mosaic(first)


def _asked(cell: Cell, task: Task) -> str:
    """Return the end of a title: what all samples were asked to be, if it is the same."""
    names = set(captions_of(cell, task))
    return f", {names.pop()}" if len(names) == 1 else ""


def _rows(cell: Cell, task: Task) -> list[Strip]:
    """Return the images of a cell: a row for each class, or rows with captions if most are alone in one."""
    assert cell.shown is not None
    images, names = _images(torch.tensor(cell.shown.tokens), task), captions_of(cell, task)
    if cell.shown.condition is None or _asked(cell, task) or len(names) < 2 * len(set(names)):
        captions = [] if _asked(cell, task) else names
        places = [slice(first, first + ACROSS) for first in range(0, len(images), ACROSS)]
        return [Strip(images[place], captions=captions[place]) for place in places]
    rows: dict[str, list[int]] = {}
    for _, name, number in sorted(zip(cell.shown.condition, names, range(len(names)), strict=True)):
        rows.setdefault(name, []).append(number)
    return [Strip(images[numbers[:ACROSS]], name) for name, numbers in rows.items()]


def _images(tokens: Tensor, task: Task) -> np.ndarray:
    images = task.draw(tokens) if isinstance(task, DrawsSamples) else task.show(tokens, None)
    assert isinstance(images, np.ndarray)
    return images


def film_figure(cells: Sequence[Cell], task: Task) -> Figure | None:
    """Draw how the first sample of each cell came to be, from x_0 to the end; None if nothing was kept."""
    blocks = []
    for cell in cells:
        if cell.shown is None or cell.shown.states is None or not shows_only_images(task):
            continue
        states = cell.shown.states  # (N, D)
        last = len(states) - 1
        chosen = sorted({round(last * n / (FRAMES - 1)) for n in range(FRAMES)})
        images = _images(states[chosen], task)
        asked = "".join(f", {caption}" for caption in captions_of(cell, task)[:1])
        words = {0: "start", last: "end"}
        captions = [words.get(number, f"step {number}") for number in chosen]
        blocks.append(ImageBlock([Strip(images, captions=captions)], f"{cell_name(cell.factors)}{asked}"))
    return mosaic(blocks) if blocks else None
