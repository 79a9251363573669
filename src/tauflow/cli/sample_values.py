"""Values of the flags of `python sample.py`, read from words."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from tauflow.errors import SettingsError


def given(word: str) -> str:
    """Return a value as it is; refuse an empty one, which would be taken for none."""
    if not word.strip():
        raise argparse.ArgumentTypeError("the value is empty; give one, or drop the flag")
    return word


def given_path(word: str) -> Path:
    return Path(given(word))


def text(word: str) -> str:
    """Return text; refuse bytes that are no UTF-8, which Python keeps as surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{word!a} is no valid Unicode; write it as UTF-8") from None
    return word


def numbers(words: Sequence[str], flag: str) -> list[int]:
    """Return the whole numbers of a flag from its words, in which commas may stand."""
    try:
        found = [int(part) for part in _parts(words)]
    except ValueError:
        found = []
    if not found:
        raise SettingsError(f"{flag}: {' '.join(words)!r} is not a list of whole numbers such as 8 16 32")
    return found


def weights(words: Sequence[str]) -> list[float]:
    """Return guidance weights from words, in which commas may stand."""
    try:
        found = [float(part) for part in _parts(words)]
    except ValueError:
        found = []
    if words and not (found and all(map(math.isfinite, found))):
        raise SettingsError(
            f"--guidance takes weights such as 1 2 4, not {' '.join(words)!r}; the checkpoint to guide away "
            "from is --unconditional PATH"
        )
    return found


def _parts(words: Sequence[str]) -> list[str]:
    return [part for word in words for part in word.split(",") if part.strip()]
