"""Objects as plain data: {"class_path": ..., "init_args": {...}}, as in a configuration file."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from tauflow.errors import CheckpointError, SettingsError, join_names, shorten
from tauflow.files import atomic
from tauflow.process import SCHEDULES, SOURCES, Masked, Uniform, schedule_from
from tauflow.untrusted import VALUES, check_plain, path_of, read_tensors


def describe(value: Any) -> Any:
    """Return plain data from which `untrusted.build` makes the same object.

    An object keeps each constructor argument as an attribute of its name, or says them all in `init_args`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Tensor):
        return value.tolist()
    arguments = value.init_args if hasattr(value, "init_args") else _arguments(value)
    return {
        "class_path": path_of(type(value)),
        "init_args": {name: describe(argument) for name, argument in arguments.items()},
    }


def _arguments(value: Any) -> dict[str, Any]:
    names = list(inspect.signature(type(value)).parameters)
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise SettingsError(
            f"a checkpoint cannot describe {type(value).__name__}: keep its constructor argument "
            f"{missing[0]!r} as an attribute of that name"
        )
    return {name: getattr(value, name) for name in names}


# Checkpoints of format 1, as this version describes models.


MOVED = {
    "tauflow.module.DFMModule": "tauflow.train.module.DFMModule",
    "tauflow.networks.TransformerConfig": "tauflow.networks.transformer.TransformerConfig",
    "tauflow.tasks.text.Text": "tauflow.tasks.text.task.Text",
    "tauflow.schedules.Polynomial": "tauflow.process.schedules.Polynomial",
    "tauflow.schedules.Cosine": "tauflow.process.schedules.Cosine",
    "tauflow.schedules.CosineSquared": "tauflow.process.schedules.CosineSquared",
}
OPTIMIZER = ("learning_rate", "warmup_steps", "weight_decay", "betas", "ema_decay")
NOT_BUILT = {"num_tokens", "seq_len", *OPTIMIZER}


def upgraded(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a format-1 checkpoint in format 2; what is unknown stays, and is refused later."""
    entry = _moved(entry)
    arguments = entry["model"].get("init_args")
    if isinstance(arguments, dict) and {"num_tokens", "seq_len"} <= arguments.keys():
        entry["model"]["init_args"] = _new_arguments(arguments)
    return entry | {"format": 2}


def _new_arguments(old: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model: sizes are facts of the data now, the optimizer has its own."""
    facts = {"num_tokens": old["num_tokens"], "shape": [old["seq_len"]], "conditions": [], "unigrams": None}
    optimizer = {name: old[name] for name in OPTIMIZER if name in old}
    new = {name: value for name, value in old.items() if name not in NOT_BUILT}
    new["facts"] = {"class_path": "tauflow.tasks.base.DataFacts", "init_args": facts}
    new["optimizer"] = {"class_path": "tauflow.train.optimizer.OptimizerConfig", "init_args": optimizer}
    source = {"masked": Masked, "uniform": Uniform}.get(str(old.get("source")))
    if source is not None:
        new["source"] = describe(source(old["num_tokens"]))
    named = [name for name in SCHEDULES if name != "polynomial"]  # that one was never a name alone
    if old.get("schedule") in named:
        new["schedule"] = describe(schedule_from(old["schedule"]))
    return new


def _moved(value: Any) -> Any:
    """Return plain data with the new names of classes that have moved."""
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    new = {key: _moved(item) for key, item in value.items()}
    if isinstance(new.get("class_path"), str):
        new["class_path"] = MOVED.get(new["class_path"], new["class_path"])
    return new


# Checkpoint files: atomic, only plain data inside, read without trusting them.
#
# A checkpoint is Lightning's, plus the entry "tauflow": {"format", "model", "task"} that says how to rebuild
# both; the task is None where there was none. An object is described as {"class_path": ..., "init_args":
# {...}}, as in a configuration file, and rebuilt only if the class is one that the reader allows.


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
