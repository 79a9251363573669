"""What is known of each picture of a folder that GenEval scores: results.jsonl, and the report on it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tauflow import files
from tauflow.errors import TauflowError
from tauflow.evaluation.results import Measured
from tauflow.evaluation.tables import number_text
from tauflow.tasks.scenes.clip import model_label
from tauflow.tasks.scenes.rules import (
    Record,
    Score,
    ScoredImage,
    records,
    score_by_prompt,
    sorted_tags,
    summarize,
)

TITLE = "GenEval protocol, transformers detector"
ALL = "all pictures"
FOREIGN = "These are not GenEval's {} prompts: published numbers are of others."


@dataclass(frozen=True)
class Result:
    """A picture: which one, and what was found out about it; the names are those of GenEval's own file."""

    filename: str  # in the folder of pictures
    tag: str
    prompt: str
    metadata: str  # its record
    sha256: str  # of the picture
    correct: bool | None = None  # None: it was not judged yet
    reason: str | None = None
    details: str | None = None  # boxes by class, each with its score
    detector: str | None = None  # the models that it was judged with
    colors: str | None = None
    clip_scores: dict[str, float] = field(default_factory=dict)  # by the name of the model

    @classmethod
    def fresh(cls, images: Path, name: str, record: Record) -> "Result":
        """Return what is known of a picture in a folder before it is looked at."""
        return cls(name, record["tag"], record["prompt"], json.dumps(record), files.digest(images / name))

    def same_picture(self, other: "Result") -> bool:
        """Return whether both are of one picture that was made for one record."""
        return (self.sha256, self.metadata) == (other.sha256, other.metadata)


def read(path: Path) -> dict[str, Result]:
    """Return the results of a file by the names of their pictures; none if there is no file."""
    if not path.exists():
        return {}
    found = {}
    try:
        for line in path.read_text().splitlines():
            values = json.loads(line)
            found[values["filename"]] = Result(**values)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TauflowError(f"{path} is damaged ({error}); remove it to start again") from None
    return found


def write(path: Path, results: Sequence[Result]) -> None:
    files.write(path, "".join(json.dumps(asdict(each)) + "\n" for each in results))


def report(results: Sequence[Result], command: str) -> str:
    """Return the scores of all pictures in Markdown: what all of them have been scored by."""
    judged = [
        ScoredImage(each.tag, each.metadata, each.correct) for each in results if each.correct is not None
    ]
    complete = len(judged) == len(results)
    clips = [name for name in results[0].clip_scores if all(name in each.clip_scores for each in results)]
    parts = [f"# geneval\n\n{TITLE if complete else 'CLIP score'}\n"]
    parts += [f"```bash\n{command}\n```\n"] if command else []
    if complete:
        used = dict.fromkeys((each.detector, each.colors) for each in results)
        parts += [f"Detector {detector}, colors by {colors}.\n" for detector, colors in used]
    known = [json.dumps(record) for record in records()]
    if {each.metadata for each in results} != set(known):
        parts.append(FOREIGN.format(len(known)) + "\n")
    parts.append(_table(results, judged if complete else [], clips))
    return "\n".join(parts)


def _table(results: Sequence[Result], judged: Sequence[ScoredImage], clips: Sequence[str]) -> str:
    tags = sorted_tags(ScoredImage(each.tag, each.metadata, False) for each in results)
    rows = {tag: _row([each for each in results if each.tag == tag], clips) for tag in tags}
    rows[ALL] = _row(results, clips)
    if judged:
        summary = summarize(judged)
        overall = {"overall (mean of the tasks)": summary.overall, ALL: summary.images}
        last = {"prompts with a correct picture": summary.prompts}
        for name, score in (summary.tasks | overall | last).items():
            rows[name] = rows.get(name, {}) | {"correct": _text(score)}
    columns = [*(["correct"] if judged else []), *map(_tag, clips), "pictures", "prompts"]
    lines = [f"| task | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(row.get(column, '') for column in columns)} |")
    return "\n".join(lines) + "\n"


def _row(results: Sequence[Result], clips: Sequence[str]) -> dict[str, str]:
    """Return how many pictures and prompts a row is of, and CLIP scores, at least 0 as in torchmetrics."""
    row = {"pictures": f"{len(results)}", "prompts": f"{len({each.metadata for each in results})}"}
    for name in clips:
        score = score_by_prompt((each.metadata, each.clip_scores[name]) for each in results)
        row[_tag(name)] = _text(replace(score, value=max(score.value, 0.0)))
    return row


def _tag(clip: str) -> str:
    return f"clip_score_{model_label(clip)}"


def _text(score: Score) -> str:
    return number_text(Measured(score.value, score.error))
