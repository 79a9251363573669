"""What other packages bring: RDKit, and the data, statistics and patterns inside `molsets`."""

import importlib
import pickle
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from tauflow.errors import SettingsError

INSTALL = "pip install -c constraints.txt -e '.[molecules]'"
INSTALL_DATA = "pip install --no-deps molsets==0.3.1"


def needed(name: str) -> ModuleType:
    """Import a module of an optional package; raise SettingsError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingsError(f"molecules need {name} ({error}): {INSTALL} && {INSTALL_DATA}") from None


def molsets(file: str) -> Path:
    """Return the path of a file of the package `molsets`, which is found but never imported.

    Raises SettingsError with the command that installs it.
    """
    package = find_spec("moses")
    folders = package.submodule_search_locations if package else None
    path = Path(folders[0]) / file if folders else None
    if path is None or not path.is_file():
        raise SettingsError(f"there is no {file} of MOSES: {INSTALL_DATA}")
    return path


def dataset(split: str) -> Path:
    """Return the CSV file, column SMILES, of "train", "test" or "test_scaffolds" of MOSES."""
    return molsets(f"dataset/data/{split}.csv.gz")


class Readable(Protocol):
    """A binary file, as far as pickles are read from it."""

    def read(self, n: int, /) -> bytes: ...

    def readline(self) -> bytes: ...


class PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain values and of what is in `known`: no code of a file's choice runs."""

    def __init__(self, file: Readable, known: dict[tuple[str, str], Any] | None = None):
        super().__init__(file)
        self._known = known or {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what is known by that name; raise for anything else."""
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self._known[module, name]
