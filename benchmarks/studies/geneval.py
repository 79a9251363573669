"""GenEval on a folder of pictures: what each of them shows of its prompt."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from benchmarks.studies.geneval_results import Result, read, report, write
from tauflow import files
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import progress_bar
from tauflow.evaluation.results import lock_output
from tauflow.tasks.images.sources import read_image
from tauflow.tasks.scenes.clip import CLIP, ClipScore, check_distinct_labels
from tauflow.tasks.scenes.rules import detected_colors, evaluate

FILES = ("results.jsonl", "results.md")


class Models(NamedTuple):
    """What pictures are looked at with; None where there is nothing to do."""

    detector: Mask2Former | None
    colors: ClipColors | None
    clip: ClipScore | None


@dataclass(frozen=True)
class GenEval:
    """Do pictures show what their prompts ask for? GenEval's rules, by task, on the objects that Mask2Former
    finds in a folder of pictures and the colors that CLIP gives them; and the CLIP score. It has flags of
    its own: python -m benchmarks geneval --help."""

    images: Path
    detector: str | None = MASK2FORMER  # None: only the CLIP score
    colors: str = CLIP
    clip: str | None = None  # model of the CLIP score; None: none

    def run(self, out: Path, progress: bool = False, command: str = "") -> str:
        """Look at the pictures that `out` has no result of; return a report on all of them in Markdown.

        What is found is kept after each prompt. A picture that has changed since is scored again.
        """
        if self.detector is None and self.clip is None:
            raise SettingsError(
                "without a detector there is only the CLIP score: name its model, --clip NAME"
            )
        prompts = read_folder(self.images)
        with lock_output(out):
            if not (out / FILES[0]).exists():
                files.check_no_overwrite(out, FILES)
            results = self._scored(prompts, out / FILES[0], progress)
            text = report(results, command)
            files.write(out / FILES[1], text)
        return text

    def _scored(self, prompts: Sequence[PromptImages], path: Path, progress: bool) -> list[Result]:
        before = read(path)
        self._refuse_other_models(list(before.values()), path)
        results: dict[str, Result] = {}
        for prompted in prompts:
            for name in prompted.images:
                fresh = Result.fresh(self.images, name, prompted.record)
                old = before.get(name, fresh)
                results[name] = old if old.same_picture(fresh) else fresh
        models = self._models(prompts, list(results.values()))
        with progress_bar(progress) as bar:
            task = bar.add_task("geneval", total=len(results)) if bar else None
            for prompted in prompts:
                found = {name: self._found(results[name], prompted, models) for name in prompted.images}
                changed = any(found[name] is not results[name] for name in found)
                results |= found
                if changed or prompted is prompts[-1]:  # then without pictures that are gone
                    write(path, list(results.values()))
                if bar and task is not None:
                    bar.update(task, advance=len(found), refresh=True)
        return list(results.values())

    def _to_judge(self, result: Result) -> bool:
        return self.detector is not None and result.correct is None

    def _to_score(self, result: Result) -> bool:
        return self.clip is not None and self.clip not in result.clip_scores

    def _found(self, result: Result, prompted: PromptImages, models: Models) -> Result:
        """Return the result of a picture with all that is asked for; itself if it lacks nothing."""
        if not self._to_judge(result) and not self._to_score(result):
            return result
        path = self.images / result.filename
        picture = Image.fromarray(read_image(path, str(path))).convert("RGB")
        if models.detector and self._to_judge(result):
            objects = confident_objects(models.detector(picture), result.tag)
            colors = partial(models.colors, picture) if models.colors else detected_colors
            verdict = evaluate(objects, prompted.record, colors)
            boxes = {name: [[*each.box, each.score] for each in found] for name, found in objects.items()}
            result = replace(
                result,
                **verdict._asdict(),
                details=json.dumps(boxes),
                detector=self.detector,
                colors=self.colors,
            )
        if models.clip and self._to_score(result):
            score = models.clip(torch.from_numpy(np.array(picture))[None], [result.prompt]).item()
            result = replace(result, clip_scores={**result.clip_scores, str(self.clip): score})
        return result

    def _models(self, prompts: Sequence[PromptImages], results: Sequence[Result]) -> Models:
        """Load what there is work for: a model that is missing is refused before any of it is done."""
        scoring = any(self._to_score(result) for result in results)
        judging = any(self._to_judge(result) for result in results)
        detector = Mask2Former(self.detector) if self.detector and judging else None
        colored = any("color" in item for prompted in prompts for item in prompted.record["include"])
        return Models(
            detector,
            ClipColors(self.colors) if judging and colored else None,
            ClipScore(self.clip) if self.clip and scoring else None,
        )

    def _refuse_other_models(self, results: Sequence[Result], path: Path) -> None:
        """Refuse to judge some pictures with other models than others, and CLIP models of one tag."""
        clips = [name for each in results for name in each.clip_scores]
        check_distinct_labels([*clips, self.clip] if self.clip else clips)
        for result in results:
            there = result.detector, result.colors
            if self.detector and result.detector and there != (self.detector, self.colors):
                raise SettingsError(
                    f"{path} is of the detector {there[0]} and colors by {there[1]}; name the same ones, or "
                    "choose another --out"
                )
