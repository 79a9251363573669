"""Mosaics: pictures beside each other with names, enlarged without smoothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

TILE = 72  # pixels that the longer side of a picture has at least
GAP = 4  # between pictures
MARGIN = 12  # around everything, and between blocks
LINE = 18  # of text
DPI = 100
TITLE, LABEL, CAPTION = 11.0, 9.0, 8.0  # sizes of text in points
CAPTION_LINE = 13  # pixels of a line of a caption that has several
MOST_LINES = 3  # of a caption


@dataclass(frozen=True)
class Strip:
    """A line of pictures.

    Args:
        pictures: uint8 (B, H, W, 3).
        label: stands at its left.
        captions: one above each picture.
    """

    pictures: np.ndarray
    label: str = ""
    captions: Sequence[str] = ()

    @property
    def scale(self) -> int:
        """Return the whole number by which small pictures are enlarged."""
        return max(1, -(-TILE // max(self.pictures.shape[1:3])))

    @property
    def size(self) -> tuple[int, int]:
        """Return the height and width of an enlarged picture."""
        height, width = self.pictures.shape[1:3]
        return self.scale * height, self.scale * width

    @cached_property
    def lines(self) -> list[list[str]]:
        """Return the lines of each caption."""
        return [wrapped(caption, CAPTION, self.size[1]) for caption in self.captions]

    @property
    def above(self) -> int:
        """Return the pixels that captions take above the pictures."""
        return LINE + CAPTION_LINE * (max(map(len, self.lines)) - 1) if self.captions else 0


@dataclass(frozen=True)
class Block:
    """Strips below each other, under a title."""

    strips: Sequence[Strip]
    title: str = ""


def mosaic(blocks: Sequence[Block], across: int = 1) -> Figure:
    """Draw blocks, `across` of them beside each other; those on the right have no labels of their own."""
    strips = [strip for block in blocks for strip in block.strips]
    labels = max(text_width(strip.label, LABEL) for strip in strips)
    labels += 2 * GAP if labels else 0
    titles = max(text_width(block.title, TITLE) for block in blocks)
    widest = max(len(strip.pictures) * (strip.size[1] + GAP) - GAP for strip in strips)
    column = max(widest, titles - (labels if across == 1 else 0)) + MARGIN
    lines = [blocks[number : number + across] for number in range(0, len(blocks), across)]
    heights = [max(_height(block) for block in line) + MARGIN for line in lines]
    size = (MARGIN + sum(heights), MARGIN + labels + column * min(across, len(blocks)))
    canvas = Canvas(np.full((*size, 3), 255, np.uint8))
    y = MARGIN
    for line, below in zip(lines, heights, strict=True):
        for number, block in enumerate(line):
            canvas.draw(block, MARGIN + labels + number * column, y, labels if number == 0 else 0)
        y += below
    return canvas.figure()


def _height(block: Block) -> int:
    rows = sum(strip.above + strip.size[0] + GAP for strip in block.strips)
    return (LINE + GAP if block.title else 0) + rows - GAP


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
    """Return a text in lines of at most `width` pixels, MOST_LINES at most; what is longer is cut off."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if not lines[-1] or len(lines) == MOST_LINES or text_width(longer, points) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return [shortened(line, points, width) for line in lines]


class Canvas:
    """Pixels, and texts that will be written over them."""

    def __init__(self, pixels: np.ndarray):
        self.pixels = pixels
        self.texts: list[tuple[float, float, str, dict[str, object]]] = []

    def draw(self, block: Block, x: int, y: int, labels: int) -> None:
        """Draw a block whose pictures begin at (x, y), with labels in so many pixels left of them."""
        if block.title:
            self._write(x - labels, y, block.title, fontsize=TITLE)
            y += LINE + GAP
        for strip in block.strips:
            y += strip.above
            height, width = strip.size
            for number, picture in enumerate(strip.pictures):
                left = x + number * (width + GAP)
                tile = picture.repeat(strip.scale, 0).repeat(strip.scale, 1)
                self.pixels[y : y + height, left : left + width] = tile
                for line, text in enumerate(reversed(strip.lines[number]) if strip.captions else ()):
                    top = y - LINE - line * CAPTION_LINE
                    self._write(left + width / 2, top, text, fontsize=CAPTION, ha="center")
            if labels:
                self._write(x - 2 * GAP, y + height / 2, strip.label, fontsize=LABEL, ha="right", va="center")
            y += height + GAP

    def _write(self, x: float, y: float, text: str, **look: object) -> None:
        self.texts.append((x, y, text, {"va": "top", "parse_math": False} | look))

    def figure(self) -> Figure:
        """Return a figure with as many pixels as there are here."""
        height, width = self.pixels.shape[:2]
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.imshow(self.pixels, interpolation="nearest", aspect="auto")
        for x, y, text, look in self.texts:
            axes.text(x, y, text, **look)  # type: ignore[arg-type]  # options of several types
        return figure
