"""Checkpoint files: atomic, only plain data inside, read without trusting them.

A checkpoint is Lightning's, plus the entry "tauflow": {"format", "model", "task"} that says how to rebuild
both; the task is None where there was none. An object is described as {"class_path": ..., "init_args":
{...}}, as in a configuration file, and rebuilt only if the class is one that the reader allows.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from tauflow.errors import CheckpointError, join_names, shorten
from tauflow.files import atomic
from tauflow.process import SOURCES
from tauflow.train.described import describe
from tauflow.train.upgrade import upgraded
from tauflow.untrusted import VALUES, check_plain, path_of, read_tensors

KEY = "tauflow"
FORMAT = 2
__all__ = ["FORMAT", "KEY", "AtomicCheckpointIO", "describe", "export", "read", "refuse_foreign_classes"]
HARMLESS = {"lightning.pytorch.cli.instantiate_module"}  # LightningCLI's `_instantiator`; never called here


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames: a killed run leaves the old file or the new one, never half."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        _save(checkpoint, path)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
        return read(path)


def _save(checkpoint: dict[str, Any], path: str | Path) -> None:
    with atomic(path) as file:
        try:
            torch.save(checkpoint, file)
        except RuntimeError as error:  # torch hides that the disk is full
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def read(path: str | Path) -> dict[str, Any]:
    """Return the contents of a checkpoint file that tauflow wrote, in today's format.

    It is plain data: nothing in it is imported or called.
    """
    path = Path(path)
    try:
        there = path.is_file()
    except OSError as error:  # such as a name that is too long
        raise CheckpointError(f"Can't read {shorten(str(path))} ({error.strerror}).") from None
    if not there:
        near = sorted(str(p) for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        hint = f"The folder has {', '.join(near)}." if near else 'Train a model first with "python train.py".'
        raise CheckpointError(f"Checkpoint not found: {path}. {hint}")
    checkpoint = read_tensors(path)
    entry = checkpoint.get(KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(entry, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise CheckpointError(
            f"{path} was not written by tauflow's train.py; train a model with it, or load the weights "
            "yourself"
        )
    check_plain(entry, sys.maxsize, path, VALUES)
    number = entry.get("format")
    if type(number) is not int or number not in (1, FORMAT):
        raise CheckpointError(
            f"{path} has format {shorten(repr(number))}, this version of tauflow reads the formats 1 to "
            f"{FORMAT}"
        )
    complete = isinstance(entry.get("model"), dict) and isinstance(entry.get("task", ""), dict | NoneType)
    step = checkpoint.get("global_step")
    weights = checkpoint["state_dict"].items()
    complete &= all(isinstance(name, str) and isinstance(value, Tensor) for name, value in weights)
    if not complete or type(step) is not int or step < 0:
        raise CheckpointError(
            f"{path} is not complete: it does not say how its model and task were built, what its weights "
            "are, or at which step it is"
        )
    try:
        return checkpoint | {KEY: upgraded(entry) if number == 1 else entry}
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not describe a model of format 1: {error}") from None


def export(path: str | Path, target: str | Path, *, half: bool = False) -> None:
    """Write what sampling needs of a checkpoint: the averaged weights, and how to rebuild model and task.

    Training cannot be resumed from it. With `half` the weights are rounded to 16 bits, which halves the file;
    `tauflow.load` gives float32 again.
    """
    checkpoint = read(path)
    weights = {
        name: value.half() if half and value.dtype == torch.float32 else value.clone()
        for name, value in checkpoint["state_dict"].items()
        if name.startswith("ema.")
    }
    large = [name for name, value in weights.items() if half and not value.isfinite().all()]
    if large:
        raise CheckpointError(
            f"{join_names(large)} of {path} has numbers beyond 65504, which 16 bits do not hold; export it "
            "without half"
        )
    _save({"state_dict": weights, "global_step": checkpoint["global_step"], KEY: checkpoint[KEY]}, target)


def refuse_foreign_classes(checkpoint: dict[str, Any], allowed: Iterable[type], path: str | Path) -> None:
    """Raise unless every class that the checkpoint names, in any of its entries, is an allowed one."""
    known = {path_of(cls) for cls in allowed} | HARMLESS
    entries = {key: checkpoint.get(key) for key in (KEY, "hyper_parameters", "datamodule_hyper_parameters")}
    foreign = sorted({name for name in _named_classes(entries) if name not in known})
    if foreign:
        raise CheckpointError(
            f"{path} names {join_names(foreign)}, which tauflow does not know: nothing was imported. If the "
            "class is yours and you trust the file, pass it to tauflow.load(path, classes=[...]), name it "
            "with sample.py --classes, or train with the configuration that names it"
        )


def _named_classes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("class_path", "_class_path", "_instantiator", "_target_"):
                yield str(item)
            if key == "source" and isinstance(item, str) and item not in SOURCES:
                yield item  # a model would import it
            yield from _named_classes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named_classes(item)
