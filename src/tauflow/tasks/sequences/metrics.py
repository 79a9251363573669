"""Metrics of generated strings: their lengths, what stands after the padding, how many are distinct and new.

Shapes: B samples of an update, N samples in all, D tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tauflow.tasks.metrics import SampleMean, SampleMetric, UnigramTotalVariation, joined, standard_error
from tauflow.tasks.sequences.table import digest

Texts = Callable[[Tensor], list[str]]  # samples (B, D) as strings


def lengths_of(tokens: Tensor) -> Tensor:
    """Return how many tokens samples (B, D) have before the first padding, (B,)."""
    return (tokens == 0).cumsum(1).eq(0).sum(1)


class LengthTotalVariation(UnigramTotalVariation):
    """Total variation between the lengths of samples and a law (D + 1,)."""

    def update(self, tokens: Tensor) -> None:
        super().update(lengths_of(tokens)[:, None])


class MeanLength(SampleMean):
    """Tokens of a sample, mean over samples."""

    higher_is_better = None
    logarithmic = False

    def of(self, tokens: Tensor) -> Tensor:
        return lengths_of(tokens)


class BrokenPadding(SampleMean):
    """Share of the samples with a token after padding."""

    def of(self, tokens: Tensor) -> Tensor:
        return (tokens != 0).sum(1) > lengths_of(tokens)


class Novel(SampleMean):
    """Share of the samples that are no training string."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, texts: Texts, known: Callable[[Sequence[str]], np.ndarray], **kwargs: Any):
        super().__init__(**kwargs)
        self.texts = texts
        self.known = known

    def of(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(~self.known(self.texts(tokens))).to(tokens.device)


class Unique(SampleMetric):
    """Distinct strings among all samples, as a share of them.

    The standard error is the jackknife's: without a sample there is one string fewer if it was the only one.
    """

    higher_is_better = True
    logarithmic = False
    digests: list[Tensor]

    def __init__(self, texts: Texts, **kwargs: Any):
        super().__init__(**kwargs)
        self.texts = texts
        self.add_state("digests", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        found = np.array([digest(text) for text in self.texts(tokens)], dtype=np.uint64)
        self.digests.append(torch.from_numpy(found.view(np.int64)).to(tokens.device))

    def compute(self) -> tuple[Tensor, Tensor]:
        _, counts = joined(self.digests).unique(return_counts=True)
        single = torch.repeat_interleave((counts == 1).double(), counts)
        return torch.tensor(len(counts) / len(single), dtype=torch.float64), standard_error(single)
