"""Train a discrete-flow-matching denoiser: `python train.py`, or `python train.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from tauflow.cli.commands import run

if __name__ == "__main__":
    run("train", sys.argv[1:])
