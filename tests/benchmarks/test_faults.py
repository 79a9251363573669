"""The list of `python -m benchmarks faults` is up to date: faults can be applied, and their tests exist."""

import subprocess
import sys

from conftest import ROOT


def test_every_fault_can_be_applied():
    command = [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
