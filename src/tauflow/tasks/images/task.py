"""Images: tokens of pixels, samples as images, and how good they are.

Shapes: B samples of H x W pixels, D tokens of a sample, V data tokens.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.denoise.model import ChannelsName
from tauflow.errors import SettingsError, join_names, printable
from tauflow.numerics import generator_for
from tauflow.samplers import Prompt
from tauflow.tasks.images.items import (
    VAL_SHARE,
    Flipped,
    ImageCache,
    ImageItems,
    ImageSplit,
    KeptImages,
    cached_images,
)
from tauflow.tasks.images.metrics import REFERENCE, image_metrics, label_of
from tauflow.tasks.images.sources import (
    HubImages,
    Idx,
    ImageFolder,
    ImageSource,
    Npz,
    SplitName,
    fit_image,
    read_image,
)
from tauflow.tasks.images.tokens import Pixels, TokensName, fewest_levels, pixels_from
from tauflow.tasks.task import Shuffled, Task

KEPT = "pictures.npz"  # next to the checkpoints of a run
SOURCES = ("hub", "pictures", "npz", "idx")  # settings that say where the images are
CHANNELS: dict[TokensName, ChannelsName] = {"rgb": "apart", "decorrelated": "together"}


@dataclass(eq=False, repr=False)
class Images(Task):
    """Images of one size, from a data set of the hub, a folder, an .npz file or MNIST's idx files.

    Args:
        hub: name of a data set of the hub with a column of images, or a folder that the datasets library
            reads.
        hub_config: its configuration.
        hub_split: its split for training.
        hub_val_split: its split for validation; by default validation or test, or else a share of training.
        image_column: the column of images, where there are several.
        label_column: the column of classes, where there are several.
        pictures: folder of images; if all are in subfolders, these are their classes.
        npz: file with the array images, uint8 (N, H, W) or (N, H, W, 3), and perhaps labels, test_images,
            test_labels and class_names.
        idx: folder with the files of MNIST's format: train-images-idx3-ubyte and so on, plain or .gz.
        size: pixels of a side, or [height, width]; larger images are cut to its proportions and reduced by
            area. By default as they are, if all have one size of at most 64 pixels; else squares of their
            smallest side, at most 32.
        tokens: grey (one per pixel), rgb (one per channel), decorrelated (G, R - G and B - G: the
            same information, learned faster), or palette (one per pixel: the nearest of V colors). By default
            grey or rgb, as the images are.
        levels: values of a token, V: levels of a channel, a power of two, or colors of the palette. By
            default as few as show the images exactly, and 256 for a palette or colors as gray.
        flips: mirror every second training image, drawn by its position.
        labels: give the class of an image as the condition; by default if a folder has several subfolders.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues in the order.
        val_share: share of the images that are for validation, chosen by their pixels, where the source has
            none for validation. By default 0.05, and more if a folder has few images.
        val_items: images of the validation set, at most.
        features: network whose features samples are compared in: lite0, inception, or your own class;
            none: only what needs no network is measured.
        reference_items: training images that features are compared with, at most; published FID takes all.
        cache: folder for images of the right size.
        seed: of the split, the order and the flips.
        num_workers: loader processes per device.
        palette_colours: the palette itself, as a checkpoint keeps it; by default found in the training
            images.
        class_names: names of the classes, as a checkpoint keeps them; by default those of the source.
    """

    hub: str | None = None
    hub_config: str | None = None
    hub_split: str = "train"
    hub_val_split: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    pictures: str | None = None
    npz: str | None = None
    idx: str | None = None
    size: int | list[int] | None = None
    tokens: TokensName | None = None
    levels: int | None = None
    flips: bool = False
    labels: bool | None = None
    batch_size: int = 32
    epoch_items: int = 8192
    val_share: float | None = None
    val_items: int = 512
    features: str | None = None
    reference_items: int = REFERENCE
    cache: str = "data"
    seed: int = 0
    num_workers: int = 0
    palette_colours: list[list[int]] | None = None
    class_names: list[str] | None = None

    may_change = (*Task.may_change, "pictures", "npz", "idx", "features", "reference_items", "cache")
    sample_settings = ("size", "tokens", "levels", "palette_colours", "labels")
    units: ClassVar[Mapping[str, float]] = {"bits_per_dim": 1 / math.log(2)}
    local: ClassVar[tuple[str, ...]] = (
        *SOURCES,
        *("hub_config", "hub_split", "hub_val_split", "image_column", "label_column"),
        *("features", "reference_items", "cache"),
    )

    def __post_init__(self) -> None:
        given = [f"--data.{name}" for name in SOURCES if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingsError(
                f"Give one source of images, not {' and '.join(given)}. Set the others to null. For your own "
                "images, use -c images, which has no other source."
            )
        if self.val_share is None and self.pictures is None:
            self.val_share = VAL_SHARE
        if self.labels is None:
            self.labels = self.pictures is not None and len(self.source.classes()) > 1
        if self.tokens is None:
            self.tokens = "grey" if self._cache.survey.grey else "rgb"
        if self.levels is None:
            levels_kept = self.tokens in ("rgb", "decorrelated") or self._cache.survey.grey
            self.levels = fewest_levels(self._cache.values) if levels_kept else 256
        if self.tokens == "palette" and self.palette_colours is None:
            self.palette_colours = self._cache.palette(self.levels)
        self.pixels: Pixels = pixels_from(self.tokens, self.levels, self.palette_colours)
        if self.labels:
            self.class_names = self._cache.classes if self.class_names is None else self.class_names
            self.conditions = (len(self.class_names),)
        if self.val_share is None:
            self.val_share = self._cache.val_share
        if self.size is None:
            height, width = self._cache.images["train"].shape[1:3]
            self.size = height if height == width else [height, width]
        self.num_tokens = self.pixels.num_tokens
        self.shape = (*sides(self.size), *self.pixels.channels)

    @property
    def channels(self) -> ChannelsName | None:  # type: ignore[override]  # depends on the tokens
        """Return how channels are revealed: apart if they are much alike, together if almost independent."""
        return CHANNELS.get(self.tokens) if self.tokens else None

    # Data

    @property
    def source(self) -> ImageSource:
        if self.hub is not None:
            return HubImages(
                self.hub,
                self.hub_config,
                self.hub_split,
                self.hub_val_split,
                self.image_column,
                self.label_column,
                bool(self.labels),
            )
        if self.pictures is not None:
            return ImageFolder(Path(self.pictures).expanduser())
        if self.npz is not None:
            return Npz(Path(self.npz).expanduser())
        if self.idx is not None:
            return Idx(Path(self.idx).expanduser())
        raise SettingsError(f"choose the images: {', '.join(f'--data.{name}' for name in SOURCES)}")

    @cached_property
    def _cache(self) -> ImageCache:
        size = None if self.size is None else sides(self.size)
        split = ImageSplit(size, self.val_share, self.seed)
        found = cached_images(Path(self.cache), self.source, split, progress=True)
        if self.tokens not in (None, "grey") and found.images["train"].ndim == 3:
            raise SettingsError(
                f"--data.tokens {self.tokens} needs color images, these are grayscale; use grey"
            )
        expected = len(found.classes) if self.class_names is None else len(self.class_names)
        if self.labels and not len(found.classes) == expected > 0:
            raise SettingsError(
                f"The images must have labels of {expected or 'some'} classes, got {len(found.classes)}. "
                "Pass other images, or train with --data.labels false."
            )
        return found

    @cached_property
    def _kept(self) -> KeptImages | None:
        """Return what the run keeps next to its checkpoints, unless the user says where the images are."""
        if self._has_source or self.folder is None or not (self.folder / KEPT).exists():
            return None
        return KeptImages.load(self.folder / KEPT, self.facts)

    @property
    def _has_source(self) -> bool:
        return any(getattr(self, name) is not None for name in SOURCES)

    def setup(self, stage: str | None = None) -> None:
        if stage in ("fit", None):
            kind = Flipped if self.flips else Shuffled
            self.train_data = kind(self._items("train"), self.seed, name="image order")
        if self._kept is not None:
            self.val_data = ImageItems(self._kept.val, self._kept.val_labels if self.labels else None)
        else:
            self.val_data = self._choose("val", self.val_items)

    def _items(self, split: SplitName) -> ImageItems:
        labels = self._cache.labels[split] if self.labels else None
        return ImageItems(self._cache.images[split], labels, self.pixels.encode)

    def _choose(self, split: SplitName, count: int) -> ImageItems:
        return self._items(split).some(count, generator_for("images", split, self.seed))

    def origin(self) -> str:
        survey = self._cache.survey
        height, width = self.shape[:2]
        fitted = "" if [height, width] == survey.smallest == survey.largest else f", made {height} x {width}"
        classes = f", classes {join_names(self.class_names or [], 10)}" if self.labels else ""
        return f"{self.source.describe()}, {survey}{fitted}{classes}"

    def begin_run(self, folder: Path) -> None:
        """Save the images that samples are measured against, so that a checkpoint needs no others."""
        if not (folder / KEPT).exists():
            val, val_labels = self.val_data.arrays()
            reference, labels = self._choose("train", REFERENCE).arrays()
            KeptImages(val, val_labels, reference, labels, self.unigrams().numpy()).save(folder / KEPT)

    def unigrams(self) -> Tensor:
        return super().unigrams() if self._kept is None else torch.from_numpy(self._kept.unigrams)

    @property
    def alone(self) -> str:  # type: ignore[override]  # the base class has a plain default
        """Say why a checkpoint without images can be measured in part only."""
        if self._has_source or self._kept is not None:
            return ""
        return (
            f"what compares samples with real images is skipped: there is no {KEPT} next to the checkpoint; "
            f"pass the images with --data {SOURCES[0]}=... (or {', '.join(SOURCES[1:])})"
        )

    def reference_images(self, count: int) -> Tensor:
        """Return at most `count` training images uint8 (N, H, W, 3), of which none is a validation item."""
        return self.decode(torch.from_numpy(self._reference(count)[0]))

    def reference_labels(self, count: int) -> Tensor:
        return torch.from_numpy(self._reference(count)[1]).long()

    def _reference(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        if self._kept is None:
            return self._choose("train", count).arrays()
        if self.reference_items > REFERENCE:
            raise SettingsError(
                f"reference_items = {self.reference_items} needs the training images, {KEPT} has "
                f"{len(self._kept.reference)}; pass them with {SOURCES[0]}=... (or {', '.join(SOURCES[1:])})"
            )
        return self._kept.reference[:count], self._kept.reference_labels[:count]

    # Samples

    def encode(self, images: Tensor) -> Tensor:
        """Return the tokens (B, D) of images uint8 (B, H, W), or (B, H, W, 3)."""
        return self.pixels.encode(images).long().flatten(1)

    def decode(self, tokens: Tensor) -> Tensor:
        """Return samples (B, D) as images uint8 (B, H, W, 3); what is no data token is gray."""
        return self.pixels.decode(tokens.reshape(-1, *self.shape))

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        return self.decode(tokens.cpu()).numpy()

    def caption(self, condition: Tensor) -> str:
        """Return the name of the class, without control characters: it may come from a stranger's file."""
        number = int(condition[0])
        return printable((self.class_names or [])[number]) if number >= 0 else "any class"

    def condition(self, text: str) -> Tensor:
        """Read a class by its name, in any case unless several names differ by it only, or by its number."""
        if not self.labels:
            return super().condition(text)
        names = self.class_names or []
        word = text.strip()
        alike = [name for name in names if name.casefold() == word.casefold()]
        if word in names:
            return torch.tensor([names.index(word)])
        if len(alike) == 1:
            return torch.tensor([names.index(alike[0])])
        if word.isdecimal() and int(word) < len(names):
            return torch.tensor([int(word)])
        known = ", ".join(f"{number} {name}" for number, name in enumerate(names))
        raise SettingsError(f"the condition is a class by name or number ({known}), got {text!r}")

    def sample_conditions(self, count: int, first: int = 0) -> Tensor | None:
        """Return those of validation items; the classes in turn where there are no real images."""
        if not self.labels or not self.alone:
            return super().sample_conditions(count, first)
        return torch.arange(first, first + count)[:, None] % self.conditions[0]

    def complete(self, path: str | Path, keep: str) -> Prompt:
        """Return what is known of an image in a file: its left, right, top or bottom half, or a rectangle.

        The image is brought to the size of the training images. A rectangle is x0,y0,x1,y1 in pixels of that
        size: columns x0 to x1 - 1, rows y0 to y1 - 1.
        """
        height, width = self.shape[:2]
        image = fit_image(read_image(Path(path), str(path)), (height, width), str(path))
        if image.ndim == 2 and self.pixels.has_color:
            raise SettingsError(f"{path} is grayscale, the model has colors; give an image in color")
        known = torch.zeros(self.shape, dtype=torch.bool)
        known[parse_window(keep, height, width)] = True
        return Prompt(self.encode(torch.from_numpy(image)[None])[0], known.flatten())

    @property
    def primary_metric(self) -> str:  # type: ignore[override]  # depends on the features
        """Return the distance without bias at few samples, or what needs no network."""
        return f"kid_{label_of(self.features)}" if self.features and not self.alone else "quiet_luma"

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = dict(image_metrics(self))
        return MetricCollection(metrics, compute_groups=False)


def sides(size: int | list[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def parse_window(keep: str, height: int, width: int) -> tuple[slice, slice]:
    """Return the rows and columns of a half by its name, or of a rectangle x0,y0,x1,y1."""
    halves = {
        "left": (slice(None), slice(0, width // 2)),
        "right": (slice(None), slice(width // 2, None)),
        "top": (slice(0, height // 2), slice(None)),
        "bottom": (slice(height // 2, None), slice(None)),
    }
    if keep.strip().casefold() in halves:
        return halves[keep.strip().casefold()]
    words = [word.strip() for word in keep.split(",")]
    if len(words) == 4 and all(word.isdecimal() for word in words):
        left, top, right, bottom = (int(word) for word in words)
        if left < right <= width and top < bottom <= height:
            return slice(top, bottom), slice(left, right)
    raise SettingsError(
        f"keep {', '.join(halves)}, or x0,y0,x1,y1 within {width} x {height} pixels, got {keep!r}"
    )
