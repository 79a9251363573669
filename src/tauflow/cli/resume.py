"""Resuming a run: which checkpoint, whether it may continue, and configuration files of earlier versions."""

from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace

from tauflow.errors import CheckpointError
from tauflow.train.upgrade import OPTIMIZER


def resolve(ckpt_path: str | None, root: Path) -> Path | None:
    """Return the checkpoint that is meant; `last` is that of the newest run."""
    if ckpt_path != "last":
        return Path(ckpt_path) if ckpt_path else None
    found = sorted(root.glob("*/last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise CheckpointError(
            f"--ckpt_path last: there is no run to resume under {root}; drop it to start one"
        )
    return found[-1]


def refuse_finished(checkpoint: dict[str, Any], path: Path, trainer: Namespace) -> None:
    """Raise if a checkpoint is at the end that is asked for already."""
    step = checkpoint["global_step"]
    epoch = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    for name, reached, limit in (("step", step, trainer.max_steps), ("epoch", epoch, trainer.max_epochs)):
        if limit is not None and 0 <= limit <= reached:
            raise CheckpointError(
                f"{path} is finished: {name} {reached} of {limit}; raise --trainer.max_{name}s to train it "
                "further"
            )


def upgraded_configs(arguments: list[str]) -> list[str]:
    """Return the arguments with configuration files of an earlier version converted in memory."""
    found = list(arguments)
    for number, word in enumerate(arguments):
        flag, sign, value = word.partition("=")
        if flag == "--config" and sign:
            found[number] = f"--config={_upgraded(value)}"
        elif number and arguments[number - 1] in ("-c", "--config"):
            found[number] = _upgraded(word)
    return found


def _upgraded(name: str) -> str:
    path = Path(name)
    if not path.is_file():
        return name
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return name  # the parser says what is wrong with it
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, dict) or not set(OPTIMIZER) & set(model):
        return name
    for setting in OPTIMIZER:  # these have moved into a group
        if setting in model:
            model.setdefault("optimizer", {})[setting] = model.pop(setting)
    return yaml.safe_dump(config, sort_keys=False)
