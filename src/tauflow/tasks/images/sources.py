"""Where pictures come from: a folder, an .npz file or MNIST's idx files; for the hub see hub.py."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tauflow import files
from tauflow.errors import SettingsError
from tauflow.tasks.images.arrays import read_idx, read_npz
from tauflow.tasks.images.pictures import EXTENSIONS, opened

SplitName = Literal["train", "val"]
VALIDATION = ("validation", "valid", "val", "test")  # names of splits, the first that there is is taken


class Picture(NamedTuple):
    """A picture with its name for messages, and the number of its class if it has one."""

    name: str
    pixels: np.ndarray  # uint8 (H, W) or (H, W, 3)
    label: int | None


class Source(ABC):
    """Abstract: pictures in a fixed order, and a digest that changes when any of them does."""

    @abstractmethod
    def digest(self) -> str: ...

    @abstractmethod
    def classes(self) -> list[str]:
        """Return the names of the classes; none if pictures have no labels."""

    @abstractmethod
    def has_validation(self) -> bool:
        """Return whether there are pictures for validation, apart from those for training."""

    @abstractmethod
    def read(self, split: SplitName) -> Iterator[Picture]:
        """Yield the pictures of a split."""


@dataclass(frozen=True)
class Folder(Source):
    """Pictures in a folder; those in subfolders have the name of the subfolder as their class."""

    path: Path

    @cached_property
    def names(self) -> list[Path]:
        """Return the pictures, relative to the folder."""
        if not self.path.is_dir():
            raise SettingsError(f"--data.pictures: there is no folder {self.path}")
        found = [
            path for path in self.path.rglob("*") if path.suffix.lower() in EXTENSIONS and path.is_file()
        ]
        if not found:
            raise SettingsError(f"--data.pictures: {self.path} holds no picture ({', '.join(EXTENSIONS)})")
        return sorted(path.relative_to(self.path) for path in found)

    def digest(self) -> str:
        facts = [(self.path / name).stat() for name in self.names]
        told = [
            (str(name), fact.st_size, fact.st_mtime_ns) for name, fact in zip(self.names, facts, strict=True)
        ]
        return digest_of(told)

    def classes(self) -> list[str]:
        if any(len(name.parts) == 1 for name in self.names):
            return []
        found = sorted({name.parts[0] for name in self.names})
        if {each.lower() for each in found} <= {"train", *VALIDATION}:
            raise SettingsError(
                f"the subfolders of {self.path} are splits ({', '.join(found)}), not classes; give the "
                "folder as --data.hub, which reads them"
            )
        return found

    def has_validation(self) -> bool:
        return False

    def read(self, split: SplitName) -> Iterator[Picture]:
        classes = {name: number for number, name in enumerate(self.classes())}
        for name in self.names:
            path = self.path / name
            yield Picture(str(path), opened(path, str(path)), classes.get(name.parts[0]))


@dataclass(frozen=True)
class Arrays(Source):
    """Abstract: pictures as arrays in memory, (N, H, W) or (N, H, W, 3), with labels (N,)."""

    path: Path

    @abstractmethod
    def arrays(self, split: SplitName) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the pictures and the labels of a split."""

    def has_validation(self) -> bool:
        return self.arrays("val")[0] is not None

    def classes(self) -> list[str]:
        return [str(number) for number in range(self.class_count())]

    def class_count(self) -> int:
        """Return how many classes the labels count; 0 if there are none."""
        labels = [self.arrays(split)[1] for split in ("train", "val")]
        if labels[0] is None:
            return 0
        return 1 + max(int(each.max()) for each in labels if each is not None)

    def read(self, split: SplitName) -> Iterator[Picture]:
        pictures, labels = self.arrays(split)
        for number, pixels in enumerate([] if pictures is None else pictures):
            label = None if labels is None else int(labels[number])
            yield Picture(f"picture {number} ({split}) of {self.path}", pixels, label)


