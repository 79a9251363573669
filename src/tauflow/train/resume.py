"""What may not change when a run is resumed: the data, the model, and how items are counted."""

import hashlib
from pathlib import Path
from typing import Any

from tauflow.errors import CheckpointError, join_names, shorten
from tauflow.tasks import Task
from tauflow.train.checkpoints import KEY, describe
from tauflow.train.described import path_of
from tauflow.train.module import DFMModule
from tauflow.train.states import PARTS, fault_of_optimizer, fault_of_parts, unlike

MODEL = ("facts", "source", "schedule", "network")
LONG = 200  # characters of a value that is shown by its digest
DESCRIBED = {"class_path": "", "init_args": {}}


def refuse_unresumable(checkpoint: dict[str, Any], path: Path) -> None:
    """Raise if a checkpoint, as `read` gives it, does not hold what training continues from."""
    if not PARTS.keys() <= checkpoint.keys():
        raise CheckpointError(
            f"{path} holds a model to sample from, but no state of its training, so it cannot be resumed; "
            "give last.ckpt or best.ckpt of a run"
        )
    fault = fault_of_parts(checkpoint) or _fault_of_description(checkpoint[KEY])
    if fault:
        raise _damaged(path, fault)


def _fault_of_description(entry: dict[str, Any]) -> str:
    parts = {name: entry[name] for name in ("model", "task") if entry[name] is not None}
    return unlike(parts, dict.fromkeys(parts, DESCRIBED))


def _damaged(path: Path, fault: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be resumed, its {shorten(fault)} is missing or not that of a run; use another "
        "checkpoint of the run"
    )


def refuse_other_settings(
    checkpoint: dict[str, Any], path: Path, module: DFMModule, task: Task, accumulate: int
) -> None:
    """Raise if a checkpoint, as `read` gives it, was trained with other settings than these."""
    refuse_unresumable(checkpoint, path)
    entry = checkpoint[KEY]
    saved = _facts(entry["model"], entry["task"], task, entry.get("accumulate_grad_batches"))
    now = _facts(describe(module), describe(task), task, accumulate)
    different = [name for name in saved if saved[name] != now.get(name)]
    if different:
        wrong = "; ".join(
            f"{name}: {_short(saved[name])} there, {_short(now.get(name))} here" for name in different
        )
        raise CheckpointError(
            f"{path} was trained with other settings ({wrong}); continue it with its own: -c "
            f"{path.parent}/config.yaml, if you trust that file: classes that it names are imported"
        )
    _refuse_other_weights(checkpoint, path, module)


def _refuse_other_weights(checkpoint: dict[str, Any], path: Path, module: DFMModule) -> None:
    """Raise unless the weights, and the states of the optimizer, have the names and shapes of the module."""
    weights, own = checkpoint["state_dict"], module.state_dict()
    more = [name for name in weights if name not in own]
    fault = join_names(more) or unlike(weights, own) or fault_of_optimizer(checkpoint, module)
    if fault:
        raise _damaged(path, fault)


def _facts(
    model: dict[str, Any], described: dict[str, Any] | None, task: Task, accumulate: int | None
) -> dict[str, Any]:
    """Return what must be the same; a setting that an earlier version did not have is not among it."""
    facts = {name: model["init_args"].get(name) for name in MODEL} | {"accumulate_grad_batches": accumulate}
    if described is None or described["class_path"] != path_of(type(task)):
        return {"task": described and described["class_path"], **facts}
    arguments = described["init_args"].items()
    data = {f"data.{name}": _brief(value) for name, value in arguments if name not in task.may_change}
    return {"task": described["class_path"], **facts, **data}


def _brief(value: Any) -> Any:
    """Return a value that can be shown: of a tokenizer or a palette its digest."""
    text = str(value)
    if len(text) <= LONG:
        return value
    return f"one with digest {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def _short(value: Any) -> str:
    """Return a described object as Class(argument=value, ...)."""
    if not isinstance(value, dict) or unlike(value, DESCRIBED, "it"):
        return shorten(str(value))
    arguments = ", ".join(
        f"{name}={_short(item)}" for name, item in value["init_args"].items() if item is not None
    )
    return shorten(f"{value['class_path'].rpartition('.')[2]}({arguments})")
