"""The captions of scenes: a small grammar, GenEval records, and captions as conditions.

    caption   = group | group "and" group | one relation one
    group     = ("a" | "two" | "three" | "four") [color] shape
    relation  = "left of" | "right of" | "above" | "below"

The two groups of a caption have different shapes. The reader also accepts other spellings with a single
meaning: "2 circles", "an", "to the left of".
"""

import difflib
import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.tasks.scenes.rules import RELATIONS

SHAPES = ("circle", "square", "triangle", "cross")
PLURALS = ("circles", "squares", "triangles", "crosses")
COLORS = ("red", "green", "blue", "yellow")
NUMBERS = ("a", "two", "three", "four")
SYNONYMS = {"an": "a", "one": "a", "1": "a", "2": "two", "3": "three", "4": "four", "under": "below"}
PAD = "<pad>"
# the numbers of these words are tokens of the shipped models: don't change their order
WORDS = (PAD, *NUMBERS, "and", "left", "right", "of", "above", "below", *COLORS, *SHAPES, *PLURALS)
CAPTION_WORDS = 8  # of the longest caption: a red circle left of a blue square
MAX_OBJECTS = 5  # of a scene
FREE = "free"  # the tag of captions that GenEval's tasks don't have
GROUP = rf"(?:({'|'.join(NUMBERS)}) )?(?:({'|'.join(COLORS)}) )?({'|'.join((*PLURALS, *SHAPES))})"
GRAMMAR = re.compile(rf"{GROUP}(?: (and|{'|'.join(RELATIONS)}) {GROUP})?")


@dataclass(frozen=True)
class Group:
    """Objects of one shape; `color` is None if the caption doesn't mention one."""

    shape: int
    count: int = 1
    color: int | None = None

    def __str__(self) -> str:
        color = "" if self.color is None else f"{COLORS[self.color]} "
        names = SHAPES if self.count == 1 else PLURALS
        return f"{NUMBERS[self.count - 1]} {color}{names[self.shape]}"


@dataclass(frozen=True)
class Caption:
    """What a scene shows: one or two groups, and the relation of the first to the second."""

    groups: tuple[Group, ...]
    relation: int | None = None

    def __str__(self) -> str:
        between = " and " if self.relation is None else f" {RELATIONS[self.relation]} "
        return between.join(str(group) for group in self.groups)

    @property
    def objects(self) -> int:
        """Return the number of objects of the scene."""
        return sum(group.count for group in self.groups)

    @property
    def tag(self) -> str:
        """Return the GenEval task that the caption belongs to, or `free`."""
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
        """Return the caption as a GenEval record; the group that a relation refers to comes first."""
        groups = self.groups if self.relation is None else self.groups[::-1]
        include: list[dict[str, Any]] = []
        exclude = []
        for group in groups:
            item: dict[str, Any] = {"class": SHAPES[group.shape], "count": group.count}
            if group.color is not None:
                item["color"] = COLORS[group.color]
            include.append(item)
            if group.count > 1:
                exclude.append({"class": SHAPES[group.shape], "count": group.count + 1})
        if self.relation is not None:
            include[1]["position"] = [RELATIONS[self.relation], 0]
        record: dict[str, Any] = {"tag": self.tag, "include": include}
        if exclude:
            record["exclude"] = exclude
        return record | {"prompt": str(self)}


def encode_caption(caption: Caption) -> list[int]:
    """Return the words of a caption by number, padded to CAPTION_WORDS."""
    words = str(caption).split()
    return [WORDS.index(word) for word in words] + [WORDS.index(PAD)] * (CAPTION_WORDS - len(words))


def decode_caption(condition: Tensor) -> Caption | None:
    """Return the caption of a condition (C,); None for a dropped one."""
    return None if DROPPED in condition.tolist() else read_caption(caption_text(condition))


def caption_text(condition: Tensor) -> str:
    """Return the words of a condition (C,), without padding and dropped ones."""
    return " ".join(WORDS[number] for number in condition.tolist() if number > 0)


def read_caption(text: str) -> Caption:
    """Read a caption of the grammar; the error for others says what to write."""
    plain = re.sub(r"\b(to|on) the (left|right) of\b", r"\2 of", " ".join(text.lower().split()))
    words = [SYNONYMS.get(word, word) for word in re.sub(r"[,.;:!?]", " ", plain).split()]
    for word in words:
        if word not in WORDS[1:]:
            near = difflib.get_close_matches(word, WORDS[1:], n=1)
            hint = f"did you mean {near[0]}?" if near else f"known words: {', '.join(WORDS[1:])}"
            raise SettingsError(f"unknown word {word!r} in the caption; {hint}")
    match = GRAMMAR.fullmatch(" ".join(words))
    if match is None:
        raise _unreadable(text, f"write one group of objects, or two joined by and, {', '.join(RELATIONS)}")
    groups = [_make_group(text, *match.groups()[:3])]
    joint = match[4]
    if joint is None:
        return Caption(tuple(groups))
    groups.append(_make_group(text, *match.groups()[4:]))
    caption = Caption(tuple(groups), None if joint == "and" else RELATIONS.index(joint))
    rules = {
        "the two groups must have different shapes": groups[0].shape != groups[1].shape,
        f"{joint} must be between single objects": caption.relation is None or caption.objects == 2,
        f"a scene has at most {MAX_OBJECTS} objects": caption.objects <= MAX_OBJECTS,
    }
    for rule, holds in rules.items():
        if not holds:
            raise _unreadable(text, rule)
    return caption


def _make_group(text: str, number: str | None, color: str | None, name: str) -> Group:
    """Return a group from its words; a single object needs no article."""
    count = 1 if number is None else NUMBERS.index(number) + 1
    names = SHAPES if count == 1 else PLURALS
    if name not in names:
        shape = (SHAPES if name in SHAPES else PLURALS).index(name)
        example = f"a {SHAPES[shape]}, or {', '.join(NUMBERS[1:])} {PLURALS[shape]}"
        raise _unreadable(text, f"say how many {PLURALS[shape]}: {example}")
    return Group(names.index(name), count, None if color is None else COLORS.index(color))


def _unreadable(text: str, rule: str) -> SettingsError:
    return SettingsError(f"cannot read the caption {text!r}: {rule}; try 'two red circles and a blue square'")