@dataclass(frozen=True)
class Npz(Arrays):
    """An .npz file with images, and perhaps labels, test_images, test_labels and class_names."""

    @cached_property
    def contents(self) -> dict[str, np.ndarray]:
        return read_npz(self.path)

    def digest(self) -> str:
        self.contents  # noqa: B018 - a file that cannot be read is refused first
        return files.digest(self.path)

    def arrays(self, split: SplitName) -> tuple[np.ndarray | None, np.ndarray | None]:
        before = "test_" if split == "val" else ""
        pictures, labels = (self.contents.get(f"{before}{name}") for name in ("images", "labels"))
        if pictures is None:
            if split == "val":
                return None, None
            known = ", ".join(self.contents) or "nothing"
            raise SettingsError(f"{self.path} has no array 'images'; it has {known}")
        if pictures.ndim == 4 and pictures.shape[3] == 1:
            pictures = pictures[..., 0]
        fits = pictures.ndim == 3 or (pictures.ndim == 4 and pictures.shape[3] == 3)
        if not fits or pictures.dtype != np.uint8 or not pictures.size:
            raise SettingsError(
                f"{before}images of {self.path} must be uint8 (N, H, W) or (N, H, W, 3), got "
                f"{pictures.dtype} {pictures.shape}; scale levels to 0..255 and save them as uint8"
            )
        if labels is not None and (
            labels.shape != pictures.shape[:1] or labels.dtype.kind not in "iu" or labels.min() < 0
        ):
            raise SettingsError(
                f"{before}labels of {self.path} must be whole numbers from 0 on, one for each of the "
                f"{len(pictures)} pictures, got {labels.dtype} {labels.shape}"
            )
        return pictures, labels

    def classes(self) -> list[str]:
        count = self.class_count()
        names = self.contents.get("class_names")
        if names is None or not count:
            images = sum(len(self.contents.get(name, ())) for name in ("images", "test_images"))
            if count > images:
                raise SettingsError(
                    f"Labels of {self.path} must be 0 to K - 1 for K classes, got {count - 1} for {images} "
                    "images. Renumber the labels, or add class_names with a name for each class."
                )
            return super().classes()
        if names.dtype.kind != "U" or names.ndim != 1 or len(names) < count:
            raise SettingsError(
                f"class_names of {self.path} must be a text for each label, got {names.dtype} {names.shape} "
                f"and labels up to {count - 1}."
            )
        return names.tolist()


@dataclass(frozen=True)
class Idx(Arrays):
    """A folder in the layout of MNIST: train-images-idx3-ubyte and so on, plain or .gz."""

    def file(self, kind: str, split: SplitName, dimensions: int) -> Path | None:
        """Return the path of "images" or "labels" of a split, if there is one."""
        stem = f"{'train' if split == 'train' else 't10k'}-{kind}"
        names = [f"{stem}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
        return next((self.path / name for name in names if (self.path / name).is_file()), None)

    def digest(self) -> str:
        kinds = (("images", 3), ("labels", 1))
        paths = [self.file(kind, split, n) for split in ("train", "val") for kind, n in kinds]  # type: ignore[arg-type]  # the two splits
        return digest_of(files.digest(path) if path else None for path in paths)

    def arrays(self, split: SplitName) -> tuple[np.ndarray | None, np.ndarray | None]:
        return self._contents[split]

    @cached_property
    def _contents(self) -> dict[str, tuple[np.ndarray | None, np.ndarray | None]]:
        return {"train": self._read("train"), "val": self._read("val")}

    def _read(self, split: SplitName) -> tuple[np.ndarray | None, np.ndarray | None]:
        images, labels = self.file("images", split, 3), self.file("labels", split, 1)
        if images is None:
            if split == "train":
                raise SettingsError(
                    f"--data.idx: {self.path} is no folder with train-images-idx3-ubyte or its .gz"
                )
            return None, None
        pictures = read_idx(images, 3)
        numbers = None if labels is None else read_idx(labels, 1)
        if numbers is not None and len(numbers) != len(pictures):
            raise SettingsError(
                f"{images} holds {len(pictures)} pictures, {labels} holds {len(numbers)} labels"
            )
        return pictures, numbers


def digest_of(facts: Iterable[Any]) -> str:
    """Return a digest of plain values."""
    return hashlib.sha256(repr(list(facts)).encode()).hexdigest()
