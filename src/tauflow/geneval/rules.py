"""The rules of GenEval: which detected objects satisfy a record, and scores of many pictures.

A record says what its prompt asks for: `{"tag", "include": [{"class", "count", "color"?, "position"?}],
"exclude"?: [{"class", "count"}], "prompt"}`, where a position is `[relation, number of an earlier item]`.
Boxes are (x1, y1, x2, y2) with y downwards. The rules do not ask where detections come from.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tauflow.errors import TauflowError

Box = tuple[float, float, float, float]
Record = Mapping[str, Any]
RELATIONS = ("left of", "right of", "above", "below")
MARGIN = 0.1  # share of the two boxes' sides by which their centres must differ at least
TASKS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")


class GenEvalError(TauflowError, ValueError):
    """A record, a picture or a model that cannot be scored."""


@dataclass(frozen=True)
class Detection:
    """An object that a detector sees; its colour and mask (H, W) only if the detector gives them."""

    score: float
    box: Box
    colour: str | None = None
    mask: np.ndarray | None = field(default=None, repr=False, compare=False)


Objects = Mapping[str, Sequence[Detection]]
Colours = Callable[[str, Sequence[Detection]], Sequence[str]]  # class, its detections -> a colour each


class Verdict(NamedTuple):
    """Whether a picture shows what its record asks for, and what it lacks."""

    correct: bool
    reason: str = ""


def relation(a: Box, b: Box) -> set[str]:
    """Return where box a lies relative to box b: none, one or two of `RELATIONS`."""
    x, y = _centre(a, 0) - _centre(b, 0), _centre(a, 1) - _centre(b, 1)
    right, down = (_beyond(offset, _side(a, axis) + _side(b, axis)) for axis, offset in enumerate((x, y)))
    if max(abs(right), abs(down)) < 1e-3:
        return set()
    half = math.hypot(x, y) / 2
    holds = (right < -half, right > half, down < -half, down > half)
    return {word for word, true in zip(RELATIONS, holds, strict=True) if true}


def _centre(box: Box, axis: int) -> float:
    return (box[axis] + box[axis + 2]) / 2


def _side(box: Box, axis: int) -> float:
    return abs(box[axis + 2] - box[axis])


def _beyond(offset: float, sides: float) -> float:
    return math.copysign(max(abs(offset) - MARGIN * sides, 0.0), offset)


def own_colours(name: str, found: Sequence[Detection]) -> list[str]:
    """Return the colours that the detector itself gave to its detections."""
    colours = [each.colour for each in found if each.colour is not None]
    if len(colours) < len(found):
        raise GenEvalError(
            f"the record asks for the colour of a {name}, which the detections do not have; pass `colours`"
        )
    return colours


def evaluate(objects: Objects, record: Record, colours: Colours = own_colours) -> Verdict:
    """Return whether detected objects are what a record asks for.

    Each item needs its count of objects, of which the most certain ones are looked at: all of them must
    have its colour, and then its position relative to all of an earlier item. Additional objects are free
    unless the record excludes them.
    """
    ranked = {name: sorted(found, key=lambda each: -each.score) for name, found in objects.items()}
    groups: list[Sequence[Detection] | None] = []
    reasons = []
    for item in record.get("include", ()):
        found = ranked.get(item["class"], [])[: item["count"]]
        wrong = _shortcoming(item, found, groups, colours)
        groups.append(None if wrong else found)
        reasons += [wrong] if wrong else []
    for item in record.get("exclude", ()):
        count = len(ranked.get(item["class"], ()))
        if count >= item["count"]:
            reasons.append(f"expected fewer than {item['count']} {item['class']}, found {count}")
    return Verdict(not reasons, "; ".join(reasons))


def _shortcoming(
    item: Mapping[str, Any],
    found: Sequence[Detection],
    groups: Sequence[Sequence[Detection] | None],
    colours: Colours,
) -> str:
    """Return what the objects found for an item lack, or nothing."""
    name, count, colour = item["class"], item["count"], item.get("color")
    if len(found) < count:
        return f"expected {count} {name}, found {len(found)}"
    if colour is not None:
        seen = Counter(colours(name, found))
        if seen[colour] < count:
            others = ", ".join(f"{number} {each}" for each, number in seen.items())
            return f"expected {count} {colour} {name}, found {others}"
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


@dataclass(frozen=True)
class Score:
    """A mean over pictures or prompts and its standard error, which is nan for a single prompt."""

    value: float
    error: float
    count: int  # of the pictures or prompts


@dataclass(frozen=True)
class Summary:
    """Scores by task and over all of them; standard errors take prompts, not pictures, as independent."""

    tasks: dict[str, Score]
    overall: Score  # mean of the tasks, each with the same weight
    images: Score  # share of the pictures that are correct
    prompts: Score  # share of the prompts with at least one correct picture


class Scored(NamedTuple):
    """A judged picture: the tag of its task, which prompt it is of, whether it is correct."""

    tag: str
    prompt: int | str
    correct: bool


def summarise(pictures: Iterable[Scored]) -> Summary:
    """Return the scores of judged pictures; tasks in GenEval's order, then others in theirs."""
    pictures = list(pictures)
    tasks = {tag: _share([each for each in pictures if each.tag == tag]) for tag in ordered(pictures)}
    values = [score.value for score in tasks.values()]
    error = math.hypot(*(score.error for score in tasks.values())) / len(tasks)
    answered = {(each.tag, each.prompt): False for each in pictures}
    for each in pictures:
        answered[each.tag, each.prompt] |= each.correct
    return Summary(
        tasks,
        Score(sum(values) / len(values), error, len(pictures)),
        _share(pictures),
        by_prompt((prompt, float(correct)) for prompt, correct in answered.items()),
    )


def ordered(pictures: Iterable[Scored]) -> list[str]:
    """Return the tags of judged pictures, those of GenEval first; refuse none at all."""
    seen = dict.fromkeys(each.tag for each in pictures)
    if not seen:
        raise GenEvalError("there are no judged pictures to summarise; judge some first")
    return [tag for tag in TASKS if tag in seen] + [tag for tag in seen if tag not in TASKS]


def _share(pictures: Iterable[Scored]) -> Score:
    return by_prompt(((each.tag, each.prompt), float(each.correct)) for each in pictures)


def by_prompt(values: Iterable[tuple[Hashable, float]]) -> Score:
    """Return the mean of the values of pictures with the error of a ratio over independent prompts."""
    groups: dict[Hashable, list[float]] = {}
    for prompt, value in values:
        groups.setdefault(prompt, []).append(value)
    count = sum(len(group) for group in groups.values())
    mean = sum(sum(group) for group in groups.values()) / count
    if len(groups) < 2:
        return Score(mean, math.nan, count)
    spread = sum(sum(value - mean for value in group) ** 2 for group in groups.values())
    return Score(mean, math.sqrt(spread * len(groups) / (len(groups) - 1)) / count, count)
