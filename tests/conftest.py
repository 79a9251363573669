"""Shared helpers: a training run small enough for a test, through the same command line that users have."""

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked import Script, run_script

ROOT = Path(__file__).parents[1]

torch.set_num_threads(1)  # pytest uses every core already, one process each

# one thread: the runs are tiny, and several may go at once
ENV = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}
ENV["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # for benchmarks

TINY = [
    *("-c", str(ROOT / "configs" / "countdown.yaml"), "-c", str(ROOT / "configs" / "smoke.yaml")),
    *(
        "--data.length=16",
        "--data.values=6",
        "--data.batch_size=8",
        "--data.epoch_items=64",
        "--data.val_items=12",
    ),
    *(
        "--model.network.width=16",
        "--model.network.blocks=1",
        "--model.network.heads=2",
        "--model.optimizer.warmup_steps=2",
        "--model.optimizer.name=adamw",
        "--trainer.precision=32-true",
    ),
    *("--trainer.log_every_n_steps=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
    "--evaluation.every_n_validations=0",
]


def train_command(*args: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *args]


def run_train(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess:
    return run_script(ROOT / "train.py", *args, cwd=cwd, env=ENV, timeout=timeout)


def train_here(*args: str, cwd: Path) -> str:
    """Run train.py's entry point in this process, without waiting for imports; return what it printed."""
    from tauflow.cli.train import train

    printed = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(cwd)
        patch.setenv("COLUMNS", ENV["COLUMNS"])
        patch.setattr("sys.argv", ["train.py", *args])
        patch.setattr("sys.path", [*sys.path])
        with pytest.raises(SystemExit) as stop:
            train()
    printed.seek(0)
    assert stop.value.code == 0, stop.value.code
    return printed.read()


def sample_here(checkpoint: Path, capfd: pytest.CaptureFixture[str], *words: object) -> tuple[object, str]:
    """Run sample.py's entry point in this process; return (exit code or message, what it printed)."""
    from tauflow.cli.sample import sample

    flags = ("--ckpt", checkpoint, "--nfe", 2, "--nll_items", 0, "--accelerator", "cpu", "--no_progress")
    with pytest.raises(SystemExit) as stop:
        sample([*map(str, (*flags, *words))])
    return stop.value.code, capfd.readouterr().out


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 120) -> None:
    """Wait until a running command has written the file; fail if it ends before."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, f"the command ended without writing {path}"
        assert time.monotonic() < deadline, f"the command has not written {path} in {seconds:g} s"
        time.sleep(0.0005)


def paused(script: Path, *arguments: object, written: Path, cwd: Path) -> Script:
    """Start a script that stops itself (SIGSTOP) when it has written a file, and wait for that.

    However slow this process is, the script is then in the middle; signals reach it after SIGCONT.
    """
    started = Script(script, *map(str, arguments), cwd=cwd, env=ENV | {"PAUSE_AT": str(written)})
    started.wait_until_stopped()
    return started


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All scalars of a run's event files, as {tag without its group: [(step, value), ...]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        re.sub(r"^\d_[a-z]+/", "", tag): [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


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
    train_here(*TINY, "--trainer.max_steps=24", f"--trainer.default_root_dir={folder}", cwd=folder)
    return folder / "version_0"


@pytest.fixture(scope="session")
def written_antibodies(tmp_path_factory):
    """A folder with the packages antiberty and sapiens, of tiny models, and their weights."""
    from tiny_antibodies import write_antiberty, write_sapiens

    root = tmp_path_factory.mktemp("packages")
    return SimpleNamespace(root=root, antiberty=write_antiberty(root), sapiens=write_sapiens(root))


@pytest.fixture
def antibody_packages(written_antibodies, monkeypatch):
    """The tiny packages in place of the real ones."""
    monkeypatch.syspath_prepend(written_antibodies.root)
    return written_antibodies


@pytest.fixture(scope="module")
def saved_gemma(tmp_path_factory):
    """Return a tiny DiffusionGemma as a Transformers model, and the folder it's saved in."""
    import tiny_gemma

    folder = tmp_path_factory.mktemp("gemma")
    return tiny_gemma.save(folder), folder
