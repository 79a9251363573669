"""Metrics of transitions: which token follows which, over all samples.

Shapes: B samples of an update, N samples in all, D coordinates, V data tokens.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from benchmarks.theory.laws import transition_counts
from tauflow.tasks import SampleMean, SampleMetric
from tauflow.tasks.metrics import joined, standard_error


class TransitionMetric(SampleMetric):
    """Abstract: a number that follows from the shares of all transitions; its error is of first order."""

    tokens: list[Tensor]

    def __init__(self, num_tokens: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_tokens = num_tokens
        self.add_state("tokens", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.tokens.append(tokens)

    def compute(self) -> tuple[Tensor, Tensor]:
        tokens = joined(self.tokens).cpu()
        counts = transition_counts(tokens, self.num_tokens).double()
        value, slopes = self.of(counts / counts.sum())
        return value, standard_error(slopes[tokens[:, :-1], tokens[:, 1:]].mean(1))

    @abstractmethod
    def of(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number for shares (V, V) of transitions, and its derivative by them (V, V)."""


class TransitionEntropy(TransitionMetric):
    """Entropy in bits of what follows a token, over all samples; a little low where they are few."""

    higher_is_better = None
    logarithmic = False

    def of(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        bits = torch.where(shares > 0, -rows_of(shares).log2(), 0.0)
        return (shares * bits).sum(), bits


class FromChain(TransitionMetric):
    """Abstract: a distance from the transitions (V, V) of a chain; above 0 even for draws from it."""

    def __init__(self, transition: Tensor, **kwargs: Any):
        super().__init__(len(transition), **kwargs)
        self.transition = transition


class TransitionDivergence(FromChain):
    """KL divergence, in nats of a transition, of what follows a token of the samples from the chain's law."""

    def of(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.where(shares > 0, (rows_of(shares) / self.transition).log(), 0.0)
        return (shares * logs).sum(), logs


class TransitionTotalVariation(FromChain):
    """Total variation of the same two laws, in the mean over the tokens of the samples."""

    def of(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        difference = shares - shares.sum(1, keepdim=True) * self.transition
        signs = difference.sign() / 2
        return (signs * difference).sum(), signs - (signs * self.transition).sum(1, keepdim=True)


class SupportViolations(SampleMean):
    """Share of the transitions of a sample that the corpus never has."""

    def __init__(self, support: Tensor, **kwargs: Any):
        super().__init__(**kwargs)
        self.support = support  # (V, V) bool

    def of(self, tokens: Tensor) -> Tensor:
        return (~self.support[tokens[:, :-1].cpu(), tokens[:, 1:].cpu()]).double().mean(1)


def rows_of(shares: Tensor) -> Tensor:
    """Return what follows each token, (V, V), from shares of transitions."""
    return shares / shares.sum(1, keepdim=True).clamp(min=1e-300)
