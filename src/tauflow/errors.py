"""Errors that a user can fix; the command line prints their text, without a traceback."""

import sys
from collections.abc import Iterable
from pathlib import Path


class TauflowError(Exception):
    """Base of all errors that you can fix: the message says what's wrong and what to do.

    Catch it around calls with settings or files from users. The command line prints its message without a
    traceback. Control characters that a message quotes from a file are replaced.

    Args:
        message: what's wrong, and what to do.

    Examples:
        >>> import tauflow
        >>> try:
        ...     tauflow.sampler_from("tr_cei")
        ... except tauflow.TauflowError as error:
        ...     print(error)
        unknown sampler 'tr_cei'...
    """

    def __init__(self, message: str):
        super().__init__(printable(message))


class SettingsError(TauflowError, ValueError):
    """Settings that do not go together."""


class NonFiniteLoss(TauflowError):
    """Training met a loss or gradient that is infinite or not a number."""


class CheckpointError(TauflowError):
    """A checkpoint is missing, damaged, foreign, not trusted or does not fit."""


class WriteError(TauflowError):
    """A file could not be written; `errno` says why, as that of an OSError."""

    def __init__(self, message: str, errno: int | None = None):
        super().__init__(message)
        self.errno = errno


class FolderInUse(TauflowError):
    """Another process writes to the folder."""


class SamplingError(TauflowError, ValueError):
    """A request that a sampler cannot carry out."""


class BadLogits(SamplingError):
    """The denoiser returned something that is not a posterior; `t` is when, if known."""

    def __init__(self, message: str, t: float | None = None):
        super().__init__(message)
        self.t = t


def program(command: str) -> str:
    """Return how a command, such as train, is started here, for messages that name one.

    `python train.py` if train.py or sample.py of the repository runs, else `tauflow train`.
    """
    started = Path(sys.argv[0])
    in_repository = started.name in ("train.py", "sample.py") and started.parent.name != "cli"
    return f"python {command}.py" if in_repository else f"tauflow {command}"


def printable(text: str) -> str:
    """Return text of an untrusted file without control characters but for the ends of lines."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return shorten(lines[0] if lines else type(error).__name__, 400)


def shorten(text: str, most: int = 120) -> str:
    """Return a text on one line, with its end cut off if it's long."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]} ..."


def join_names(names: Iterable[str], most: int = 5) -> str:
    """Return some names from a file as a list, each of a readable length."""
    names = [shorten(name) for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
