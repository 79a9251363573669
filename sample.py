"""Sample from a checkpoint and measure the samples: `python sample.py`, or `python sample.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

try:
    from tauflow.cli.sample import sample
except KeyboardInterrupt:
    sys.exit("\nstopped before anything was done")

if __name__ == "__main__":
    sample()
