"""Sample from a checkpoint and measure the samples: `python sample.py`, or `python sample.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from tauflow.cli.commands import run

if __name__ == "__main__":
    run("sample", sys.argv[1:])
