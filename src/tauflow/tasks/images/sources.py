"""Where images come from: a folder, an .npz file, MNIST's idx files, or a data set of the hub.

An image is uint8, (H, W) if it is grayscale, else (H, W, 3).
"""

import gzip
import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from tauflow import files
from tauflow.errors import SettingsError, first_line
from tauflow.untrusted import read_arrays

FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")
EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")
MAX_CLASSES = 2**16
SplitName = Literal["train", "val"]
VALIDATION = ("validation", "valid", "val", "test")  # names of splits; the first one there is taken


def read_image(file: Path | bytes, name: str) -> np.ndarray:
    """Read an image with 8 bits per channel, rotated as its camera says; `name` is for messages.

    A palette is resolved, and an alpha channel dropped where every pixel is opaque. Transparent pixels, 16
    bits, and other modes raise an error: each could be converted in several ways.
    """
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(opened)
    except Exception as error:  # the library raises many kinds
        raise SettingsError(
            f"{name} must be an image, one of {', '.join(FORMATS)} ({first_line(error)}). Replace it."
        ) from None
    if image.mode in ("1", "L"):
        return np.array(image.convert("L"))
    kind = image.mode
    fits = kind in ("RGB", "P", "PA", "LA", "RGBA")
    if fits and image.has_transparency_data:
        image = image.convert("RGBA")
        fits = np.array(image.getchannel("A")).min() == 255
        kind = "transparent pixels"
    if not fits:
        raise SettingsError(
            f"{name} must be grayscale or RGB with 8 bits per channel, got {kind}. Save it as such."
        )
    return np.array(image.convert("RGB"))


def fit_image(image: np.ndarray, size: tuple[int, int], name: str) -> np.ndarray:
    """Return the middle of an image in the proportions of `size` (H, W), reduced to it by area."""
    height, width = image.shape[:2]
    if (height, width) == size:
        return image
    if height < size[0] or width < size[1]:
        raise SettingsError(
            f"{name} has {height} x {width} pixels and is not enlarged to {size[0]} x {size[1]}; give a "
            "larger image, or train with a smaller --data.size (null: one that fits all images)"
        )
    return np.array(ImageOps.fit(Image.fromarray(image), (size[1], size[0]), method=Image.Resampling.BOX))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_arrays(path)
    except Exception as error:  # zipfile and numpy raise many kinds
        raise SettingsError(
            f"{path} must be an .npz file of plain arrays ({first_line(error)}). Replace it."
        ) from None


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the array of bytes in an idx file, plain or .gz, which has this many dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read()
        shape = np.frombuffer(data, ">u4", dimensions, offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + shape.nbytes).reshape(shape.tolist())
    except Exception as error:  # gzip and numpy raise many kinds
        raise SettingsError(
            f"{path} must be an idx file of {dimensions}-dimensional bytes ({first_line(error)}). Replace it."
        ) from None


# Sources


class SourceImage(NamedTuple):
    """An image with its name for messages, and the number of its class if it has one."""

    name: str
    pixels: np.ndarray  # uint8 (H, W) or (H, W, 3)
    label: int | None


class ImageSource(ABC):
    """Abstract: images in a fixed order, and a digest that changes when any of them does."""

    @abstractmethod
    def digest(self) -> str: ...

    def describe(self) -> str:
        """Return what it is, for the start of a run."""
        return type(self).__name__

    @abstractmethod
    def classes(self) -> list[str]:
        """Return the names of the classes; none if images have no labels."""

    @abstractmethod
    def has_validation(self) -> bool:
        """Return whether there are images for validation, apart from those for training."""

    @abstractmethod
    def read(self, split: SplitName) -> Iterator[SourceImage]:
        """Yield the images of a split."""


