"""Resume a run: what a checkpoint must have, what may change, and what may not (data, model, batches)."""

import hashlib
import math
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from tauflow.errors import CheckpointError, shorten
from tauflow.tasks import Task
from tauflow.train.checkpoint import update_names
from tauflow.train.module import KEY, DFMModule, describe
from tauflow.untrusted import path_of

MODEL = ("facts", "source", "schedule", "network", "loss_on", "condition_dropout", "seed")
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
            f"{name}: {show(saved[name])} there, {show(now.get(name))} here" for name in different
        )
        config = find_run_config(path.parent, checkpoint["global_step"])
        raise CheckpointError(
            f"{path} was trained with other settings ({wrong}). Continue it with its own: -c {config}, if "
            "you trust that file: classes that it names are imported."
        )


def find_run_config(folder: Path, step: float = math.inf) -> Path:
    """Return the configuration that the checkpoint of a step was trained with; by default the newest one.

    A run's first start writes config.yaml. Resuming it in its folder writes config_from_step_N.yaml.
    """
    starts = {0: folder / "config.yaml"}
    for path in folder.glob("config_from_step_*.yaml"):
        number = path.stem.removeprefix("config_from_step_")
        if number.isdecimal() and int(number) < step:
            starts[int(number)] = path
    return starts[max(starts)]


def find_changes(
    checkpoint: dict[str, Any], path: Path, config: dict[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from those that a checkpoint was trained with: {flag: (old, new)}.

    The old ones are in the configuration next to the checkpoint. Without that file, only those of the
    optimizer are known.
    """
    saved = find_run_config(path.parent, checkpoint["global_step"])
    old: Any = {"model": {"optimizer": checkpoint[KEY]["model"]["init_args"]["optimizer"]["init_args"]}}
    if saved.is_file():
        try:
            old = yaml.safe_load(update_names(saved.read_text(encoding="utf-8")))
        except (ValueError, yaml.YAMLError) as error:
            raise CheckpointError(f"{saved} isn't valid YAML: {shorten(str(error))}") from None
    before = by_flag(old)
    now = by_flag(config)
    kept = [name for name in now if name in before and name != "init_from"]
    return {name: (before[name], now[name]) for name in kept if before[name] != now[name]}


def by_flag(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings by the names of their flags."""
    if not isinstance(value, dict):
        return {name: value}
    found = {name: value["class_path"]} if "class_path" in value else {}
    for key, item in (value.get("init_args") or {} if found else value).items():
        found |= by_flag(item, f"{name}.{key}".lstrip("."))
    return found


def _facts(
    model: dict[str, Any], described: dict[str, Any] | None, task: Task, accumulate: int | None
) -> dict[str, Any]:
    """Return what must be the same, without settings that an earlier version didn't have."""
    arguments = model["init_args"]
    facts = {name: arguments[name] for name in MODEL if name in arguments}
    facts["optimizer.name"] = arguments["optimizer"]["init_args"].get("name", "adamw")
    facts["accumulate_grad_batches"] = accumulate
    if described is None or described["class_path"] != path_of(type(task)):
        return {"task": described and described["class_path"], **facts}
    for name, value in described["init_args"].items():
        if name in task.may_change:
            continue
        facts[f"data.{name}"] = value
    return {"task": described["class_path"], **facts}


def show(value: Any) -> str:
    """Return a value for a message: an object as Class(argument=value, ...), a long one by its digest."""
    if not isinstance(value, dict) or "class_path" not in value:
        if len(str(value)) > LONG:  # such as a tokenizer
            digest = hashlib.sha256(str(value).encode(errors="replace")).hexdigest()[:8]
            return f"one with digest {digest}"
        return "null" if value is None else shorten(str(value))
    arguments = ", ".join(
        f"{name}={show(item)}" for name, item in value["init_args"].items() if item is not None
    )
    return shorten(f"{value['class_path'].rpartition('.')[2]}({arguments})")
