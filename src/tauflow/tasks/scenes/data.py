"""Scenes of colored shapes: the canvas of codes, its detector and image, and the dataset with captions.

A code is 0 (background), or 1 + (shape * colors + color) * 4 + quadrant. An object exists only where the four
codes of a 2 x 2 block agree.

Shapes: B scenes of H x W codes, V codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tauflow.numerics import seed_of
from tauflow.tasks.scenes.captions import (
    CAPTION_WORDS,
    COLORS,
    FREE,
    MAX_OBJECTS,
    SHAPES,
    Caption,
    Group,
    encode_caption,
)
from tauflow.tasks.scenes.rules import RELATIONS, TASKS, relation
from tauflow.tasks.task import Item

CODES = 1 + 4 * len(SHAPES) * len(COLORS)  # V
PATCH = 8  # pixels of a side of a code
RGB = {"red": (214, 48, 49), "green": (46, 160, 67), "blue": (52, 100, 219), "yellow": (241, 196, 15)}
PAPER = (238, 238, 238)
UNKNOWN = (170, 170, 170)  # of a token that isn't a code, such as a mask

# The canvas


@dataclass(frozen=True)
class SceneObject:
    """An object on the canvas: shape and color by number, and the cell of its upper left code."""

    shape: int
    color: int
    row: int
    column: int

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Return (x1, y1, x2, y2) with inclusive corners."""
        return float(self.column), float(self.row), self.column + 1.0, self.row + 1.0


def first_code(shape: int, color: int) -> int:
    """Return the code of the upper left quadrant of an object."""
    return 1 + (shape * len(COLORS) + color) * 4


def paint(objects: Sequence[SceneObject], size: int) -> np.ndarray:
    """Return the codes (H, W) of a scene."""
    canvas = np.zeros((size, size), dtype=np.int64)
    for each in objects:
        codes = first_code(each.shape, each.color) + np.arange(4).reshape(2, 2)
        canvas[each.row : each.row + 2, each.column : each.column + 2] = codes
    return canvas


