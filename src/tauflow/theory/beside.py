"""Small JSON files next to a checkpoint: learned order, counts, influence.

A digest of the checkpoint ties them to its weights, a digest of their own content finds damage.
"""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tauflow.errors import CheckpointError, SamplingError
from tauflow.files import digest, write
from tauflow.untrusted import read_json

Learned = TypeVar("Learned")

FAULTS = (ValueError, TypeError, KeyError, OverflowError, SamplingError, CheckpointError)


def save(path: Path, checkpoint: str | Path, content: dict[str, Any]) -> Path:
    """Write what was learned from a checkpoint, with both digests."""
    digests = {"checkpoint": digest(checkpoint), "sha256": _content_digest(content)}
    write(path, json.dumps(digests | content) + "\n")
    return path


def _content_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read(
    path: Path, checkpoint: str | Path, what: str, largest: int, parse: Callable[[Any], Learned]
) -> Learned | None:
    """Return what `parse` makes of the file, or None; warn if the file can't be used.

    `largest` bounds its size in bytes; `parse` raises one of FAULTS for content that doesn't fit.
    """
    if not path.exists():
        return None
    try:
        saved = read_json(path, largest)
        if saved.pop("checkpoint") != digest(checkpoint):
            fault = f"was learned from other weights than {checkpoint} has now"
        elif saved.pop("sha256", None) not in (
            None,
            _content_digest(saved),
        ):  # 0.2 wrote none
            fault = "is damaged: its sha256 is wrong"
        else:
            return parse(saved)
    except FAULTS:
        fault = f"doesn't contain {what} and the digest of their checkpoint"
    warnings.warn(f"{path} {fault}, so it isn't used. Learn it again.", stacklevel=3)
    return None
