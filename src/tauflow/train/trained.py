"""A trained model, rebuilt from its checkpoint alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tauflow import networks, tasks
from tauflow.denoise import Model
from tauflow.errors import CheckpointError, SettingsError, shorten
from tauflow.networks import NetworkConfig, TransformerConfig
from tauflow.networks.base import weights_of
from tauflow.process import SOURCES, Schedule, Source, schedules, source_from, sources
from tauflow.tasks import DataFacts, Task
from tauflow.theory import counts, influence, orders
from tauflow.train.checkpoints import KEY, read, refuse_foreign_classes
from tauflow.train.module import DFMModule
from tauflow.train.optimizer import OptimizerConfig
from tauflow.untrusted import arguments_of, check_storage, check_types, check_weights, class_of


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
