"""Errors that a user can fix; the command line prints their text, without a traceback."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class TauflowError(Exception):
    """Says what is wrong and what to do about it.

    What it quotes of a file is printable: no file writes control characters to a terminal.
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
    """The denoiser returned something that is not a posterior; `t` (B,) is when, if known."""

    def __init__(self, message: str, t: "Tensor | None" = None):
        super().__init__(message)
        self.t = t


def printable(text: str) -> str:
    """Return text of an untrusted file without control characters but for the ends of lines."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
