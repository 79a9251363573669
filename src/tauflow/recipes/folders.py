"""Folders of pretrained models: find them, recognize them, and read and write their weights.

No code in a folder can run. Weights are read from safetensors. If a recipe names a pickle and there's nothing
else, `untrusted.read_tensors` reads it.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn

from tauflow.errors import (
    CheckpointError,
    SettingsError,
    TauflowError,
    WriteError,
    first_line,
    join_names,
    shorten,
)
from tauflow.files import digest
from tauflow.recipes.recipe import INSTALL, Config, Recipe
from tauflow.untrusted import check_folder, check_sizes, check_storage, path_of, read_json, read_tensors

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
GUIDE = "See docs/pretrained.md to write a recipe."


# Where a model is


def find_folder(name: str | Path, recipes: Sequence[Recipe]) -> Path:
    """Return the folder of a model from a path, the name of a packaged recipe, or a name on the hub."""
    if not str(name or "").strip():
        raise SettingsError(f"The model must be a folder or a hub name such as owner/model, got {name!r}.")
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"The model must be a folder, got the file {name}.")
    for recipe in recipes:
        if recipe.package is not None and recipe.name.lower() == str(name).lower():
            return recipe.package()
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(name)):
        raise CheckpointError(f"Folder not found: {name}. Pass a folder, or a hub name such as owner/model.")
    matching = [
        recipe
        for recipe in recipes
        if any(fnmatch(str(name).lower(), pattern.lower()) for pattern in recipe.hub)
    ]
    if not matching:
        raise CheckpointError(
            f"Folder not found: {name}, and no recipe loads a hub model of that name. "
            f"{_list_recipes(recipes)} {GUIDE}"
        )
    files = [file for recipe in matching for file in recipe.files]
    folder = _download(str(name), files)
    pickles = [file for recipe in matching for file in recipe.pickles]
    if pickles and not any(folder.glob("*.safetensors")):
        return _download(str(name), [*files, *pickles])
    return folder


def _list_recipes(recipes: Sequence[Recipe]) -> str:
    kinds = ", ".join(f"{recipe.name} ({recipe.kind})" for recipe in recipes)
    hub = ", ".join(pattern for recipe in recipes for pattern in recipe.hub) or "none"
    packages = ", ".join(recipe.name for recipe in recipes if recipe.package is not None)
    inside = f"; in packages: {packages}" if packages else ""
    return f"Recipes: {kinds}; names on the hub: {hub}{inside}."


def _download(name: str, files: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise SettingsError(f"Models from the hub need more packages: {INSTALL}") from None
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # the library raises many kinds
        raise CheckpointError(
            f"{name} isn't in the hub's cache and can't be downloaded: {first_line(error)}. Check the "
            "name and the network, or pass a folder."
        ) from None


def digest_folder(folder: Path) -> str:
    """Return the SHA-256 of all files that a model may be read from."""
    patterns = ("*.json", "*.safetensors", "*.pt", "*.bin", "*.txt", "*.model", "*.jinja")
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    facts = [(path.name, digest(path)) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


# What kind of model it is


def find_recipe(folder: Path, recipes: Iterable[Recipe]) -> tuple[Recipe, Config]:
    """Return the recipe of a folder, and its config.json as the recipe translates it.

    Recipes for one model_type go first, then those for any.
    """
    recipes = list(recipes)
    check_folder(folder)
    config = read_json(folder / CONFIG)
    check_sizes(config, folder / CONFIG)
    matching = [recipe for recipe in recipes if _matches(recipe, config)]
    named = [recipe for recipe in matching if recipe.model_type != "*"]
    for recipe in sorted(matching, key=lambda recipe: recipe.model_type == "*"):
        files = {name: read_json(folder / name) for name in recipe.marks if (folder / name).exists()}
        marks = [(name, key, value) for name, facts in recipe.marks.items() for key, value in facts.items()]
        if all(name in files and files[name].get(key) == value for name, key, value in marks):
            return recipe, _translate_config(recipe, config, files, folder)
    kind = shorten(str(config.get("model_type")))
    if not named:
        raise CheckpointError(
            f"{folder} has a model of type {kind}, which no recipe loads. {_list_recipes(recipes)} {GUIDE}"
        )
    wanted = [
        f"{name} with {key} {value!r}"
        for recipe in named
        for name, facts in recipe.marks.items()
        for key, value in facts.items()
    ]
    raise CheckpointError(
        f"{folder} has a model of type {kind}, but not one that a recipe loads: those have "
        f"{' or '.join(wanted)}."
    )


def _matches(recipe: Recipe, config: Config) -> bool:
    classes = config.get("architectures")
    names = [str(name) for name in classes] if isinstance(classes, list) and classes else [""]
    right_type = recipe.model_type in ("*", config.get("model_type"))
    return right_type and any(fnmatch(name, recipe.architecture) for name in names)


def _translate_config(recipe: Recipe, config: Config, files: dict[str, Config], folder: Path) -> Config:
    try:
        return recipe.config(config, files)
    except TauflowError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{folder / CONFIG} doesn't describe a {recipe.name} model: "
            f"{type(error).__name__} {shorten(str(error))}"
        ) from None


# Weights


def find_weight_files(folder: Path, pickles: tuple[str, ...] = ()) -> list[Path]:
    """Return the files of the weights: those of the index, or all safetensors, or the pickle of a recipe."""
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX).get("weight_map")
        names = sorted({str(name) for name in index.values()}) if isinstance(index, dict) else []
        missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
        if missing or not names:
            raise CheckpointError(
                f"{folder} lacks files of its index: {join_names(missing) or 'all'}. Download it again."
            )
        return [folder / name for name in names]
    found = sorted(folder.glob("*.safetensors"))
    found = found or [folder / name for name in pickles if (folder / name).is_file()][:1]
    if not found:
        others = join_names(path.name for path in sorted(folder.glob("*.bin")))
        advice = f" {others} are pickles, which could run code: save them as safetensors." if others else ""
        raise CheckpointError(f"{folder} has no weights as *.safetensors.{advice}")
    return found


class Weights:
    """The weights of a folder under the host's names, read one at a time; a context manager."""

    def __init__(self, folder: Path, recipe: Recipe):
        self.folder = folder
        self._recipe = recipe
        self._stack = ExitStack()
        self._read: dict[str, Callable[[], Tensor]] = {}
        self.shapes: dict[str, Tensor] = {}  # on the meta device, where they take no memory

    def __enter__(self) -> "Weights":
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise SettingsError(f"Pretrained weights need more packages: {INSTALL}") from None
        for path in find_weight_files(self.folder, self._recipe.pickles):
            if path.name in self._recipe.pickles:
                for key, weight in read_pickle(path).items():
                    self._add_translated(key, weight.shape, partial(_identity, weight))
                continue
            try:
                file = self._stack.enter_context(safe_open(path, "pt"))
                check_digest(path, file.metadata())
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is damaged ({shorten(str(error))}). Get it again.") from None
            for key in file.keys():  # noqa: SIM118  # it isn't a dictionary
                self._add_translated(key, file.get_slice(key).get_shape(), partial(file.get_tensor, key))
        for file_name, name in self._recipe.embeddings.items():
            if (self.folder / file_name).exists():
                weight = read_embedding(self.folder / file_name)
                self._add(name, weight.shape, partial(_identity, weight))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Tensor:
        return self._read[name]()

    def _add_translated(self, key: str, shape: Sequence[int], read: Callable[[], Tensor]) -> None:
        if any(re.match(pattern, key) for pattern in self._recipe.unused):
            return
        name = key
        for pattern, replacement in self._recipe.keys:
            name = re.sub(pattern, replacement, name)
        if name in self._read:
            raise CheckpointError(f"{self.folder} has {name} twice, the second as {shorten(key)}.")
        self._add(name, shape, read)

    def _add(self, name: str, shape: Sequence[int], read: Callable[[], Tensor]) -> None:
        self._read[name] = read
        self.shapes[name] = torch.empty(tuple(shape), device="meta")


