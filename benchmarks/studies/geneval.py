"""GenEval on a folder of images: results.jsonl has a line per image, results.md the scores of all of them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from benchmarks.geneval import (
    MASK2FORMER,
    ClipColors,
    Mask2Former,
    PromptImages,
    confident_objects,
    read_folder,
)
from tauflow import files
from tauflow.errors import SettingsError, TauflowError
from tauflow.evaluation.evaluate import progress_bar
from tauflow.evaluation.results import Measured, lock_output
from tauflow.evaluation.tables import number_text
from tauflow.tasks.images.sources import read_image
from tauflow.tasks.scenes.clip import CLIP, ClipScore, check_distinct_labels, model_label
from tauflow.tasks.scenes.rules import (
    Record,
    Score,
    ScoredImage,
    detected_colors,
    evaluate,
    records,
    score_by_prompt,
    sorted_tags,
    summarize,
)

FILES = ("results.jsonl", "results.md")
TITLE = "GenEval protocol, transformers detector"
ALL = "all images"


class Models(NamedTuple):
    """The models that there is work for."""

    detector: Mask2Former | None
    colors: ClipColors | None
    clip: ClipScore | None


@dataclass(frozen=True)
class Result:
    """The results of an image; the names are those of GenEval's own file."""

    filename: str  # in the folder of images
    tag: str
    prompt: str
    metadata: str  # its record
    sha256: str  # of the image
    correct: bool | None = None  # None: it wasn't scored yet
    reason: str | None = None
    details: str | None = None  # boxes by class, each with its score
    detector: str | None = None  # the models that scored it
    colors: str | None = None
    clip_scores: dict[str, float] = field(default_factory=dict)  # by the name of the model

    @classmethod
    def new(cls, images: Path, name: str, record: Record) -> "Result":
        """Return the result of an image that wasn't scored yet."""
        return cls(name, record["tag"], record["prompt"], json.dumps(record), files.digest(images / name))

    def is_of_same_image(self, other: "Result") -> bool:
        """Return whether both are of one image of one record."""
        return (self.sha256, self.metadata) == (other.sha256, other.metadata)


@dataclass(frozen=True)
class GenEval:
    """Do images show what their prompts ask for? GenEval's rules, by task, on the objects that Mask2Former
    finds in a folder of images and the colors that CLIP gives them; and the CLIP score. It has its own flags:
    python -m benchmarks geneval --help."""

    images: Path
    detector: str | None = MASK2FORMER  # None: only the CLIP score
    colors: str = CLIP
    clip: str | None = None  # model of the CLIP score; None: no CLIP score

    def run(self, out: Path, progress: bool = False, command: str = "") -> str:
        """Score the images without a result in `out`; return a report on all of them in Markdown.

        Results are saved after each prompt. An image that changed is scored again.
        """
        if self.detector is None and self.clip is None:
            raise SettingsError(
                "without a detector there is only the CLIP score: choose its model with --clip NAME"
            )
        prompts = read_folder(self.images)
        with lock_output(out):
            if not (out / FILES[0]).exists():
                files.check_no_overwrite(out, FILES)
            results = self._score_all(prompts, out / FILES[0], progress)
            text = report(results, command)
            files.write(out / FILES[1], text)
        return text

    def _score_all(self, prompts: Sequence[PromptImages], path: Path, progress: bool) -> list[Result]:
        before = read_results(path)
        self._check_same_models(list(before.values()), path)
        results: dict[str, Result] = {}
        for prompt in prompts:
            for name in prompt.images:
                new = Result.new(self.images, name, prompt.record)
                old = before.get(name, new)
                results[name] = old if old.is_of_same_image(new) else new
        models = self._load_models(list(results.values()))
        with progress_bar(progress) as bar:
            line = bar.add_task("geneval", total=len(results))
            for prompt in prompts:
                found = {name: self._score(results[name], models) for name in prompt.images}
                changed = any(found[name] is not results[name] for name in found)
                results |= found
                if changed or prompt is prompts[-1]:  # the last time without images that are gone
                    lines = [json.dumps(asdict(each)) + "\n" for each in results.values()]
                    files.write(path, "".join(lines))
                bar.update(line, advance=len(found), refresh=True)
        return list(results.values())

    def _needs_detector(self, result: Result) -> bool:
        return self.detector is not None and result.correct is None

    def _needs_clip(self, result: Result) -> bool:
        return self.clip is not None and self.clip not in result.clip_scores

    def _score(self, result: Result, models: Models) -> Result:
        """Return the completed result of an image; the same object if it was complete."""
        if not self._needs_detector(result) and not self._needs_clip(result):
            return result
        path = self.images / result.filename
        image = Image.fromarray(read_image(path, str(path))).convert("RGB")
        if models.detector and self._needs_detector(result):
            objects = confident_objects(models.detector(image), result.tag)
            colors = partial(models.colors, image) if models.colors else detected_colors
            verdict = evaluate(objects, json.loads(result.metadata), colors)
            boxes = {name: [[*each.box, each.score] for each in found] for name, found in objects.items()}
            result = replace(
                result,
                correct=verdict.correct,
                reason=verdict.reason,
                details=json.dumps(boxes),
                detector=self.detector,
                colors=self.colors,
            )
        if models.clip and self._needs_clip(result):
            score = models.clip(torch.from_numpy(np.array(image))[None], [result.prompt]).item()
            result = replace(result, clip_scores={**result.clip_scores, str(self.clip): score})
        return result

    def _load_models(self, results: Sequence[Result]) -> Models:
        """Load the models that there is work for, so that a missing one raises an error before any work."""
        new = [each for each in results if self._needs_detector(each)]
        has_colors = any("color" in item for each in new for item in json.loads(each.metadata)["include"])
        scoring = any(self._needs_clip(each) for each in results)
        return Models(
            Mask2Former(self.detector) if self.detector and new else None,
            ClipColors(self.colors) if has_colors else None,
            ClipScore(self.clip) if self.clip and scoring else None,
        )

    def _check_same_models(self, results: Sequence[Result], path: Path) -> None:
        """Raise an error if images were scored with other models, or two CLIP models have one tag."""
        clips = [name for each in results for name in each.clip_scores]
        check_distinct_labels([*clips, self.clip] if self.clip else clips)
        for result in results:
            used = (result.detector, result.colors)
            if self.detector and result.detector and used != (self.detector, self.colors):
                raise SettingsError(
                    f"{path} is of the detector {used[0]} and colors by {used[1]}; choose the same ones, or "
                    "another --out"
                )


