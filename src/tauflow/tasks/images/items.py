"""Images as items of training and validation: cached in one size, and kept with a run.

A cache lies in `<root>/images-<key>/`: the pixels and labels of both splits as plain bytes, and facts.json
with their shapes. The key is a digest of the source, the size and the split. Files are memory-mapped.

Shapes: N images of H x W pixels, V data tokens.
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
from tauflow.errors import SettingsError
from tauflow.numerics import seed_of
from tauflow.tasks.caches import building, key_of, tracked
from tauflow.tasks.images.sources import ImageSource, SourceImage, SplitName, fit_image, read_npz
from tauflow.tasks.images.tokens import find_palette
from tauflow.tasks.task import DataFacts, Item, Shuffled

VERSION = 1  # of the cache's format
FACTS = "facts.json"
LABEL = np.dtype("<i4")  # in files; -1 where there is none


@dataclass(frozen=True)
class ImageSplit:
    """How images are brought to a size and shared between training and validation."""

    size: tuple[int, int] | None  # (H, W); None: as they are
    val_share: float  # of the images, chosen by their pixels, where the source has none for validation
    seed: int

    def validates(self, pixels: np.ndarray) -> bool:
        """Return whether an image is for validation, by its own pixels: copies are on the same side."""
        own = hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()
        return seed_of("split", self.seed, own) / 2**63 < self.val_share


@dataclass(frozen=True)
class ImageCache:
    """The images (N, H, W) or (N, H, W, 3), labels (N,) and names of classes in a folder."""

    folder: Path
    images: dict[SplitName, np.ndarray]
    labels: dict[SplitName, np.ndarray]
    classes: list[str]

    def palette(self, count: int) -> list[list[int]]:
        path = self.folder / f"palette-{count}.json"
        if not path.exists():
            files.write(path, json.dumps(find_palette(self.images["train"], count)))
        return json.loads(path.read_text())


def cached_images(root: Path, source: ImageSource, split: ImageSplit, progress: bool = False) -> ImageCache:
    """Return the images of a source; build their cache if needed."""
    key = key_of(VERSION, source.digest(), split.size, split.val_share, split.seed)
    folder = root / f"images-{key}"
    if not folder.is_dir():
        with building(folder, "the cache of images") as new:
            _build(new, source, split, progress)
    images: dict[SplitName, np.ndarray] = {}
    labels: dict[SplitName, np.ndarray] = {}
    facts = json.loads((folder / FACTS).read_text())
    for name, count in facts["counts"].items():
        shape = (count, *facts["shape"])
        images[name] = np.memmap(folder / f"{name}.pixels", np.uint8, mode="r", shape=shape)
        labels[name] = np.memmap(folder / f"{name}.labels", LABEL, mode="r", shape=(count,))
    return ImageCache(folder, images, labels, facts["classes"])


def _build(folder: Path, source: ImageSource, split: ImageSplit, progress: bool) -> None:
    classes = source.classes()
    has_validation = source.has_validation()
    splits: tuple[SplitName, ...] = ("train", "val") if has_validation else ("train",)
    counts = {"train": 0, "val": 0}
    shape: tuple[int, ...] = ()
    with ExitStack() as stack:
        out = {
            f"{name}.{kind}": stack.enter_context(open(folder / f"{name}.{kind}", "wb"))
            for name in counts
            for kind in ("pixels", "labels")
        }
        for given in splits:
            for image in tracked(source.read(given), f"reading images ({given})", progress):
                pixels = _resize(image, split, shape)
                shape = pixels.shape
                name: str = given
                if not has_validation and split.validates(pixels):
                    name = "val"
                out[f"{name}.pixels"].write(pixels.tobytes())
                out[f"{name}.labels"].write(LABEL.type(_label_of(image, classes)).tobytes())
                counts[name] += 1
    if not min(counts.values()):
        raise SettingsError(
            f"there are {counts['train']} images for training and {counts['val']} for validation "
            f"({split.val_share:.1%} of all, chosen by their pixels); give more images, or another "
            "--data.val_share"
        )
    files.write(folder / FACTS, json.dumps({"shape": shape, "counts": counts, "classes": classes}))


def _resize(image: SourceImage, split: ImageSplit, shape: tuple[int, ...]) -> np.ndarray:
    """Return the pixels of an image in its size, which must be the shape of the images before it."""
    pixels = image.pixels if split.size is None else fit_image(image.pixels, split.size, image.name)
    if shape and pixels.shape != shape:
        raise SettingsError(
            f"Images must have one size and all be grayscale, or all in color. {image.name} has the shape "
            f"{pixels.shape}, the images before it {shape}. Convert it, or bring all to one --data.size."
        )
    return pixels


def _label_of(image: SourceImage, classes: list[str]) -> int:
    if not classes:
        return -1
    if image.label is None or not 0 <= image.label < len(classes):
        raise SettingsError(
            f"{image.name} has the label {image.label}, the classes are 0 to {len(classes) - 1}; give it "
            "one of them, or train with --data.labels false"
        )
    return image.label


class ImageItems(Dataset[Item]):
    """Images (N, H, W) or (N, H, W, 3), encoded when they are read, with labels (N,) or none."""

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None,
        encode: Callable[[Tensor], Tensor] = lambda x: x,
    ):
        self.images = images
        self.labels = labels
        self.encode = encode

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        numbers = [int(number) for number in numbers]
        rows = self.encode(torch.from_numpy(np.array(self.images[numbers]))).long()
        if self.labels is None:
            return [{"tokens": row} for row in rows]
        labels = torch.from_numpy(np.array(self.labels[numbers])).long()[:, None]
        return [{"tokens": row, "condition": label} for row, label in zip(rows, labels, strict=True)]

    def some(self, count: int, generator: torch.Generator) -> "ImageItems":
        """Return the first items of a random permutation: images may be sorted by class."""
        rows = torch.randperm(len(self), generator=generator)[:count].tolist()
        labels = None if self.labels is None else self.labels[rows]
        return ImageItems(self.images[rows], labels, self.encode)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all tokens uint8 (N, *shape), and labels (N,), which are 0 where there are none."""
        tokens = self.encode(torch.from_numpy(np.array(self.images))).numpy()
        labels = np.zeros(len(self)) if self.labels is None else self.labels
        return tokens, np.asarray(labels).astype(np.int64)


