"""Folders of pretrained models: where they are, and what kind they are."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
GUIDE = "docs/pretrained.md says how to write a recipe"


def folder_of(name: str | Path, recipes: Sequence[Recipe]) -> Path:
    """Return the folder of a model by its path, its recipe or its name on the hub.

    A recipe names a model inside an installed package; from the hub models are downloaded.
    """
    if not isinstance(name, str | os.PathLike) or not str(name).strip():
        raise SettingsError(f"name a folder, or a model of the hub: owner/model; got {shorten(repr(name))}")
    folder = Path(name)
    if folder.exists():
        if not folder.is_dir():
            raise CheckpointError(f"{name} is a file; name the folder of a pretrained model")
        return folder
    for recipe in recipes:
        if recipe.package is not None and recipe.name.lower() == str(name).lower():
            return recipe.package()
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(name)):
        raise CheckpointError(f"there is no folder {name}; name one, or a model of the hub: owner/model")
    matching = [
        each for each in recipes if any(fnmatch(str(name).lower(), shape.lower()) for shape in each.hub)
    ]
    if not matching:
        raise CheckpointError(
            f"there is no folder {name}, and no recipe for a model of that name; {known(recipes)}; {GUIDE}"
        )
    files = [file for recipe in matching for file in recipe.files]
    folder = _downloaded(str(name), files)
    pickles = [file for recipe in matching for file in recipe.pickles]
    if pickles and not any(folder.glob("*.safetensors")):
        return _downloaded(str(name), [*files, *pickles])
    return folder


def known(recipes: Sequence[Recipe]) -> str:
    """Return which recipes there are, in words."""
    facts = [f"{each.name} ({kind_of(each)})" for each in recipes]
    names = [shape for each in recipes for shape in each.hub]
    packages = [each.name for each in recipes if each.package is not None]
    inside = f"; inside packages: {', '.join(packages)}" if packages else ""
    return f"recipes: {', '.join(facts)}; names of the hub: {', '.join(names) or 'none'}{inside}"


def kind_of(recipe: Recipe) -> str:
    """Return what config.json of its folders says, in words."""
    said = {"model_type": recipe.model_type, "architectures": recipe.architecture}
    return ", ".join(f"{name} {value}" for name, value in said.items() if value != "*") or "no model_type"


def _downloaded(name: str, files: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise SettingsError(f"a model of the hub needs more packages: {INSTALL}") from None
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # the library raises many kinds
        raise CheckpointError(
            f"{name} isn't in the hub's cache and can't be downloaded: {first_line(error)}. Check the "
            "name and the network, or pass a folder."
        ) from None


def recipe_of(folder: Path, recipes: Iterable[Recipe]) -> tuple[Recipe, Config]:
    """Return the recipe of a folder, and what its config.json says in the words of the recipe."""
    check_folder(folder)
    config = read_json(folder / CONFIG)
    check_sizes(config, folder / CONFIG)
    there = list(recipes)
    named = [recipe for recipe in there if recipe.model_type != "*" and _fits(recipe, config)]
    for recipe in [
        *named,
        *(recipe for recipe in there if recipe.model_type == "*" and _fits(recipe, config)),
    ]:
        files = {name: read_json(folder / name) for name in recipe.marks if (folder / name).exists()}
        wanted = {(name, key, value) for name, marks in recipe.marks.items() for key, value in marks.items()}
        if all(name in files and files[name].get(key) == value for name, key, value in wanted):
            return recipe, _translated(recipe, config, files, folder)
    kind = shorten(str(config.get("model_type")))
    if not named:
        raise CheckpointError(
            f"{folder} holds a model of type {kind}, for which there is no recipe; {known(there)}; {GUIDE}"
        )
    marks = [
        f"{name} with {key} {value!r}"
        for recipe in named
        for name, facts in recipe.marks.items()
        for key, value in facts.items()
    ]
    raise CheckpointError(
        f"{folder} is of type {kind}, as models of other kinds are; those with a recipe have "
        f"{' or '.join(marks)}"
    )


def _fits(recipe: Recipe, config: Config) -> bool:
    """Return whether config.json is that of a recipe, as far as its type and its classes tell."""
    classes = config.get("architectures") or [""]
    classes = [str(each) for each in classes] if isinstance(classes, list) else [""]
    return recipe.model_type in ("*", config.get("model_type")) and any(
        fnmatch(each, recipe.architecture) for each in classes
    )


def _translated(recipe: Recipe, config: Config, files: dict[str, Config], folder: Path) -> Config:
    try:
        return recipe.config(config, files)
    except TauflowError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{folder / CONFIG} does not describe a {recipe.name} model: "
            f"{type(error).__name__} {shorten(str(error))}"
        ) from None


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give an empty folder to write to, which becomes `out` when all is written; a failure leaves nothing."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as made:
            inner = Path(made) / out.name
            inner.mkdir()
            yield inner
            os.rename(inner, out)
    except OSError as error:
        raise WriteError(
            f"cannot write {out} ({error.strerror or error}); nothing is left", error.errno
        ) from None


def refuse_existing(out: Path) -> None:
    """Raise if a folder that is to be written is there already."""
    if out.exists():
        raise CheckpointError(f"{out} is there already; remove it, or name another folder")


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of all files that a model may be read from."""
    kinds = ("*.json", "*.safetensors", "*.pt", "*.bin", "*.txt", "*.model", "*.jinja")
    files = [path for kind in kinds for path in sorted(folder.glob(kind))]
    facts = [(path.name, digest(path)) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


# The weights of a folder, under the names of the modules that hold them.
#
# Nothing in a folder can run code: weights are read from safetensors. If a recipe names a pickle and there's
# nothing else, `untrusted.read_tensors` reads it.


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
