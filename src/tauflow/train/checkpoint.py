"""Objects as plain data: {"class_path": ..., "init_args": {...}}, as in a configuration file."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from tauflow import networks, tasks
from tauflow.denoise import Model
from tauflow.errors import CheckpointError, SettingsError, join_names, shorten
from tauflow.files import atomic
from tauflow.networks import NetworkConfig, TransformerConfig
from tauflow.networks.network import weights_of
from tauflow.process import (
    SCHEDULES,
    SOURCES,
    Masked,
    Schedule,
    Source,
    Uniform,
    schedule_from,
    schedules,
    source_from,
    sources,
)
from tauflow.tasks import DataFacts, Task
from tauflow.theory import counts, influence, orders
from tauflow.train.module import FORMAT, KEY, DFMModule, OptimizerConfig, describe
from tauflow.untrusted import (
    VALUES,
    arguments_of,
    check_plain,
    check_storage,
    check_types,
    check_weights,
    class_of,
    path_of,
    read_tensors,
)

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
    new["optimizer"] = {"class_path": "tauflow.train.module.OptimizerConfig", "init_args": optimizer}
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


# A trained model, rebuilt from its checkpoint alone.


def _finals(module: object, kind: type) -> list[type]:
    """Return the classes of one kind that a module has, without the kind itself."""
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, kind)]
    return [each for each in found if each is not kind]


CLASSES: tuple[type, ...] = (
    DFMModule,
    DataFacts,
    OptimizerConfig,
    *_finals(networks, NetworkConfig),
    *_finals(schedules, Schedule),
    *_finals(sources, Source),
    *_finals(tasks, Task),
)
"""The classes that a checkpoint may name."""

FAULTS = (TypeError, ValueError, LookupError, AttributeError, RuntimeError, ArithmeticError, MemoryError)
"""What constructors raise for arguments that mean nothing."""

SHIPPED = Path(__file__).parents[3] / "checkpoints" / "shipped"
"""Trained models that come with the project: countdown_masked.ckpt, countdown_uniform.ckpt, fashion.ckpt."""


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds."""

    model: Model  # with averaged weights, and what was learned of it and lies beside the checkpoint
    task: Task | None  # None if it was trained from a plain DataLoader
    step: int = 0  # optimizer steps the weights were trained for

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of its texts, or of its prompts; None for a model of neither."""
        if isinstance(self.task, tasks.Text):
            return self.task.tokens.tokenizer
        return getattr(self.task, "tokenizer", None)


def load(
    path: str | Path,
    device: str | torch.device = "cpu",
    classes: Iterable[type] = (),
    data: Mapping[str, Any] | None = None,
) -> Trained:
    """Rebuild the model, with averaged weights, and the task of a checkpoint from the file alone.

    The file is not trusted: it may hold plain data only, and may name tauflow's own classes only; pass your
    own as `classes`. Where the data of the task lies is not taken from it either: give `data`, settings of
    the task such as {"files": "corpus.txt"}.
    """
    checkpoint = read(path)
    allowed = (*CLASSES, *classes)
    refuse_foreign_classes(checkpoint, allowed, path)
    entry = checkpoint[KEY]
    weights = checkpoint["state_dict"]
    averaged = {
        name.removeprefix("ema."): value for name, value in weights.items() if name.startswith("ema.")
    }
    check_storage(averaged, path)
    try:
        module = _module(entry["model"], allowed, averaged)
    except FAULTS as error:
        raise CheckpointError(
            f"{path} does not describe a model that this version of tauflow can build: "
            f"{shorten(str(error), 400)}"
        ) from error
    try:
        kind = None if entry["task"] is None else _kind_of_task(entry["task"], allowed)
    except ValueError as error:
        raise _no_task(path, error) from error
    _refuse_other_data(kind, data or {})
    try:
        task = None if kind is None else _task(kind, entry["task"], allowed, data or {})
        if task is not None and task.facts != module.facts:
            raise ValueError("the model and the task have different sizes")
    except FAULTS as error:
        raise _no_task(path, error) from error
    if task is not None:
        task.folder = Path(path).parent
    model = module.to(device).model()
    channels = model.channels if task is None else task.channels
    model = replace(
        model,
        order=orders.read(path, model.length),
        counts=counts.read(path, model.length),
        influence=influence.read(path, model.length),
        channels=channels,
    )
    return Trained(model, task, checkpoint["global_step"])


def _module(spec: dict[str, Any], allowed: tuple[type, ...], averaged: dict[str, Tensor]) -> DFMModule:
    """Build the model with averaged weights; before it takes memory, its sizes are those of the weights."""
    cls = class_of(spec, allowed)
    if not issubclass(cls, DFMModule):
        raise ValueError(f"a {cls.__name__} as the model")
    arguments = arguments_of(spec, _values(allowed))
    check_types(cls, arguments)
    _check_weights(arguments, averaged)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn and thrown away
        module = cls(**arguments)
    module.ema.load_state_dict(averaged)
    return module


def _values(allowed: tuple[type, ...]) -> tuple[type, ...]:
    """Return the classes that an argument may be of: a model or a task is none."""
    return tuple(cls for cls in allowed if not issubclass(cls, DFMModule | Task))


def _check_weights(arguments: dict[str, Any], averaged: dict[str, Tensor]) -> None:
    """Raise unless the described network has the weights of the file.

    The user's own network class is trusted, and compared when it's built.
    """
    facts, source = arguments.get("facts"), arguments.get("source", "masked")
    config = arguments.get("network", TransformerConfig())
    if not isinstance(facts, DataFacts):
        raise ValueError(f"a {type(facts).__name__} as the sizes of the data")
    if not isinstance(source, Source) and source not in SOURCES:
        raise ValueError("a source that is not described")
    if type(config) not in CLASSES:
        return
    states = source_from(source, facts.num_tokens).num_states
    wanted = weights_of(config, facts.shape, states, facts.num_tokens, facts.conditions)
    check_weights(wanted, {name.removeprefix("network."): weight for name, weight in averaged.items()})


def _no_task(path: str | Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"the task of {path} cannot be rebuilt: {shorten(str(error), 400)}")


def _kind_of_task(spec: dict[str, Any], allowed: tuple[type, ...]) -> type[Task]:
    kind = class_of(spec, allowed)
    if not issubclass(kind, Task):
        raise ValueError(f"a {kind.__name__} as the task")
    return kind


def _refuse_other_data(kind: type[Task] | None, data: Mapping[str, Any]) -> None:
    """Raise if `data` says what is not the user's to decide."""
    local = () if kind is None else kind.local
    unknown = [name for name in data if name not in local]
    if unknown:
        raise SettingsError(
            f"data of this checkpoint may say {', '.join(local) or 'nothing'}, not {unknown[0]}: the rest is "
            "decided by the checkpoint"
        )


def _task(kind: type[Task], spec: dict[str, Any], allowed: tuple[type, ...], data: Mapping[str, Any]) -> Task:
    """Rebuild the task; what it calls local comes from the user's `data`, never from the file."""
    arguments = arguments_of(spec, _values(allowed))
    arguments = {name: value for name, value in arguments.items() if name not in kind.local}
    check_types(kind, arguments)
    return kind.rebuilt(arguments, data)
