"""Make a shipped model of a finished run of pictures: weights of 16 bits, some pictures, the YAML, checksums.

python benchmarks/ship.py checkpoints/fashion/version_0 configs/fashion.yaml fashion

writes fashion.ckpt, fashion.yaml, pictures.npz and SHA256SUMS to checkpoints/shipped. pictures.npz holds some
of what the run keeps, with the classes of validation pictures in turn, so that samples show all of them.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import tauflow
from tauflow.files import digest, write
from tauflow.tasks.images.items import Kept
from tauflow.train import SHIPPED

VALIDATION, REFERENCE = 160, 400  # pictures that are kept
COMPARED = 64  # pictures by which the rounded weights are compared


def in_turn(labels: np.ndarray) -> np.ndarray:
    """Return the numbers of pictures with their classes in turn: the first of each class, the second, ..."""
    earlier = [int((labels[:number] == label).sum()) for number, label in enumerate(labels)]
    return np.lexsort((labels, earlier))


def nll(path: Path, kept: Kept) -> Tensor:
    """Return the bits of each token of some validation pictures at 8 evaluations (N,)."""
    data = torch.from_numpy(kept.val[:COMPARED]).long().flatten(1)
    labels = torch.from_numpy(kept.val_labels[:COMPARED])[:, None]
    model = tauflow.load(path).model
    condition = labels if model.conditions else None
    return tauflow.nll(model, "spaced", 8, data, condition=condition) / model.length / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("config", type=Path, help="YAML that it was trained with")
    parser.add_argument("name", help="of the shipped files")
    parser.add_argument("--folder", type=Path, default=SHIPPED, help="where to write them")
    arguments = parser.parse_args()
    folder, name = arguments.folder, arguments.name

    trained = tauflow.load(arguments.run / "best.ckpt")
    tauflow.export(arguments.run / "best.ckpt", folder / f"{name}.ckpt", half=True)
    head = f"# The run behind {name}.ckpt: {arguments.config}; its best checkpoint, at step {trained.step}.\n"
    write(folder / f"{name}.yaml", head + arguments.config.read_text())
    kept = Kept.load(arguments.run / "pictures.npz", trained.task.facts)
    some = in_turn(kept.val_labels)[:VALIDATION]
    reference = kept.reference[:REFERENCE], kept.reference_labels[:REFERENCE]
    Kept(kept.val[some], kept.val_labels[some], *reference, kept.unigrams).save(folder / "pictures.npz")
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    write(folder / "SHA256SUMS", "".join(f"{digest(path)}  {path.name}\n" for path in files))
    for path in files:
        print(f"{path.stat().st_size:>9}  {path}")
    change = nll(folder / f"{name}.ckpt", kept) - nll(arguments.run / "best.ckpt", kept)
    print(f"16 bits change nll by {change.mean():.6f} ± {change.std() / len(change) ** 0.5:.6f} bits a token")


if __name__ == "__main__":
    main()