class Flipped(Shuffled):
    """Shuffled images, each as it is or mirrored: a coin that is a pure function of seed and position."""

    def __getitems__(self, positions: Sequence[int]) -> list[Item]:
        items = super().__getitems__(positions)
        for position, item in zip(positions, items, strict=True):
            if seed_of("flip", self.seed, int(position)) & 1:
                item["tokens"] = item["tokens"].flip(1)  # (H, W) or (H, W, 3)
        return items


@dataclass(frozen=True)
class KeptImages:
    """What a run keeps of its data, so that a checkpoint is measured without it; labels are 0 if unknown."""

    val: np.ndarray  # tokens of the validation items, uint8 (N, *shape)
    val_labels: np.ndarray  # (N,)
    reference: np.ndarray  # tokens of training images that samples are compared with
    reference_labels: np.ndarray
    unigrams: np.ndarray  # distribution of the training tokens, float64 (V,)

    def save(self, path: Path) -> None:
        with files.atomic(path) as file:
            np.savez_compressed(file, **vars(self))

    @classmethod
    def load(cls, path: Path, facts: DataFacts) -> "KeptImages":
        """Read the file of a run, which may come from a stranger with a checkpoint."""
        arrays = read_npz(path)
        if not _fits(arrays, facts):
            raise SettingsError(
                f"{path} does not hold what the run of this checkpoint kept of its images; restore it, or "
                "remove it and pass the images"
            )
        return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})


def _fits(arrays: dict[str, np.ndarray], facts: DataFacts) -> bool:
    if set(arrays) != set(KeptImages.__dataclass_fields__):
        return False
    if arrays["unigrams"].shape != (facts.num_tokens,) or not (arrays["unigrams"] > 0).all():
        return False
    classes = facts.conditions[0] if facts.conditions else 1
    for name in ("val", "reference"):
        tokens = arrays[name]
        labels = arrays[f"{name}_labels"]
        if tokens.dtype != np.uint8 or tokens.shape[1:] != facts.shape or not len(tokens):
            return False
        if labels.dtype.kind != "i" or labels.shape != (len(tokens),):
            return False
        if tokens.max() >= facts.num_tokens or labels.min() < 0 or labels.max() >= classes:
            return False
    return True
