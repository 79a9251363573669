"""Scenes judged by their captions, once for all metrics.

Shapes: B samples, D codes of a canvas, C words of a caption.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.tasks.metrics import SampleMetric, joined
from tauflow.tasks.scenes.captions import COLORS, FREE, SHAPES, TASKS, WORDS, Caption, caption_from
from tauflow.tasks.scenes.data import PROMPTS, Found, anchors, detect
from tauflow.tasks.scenes.rules import Detection, evaluate
from tauflow.tasks.scenes.towers import Towers, shipped

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
        objects.setdefault(SHAPES[each.shape], []).append(Detection(1.0, each.box, COLORS[each.color]))
    return objects


def extra_objects(found: Sequence[Found], caption: Caption) -> int:
    """Return how many objects there are besides those that a caption asks for."""
    wanted = 0
    for group in caption.groups:
        alike = [each for each in found if each.shape == group.shape and group.color in (None, each.color)]
        wanted += min(group.count, len(alike))
    return len(found) - wanted


# How good scenes are: GenEval's rules, a strict score, broken codes, additional objects, diversity.
#
# Samples are judged once for all metrics. Standard errors take prompts as independent, not samples.
#
# Shapes: B samples of an update, N in all, D codes of a canvas, C words of a caption.


NOTHING = torch.tensor(math.nan)
Verdict = Literal["geneval", "strict"]
Number = Literal["broken", "extra", "towers"]


def scene_metrics(size: int) -> dict[str, SampleMetric]:
    """Return fresh metrics of scenes; that of the towers where they know canvases of this size."""
    judge = Judge(size, shipped(size))
    metrics: dict[str, SampleMetric] = {
        "broken_codes": SceneMean(judge, "broken"),
        "extra_objects": SceneMean(judge, "extra"),
        "diversity": Diversity(judge),
        "diversity_anchor_bits": AnchorEntropy(judge),
    }
    verdicts: tuple[Verdict, ...] = ("geneval", "strict")
    for verdict in verdicts:
        metrics[verdict] = SceneScore(judge, verdict)
        metrics |= {f"{verdict}_{tag}": SceneScore(judge, verdict, tag) for tag in TASKS}
    if judge.towers is not None:
        metrics["caption_score_towers"] = TowerScore(judge, "towers")
    return metrics


# Errors


def samples_of_a_prompt(count: int) -> int:
    """Return how many of `count` samples each prompt of mini-GenEval has at most."""
    return -(-count // sum(PROMPTS.values()))


def error_of(slopes: Tensor, captions: Tensor, each: int) -> Tensor:
    """Return the standard error of a mean to which samples add slopes (N,), with independent prompts.

    A prompt is a caption that was drawn and has `each` samples. A caption may have been drawn several times,
    and captions (N,) do not say by which prompt; but samples of one caption are alike, so it is the mean over
    all ways to share them among its prompts.
    """
    _, caption, counts = captions.unique(return_inverse=True, return_counts=True)
    prompts = (-(-counts // each)).sum()
    if prompts < 2:
        return NOTHING
    zeros = torch.zeros(len(counts), dtype=slopes.dtype)
    squares, sums = zeros.index_add(0, caption, slopes.square()), zeros.index_add(0, caption, slopes)
    together = (counts.clamp(max=each) - 1) / (counts - 1).clamp(min=1)  # share of pairs that are of a prompt
    spread = (squares + together * (sums.square() - squares)).sum().clamp(min=0)
    return (spread * prompts / (prompts - 1)).sqrt() / len(slopes)


# Metrics


class SceneMetric(SampleMetric):
    """Abstract: keeps the caption, the tag and a number of each sample that has one."""

    logarithmic = False
    rows: list[Tensor]

    def __init__(self, judge: Judge, of: Verdict | Number, **kwargs: Any):
        super().__init__(**kwargs)
        self.judge = judge
        self.of = of
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor, condition: Tensor | None = None) -> None:
        judged = self.judge(tokens, condition)
        rows = torch.stack([judged.caption, judged.tag, getattr(judged, self.of)], dim=1)
        self.rows.append(rows[~rows[:, 2].isnan()].to(tokens.device))

    def known(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the captions, tags and numbers (N,) of all samples."""
        captions, tags, values = joined(self.rows).cpu().unbind(1)
        return captions, tags, values


class SceneMean(SceneMetric):
    """Mean over samples of a number that each of them has, with an error over prompts."""

    def compute(self) -> tuple[Tensor, Tensor]:
        captions, _, values = self.known()
        mean = values.mean()
        return mean, error_of(values - mean, captions, samples_of_a_prompt(len(values)))


