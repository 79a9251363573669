"""Train a discrete-flow-matching denoiser: `python train.py`, or `python train.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

try:
    from tauflow.cli.train import train
except KeyboardInterrupt:
    sys.exit("\nstopped before anything was done")

if __name__ == "__main__":
    train()
