"""All samples of a grid as data: a file per cell, and samples.jsonl.

A cell's file is written before the cell is in results.json, so a resumed grid has the samples of all cells.
Shapes: N samples, D coordinates, C columns of a condition.
"""

import hashlib
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tauflow import files
from tauflow.errors import WriteError
from tauflow.evaluation.images import shows_only_images
from tauflow.evaluation.results import AllSamples, Cell, Factors, Results, TabulatesSamples, plain
from tauflow.evaluation.tables import cell_name
from tauflow.tasks import Task

FOLDER = "samples"
LINES = "samples.jsonl"
TOGETHER = 64  # samples that become text or images together


def file_name(factors: Factors) -> str:
    """Return the name of a cell's file, without its suffix: tr_cie(grid=tau)_NFE_8."""
    name = cell_name(factors)
    safe = re.sub(r"[^\w.=()+-]+", "_", name)[:100]
    if safe == name.replace(", ", "_").replace(" ", "_"):
        return safe
    return f"{safe}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _path_of(folder: Path, factors: Factors) -> Path:
    return folder / FOLDER / f"{file_name(factors)}.npz"


def write_cell(folder: Path, cell: Cell, task: Task) -> None:
    """Write all samples of a cell: NAME.npz, and for a task of images also NAME/00000.png and so on."""
    assert cell.samples is not None
    path = _path_of(folder, cell.factors)
    arrays: dict[str, Any] = {"tokens": cell.samples.tokens}
    if cell.samples.condition is not None:
        arrays["condition"] = cell.samples.condition
    if shows_only_images(task):
        parts = [task.show(*part) for part in _parts(cell.samples)]
        arrays["images"] = np.concatenate(parts)
        _write_images(path.with_suffix(""), arrays["images"])
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    files.write(path, content.getvalue())


def _write_images(folder: Path, images: np.ndarray) -> None:
    """Write images (N, H, W, 3) into a new folder, which appears when it is complete."""
    from PIL import Image

    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(unfinished / f"{number:05}.png")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except OSError as error:
        raise WriteError(f"can't write {folder} ({error.strerror or error})", error.errno) from error


def read_cell(folder: Path, factors: Factors) -> AllSamples | None:
    """Return all samples of a cell; None if an earlier version measured it, which didn't keep them."""
    path = _path_of(folder, factors)
    if not path.exists():
        return None
    with np.load(path) as arrays:
        return AllSamples(arrays["tokens"], arrays.get("condition"))


def write_lines(folder: Path, results: Results, task: Task) -> list[str]:
    """Write samples.jsonl, a line per sample of every cell; return the names of what holds all samples.

    A line has the factors of the cell, the number of the sample, what it was asked to be, and its text, or
    its tokens where the task has no texts. Images and tables have other files.
    """
    cells = [cell for cell in results.cells if cell.records and "nfe" in cell.factors]
    missing = [cell_name(cell.factors) for cell in cells if not _path_of(folder, cell.factors).exists()]
    if missing:
        results.note(f"an earlier version measured {'; '.join(missing)} and kept the first samples only")
    if shows_only_images(task) or isinstance(task, TabulatesSamples):
        return [FOLDER]
    with files.atomic(folder / LINES) as file:
        for cell in cells:  # one after the other: all together may not fit into memory
            samples = read_cell(folder, cell.factors)
            for line in _lines(cell, samples, task) if samples is not None else ():
                file.write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())
    return [LINES, FOLDER]


def _lines(cell: Cell, samples: AllSamples, task: Task) -> Iterator[dict]:
    number = 0
    for tokens, condition in _parts(samples):
        texts = task.texts(tokens) if hasattr(task, "texts") else None
        for row, sample in enumerate(tokens.tolist()):
            asked = {} if condition is None else {"condition": task.caption(condition[row])}
            what = {"tokens": sample} if texts is None else {"text": texts[row]}
            yield plain(cell.factors) | {"index": number} | asked | what
            number += 1


def _parts(samples: AllSamples) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield tokens (n, D) and conditions (n, C), a few samples at a time."""
    tokens, condition = (
        None if each is None else torch.from_numpy(each).long()
        for each in (samples.tokens, samples.condition)
    )
    assert tokens is not None
    for first in range(0, len(tokens), TOGETHER):
        part = slice(first, first + TOGETHER)
        yield tokens[part], None if condition is None else condition[part]
