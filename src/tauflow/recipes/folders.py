"""Folders of pretrained models: where they are, and what kind they are."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from tauflow.errors import CheckpointError, SettingsError, TauflowError, WriteError, first_line, shorten
from tauflow.files import digest
from tauflow.recipes.base import INSTALL, Config, Recipe
from tauflow.untrusted import check_folder, check_sizes, read_json

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
