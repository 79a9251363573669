"""The metrics of MOSES, under the names that it prints.

Larger is better for valid, unique, Novelty, Filters, SNN, Frag, Scaf and IntDiv; smaller for FCD, logP, SA,
QED and weight, which are distances.
"""

import warnings
from collections import Counter
from collections.abc import Container, Sequence

import numpy as np
import torch

from tauflow.errors import SettingsError
from tauflow.moses.chemistry import canonical, molecules
from tauflow.moses.chemnet import frechet
from tauflow.moses.filters import Filters
from tauflow.moses.package import needed
from tauflow.moses.reference import NAMES, Reference


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
