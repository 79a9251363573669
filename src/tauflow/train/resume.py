"""Resume a run: what a checkpoint must have, and what may not change (data, model, and batches)."""

import hashlib
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from tauflow.errors import CheckpointError, shorten
from tauflow.tasks import Task
from tauflow.train.module import KEY, DFMModule, describe
from tauflow.untrusted import path_of

MODEL = ("facts", "source", "schedule", "network")
LONG = 200  # characters of a value that is shown by its digest
STATES = {"epoch": int, "loops": dict, "callbacks": dict, "optimizer_states": list, "lr_schedulers": list}


class Restored(Callback):
    """Tells whether the training state of a checkpoint, at this step, has been restored."""

    def __init__(self, step: int):
        self.step = step
        self.done = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step != self.step:
            raise ValueError(f"the loops are at step {trainer.global_step}, the checkpoint at {self.step}")
        self.done = True


def check_resumable(checkpoint: dict[str, Any], path: Path) -> None:
    """Raise if a checkpoint, as `read` returns it, doesn't have a training state to continue from."""
    if not STATES.keys() <= checkpoint.keys():
        raise CheckpointError(
            f"{path} holds a model to sample from, but no training state, so it can't be resumed. Use "
            "last.ckpt or best.ckpt of a run."
        )
    for name, kind in STATES.items():
        if not isinstance(checkpoint[name], kind) or checkpoint[name] == []:
            raise resume_error(path, f"{name} is {shorten(str(checkpoint[name]))}")


def resume_error(path: Path, reason: str) -> CheckpointError:
    """Return the error of a checkpoint that training can't continue from."""
    return CheckpointError(
        f"{path} can't be resumed: its training state doesn't fit ({shorten(reason)}). Use another "
        "checkpoint of the run."
    )


def check_settings(
    checkpoint: dict[str, Any], path: Path, module: DFMModule, task: Task, accumulate: int
) -> None:
    """Raise if a checkpoint, as `read` returns it, was trained with other settings than these."""
    entry = checkpoint[KEY]
    saved = _facts(entry["model"], entry["task"], task, entry.get("accumulate_grad_batches"))
    now = _facts(describe(module), describe(task), task, accumulate)
    different = [name for name in saved if saved[name] != now.get(name)]
    if different:
        wrong = "; ".join(
            f"{name}: {_short(saved[name])} there, {_short(now.get(name))} here" for name in different
        )
        raise CheckpointError(
            f"{path} was trained with other settings ({wrong}). Continue it with its own: -c "
            f"{path.parent}/config.yaml, if you trust that file: classes that it names are imported."
        )


def _facts(
    model: dict[str, Any], described: dict[str, Any] | None, task: Task, accumulate: int | None
) -> dict[str, Any]:
    """Return what must be the same, without settings that an earlier version didn't have."""
    facts = {name: model["init_args"].get(name) for name in MODEL} | {"accumulate_grad_batches": accumulate}
    if described is None or described["class_path"] != path_of(type(task)):
        return {"task": described and described["class_path"], **facts}
    for name, value in described["init_args"].items():
        if name in task.may_change:
            continue
        if len(str(value)) > LONG:  # such as a tokenizer: messages show its digest
            digest = hashlib.sha256(str(value).encode(errors="replace")).hexdigest()[:8]
            value = f"one with digest {digest}"
        facts[f"data.{name}"] = value
    return {"task": described["class_path"], **facts}


def _short(value: Any) -> str:
    """Return a described object as Class(argument=value, ...)."""
    if not isinstance(value, dict) or "class_path" not in value:
        return shorten(str(value))
    arguments = ", ".join(
        f"{name}={_short(item)}" for name, item in value["init_args"].items() if item is not None
    )
    return shorten(f"{value['class_path'].rpartition('.')[2]}({arguments})")
