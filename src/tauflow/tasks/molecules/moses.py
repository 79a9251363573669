"""The metrics of the MOSES benchmark (Polykovskiy et al., 2020), under the names that it prints.

Larger is better for valid, unique, Novelty, Filters, SNN, Frag, Scaf and IntDiv. Smaller is better for FCD
and for the Wasserstein distances logP, SA, QED and weight.

Shapes: N molecules, M others, BITS bits of a fingerprint, FEATURES features of ChemNet.
"""

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

from tauflow.files import atomic
from tauflow.tasks.molecules.chemistry import (
    PROPERTIES,
    canonical,
    count_fragments,
    count_scaffolds,
    molecule_properties,
    molsets_file,
    optional_module,
    parse_valid,
)

MOSES_NAMES = {"logp": "logP", "sa": "SA", "qed": "QED", "weight": "weight"}
"""MOSES's names of the properties."""


def moses_metrics(
    generated: Sequence[str],
    train: Container[str] | None,
    test: "Reference",
    scaffolds: "Reference | None" = None,
    filters: "Filters | None" = None,
    unique_at: Sequence[int] = (1000, 10000),
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Return the metrics of MOSES of generated strings; a metric without the molecules it needs is NaN.

    Args:
        generated: the sampled strings; invalid ones count for `valid` only.
        train: canonical SMILES of the training set, for `Novelty`; None skips it.
        test: statistics of the test set.
        scaffolds: statistics of the test set of other scaffolds, for the names "/TestSF"; None skips them.
        filters: for `Filters`, usually Filters.shipped(); None skips it.
        unique_at: numbers k of the first valid molecules for `unique@k`; warns if there are fewer.
        device: where ChemNet runs.
    """
    valid = [smiles for smiles in map(canonical, generated) if smiles is not None]
    metrics = {"valid": len(valid) / len(generated)}
    for count in unique_at:
        if len(valid) < count:
            warnings.warn(f"unique@{count} is of {len(valid)} valid molecules only; draw more", stacklevel=2)
        first = valid[:count]
        metrics[f"unique@{count}"] = len(set(first)) / len(first) if first else np.nan
    own = Reference.of(valid, device)
    for name, reference in (("Test", test), ("TestSF", scaffolds)):
        if reference is not None:
            nearest = reference.fingerprints.nearest(own.fingerprints)
            metrics[f"FCD/{name}"] = frechet(own.mean, own.covariance, reference.mean, reference.covariance)
            metrics[f"SNN/{name}"] = _mean(nearest)
            metrics[f"Frag/{name}"] = cosine(own.fragments, reference.fragments)
            metrics[f"Scaf/{name}"] = cosine(own.scaffolds, reference.scaffolds)
    metrics["IntDiv"], metrics["IntDiv2"] = own.fingerprints.diversity()
    if filters is not None:
        metrics["Filters"] = _mean(filters.passed(parse_valid(valid)))
    for name, title in MOSES_NAMES.items():
        metrics[title] = _wasserstein(test.properties[name], own.properties[name])
    if train is not None:
        metrics["Novelty"] = _mean(np.array([smiles not in train for smiles in set(valid)]))
    return metrics


def cosine(counts: Counter[str], others: Counter[str]) -> float:
    if not counts or not others:
        return np.nan
    product = sum(count * others[key] for key, count in counts.items())
    squares = [sum(count**2 for count in each.values()) for each in (counts, others)]
    return float(product / np.sqrt(squares).prod())


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else np.nan


def _wasserstein(real: np.ndarray, own: np.ndarray) -> float:
    if not len(own) or not len(real):
        return np.nan
    return float(optional_module("scipy.stats").wasserstein_distance(real, own))


# Statistics of a set of molecules


@dataclass(frozen=True, eq=False)
class Reference:
    """Statistics of a set of molecules, which two sets are compared by.

    Args:
        mean: of the features of ChemNet (FEATURES,).
        covariance: of the features (FEATURES, FEATURES).
        fingerprints: of the molecules.
        fragments: counts of BRICS fragments.
        scaffolds: counts of scaffolds.
        properties: of each molecule, "logp", "qed", "sa" and "weight", (N,) each.
    """

    mean: np.ndarray
    covariance: np.ndarray
    fingerprints: "Fingerprints"
    fragments: Counter[str]
    scaffolds: Counter[str]
    properties: dict[str, np.ndarray]

    @classmethod
    def of(cls, smiles: Sequence[str], device: torch.device | str = "cpu") -> "Reference":
        """Return the statistics of valid molecules; ChemNet runs on the device."""
        molecules = parse_valid(smiles)
        names = [optional_module("rdkit.Chem").MolToSmiles(each) for each in molecules]
        return cls(
            *moments(chemnet_features(names, device)),
            Fingerprints.of(molecules),
            count_fragments(molecules),
            count_scaffolds(molecules),
            molecule_properties(molecules),
        )

    @classmethod
    @cache
    def shipped(cls, split: Literal["test", "test_scaffolds"]) -> "Reference":
        """Return the statistics of a test set of MOSES, which the package `molsets` contains.

        They are a pickle, of which only arrays, numbers, strings and counts are read.
        """
        path = molsets_file(f"dataset/data/{split}_stats.npz")
        # a dictionary, pickled inside an array of Python objects
        with zipfile.ZipFile(path) as archive, archive.open("stats.npy") as stream:
            np.lib.format.read_magic(stream)
            np.lib.format.read_array_header_1_0(stream)
            found = _StatisticsUnpickler(stream).load().item()
        return cls(
            found["FCD"]["mu"].astype(np.float64),
            found["FCD"]["sigma"],
            Fingerprints(np.packbits(found["SNN"]["fps"], axis=1)),
            found["Frag"]["frag"],
            found["Scaf"]["scaf"],
            {name: np.array(found[MOSES_NAMES[name]]["values"]) for name in PROPERTIES},
        )

    def save(self, path: str | Path) -> None:
        arrays: dict[str, Any] = {"mean": self.mean, "covariance": self.covariance, **self.properties}
        arrays["fingerprints"] = self.fingerprints.packed
        for kind, counter in (("fragments", self.fragments), ("scaffolds", self.scaffolds)):
            arrays[kind] = np.array(list(counter), np.str_)
            arrays[f"{kind}_counts"] = np.array(list(counter.values()), np.int64)
        with atomic(path) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Reference":
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        counters = {
            kind: Counter(dict(zip(arrays[kind].tolist(), arrays[f"{kind}_counts"].tolist(), strict=True)))
            for kind in ("fragments", "scaffolds")
        }
        return cls(
            arrays["mean"],
            arrays["covariance"],
            Fingerprints(arrays["fingerprints"]),
            **counters,
            properties={name: arrays[name] for name in PROPERTIES},
        )


class _StatisticsUnpickler(pickle.Unpickler):
    """Reads arrays, counts and plain values: no other code runs."""

    def find_class(self, module: str, name: str) -> Any:
        numpy_core = getattr(np, "_core", None) or np.core  # numpy before 2.0
        known = {
            ("numpy.core.multiarray", "_reconstruct"): numpy_core.multiarray._reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
            ("collections", "Counter"): Counter,
        }
        return known[module, name]  # a KeyError for all others


# Filters

ATOMS = {"C", "N", "S", "O", "F", "Cl", "Br", "H"}
MAX_RING = 7  # atoms
FILTER_BATCH = 1024  # molecules searched together


@dataclass(frozen=True, eq=False)
class Filters:
    """Filters of molecules that a chemist wouldn't make: by charges, atoms, large rings, and patterns."""

    patterns: tuple[Any, ...]  # RDKit molecules that are queries

    @classmethod
    def of(cls, *files: str | Path) -> "Filters":
        """Read SMARTS patterns from CSV files in the two formats of MOSES.

        A file has a header with a column `smarts`, or no header and the SMARTS first.
        """
        patterns = []
        for file in files:
            with open(file, newline="") as stream:
                rows = [row for row in csv.reader(stream) if row]
            column = 0
            if rows and "smarts" in rows[0]:
                column = rows.pop(0).index("smarts")
            smarts = [row[column].strip() for row in rows]
            patterns += [optional_module("rdkit.Chem").MolFromSmarts(text) for text in smarts]
        return cls(tuple(patterns))

    @classmethod
    @cache
    def shipped(cls) -> "Filters":
        """Return the filters of MOSES: medicinal chemistry (MCF) and pan-assay interference (PAINS)."""
        return cls.of(molsets_file("metrics/mcf.csv"), molsets_file("metrics/wehi_pains.csv"))

    def passed(self, molecules: Sequence[Any]) -> np.ndarray:
        chem = optional_module("rdkit.Chem")
        search = optional_module("rdkit.Chem.rdSubstructLibrary")
        passed = np.array([_is_plain(each) for each in molecules], bool)
        candidates = np.flatnonzero(passed)
        for begin in range(0, len(candidates), FILTER_BATCH):
            rows = candidates[begin : begin + FILTER_BATCH]
            library = search.SubstructLibrary(search.MolHolder(), search.PatternHolder())
            for row in rows:
                library.AddMol(chem.AddHs(molecules[row]))  # hydrogens are atoms of a pattern
            options = {"useChirality": False, "maxResults": len(rows)}
            for pattern in self.patterns:
                passed[rows[list(library.GetMatches(pattern, **options))]] = False
        return passed


def _is_plain(molecule: Any) -> bool:
    """Return whether rings, charges and atoms are allowed, and the molecule exists without stereo signs."""
    if any(len(ring) > MAX_RING for ring in molecule.GetRingInfo().AtomRings()):
        return False
    if any(atom.GetFormalCharge() or atom.GetSymbol() not in ATOMS for atom in molecule.GetAtoms()):
        return False
    chem = optional_module("rdkit.Chem")
    with optional_module("rdkit.rdBase").BlockLogs():
        return chem.MolFromSmiles(chem.MolToSmiles(molecule, isomericSmiles=False)) is not None


# Fingerprints

RADIUS = 2
BITS = 1024


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Morgan fingerprints of N molecules, eight bits per byte, compared by the Tanimoto similarity."""

    packed: np.ndarray  # uint8 (N, BITS / 8)

    @classmethod
    def of(cls, molecules: Iterable[Any]) -> "Fingerprints":
        generators = optional_module("rdkit.Chem.rdFingerprintGenerator")
        generator = generators.GetMorganGenerator(radius=RADIUS, fpSize=BITS)
        rows = [np.packbits(generator.GetFingerprintAsNumPy(each)) for each in molecules]
        return cls(np.array(rows, np.uint8).reshape(-1, BITS // 8))

    def __len__(self) -> int:
        return len(self.packed)

    @cached_property
    def columns(self) -> np.ndarray:
        return np.unpackbits(np.ascontiguousarray(self.packed.T), axis=0)

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.unpackbits(self.packed, axis=1).sum(1, dtype=np.float32)

    def similarities(self, others: "Fingerprints") -> Iterator[np.ndarray]:
        """Yield the similarity of each of the others to all of these, float32 (N,).

        A molecule has about fifty of the bits. Adding their columns is an order of magnitude faster than a
        product of matrices. Each yielded array is overwritten by the next.
        """
        dtype = np.uint8 if others.sizes.max(initial=0) < 256 else np.uint16
        shared = np.zeros(len(self), dtype)
        similar = np.empty_like(self.sizes)
        union = np.empty_like(self.sizes)
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
        """Return the internal diversities with powers 1 and 2; NaN without molecules.

        They are 1 minus the mean over molecules of the mean similarity to all molecules, itself included,
        and of its root mean square.
        """
        if not len(self):
            return np.nan, np.nan
        powers = [
            (similar.mean(dtype=np.float64), np.square(similar).mean(dtype=np.float64))
            for similar in self.similarities(self)
        ]
        first, second = np.array(powers).T
        return 1 - float(first.mean()), 1 - float(np.sqrt(second).mean())


# The Frechet ChemNet distance (FCD)

FEATURES = 512
CHEMNET_BATCH = 512


@cache
def _chemnet() -> Any:
    weights = Path(optional_module("fcd_torch").__file__ or "").with_name("ChemNet_v0.13_pretrained.pt")
    layers = torch.load(weights, map_location="cpu", weights_only=True)
    return optional_module("fcd_torch.utils").load_imported_model(layers).eval()


def chemnet_features(smiles: Sequence[str], device: torch.device | str = "cpu") -> np.ndarray:
    """Return the ChemNet features float32 (N, FEATURES) of canonical SMILES."""
    encoded = optional_module("fcd_torch.utils").SmilesDataset(smiles, canonize=False)
    network = _chemnet().to(device)
    parts = [np.zeros((0, FEATURES), np.float32)]
    with torch.inference_mode():
        for begin in range(0, len(smiles), CHEMNET_BATCH):
            rows = [encoded[row] for row in range(begin, min(begin + CHEMNET_BATCH, len(smiles)))]
            batch = torch.tensor(np.array(rows), dtype=torch.float32, device=device)
            parts.append(network(batch.transpose(1, 2)).cpu().numpy())
    return np.concatenate(parts)


def moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (FEATURES,) and the covariance of features; both are NaN for fewer than two rows."""
    if len(features) < 2:
        return np.full(FEATURES, np.nan), np.full((FEATURES, FEATURES), np.nan)
    return features.mean(0, dtype=np.float64), np.cov(features.T.astype(np.float64))


def frechet(
    mean: np.ndarray, covariance: np.ndarray, other_mean: np.ndarray, other_covariance: np.ndarray
) -> float:
    """Return the squared Frechet distance between two Gaussians; NaN if one has no moments.

    The trace of the root of the product of the covariances A B is that of the root of the symmetric matrix
    sqrt(A) B sqrt(A).
    """
    if np.isnan(mean).any() or np.isnan(other_mean).any():
        return np.nan
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(values.clip(min=0))
    product = np.linalg.eigvalsh(root.T @ other_covariance @ root)
    overlap = np.sqrt(product.clip(min=0)).sum()
    shift = mean.astype(np.float64) - other_mean
    return float(shift @ shift + np.trace(covariance) + np.trace(other_covariance) - 2 * overlap)
