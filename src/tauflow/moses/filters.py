"""The filters of MOSES: molecules that a medicinal chemist would not make."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tauflow.errors import SettingsError
from tauflow.moses.package import molsets, needed

ATOMS = {"C", "N", "S", "O", "F", "Cl", "Br", "H"}
RING = 8  # atoms of a ring that is too large
ROWS = 1024  # molecules that are searched at once


@dataclass(frozen=True, eq=False)
class Filters:
    """Which molecules are refused: by charges, atoms, rings of eight atoms or more, and patterns."""

    patterns: tuple[Any, ...]  # molecules of RDKit that stand for queries

    @classmethod
    def of(cls, *files: str | Path) -> "Filters":
        """Read patterns from CSV files in the two formats of MOSES.

        A file with a column `smarts` in its first line, or one without such a line, SMARTS first.
        """
        found = [_pattern(file, text) for file in map(Path, files) for text in _smarts(file)]
        return cls(tuple(found))

    @classmethod
    @cache
    def shipped(cls) -> "Filters":
        """Return those of MOSES: medicinal chemistry filters (MCF) and pan-assay interference (PAINS)."""
        return cls.of(molsets("metrics/mcf.csv"), molsets("metrics/wehi_pains.csv"))

    def passed(self, found: Sequence[Any]) -> np.ndarray:
        """Return which molecules of RDKit pass, bool (N,)."""
        passed = np.array([_allowed(each) for each in found], bool)
        candidates = np.flatnonzero(passed)
        for begin in range(0, len(candidates), ROWS):
            rows = candidates[begin : begin + ROWS]
            passed[rows[self._matched([found[row] for row in rows])]] = False
        return passed

    def _matched(self, found: Sequence[Any]) -> list[int]:
        """Return the numbers of molecules that have a pattern; hydrogens are atoms here."""
        search = needed("rdkit.Chem.rdSubstructLibrary")
        library = search.SubstructLibrary(search.MolHolder(), search.PatternHolder())
        for each in found:
            library.AddMol(needed("rdkit.Chem").AddHs(each))
        options = {"useChirality": False, "maxResults": len(found)}
        return sorted({row for each in self.patterns for row in library.GetMatches(each, **options)})


def _smarts(file: Path) -> Iterator[str]:
    """Yield the SMARTS of a file."""
    with open(file, newline="") as stream:
        rows = [row for row in csv.reader(stream) if row]
    column = 0
    if rows and "smarts" in rows[0]:
        column = rows.pop(0).index("smarts")
    for row in rows:
        yield row[column].strip()


def _pattern(file: Path, text: str) -> Any:
    with needed("rdkit.rdBase").BlockLogs():
        pattern = needed("rdkit.Chem").MolFromSmarts(text)
    if pattern is None:
        raise SettingsError(f"{file} has a pattern that is no SMARTS: {text!r}; correct or remove it")
    return pattern


def _allowed(molecule: Any) -> bool:
    """Return whether rings, charges and atoms are allowed, and the molecule exists without stereo signs."""
    if any(len(ring) >= RING for ring in molecule.GetRingInfo().AtomRings()):
        return False
    if any(atom.GetFormalCharge() or atom.GetSymbol() not in ATOMS for atom in molecule.GetAtoms()):
        return False
    chem = needed("rdkit.Chem")
    with needed("rdkit.rdBase").BlockLogs():
        return chem.MolFromSmiles(chem.MolToSmiles(molecule, isomericSmiles=False)) is not None