class TowerScore(SceneMean):
    """Mean cosine of scene and caption by two small towers trained on scenes: in-house, not CLIP."""

    higher_is_better = True


class SceneScore(SceneMetric):
    """Share of the samples of a task that show their caption; over all tasks, the mean of their shares."""

    higher_is_better = True

    def __init__(self, judge: Judge, of: Verdict, tag: str | None = None, **kwargs: Any):
        super().__init__(judge, of, **kwargs)
        self.tag = tag

    def compute(self) -> tuple[Tensor, Tensor]:
        captions, tags, values = self.known()
        each = samples_of_a_prompt(len(values))
        shares, errors = [], []
        for tag in tags.unique() if self.tag is None else [TAGS.index(self.tag)]:
            own = tags == tag
            shares.append(values[own].mean())  # NaN if nobody asked for this task
            errors.append(error_of(values[own] - shares[-1], captions[own], each))
        if not shares:
            return NOTHING, NOTHING
        return torch.stack(shares).mean(), torch.stack(errors).norm() / len(errors)

    def units(self) -> list[float]:
        """Return a number for each prompt whose mean is the strict score of all tasks; none of other scores.

        Prompts come in turn, so samples are of all of them equally often, or of the first ones once.
        """
        captions, tags, values = self.known()
        prompts = min(len(values), sum(PROMPTS.values()))
        if self.tag is not None or self.of != "strict" or not prompts or len(values) % prompts:
            return []
        if len(captions.unique()) < 2:
            return []
        _, tag, counts = tags.unique(return_inverse=True, return_counts=True)
        weighted = values * len(values) / (len(counts) * counts[tag])
        return [round(number, 6) for number in weighted.view(-1, prompts).mean(0).tolist()]


class Diversity(SampleMetric):
    """Share of the objects' codes that differ between two correct samples of a caption: low after a collapse.

    Correct is what passes the strict score: broken codes and additional objects are no diversity.
    """

    higher_is_better = None  # near that of real scenes
    logarithmic = False
    scenes: list[Tensor]

    def __init__(self, judge: Judge, **kwargs: Any):
        super().__init__(**kwargs)
        self.judge = judge
        self.add_state("scenes", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor, condition: Tensor | None = None) -> None:
        judged = self.judge(tokens, condition)
        correct = judged.strict == 1
        rows = torch.cat([judged.caption[correct, None].long(), tokens.cpu()[correct]], dim=1)
        self.scenes.append(rows.to(tokens.device))

    def compute(self) -> tuple[Tensor, Tensor]:
        captions, scenes = joined(self.scenes).cpu().tensor_split([1], dim=1)
        captions = captions.flatten()
        means, slopes, kept = [], [], []
        for caption in captions.unique():
            alike = (captions == caption).nonzero().flatten()
            if len(alike) < 2:
                continue
            pairs = self.pairs(scenes[alike]).double().fill_diagonal_(0)
            own = pairs.sum(1) / (len(alike) - 1)  # the mean of a sample with all others
            means.append(own)
            slopes.append(2 * own - own.mean())  # of first order
            kept.append(alike)
        if not kept:
            return NOTHING, NOTHING
        mean = torch.cat(means).mean()
        each = max(2, samples_of_a_prompt(len(captions)))  # a pair is the least that says something
        error = error_of(torch.cat(slopes) - mean, captions[torch.cat(kept)], each)
        return self.read(mean, error)

    def pairs(self, scenes: Tensor) -> Tensor:
        """Return a number (n, n) for each pair of scenes (n, D) of one caption."""
        return (scenes[:, None] != scenes).sum(2) / (2 * (scenes[0] != 0).sum())

    def read(self, mean: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the mean over pairs says, and its standard error."""
        return mean, error


class AnchorEntropy(Diversity):
    """Entropy in bits of where an object of a caption stands, from pairs of correct samples.

    It is the collision entropy, -log2 of the probability that an object of one sample stands where one of the
    same shape stands in another: without bias at few samples, up to the logarithm.
    """

    def pairs(self, scenes: Tensor) -> Tensor:
        places = anchors(scenes.reshape(-1, self.judge.size, self.judge.size)).double()  # (n, shapes, places)
        counts = places[0].sum(1, keepdim=True)  # (shapes, 1): the same in every correct scene
        shares = (places / counts.clamp(min=1)).flatten(1)
        return shares @ shares.T / (counts > 0).sum()

    def read(self, mean: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        if mean == 0:  # no two objects at one place: too few pairs to say
            return NOTHING, NOTHING
        return -mean.log2(), error / (mean * math.log(2))