@dataclass(frozen=True)
class ImageFolder(ImageSource):
    """Images in a folder; those in subfolders have the name of the subfolder as their class."""

    path: Path

    def describe(self) -> str:
        return str(self.path)

    @cached_property
    def names(self) -> list[Path]:
        paths = [path for path in self.path.rglob("*") if path.suffix.lower() in EXTENSIONS]
        names = [path.relative_to(self.path) for path in paths if path.is_file()]
        # what other programs hide there isn't data: ._a.png of macOS, .ipynb_checkpoints/a-checkpoint.png
        found = sorted(name for name in names if not any(part.startswith(".") for part in name.parts))
        if not found:
            raise SettingsError(
                f"--data.pictures: Folder with images ({', '.join(EXTENSIONS)}) not found: {self.path}"
            )
        return found

    def digest(self) -> str:
        stats = [(name, (self.path / name).stat()) for name in self.names]
        return _digest_of((str(name), stat.st_size, stat.st_mtime_ns) for name, stat in stats)

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

    def read(self, split: SplitName) -> Iterator[SourceImage]:
        classes = {name: number for number, name in enumerate(self.classes())}
        for name in self.names:
            path = self.path / name
            yield SourceImage(str(path), read_image(path, str(path)), classes.get(name.parts[0]))


ImagesAndLabels = tuple[np.ndarray | None, np.ndarray | None]


@dataclass(frozen=True)
class ImageArrays(ImageSource):
    """Abstract: images as arrays in memory, (N, H, W) or (N, H, W, 3), with labels (N,)."""

    path: Path

    def describe(self) -> str:
        return str(self.path)

    @abstractmethod
    def arrays(self, split: SplitName) -> ImagesAndLabels:
        """Return the images and the labels of a split."""

    def has_validation(self) -> bool:
        return self.arrays("val")[0] is not None

    def classes(self) -> list[str]:
        return [str(number) for number in range(self.class_count())]

    def class_count(self) -> int:
        labels = [self.arrays(split)[1] for split in ("train", "val")]
        if labels[0] is None:
            return 0
        return 1 + max(int(each.max()) for each in labels if each is not None)

    def read(self, split: SplitName) -> Iterator[SourceImage]:
        images, labels = self.arrays(split)
        for number, pixels in enumerate([] if images is None else images):
            label = None if labels is None else int(labels[number])
            yield SourceImage(f"image {number} ({split}) of {self.path}", pixels, label)


@dataclass(frozen=True)
class Npz(ImageArrays):
    """An .npz file with images, and perhaps labels, test_images, test_labels and class_names."""

    @cached_property
    def contents(self) -> dict[str, np.ndarray]:
        return read_npz(self.path)

    def digest(self) -> str:
        self.contents  # noqa: B018 - an unreadable file gets its own message first
        return files.digest(self.path)

    def arrays(self, split: SplitName) -> ImagesAndLabels:
        before = "test_" if split == "val" else ""
        images = self.contents.get(f"{before}images")
        labels = self.contents.get(f"{before}labels")
        if images is None and split == "val":
            return None, None
        if images is not None and images.ndim == 4 and images.shape[3] == 1:
            images = images[..., 0]
        fits = images is not None and (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3))
        if images is None or not fits or images.dtype != np.uint8 or not images.size:
            known = ", ".join(f"{name} {each.dtype} {each.shape}" for name, each in self.contents.items())
            raise SettingsError(
                f"{before}images of {self.path} must be uint8 (N, H, W) or (N, H, W, 3). The file has: "
                f"{known or 'nothing'}. Scale levels to 0..255 and save them as uint8."
            )
        if labels is not None and (
            labels.shape != images.shape[:1]
            or labels.dtype.kind not in "iu"
            or not 0 <= labels.min() <= labels.max() < MAX_CLASSES
        ):
            raise SettingsError(
                f"{before}labels of {self.path} must be whole numbers 0 to {MAX_CLASSES - 1}, one for each "
                f"of the {len(images)} images, got {labels.dtype} {labels.shape}"
            )
        return images, labels

    def classes(self) -> list[str]:
        count = self.class_count()
        names = self.contents.get("class_names")
        return super().classes() if names is None or not count else [str(name) for name in names]