def _identity(weight: Tensor) -> Tensor:
    return weight


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the weights of a pickle, which may contain plain tensors only."""
    found = read_tensors(path, released=True)
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise CheckpointError(f"{path} must contain weights by name. Save them as safetensors.")
    weights = {str(name): weight.detach() for name, weight in found.items()}
    check_storage(weights, path)
    return weights


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


# Folders that tauflow writes


def check_new(out: Path) -> None:
    """Raise an error if a folder to write exists."""
    if out.exists():
        raise CheckpointError(f"{out} exists already. Remove it, or choose another folder.")


@contextmanager
def create_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `out` when everything is written; a failure leaves nothing."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
            inner = Path(temporary) / out.name
            inner.mkdir()
            yield inner
            os.rename(inner, out)
    except OSError as error:
        raise WriteError(f"Can't write {out} ({error.strerror or error}).", error.errno) from None


def save_weights(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file with the SHA-256 of its weights as metadata: the format has no checksum."""
    from safetensors.torch import save_file

    blank = "0" * 64
    save_file(tensors, path, metadata={"format": "pt", "sha256": blank})
    with open(path, "r+b") as file:
        place = file.read(_start_of_weights(file)).index(blank.encode())
        computed = _weights_digest(file)
        file.seek(place)
        file.write(computed.encode())


def check_digest(path: Path, metadata: Mapping[str, str] | None) -> None:
    """Raise an error if a safetensors file has the SHA-256 of its weights and they have changed since."""
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
