"""Influence: how much coordinates depend on each other, for reveals of sets that hardly do."""

from typing import Any

import torch
from torch import Tensor

from tauflow.errors import SamplingError


def checked_influence(influence: Any, length: int) -> Tensor | None:
    """Return influence (D, D) on the CPU, float32 with a diagonal of 0; refuse what is not symmetric."""
    if influence is None:
        return None
    found = torch.as_tensor(influence, device="cpu").float()
    good = found.shape == (length, length) and bool((found >= 0).all() and found.isfinite().all())
    if not good or not torch.equal(found, found.T):
        raise SamplingError(
            f"influence must hold finite numbers of at least 0 for all pairs of {length} coordinates, the "
            "same both ways; make it with tauflow.learn_influence"
        )
    return found.clone().fill_diagonal_(0)
