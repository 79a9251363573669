"""Scenes with their captions: which captions there are, and where the objects of a scene stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.utils.data import Dataset

from tauflow.geneval import relation
from tauflow.numerics import seed_of
from tauflow.tasks.base import Item
from tauflow.tasks.scenes.canvas import Found, painted
from tauflow.tasks.scenes.grammar import (
    CAPTION_WORDS,
    COLOURS,
    FREE,
    MOST_OBJECTS,
    RELATIONS,
    SHAPES,
    TASKS,
    Caption,
    Group,
    condition_of,
)

PROMPTS = dict(zip(TASKS, (80, 99, 80, 94, 100, 100), strict=True))  # of each task in GenEval's list
COUNTS = (2,) * 26 + (3,) * 28 + (4,) * 26  # of its counting prompts
SHARES = dict(zip((*TASKS, FREE), (0.05, 0.1, 0.15, 0.05, 0.2, 0.2, 0.25), strict=True))
"""How often training sees a caption of each kind: most often what is hardest to learn."""
KINDS, BOUNDS = tuple(SHARES), np.cumsum(list(SHARES.values()))[:-1]


def generator_of(*key: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed_of("scenes", *key)))


def drawn_caption(tag: str, generator: np.random.Generator, count: int | None = None) -> Caption:
    """Draw a caption of a task, all with the same probability."""
    if tag == FREE:
        return _free_caption(generator)
    shapes = generator.permutation(len(SHAPES))[:2].tolist()
    colours = generator.permutation(len(COLOURS))[:2].tolist()
    if tag == "single_object":
        return Caption((Group(shapes[0]),))
    if tag == "counting":
        return Caption((Group(shapes[0], count or int(generator.integers(2, 5))),))
    if tag == "colors":
        return Caption((Group(shapes[0], colour=colours[0]),))
    if tag == "color_attr":
        return Caption(tuple(Group(s, colour=c) for s, c in zip(shapes, colours, strict=True)))
    groups = Group(shapes[0]), Group(shapes[1])
    return Caption(groups, int(generator.integers(len(RELATIONS))) if tag == "position" else None)


def _free_caption(generator: np.random.Generator) -> Caption:
    """Draw a caption that joins counts, colours and relations in a way that no task does."""
    while True:
        shapes = generator.permutation(len(SHAPES))[: generator.integers(1, 3)].tolist()
        related = len(shapes) == 2 and generator.random() < 1 / 3
        groups = []
        for shape in shapes:
            colour = int(generator.integers(len(COLOURS))) if generator.random() < 2 / 3 else None
            groups.append(Group(shape, 1 if related else int(generator.integers(1, 5)), colour))
        caption = Caption(tuple(groups), int(generator.integers(len(RELATIONS))) if related else None)
        fits = caption.objects <= MOST_OBJECTS and len(str(caption).split()) <= CAPTION_WORDS
        if fits and caption.tag == FREE:
            return caption


def drawn_scene(caption: Caption, size: int, generator: np.random.Generator) -> list[Found]:
    """Draw a scene that shows a caption and nothing else, uniform over all places that do."""
    while True:
        places = generator.integers(size - 1, size=(caption.objects, 2)).tolist()
        if _apart(places) and _related(caption, places):
            break
    kinds = []
    for group in caption.groups:
        for _ in range(group.count):
            any_colour = int(generator.integers(len(COLOURS)))
            kinds.append((group.shape, any_colour if group.colour is None else group.colour))
    return [Found(*kind, *place) for kind, place in zip(kinds, places, strict=True)]


def _apart(places: Sequence[Sequence[int]]) -> bool:
    return all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) > 1 for i, a in enumerate(places) for b in places[:i])


def _related(caption: Caption, places: Sequence[Sequence[int]]) -> bool:
    if caption.relation is None:
        return True
    first, second = places
    return RELATIONS[caption.relation] in _relations(first[0] - second[0], first[1] - second[1])


@cache
def _relations(down: int, right: int) -> frozenset[str]:
    """Return where an object is seen from another one, by the rules that score it."""
    return frozenset(relation(Found(0, 0, down, right).box, Found(0, 0, 0, 0).box))


def prompt_list(seed: int) -> list[Caption]:
    """Return 553 captions with GenEval's number for each task, in a mixed order; some come twice."""
    generator = generator_of("prompts", seed)
    captions = []
    for tag, number in PROMPTS.items():
        counts: Sequence[int | None] = COUNTS if tag == "counting" else (None,) * number
        captions += [drawn_caption(tag, generator, count) for count in counts]
    return [captions[place] for place in generator.permutation(len(captions))]


@dataclass
class SceneItems(Dataset[Item]):
    """Item i is a pure function of the seed, the split and i: fresh captions, or those of a list in turn.

    The first `lesson` items with fresh captions are all of two objects in a relation.
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
        generator = generator_of(self.seed, self.split, number)
        if self.captions:
            caption = self.captions[number % len(self.captions)]
        else:
            kind = KINDS[int(np.searchsorted(BOUNDS, generator.random(), side="right"))]
            caption = drawn_caption("position" if number < self.lesson else kind, generator)
        canvas = painted(drawn_scene(caption, self.size, generator), self.size)
        return {"tokens": torch.from_numpy(canvas), "condition": torch.tensor(condition_of(caption))}
