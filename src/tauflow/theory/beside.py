"""Small JSON files beside a checkpoint, tied to its weights by a digest: learned order, counts, influence."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tauflow.errors import SamplingError
from tauflow.files import digest, write

Learned = TypeVar("Learned")

FAULTS = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError, SamplingError)


def save(path: Path, checkpoint: str | Path, content: dict[str, Any]) -> Path:
    """Write what was learned from a checkpoint, with its digest."""
    write(path, json.dumps({"checkpoint": digest(checkpoint), **content}) + "\n")
    return path


def read(
    path: Path, checkpoint: str | Path, what: str, largest: int, parse: Callable[[Any], Learned]
) -> Learned | None:
    """Return what `parse` makes of the file, or None; warn of one that cannot be used.

    `largest` bounds its size in bytes; `parse` raises one of FAULTS for content that does not fit.
    """
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > largest:
            raise ValueError
        saved = json.loads(path.read_text())
        same = saved["checkpoint"] == digest(checkpoint)
        found = parse(saved) if same else None
    except FAULTS:
        fault = f"does not hold {what} with the sum of their checkpoint"
    else:
        if same:
            return found
        fault = f"was learned from other weights than {checkpoint} holds now"
    warnings.warn(f"{path} {fault} and is not used; learn it again", stacklevel=3)
    return None
