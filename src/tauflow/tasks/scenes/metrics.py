"""Metrics of scenes: GenEval's rules, a strict score, broken codes, additional objects, and diversity.

Samples are scored by their captions once for all metrics. Standard errors treat prompts as independent, not
samples.

Shapes: B samples of an update, N in all, D codes of a canvas, C words of a caption.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.tasks.metrics import SampleMetric, joined
from tauflow.tasks.scenes.captions import COLORS, FREE, SHAPES, WORDS, Caption, decode_caption
from tauflow.tasks.scenes.data import PROMPTS, SceneObject, detect, shape_places
from tauflow.tasks.scenes.rules import TASKS, Detection, evaluate
from tauflow.tasks.scenes.towers import Towers, shipped_towers

TAGS = (*TASKS, FREE)
NAN = torch.tensor(math.nan)
Field = Literal["geneval", "strict", "broken", "extra", "towers"]


def scene_metrics(size: int) -> dict[str, SampleMetric]:
    """Return new metrics of scenes; the towers are one of them if they know canvases of this size."""
    scorer = SceneScorer(size, shipped_towers(size))
    metrics: dict[str, SampleMetric] = {
        "broken_codes": SceneMean(scorer, "broken"),
        "extra_objects": SceneMean(scorer, "extra"),
        "diversity": Diversity(scorer),
        "diversity_anchor_bits": PlaceEntropy(scorer),
    }
    fields: tuple[Field, ...] = ("geneval", "strict")
    for field in fields:
        metrics[field] = SceneScore(scorer, field)
        metrics |= {f"{field}_{tag}": SceneScore(scorer, field, tag) for tag in TASKS}
    if scorer.towers is not None:
        metrics["caption_score_towers"] = TowerScore(scorer, "towers")
    return metrics


# Scores of samples


class SceneScores(NamedTuple):
    """Scores of samples (B,) each; NaN if a sample has no caption."""

    caption: Tensor  # its words as one number; DROPPED for none
    tag: Tensor  # number in TAGS
    geneval: Tensor  # 1 if GenEval's rules are satisfied
    strict: Tensor  # 1 if there also are no broken codes and no additional objects
    broken: Tensor  # codes that belong to no object
    extra: Tensor  # additional objects
    towers: Tensor  # cosine of scene and caption


class SceneScorer:
    """Scores samples by their captions; the newest scores are remembered for all metrics."""

    def __init__(self, size: int, towers: Towers | None = None):
        self.size = size
        self.towers = towers
        self._last: tuple[Tensor, Tensor, SceneScores] | None = None

    def __call__(self, tokens: Tensor, condition: Tensor) -> SceneScores:
        """Return the scores of samples (B, D) by their captions (B, C)."""
        last = self._last
        if last is None or not (torch.equal(last[0], tokens) and torch.equal(last[1], condition)):
            last = tokens.clone(), condition.clone(), self._score(tokens.cpu(), condition.cpu())
            self._last = last
        return last[2]

    def _score(self, tokens: Tensor, condition: Tensor) -> SceneScores:
        scenes, broken = detect(tokens.reshape(-1, self.size, self.size))
        rows = []
        for objects, left, words in zip(scenes, broken.tolist(), condition.tolist(), strict=True):
            rows.append((_caption_number(words), *_score_scene(objects, left, tuple(words)), math.nan))
        numbers = torch.tensor(rows, dtype=torch.float64).reshape(-1, len(SceneScores._fields))
        known = numbers[:, 0] != DROPPED
        if self.towers is not None and known.any():
            numbers[known, -1] = self.towers.cosines(tokens[known], condition[known]).double()
        return SceneScores(*numbers.unbind(1))


def _caption_number(words: Sequence[int]) -> int:
    """Return the words of a caption as one number, DROPPED for a dropped caption."""
    if DROPPED in words:
        return DROPPED
    return sum(word * len(WORDS) ** place for place, word in enumerate(words))


@lru_cache(maxsize=4096)
def _caption_and_record(words: tuple[int, ...]) -> tuple[Caption, dict[str, Any]] | None:
    caption = decode_caption(torch.tensor(words))
    return None if caption is None else (caption, caption.record)


def _score_scene(objects: Sequence[SceneObject], broken: int, words: tuple[int, ...]) -> tuple[float, ...]:
    """Return the tag, both scores, the broken codes and the additional objects of a sample."""
    found = _caption_and_record(words)
    if found is None:
        return math.nan, math.nan, math.nan, broken, math.nan
    caption, record = found
    correct = evaluate(to_detections(objects), record).correct
    strict = correct and broken == 0 and len(objects) == caption.objects
    wanted = 0
    for group in caption.groups:
        alike = [each for each in objects if each.shape == group.shape and group.color in (None, each.color)]
        wanted += min(group.count, len(alike))
    return TAGS.index(caption.tag), correct, strict, broken, len(objects) - wanted


def to_detections(objects: Sequence[SceneObject]) -> dict[str, list[Detection]]:
    """Return the objects of a scene as detections for GenEval's rules."""
    detections: dict[str, list[Detection]] = {}
    for each in objects:
        detection = Detection(1.0, each.box, COLORS[each.color])
        detections.setdefault(SHAPES[each.shape], []).append(detection)
    return detections


