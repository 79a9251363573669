"""Images as items of training and validation: cached in one size, and kept with a run.

A cache lies in `<root>/images-<key>/`: the pixels and labels of both splits as plain bytes, and facts.json
with their shapes. The key is a digest of the source, the size and the split. Files are memory-mapped.

Shapes: N images of H x W pixels, V data tokens.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
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

VERSION = 2  # of the cache's format
FACTS = "facts.json"
LABEL = np.dtype("<i4")  # in files; -1 where there is none
OWN_SIDE = 64  # pixels of a side up to which images of one size stay as they are
REDUCED_SIDE = 32  # of the squares that others become, at most: small enough to train on a laptop
VAL_SHARE = 0.05
VAL_IMAGES = 16  # where these are more than VAL_SHARE, up to half of all


@dataclass(frozen=True)
class ImageSplit:
    """How images are brought to a size and shared between training and validation."""

    size: tuple[int, int] | None  # (H, W); None: decided by the images
    val_share: float | None  # of the images, by their pixels, where the source has none for validation
    seed: int

    def validates(self, pixels: np.ndarray, share: float) -> bool:
        """Return whether an image is for validation, by its own pixels: copies are on the same side."""
        own = hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()
        return seed_of("split", self.seed, own) / 2**63 < share


@dataclass(frozen=True)
class ImageSurvey:
    """What the images of a source are like before they are brought to one size.

    Args:
        count: of the images.
        smallest: height of the lowest, and width of the narrowest one.
        largest: of the highest and the widest one.
        color: whether any is stored in color.
        grey: whether all are gray, however they are stored.
    """

    count: int
    smallest: list[int]
    largest: list[int]
    color: bool
    grey: bool

    @classmethod
    def of(cls, images: Iterable[SourceImage]) -> "ImageSurvey":
        sizes = []
        color = False
        grey = True
        for image in images:
            pixels = image.pixels
            sizes.append(pixels.shape[:2])
            if pixels.ndim == 3:
                color = True
                grey = grey and bool((pixels == pixels[..., :1]).all())
        found: np.ndarray = np.array(sizes).reshape(-1, 2)
        low, high = (found.min(0), found.max(0)) if sizes else ([0, 0], [0, 0])
        return cls(len(sizes), [int(side) for side in low], [int(side) for side in high], color, grey)

    @property
    def size(self) -> tuple[int, int]:
        """Return the size to train in: their own, or small squares where they differ or are large."""
        height, width = self.smallest
        if self.smallest == self.largest and max(height, width) <= OWN_SIDE:
            return height, width
        side = min(height, width, REDUCED_SIDE)
        return side, side

    def __str__(self) -> str:
        smallest, largest = (f"{height} x {width}" for height, width in (self.smallest, self.largest))
        size = smallest if smallest == largest else f"{smallest} to {largest}"
        return f"{self.count:,} images of {size} pixels"

    @property
    def val_share(self) -> float:
        return max(VAL_SHARE, min(0.5, VAL_IMAGES / max(1, self.count)))


@dataclass(frozen=True)
class ImageCache:
    """The images (N, H, W) or (N, H, W, 3), labels (N,) and names of classes in a folder."""

    folder: Path
    images: dict[SplitName, np.ndarray]
    labels: dict[SplitName, np.ndarray]
    classes: list[str]
    survey: ImageSurvey
    val_share: float
    values: list[int]  # levels 0 to 255 that occur in any channel

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
    survey = ImageSurvey(**facts["survey"])
    return ImageCache(folder, images, labels, facts["classes"], survey, facts["val_share"], facts["values"])


def _build(folder: Path, source: ImageSource, split: ImageSplit, progress: bool) -> None:
    classes = source.classes()
    has_validation = source.has_validation()
    splits: tuple[SplitName, ...] = ("train", "val") if has_validation else ("train",)
    given_images = (
        image
        for name in splits
        for image in tracked(source.read(name), f"looking at images ({name})", progress)
    )
    survey = ImageSurvey.of(given_images)
    size = split.size or survey.size
    share = survey.val_share if split.val_share is None else split.val_share
    counts = {"train": 0, "val": 0}
    shape = (*size, 3) if survey.color else size
    used = np.zeros(256, dtype=bool)
    with ExitStack() as stack:
        out = {
            f"{name}.{kind}": stack.enter_context(open(folder / f"{name}.{kind}", "wb"))
            for name in counts
            for kind in ("pixels", "labels")
        }
        for given in splits:
            for image in tracked(source.read(given), f"reading images ({given})", progress):
                pixels = fit_image(image.pixels, size, image.name)
                if survey.color and pixels.ndim == 2:
                    pixels = np.repeat(pixels[..., None], 3, axis=-1)
                used[pixels] = True
                name: str = given
                if not has_validation and split.validates(pixels, share):
                    name = "val"
                out[f"{name}.pixels"].write(pixels.tobytes())
                out[f"{name}.labels"].write(LABEL.type(_label_of(image, classes)).tobytes())
                counts[name] += 1
    if not min(counts.values()):
        raise SettingsError(
            f"there are {counts['train']} images for training and {counts['val']} for validation "
            f"({share:.1%} of all, chosen by their pixels); give more images, or another --data.val_share"
        )
    facts = {
        "shape": shape,
        "counts": counts,
        "classes": classes,
        "survey": asdict(survey),
        "val_share": share,
        "values": np.flatnonzero(used).tolist(),
    }
    files.write(folder / FACTS, json.dumps(facts))


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
