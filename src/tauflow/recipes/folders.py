"""Folders of pretrained models: where they are, what kind they are, and the names of their weights.

Nothing in a folder can run code: weights are read from safetensors, and a pickled embedding by torch with
`weights_only`, which knows of no other class.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tauflow.errors import CheckpointError, SettingsError
from tauflow.files import digest
from tauflow.recipes.base import INSTALL, Config, Recipe
from tauflow.train.archive import listed, shortened

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
LARGEST = 2**24  # bytes of a file of settings
GUIDE = "docs/pretrained.md says how to write a recipe"


def folder_of(name: str | Path, recipes: Sequence[Recipe]) -> Path:
    """Return the folder of a model by its path or its name on the hub, from where it is downloaded."""
    folder = Path(name)
    if folder.exists():
        if not folder.is_dir():
            raise CheckpointError(f"{name} is a file; name the folder of a pretrained model")
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        raise CheckpointError(f"there is no folder {name}; name one, or a model of the hub: owner/model")
    matching = [
        each for each in recipes if any(fnmatch(str(name).lower(), shape.lower()) for shape in each.hub)
    ]
    if not matching:
        raise CheckpointError(
            f"there is no folder {name}, and no recipe for a model of that name on the hub; "
            f"{known(recipes)}; {GUIDE}"
        )
    return _downloaded(str(name), [file for recipe in matching for file in recipe.files])


def known(recipes: Sequence[Recipe]) -> str:
    """Return which recipes there are, in words."""
    facts = [f"{each.name} (model_type {each.model_type})" for each in recipes]
    names = [shape for each in recipes for shape in each.hub]
    return f"recipes: {', '.join(facts)}; names of the hub: {', '.join(names) or 'none'}"


def _downloaded(name: str, files: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise SettingsError(f"a model of the hub needs more packages: {INSTALL}") from None
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # the library raises many kinds
        reason = shortened((str(error) or type(error).__name__).splitlines()[0])
        raise CheckpointError(
            f"{name} is neither in the cache of the hub nor can it be downloaded ({reason}); check the name "
            "and the network, or name a folder that holds it"
        ) from None


def recipe_of(folder: Path, recipes: Iterable[Recipe]) -> tuple[Recipe, Config]:
    """Return the recipe of a folder, and what its config.json says in the words of the recipe."""
    config = read_json(folder / CONFIG)
    kind = config.get("model_type")
    there = list(recipes)
    fitting = [recipe for recipe in there if recipe.model_type == kind]
    if not fitting:
        raise CheckpointError(
            f"{folder} holds a model of type {shortened(str(kind))}, for which there is no recipe; "
            f"{known(there)}; {GUIDE}"
        )
    for recipe in fitting:
        files = {name: read_json(folder / name) for name in recipe.marks if (folder / name).exists()}
        wanted = {(name, key, value) for name, marks in recipe.marks.items() for key, value in marks.items()}
        if all(files.get(name, {}).get(key) == value for name, key, value in wanted):
            return recipe, _translated(recipe, config, files, folder)
    marks = [
        f"{name} with {key} {value!r}"
        for recipe in fitting
        for name, facts in recipe.marks.items()
        for key, value in facts.items()
    ]
    raise CheckpointError(
        f"{folder} is of type {kind}, as models of other kinds are; those with a recipe have "
        f"{' or '.join(marks)}"
    )


def _translated(recipe: Recipe, config: Config, files: dict[str, Config], folder: Path) -> Config:
    try:
        return recipe.config(config, files)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{folder / CONFIG} does not describe a {recipe.name} model: "
            f"{type(error).__name__} {shortened(str(error))}"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a dictionary."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError("it is too large")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}; name the folder of a whole model") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({shortened(str(error))}); get it again") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged (it holds no dictionary); get it again")
    return found


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights; refuse pickles, and an index whose files are missing."""
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
    if not found:
        pickles = [path.name for path in sorted(folder.glob("*.bin"))]
        there = (
            f"; {listed(pickles)} are pickles, which could run code: save them as safetensors"
            if pickles
            else ""
        )
        raise CheckpointError(f"{folder} holds no weights as *.safetensors{there}")
    return found


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of all files that a model may be read from."""
    files = [path for kind in ("*.json", "*.safetensors", "*.pt") for path in sorted(folder.glob(kind))]
    facts = [(path.name, digest(path)) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


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
        for path in weight_files(self.folder):
            try:
                file = self._stack.enter_context(safe_open(path, "pt"))
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


def pickled_embedding(path: Path) -> Tensor:
    """Return the weight of an nn.Embedding that was pickled as a whole; nothing else is unpickled."""
    try:
        with torch.serialization.safe_globals([nn.Embedding]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        reason = shortened(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise CheckpointError(
            f"{path} is refused, it is damaged or holds more than an embedding: {reason}"
        ) from None
    weight = getattr(found, "weight", found)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise CheckpointError(f"{path} holds a {type(found).__name__}, not an nn.Embedding")
    return weight.detach()
