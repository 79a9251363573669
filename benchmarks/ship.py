"""Make a shipped model of a finished run: weights of 16 bits, the YAML, checksums, and some real pictures.

python -m benchmarks ship checkpoints/fashion/version_0 configs/fashion.yaml fashion
python -m benchmarks ship checkpoints/scenes/version_0 configs/scenes.yaml scenes
python -m benchmarks ship checkpoints/molecules/version_0 configs/molecules.yaml molecules

writes NAME.ckpt, NAME.yaml and SHA256SUMS to checkpoints/shipped. Of a run that keeps real pictures,
pictures.npz holds some, with the classes of validation pictures in turn, so that samples show all of them.
Of a run that keeps statistics of strings, statistics.npz is theirs.
"""

import argparse
import math
import shutil
from pathlib import Path

import numpy as np
from torch import Tensor

import tauflow
from tauflow.evaluation.evaluate import real_items
from tauflow.files import digest, write
from tauflow.tasks import Task
from tauflow.tasks.images.items import KeptImages
from tauflow.tasks.sequences.task import STATISTICS
from tauflow.train import SHIPPED

VALIDATION, REFERENCE = 160, 400  # pictures that are kept
COMPARED = 64  # pictures by which the rounded weights are compared


def in_turn(labels: np.ndarray) -> np.ndarray:
    """Return the numbers of pictures with their classes in turn: the first of each class, the second, ..."""
    earlier = [int((labels[:number] == label).sum()) for number, label in enumerate(labels)]
    return np.lexsort((labels, earlier))


def nll(path: Path, task: Task) -> Tensor:
    """Return the bits of each token of some validation items at 8 evaluations (N,)."""
    task.setup("validate")
    data, condition = real_items(task, range(COMPARED))
    model = tauflow.load(path).model
    return tauflow.nll(model, "spaced", 8, data, condition=condition) / model.length / math.log(2)


def ship_pictures(run: Path, task: Task, folder: Path) -> None:
    """Write some of the real pictures that a run keeps."""
    kept = KeptImages.load(run / "pictures.npz", task.facts)
    some = in_turn(kept.val_labels)[:VALIDATION]
    reference = kept.reference[:REFERENCE], kept.reference_labels[:REFERENCE]
    KeptImages(kept.val[some], kept.val_labels[some], *reference, kept.unigrams).save(folder / "pictures.npz")


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
    if (arguments.run / "pictures.npz").exists():
        ship_pictures(arguments.run, trained.task, folder)
    if (arguments.run / STATISTICS).exists():
        shutil.copyfile(arguments.run / STATISTICS, folder / STATISTICS)
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    write(folder / "SHA256SUMS", "".join(f"{digest(path)}  {path.name}\n" for path in files))
    for path in files:
        print(f"{path.stat().st_size:>9}  {path}")
    if not trained.model.process.absorbing:
        return
    task = trained.task
    change = nll(folder / f"{name}.ckpt", task) - nll(arguments.run / "best.ckpt", task)
    print(f"16 bits change nll by {change.mean():.6f} ± {change.std() / len(change) ** 0.5:.6f} bits a token")


if __name__ == "__main__":
    main()
