"""Files of arrays: .npz without pickles, and MNIST's idx."""

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


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file."""
    try:
        return read_arrays(path)
    except Exception as error:  # zipfile and numpy raise many kinds
        raise SettingsError(
            f"{path} must be an .npz file of plain arrays ({first_line(error)}). Replace it."
        ) from None


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the array of bytes in an idx file, plain or .gz, which has so many dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read()
        shape = np.frombuffer(data, ">u4", dimensions, offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + shape.nbytes).reshape(shape.tolist())
    except Exception as error:  # gzip and numpy raise many kinds
        raise SettingsError(
            f"{path} must be an idx file of {dimensions}-dimensional bytes ({first_line(error)}). Replace it."
        ) from None


# One picture: read from a file that is not trusted, and brought to a size.
#
# A picture is uint8, (H, W) if it is grey, else (H, W, 3).


FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")
EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")


def opened(file: Path | bytes, name: str) -> np.ndarray:
    """Read a picture of 8 bits a channel, turned as its camera says; `name` is for messages.

    A palette is resolved, and an alpha channel dropped where every pixel is opaque. Transparent pixels, 16
    bits and other modes are refused: each could be converted in several ways.
    """
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
            return _pixels(ImageOps.exif_transpose(image), name)
    except SettingsError:
        raise
    except FileNotFoundError:
        raise SettingsError(f"there is no picture {name}") from None
    except IsADirectoryError:
        raise SettingsError(f"{name} is a folder; name a picture in it") from None
    except Exception as error:  # the library raises many kinds
        raise SettingsError(
            f"{name} is damaged, or not one of {', '.join(FORMATS)} ({first_line(error)}); replace or remove "
            "it"
        ) from None


def _pixels(image: Image.Image, name: str) -> np.ndarray:
    if image.mode in ("1", "L"):
        return np.array(image.convert("L"))
    if image.mode not in ("RGB", "P", "PA", "LA", "RGBA"):
        raise SettingsError(
            f"{name} has pixels of kind {image.mode}; save it as grey or RGB with 8 bits a channel"
        )
    image = image.convert("RGBA") if image.has_transparency_data else image
    if "A" in image.getbands() and np.array(image.getchannel("A")).min() < 255:
        raise SettingsError(f"{name} has transparent pixels; save it on a background, without alpha channel")
    return np.array(image.convert("RGB"))


def fitted(picture: np.ndarray, size: tuple[int, int], name: str) -> np.ndarray:
    """Return the middle of a picture in the proportions of `size` (H, W), reduced to it by area."""
    height, width = picture.shape[:2]
    if (height, width) == size:
        return picture
    if height < size[0] or width < size[1]:
        raise SettingsError(
            f"{name} has {height} x {width} pixels and is not enlarged to {size[0]} x {size[1]}; give a "
            "larger picture, or train with a smaller --data.size"
        )
    turned = (size[1], size[0])
    return np.array(ImageOps.fit(Image.fromarray(picture), turned, method=Image.Resampling.BOX))


def window(keep: str, height: int, width: int) -> tuple[slice, slice]:
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


# Where pictures come from: a folder, an .npz file or MNIST's idx files; for the hub see hub.py.


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


# Pictures in a data set of the hub, or in a local one that the datasets library reads.


@dataclass(frozen=True)
class Hub(Source):
    """A data set of the hub, or a local one that the datasets library reads, with a column of pictures."""

    name: str
    config: str | None
    split: str
    val_split: str | None
    image: str | None
    label: str | None
    labelled: bool

    @cached_property
    def data(self) -> Any:
        """Return the splits by their names."""
        import datasets

        try:
            data = datasets.load_dataset(self.name, self.config)
        except Exception as error:  # the library raises many kinds
            raise SettingsError(
                f"cannot load the pictures {self.name!r} (config {self.config}): {first_line(error)}; check "
                "the names and the network, or give --data.pictures, --data.npz or --data.idx"
            ) from None
        for name in (self.split, self.val_split):
            if name is not None and name not in data:
                raise SettingsError(f"{self.name!r} has no split {name!r}; it has: {', '.join(data)}")
        return data

    def digest(self) -> str:
        columns = (self._image_column, self._label_column)
        return digest_of(
            [self.split, self._validation, columns, [each._fingerprint for each in self.data.values()]]
        )

    @property
    def _validation(self) -> str | None:
        others = [name for name in VALIDATION if name in self.data and name != self.split]
        return self.val_split or next(iter(others), None)

    def _column(self, named: str | None, kind: type, what: str) -> str | None:
        """Return the column of a kind that is named, or the only one."""
        features = self.data[self.split].features
        fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
        if named is not None and named not in fitting:
            raise SettingsError(
                f"--data.{what}_column {named}: {self.name!r} has no such column of type {kind.__name__}; "
                f"those of this type are: {', '.join(fitting) or 'none'}"
            )
        if named is None and len(fitting) > 1:
            raise SettingsError(f"name one of {', '.join(fitting)} as --data.{what}_column")
        return named or next(iter(fitting), None)

    @property
    def _image_column(self) -> str:
        from datasets import Image

        found = self._column(self.image, Image, "image")
        if found is None:
            columns = ", ".join(self.data[self.split].column_names)
            raise SettingsError(f"{self.name!r} has no column of pictures; it has: {columns}")
        return found

    @property
    def _label_column(self) -> str | None:
        from datasets import ClassLabel

        return self._column(self.label, ClassLabel, "label") if self.labelled else None

    def classes(self) -> list[str]:
        return list(self.data[self.split].features[self._label_column].names) if self._label_column else []

    def has_validation(self) -> bool:
        return self._validation is not None

    def read(self, split: SplitName) -> Iterator[Picture]:
        from datasets import Image

        place = self.split if split == "train" else self._validation
        image, label = self._image_column, self._label_column
        data = self.data[place].select_columns([image, *([label] if label else [])])
        for number, row in enumerate(data.cast_column(image, Image(decode=False))):
            name = f"picture {number} of {self.name} ({place})"
            file = row[image] or {"bytes": b"", "path": None}
            pixels = opened(file["bytes"] if file["bytes"] is not None else Path(file["path"]), name)
            yield Picture(name, pixels, None if label is None else row[label])
