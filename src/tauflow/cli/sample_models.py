"""The model of `python sample.py`: a checkpoint, or a model that others have trained."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tauflow.errors import CheckpointError, SettingsError
from tauflow.files import digest

if TYPE_CHECKING:
    import torch

    from tauflow.train import Trained

TRIES = 100  # to read a checkpoint that a run replaces all the time


def loaded_pretrained(arguments: argparse.Namespace, device: "torch.device") -> "Trained":
    """Load a pretrained model."""
    from tauflow.recipes import pretrained

    return pretrained(arguments.pretrained, arguments.dtype, device, arguments.rates)


def digest_of_pretrained(arguments: argparse.Namespace) -> str:
    """Return the SHA-256 of the files of a pretrained model."""
    from tauflow.recipes import RECIPES
    from tauflow.recipes.folders import digest_of, folder_of

    return digest_of(folder_of(arguments.pretrained, RECIPES))


def loaded(path: Path, arguments: argparse.Namespace, device: "torch.device") -> tuple["Trained", str]:
    """Load a checkpoint and return it with the SHA-256 of the file, however often a run replaces that."""
    from tauflow.tasks.task import parse_settings
    from tauflow.train import load

    classes, data = own_classes(arguments.classes), parse_settings(arguments.data)
    for _ in range(TRIES):
        before = _digest(path)
        trained = load(path, device, classes, data)
        if _digest(path) == before:
            return trained, before
    raise replaced(path)


def replaced(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} was replaced each time it was read; copy it and sample from the copy")


def _digest(path: Path) -> str:
    try:
        return digest(path) if path.is_file() else ""
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):  # load says what is there instead
        return ""
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path} ({error.strerror or error}); name another one with --ckpt"
        ) from None


def own_classes(names: list[str]) -> list[type]:
    """Import the user's own classes, named on the command line."""
    from tauflow.imports import import_object

    try:
        return [import_object(name, object) for name in names]
    except SettingsError as error:
        raise SettingsError(f"--classes: {error}") from None
