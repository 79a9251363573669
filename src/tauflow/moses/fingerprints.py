"""Morgan fingerprints of molecules and how alike they are, by the Tanimoto similarity.

Shapes: N molecules, M others, BITS bits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tauflow.moses.package import needed

RADIUS, BITS = 2, 1024


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Morgan fingerprints of N molecules, eight bits to a byte."""

    packed: np.ndarray  # uint8 (N, BITS / 8)

    @classmethod
    def of(cls, found: Iterable[Any]) -> "Fingerprints":
        """Return those of molecules of RDKit."""
        generator = needed("rdkit.Chem.rdFingerprintGenerator").GetMorganGenerator(radius=RADIUS, fpSize=BITS)
        rows = [np.packbits(generator.GetFingerprintAsNumPy(each)) for each in found]
        return cls(np.array(rows, np.uint8).reshape(-1, BITS // 8))

    def __len__(self) -> int:
        return len(self.packed)

    @cached_property
    def columns(self) -> np.ndarray:
        """Return 0 or 1, uint8 (BITS, N): which molecules have a bit."""
        return np.unpackbits(np.ascontiguousarray(self.packed.T), axis=0)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return how many bits each molecule has, float32 (N,)."""
        return np.unpackbits(self.packed, axis=1).sum(1, dtype=np.float32)

    def similarities(self, others: "Fingerprints") -> Iterator[np.ndarray]:
        """Yield for one of the others after the other its similarity to all of these, float32 (N,).

        A molecule has some fifty of the bits: their columns are added up, which is an order of magnitude
        faster than a product of matrices. What is yielded is overwritten by the next.
        """
        kind = np.uint8 if others.sizes.max(initial=0) < 256 else np.uint16
        shared = np.zeros(len(self), kind)
        similar, union = np.empty_like(self.sizes), np.empty_like(self.sizes)
        for row in others.packed:
            bits = np.flatnonzero(np.unpackbits(row))
            shared.fill(0)
            for bit in bits:
                np.add(shared, self.columns[bit], out=shared)
            np.add(self.sizes, len(bits), out=union)
            np.subtract(union, shared, out=union)
            np.divide(shared, union, out=similar)
            yield similar

    def nearest(self, others: "Fingerprints") -> np.ndarray:
        """Return the similarity of each of the others to the nearest of these, float64 (M,)."""
        return np.array([similar.max() for similar in self.similarities(others)], np.float64)

    def diversity(self) -> tuple[float, float]:
        """Return the internal diversities with powers 1 and 2.

        They are 1 minus the mean over molecules of the mean similarity to all molecules, itself included,
        and of its root mean square. They are NaN without molecules.
        """
        if not len(self):
            return np.nan, np.nan
        powers = [
            (similar.mean(dtype=np.float64), np.square(similar).mean(dtype=np.float64))
            for similar in self.similarities(self)
        ]
        first, second = np.array(powers).T
        return 1 - float(first.mean()), 1 - float(np.sqrt(second).mean())
