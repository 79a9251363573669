"""Metrics of generated samples; each computes (value, standard error over samples).

Any torchmetrics metric with `update(tokens)` works too; its results have no standard error.

Each metric declares which direction is better (`higher_is_better`) and whether its axis is `logarithmic`. In
tasks with conditions, metrics may take `update(tokens, condition=None)`; torchmetrics passes a condition only
to those that take it.

Shapes: B samples of an update, N samples in all, D coordinates, V data tokens.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class SampleMetric(Metric):
    """Abstract: a metric of samples, an error rate or the like unless it says otherwise."""

    higher_is_better: bool | None = False  # None: near that of real data
    logarithmic: bool = True  # whether its axis is; false for what is not spread over orders of magnitude

    def units(self) -> list[float]:
        """Return numbers of independent units, such as prompts, whose mean is the value.

        Samplers that were asked for the same are compared unit by unit. None where samples have nothing to
        do with each other.
        """
        return []


class SampleMean(SampleMetric):
    """Abstract: mean over samples of a number that each of them has; a final metric says which in `of`."""

    count: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        for name in ("count", "total", "squares"):
            self.add_state(name, torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    @abstractmethod
    def of(self, tokens: Tensor) -> Tensor:
        """Return the numbers (B,) of the samples tokens (B, D)."""

    def update(self, tokens: Tensor) -> None:
        self.add(self.of(tokens))

    def add(self, values: Tensor) -> None:
        values = values.double()
        self.count += len(values)
        self.total += values.sum()
        self.squares += values.square().sum()

    def compute(self) -> tuple[Tensor, Tensor]:
        mean = self.total / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=0) * self.count / (self.count - 1)
        return mean, (variance / self.count).sqrt()


class ConditionalSampleMean(SampleMean):
    """Abstract: the same of a number that depends on what a sample was asked to be."""

    @abstractmethod
    def of(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return the numbers of those samples (B, D) that count, asked for by a condition (B, C)."""

    def update(self, tokens: Tensor, condition: Tensor | None = None) -> None:
        self.add(self.of(tokens, condition))


class UnigramTotalVariation(SampleMetric):
    """Total variation between the tokens at all coordinates and a distribution (V,); masks are foreign to it.

    The standard error is of first order: the distance is linear in the shares as long as none crosses the
    distribution.
    """

    tokens: list[Tensor]

    def __init__(self, distribution: Tensor, **kwargs: Any):
        super().__init__(**kwargs)
        self.distribution = distribution
        self.add_state("tokens", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.tokens.append(tokens)

    def compute(self) -> tuple[Tensor, Tensor]:
        tokens = joined(self.tokens).cpu()  # (N, D)
        values = len(self.distribution)
        tokens = tokens.masked_fill((tokens < 0) | (tokens >= values), values)
        shares = torch.bincount(tokens.flatten(), minlength=values + 1) / tokens.numel()
        difference = shares - torch.cat([self.distribution.double().cpu(), torch.zeros(1)])
        slopes = (difference.sign() / 2)[tokens].mean(1)  # what a sample adds to the distance, (N,)
        return difference.abs().sum() / 2, standard_error(slopes)


def joined(state: list[Tensor] | Tensor) -> Tensor:
    """Return a list state as one tensor, which it already is after a reduction over ranks."""
    return torch.cat(state) if isinstance(state, list) else state


def standard_error(values: Tensor) -> Tensor:
    """Return that of the mean of values (N,); one value says nothing about it."""
    return values.std() / len(values) ** 0.5 if len(values) > 1 else torch.tensor(torch.nan)
