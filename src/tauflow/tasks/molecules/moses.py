"""The filters of MOSES: molecules that a medicinal chemist would not make."""

import csv
import pickle
import warnings
import zipfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tauflow.errors import SettingsError
from tauflow.files import atomic
from tauflow.tasks.molecules.chemistry import (
    INSTALL_DATA,
    PROPERTIES,
    PlainUnpickler,
    canonical,
    fragments_of,
    molecules,
    molsets,
    needed,
    properties_of,
    scaffolds_of,
)

ATOMS = {"C", "N", "S", "O", "F", "Cl", "Br", "H"}
RING = 8  # atoms of a ring that is too large
FILTER_BATCH = 1024  # molecules that are searched at once


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
        for begin in range(0, len(candidates), FILTER_BATCH):
            rows = candidates[begin : begin + FILTER_BATCH]
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


# Morgan fingerprints of molecules and how alike they are, by the Tanimoto similarity.
#
# Shapes: N molecules, M others, BITS bits.


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


# Features of molecules by ChemNet, and the Frechet ChemNet distance (FCD) between two sets of them.
#
# Shapes: N molecules, FEATURES features.


FEATURES = 512
CHEMNET_BATCH = 512  # molecules at once


@cache
def _network() -> Any:
    """Load ChemNet with the weights that are inside fcd_torch."""
    weights = Path(needed("fcd_torch").__file__ or "").with_name("ChemNet_v0.13_pretrained.pt")
    layers = torch.load(weights, map_location="cpu", weights_only=True)
    return needed("fcd_torch.utils").load_imported_model(layers).eval()


def features(smiles: Sequence[str], device: torch.device | str = "cpu") -> np.ndarray:
    """Return the features float32 (N, FEATURES) of canonical SMILES."""
    encoded = needed("fcd_torch.utils").SmilesDataset(smiles, canonize=False)
    network = _network().to(device)
    found = [np.zeros((0, FEATURES), np.float32)]
    with torch.inference_mode():
        for begin in range(0, len(smiles), CHEMNET_BATCH):
            rows = [encoded[row] for row in range(begin, min(begin + CHEMNET_BATCH, len(smiles)))]
            batch = torch.tensor(np.array(rows), dtype=torch.float32, device=device)
            found.append(network(batch.transpose(1, 2)).cpu().numpy())
    return np.concatenate(found)


