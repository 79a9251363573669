"""The weights of a folder, under the names of the modules that hold them.

Nothing in a folder can run code: weights are read from safetensors. If a recipe names a pickle and there's
nothing else, `untrusted.read_tensors` reads it.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor, nn

from tauflow.errors import CheckpointError, SettingsError, join_names, shorten
from tauflow.recipes.base import INSTALL, Recipe
from tauflow.untrusted import check_storage, path_of, read_json, read_tensors

INDEX = "model.safetensors.index.json"


def weight_files(folder: Path, pickles: tuple[str, ...] = ()) -> list[Path]:
    """Return the files of the weights; refuse pickles that are not named, and an index of missing files."""
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX).get("weight_map")
        names = sorted({str(name) for name in index.values()}) if isinstance(index, dict) else []
        missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
        if missing or not names:
            raise CheckpointError(
                f"{folder} lacks files of its index: {join_names(missing) or 'all'}; get them again"
            )
        return [folder / name for name in names]
    found = sorted(folder.glob("*.safetensors"))
    found = found or [folder / name for name in pickles if (folder / name).is_file()][:1]
    if not found:
        others = [path.name for path in sorted(folder.glob("*.bin"))]
        there = (
            f"; {join_names(others)} are pickles, which could run code: save them as safetensors"
            if others
            else ""
        )
        raise CheckpointError(f"{folder} holds no weights as *.safetensors{there}")
    return found


def host_name(recipe: Recipe, key: str) -> str | None:
    """Return the name in the host of a weight of a file; None where it is not needed."""
    if any(re.match(pattern, key) for pattern in recipe.unused):
        return None
    for pattern, replacement in recipe.keys:
        key = re.sub(pattern, replacement, key)
    return key


class Weights:
    """The weights of a folder under the names of the host, read one at a time; a context manager."""

    def __init__(self, folder: Path, recipe: Recipe):
        self.folder = folder
        self._recipe = recipe
        self._stack = ExitStack()
        self._places: dict[str, tuple[Any, str]] = {}
        self._embeddings: dict[str, Tensor] = {}

    def __enter__(self) -> "Weights":
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise SettingsError(f"weights of others need more packages: {INSTALL}") from None
        for path in weight_files(self.folder, self._recipe.pickles):
            try:
                file: Any
                if path.name in self._recipe.pickles:
                    file = Pickled(path)
                else:
                    file = self._stack.enter_context(safe_open(path, "pt"))
                    check_digest(path, file.metadata())
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is damaged ({shorten(str(error))}); get it again") from None
            for key in file.keys():  # noqa: SIM118  # it is no dictionary
                name = host_name(self._recipe, key)
                if name in self._places:
                    raise CheckpointError(f"{self.folder} holds {name} twice, the second as {shorten(key)}")
                if name is not None:
                    self._places[name] = file, key
        for file_name, name in self._recipe.embeddings.items():
            if (self.folder / file_name).exists():
                self._embeddings[name] = read_embedding(self.folder / file_name)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def shapes(self) -> dict[str, Tensor]:
        """Return the weights by name on the meta device, where they take no memory."""
        found = {name: file.get_slice(key).get_shape() for name, (file, key) in self._places.items()}
        found |= {name: weight.shape for name, weight in self._embeddings.items()}
        return {name: torch.empty(shape, device="meta") for name, shape in found.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._embeddings:
            return self._embeddings[name]
        file, key = self._places[name]
        return file.get_tensor(key)


class Pickled:
    """A pickle of plain tensors, read like a safetensors file."""

    def __init__(self, path: Path):
        found = read_tensors(path, released=True)
        if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
            raise CheckpointError(f"{path} must contain weights by name. Save them as safetensors.")
        self._weights = {str(name): weight.detach() for name, weight in found.items()}
        check_storage(self._weights, path)

    def keys(self) -> list[str]:
        """Return the names of the weights."""
        return list(self._weights)

    def get_slice(self, key: str) -> "Pickled.Slice":
        """Return something with the shape of a weight."""
        return Pickled.Slice(self._weights[key])

    def get_tensor(self, key: str) -> Tensor:
        """Return a weight."""
        return self._weights[key]

    class Slice(NamedTuple):
        weight: Tensor

        def get_shape(self) -> list[int]:
            """Return the shape."""
            return list(self.weight.shape)


class PickledEmbedding:
    """Stands in for a pickled nn.Embedding, whose constructor would allocate memory."""

    _parameters: dict[str, Tensor]


def read_embedding(path: Path) -> Tensor:
    """Return the weight of a pickled nn.Embedding."""
    found = read_tensors(path, released=True, stand_ins={path_of(nn.Embedding): PickledEmbedding})
    parameters = getattr(found, "_parameters", None)
    weight = parameters.get("weight") if isinstance(parameters, dict) else None
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise CheckpointError(f"{path} must contain an nn.Embedding, got {type(found).__name__}.")
    return weight.detach()


def save_weights(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file whose metadata has the sha256 of the weights: the format has no checksum."""
    from safetensors.torch import save_file

    blank = "0" * 64
    save_file(tensors, path, metadata={"format": "pt", "sha256": blank})
    with open(path, "r+b") as file:
        place = file.read(_start_of_weights(file)).index(blank.encode())
        digest = _weights_digest(file)
        file.seek(place)
        file.write(digest.encode())


def check_digest(path: Path, metadata: Mapping[str, str] | None) -> None:
    """Raise if a safetensors file has the sha256 of its weights and they have changed since."""
    wanted = (metadata or {}).get("sha256")
    if wanted is not None:
        with open(path, "rb") as file:
            if _weights_digest(file) != wanted:
                raise CheckpointError(f"{path} is damaged: its sha256 is wrong. Export or download it again.")


def _weights_digest(file: BinaryIO) -> str:
    file.seek(_start_of_weights(file))
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # of typeshed


def _start_of_weights(file: BinaryIO) -> int:
    """Return where the header of a safetensors file ends: its length is in the first eight bytes."""
    file.seek(0)
    start = 8 + int.from_bytes(file.read(8), "little")
    file.seek(0)
    return start
