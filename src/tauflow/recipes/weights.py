"""The weights of a folder, under the names of the modules that hold them.

Nothing in a folder can run code: weights are read from safetensors. Where a recipe names a pickle, and there
is nothing else, torch reads it with `weights_only`, which knows plain tensors alone; a pickled embedding is
one class more.
"""

import re
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tauflow.errors import CheckpointError, SettingsError
from tauflow.recipes.base import INSTALL, Recipe
from tauflow.recipes.folders import read_json
from tauflow.train.archive import listed, shortened

INDEX = "model.safetensors.index.json"


def weight_files(folder: Path, pickles: tuple[str, ...] = ()) -> list[Path]:
    """Return the files of the weights; refuse pickles that are not named, and an index of missing files."""
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX).get("weight_map")
        names = sorted({str(name) for name in index.values()}) if isinstance(index, dict) else []
        missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
        if missing or not names:
            raise CheckpointError(
                f"{folder} lacks files of its index: {listed(missing) or 'all'}; get them again"
            )
        return [folder / name for name in names]
    found = sorted(folder.glob("*.safetensors"))
    found = found or [folder / name for name in pickles if (folder / name).is_file()][:1]
    if not found:
        others = [path.name for path in sorted(folder.glob("*.bin"))]
        there = (
            f"; {listed(others)} are pickles, which could run code: save them as safetensors"
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
                pickled = path.name in self._recipe.pickles
                file = Pickled(path) if pickled else self._stack.enter_context(safe_open(path, "pt"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is damaged ({shortened(str(error))}); get it again") from None
            for key in file.keys():  # noqa: SIM118  # it is no dictionary
                name = host_name(self._recipe, key)
                if name in self._places:
                    raise CheckpointError(f"{self.folder} holds {name} twice, the second as {shortened(key)}")
                if name is not None:
                    self._places[name] = file, key
        for file_name, name in self._recipe.embeddings.items():
            if (self.folder / file_name).exists():
                self._embeddings[name] = pickled_embedding(self.folder / file_name)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight by its name."""
        found = {name: tuple(file.get_slice(key).get_shape()) for name, (file, key) in self._places.items()}
        return found | {name: tuple(weight.shape) for name, weight in self._embeddings.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._embeddings:
            return self._embeddings[name]
        file, key = self._places[name]
        return file.get_tensor(key)


def unpickled(path: Path) -> Any:
    """Return what a pickle holds; refuse one of more than plain data."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises many kinds
        reason = shortened(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise CheckpointError(
            f"{path} is refused, it is damaged or holds more than weights: {reason}"
        ) from None


class Pickled:
    """A pickle of plain tensors, read like a file of safetensors."""

    def __init__(self, path: Path):
        found = unpickled(path)
        if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
            raise CheckpointError(f"{path} holds more than weights by their names; save them as safetensors")
        self._weights = {str(name): weight.detach() for name, weight in found.items()}

    def keys(self) -> list[str]:
        """Return the names of the weights."""
        return list(self._weights)

    def get_slice(self, key: str) -> "Pickled.Slice":
        """Return what knows the shape of a weight."""
        return Pickled.Slice(self._weights[key])

    def get_tensor(self, key: str) -> Tensor:
        """Return a weight."""
        return self._weights[key]

    class Slice(NamedTuple):
        weight: Tensor

        def get_shape(self) -> list[int]:
            """Return the shape."""
            return list(self.weight.shape)


def pickled_embedding(path: Path) -> Tensor:
    """Return the weight of an nn.Embedding that was pickled as a whole; nothing else is unpickled."""
    with torch.serialization.safe_globals([nn.Embedding]):
        found = unpickled(path)
    weight = getattr(found, "weight", found)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise CheckpointError(f"{path} holds a {type(found).__name__}, not an nn.Embedding")
    return weight.detach()
