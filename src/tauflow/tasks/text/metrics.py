"""Metrics of generated text: perplexity under judges, with diversity beside it.

Shapes: B samples, D tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tauflow.tasks.metrics import SampleMean, SampleMetric, joined
from tauflow.tasks.text.judges import bootstrap


class Perplexity(SampleMetric):
    """Perplexity under a judge by one of the two published definitions.

    Computes (value, standard error, low and high end of a bootstrap interval, number of judged tokens).
    """

    nll: list[Tensor]
    count: list[Tensor]

    def __init__(
        self,
        definition: Callable[[Tensor, Tensor], Tensor],
        score: Callable[[Tensor], tuple[Tensor, Tensor]],
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.definition = definition
        self.score = score
        self.add_state("nll", [], dist_reduce_fx="cat")
        self.add_state("count", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        nll, count = self.score(tokens)
        self.nll.append(nll.double().to(self.device))
        self.count.append(count.long().to(self.device))

    def compute(self) -> tuple[Tensor, ...]:
        nll, count = joined(self.nll).cpu(), joined(self.count).cpu()
        interval = (torch.tensor(value) for value in bootstrap(self.definition, nll, count))
        return (self.definition(nll, count), *interval, count.sum())


class Entropy(SampleMean):
    """Entropy in bits of the tokens of one sample, mean over samples: low where samples repeat themselves."""

    higher_is_better = True
    logarithmic = False

    def of(self, tokens: Tensor) -> Tensor:
        return torch.stack([_entropy(row) for row in tokens]) if len(tokens) else torch.zeros(0)


def _entropy(tokens: Tensor) -> Tensor:
    shares = tokens.unique(return_counts=True)[1] / len(tokens)
    return -(shares * shares.log2()).sum()


class Distinct(SampleMean):
    """Share of the n-grams of a sample that are distinct, mean over samples."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, n: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.n = n

    def of(self, tokens: Tensor) -> Tensor:
        grams = tokens.unfold(1, self.n, 1)  # (B, D - n + 1, n)
        shares = [row.unique(dim=0).shape[0] / row.shape[0] for row in grams]
        return torch.tensor(shares, dtype=torch.float64)


class Memorised(SampleMean):
    """Share of the 8-grams of a sample that stand in the training text."""

    logarithmic = False

    def __init__(self, memorised: Callable[[np.ndarray], np.ndarray], **kwargs: Any):
        super().__init__(**kwargs)
        self.memorised = memorised

    def of(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(self.memorised(tokens.cpu().numpy())).to(tokens.device)
