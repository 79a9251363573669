"""Run a script in a fork of a process that has imported torch and Lightning already.

A new Python spends several seconds on imports, more than most scripts of the tests take. The fork has a
folder, an environment, an output and an exit code of its own, and nothing of pytest's. Tests of signals, of
several processes and of the README start a new Python.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["lightning.pytorch", "tauflow.cli.train", "tauflow.evaluation.figures"])


def run_script(
    script: Path, *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float = 240
) -> subprocess.CompletedProcess:
    """Run a script as `python script arguments` does, and return what it printed."""
    words = [str(script), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("out", "err")]
        process = SERVER.Process(target=_become, args=(words, cwd, dict(env), streams))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{' '.join(words)} took more than {timeout:g} s")
        return subprocess.CompletedProcess(words, process.exitcode, *(each.read_text() for each in streams))


def _become(words: list[str], cwd: Path, env: dict[str, str], streams: list[Path]) -> None:
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)  # OMP_NUM_THREADS was read when torch was imported
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
