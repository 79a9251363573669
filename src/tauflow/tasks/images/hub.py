"""Pictures in a data set of the hub, or in a local one that the datasets library reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tauflow.errors import SettingsError, first_line
from tauflow.tasks.images.pictures import opened
from tauflow.tasks.images.sources import VALIDATION, Picture, Source, SplitName, digest_of


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
