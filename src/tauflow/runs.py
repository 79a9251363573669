"""A trained run, rebuilt from its checkpoint alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tauflow import orders, schedules, tasks
from tauflow.checkpoints import KEY, build, read, refuse_foreign_classes
from tauflow.denoisers import Denoiser
from tauflow.errors import CheckpointError
from tauflow.module import DFMModule
from tauflow.networks import TransformerConfig
from tauflow.schedules import Schedule
from tauflow.sources import Source

CLASSES: tuple[type, ...] = (
    DFMModule,
    TransformerConfig,
    *(cls for cls in vars(schedules).values() if isinstance(cls, type) and issubclass(cls, Schedule) and cls is not Schedule),
    *(task for name in tasks.__all__ if issubclass(task := getattr(tasks, name), tasks.Task) and task is not tasks.Task),
)
"""The classes that a checkpoint may name."""

SHIPPED = Path(__file__).parents[2] / "checkpoints" / "shipped"
"""Trained countdown models that come with the project: countdown_masked.ckpt and countdown_uniform.ckpt."""


@dataclass(frozen=True)
class Run:
    task: tasks.Task
    denoiser: Denoiser  # with the averaged weights
    source: Source
    schedule: Schedule
    step: int = 0  # optimizer steps the weights were trained for
    ranks: Tensor | None = None  # (D,) the learned order of reveals, if one lies beside the checkpoint


def load(path: str | Path, device: str | torch.device = "cpu", classes: Iterable[type] = ()) -> Run:
    """The task and the averaged denoiser of a checkpoint, rebuilt from the file alone.

    The file is not trusted: it may hold plain data only, and may name tauflow's own classes only; pass your own as `classes`.
    """
    checkpoint = read(path)
    allowed = (*CLASSES, *classes)
    refuse_foreign_classes(checkpoint, allowed, path)
    try:
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn and thrown away
            module: DFMModule = build(checkpoint[KEY]["model"], allowed)
        task = build(checkpoint[KEY]["task"], allowed)
        task.folder = Path(path).parent
        if not isinstance(module, DFMModule) or not isinstance(task, tasks.Task):
            raise ValueError(f"a {type(module).__name__} as the model, a {type(task).__name__} as the task")
        if (task.num_tokens, task.seq_len) != (module.num_tokens, module.seq_len):
            raise ValueError("the model and the task have different sizes")
        weights = {name: value for name, value in checkpoint["state_dict"].items() if name.startswith("ema.")}
        module.ema.load_state_dict({name.removeprefix("ema."): value for name, value in weights.items()})
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not describe a model that this version of tauflow can build: {error}") from error
    return Run(
        task=task,
        denoiser=module.to(device).denoiser(),
        source=module.path.source,
        schedule=module.path.schedule,
        step=int(checkpoint["global_step"]),
        ranks=orders.read(path, task.seq_len),
    )
