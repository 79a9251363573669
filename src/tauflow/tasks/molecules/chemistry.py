"""Single molecules with RDKit: canonical SMILES, properties, fragments, scaffolds, and drawings.

RDKit is imported on first use. The data of MOSES are files of the package `molsets`, which is never imported.
"""

import importlib
import io
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tauflow.errors import SettingsError, printable

INSTALL = "pip install -c constraints.txt -e '.[molecules]'"
INSTALL_DATA = "pip install --no-deps molsets==0.3.1"
PROPERTIES = ("logp", "qed", "sa", "weight")
MIN_RINGS = 2  # of a scaffold
CROSS_COLOR = (230, 170, 170)
TEXT_COLOR = (90, 90, 90)
LETTER = (6, 12)  # width and height in pixels

# Packages


def optional_module(name: str) -> ModuleType:
    """Import a module of an optional package; the error says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingsError(f"molecules need {name} ({error}): {INSTALL} && {INSTALL_DATA}") from None


def molsets_file(file: str) -> Path:
    """Return the path of a file of the package `molsets`; the error says how to install it."""
    package = find_spec("moses")
    folders = package.submodule_search_locations if package else None
    path = Path(folders[0]) / file if folders else None
    if path is None or not path.is_file():
        raise SettingsError(f"{file} of MOSES not found: {INSTALL_DATA}")
    return path


def dataset(split: str) -> Path:
    """Return the CSV file, column SMILES, of "train", "test" or "test_scaffolds" of MOSES."""
    return molsets_file(f"dataset/data/{split}.csv.gz")


# Molecules


def parse_smiles(text: str) -> Any | None:
    """Return the RDKit molecule of a SMILES string; None if it isn't one, or empty.

    RDKit reads text after a blank as a name. Here a string with a blank isn't a molecule.
    """
    if text.split() != [text]:
        return None
    with optional_module("rdkit.rdBase").BlockLogs():
        return optional_module("rdkit.Chem").MolFromSmiles(text)


def parse_valid(smiles: Iterable[str]) -> list[Any]:
    """Return the RDKit molecules of SMILES strings; raise an error if one isn't valid."""
    molecules = []
    for text in smiles:
        molecule = parse_smiles(text)
        if molecule is None:
            raise SettingsError(f"{text!r} isn't a valid molecule; keep only those with a canonical() SMILES")
        molecules.append(molecule)
    return molecules


def canonical(text: str) -> str | None:
    """Return the canonical SMILES of a molecule; None if RDKit can't parse or sanitize the string."""
    molecule = parse_smiles(text)
    return None if molecule is None else optional_module("rdkit.Chem").MolToSmiles(molecule)


def properties(smiles: Sequence[str], names: Sequence[str] = PROPERTIES) -> dict[str, np.ndarray]:
    """Return properties of valid molecules, float64 (N,) each.

    Args:
        smiles: of the molecules.
        names: some of "logp" (Crippen's), "qed" (drug-likeness), "sa" (synthetic accessibility, 1 easy to 10
            hard), and "weight" (in daltons).
    """
    return molecule_properties(parse_valid(smiles), names)


def molecule_properties(molecules: Sequence[Any], names: Sequence[str] = PROPERTIES) -> dict[str, np.ndarray]:
    return {
        name: np.array([_property_function(name)(each) for each in molecules], np.float64) for name in names
    }


@cache
def _property_function(name: str) -> Callable[[Any], float]:
    if name == "logp":
        return optional_module("rdkit.Chem.Crippen").MolLogP
    if name == "qed":
        return optional_module("rdkit.Chem.QED").qed
    if name == "weight":
        return optional_module("rdkit.Chem.Descriptors").MolWt
    # RDKit ships the scorer of "sa" outside its package
    path = Path(optional_module("rdkit.RDConfig").RDContribDir) / "SA_Score" / "sascorer.py"
    spec: Any = spec_from_file_location("sascorer", path)
    scorer = module_from_spec(spec)
    spec.loader.exec_module(scorer)
    return scorer.calculateScore


def count_fragments(molecules: Iterable[Any]) -> Counter[str]:
    """Return the counts of the fragments of RDKit molecules cut at their BRICS bonds."""
    chem = optional_module("rdkit.Chem")
    brics = optional_module("rdkit.Chem.AllChem")
    cut = (chem.MolToSmiles(brics.FragmentOnBRICSBonds(each)) for each in molecules)
    return Counter(fragment for parts in cut for fragment in parts.split("."))


def count_scaffolds(molecules: Iterable[Any]) -> Counter[str]:
    """Return the counts of the Bemis-Murcko scaffolds with at least two rings of RDKit molecules."""
    chem = optional_module("rdkit.Chem")
    murcko = optional_module("rdkit.Chem.Scaffolds.MurckoScaffold")
    counts: Counter[str] = Counter()
    for each in molecules:
        with suppress(ValueError, RuntimeError):  # RDKit finds none
            scaffold = murcko.GetScaffoldForMol(each)
            if scaffold.GetRingInfo().NumRings() >= MIN_RINGS:
                counts[chem.MolToSmiles(scaffold)] += 1
    return counts


# Drawings


def draw(smiles: Sequence[str | None], size: tuple[int, int] = (160, 240)) -> np.ndarray:
    """Return images uint8 (B, H, W, 3) of molecules; invalid ones are crossed out and show their text."""
    height, width = size
    images = np.zeros((len(smiles), height, width, 3), np.uint8)
    for number, text in enumerate(smiles):
        molecule = None if text is None else parse_smiles(text)
        if molecule is None:
            image = _draw_text(text or "", height, width)
        else:
            canvas = optional_module("rdkit.Chem.Draw.rdMolDraw2D").MolDraw2DCairo(width, height)
            with optional_module("rdkit.rdBase").BlockLogs():
                canvas.DrawMolecule(molecule)
            canvas.FinishDrawing()
            image = Image.open(io.BytesIO(canvas.GetDrawingText()))
        images[number] = np.asarray(image.convert("RGB"))
    return images


def _draw_text(text: str, height: int, width: int) -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(image)
    pen.line((0, 0, width, height), fill=CROSS_COLOR, width=2)
    pen.line((0, height, width, 0), fill=CROSS_COLOR, width=2)
    lines = textwrap.wrap(printable(text), max(1, width // LETTER[0] - 1))[: height // LETTER[1]]
    pen.multiline_text((LETTER[0] // 2, 0), "\n".join(lines), fill=TEXT_COLOR)
    return image