# Standard errors


def samples_per_prompt(count: int) -> int:
    """Return how many of `count` samples a prompt of mini-GenEval has at most."""
    return -(-count // sum(PROMPTS.values()))


def error_over_prompts(slopes: Tensor, captions: Tensor, each: int) -> Tensor:
    """Return the standard error of a mean to which samples add slopes (N,), with independent prompts.

    A prompt is a drawn caption with `each` samples. A caption may have been drawn several times, and captions
    (N,) don't tell for which prompt. But samples of one caption are alike, so the error is the mean over all
    ways to share them among its prompts.
    """
    _, caption, counts = captions.unique(return_inverse=True, return_counts=True)
    prompts = (-(-counts // each)).sum()
    if prompts < 2:
        return NAN
    zeros = torch.zeros(len(counts), dtype=slopes.dtype)
    squares = zeros.index_add(0, caption, slopes.square())
    sums = zeros.index_add(0, caption, slopes)
    together = (counts.clamp(max=each) - 1) / (counts - 1).clamp(min=1)  # share of pairs within a prompt
    spread = (squares + together * (sums.square() - squares)).sum().clamp(min=0)
    return (spread * prompts / (prompts - 1)).sqrt() / len(slopes)


# Metrics


class SceneMetric(SampleMetric):
    """Abstract: keeps the caption, the tag and one score of each sample that has one."""

    logarithmic = False
    rows: list[Tensor]

    def __init__(self, scorer: SceneScorer, field: Field, **kwargs: Any):
        super().__init__(**kwargs)
        self.scorer = scorer
        self.field = field
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor, condition: Tensor) -> None:
        scores = self.scorer(tokens, condition)
        rows = torch.stack([scores.caption, scores.tag, getattr(scores, self.field)], dim=1)
        self.rows.append(rows[~rows[:, 2].isnan()].to(tokens.device))

    def collected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the captions, tags and scores (N,) of all samples."""
        captions, tags, values = joined(self.rows).cpu().unbind(1)
        return captions, tags, values


class SceneMean(SceneMetric):
    """Mean of a score over samples, with an error over prompts."""

    def compute(self) -> tuple[Tensor, Tensor]:
        captions, _, values = self.collected()
        mean = values.mean()
        return mean, error_over_prompts(values - mean, captions, samples_per_prompt(len(values)))


class TowerScore(SceneMean):
    """Mean cosine of scene and caption by two small towers trained on scenes: in-house, not CLIP."""

    higher_is_better = True


class SceneScore(SceneMetric):
    """Share of the samples of a task that show their caption; over all tasks, the mean of their shares."""

    higher_is_better = True

    def __init__(self, scorer: SceneScorer, field: Field, tag: str | None = None, **kwargs: Any):
        super().__init__(scorer, field, **kwargs)
        self.tag = tag

    def compute(self) -> tuple[Tensor, Tensor]:
        captions, tags, values = self.collected()
        each = samples_per_prompt(len(values))
        shares = []
        errors = []
        for tag in tags.unique() if self.tag is None else [TAGS.index(self.tag)]:
            own = tags == tag
            shares.append(values[own].mean())  # NaN without samples of this task
            errors.append(error_over_prompts(values[own] - shares[-1], captions[own], each))
        if not shares:
            return NAN, NAN
        return torch.stack(shares).mean(), torch.stack(errors).norm() / len(errors)

    def units(self) -> list[float]:
        """Return a number per prompt whose mean is the strict score of all tasks; empty for other scores.

        Prompts come in turn, so samples are of all of them equally often, or of the first ones once.
        """
        captions, tags, values = self.collected()
        prompts = min(len(values), sum(PROMPTS.values()))
        if self.tag is not None or self.field != "strict" or not prompts or len(values) % prompts:
            return []
        if len(captions.unique()) < 2:
            return []
        _, tag, counts = tags.unique(return_inverse=True, return_counts=True)
        weighted = values * len(values) / (len(counts) * counts[tag])
        return [round(number, 6) for number in weighted.view(-1, prompts).mean(0).tolist()]


class Diversity(SampleMetric):
    """Share of the objects' codes that differ between two correct samples of a caption: low after a collapse.

    Correct samples pass the strict score: broken codes and additional objects don't count as diversity.
    """

    higher_is_better = None  # near that of real scenes
    logarithmic = False
    scenes: list[Tensor]

    def __init__(self, scorer: SceneScorer, **kwargs: Any):
        super().__init__(**kwargs)
        self.scorer = scorer
        self.add_state("scenes", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor, condition: Tensor) -> None:
        scores = self.scorer(tokens, condition)
        correct = scores.strict == 1
        rows = torch.cat([scores.caption[correct, None].long(), tokens.cpu()[correct]], dim=1)
        self.scenes.append(rows.to(tokens.device))

    def compute(self) -> tuple[Tensor, Tensor]:
        captions, scenes = joined(self.scenes).cpu().tensor_split([1], dim=1)
        captions = captions.flatten()
        means = []
        slopes = []
        kept = []
        for caption in captions.unique():
            alike = (captions == caption).nonzero().flatten()
            if len(alike) < 2:
                continue
            pairs = self.compare(scenes[alike]).double().fill_diagonal_(0)
            own = pairs.sum(1) / (len(alike) - 1)  # the mean of a sample with all others
            means.append(own)
            slopes.append(2 * own - own.mean())  # of first order
            kept.append(alike)
        if not kept:
            return NAN, NAN
        mean = torch.cat(means).mean()
        each = max(2, samples_per_prompt(len(captions)))  # a caption needs a pair
        error = error_over_prompts(torch.cat(slopes) - mean, captions[torch.cat(kept)], each)
        return self.transform(mean, error)

    def compare(self, scenes: Tensor) -> Tensor:
        """Return a number (n, n) per pair of scenes (n, D) of one caption."""
        return (scenes[:, None] != scenes).sum(2) / (2 * (scenes[0] != 0).sum())

    def transform(self, mean: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the metric and its standard error from the mean over pairs and its error."""
        return mean, error


class PlaceEntropy(Diversity):
    """Entropy in bits of the place of an object of a caption, from pairs of correct samples.

    It is the collision entropy, -log2 of the probability that an object of one sample has the same place as
    one of the same shape in another sample: unbiased for few samples, up to the logarithm.
    """

    def compare(self, scenes: Tensor) -> Tensor:
        size = self.scorer.size
        places = shape_places(scenes.reshape(-1, size, size)).double()  # (n, shapes, places)
        counts = places[0].sum(1, keepdim=True)  # (shapes, 1): the same in every correct scene
        shares = (places / counts.clamp(min=1)).flatten(1)
        return shares @ shares.T / (counts > 0).sum()

    def transform(self, mean: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        if mean == 0:  # no two objects at one place: too few pairs
            return NAN, NAN
        return -mean.log2(), error / (mean * math.log(2))