@dataclass(frozen=True)
class Idx(ImageArrays):
    """A folder in the layout of MNIST: train-images-idx3-ubyte and so on, plain or .gz."""

    def file(self, kind: str, split: SplitName, dimensions: int) -> Path | None:
        stem = f"{'train' if split == 'train' else 't10k'}-{kind}"
        names = [f"{stem}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
        return next((self.path / name for name in names if (self.path / name).is_file()), None)

    def digest(self) -> str:
        kinds = (("images", 3), ("labels", 1))
        paths = [self.file(kind, split, n) for split in ("train", "val") for kind, n in kinds]  # type: ignore[arg-type]  # the two splits
        return _digest_of(files.digest(path) if path else None for path in paths)

    def arrays(self, split: SplitName) -> ImagesAndLabels:
        return self._contents[split]

    @cached_property
    def _contents(self) -> dict[str, ImagesAndLabels]:
        return {"train": self._read("train"), "val": self._read("val")}

    def _read(self, split: SplitName) -> ImagesAndLabels:
        images_file = self.file("images", split, 3)
        labels_file = self.file("labels", split, 1)
        if images_file is None and split == "train":
            raise SettingsError(
                f"--data.idx: {self.path} is no folder with train-images-idx3-ubyte or its .gz"
            )
        if images_file is None:
            return None, None
        return read_idx(images_file, 3), None if labels_file is None else read_idx(labels_file, 1)


@dataclass(frozen=True)
class HubImages(ImageSource):
    """A data set of the hub, or a local one that the datasets library reads, with a column of images."""

    name: str
    config: str | None
    split: str
    val_split: str | None
    image: str | None
    label: str | None
    labelled: bool

    def describe(self) -> str:
        return self.name

    @cached_property
    def data(self) -> Any:
        import datasets

        try:
            data = datasets.load_dataset(self.name, self.config)
        except Exception as error:  # the library raises many kinds
            raise SettingsError(
                f"cannot load the images {self.name!r} (config {self.config}): {first_line(error)}; check "
                "the names and the network, or give --data.pictures, --data.npz or --data.idx"
            ) from None
        for name in (self.split, self.val_split):
            if name is not None and name not in data:
                raise SettingsError(f"{self.name!r} has no split {name!r}; it has: {', '.join(data)}")
        return data

    def digest(self) -> str:
        columns = (self._image_column, self._label_column)
        fingerprints = [each._fingerprint for each in self.data.values()]
        return _digest_of([self.split, self._validation, columns, fingerprints])

    @property
    def _validation(self) -> str | None:
        others = [name for name in VALIDATION if name in self.data and name != self.split]
        return self.val_split or next(iter(others), None)

    def _column(self, chosen: str | None, kind: type, what: str) -> str | None:
        """Return the chosen column of a kind, or the only one; a data set may have no labels."""
        features = self.data[self.split].features
        fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
        options = fitting if chosen is None else [name for name in fitting if name == chosen]
        if len(options) != 1 and (options or chosen or what == "image"):
            raise SettingsError(
                f"--data.{what}_column must be a column of type {kind.__name__} of {self.name!r} "
                f"({', '.join(fitting) or 'there is none'}), got {chosen}. Choose one."
            )
        return next(iter(options), None)

    @property
    def _image_column(self) -> str:
        import datasets

        return str(self._column(self.image, datasets.Image, "image"))

    @property
    def _label_column(self) -> str | None:
        import datasets

        return self._column(self.label, datasets.ClassLabel, "label") if self.labelled else None

    def classes(self) -> list[str]:
        return list(self.data[self.split].features[self._label_column].names) if self._label_column else []

    def has_validation(self) -> bool:
        return self._validation is not None

    def read(self, split: SplitName) -> Iterator[SourceImage]:
        import datasets

        split_name = self.split if split == "train" else self._validation
        image, label = self._image_column, self._label_column
        data = self.data[split_name].select_columns([image, *([label] if label else [])])
        for number, row in enumerate(data.cast_column(image, datasets.Image(decode=False))):
            name = f"image {number} of {self.name} ({split_name})"
            file = row[image] or {"bytes": b"", "path": None}
            pixels = read_image(file["bytes"] if file["bytes"] is not None else Path(file["path"]), name)
            yield SourceImage(name, pixels, None if label is None else row[label])


def _digest_of(facts: Iterable[Any]) -> str:
    return hashlib.sha256(repr(list(facts)).encode()).hexdigest()
