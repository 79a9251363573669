"""The captions of scenes: a small grammar, what a caption asks for, and captions as conditions.

    caption   = group | group "and" group | one relation one
    group     = ("a" | "two" | "three" | "four") [color] shape
    relation  = "left of" | "right of" | "above" | "below"

The two groups of a caption are of different shapes. What a caption asks for is a record in GenEval's format.
What is written otherwise and can mean one thing only is read too: "2 circles", "an", "to the left of".
"""

import difflib
import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError

SHAPES = ("circle", "square", "triangle", "cross")
PLURALS = ("circles", "squares", "triangles", "crosses")
COLORS = ("red", "green", "blue", "yellow")
NUMBERS = ("a", "two", "three", "four")
RELATIONS = ("left of", "right of", "above", "below")
OTHERWISE = {"an": "a", "one": "a", "1": "a", "2": "two", "3": "three", "4": "four", "under": "below"}
PAD = "<pad>"
WORDS = (PAD, *NUMBERS, "and", "left", "right", "of", "above", "below", *COLORS, *SHAPES, *PLURALS)
CAPTION_WORDS = 8  # of the longest caption: a red circle left of a blue square
MAX_OBJECTS = 5  # of a scene
TASKS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")  # GenEval's names
FREE = "free"  # the tag of a caption that is of none of these kinds


@dataclass(frozen=True)
class Group:
    """Objects of one shape: `color` is None where the caption says nothing of it."""

    shape: int
    count: int = 1
    color: int | None = None

    def __str__(self) -> str:
        color = "" if self.color is None else f"{COLORS[self.color]} "
        names = SHAPES if self.count == 1 else PLURALS
        return f"{NUMBERS[self.count - 1]} {color}{names[self.shape]}"


@dataclass(frozen=True)
class Caption:
    """What a scene shows: one or two groups, and where the first is seen from the second."""

    groups: tuple[Group, ...]
    relation: int | None = None

    def __str__(self) -> str:
        between = " and " if self.relation is None else f" {RELATIONS[self.relation]} "
        return between.join(str(group) for group in self.groups)

    @property
    def objects(self) -> int:
        """Return how many objects the scene has."""
        return sum(group.count for group in self.groups)

    @property
    def tag(self) -> str:
        """Return the task of GenEval that the caption belongs to, or `free`."""
        colored = [group.color is not None for group in self.groups]
        single = all(group.count == 1 for group in self.groups)
        if self.relation is not None:
            return FREE if any(colored) else "position"
        if len(self.groups) == 1:
            if single:
                return "colors" if colored[0] else "single_object"
            return FREE if colored[0] else "counting"
        if not single or any(colored) != all(colored):
            return FREE
        if all(colored) and self.groups[0].color == self.groups[1].color:
            return FREE
        return "color_attr" if all(colored) else "two_object"

    @property
    def record(self) -> dict[str, Any]:
        """Return what is asked for in GenEval's format; the group that a relation refers to comes first."""
        groups = self.groups if self.relation is None else self.groups[::-1]
        include: list[dict[str, Any]] = []
        for group in groups:
            asked: dict[str, Any] = {"class": SHAPES[group.shape], "count": group.count}
            if group.color is not None:
                asked["color"] = COLORS[group.color]
            include.append(asked)
        if self.relation is not None:
            include[1]["position"] = [RELATIONS[self.relation], 0]
        record: dict[str, Any] = {"tag": self.tag, "include": include}
        many = [group for group in groups if group.count > 1]
        if many:
            record["exclude"] = [{"class": SHAPES[each.shape], "count": each.count + 1} for each in many]
        return record | {"prompt": str(self)}


def condition_of(caption: Caption) -> list[int]:
    """Return the words of a caption by number, padded to CAPTION_WORDS."""
    words = str(caption).split()
    return [WORDS.index(word) for word in words] + [WORDS.index(PAD)] * (CAPTION_WORDS - len(words))


def caption_from(condition: Tensor) -> Caption | None:
    """Return the caption that a condition (C,) says; None for a dropped one."""
    return None if DROPPED in condition.tolist() else parsed(words_of(condition))


def words_of(condition: Tensor) -> str:
    """Return the words of a condition (C,) as they are, without those that pad it or were dropped."""
    return " ".join(WORDS[number] for number in condition.tolist() if number > 0)


def parsed(text: str) -> Caption:
    """Read a caption; refuse what the grammar does not have, with what it has."""
    rest = _words(text)
    first = _group(rest, text)
    if not rest:
        return _checked(Caption((first,)), text)
    relation = None
    if rest[0] == "and":
        rest.pop(0)
    else:
        names = [name.split() for name in RELATIONS]
        relation = next((n for n, name in enumerate(names) if rest[: len(name)] == name), None)
        if relation is None:
            raise _bad(text, f"after {str(first)!r} must come and, or {', '.join(RELATIONS)}")
        del rest[: len(names[relation])]
    second = _group(rest, text)
    if rest:
        raise _bad(text, f"nothing may come after {str(second)!r}")
    return _checked(Caption((first, second), relation), text)


def _words(text: str) -> list[str]:
    """Return the words of a text, those of the grammar; refuse others, and too many."""
    plain = re.sub(r"\b(to|on) the (left|right) of\b", r"\2 of", " ".join(text.lower().split()))
    words = [OTHERWISE.get(word, word) for word in re.sub(r"[,.;:!?]", " ", plain).split()]
    for word in words:
        if word not in WORDS[1:]:
            near = difflib.get_close_matches(word, WORDS[1:], n=1)
            hint = f"did you mean {near[0]}?" if near else f"known words: {', '.join(WORDS[1:])}"
            raise SettingsError(f"unknown word {word!r} in the caption; {hint}")
    if len(words) > CAPTION_WORDS:
        raise SettingsError(
            f"the caption has {len(words)} words, at most {CAPTION_WORDS} are read; drop "
            f"{len(words) - CAPTION_WORDS}"
        )
    return words


def _group(rest: list[str], text: str) -> Group:
    """Read a group and drop its words from the rest; a single object needs no article."""
    number = NUMBERS.index(rest.pop(0)) if rest and rest[0] in NUMBERS else None
    color = COLORS.index(rest.pop(0)) if rest and rest[0] in COLORS else None
    name = rest.pop(0) if rest else ""
    if name in SHAPES and not number:
        return Group(SHAPES.index(name), 1, color)
    if name in PLURALS and number:
        return Group(PLURALS.index(name), number + 1, color)
    if name in PLURALS:
        many = f"{NUMBERS[0]} {SHAPES[PLURALS.index(name)]}, or {', '.join(NUMBERS[1:])} {name}"
        raise _bad(text, f"say how many {name}: {many}")
    begin = NUMBERS[0] if number is None else NUMBERS[number]
    names = ", ".join(PLURALS if number else SHAPES)
    raise _bad(text, f"objects are {begin}, perhaps a color, and one of {names}")


def _checked(caption: Caption, text: str) -> Caption:
    shapes = [group.shape for group in caption.groups]
    if len(set(shapes)) < len(shapes):
        raise _bad(text, "the two groups must have different shapes")
    if caption.relation is not None and caption.objects > 2:
        raise _bad(text, f"{RELATIONS[caption.relation]} must stand between single objects")
    if caption.objects > MAX_OBJECTS:
        raise _bad(text, f"a scene has at most {MAX_OBJECTS} objects")
    return caption


def _bad(text: str, rule: str) -> SettingsError:
    return SettingsError(f"cannot read the caption {text!r}: {rule}; try 'two red circles and a blue square'")
