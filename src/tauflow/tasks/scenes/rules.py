"""GenEval (Ghosh et al., 2023): its rules, the scores of many images, and its 553 records.

A record describes what its prompt asks for: `{"tag", "include": [{"class", "count", "color"?, "position"?}],
"exclude"?: [{"class", "count"}], "prompt"}`, where a position is `[relation, number of an earlier item]`.
The rules decide which detected objects satisfy a record, whatever detector found them. Boxes are
(x1, y1, x2, y2) with y pointing down.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

Box = tuple[float, float, float, float]
Record = Mapping[str, Any]
RELATIONS = ("left of", "right of", "above", "below")
MARGIN = 0.1  # centers differ by at least this share of the two boxes' sides
TASKS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")

# Rules


@dataclass(frozen=True)
class Detection:
    """A detected object; color and mask (H, W) only if the detector gives them."""

    score: float
    box: Box
    color: str | None = None
    mask: np.ndarray | None = field(default=None, repr=False, compare=False)


Objects = Mapping[str, Sequence[Detection]]
ColorClassifier = Callable[[str, Sequence[Detection]], Sequence[str]]  # class, its detections -> colors


class Verdict(NamedTuple):
    """Whether an image shows what its record asks for, and what is missing."""

    correct: bool
    reason: str = ""


def relation(a: Box, b: Box) -> set[str]:
    """Return where box a lies relative to box b: none, one or two of `RELATIONS`."""
    offsets = []  # between the centers, right and down
    beyond = []  # the part of an offset that exceeds the margin
    for axis in range(2):
        offset = (a[axis] + a[axis + 2]) / 2 - (b[axis] + b[axis + 2]) / 2
        sides = abs(a[axis + 2] - a[axis]) + abs(b[axis + 2] - b[axis])
        offsets.append(offset)
        beyond.append(math.copysign(max(abs(offset) - MARGIN * sides, 0.0), offset))
    right, down = beyond
    if max(abs(right), abs(down)) < 1e-3:
        return set()
    half = math.hypot(*offsets) / 2
    holds = (right < -half, right > half, down < -half, down > half)
    return {word for word, true in zip(RELATIONS, holds, strict=True) if true}


def detected_colors(name: str, found: Sequence[Detection]) -> list[str]:
    """Return the colors that the detector itself gave to its detections."""
    return [str(each.color) for each in found]


def evaluate(objects: Objects, record: Record, colors: ColorClassifier = detected_colors) -> Verdict:
    """Return whether detected objects are what a record asks for.

    Each item needs its count of objects. The most confident ones are checked: all of them must have the
    item's color, and then its position relative to all objects of an earlier item. Additional objects are
    allowed unless the record excludes them.
    """
    ranked = {name: sorted(found, key=lambda each: -each.score) for name, found in objects.items()}
    groups: list[Sequence[Detection] | None] = []  # the objects of each item, None if it fails
    reasons = []
    for item in record.get("include", ()):
        found = ranked.get(item["class"], [])[: item["count"]]
        wrong = _missing(item, found, groups, colors)
        groups.append(None if wrong else found)
        if wrong:
            reasons.append(wrong)
    for item in record.get("exclude", ()):
        count = len(ranked.get(item["class"], ()))
        if count >= item["count"]:
            reasons.append(f"expected fewer than {item['count']} {item['class']}, found {count}")
    return Verdict(not reasons, "; ".join(reasons))


def _missing(
    item: Mapping[str, Any],
    found: Sequence[Detection],
    groups: Sequence[Sequence[Detection] | None],
    colors: ColorClassifier,
) -> str:
    """Return what is missing to satisfy an item, or an empty string."""
    name = item["class"]
    count = item["count"]
    color = item.get("color")
    if len(found) < count:
        return f"expected {count} {name}, found {len(found)}"
    if color is not None:
        seen = Counter(colors(name, found))
        if seen[color] < count:
            others = ", ".join(f"{number} {each}" for each, number in seen.items())
            return f"expected {count} {color} {name}, found {others}"
    if "position" not in item:
        return ""
    word, number = item["position"]
    targets = groups[number]
    if targets is None:
        return f"expected {name} {word} something that was not found"
    for each in found:
        for target in targets:
            relations = relation(each.box, target.box)
            if word not in relations:
                return f"expected {name} {word} target, found {' and '.join(sorted(relations)) or 'neither'}"
    return ""


# Scores of many images


@dataclass(frozen=True)
class Score:
    """A mean over images or prompts and its standard error, which is NaN for a single prompt."""

    value: float
    error: float
    count: int  # of the images or prompts


@dataclass(frozen=True)
class GenEvalScores:
    """Scores by task and over all of them; standard errors treat prompts, not images, as independent."""

    tasks: dict[str, Score]
    overall: Score  # mean of the tasks, each with the same weight
    images: Score  # share of correct images
    prompts: Score  # share of prompts with at least one correct image


class ScoredImage(NamedTuple):
    """The tag of an image's task, its prompt, and whether the image is correct."""

    tag: str
    prompt: int | str
    correct: bool


