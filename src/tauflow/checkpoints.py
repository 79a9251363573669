"""Checkpoint files: written whole or not at all, only plain data inside, read without trusting them.

A checkpoint is Lightning's, plus the entry "tauflow": {"format", "model", "task"} that says how to rebuild both. An object is described as
{"class_path": ..., "init_args": {...}}, as in a configuration file, and rebuilt only if the class is one that the reader allows.
"""

import inspect
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from tauflow.errors import CheckpointError
from tauflow.files import whole

KEY = "tauflow"
FORMAT = 1
HARMLESS = {"lightning.pytorch.cli.instantiate_module"}  # what LightningCLI writes as `_instantiator`; never called here


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames, so that a killed run leaves the old file or the new one, never half of it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        if "://" in str(path):  # object stores commit whole files by themselves
            return super().save_checkpoint(checkpoint, path, storage_options)
        with whole(path) as file:
            torch.save(checkpoint, file)


def read(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint file that tauflow wrote; plain data, nothing in it is imported or called."""
    path = Path(path)
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        hint = f"there are {', '.join(near)}" if near else "train one with `python train.py`"
        raise CheckpointError(f"no checkpoint at {path}; {hint}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path):
            raise CheckpointError(
                f"{path} holds more than plain data and is refused, it could run code when loaded: {_first_line(error)}"
            ) from None
        raise CheckpointError(
            f"{path} cannot be read, it is truncated or not a checkpoint ({_first_line(error)}); use another one of the run"
        ) from None
    entry = checkpoint.get(KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(entry, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise CheckpointError(f"{path} was not written by tauflow's train.py; train a model with it, or load the weights yourself")
    if entry.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {entry.get('format')!r}, this version of tauflow reads format {FORMAT}")
    if not all(isinstance(entry.get(part), dict) for part in ("model", "task")) or type(checkpoint.get("global_step")) is not int:
        raise CheckpointError(f"{path} is not complete: it does not say how its model and task were built, or at which step it is")
    return checkpoint


def export(path: str | Path, target: str | Path) -> None:
    """Writes what sampling needs of a checkpoint: the averaged weights and how to rebuild model and task; training cannot go on from it."""
    checkpoint = read(path)
    weights = {name: value.clone() for name, value in checkpoint["state_dict"].items() if name.startswith("ema.")}
    with whole(target) as file:
        torch.save({"state_dict": weights, "global_step": checkpoint["global_step"], KEY: checkpoint[KEY]}, file)


def refuse_foreign_classes(checkpoint: dict[str, Any], allowed: Iterable[type], path: str | Path) -> None:
    """Raises unless every class that the checkpoint names, in our entry or in Lightning's hyper-parameters, is an allowed one."""
    known = {_path_of(cls) for cls in allowed} | HARMLESS
    entries = {key: checkpoint.get(key) for key in (KEY, "hyper_parameters", "datamodule_hyper_parameters")}
    try:
        foreign = sorted({name for name in _named_classes(entries) if name not in known})
    except RecursionError:
        raise CheckpointError(f"{path} is nested too deeply to be a checkpoint of tauflow") from None
    if foreign:
        raise CheckpointError(
            f"{path} names {', '.join(foreign)}, which tauflow does not know: nothing was imported. If the class is yours and you trust "
            "the file, pass it to tauflow.load(path, classes=[...])"
        )


def _named_classes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("class_path", "_class_path", "_instantiator", "_target_"):
                yield str(item)
            yield from _named_classes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named_classes(item)


def describe(value: Any) -> Any:
    """Plain data from which `build` makes the same object. By convention an object keeps each constructor argument as an attribute."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, nn.Module) and hasattr(value, "config"):
        return describe(value.config)  # a network is described by its sizes
    names = list(inspect.signature(type(value)).parameters)
    return {"class_path": _path_of(type(value)), "init_args": {name: describe(getattr(value, name)) for name in names}}


def build(spec: Any, allowed: Iterable[type]) -> Any:
    """The object that `describe` described; a class is looked up among the allowed ones, never imported by name."""
    if isinstance(spec, list):
        return [build(item, allowed) for item in spec]
    if not isinstance(spec, dict):
        return spec
    classes = {_path_of(cls): cls for cls in allowed}
    if spec.get("class_path") not in classes:
        raise CheckpointError(f"class {spec.get('class_path')!r} is not one of {', '.join(sorted(classes))}")
    return classes[spec["class_path"]](**{name: build(item, allowed) for name, item in spec["init_args"].items()})


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
