"""Distances between features of samples and of real pictures, with standard errors over the samples.

Real features are taken as given: an error says how far other samples of the same sampler would lie.

Shapes: N samples, M real pictures, F features, C classes.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tauflow.tasks.metrics import standard_error

DIRECTIONS = 16  # principal directions of the real features that a short Frechet distance looks at
ROWS = 1024  # of a kernel matrix at once
SHRINKAGE = 0.3  # of the covariance within classes towards that of independent features of one variance
NOTHING = torch.tensor(torch.nan, dtype=torch.float64)


@dataclass(frozen=True)
class Gaussian:
    """Mean (F,) of features, and a root (R, F) of their covariance root^T root, R at most F."""

    mean: Tensor
    root: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "Gaussian":
        """Return the one with the moments of features (N, F)."""
        mean = features.mean(0)
        return cls(mean, torch.linalg.qr((features - mean) / (len(features) - 1) ** 0.5, mode="r").R)


@dataclass(frozen=True)
class RealFeatures:
    """Features (M, F) of real pictures, float64, and what follows from them."""

    features: Tensor

    @cached_property
    def gaussian(self) -> Gaussian:
        return Gaussian.of(self.features)

    @cached_property
    def principal(self) -> "RealFeatures":
        """Return the features in their first DIRECTIONS principal directions."""
        return RealFeatures(self.features @ self.directions)

    @cached_property
    def directions(self) -> Tensor:
        """Return those directions as columns (F, DIRECTIONS), or all where there are fewer."""
        root = self.gaussian.root
        return torch.linalg.eigh(root.T @ root).eigenvectors.flip(1)[:, :DIRECTIONS]

    @cached_property
    def kernel_mean(self) -> Tensor:
        """Return the mean of the kernel over all pairs of different pictures."""
        count = len(self.features)
        return _kernel_sums(self.features).sum() / (count * (count - 1))


def frechet_distance(real: Gaussian, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance between Gaussians with the moments of both, and its standard error.

    The trace of the root of the product of the covariances is the sum of the singular values of the product
    of their roots. The error is that of the infinitesimal jackknife: what each sample's weight does to the
    distance is known from the same decomposition.
    """
    count = len(features)
    if count < 2:
        return NOTHING, NOTHING
    centred = features - features.mean(0)
    shift = features.mean(0) - real.mean
    u, s, _ = torch.linalg.svd(centred @ real.root.T / (count - 1) ** 0.5, full_matrices=False)
    spread = centred.square().sum(1)
    value = shift.square().sum() + real.root.square().sum() + spread.sum() / (count - 1) - 2 * s.sum()
    slopes = 2 * centred @ shift + spread - (count - 1) * u.square() @ s  # up to a constant
    return value, standard_error(slopes)


def kernel_distance(real: RealFeatures, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unbiased squared maximum mean discrepancy, and its standard error by the jackknife.

    The kernel is that of the kernel Inception distance, a polynomial of degree 3. All samples are compared
    with all real pictures, so nothing is drawn.
    """
    count = len(features)
    if count < 3:
        return NOTHING, NOTHING
    own = _kernel_sums(features)
    cross = _kernel_sums(features, real.features) / len(real.features)
    value = own.sum() / (count * (count - 1)) - 2 * cross.mean() + real.kernel_mean
    without = (own.sum() - 2 * own) / ((count - 1) * (count - 2)) - 2 * (cross.sum() - cross) / (count - 1)
    return value, (count - 1) * standard_error(without)


def _kernel_sums(left: Tensor, right: Tensor | None = None) -> Tensor:
    """Return the sums (N,) of the kernel of each row with all of `right`, or with all other rows."""
    features = left.shape[1]
    if right is None:
        return _kernel_sums(left, left) - (left.square().sum(1) / features + 1) ** 3
    return torch.cat([((part @ right.T / features + 1) ** 3).sum(1) for part in left.split(ROWS)])


@dataclass(frozen=True)
class Classifier:
    """Linear discriminant: the nearest class mean, seen in the covariance within classes."""

    weights: Tensor  # (F, C)
    bias: Tensor  # (C,)

    @classmethod
    def fitted(cls, features: Tensor, labels: Tensor, classes: int) -> "Classifier":
        """Return that of features (N, F) with labels (N,); a class without pictures is never the answer."""
        chosen = torch.nn.functional.one_hot(labels, classes).to(features)  # (N, C)
        counts = chosen.sum(0)
        means = (chosen.T @ features) / counts.clamp(min=1)[:, None]
        within = features - means[labels]
        covariance = within.T @ within / len(features)
        scale = covariance.diagonal().mean()
        shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * scale * torch.eye(len(covariance)).to(covariance)
        weights = torch.linalg.solve(shrunk, means.T)
        bias = -(means.T * weights).sum(0) / 2
        return cls(weights, bias.masked_fill(counts == 0, -torch.inf))

    def __call__(self, features: Tensor) -> Tensor:
        """Return the classes (N,) of features (N, F)."""
        return (features.to(self.weights) @ self.weights + self.bias).argmax(1)
