"""Checkpoint files: written atomically, read without trusting them, and the trained model in them.

A checkpoint is Lightning's, plus the entry "tauflow": {"format", "model", "task"} that says how to rebuild
the model and the task (None if it was trained from a plain DataLoader). An object is described as
{"class_path": ..., "init_args": {...}}, as in a configuration file. It's rebuilt only if its class is one
that the reader allows.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from tauflow import networks, tasks
from tauflow.denoise import Model
from tauflow.errors import CheckpointError, SettingsError, first_line, join_names, program, shorten
from tauflow.files import atomic, digest, digest_json
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
from tauflow.samplers.learned import read_counts, read_influence, read_order
from tauflow.tasks import DataFacts, Task
from tauflow.train.module import FORMAT, KEY, DFMModule, OptimizerConfig, describe
from tauflow.untrusted import (
    VALUES,
    arguments_of,
    check_plain,
    check_regular,
    check_storage,
    check_types,
    check_weights,
    class_of,
    path_of,
    read_json,
    read_safetensors,
    read_tensors,
    read_text,
)

MOVED = {
    "tauflow.module": "tauflow.train.module",
    "tauflow.networks.base": "tauflow.networks.network",
    "tauflow.schedules": "tauflow.process.schedules",
    "tauflow.tasks.base": "tauflow.tasks.task",
    "tauflow.train.optimizer": "tauflow.train.module",
}
"""Modules and classes with a new name, {old: new}. Checkpoints and configurations may still use the old one.

Add a row when you move a class that either may name: a task, a network config, a source, or a schedule.
"""
PUBLIC = {
    "tauflow.networks.TransformerConfig": path_of(TransformerConfig),
    "tauflow.tasks.text.Text": path_of(tasks.Text),
}
"""Names in checkpoints of format 1 that are public names, not those of modules."""
SHIPPED = Path(__file__).parents[3] / "checkpoints" / "shipped"
"""Trained models that come with a clone: countdown_masked.ckpt, countdown_uniform.ckpt, fashion.ckpt, ..."""
WHERE_SHIPPED = "Shipped models come with a clone of the repository, in checkpoints/shipped."
CLASS_KEYS = ("class_path", "_class_path", "_instantiator", "_target_")
HARMLESS = {"lightning.pytorch.cli.instantiate_module"}  # LightningCLI's `_instantiator`; never called here
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
PREFIX = "ema.network."  # of the averaged weights in a checkpoint
LEARNED = ("model.order.json", "model.counts.json", "model.influence.json")
FILES = (CONFIG, WEIGHTS, TOKENIZER, *LEARNED, "statistics.npz")
"""Files of an exported folder that are read; no other name in it is looked at."""
HUB_NAME = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
OPTIMIZER = ("learning_rate", "warmup_steps", "weight_decay", "betas", "ema_decay")
"""Settings of the optimizer, which were settings of the model in format 1."""


# Classes that have moved


def current_name(name: str) -> str:
    """Return today's name of a class or module, which may have moved."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        new = MOVED.get(".".join(parts[:end]))
        if new is not None:
            return ".".join([new, *parts[end:]])
    return name


def update_names(text: str) -> str:
    """Return a configuration or an argument with today's names of what it imports from tauflow."""
    return re.sub(r"\btauflow(\.\w+)+", lambda found: current_name(found[0]), text)


def _rename_classes(value: Any, rename: Callable[[str], str] = current_name) -> Any:
    """Return plain data with other names of the classes in it."""
    if isinstance(value, list | tuple):
        return [_rename_classes(item, rename) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: rename(item) if key in CLASS_KEYS and isinstance(item, str) else _rename_classes(item, rename)
        for key, item in value.items()
    }


