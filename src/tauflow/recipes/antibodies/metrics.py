"""Metrics of generated chains: how alike they are, whether they have a framework, what they recover.

Shapes: B samples of an update, N samples in all, D residues, P of them that were drawn, V tokens.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tauflow.recipes.antibodies.chains import FRAMEWORK
from tauflow.tasks.metrics import SampleMean, SampleMetric, joined, standard_error
from tauflow.tasks.sequences.metrics import Texts


class PairwiseIdentity(SampleMetric):
    """Share of the drawn residues in which two samples agree, mean over pairs: low where they are diverse.

    The standard error is of first order, as that of any mean over pairs: twice that of the mean over samples
    of how far each agrees with all others.
    """

    higher_is_better = None
    logarithmic = False
    tokens: list[Tensor]

    def __init__(self, places: Tensor, **kwargs: Any):
        super().__init__(**kwargs)
        self.places = places
        self.add_state("tokens", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.tokens.append(tokens[:, self.places.to(tokens.device)])

    def compute(self) -> tuple[Tensor, Tensor]:
        tokens = joined(self.tokens)  # (N, P)
        if len(tokens) < 2:
            return torch.tensor(torch.nan), torch.tensor(torch.nan)
        counts = one_hot(tokens).sum(0)  # (P, V)
        others = counts.gather(1, tokens.T).T - 1  # samples that agree with each, (N, P)
        shares = others.double().mean(1) / (len(tokens) - 1)
        return shares.mean(), 2 * standard_error(shares)


class ValidFramework(SampleMean):
    """Share of the samples with the conserved residues of a heavy chain at their distances."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, texts: Texts, **kwargs: Any):
        super().__init__(**kwargs)
        self.texts = texts

    def of(self, tokens: Tensor) -> Tensor:
        found = [FRAMEWORK.fullmatch(text) is not None for text in self.texts(tokens)]
        return torch.tensor(found, dtype=torch.float64, device=tokens.device)


class Recovery(SampleMean):
    """Share of the residues at some places (P,) that are those of a real chain (D,), mean over samples."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, real: Tensor, places: Tensor, **kwargs: Any):
        super().__init__(**kwargs)
        self.real = real
        self.places = places

    def of(self, tokens: Tensor) -> Tensor:
        real, places = (each.to(tokens.device) for each in (self.real, self.places))
        return (tokens[:, places] == real[places]).double().mean(1)
