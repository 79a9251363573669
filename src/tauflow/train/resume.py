"""What may not change when a run is resumed: the data, the model, and how items are counted."""

import hashlib
from pathlib import Path
from typing import Any

from tauflow.errors import CheckpointError
from tauflow.tasks import Task
from tauflow.train.checkpoints import KEY, describe
from tauflow.train.module import DFMModule

MODEL = ("facts", "source", "schedule", "network")
SIZES = ("batch_size", "epoch_items")
# not the files: they may have moved
DATA = ("seed", "val_share", "document", "hub", "hub_config", "hub_split", "hub_column")


def refuse_other_settings(
    checkpoint: dict[str, Any], path: Path, module: DFMModule, task: Task, accumulate: int
) -> None:
    """Raise if a checkpoint, as `read` gives it, was trained with other settings than these."""
    entry = checkpoint[KEY]
    saved = _facts(entry["model"], entry["task"], entry.get("accumulate_grad_batches"))
    now = _facts(describe(module), describe(task), accumulate)
    different = [name for name in saved if saved[name] != now[name]]
    if different:
        wrong = "; ".join(
            f"{name}: {_short(saved[name])} there, {_short(now[name])} here" for name in different
        )
        raise CheckpointError(
            f"{path} was trained with other settings ({wrong}); continue it with its own: -c "
            f"{path.parent}/config.yaml"
        )


def _facts(model: dict[str, Any], task: dict[str, Any] | None, accumulate: int | None) -> dict[str, Any]:
    arguments = task["init_args"] if task is not None else {}
    tokenizer = arguments.get("tokenizer_json")
    return {
        "task": task["class_path"] if task is not None else None,
        **{name: model["init_args"].get(name) for name in MODEL},
        "tokenizer": tokenizer and f"one with digest {hashlib.sha256(tokenizer.encode()).hexdigest()[:8]}",
        **{name: arguments.get(name) for name in SIZES},
        "accumulate_grad_batches": accumulate,
        **{f"data.{name}": arguments.get(name) for name in DATA},
    }


def _short(value: Any) -> str:
    """Return a described object as Class(argument=value, ...)."""
    if not isinstance(value, dict):
        return str(value)
    arguments = ", ".join(
        f"{name}={_short(item)}" for name, item in value["init_args"].items() if item is not None
    )
    return f"{value['class_path'].rpartition('.')[2]}({arguments})"[:120]