def _upgrade(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a format-1 checkpoint in format 2; what's unknown stays, and fails later."""
    entry = _rename_classes(entry, lambda name: PUBLIC.get(name, name))
    old = entry["model"].get("init_args")
    if not isinstance(old, dict) or not {"num_tokens", "seq_len"} <= old.keys():
        return entry | {"format": 2}
    new = {name: value for name, value in old.items() if name not in ("num_tokens", "seq_len", *OPTIMIZER)}
    facts = {"num_tokens": old["num_tokens"], "shape": [old["seq_len"]], "conditions": [], "unigrams": None}
    new["facts"] = {"class_path": path_of(DataFacts), "init_args": facts}
    optimizer = {name: old[name] for name in OPTIMIZER if name in old}
    new["optimizer"] = {"class_path": path_of(OptimizerConfig), "init_args": optimizer}
    source = {"masked": Masked, "uniform": Uniform}.get(str(old.get("source")))
    if source is not None:
        new["source"] = describe(source(old["num_tokens"]))
    named = [name for name in SCHEDULES if name != "polynomial"]  # that one needs its exponent
    if old.get("schedule") in named:
        new["schedule"] = describe(schedule_from(old["schedule"]))
    return entry | {"format": 2, "model": entry["model"] | {"init_args": new}}


# Files


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes next to the target and renames: a killed run leaves the old file or the new one, never half."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save(checkpoint, path)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
        return read(path)


def save(checkpoint: dict[str, Any], path: str | Path) -> None:
    """Write a checkpoint file atomically."""
    with atomic(path) as file:
        try:
            torch.save(checkpoint, file)
        except RuntimeError as error:  # torch hides that the disk is full
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


# Where a model is


def find_checkpoint(place: str | Path, *, last: bool = False, revision: str | None = None) -> Path:
    """Return the file of a model: a checkpoint, or the weights of an exported folder.

    Args:
        place: a file; the folder of a run, which means its best.ckpt; a folder with runs, which means the
            newest one; an exported folder; a shipped model, such as countdown_masked or countdown; or
            user/name on the Hugging Face Hub. What exists on this machine comes first.
        last: take the last.ckpt of a run, to resume it. Only what's on this machine can be resumed.
        revision: branch, tag, or commit on the Hub.
    """
    if not str(place).strip():
        raise CheckpointError("The checkpoint must be a path or a name, got an empty one.")
    path = Path(place)
    if path.is_dir():
        return _find_in_folder(path, last)
    if path.exists():
        return path
    shipped = find_shipped(str(place))
    if shipped and not last:
        return shipped
    here = path.suffix in (".ckpt", ".safetensors") or Path(path.parts[0]).is_dir()  # a path with a typo
    if re.fullmatch(HUB_NAME, str(place)) and not here and not last:
        return _download(str(place), revision)
    near = sorted(str(p) for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
    start = f'Train a model first with "{program("train")}".'
    if not SHIPPED.is_dir():
        start += f" {WHERE_SHIPPED}"
    hint = f"The folder has {', '.join(near)}." if near else start
    raise CheckpointError(f"Checkpoint not found: {place}. {hint}")


def find_shipped(name: str) -> Path | None:
    """Return the first shipped model of a name or task: countdown is countdown_masked."""
    shipped = sorted(SHIPPED.glob("*.ckpt"))
    return next((path for path in shipped if path.stem == name or path.stem.startswith(f"{name}_")), None)


def is_pretrained(place: str | Path) -> bool:
    """Return whether this is the folder of a model that another library wrote, for `tauflow.pretrained`."""
    return (Path(place) / CONFIG).is_file() and read_json(Path(place) / CONFIG).get("library_name") != KEY


def _find_in_folder(folder: Path, last: bool) -> Path:
    names = ("last.ckpt",) if last else ("best.ckpt", "last.ckpt")
    saved = [folder / name for name in names if (folder / name).exists()]
    if not saved and (folder / CONFIG).is_file():
        if is_pretrained(folder):
            raise CheckpointError(
                f"{folder} has a model of another library. Load it with tauflow.pretrained, or with "
                "sample.py --pretrained."
            )
        return folder / WEIGHTS
    if not saved:  # a folder of runs, or of folders of runs
        found = [path for name in names for depth in ("*/", "*/*/") for path in folder.glob(depth + name)]
        newest = max(found, key=lambda path: path.stat().st_mtime, default=folder).parent
        saved = [path for path in found if path.parent == newest]
    if not saved:
        others = join_names(path.name for path in sorted(folder.glob("*.ckpt")))
        start = f'Train a model with "{program("train")}".'
        hint = f"Choose one of its files: {others}." if others else start
        raise CheckpointError(f"{folder} has no {' or '.join(names)}. {hint}")
    return saved[0]


def _download(name: str, revision: str | None) -> Path:
    """Return the weights of an exported model on the Hugging Face Hub, whose files are in its cache then."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=CONFIG))
        ours = (folder / CONFIG).is_file() and not is_pretrained(folder)
        if ours:  # only then the weights, of the same commit
            snapshot_download(name, revision=folder.name, allow_patterns=list(FILES))
    except CheckpointError:
        raise
    except errors.GatedRepoError:
        reason = "it's gated. Accept its terms on its page, and log in with `hf auth login`."
    except errors.RepositoryNotFoundError:
        reason = "the Hub doesn't have it, or it's private. Check the name, or log in with `hf auth login`."
    except errors.RevisionNotFoundError:
        reason = f"it has no revision {revision}. Choose a branch, a tag, or a commit of it."
    except Exception as error:  # the library raises many kinds
        reason = f"{first_line(error).rstrip('.')}. Check the network, or pass a folder."
    else:
        if not ours:
            raise CheckpointError(
                f"{name} on the Hugging Face Hub isn't a model that tauflow exported. Try tauflow.pretrained."
            )
        return folder / WEIGHTS
    raise CheckpointError(
        f"{name} isn't a file or folder here, and can't be downloaded from the Hugging Face Hub: {reason}"
    )


# Reading


def read(path: str | Path) -> dict[str, Any]:
    """Return the contents of a checkpoint file that tauflow wrote, in today's format and with today's names.

    It's plain data: nothing in it is imported or called.
    """
    path = Path(path)
    checkpoint = read_exported(path) if path.suffix == ".safetensors" else read_tensors(path)
    entry = checkpoint.get(KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(entry, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise CheckpointError(
            f"{path} was not written by tauflow's train.py. Train a model with it, or load the weights "
            "yourself."
        )
    check_plain(entry, sys.maxsize, path, VALUES)
    number = entry.get("format")
    if type(number) is not int or number not in (1, FORMAT):
        raise CheckpointError(
            f"{path} has format {shorten(repr(number))}, this version of tauflow reads the formats 1 to "
            f"{FORMAT}. Update tauflow."
        )
    complete = isinstance(entry.get("model"), dict) and isinstance(entry.get("task", ""), dict | NoneType)
    step = checkpoint.get("global_step")
    weights = checkpoint["state_dict"].items()
    complete &= all(isinstance(name, str) and isinstance(value, Tensor) for name, value in weights)
    if not complete or type(step) is not int or step < 0:
        raise CheckpointError(
            f"{path} is not complete: it does not say how its model and task were built, what its weights "
            "are, or at which step it is."
        )
    for key in (KEY, "hyper_parameters", "datamodule_hyper_parameters"):
        if key in checkpoint:
            checkpoint[key] = _rename_classes(checkpoint[key])
    if number == 1:
        try:
            checkpoint[KEY] = _upgrade(checkpoint[KEY])
        except (TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not describe a model of format 1: {error}") from None
    return checkpoint


def read_exported(path: Path) -> dict[str, Any]:
    """Return what the folder of exported weights describes, in the form of a checkpoint."""
    config_path = path.with_name(CONFIG)
    config = read_json(config_path)
    task = config.get("task")
    ours = config.pop("library_name", None) == KEY and isinstance(config.get("files"), dict)
    if not ours or path.name != WEIGHTS:
        raise CheckpointError(f"{path} was not written by tauflow.export. Pass a folder that it wrote.")
    if config.pop("sha256", None) != digest_json(config):
        raise CheckpointError(f"{config_path} is damaged: its sha256 is wrong. Export or download it again.")
    for name, wanted in config.pop("files").items():
        if name not in (WEIGHTS, TOKENIZER):
            raise CheckpointError(f"{config_path} lists a file that isn't one of a model: {shorten(name)}.")
        check_regular(path.with_name(name))
        if digest(path.with_name(name)) != wanted:
            raise CheckpointError(
                f"{path.with_name(name)} is damaged or belongs to another {CONFIG}: its sha256 is wrong. "
                "Export or download the folder again."
            )
        if name == TOKENIZER and isinstance(task, dict) and isinstance(task.get("init_args"), dict):
            task["init_args"]["tokenizer_json"] = read_text(path.with_name(name))
    weights = {f"{PREFIX}{name}": weight for name, weight in read_safetensors(path).items()}
    return {"state_dict": weights, "global_step": config.pop("step", None), KEY: config}


# Trained models


def _subclasses(module: object, kind: type) -> list[type]:
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, kind)]
    return [each for each in found if each is not kind]


CLASSES: tuple[type, ...] = (
    DFMModule,
    DataFacts,
    OptimizerConfig,
    *_subclasses(networks, NetworkConfig),
    *_subclasses(schedules, Schedule),
    *_subclasses(sources, Source),
    *_subclasses(tasks, Task),
)
"""The classes that a checkpoint may name."""

BUILD_ERRORS = (
    *(TypeError, ValueError, LookupError, AttributeError),
    *(RuntimeError, ArithmeticError, MemoryError),
)
"""What constructors raise for arguments that mean nothing."""


@dataclass(frozen=True)
class Trained:
    """A trained model with its task, as `tauflow.load` and `tauflow.pretrained` return it.

    Pass it to `tauflow.sample` and `tauflow.evaluate`. Build one yourself to give your own model a task.

    Args:
        model: the model with averaged weights, and with the order, counts, and influence learned from it and
            stored next to the checkpoint.
        task: how samples are shown and measured; None if it was trained from a plain DataLoader.
        step: optimizer steps of the weights.

    Examples:
        >>> trained = tauflow.load(tauflow.train.SHIPPED / "countdown_masked.ckpt")
        >>> trained.step
        4096
        >>> result = tauflow.sample(trained, "tr_cie", nfe=8)
        >>> len(trained.task.show(result.tokens))
        1
    """

    model: Model
    task: Task | None
    step: int = 0

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of its texts, or of its prompts; None for a model of neither."""
        if isinstance(self.task, tasks.Text):
            return self.task.tokens.tokenizer
        return getattr(self.task, "tokenizer", None)


def load(
    path: str | Path,
    device: str | torch.device = "cpu",
    classes: Iterable[type] = (),
    data: Mapping[str, Any] | None = None,
    revision: str | None = None,
) -> Trained:
    """Rebuild the model, with averaged weights, and the task of a checkpoint from the file alone.

    Use it for checkpoints of `train.py` and for what `tauflow.export` wrote, also those of other people: a
    file isn't trusted. It may contain plain data only, and may name tauflow's own classes and those you pass.

    Args:
        path: a checkpoint, the folder of a run (its best.ckpt) or of several (the newest), an exported
            folder, a shipped model such as "countdown_masked", or "user/name" on the Hugging Face Hub.
        device: where the model goes.
        classes: your own network config, task, source, or schedule classes that the checkpoint may name.
        data: where the task's data is on this machine, such as {"files": "corpus.txt"}. That's never taken
            from the file.
        revision: branch, tag, or commit on the Hub.

    Returns:
        The model, the task, and the step of the weights.

    Examples:
        >>> trained = tauflow.load("countdown_masked")
        >>> result = tauflow.sample(trained.model, "tr_cie", nfe=16, count=4, seed=0)
        >>> result.tokens.shape
        torch.Size([4, 256])
    """
    path = find_checkpoint(path, revision=revision)
    checkpoint = read(path)
    data = data or {}
    allowed = (*CLASSES, *classes)
    check_classes(checkpoint, allowed, path)
    entry = checkpoint[KEY]
    weights = checkpoint["state_dict"]
    averaged = {
        name.removeprefix("ema."): value for name, value in weights.items() if name.startswith("ema.")
    }
    check_storage(averaged, path)
    try:
        module = _build_module(entry["model"], allowed, averaged)
    except BUILD_ERRORS as error:
        raise CheckpointError(
            f"{path} does not describe a model that this version of tauflow can build: "
            f"{shorten(str(error), 400)}"
        ) from error
    _check_data(entry["task"], allowed, data)
    try:
        task = None if entry["task"] is None else _build_task(entry["task"], allowed, data)
        if task is not None and task.facts != module.facts:
            raise ValueError("the model and the task have different sizes")
    except BUILD_ERRORS as error:
        raise CheckpointError(f"the task of {path} cannot be rebuilt: {shorten(str(error), 400)}") from error
    if task is not None:
        task.folder = path.parent
    model = module.to(device).model()
    model = replace(
        model,
        order=read_order(path, model.length),
        counts=read_counts(path, model.length),
        influence=read_influence(path, model.length),
        channels=model.channels if task is None else task.channels,
    )
    return Trained(model, task, checkpoint["global_step"])


def check_classes(checkpoint: dict[str, Any], allowed: Iterable[type], path: str | Path) -> None:
    """Raise unless every class that the checkpoint names, in any of its entries, is an allowed one."""
    known = {path_of(cls) for cls in allowed} | HARMLESS
    entries = {key: checkpoint.get(key) for key in (KEY, "hyper_parameters", "datamodule_hyper_parameters")}
    foreign = sorted({name for name in _named_classes(entries) if name not in known})
    if foreign:
        raise CheckpointError(
            f"{path} names {join_names(foreign)}, which tauflow does not know: nothing was imported. If the "
            "class is yours and you trust the file, pass it to tauflow.load(path, classes=[...]), name it "
            "with sample.py --classes, or train with the configuration that names it."
        )


def _named_classes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in CLASS_KEYS:
                yield str(item)
            if key == "source" and isinstance(item, str) and item not in SOURCES:
                yield item  # a model would import it
            yield from _named_classes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named_classes(item)


def _build_module(spec: dict[str, Any], allowed: tuple[type, ...], averaged: dict[str, Tensor]) -> DFMModule:
    """Build the model with averaged weights; its sizes are compared with them before it takes memory."""
    cls = class_of(spec, allowed)
    if not issubclass(cls, DFMModule):
        raise ValueError(f"a {cls.__name__} as the model")
    arguments = arguments_of(spec, _argument_classes(allowed))
    check_types(cls, arguments)
    facts = arguments.get("facts")
    source = arguments.get("source", "masked")
    config = arguments.get("network", TransformerConfig())
    if not isinstance(facts, DataFacts):
        raise ValueError(f"a {type(facts).__name__} as the sizes of the data")
    if not isinstance(source, Source) and source not in SOURCES:
        raise ValueError("a source that is not described")
    if type(config) in CLASSES:  # the user's own network class is trusted, and compared when it's built
        states = source_from(source, facts.num_tokens).num_states
        wanted = weights_of(config, facts.shape, states, facts.num_tokens, facts.conditions)
        check_weights(wanted, {name.removeprefix("network."): weight for name, weight in averaged.items()})
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn and thrown away
        module = cls(**arguments)
    module.ema.load_state_dict(averaged)
    return module


def _argument_classes(allowed: tuple[type, ...]) -> tuple[type, ...]:
    """Return the classes that an argument may be of: a model or a task isn't one."""
    return tuple(cls for cls in allowed if not issubclass(cls, DFMModule | Task))


def _check_data(spec: dict[str, Any] | None, allowed: tuple[type, ...], data: Mapping[str, Any]) -> None:
    """Raise if `data` has a setting that isn't the user's to decide."""
    names = {path_of(cls): cls.local for cls in allowed if issubclass(cls, Task)}
    local = names.get(str(spec and spec.get("class_path")), ())
    unknown = [name for name in data if name not in local]
    if unknown:
        raise SettingsError(
            f"data of this checkpoint may say {', '.join(local) or 'nothing'}, not {unknown[0]}: the rest is "
            "decided by the checkpoint"
        )


def _build_task(spec: dict[str, Any], allowed: tuple[type, ...], data: Mapping[str, Any]) -> Task:
    """Rebuild the task. What it calls local comes from the user's `data`, never from the file."""
    kind = class_of(spec, allowed)
    if not issubclass(kind, Task):
        raise ValueError(f"a {kind.__name__} as the task")
    arguments = arguments_of(spec, _argument_classes(allowed))
    arguments = {name: value for name, value in arguments.items() if name not in kind.local}
    check_types(kind, arguments)
    return kind.rebuilt(arguments, data)
