"""Pictures as items of training and validation, and those that a run keeps beside its checkpoints.

Shapes: N pictures of H x W pixels, V data tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tauflow import files
from tauflow.errors import SettingsError
from tauflow.seeds import seed_of
from tauflow.tasks.base import DataFacts, Item, Shuffled
from tauflow.tasks.images.arrays import read_npz


class Items(Dataset[Item]):
    """Pictures (N, H, W) or (N, H, W, 3), encoded when they are asked for, with labels (N,) or none."""

    def __init__(
        self,
        pictures: np.ndarray,
        labels: np.ndarray | None,
        encode: Callable[[Tensor], Tensor] = lambda x: x,
    ):
        self.pictures = pictures
        self.labels = labels
        self.encode = encode

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        numbers = [int(number) for number in numbers]
        rows = self.encode(torch.from_numpy(np.array(self.pictures[numbers]))).long()
        if self.labels is None:
            return [{"tokens": row} for row in rows]
        labels = torch.from_numpy(np.array(self.labels[numbers])).long()[:, None]
        return [{"tokens": row, "condition": label} for row, label in zip(rows, labels, strict=True)]

    def some(self, count: int, generator: torch.Generator) -> "Items":
        """Return the first items of a permutation that is drawn: pictures may be sorted by class."""
        rows = torch.randperm(len(self), generator=generator)[:count].tolist()
        return Items(self.pictures[rows], None if self.labels is None else self.labels[rows], self.encode)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all tokens uint8 (N, *shape), and labels (N,) that are 0 where there are none."""
        tokens = self.encode(torch.from_numpy(np.array(self.pictures))).numpy()
        labels = np.zeros(len(self)) if self.labels is None else self.labels
        return tokens, np.asarray(labels).astype(np.int64)


class Flipped(Shuffled):
    """Shuffled pictures, each as it is or mirrored: a coin that is a pure function of seed and position."""

    def __getitems__(self, positions: Sequence[int]) -> list[Item]:
        items = super().__getitems__(positions)
        for position, item in zip(positions, items, strict=True):
            if seed_of("flip", self.seed, int(position)) & 1:
                item["tokens"] = item["tokens"].flip(1)  # (H, W) or (H, W, 3)
        return items


@dataclass(frozen=True)
class Kept:
    """What a run keeps of its data, so that a checkpoint is measured without it.

    Args:
        val: tokens of the validation items, uint8 (N, *shape).
        val_labels: their labels (N,); 0 for data without labels.
        reference: tokens of training pictures that samples are compared with, uint8 (N, *shape).
        reference_labels: their labels (N,); 0 for data without labels.
        unigrams: law of the training tokens, float64 (V,).
    """

    val: np.ndarray
    val_labels: np.ndarray
    reference: np.ndarray
    reference_labels: np.ndarray
    unigrams: np.ndarray

    def save(self, path: Path) -> None:
        with files.atomic(path) as file:
            np.savez_compressed(file, **vars(self))

    @classmethod
    def load(cls, path: Path, facts: DataFacts) -> "Kept":
        """Read the file of a run; refuse what does not fit the facts of the data."""
        arrays = read_npz(path)
        if not _fit(arrays, facts):
            raise SettingsError(
                f"{path} does not hold what the run of this checkpoint kept of its pictures; restore it, or "
                "remove it and name the pictures"
            )
        return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})


def _fit(arrays: dict[str, np.ndarray], facts: DataFacts) -> bool:
    if set(arrays) != set(Kept.__dataclass_fields__):
        return False
    law = arrays["unigrams"]
    if law.dtype != np.float64 or law.shape != (facts.num_tokens,) or not (law > 0).all():
        return False
    classes = facts.conditions[0] if facts.conditions else 1
    for name in ("val", "reference"):
        tokens, labels = arrays[name], arrays[f"{name}_labels"]
        if tokens.dtype != np.uint8 or tokens.shape[1:] != facts.shape or not len(tokens):
            return False
        if labels.dtype.kind != "i" or labels.shape != (len(tokens),):
            return False
        if tokens.max() >= facts.num_tokens or labels.min() < 0 or labels.max() >= classes:
            return False
    return bool(abs(law.sum() - 1) < 1e-6)
