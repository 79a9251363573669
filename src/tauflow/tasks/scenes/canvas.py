"""The canvas of a scene: objects as blocks of four codes, the detector that finds them, and its picture.

A code is 0 (background), or 1 + (shape * colours + colour) * 4 + quadrant: an object exists only where the
four codes of a 2 x 2 block agree. Shapes: B scenes of H x W codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from tauflow.tasks.scenes.grammar import COLOURS, SHAPES

CODES = 1 + 4 * len(SHAPES) * len(COLOURS)  # V
PATCH = 8  # pixels of a side of a code
RGB = {"red": (214, 48, 49), "green": (46, 160, 67), "blue": (52, 100, 219), "yellow": (241, 196, 15)}
PAPER = (238, 238, 238)
UNKNOWN = (170, 170, 170)  # of what is no code, such as a mask


@dataclass(frozen=True)
class Found:
    """An object on the canvas: shape and colour by number, and the cell of its upper left code."""

    shape: int
    colour: int
    row: int
    column: int

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Return (x1, y1, x2, y2) with inclusive corners."""
        return float(self.column), float(self.row), self.column + 1.0, self.row + 1.0


def first_code(shape: int, colour: int) -> int:
    """Return the code of the upper left quadrant of an object."""
    return 1 + (shape * len(COLOURS) + colour) * 4


def painted(objects: Sequence[Found], size: int) -> np.ndarray:
    """Return the codes (H, W) of a scene."""
    canvas = np.zeros((size, size), dtype=np.int64)
    for each in objects:
        codes = first_code(each.shape, each.colour) + np.arange(4).reshape(2, 2)
        canvas[each.row : each.row + 2, each.column : each.column + 2] = codes
    return canvas


def detect(canvas: Tensor) -> tuple[list[list[Found]], Tensor]:
    """Return the objects on each canvas of codes (B, H, W), and how many codes (B,) belong to none.

    An object is an upper left code whose three neighbours match: no code belongs to two.
    """
    there = _complete(canvas)
    kinds = (canvas[:, :-1, :-1][there] - 1) // 4
    found: list[list[Found]] = [[] for _ in range(len(canvas))]
    for (number, row, column), kind in zip(there.nonzero().tolist(), kinds.tolist(), strict=True):
        found[number].append(Found(kind // len(COLOURS), kind % len(COLOURS), row, column))
    return found, (canvas != 0).sum((1, 2)) - 4 * there.sum((1, 2))


def anchors(canvas: Tensor) -> Tensor:
    """Return where objects of each shape stand on canvases (B, H, W): bool (B, shapes, (H - 1) * (W - 1))."""
    shapes = torch.where(_complete(canvas), (canvas[:, :-1, :-1] - 1) // (4 * len(COLOURS)), -1)
    return torch.stack([(shapes == shape).flatten(1) for shape in range(len(SHAPES))], dim=1)


def _complete(canvas: Tensor) -> Tensor:
    """Return at which cells (B, H - 1, W - 1) the upper left code of an object stands."""
    corner, right = canvas[:, :-1, :-1], canvas[:, :-1, 1:]
    below, across = canvas[:, 1:, :-1], canvas[:, 1:, 1:]
    starts = (corner > 0) & ((corner - 1) % 4 == 0)
    return starts & (right == corner + 1) & (below == corner + 2) & (across == corner + 3)


def pictures(tokens: Tensor, size: int) -> np.ndarray:
    """Return scenes (B, H * W) as pictures uint8 (B, 8 H, 8 W, 3); what is no code is grey."""
    codes = tokens.cpu().reshape(-1, size, size).clamp(0, CODES).numpy()
    tiles = patches()[codes]  # (B, H, W, 8, 8, 3)
    return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(-1, size * PATCH, size * PATCH, 3)


@cache
def patches() -> np.ndarray:
    """Return the picture of each code, uint8 (V + 1, 8, 8, 3); the last one of what is no code."""
    result = np.empty((CODES + 1, PATCH, PATCH, 3), dtype=np.uint8)
    result[0] = PAPER
    result[CODES] = UNKNOWN
    for shape in range(len(SHAPES)):
        inside = _outline(shape)
        for number, colour in enumerate(COLOURS):
            block = np.where(inside[:, :, None], np.array(RGB[colour]), np.array(PAPER))
            code = first_code(shape, number)
            for quadrant in range(4):
                down, across = divmod(quadrant, 2)
                result[code + quadrant] = block[down * PATCH :, across * PATCH :][:PATCH, :PATCH]
    return result


def _outline(shape: int) -> np.ndarray:
    """Return which pixels (16, 16) of its block an object covers."""
    y, x = np.mgrid[: 2 * PATCH, : 2 * PATCH] - (PATCH - 0.5)  # from the centre
    return {
        "circle": x**2 + y**2 <= 7.2**2,
        "square": np.maximum(abs(x), abs(y)) <= 6.6,
        "triangle": (abs(x) <= (y + 7.5) / 2) & (y <= 6.6),
        "cross": (np.minimum(abs(x), abs(y)) <= 2.1) & (np.maximum(abs(x), abs(y)) <= 6.6),
    }[SHAPES[shape]]


def codebook() -> Tensor:
    """Return a vector for each code (V, 11), for paths that move between codes that are alike.

    One-hot of the shape, the colour, and the quadrant as two signs; the background is apart from all. Codes
    that differ in one of these are nearer than codes that differ in several.
    """
    vectors = torch.zeros(CODES, len(SHAPES) + len(COLOURS) + 3)
    vectors[0, -1] = 1.0
    for code in range(1, CODES):
        kind, quadrant = divmod(code - 1, 4)
        shape, colour = divmod(kind, len(COLOURS))
        vectors[code, shape] = 1.0
        vectors[code, len(SHAPES) + colour] = 1.0
        vectors[code, -3] = 1.0 if quadrant // 2 else -1.0
        vectors[code, -2] = 1.0 if quadrant % 2 else -1.0
    return torch.nn.functional.normalize(vectors, dim=1)
