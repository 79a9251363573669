"""Single molecules by RDKit: canonical SMILES, properties, fragments and scaffolds.

RDKit's messages about strings that are no molecules are silenced here, and only here.
"""

import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from tauflow.errors import SettingsError
from tauflow.moses.package import PlainUnpickler, needed

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
