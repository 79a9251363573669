"""Heavy chains of real antibodies, what is asked for around them, and what every heavy chain has."""

import re
from dataclasses import dataclass, field

from tauflow.errors import SettingsError

START = "EVQLVESGG"  # as heavy chains of the family VH3 begin
FRAMEWORK = re.compile(r".{20,22}C.{13,17}W.{57,63}C.{3,32}WG.G.*")
"""What IMGT numbers 23 (Cys), 41 (Trp), 104 (Cys) and 118 to 121 (Trp-Gly-X-Gly), as far apart as loops of
usual lengths put them."""


@dataclass(frozen=True)
class Antibody:
    """The variable domain of a heavy chain.

    Args:
        name: of the antibody.
        chain: its residues.
        loops: its CDR1, CDR2 and CDR3 as IMGT delimits them (27-38, 56-65, 105-117).
    """

    name: str
    chain: str
    loops: tuple[str, str, str]

    @property
    def places(self) -> dict[str, slice]:
        """Return where the loops are, by name."""
        places, end = {}, 0
        for number, loop in enumerate(self.loops, start=1):
            begin = self.chain.find(loop, end)
            if begin < 0:
                raise SettingsError(
                    f"CDR{number} of {self.name} is to be {loop!r}, which its chain does not have there; "
                    "write the loops in order, as they stand in the chain"
                )
            end = begin + len(loop)
            places[f"cdr{number}"] = slice(begin, end)
        return places


TRASTUZUMAB = Antibody(
    "trastuzumab",
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS",
    ("GFNIKDTY", "IYPTNGYT", "SRWGGDGFYAMDY"),
)
ADALIMUMAB = Antibody(
    "adalimumab",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYC"
    "AKVSYLSTASSLDYWGQGTLVTVSS",
    ("GFTFDDYA", "ITWNSGHI", "AKVSYLSTASSLDY"),
)
PERTUZUMAB = Antibody(
    "pertuzumab",
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFTDYTMDWVRQAPGKGLEWVADVNPNSGGSIYNQRFKGRFTLSVDRSKNTLYLQMNSLRAEDTAVYYC"
    "ARNLGPSFYFDYWGQGTLVTVSS",
    ("GFTFTDYT", "VNPNSGGS", "ARNLGPSFYFDY"),
)


@dataclass(frozen=True)
class Design:
    """What is known of the chains that are asked for.

    Args:
        name: in tables.
        real: a real chain that fits.
        text: it with an underscore for each residue to be found.
        regions: parts to be found whose recovery is of interest, by name.
    """

    name: str
    real: str
    text: str
    regions: dict[str, slice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fits = [letter in ("_", own) for letter, own in zip(self.text, self.real, strict=False)]
        if len(self.text) != len(self.real) or not all(fits):
            place = fits.index(False) if False in fits else len(fits)
            raise SettingsError(
                f"{self.name}: write the text as the real chain with underscores; from residue {place + 1} "
                f"on it is {self.text[place : place + 10]!r}, the chain is {self.real[place : place + 10]!r}"
            )

    @classmethod
    def beginning(cls, antibody: Antibody, start: str = START) -> "Design":
        """Return chains as long as that of an antibody, of which the start is known."""
        rest = "_" * (len(antibody.chain) - len(start))
        return cls(f"chains from {start}", antibody.chain, start + rest)

    @classmethod
    def loops(cls, antibody: Antibody) -> "Design":
        """Return the chain of an antibody without its three loops."""
        text = list(antibody.chain)
        for places in antibody.places.values():
            text[places] = "_" * (places.stop - places.start)
        return cls(f"loops of {antibody.name}", antibody.chain, "".join(text), antibody.places)

    @property
    def open(self) -> list[int]:
        """Return the places of the residues to be found."""
        return [place for place, letter in enumerate(self.text) if letter == "_"]
