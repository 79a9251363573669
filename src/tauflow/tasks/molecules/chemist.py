"""What RDKit says of samples, asked once for all metrics, tables and drawings.

Shapes: B samples, D tokens.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tauflow.moses import PROPERTIES, canonical, properties

REMEMBERED = 2**16  # molecules whose properties are kept


class Chemist:
    """Looks at samples as molecules; the newest ones are remembered.

    Args:
        texts: turns samples (B, D) into SMILES.
    """

    def __init__(self, texts: Callable[[Tensor], list[str]]):
        self._texts = texts
        self._last: tuple[Tensor, list[str | None]] | None = None

    def canonical(self, tokens: Tensor) -> list[str | None]:
        """Return the canonical SMILES of samples (B, D); None of what is no molecule."""
        if self._last is None or not torch.equal(self._last[0], tokens):
            self._last = tokens.clone(), [canonical(text) for text in self._texts(tokens)]
        return self._last[1]

    def properties(self, tokens: Tensor) -> dict[str, np.ndarray]:
        """Return the properties of samples (B, D), float64 (B,) each; NaN of what is no molecule."""
        none = (math.nan,) * len(PROPERTIES)
        rows = [none if each is None else _numbers(each) for each in self.canonical(tokens)]
        columns = np.array(rows, dtype=np.float64).reshape(-1, len(PROPERTIES)).T
        return dict(zip(PROPERTIES, columns, strict=True))


@lru_cache(maxsize=REMEMBERED)
def _numbers(smiles: str) -> tuple[float, ...]:
    found = properties([smiles])
    return tuple(float(found[name][0]) for name in PROPERTIES)
