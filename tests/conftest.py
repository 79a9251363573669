"""Shared helpers: a training run small enough for a test, through the same command line that users have."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]

torch.set_num_threads(1)  # pytest uses every core already, one process each

# one thread: the runs are tiny, and several may go at once
ENV = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}

TINY = [
    *("-c", str(ROOT / "configs" / "countdown.yaml"), "-c", str(ROOT / "configs" / "smoke.yaml")),
    *("--data.length=16", "--data.values=6", "--data.batch_size=8", "--data.epoch_items=64", "--data.val_items=12"),
    *("--model.network.width=16", "--model.network.blocks=1", "--model.network.heads=2", "--model.warmup_steps=2"),
    *("--trainer.log_every_n_steps=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
    "--evaluation.every_n_validations=0",
]


def train_command(*args: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *args]


def run_train(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess:
    return subprocess.run(train_command(*args), cwd=cwd, env=ENV, capture_output=True, text=True, timeout=timeout)


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 120) -> None:
    """Until a running command has written the file, or has ended."""
    deadline = time.monotonic() + seconds
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All scalars of a run's event files, as {tag: [(step, value), ...]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def load_plain(path: Path) -> dict:
    return torch.load(path, weights_only=True, map_location="cpu")


def assert_equal(a, b, where: str = "") -> None:
    """Bit-for-bit equality of nested plain data with tensors."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for number, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_equal(left, right, f"{where}[{number}]")
    else:
        assert a == b, where


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder of a finished tiny run of 24 steps (3 epochs)."""
    folder = tmp_path_factory.mktemp("trained")
    result = run_train(*TINY, "--trainer.max_steps=24", f"--trainer.default_root_dir={folder}", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "version_0"
