"""How good molecules are: validity, how many are distinct, and whether they are what was asked for.

RDKit looks at samples once for all metrics. Shapes: B samples of an update, D tokens, C properties.
"""

from typing import Any

import torch
from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.tasks.metrics import ConditionalSampleMean, SampleMean, joined
from tauflow.tasks.molecules.bins import Bins
from tauflow.tasks.molecules.chemist import Chemist
from tauflow.tasks.sequences.metrics import Unique

NOTHING = torch.tensor(torch.nan)


class Valid(SampleMean):
    """Share of the samples that are molecules to RDKit; an empty one is none."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, chemist: Chemist, **kwargs: Any):
        super().__init__(**kwargs)
        self.chemist = chemist

    def of(self, tokens: Tensor) -> Tensor:
        found = self.chemist.canonical(tokens)
        return torch.tensor([each is not None for each in found], dtype=torch.bool, device=tokens.device)


class UniqueValid(Unique):
    """Distinct molecules among the valid samples, as a share of them; NaN where none is valid."""

    def compute(self) -> tuple[Tensor, Tensor]:
        return super().compute() if len(joined(self.digests)) else (NOTHING, NOTHING)


class Hit(ConditionalSampleMean):
    """Share of the valid samples whose properties lie in the bins asked for, all of them or one.

    Args:
        chemist: looks at samples.
        bins: of the properties, the columns of a condition.
        column: of the property that counts; None: all must hit.
    """

    higher_is_better = True
    logarithmic = False

    def __init__(self, chemist: Chemist, bins: Bins, column: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.chemist = chemist
        self.bins = bins
        self.column = column

    def of(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is None:  # nothing was asked for
            return torch.zeros(0, device=tokens.device)
        there = torch.from_numpy(self.bins.of(self.chemist.properties(tokens)))  # (B, C)
        asked = condition.cpu()
        if self.column is not None:
            there, asked = there[:, [self.column]], asked[:, [self.column]]
        counted = (there != DROPPED).all(1) & (asked != DROPPED).any(1)
        return ((there == asked) | (asked == DROPPED)).all(1)[counted].to(tokens.device)
