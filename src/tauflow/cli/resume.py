"""Resuming a run: which checkpoint, and whether it may continue."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from tauflow.errors import CheckpointError


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that training continues from."""

    path: Path
    checkpoint: dict[str, Any]

    @property
    def in_place(self) -> bool:
        """Return whether the run continues in its folder, from its last checkpoint; others begin anew."""
        return self.path.name == "last.ckpt" and (self.path.parent / "config.yaml").exists()

    @property
    def folder(self) -> Path:
        """Return the folder of the run, with a name."""
        folder = self.path.parent
        return folder if folder.name not in ("", "..") else self.path.resolve().parent

    @property
    def step(self) -> int:
        return self.checkpoint["global_step"]

    def finished(self, trainer: Namespace) -> str:
        """Return which end that is asked for is reached already, and how to train further; "" if none."""
        epochs = self.checkpoint["epoch"]
        limits = (("step", self.step, trainer.max_steps), ("epoch", epochs, trainer.max_epochs))
        for name, reached, limit in limits:
            if limit is not None and 0 <= limit <= reached:
                return f"{name} {reached} of {limit}; raise --trainer.max_{name}s to train it further"
        return ""


def resolve(ckpt_path: str | None, root: Path) -> Path | None:
    """Return the checkpoint that is meant; `last` is that of the newest run."""
    if ckpt_path is None:
        return None
    if not ckpt_path.strip():
        raise CheckpointError("--ckpt_path is empty; name a checkpoint, or drop it to start a new run")
    if ckpt_path != "last":
        return Path(ckpt_path)
    found = sorted(root.glob("*/last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise CheckpointError(
            f"--ckpt_path last: there is no run to resume under {root}; drop it to start one"
        )
    return found[-1]
