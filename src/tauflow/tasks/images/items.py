"""Pictures of one size in a cache: read once, memory-mapped ever after.

A cache lies in `<root>/images-<key>/`: the pixels and labels of both splits as plain bytes, and facts.json
with their shapes; the key is a digest of the source, the size and the split.

Shapes: N pictures of H x W pixels.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tauflow import files
from tauflow.errors import SettingsError, first_line
from tauflow.numerics import seed_of
from tauflow.tasks.caches import building, key_of, tracked
from tauflow.tasks.images.sources import Picture, Source, SplitName, fitted, read_npz
from tauflow.tasks.images.tokens import palette_of
from tauflow.tasks.task import DataFacts, Item, Shuffled

VERSION = 1  # of the cache's format
FACTS = "facts.json"
LABEL = np.dtype("<i4")  # in files; -1 where there is none


@dataclass(frozen=True)
class Split:
    """How pictures are brought to a size and shared between training and validation."""

    size: tuple[int, int] | None  # (H, W); None: as they are
    val_share: float  # of the pictures, chosen by their pixels, where the source has none for validation
    seed: int

    def validates(self, pixels: np.ndarray) -> bool:
        """Return whether a picture is for validation, by its own pixels: copies are on the same side."""
        own = hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()
        return seed_of("split", self.seed, own) / 2**63 < self.val_share


@dataclass(frozen=True)
class Cache:
    """The pictures (N, H, W) or (N, H, W, 3), labels (N,) and names of classes in a folder."""

    folder: Path
    pictures: dict[SplitName, np.ndarray]
    labels: dict[SplitName, np.ndarray]
    classes: list[str]

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.pictures["train"].shape[1:3]
        return height, width

    @property
    def coloured(self) -> bool:
        return self.pictures["train"].ndim == 4

    def palette(self, count: int) -> list[list[int]]:
        """Return the palette of the training pictures, made once."""
        path = self.folder / f"palette-{count}.json"
        if not path.exists():
            files.write(path, json.dumps(palette_of(self.pictures["train"], count)))
        return json.loads(path.read_text())


def cached(root: Path, source: Source, split: Split, progress: bool = False) -> Cache:
    """Return the pictures of a source; build their cache if needed."""
    key = key_of(VERSION, source.digest(), split.size, split.val_share, split.seed)
    folder = root / f"images-{key}"
    if not folder.is_dir():
        with building(folder, "the cache of pictures") as new:
            _build(new, source, split, progress)
    return _opened(folder)


def _opened(folder: Path) -> Cache:
    pictures: dict[SplitName, np.ndarray] = {}
    labels: dict[SplitName, np.ndarray] = {}
    try:
        facts = json.loads((folder / FACTS).read_text())
        for name, count in facts["counts"].items():
            shape = (count, *facts["shape"])
            pictures[name] = np.memmap(folder / f"{name}.pixels", np.uint8, mode="r", shape=shape)
            labels[name] = np.memmap(folder / f"{name}.labels", LABEL, mode="r", shape=(count,))
        return Cache(folder, pictures, labels, facts["classes"])
    except (OSError, ValueError, LookupError) as error:
        raise SettingsError(
            f"the cached pictures in {folder} are damaged ({first_line(error)}); remove that folder: they "
            "are made again from the data"
        ) from None


def _build(folder: Path, source: Source, split: Split, progress: bool) -> None:
    classes = source.classes()
    own = source.has_validation()
    counts = {"train": 0, "val": 0}
    shape: tuple[int, ...] = ()
    with ExitStack() as stack:
        out = {
            f"{name}.{kind}": stack.enter_context(open(folder / f"{name}.{kind}", "wb"))
            for name in counts
            for kind in ("pixels", "labels")
        }
        for given in ("train", "val") if own else ("train",):
            for picture in tracked(source.read(given), f"reading pictures ({given})", progress):  # type: ignore[arg-type]  # the two splits
                pixels = _checked(picture, split, shape)
                shape = pixels.shape
                name = given if own else "val" if split.validates(pixels) else "train"
                out[f"{name}.pixels"].write(pixels.tobytes())
                out[f"{name}.labels"].write(LABEL.type(_label(picture, classes)).tobytes())
                counts[name] += 1
    if not min(counts.values()):
        raise SettingsError(
            f"there are {counts['train']} pictures for training and {counts['val']} for validation "
            f"({split.val_share:.1%} of all, chosen by their pixels); give more pictures, or another "
            "--data.val_share"
        )
    files.write(folder / FACTS, json.dumps({"shape": shape, "counts": counts, "classes": classes}))


def _checked(picture: Picture, split: Split, shape: tuple[int, ...]) -> np.ndarray:
    """Return a picture in its size; refuse one of another size or kind than those before it."""
    pixels = picture.pixels if split.size is None else fitted(picture.pixels, split.size, picture.name)
    if shape and pixels.ndim != len(shape):
        kinds = ("grey", "in colour")
        kind, others = kinds if pixels.ndim == 2 else kinds[::-1]
        raise SettingsError(
            f"{picture.name} is {kind}, the pictures before it are {others}; convert or remove it"
        )
    if shape and pixels.shape != shape:
        raise SettingsError(
            f"{picture.name} has {pixels.shape[0]} x {pixels.shape[1]} pixels, the pictures before it have "
            f"{shape[0]} x {shape[1]}; give --data.size to bring all to one size"
        )
    return pixels


def _label(picture: Picture, classes: list[str]) -> int:
    if not classes:
        return -1
    if picture.label is None or not 0 <= picture.label < len(classes):
        raise SettingsError(
            f"{picture.name} has the label {picture.label}, the classes are 0 to {len(classes) - 1}; give it "
            "one of them, or train with --data.labels false"
        )
    return picture.label


# Pictures as items of training and validation, and those that a run keeps beside its checkpoints.
#
# Shapes: N pictures of H x W pixels, V data tokens.


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