def read_results(path: Path) -> dict[str, Result]:
    """Return the results of a file by the names of their images; empty without a file."""
    if not path.exists():
        return {}
    try:
        results = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise TauflowError(f"{path} is damaged ({error}); remove it to start again") from None
    return {each.filename: each for each in results}


# The report


def report(results: Sequence[Result], command: str) -> str:
    """Return the scores of all images in Markdown: those that all of them have."""
    images = [
        ScoredImage(each.tag, each.metadata, each.correct) for each in results if each.correct is not None
    ]
    complete = len(images) == len(results)
    clips = [name for name in results[0].clip_scores if all(name in each.clip_scores for each in results)]
    parts = [f"# geneval\n\n{TITLE if complete else 'CLIP score'}\n"]
    if command:
        parts.append(f"```bash\n{command}\n```\n")
    if complete:
        used = dict.fromkeys((each.detector, each.colors) for each in results)
        parts += [f"Detector {detector}, colors by {colors}.\n" for detector, colors in used]
    known = {json.dumps(record) for record in records()}
    if {each.metadata for each in results} != known:
        parts.append(f"These aren't GenEval's {len(known)} prompts: don't compare with published numbers.\n")
    parts.append(_table(results, images if complete else [], clips))
    return "\n".join(parts)


def _table(results: Sequence[Result], images: Sequence[ScoredImage], clips: Sequence[str]) -> str:
    tags = sorted_tags(ScoredImage(each.tag, each.metadata, False) for each in results)
    rows = {tag: _row([each for each in results if each.tag == tag], clips) for tag in tags}
    rows[ALL] = _row(results, clips)
    columns = [*map(_clip_column, clips), "images", "prompts"]
    if images:
        columns.insert(0, "correct")
        scores = summarize(images)
        shares = scores.tasks | {
            "overall (mean of the tasks)": scores.overall,
            ALL: scores.images,
            "prompts with a correct image": scores.prompts,
        }
        for name, score in shares.items():
            rows[name] = rows.get(name, {}) | {"correct": _text(score)}
    lines = [f"| task | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(row.get(column, '') for column in columns)} |")
    return "\n".join(lines) + "\n"


def _row(results: Sequence[Result], clips: Sequence[str]) -> dict[str, str]:
    """Return the numbers of images and prompts of a row, and CLIP scores, at least 0 as in torchmetrics."""
    row = {"images": f"{len(results)}", "prompts": f"{len({each.metadata for each in results})}"}
    for name in clips:
        score = score_by_prompt((each.metadata, each.clip_scores[name]) for each in results)
        row[_clip_column(name)] = _text(replace(score, value=max(score.value, 0.0)))
    return row


def _clip_column(clip: str) -> str:
    return f"clip_score_{model_label(clip)}"


def _text(score: Score) -> str:
    return number_text(Measured(score.value, score.error))
