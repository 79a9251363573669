"""How molecules are written: as canonical SMILES, or as SELFIES, of which every string is a molecule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tauflow.errors import SettingsError
from tauflow.tasks.molecules.chemistry import canonical, needed
from tauflow.tasks.sequences.sources import Entry, Source
from tauflow.tasks.sequences.tokens import FOREIGN
from tauflow.tasks.text.corpus import in_validation

Representation = Literal["smiles", "selfies"]
SELFIES = r"\[[^\]]*\]|\."  # a symbol, or the dot between two molecules


def written(smiles: str, representation: Representation) -> str | None:
    """Return a molecule in a representation; None where SELFIES cannot express it."""
    if representation == "smiles":
        return smiles
    try:
        return needed("selfies").encoder(smiles)
    except needed("selfies").EncoderError:
        return None


def smiles_of(text: str, representation: Representation) -> str:
    """Return the SMILES of a string; of one that is not well formed the string itself."""
    if representation == "smiles" or FOREIGN in text:
        return text
    try:
        return needed("selfies").decoder(text)
    except needed("selfies").DecoderError:
        return text


@dataclass(frozen=True)
class MoleculeSource(Source):
    """The SMILES of a source as molecules are written.

    Args:
        source: of SMILES.
        representation: how they are written.
        trusted: whether they are canonical already; else they are made so, and what is no molecule is
            refused.
        share: of them that is taken, chosen by their text.
        seed: of that choice.
    """

    source: Source
    representation: Representation
    trusted: bool
    share: float = 1.0
    seed: int = 0

    def entries(self) -> Iterator[Entry]:
        empty = True
        for entry in self.source.entries():
            key = f"share of {entry.text}"  # whether it is for validation is another question
            if self.share == 1 or in_validation(key, self.share, self.seed):
                empty = False
                yield entry._replace(text=self._written(entry))
        if empty and self.share < 1:
            raise SettingsError(f"--data.share {self.share:g} leaves no molecule; raise it")

    def digest(self) -> str:
        return f"{self.source.digest()} {self.representation} {self.trusted} {self.share} {self.seed}"

    def _written(self, entry: Entry) -> str:
        smiles = entry.text if self.trusted else canonical(entry.text)
        if smiles is None:
            raise SettingsError(
                f"{entry.where}: RDKit knows no molecule {entry.text[:80]!r}; fix or remove it"
            )
        text = written(smiles, self.representation)
        if text is None:
            raise SettingsError(
                f"{entry.where}: {smiles[:80]!r} cannot be written as SELFIES; remove it, or train with "
                "--data.representation smiles"
            )
        return text
