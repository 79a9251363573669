"""A trained model, rebuilt from its checkpoint alone."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tauflow import tasks
from tauflow.denoise import Model
from tauflow.errors import CheckpointError
from tauflow.networks import TransformerConfig
from tauflow.process import Schedule, Source, schedules, sources
from tauflow.tasks import DataFacts, Task
from tauflow.theory import orders
from tauflow.train.checkpoints import KEY, build, read, refuse_foreign_classes
from tauflow.train.module import DFMModule
from tauflow.train.optimizer import OptimizerConfig


def _finals(module: object, kind: type) -> list[type]:
    """Return the classes of one kind that a module has, without the kind itself."""
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, kind)]
    return [each for each in found if each is not kind]


CLASSES: tuple[type, ...] = (
    DFMModule,
    DataFacts,
    OptimizerConfig,
    TransformerConfig,
    *_finals(schedules, Schedule),
    *_finals(sources, Source),
    *_finals(tasks, Task),
)
"""The classes that a checkpoint may name."""

SHIPPED = Path(__file__).parents[3] / "checkpoints" / "shipped"
"""Trained countdown models that come with the project: countdown_masked.ckpt and countdown_uniform.ckpt."""


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds."""

    model: Model  # with averaged weights, and the learned order if one lies beside the checkpoint
    task: Task | None  # None if it was trained from a plain DataLoader
    step: int = 0  # optimizer steps the weights were trained for


def load(path: str | Path, device: str | torch.device = "cpu", classes: Iterable[type] = ()) -> Trained:
    """Rebuild the model, with averaged weights, and the task of a checkpoint from the file alone.

    The file is not trusted: it may hold plain data only, and may name tauflow's own classes only; pass your
    own as `classes`.
    """
    checkpoint = read(path)
    allowed = (*CLASSES, *classes)
    refuse_foreign_classes(checkpoint, allowed, path)
    entry = checkpoint[KEY]
    try:
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn and thrown away
            module = build(entry["model"], allowed)
        if not isinstance(module, DFMModule):
            raise ValueError(f"a {type(module).__name__} as the model")
        task = build(entry["task"], allowed)
        if task is not None:
            _refuse_unfit(task, module)
            task.folder = Path(path).parent
        weights = {name: value for name, value in checkpoint["state_dict"].items() if name.startswith("ema.")}
        module.ema.load_state_dict({name.removeprefix("ema."): value for name, value in weights.items()})
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} does not describe a model that this version of tauflow can build: {error}"
        ) from error
    model = module.to(device).model()
    return Trained(
        replace(model, order=orders.read(path, model.length)), task, int(checkpoint["global_step"])
    )


def _refuse_unfit(task: object, module: DFMModule) -> None:
    if not isinstance(task, Task):
        raise ValueError(f"a {type(task).__name__} as the task")
    if task.facts != module.facts:
        raise ValueError("the model and the task have different sizes")
