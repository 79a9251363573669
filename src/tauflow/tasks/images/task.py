"""Settings of pictures that do not go together."""

import math
from collections import Counter
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
from tauflow.errors import SettingsError, printable
from tauflow.numerics import generator_for
from tauflow.samplers import Prompt
from tauflow.tasks.images.items import Cache, Flipped, Items, Kept, Split, cached
from tauflow.tasks.images.metrics import REFERENCE, picture_metrics, primary_metric_of
from tauflow.tasks.images.sources import Folder, Hub, Idx, Npz, Source, SplitName, fitted, opened, window
from tauflow.tasks.images.tokens import Pixels, TokensName, pixels_from
from tauflow.tasks.task import Shuffled, Task

SOURCES = ("hub", "pictures", "npz", "idx")


def refuse_unfit(task: "Images") -> None:
    """Refuse settings that are wrong whatever the pictures are."""
    named = [name for name in SOURCES if getattr(task, name) is not None]
    if len(named) > 1:
        raise SettingsError(f"give one source of pictures, not {' and '.join(f'--data.{n}' for n in named)}")
    given = [task.size] * 2 if isinstance(task.size, int) else task.size or [1, 1]
    if len(given) != 2 or min(given) < 1:
        raise SettingsError(
            f"--data.size must be the pixels of a side or [height, width], at least 1, got {task.size}."
        )
    if task.batch_size < 1 or task.val_items < 2 or not 0 < task.val_share < 1:
        raise SettingsError(
            "images need batch_size >= 1, val_items >= 2 and val_share in (0, 1), got "
            f"{task.batch_size}, {task.val_items} and {task.val_share}"
        )
    if task.palette_colours is not None and (
        task.tokens != "palette" or len(task.palette_colours) != task.levels
    ):
        raise SettingsError(
            f"--data.palette_colours needs --data.tokens palette and --data.levels "
            f"{len(task.palette_colours)}, got {task.tokens} and {task.levels}"
        )


def refuse_repeated(names: list[str]) -> None:
    """Raise unless the names of classes are different texts, where case matters."""
    wrong = [name for name, count in Counter(names).items() if count > 1 or not isinstance(name, str)]
    if wrong or not names:
        raise SettingsError(
            f"Class names must be texts that occur only once, got {wrong[:3]}. Rename a class in the data, "
            "or pass --data.class_names."
        )


