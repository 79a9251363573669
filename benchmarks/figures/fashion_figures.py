"""Draw the figures of docs/images.md with the shipped fashion model: about two minutes on one core.

python -m benchmarks fashion_figures
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from tauflow.train import SHIPPED

ROOT = Path(__file__).parents[2]
BOOT = 9  # the class of the picture to complete
FIGURES = {
    "fashion_guidance": ("samples.png", "--guidance", "1", "2", "4"),
    "fashion_samplers": (
        *("samples.png", "--nfe", "8", "--num_samples", "10"),
        *("--sampler", "auto", "fhs", "tr_cie", "theta_trapezoidal", "tweedie", "euler"),
    ),
    "fashion_completion": (
        *("samples.png", "--complete", "boot.png", "--keep", "left", "--num_samples", "10"),
        *("--sampler", "auto", "tr_cie"),
    ),
    "fashion_evolution": ("evolution.png", "--num_samples", "10", "--sampler", "auto", "tr_cie"),
}
"""{figure: (file that sample.py writes, its flags)}"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with np.load(SHIPPED / "pictures.npz") as arrays:
            number = int((arrays["val_labels"] == BOOT).argmax())
            Image.fromarray(arrays["val"][number]).save(f"{folder}/boot.png")
        for name, (file, *flags) in FIGURES.items():
            command = [sys.executable, str(ROOT / "sample.py"), "--task", "fashion", "--nll_items", "0"]
            subprocess.run([*command, *flags, "--out", name], cwd=folder, check=True)
            target = ROOT / "docs" / "images" / f"{name}.png"
            # few levels are enough for grey pictures and text
            Image.open(f"{folder}/{name}/{file}").convert("L").quantize(64).save(target, optimize=True)
            print(f"{target.stat().st_size:>8}  {target}")


if __name__ == "__main__":
    main()
