"""What other packages bring: RDKit, and the data, statistics and patterns inside `molsets`."""

import gzip
import importlib
import io
import pickle
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageDraw

from tauflow.errors import SettingsError, printable

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


# Single molecules by RDKit: canonical SMILES, properties, fragments and scaffolds.
#
# RDKit's messages about strings that are no molecules are silenced here, and only here.


PROPERTIES = ("logp", "qed", "sa", "weight")
RINGS = 2  # that a scaffold has at least


def parsed(text: str) -> Any | None:
    """Return the molecule of RDKit; None for what is no SMILES of a molecule, the empty string included.

    RDKit takes what stands after a blank for a name; a string with a blank is no molecule here.
    """
    if text.split() != [text]:
        return None
    with needed("rdkit.rdBase").BlockLogs():
        return needed("rdkit.Chem").MolFromSmiles(text)


def canonical(text: str) -> str | None:
    """Return the canonical SMILES of a molecule; None where RDKit cannot parse or sanitise the string."""
    molecule = parsed(text)
    return None if molecule is None else needed("rdkit.Chem").MolToSmiles(molecule)


def molecules(smiles: Iterable[str]) -> list[Any]:
    """Return molecules of RDKit; raise SettingsError for the first string that is none."""
    found = []
    for text in smiles:
        molecule = parsed(text)
        if molecule is None:
            raise SettingsError(f"{text!r} is no valid molecule; keep those with a canonical() only")
        found.append(molecule)
    return found


def properties(smiles: Sequence[str], names: Sequence[str] = PROPERTIES) -> dict[str, np.ndarray]:
    """Return "logp", "qed", "sa" and "weight", or those of them that are named, of valid molecules.

    They are Crippen's logP, the drug-likeness QED, the synthetic accessibility (1 easy to 10 hard) and the
    molecular weight in daltons, float64 (N,) each.
    """
    return properties_of(molecules(smiles), names)


def properties_of(found: Sequence[Any], names: Sequence[str] = PROPERTIES) -> dict[str, np.ndarray]:
    """Return properties of molecules of RDKit."""
    return {name: np.array([_property(name)(each) for each in found], np.float64) for name in names}


@cache
def _property(name: str) -> Callable[[Any], float]:
    """Return the function that finds a property; only that of "sa" reads a file."""
    if name == "sa":
        return _sa_scorer().calculateScore
    module, function = {
        "logp": ("rdkit.Chem.Crippen", "MolLogP"),
        "qed": ("rdkit.Chem.QED", "qed"),
        "weight": ("rdkit.Chem.Descriptors", "MolWt"),
    }[name]
    return getattr(needed(module), function)


@cache
def _sa_scorer() -> Any:
    """Load the scorer that RDKit brings along outside its package, and its scores of fragments."""
    folder = Path(needed("rdkit.RDConfig").RDContribDir) / "SA_Score"
    spec = spec_from_file_location("sascorer", folder / "sascorer.py")
    if spec is None or spec.loader is None or not (folder / "sascorer.py").is_file():
        raise SettingsError(f"RDKit has no {folder / 'sascorer.py'}: pip install --force-reinstall rdkit")
    scorer: Any = module_from_spec(spec)
    spec.loader.exec_module(scorer)
    with gzip.open(folder / "fpscores.pkl.gz") as file:
        rows = PlainUnpickler(file).load()  # a score, and the fragments that have it
    scorer._fscores = {fragment: float(row[0]) for row in rows for fragment in row[1:]}  # else it unpickles
    return scorer


def fragments_of(found: Iterable[Any]) -> Counter[str]:
    """Return how often each fragment occurs where molecules are cut at their BRICS bonds."""
    chem, brics = needed("rdkit.Chem"), needed("rdkit.Chem.AllChem")
    cut = (chem.MolToSmiles(brics.FragmentOnBRICSBonds(each)) for each in found)
    return Counter(fragment for parts in cut for fragment in parts.split("."))


def scaffolds_of(found: Iterable[Any]) -> Counter[str]:
    """Return how often each Bemis-Murcko scaffold with two rings or more occurs."""
    chem, murcko = needed("rdkit.Chem"), needed("rdkit.Chem.Scaffolds.MurckoScaffold")
    counts: Counter[str] = Counter()
    for each in found:
        with suppress(ValueError, RuntimeError):  # RDKit finds none
            scaffold = murcko.GetScaffoldForMol(each)
            if scaffold.GetRingInfo().NumRings() >= RINGS:
                counts[chem.MolToSmiles(scaffold)] += 1
    return counts


# Pictures of molecules.


CROSS, TEXT = (230, 170, 170), (90, 90, 90)
LETTER = (6, 12)  # pixels that a letter takes


def draw(smiles: Sequence[str | None], size: tuple[int, int] = (160, 240)) -> np.ndarray:
    """Return pictures, uint8 (B, H, W, 3), of molecules; what is none is crossed out, with its text on it."""
    pictures = np.zeros((len(smiles), *size, 3), np.uint8)
    for number, text in enumerate(smiles):
        molecule = None if text is None else parsed(text)
        picture = _cross_out(text or "", size) if molecule is None else _draw(molecule, size)
        pictures[number] = np.asarray(picture.convert("RGB"))
    return pictures


def _draw(molecule: Any, size: tuple[int, int]) -> Image.Image:
    height, width = size
    canvas = needed("rdkit.Chem.Draw.rdMolDraw2D").MolDraw2DCairo(width, height)
    with needed("rdkit.rdBase").BlockLogs():
        canvas.DrawMolecule(molecule)
    canvas.FinishDrawing()
    return Image.open(io.BytesIO(canvas.GetDrawingText()))


def _cross_out(text: str, size: tuple[int, int]) -> Image.Image:
    height, width = size
    picture = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(picture)
    pen.line((0, 0, width, height), fill=CROSS, width=2)
    pen.line((0, height, width, 0), fill=CROSS, width=2)
    lines = textwrap.wrap(printable(text), max(1, width // LETTER[0] - 1))[: height // LETTER[1]]
    pen.multiline_text((LETTER[0] // 2, 0), "\n".join(lines), fill=TEXT)
    return picture
