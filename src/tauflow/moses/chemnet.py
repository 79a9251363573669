"""Features of molecules by ChemNet, and the Frechet ChemNet distance (FCD) between two sets of them.

Shapes: N molecules, FEATURES features.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tauflow.moses.package import needed

FEATURES = 512
ROWS = 512  # molecules at once


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
        for begin in range(0, len(smiles), ROWS):
            rows = [encoded[row] for row in range(begin, min(begin + ROWS, len(smiles)))]
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