def summarize(images: Iterable[ScoredImage]) -> GenEvalScores:
    """Return the scores of images; tasks in GenEval's order, followed by others."""
    images = list(images)
    tasks = {tag: _correct_share([each for each in images if each.tag == tag]) for tag in sorted_tags(images)}
    values = [score.value for score in tasks.values()]
    error = math.hypot(*(score.error for score in tasks.values())) / len(tasks)
    answered = {(each.tag, each.prompt): False for each in images}
    for each in images:
        answered[each.tag, each.prompt] |= each.correct
    return GenEvalScores(
        tasks,
        Score(sum(values) / len(values), error, len(images)),
        _correct_share(images),
        score_by_prompt((prompt, float(correct)) for prompt, correct in answered.items()),
    )


def sorted_tags(images: Iterable[ScoredImage]) -> list[str]:
    """Return the tags of images, those of GenEval first."""
    seen = dict.fromkeys(each.tag for each in images)
    return [tag for tag in TASKS if tag in seen] + [tag for tag in seen if tag not in TASKS]


def _correct_share(images: Iterable[ScoredImage]) -> Score:
    return score_by_prompt(((each.tag, each.prompt), float(each.correct)) for each in images)


def score_by_prompt(values: Iterable[tuple[Hashable, float]]) -> Score:
    """Return the mean of (prompt, value) pairs with the error of a ratio over independent prompts."""
    groups: dict[Hashable, list[float]] = {}
    for prompt, value in values:
        groups.setdefault(prompt, []).append(value)
    count = sum(len(group) for group in groups.values())
    mean = sum(sum(group) for group in groups.values()) / count
    if len(groups) < 2:
        return Score(mean, math.nan, count)
    spread = sum(sum(value - mean for value in group) ** 2 for group in groups.values())
    return Score(mean, math.sqrt(spread * len(groups) / (len(groups) - 1)) / count, count)


# Records

SEED = 43  # of the published records
DRAWS = 100  # per task but the first, before duplicates are removed
NUMBERS = ("zero", "one", "two", "three", "four")
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
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
"""The 80 classes of COCO in the order of its detectors, three of them under GenEval's names."""

THINGS = CLASSES[1:]  # prompts don't ask for the color of a person


def records() -> list[dict[str, Any]]:
    """Return the 553 records of GenEval in their order."""
    return [json.loads(line) for line in _record_lines()]


@cache
def _record_lines() -> tuple[str, ...]:
    """Draw the records as GenEval's script does, and return the distinct ones as lines of its file."""
    rng = np.random.default_rng(SEED)
    drawn = []
    for number in rng.choice(len(CLASSES), size=len(CLASSES), replace=False):
        name = CLASSES[number]
        drawn.append(_record("single_object", [_item(name)], _with_article(name)))
    for _ in range(DRAWS):
        a, b = _choose_two(rng, CLASSES)
        prompt = f"{_with_article(a)} and {_with_article(b)}"
        drawn.append(_record("two_object", [_item(a), _item(b)], prompt))
    for _ in range(DRAWS):
        name = _choose(rng, CLASSES)
        count = int(rng.integers(2, 4, endpoint=True))
        plural = f"{name}es" if name.endswith("s") else f"{name}s"
        excluded = [_item(name, count + 1)]
        prompt = f"{NUMBERS[count]} {plural}"
        drawn.append(_record("counting", [_item(name, count)], prompt, exclude=excluded))
    for _ in range(DRAWS):
        name = _choose(rng, THINGS)
        color = _choose(rng, COLORS)
        drawn.append(_record("colors", [_item(name, color=color)], f"{_with_article(color)} {name}"))
    for _ in range(DRAWS):
        a, b = _choose_two(rng, CLASSES)
        word = _choose(rng, RELATIONS)
        prompt = f"{_with_article(a)} {word} {_with_article(b)}"
        drawn.append(_record("position", [_item(b), _item(a, position=[word, 0])], prompt))
    for _ in range(DRAWS):
        a, b = _choose_two(rng, THINGS)
        first, second = _choose_two(rng, COLORS)
        items = [_item(a, color=first), _item(b, color=second)]
        drawn.append(
            _record("color_attr", items, f"{_with_article(first)} {a} and {_with_article(second)} {b}")
        )
    return tuple(dict.fromkeys(json.dumps(record) for record in drawn))


def _record(tag: str, include: list[dict[str, Any]], prompt: str, **more: Any) -> dict[str, Any]:
    return {"tag": tag, "include": include, **more, "prompt": f"a photo of {prompt}"}


def _item(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"class": name, "count": count, **more}


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _choose(rng: np.random.Generator, names: Sequence[str]) -> str:
    return names[rng.choice(len(names))]


def _choose_two(rng: np.random.Generator, names: Sequence[str]) -> tuple[str, str]:
    first, second = rng.choice(len(names), size=2, replace=False)
    return names[first], names[second]
