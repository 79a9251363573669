"""Scenes judged by their captions, once for all metrics.

Shapes: B samples, D codes of a canvas, C words of a caption.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.geneval import Detection, evaluate
from tauflow.tasks.scenes.canvas import Found, detect
from tauflow.tasks.scenes.grammar import COLOURS, FREE, SHAPES, TASKS, WORDS, Caption, caption_from
from tauflow.tasks.scenes.towers import Towers

TAGS = (*TASKS, FREE)


@dataclass(frozen=True)
class Judged:
    """What is known of samples, a number of each (B,); NaN where a sample was asked for no caption."""

    caption: Tensor  # its words as one number; DROPPED for none
    tag: Tensor  # number in TAGS
    geneval: Tensor  # 1 if GenEval's rules are satisfied
    strict: Tensor  # 1 if also nothing is broken, and nothing there that was not asked for
    broken: Tensor  # codes that belong to no object
    extra: Tensor  # objects that were not asked for
    towers: Tensor  # cosine of scene and caption


class Judge:
    """Samples judged by their captions, once for all metrics."""

    def __init__(self, size: int, towers: Towers | None = None):
        self.size = size
        self.towers = towers
        self._last: tuple[Tensor, Tensor, Judged] | None = None

    def __call__(self, tokens: Tensor, condition: Tensor | None) -> Judged:
        """Return what is known of samples (B, D), by the captions (B, C) that they were asked for."""
        if condition is None:
            raise SettingsError("scenes are judged by their captions; give those the samples were asked for")
        last = self._last
        if last is None or not (torch.equal(last[0], tokens) and torch.equal(last[1], condition)):
            last = tokens.clone(), condition.clone(), self._judged(tokens.cpu(), condition.cpu())
            self._last = last
        return last[2]

    def _judged(self, tokens: Tensor, condition: Tensor) -> Judged:
        scenes, broken = detect(tokens.reshape(-1, self.size, self.size))
        rows = [
            (_number(words), *_verdict(found, left, _asked(tuple(words))), math.nan)
            for found, left, words in zip(scenes, broken.tolist(), condition.tolist(), strict=True)
        ]
        numbers = torch.tensor(rows, dtype=torch.float64).reshape(-1, len(fields(Judged)))
        known = numbers[:, 0] != DROPPED
        if self.towers is not None and known.any():
            numbers[known, -1] = self.towers.cosines(tokens[known], condition[known]).double()
        return Judged(*numbers.unbind(1))


def _number(words: Sequence[int]) -> int:
    """Return the words of a caption as one number, DROPPED for a dropped caption."""
    if DROPPED in words:
        return DROPPED
    return sum(word * len(WORDS) ** place for place, word in enumerate(words))


@lru_cache(maxsize=4096)
def _asked(words: tuple[int, ...]) -> tuple[Caption, dict[str, Any]] | None:
    """Return a caption and its record."""
    caption = caption_from(torch.tensor(words))
    return None if caption is None else (caption, caption.record)


def _verdict(
    found: Sequence[Found], broken: int, asked: tuple[Caption, dict[str, Any]] | None
) -> tuple[float, ...]:
    """Return the tag, both verdicts, the broken codes and the additional objects of a sample."""
    if asked is None:
        return math.nan, math.nan, math.nan, broken, math.nan
    caption, record = asked
    correct = evaluate(objects_of(found), record).correct
    strict = correct and broken == 0 and len(found) == caption.objects
    return TAGS.index(caption.tag), correct, strict, broken, extra_objects(found, caption)


def objects_of(found: Sequence[Found]) -> dict[str, list[Detection]]:
    """Return what the detector found in the form that the rules of GenEval judge."""
    objects: dict[str, list[Detection]] = {}
    for each in found:
        objects.setdefault(SHAPES[each.shape], []).append(Detection(1.0, each.box, COLOURS[each.colour]))
    return objects


def extra_objects(found: Sequence[Found], caption: Caption) -> int:
    """Return how many objects there are besides those that a caption asks for."""
    wanted = 0
    for group in caption.groups:
        alike = [each for each in found if each.shape == group.shape and group.colour in (None, each.colour)]
        wanted += min(group.count, len(alike))
    return len(found) - wanted