def moments(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (FEATURES,) and the covariance of features; both are NaN for fewer than two rows."""
    if len(found) < 2:
        return np.full(FEATURES, np.nan), np.full((FEATURES, FEATURES), np.nan)
    return found.mean(0, dtype=np.float64), np.cov(found.T.astype(np.float64))


def frechet(
    mean: np.ndarray, covariance: np.ndarray, other_mean: np.ndarray, other_covariance: np.ndarray
) -> float:
    """Return the squared Frechet distance between two Gaussians; NaN where one has no moments.

    The trace of the root of the product of the covariances is that of the root of a symmetric matrix: the
    product with the one factor split into its root on both sides.
    """
    if np.isnan(mean).any() or np.isnan(other_mean).any():
        return np.nan
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(values.clip(min=0))
    product = np.linalg.eigvalsh(root.T @ other_covariance @ root)
    overlap = np.sqrt(product.clip(min=0)).sum()
    shift = mean.astype(np.float64) - other_mean
    return float(shift @ shift + np.trace(covariance) + np.trace(other_covariance) - 2 * overlap)


# Statistics of a set of molecules: what MOSES compares two sets by.
#
# Shapes: N molecules, F features of ChemNet.


NAMES = {"logp": "logP", "sa": "SA", "qed": "QED", "weight": "weight"}
"""What MOSES calls the properties."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Statistics of a set of molecules.

    Args:
        mean: of the features of ChemNet (F,).
        covariance: of the features (F, F).
        fingerprints: of the molecules.
        fragments: how often each BRICS fragment occurs.
        scaffolds: how often each scaffold occurs.
        properties: of each molecule, "logp", "qed", "sa" and "weight", (N,) each.
    """

    mean: np.ndarray
    covariance: np.ndarray
    fingerprints: Fingerprints
    fragments: Counter[str]
    scaffolds: Counter[str]
    properties: dict[str, np.ndarray]

    @classmethod
    def of(cls, smiles: Sequence[str], device: torch.device | str = "cpu") -> "Reference":
        """Return the statistics of valid molecules; ChemNet runs on the device and reads canonical SMILES."""
        found = molecules(smiles)
        names = [needed("rdkit.Chem").MolToSmiles(each) for each in found]
        return cls(
            *moments(features(names, device)),
            Fingerprints.of(found),
            fragments_of(found),
            scaffolds_of(found),
            properties_of(found),
        )

    @classmethod
    @cache
    def shipped(cls, split: Literal["test", "test_scaffolds"]) -> "Reference":
        """Return the statistics of a test set of MOSES, as the package `molsets` brings them along.

        They are a pickle, of which arrays, numbers, strings and counts are read and nothing else.
        """
        path = molsets(f"dataset/data/{split}_stats.npz")
        try:
            found = _unpickled(path)
        except (pickle.UnpicklingError, zipfile.BadZipFile, ValueError, KeyError, EOFError, OSError) as error:
            again = INSTALL_DATA.replace("--no-deps", "--no-deps --force-reinstall")
            raise SettingsError(f"cannot read {path} ({error}): {again}") from None
        return cls(
            found["FCD"]["mu"].astype(np.float64),
            found["FCD"]["sigma"],
            Fingerprints(np.packbits(found["SNN"]["fps"], axis=1)),
            found["Frag"]["frag"],
            found["Scaf"]["scaf"],
            {name: np.array(found[NAMES[name]]["values"]) for name in PROPERTIES},
        )

    def save(self, path: str | Path) -> None:
        """Write an .npz file of plain arrays, atomically."""
        arrays: dict[str, Any] = {"mean": self.mean, "covariance": self.covariance, **self.properties}
        arrays["fingerprints"] = self.fingerprints.packed
        for kind, counter in (("fragments", self.fragments), ("scaffolds", self.scaffolds)):
            arrays[kind] = np.array(list(counter), np.str_)
            arrays[f"{kind}_counts"] = np.array(list(counter.values()), np.int64)
        with atomic(path) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Reference":
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            return cls(
                arrays["mean"],
                arrays["covariance"],
                Fingerprints(arrays["fingerprints"]),
                _counter(arrays, "fragments"),
                _counter(arrays, "scaffolds"),
                {name: arrays[name] for name in PROPERTIES},
            )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise SettingsError(
                f"{path} holds no statistics of molecules ({error}); write them again with Reference.save"
            ) from None


def _counter(arrays: dict[str, np.ndarray], kind: str) -> Counter[str]:
    return Counter(dict(zip(arrays[kind].tolist(), arrays[f"{kind}_counts"].tolist(), strict=True)))


def _unpickled(path: Path) -> dict[str, dict[str, Any]]:
    """Read the dictionary that is pickled inside an array of Python objects."""
    module = getattr(np, "_core", None) or np.core  # numpy before 2.0
    known = {
        ("numpy.core.multiarray", "_reconstruct"): module.multiarray._reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
        ("collections", "Counter"): Counter,
    }
    with zipfile.ZipFile(path) as archive, archive.open("stats.npy") as stream:
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        return PlainUnpickler(stream, known).load().item()


# The metrics of MOSES, under the names that it prints.
#
# Larger is better for valid, unique, Novelty, Filters, SNN, Frag, Scaf and IntDiv; smaller for FCD, logP, SA,
# QED and weight, which are distances.


def moses_metrics(
    generated: Sequence[str],
    train: Container[str] | None,
    test: Reference,
    scaffolds: Reference | None = None,
    filters: Filters | None = None,
    unique_at: Sequence[int] = (1000, 10000),
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Return the metrics of MOSES of generated strings; a metric of what is not there is NaN.

    Args:
        generated: the strings as they were sampled; those that are no molecules count for `valid` only.
        train: canonical SMILES of the training set, for `Novelty`; None: without it.
        test: statistics of the test set.
        scaffolds: of the test set of other scaffolds, for the rows "/TestSF"; None: without them.
        filters: for `Filters`, usually Filters.shipped(); None: without it.
        unique_at: numbers k of the first valid molecules for `unique@k`; warns where there are fewer.
        device: where ChemNet runs.
    """
    if not generated:
        raise SettingsError("there are no molecules to measure; draw at least one sample")
    valid = [smiles for smiles in map(canonical, generated) if smiles is not None]
    metrics = {"valid": len(valid) / len(generated)}
    for count in unique_at:
        metrics[f"unique@{count}"] = _unique(valid, count)
    own = Reference.of(valid, device)
    for name, reference in (("Test", test), ("TestSF", scaffolds)):
        if reference is not None:
            metrics |= {f"{kind}/{name}": value for kind, value in _compared(own, reference).items()}
    metrics["IntDiv"], metrics["IntDiv2"] = own.fingerprints.diversity()
    if filters is not None:
        metrics["Filters"] = _mean(filters.passed(molecules(valid)))
    for name, title in NAMES.items():
        metrics[title] = _distance(test.properties[name], own.properties[name])
    if train is not None:
        metrics["Novelty"] = _mean(np.array([smiles not in train for smiles in set(valid)]))
    return metrics


def cosine(counts: Counter[str], others: Counter[str]) -> float:
    """Return the cosine between two vectors of counts; NaN where one of them is empty."""
    if not counts or not others:
        return np.nan
    product = sum(count * others[key] for key, count in counts.items())
    squares = [sum(count**2 for count in each.values()) for each in (counts, others)]
    return float(product / np.sqrt(squares).prod())


def _compared(own: Reference, other: Reference) -> dict[str, float]:
    return {
        "FCD": frechet(own.mean, own.covariance, other.mean, other.covariance),
        "SNN": _mean(other.fingerprints.nearest(own.fingerprints)),
        "Frag": cosine(own.fragments, other.fragments),
        "Scaf": cosine(own.scaffolds, other.scaffolds),
    }


def _unique(valid: Sequence[str], count: int) -> float:
    """Return the share of different molecules among the first ones."""
    if len(valid) < count:
        warnings.warn(f"unique@{count} is of {len(valid)} valid molecules only; draw more", stacklevel=3)
    first = valid[:count]
    return len(set(first)) / len(first) if first else np.nan


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else np.nan


def _distance(real: np.ndarray, own: np.ndarray) -> float:
    """Return the Wasserstein distance between two sets of values."""
    if not len(own) or not len(real):
        return np.nan
    return float(needed("scipy.stats").wasserstein_distance(real, own))
