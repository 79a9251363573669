"""The 553 records of GenEval, drawn anew: a record says what its prompt asks for (see `rules`)."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tauflow.geneval.rules import RELATIONS

SEED = 43  # with which the published records were drawn
DRAWN = 100  # of each task but the first, before equal ones are dropped
NUMBERS = ("zero", "one", "two", "three", "four")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
CLASSES = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
    *("elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase"),
    *("frisbee", "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove"),
    *("skateboard", "surfboard", "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon"),
    *("bowl", "banana", "apple", "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut"),
    *("cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet", "tv", "laptop"),
    *("computer mouse", "tv remote", "computer keyboard", "cell phone", "microwave", "oven", "toaster"),
    *("sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush"),
)
"""The 80 classes of COCO in the order of its detectors, three of them as GenEval calls them."""


def records() -> list[dict[str, Any]]:
    """Return the 553 records of GenEval in their order."""
    return [json.loads(line) for line in _lines()]


@cache
def _lines() -> tuple[str, ...]:
    """Return the lines of GenEval's file of records, each once."""
    rng = np.random.default_rng(SEED)
    tasks: Sequence[Callable[[np.random.Generator], dict[str, Any]]]
    tasks = (_two_objects, _counting, _colour, _position, _two_colours)
    drawn = [*_single_objects(rng), *(draw(rng) for draw in tasks for _ in range(DRAWN))]
    return tuple(dict.fromkeys(json.dumps(record) for record in drawn))


def _record(tag: str, include: list[dict[str, Any]], prompt: str, **more: Any) -> dict[str, Any]:
    return {"tag": tag, "include": include, **more, "prompt": f"a photo of {prompt}"}


def _item(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"class": name, "count": count, **more}


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _two(rng: np.random.Generator, names: Sequence[str]) -> tuple[str, str]:
    first, second = rng.choice(len(names), size=2, replace=False)
    return names[first], names[second]


def _single_objects(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for number in rng.choice(len(CLASSES), size=len(CLASSES), replace=False):
        name = CLASSES[number]
        yield _record("single_object", [_item(name)], _a(name))


def _two_objects(rng: np.random.Generator) -> dict[str, Any]:
    a, b = _two(rng, CLASSES)
    return _record("two_object", [_item(a), _item(b)], f"{_a(a)} and {_a(b)}")


def _counting(rng: np.random.Generator) -> dict[str, Any]:
    name = CLASSES[rng.choice(len(CLASSES))]
    count = int(rng.integers(2, 4, endpoint=True))
    plural = f"{name}es" if name.endswith("s") else f"{name}s"
    prompt = f"{NUMBERS[count]} {plural}"
    return _record("counting", [_item(name, count)], prompt, exclude=[_item(name, count + 1)])


THINGS = CLASSES[1:]  # nobody asks for the colour of a person


def _colour(rng: np.random.Generator) -> dict[str, Any]:
    name = THINGS[rng.choice(len(THINGS))]
    colour = COLOURS[rng.choice(len(COLOURS))]
    return _record("colors", [_item(name, color=colour)], f"{_a(colour)} {name}")


def _position(rng: np.random.Generator) -> dict[str, Any]:
    a, b = _two(rng, CLASSES)
    word = RELATIONS[rng.choice(len(RELATIONS))]
    return _record("position", [_item(b), _item(a, position=[word, 0])], f"{_a(a)} {word} {_a(b)}")


def _two_colours(rng: np.random.Generator) -> dict[str, Any]:
    a, b = _two(rng, THINGS)
    first, second = _two(rng, COLOURS)
    items = [_item(a, color=first), _item(b, color=second)]
    return _record("color_attr", items, f"{_a(first)} {a} and {_a(second)} {b}")