def sides(size: int | list[int]) -> tuple[int, int]:
    """Return the height and width of a setting."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


# Images: pictures as tokens, samples as pictures, and how good they are.
#
# Shapes: B samples of H x W pixels, D tokens of a sample, V data tokens.


KEPT = "pictures.npz"  # beside the checkpoints of a run
CHANNELS: dict[TokensName, ChannelsName] = {"rgb": "apart", "decorrelated": "together"}


@dataclass(eq=False, repr=False)
class Images(Task):
    """Pictures of one size, from a data set of the hub, a folder, an .npz file or MNIST's idx files.

    Args:
        hub: name of a data set of the hub with a column of pictures, or a folder that the datasets library
            reads.
        hub_config: its configuration.
        hub_split: its split for training.
        hub_val_split: its split for validation; by default validation or test, or else a share of training.
        image_column: the column of pictures, where there are several.
        label_column: the column of classes, where there are several.
        pictures: folder of pictures; those in subfolders have the subfolder's name as their class.
        npz: file with the array images, uint8 (N, H, W) or (N, H, W, 3), and perhaps labels, test_images,
            test_labels and class_names.
        idx: folder with the files of MNIST's format: train-images-idx3-ubyte and so on, plain or .gz.
        size: pixels of a side, or [height, width]; larger pictures are cut to its proportions and reduced by
            area. By default as they are, if all are of one size.
        tokens: grey (one for each pixel), rgb (one for each channel), decorrelated (G, R - G and B - G: the
            same information, learnt faster), or palette (one for each pixel: the nearest of V colours).
        levels: values of a token, V: levels of a channel, a power of two, or colours of the palette.
        flips: mirror every second training picture, drawn by its position.
        labels: give the class of a picture as the condition.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues in the order.
        val_share: share of the pictures that are for validation, chosen by their pixels, where the source has
            none for validation.
        val_items: pictures of the validation set, at most.
        features: network whose features samples are compared in: lite0, inception, or a class of your own;
            none: only what needs no network is measured.
        reference_items: training pictures that features are compared with, at most; published FID takes all.
        cache: folder for pictures of the right size.
        seed: of the split, the order and the flips.
        num_workers: loader processes for each device.
        palette_colours: the palette itself, as a checkpoint keeps it; by default found in the training
            pictures.
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
    tokens: TokensName = "rgb"
    levels: int = 256
    flips: bool = False
    labels: bool = False
    batch_size: int = 32
    epoch_items: int = 8192
    val_share: float = 0.05
    val_items: int = 512
    features: str | None = None
    reference_items: int = REFERENCE
    cache: str = "data"
    seed: int = 0
    num_workers: int = 0
    palette_colours: list[list[int]] | None = None
    class_names: list[str] | None = None

    may_change = (*Task.may_change, "pictures", "npz", "idx", "features", "reference_items", "cache")
    units: ClassVar[Mapping[str, float]] = {"bits_per_dim": 1 / math.log(2)}
    local: ClassVar[tuple[str, ...]] = (
        *SOURCES,
        *("hub_config", "hub_split", "hub_val_split", "image_column", "label_column"),
        *("features", "reference_items", "cache"),
    )

    def __post_init__(self) -> None:
        refuse_unfit(self)
        if self.tokens == "palette" and self.palette_colours is None:
            self.palette_colours = self._cache.palette(self.levels)
        self.pixels: Pixels = pixels_from(self.tokens, self.levels, self.palette_colours)
        if self.labels:
            self.class_names = self._cache.classes if self.class_names is None else self.class_names
            refuse_repeated(self.class_names)
            self.conditions = (len(self.class_names),)
        if self.size is None:
            height, width = self._cache.size
            self.size = height if height == width else [height, width]
        self.num_tokens = self.pixels.num_tokens
        self.shape = (*sides(self.size), *self.pixels.channels)

    @property
    def channels(self) -> ChannelsName | None:  # type: ignore[override]  # depends on the tokens
        """Return how channels are revealed: apart if they are much alike, together if almost independent."""
        return CHANNELS.get(self.tokens)

    # Data

    @property
    def source(self) -> Source:
        """Return where the pictures come from."""
        if self.hub is not None:
            splits = (self.hub_split, self.hub_val_split)
            return Hub(self.hub, self.hub_config, *splits, self.image_column, self.label_column, self.labels)
        if self.pictures is not None:
            return Folder(Path(self.pictures).expanduser())
        if self.npz is not None:
            return Npz(Path(self.npz).expanduser())
        if self.idx is not None:
            return Idx(Path(self.idx).expanduser())
        raise SettingsError(f"name the pictures: {', '.join(f'--data.{name}' for name in SOURCES)}")

    @cached_property
    def _cache(self) -> Cache:
        size = None if self.size is None else sides(self.size)
        found = cached(Path(self.cache), self.source, Split(size, self.val_share, self.seed), progress=True)
        if self.tokens != "grey" and not found.coloured:
            raise SettingsError(f"--data.tokens {self.tokens} needs colours, the pictures are grey; use grey")
        if self.labels and not found.classes:
            raise SettingsError("the pictures have no labels; train with --data.labels false")
        if self.class_names is not None and len(self.class_names) != len(found.classes):
            raise SettingsError(
                f"--data.class_names has {len(self.class_names)} names, the pictures have "
                f"{len(found.classes)} classes; drop it, or name each"
            )
        return found

    @cached_property
    def _kept(self) -> Kept | None:
        """Return what the run keeps beside its checkpoints, unless the user names the pictures."""
        if self._named or self.folder is None or not (self.folder / KEPT).exists():
            return None
        return Kept.load(self.folder / KEPT, self.facts)

    @property
    def _named(self) -> bool:
        return any(getattr(self, name) is not None for name in SOURCES)

    def setup(self, stage: str | None = None) -> None:
        if stage in ("fit", None):
            kind = Flipped if self.flips else Shuffled
            self.train_data = kind(self._items("train"), self.seed, name="image order")
        if self._kept is not None:
            self.val_data = Items(self._kept.val, self._kept.val_labels if self.labels else None)
        else:
            self.val_data = self._chosen("val", self.val_items)

    def _items(self, split: SplitName) -> Items:
        labels = self._cache.labels[split] if self.labels else None
        return Items(self._cache.pictures[split], labels, self.pixels.encode)

    def _chosen(self, split: SplitName, count: int) -> Items:
        return self._items(split).some(count, generator_for("images", split, self.seed))

    def begin_run(self, folder: Path) -> None:
        """Save the pictures that samples are measured against, so that a checkpoint needs no others."""
        if not (folder / KEPT).exists():
            val, val_labels = self.val_data.arrays()
            reference, labels = self._chosen("train", REFERENCE).arrays()
            Kept(val, val_labels, reference, labels, self.unigrams().numpy()).save(folder / KEPT)

    def unigrams(self) -> Tensor:
        """Return the law of the first training pictures, with one added to every count."""
        return super().unigrams() if self._kept is None else torch.from_numpy(self._kept.unigrams)

    @property
    def alone(self) -> str:  # type: ignore[override]  # the base class has a plain default
        """Say why a checkpoint without pictures can be measured in part only."""
        if self._named or self._kept is not None:
            return ""
        return (
            f"what compares samples with real pictures is skipped: there is no {KEPT} beside the checkpoint; "
            f"name the pictures with --data {SOURCES[0]}=... (or {', '.join(SOURCES[1:])})"
        )

    def reference_pictures(self, count: int) -> Tensor:
        """Return at most `count` training pictures uint8 (N, H, W, 3), of which none is a validation item."""
        return self.decode(torch.from_numpy(self._reference(count)[0]))

    def reference_labels(self, count: int) -> Tensor:
        """Return the labels (N,) of the same pictures."""
        return torch.from_numpy(self._reference(count)[1]).long()

    def _reference(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        if self._kept is None:
            return self._chosen("train", count).arrays()
        if self.reference_items > REFERENCE:
            raise SettingsError(
                f"reference_items = {self.reference_items} needs the training pictures, {KEPT} has "
                f"{len(self._kept.reference)}; name them with {SOURCES[0]}=... (or {', '.join(SOURCES[1:])})"
            )
        return self._kept.reference[:count], self._kept.reference_labels[:count]

    # Samples

    def encode(self, pictures: Tensor) -> Tensor:
        """Return the tokens (B, D) of pictures uint8 (B, H, W), or (B, H, W, 3)."""
        return self.pixels.encode(pictures).long().flatten(1)

    def decode(self, tokens: Tensor) -> Tensor:
        """Return samples (B, D) as pictures uint8 (B, H, W, 3); what is no data token is grey."""
        return self.pixels.decode(tokens.reshape(-1, *self.shape))

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        """Return samples as pictures uint8 (B, H, W, 3)."""
        return self.decode(tokens.cpu()).numpy()

    def caption(self, condition: Tensor) -> str:
        """Return the name of the class, without control characters: it may come from a stranger's file."""
        number = int(condition[0])
        return printable((self.class_names or [])[number]) if number >= 0 else "any class"

    def condition(self, text: str) -> Tensor:
        """Read a class by its name, in any case unless several names differ by it only, or by its number."""
        if not self.labels:
            return super().condition(text)
        names, word = self.class_names or [], text.strip()
        alike = [name for name in names if name.casefold() == word.casefold()]
        if word in names or len(alike) == 1:
            return torch.tensor([names.index(word if word in names else alike[0])])
        if word.isdecimal() and int(word) < len(names):
            return torch.tensor([int(word)])
        known = ", ".join(f"{number} {name}" for number, name in enumerate(names))
        raise SettingsError(f"the condition is a class by name or number ({known}), got {text!r}")

    def sample_conditions(self, count: int, first: int = 0) -> Tensor | None:
        """Return those of validation items; the classes in turn where there are no real pictures."""
        if not self.labels or not self.alone:
            return super().sample_conditions(count, first)
        return torch.arange(first, first + count)[:, None] % self.conditions[0]

    def complete(self, path: str | Path, keep: str) -> Prompt:
        """Return what is known of a picture in a file: its left, right, top or bottom half, or a rectangle.

        The picture is brought to the size of the training pictures. A rectangle is x0,y0,x1,y1 in pixels of
        that size: columns x0 to x1 - 1, rows y0 to y1 - 1.
        """
        height, width = self.shape[:2]
        picture = fitted(opened(Path(path), str(path)), (height, width), str(path))
        if picture.ndim == 2 and self.pixels.coloured:
            raise SettingsError(f"{path} is grey, the model has colours; give a picture in colour")
        known = torch.zeros(self.shape, dtype=torch.bool)
        known[window(keep, height, width)] = True
        return Prompt(self.encode(torch.from_numpy(picture)[None])[0], known.flatten())

    @property
    def primary_metric(self) -> str:  # type: ignore[override]  # depends on the features
        return primary_metric_of(self)

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = dict(picture_metrics(self))
        return MetricCollection(metrics, compute_groups=False)
