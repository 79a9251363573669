"""Mosaics: pictures beside each other with names, enlarged without smoothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

TILE = 72  # pixels that the longer side of a picture has at least
GAP = 4  # between pictures
MARGIN = 12  # around everything, and between blocks
LINE = 18  # of text
DPI = 100
TITLE, LABEL, CAPTION = 11.0, 9.0, 8.0  # sizes of text in points


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
    widest = max(
        len(strip.pictures) * (strip.scale * strip.pictures.shape[2] + GAP) - GAP for strip in strips
    )
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
    captions = sum(LINE for strip in block.strips if strip.captions)
    tiles = sum(strip.scale * strip.pictures.shape[1] + GAP for strip in block.strips)
    return (LINE + GAP if block.title else 0) + captions + tiles - GAP


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
            y += LINE if strip.captions else 0
            for number, picture in enumerate(strip.pictures):
                tile = picture.repeat(strip.scale, 0).repeat(strip.scale, 1)
                height, width = tile.shape[:2]
                left = x + number * (width + GAP)
                self.pixels[y : y + height, left : left + width] = tile
                if strip.captions:
                    caption = shortened(strip.captions[number], CAPTION, width)
                    self._write(left + width / 2, y - LINE, caption, fontsize=CAPTION, ha="center")
            height = strip.scale * strip.pictures.shape[1]
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