def detect(canvas: Tensor) -> tuple[list[list[SceneObject]], Tensor]:
    """Return the objects on each canvas (B, H, W), and the number (B,) of codes that belong to none.

    An object is an upper left code whose three neighbors match, so no code belongs to two.
    """
    there = _complete(canvas)
    kinds = (canvas[:, :-1, :-1][there] - 1) // 4
    found: list[list[SceneObject]] = [[] for _ in range(len(canvas))]
    for (number, row, column), kind in zip(there.nonzero().tolist(), kinds.tolist(), strict=True):
        found[number].append(SceneObject(kind // len(COLORS), kind % len(COLORS), row, column))
    return found, (canvas != 0).sum((1, 2)) - 4 * there.sum((1, 2))


def shape_places(canvas: Tensor) -> Tensor:
    """Return the places of objects by shape on canvases (B, H, W): bool (B, shapes, (H - 1) * (W - 1))."""
    shapes = torch.where(_complete(canvas), (canvas[:, :-1, :-1] - 1) // (4 * len(COLORS)), -1)
    return torch.stack([(shapes == shape).flatten(1) for shape in range(len(SHAPES))], dim=1)


def _complete(canvas: Tensor) -> Tensor:
    """Return the cells (B, H - 1, W - 1) with the upper left code of an object, as bool."""
    corner = canvas[:, :-1, :-1]
    starts = (corner > 0) & ((corner - 1) % 4 == 0)
    right = canvas[:, :-1, 1:] == corner + 1
    below = canvas[:, 1:, :-1] == corner + 2
    across = canvas[:, 1:, 1:] == corner + 3
    return starts & right & below & across


def codebook() -> Tensor:
    """Return a vector per code (V, 11), for paths between similar codes.

    It is one-hot in the shape and the color, with two signs for the quadrant; the background has its own
    dimension. Codes that differ in one of these are nearer than codes that differ in several.
    """
    vectors = torch.zeros(CODES, len(SHAPES) + len(COLORS) + 3)
    vectors[0, -1] = 1.0
    for code in range(1, CODES):
        kind, quadrant = divmod(code - 1, 4)
        shape, color = divmod(kind, len(COLORS))
        vectors[code, shape] = 1.0
        vectors[code, len(SHAPES) + color] = 1.0
        vectors[code, -3] = 1.0 if quadrant // 2 else -1.0
        vectors[code, -2] = 1.0 if quadrant % 2 else -1.0
    return torch.nn.functional.normalize(vectors, dim=1)


# Images


def render(tokens: Tensor, size: int) -> np.ndarray:
    """Return scenes (B, H * W) as images uint8 (B, 8 H, 8 W, 3); tokens that aren't codes are gray."""
    codes = tokens.cpu().reshape(-1, size, size).clamp(0, CODES).numpy()
    tiles = _patches()[codes]  # (B, H, W, 8, 8, 3)
    return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(-1, size * PATCH, size * PATCH, 3)


@cache
def _patches() -> np.ndarray:
    """Return the image of each code, uint8 (V + 1, 8, 8, 3); the last one is of other tokens."""
    result = np.empty((CODES + 1, PATCH, PATCH, 3), dtype=np.uint8)
    result[0] = PAPER
    result[CODES] = UNKNOWN
    y, x = np.mgrid[: 2 * PATCH, : 2 * PATCH] - (PATCH - 0.5)  # from the center
    outlines = {
        "circle": x**2 + y**2 <= 7.2**2,
        "square": np.maximum(abs(x), abs(y)) <= 6.6,
        "triangle": (abs(x) <= (y + 7.5) / 2) & (y <= 6.6),
        "cross": (np.minimum(abs(x), abs(y)) <= 2.1) & (np.maximum(abs(x), abs(y)) <= 6.6),
    }
    for shape, name in enumerate(SHAPES):
        for number, color in enumerate(COLORS):
            block = np.where(outlines[name][:, :, None], np.array(RGB[color]), np.array(PAPER))
            code = first_code(shape, number)
            for quadrant in range(4):
                down, across = divmod(quadrant, 2)
                result[code + quadrant] = block[down * PATCH :, across * PATCH :][:PATCH, :PATCH]
    return result


# Captions and scenes at random

PROMPTS = dict(zip(TASKS, (80, 99, 80, 94, 100, 100), strict=True))  # per task in GenEval's list
COUNTS = (2,) * 26 + (3,) * 28 + (4,) * 26  # of its counting prompts
SHARES = dict(zip((*TASKS, FREE), (0.05, 0.1, 0.15, 0.05, 0.2, 0.2, 0.25), strict=True))
"""Shares of the kinds of captions in training: the hardest to learn are the most frequent."""
KINDS = tuple(SHARES)
BOUNDS = np.cumsum(list(SHARES.values()))[:-1]


def scene_generator(*key: str | int) -> np.random.Generator:
    """Return a generator that is a pure function of a key."""
    return np.random.Generator(np.random.Philox(seed_of("scenes", *key)))


def draw_caption(tag: str, generator: np.random.Generator, count: int | None = None) -> Caption:
    """Draw a caption of a task uniformly."""
    if tag == FREE:
        return _draw_free_caption(generator)
    shapes = generator.permutation(len(SHAPES))[:2].tolist()
    colors = generator.permutation(len(COLORS))[:2].tolist()
    if tag == "single_object":
        return Caption((Group(shapes[0]),))
    if tag == "counting":
        return Caption((Group(shapes[0], count or int(generator.integers(2, 5))),))
    if tag == "colors":
        return Caption((Group(shapes[0], color=colors[0]),))
    if tag == "color_attr":
        return Caption(tuple(Group(s, color=c) for s, c in zip(shapes, colors, strict=True)))
    groups = (Group(shapes[0]), Group(shapes[1]))
    return Caption(groups, int(generator.integers(len(RELATIONS))) if tag == "position" else None)


def _draw_free_caption(generator: np.random.Generator) -> Caption:
    """Draw a caption that combines counts, colors and relations as no task does."""
    while True:
        shapes = generator.permutation(len(SHAPES))[: generator.integers(1, 3)].tolist()
        related = len(shapes) == 2 and generator.random() < 1 / 3
        groups = []
        for shape in shapes:
            color = int(generator.integers(len(COLORS))) if generator.random() < 2 / 3 else None
            groups.append(Group(shape, 1 if related else int(generator.integers(1, 5)), color))
        caption = Caption(tuple(groups), int(generator.integers(len(RELATIONS))) if related else None)
        fits = caption.objects <= MAX_OBJECTS and len(str(caption).split()) <= CAPTION_WORDS
        if fits and caption.tag == FREE:
            return caption


def draw_scene(caption: Caption, size: int, generator: np.random.Generator) -> list[SceneObject]:
    """Draw a scene that shows a caption and nothing else, uniformly over all places that do."""
    while True:
        places = generator.integers(size - 1, size=(caption.objects, 2)).tolist()
        if _are_apart(places) and _are_related(caption, places):
            break
    kinds = []
    for group in caption.groups:
        for _ in range(group.count):
            any_color = int(generator.integers(len(COLORS)))
            kinds.append((group.shape, any_color if group.color is None else group.color))
    return [SceneObject(*kind, *place) for kind, place in zip(kinds, places, strict=True)]


def _are_apart(places: Sequence[Sequence[int]]) -> bool:
    return all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) > 1 for i, a in enumerate(places) for b in places[:i])


def _are_related(caption: Caption, places: Sequence[Sequence[int]]) -> bool:
    if caption.relation is None:
        return True
    first, second = places
    return RELATIONS[caption.relation] in _relations(first[0] - second[0], first[1] - second[1])


@cache
def _relations(down: int, right: int) -> frozenset[str]:
    """Return the relations of an object to another one, by the rules that score them."""
    return frozenset(relation(SceneObject(0, 0, down, right).box, SceneObject(0, 0, 0, 0).box))


def draw_prompts(seed: int) -> list[Caption]:
    """Return 553 captions with GenEval's number per task, in a mixed order; some come twice."""
    generator = scene_generator("prompts", seed)
    captions = []
    for tag, number in PROMPTS.items():
        counts: Sequence[int | None] = COUNTS if tag == "counting" else (None,) * number
        captions += [draw_caption(tag, generator, count) for count in counts]
    return [captions[place] for place in generator.permutation(len(captions))]


@dataclass
class SceneItems(Dataset[Item]):
    """Item i is a pure function of the seed, the split and i: new captions, or those of a list in turn.

    The first `lesson` items with new captions all show two objects in a relation.
    """

    size: int
    seed: int
    split: str
    count: int
    captions: Sequence[Caption] = ()
    lesson: int = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Item:
        number = int(number)
        if not 0 <= number < self.count:
            raise IndexError(f"items are numbered 0 to {self.count - 1}, got {number}")
        generator = scene_generator(self.seed, self.split, number)
        if self.captions:
            caption = self.captions[number % len(self.captions)]
        else:
            kind = KINDS[int(np.searchsorted(BOUNDS, generator.random(), side="right"))]
            caption = draw_caption("position" if number < self.lesson else kind, generator)
        canvas = paint(draw_scene(caption, self.size, generator), self.size)
        return {"tokens": torch.from_numpy(canvas), "condition": torch.tensor(encode_caption(caption))}
