"""Folders of pictures as GenEval has them: NNNNN/metadata.jsonl and NNNNN/samples/NNNNN.png."""

import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tauflow import files
from tauflow.geneval.rules import GenEvalError, Record

RECORD = "metadata.jsonl"
SAMPLES = "samples"


@dataclass(frozen=True)
class Prompted:
    """The pictures that were made for a prompt."""

    number: str  # name of its folder
    record: dict[str, Any]
    pictures: list[str]  # paths in the folder of all prompts


def write_folder(
    pictures: Iterable[Sequence[np.ndarray]], records: Iterable[Record], folder: str | Path
) -> None:
    """Write the pictures of each record, arrays uint8 (H, W, 3), to a folder that GenEval can score.

    Both are taken one by one, so a generator may draw the pictures of the next record when it is asked.
    """
    for number, (group, record) in enumerate(zip(pictures, records, strict=True)):
        place = Path(folder) / f"{number:05d}"
        files.write(place / RECORD, json.dumps(record) + "\n")
        for sample, picture in enumerate(group):
            file = io.BytesIO()
            Image.fromarray(np.asarray(picture)).save(file, format="png")
            with files.atomic(place / SAMPLES / f"{sample:05d}.png") as target:
                target.write(file.getvalue())


def read_folder(folder: str | Path) -> list[Prompted]:
    """Return the prompts of such a folder with their records and pictures, in order."""
    try:
        numbers = sorted(each for each in Path(folder).iterdir() if each.name.isdigit() and each.is_dir())
    except OSError as error:
        raise GenEvalError(
            f"cannot read the folder {folder} ({error.strerror}); name one with pictures"
        ) from None
    found = [Prompted(each.name, _record(each / RECORD), _pictures(each)) for each in numbers]
    if not any(each.pictures for each in found):
        raise GenEvalError(
            f"{folder} has no pictures NNNNN/{SAMPLES}/*.png; tauflow.geneval.write_folder writes them"
        )
    empty = [each.number for each in found if not each.pictures]
    if empty:
        raise GenEvalError(
            f"{len(empty)} prompts of {folder} have no pictures in {SAMPLES}, the first is {empty[0]}; make "
            "them, or remove its folder"
        )
    return found


def _record(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise GenEvalError(
            f"cannot read {path} ({error}); it must hold the record of the pictures next to it"
        ) from None


def _pictures(folder: Path) -> list[str]:
    there = (folder / SAMPLES).iterdir() if (folder / SAMPLES).is_dir() else ()
    names = sorted(each.name for each in there if re.fullmatch(r"\d+\.png", each.name))
    return [f"{folder.name}/{SAMPLES}/{name}" for name in names]
