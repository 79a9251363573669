"""Run a script in a fork of a process that has imported torch and Lightning already.

A new Python spends several seconds on imports, more than most scripts of the tests take. The fork has a
folder, an environment, an output and an exit code of its own, and nothing of pytest's. Tests of several ranks
and of the README start a new Python.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["lightning.pytorch", "tauflow.cli.train", "tauflow.evaluation.figures"])


class Script:
    """A script that runs as `python script arguments` does, in a fork."""

    def __init__(self, script: Path, *arguments: str, cwd: Path, env: Mapping[str, str]):
        self.words = [str(script), *arguments]
        self.folder = tempfile.TemporaryDirectory()
        self.streams = [Path(self.folder.name) / name for name in ("out", "err")]
        self.process = SERVER.Process(target=_become, args=(self.words, cwd, dict(env), self.streams))
        self.process.start()

    def finish(self, timeout: float = 240) -> subprocess.CompletedProcess:
        """Wait for its end, and return what it printed."""
        self.process.join(timeout)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        printed = [path.read_text() if path.exists() else "" for path in self.streams]
        self.folder.cleanup()
        if code is None:
            raise TimeoutError(f"{' '.join(self.words)} took more than {timeout:g} s: {printed}")
        return subprocess.CompletedProcess(self.words, code, *printed)

    def wait_until_stopped(self, timeout: float = 120) -> None:
        """Wait until the script has stopped itself (SIGSTOP)."""
        deadline = time.monotonic() + timeout
        while self.process.is_alive() and time.monotonic() < deadline:
            if Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return
            time.sleep(0.002)
        raise AssertionError(f"it did not stop itself: {self.finish(0)}")


def run_script(
    script: Path, *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float = 240
) -> subprocess.CompletedProcess:
    """Run a script to its end."""
    return Script(script, *arguments, cwd=cwd, env=env).finish(timeout)


def _become(words: list[str], cwd: Path, env: dict[str, str], streams: list[Path]) -> None:
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    multiprocessing.set_start_method("fork", force=True)  # as in a new Python, for workers of loaders
    torch.set_num_threads(1)  # OMP_NUM_THREADS was read when torch was imported
    if "PAUSE_AT" in env:
        os.setsid()  # signals to its group reach what it starts, as those of a terminal do
        runpy.run_path(str(Path(__file__).parent / "pausing.py"))
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
