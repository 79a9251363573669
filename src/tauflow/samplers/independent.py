"""Independent reveals, for masks only: sets of coordinates that hardly influence each other.

A step draws its coordinates as if they were independent given what is revealed, so they should be. How far
they are is read off a stand-in for the data: a Gaussian field over the coordinates, whose correlations are
the learned influences (`tauflow.learn_influence`): by how much revealing one coordinate, and nothing else,
moves the posterior of another. In the field everything else is known, C_ij the covariances given what is
revealed: a revealed coordinate screens off what is behind it, and the copy of a revealed one depends on
nothing any more, wherever it stands.

Evaluation n reveals an independent set of k_n coordinates in the graph whose edges are the masked pairs with
|C_ij| > theta (C_ii C_jj)^1/2. The set is greedy: first come those that explain most of the variance of what
is masked, sum over j of C_ij^2 / C_ii, and each one excludes its neighbors. theta is the least, from
0.05 on, with which k_n coordinates are found. The first coordinate of a sequence is random.

All of this is a function of positions, of counts and of the place of a prompt: an order that is drawn before
the first evaluation. So nothing about the sets depends on tokens or rows, and reveals stay exact with one
token an evaluation (reveal.py).

Shapes: B sequences, D coordinates, N evaluations.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.samplers.reveal import OrderName, Reveal, RevealPlan, RevealState
from tauflow.samplers.sampler import Problem, check, fixed

MIN_VARIANCE = 1e-3  # of a variance, and of an eigenvalue of the correlations
GRAIN = 2.0**-20  # of a correlation: rounding errors of eigenvectors, which vary by machine, are smaller
FLOOR = 0.05  # of theta: lower correlations are mostly the noise of learning
HALVINGS = 12  # of the range in which theta lies
MAX_ENTRIES = 2**24  # of covariances that are held at once: 64 megabytes


@dataclass(frozen=True)
class Independent(Reveal):
    order: OrderName = fixed("random")  # says the first coordinate, and whose learned counts are taken

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.counts != "entropy",
            "counts=entropy says itself what comes first; independent sets need others, such as counts=power",
        )
        check(
            self.extrapolation != "learned",
            "extrapolation=learned has weights of other sets than independent ones; use extrapolation=pairs",
        )

    def unsupported_reason(self, model: Model) -> str:
        missing = (
            "the influence of coordinates on each other is not known: learn it with "
            "tauflow.learn_influence(model), or sample.py --learn_influence; or use spaced"
        )
        return super().unsupported_reason(model) or ("" if model.influence is not None else missing)

    def init(
        self, problem: Problem, x_0: Tensor, plan: RevealPlan, generator: torch.Generator
    ) -> RevealState:
        state = super().init(problem, x_0, plan, generator)
        assert problem.influence is not None  # see unsupported_reason
        field, movable = correlations(problem.influence), problem.movable(x_0).cpu()
        ends = [self.after(problem, state.free, n, plan.steps) for n in range(plan.steps + 1)]
        group = max(1, MAX_ENTRIES // movable.shape[1] ** 2)
        parts = (movable, state.order, torch.stack(ends, dim=1))
        split = zip(*(part.split(group) for part in parts), strict=True)
        ranks = torch.cat([independent_ranks(field, *each) for each in split])
        return dataclasses.replace(state, order=ranks)


def correlations(influence: Tensor) -> Tensor:
    """Return the correlations (D, D) nearest to an influence that a Gaussian field can have."""
    values, vectors = torch.linalg.eigh(influence.double().fill_diagonal_(1.0))
    possible = (vectors * values.clamp(min=MIN_VARIANCE)) @ vectors.T
    scale = possible.diagonal().rsqrt()
    return ((scale[:, None] * possible * scale / GRAIN).round() * GRAIN).float()


def independent_ranks(field: Tensor, movable: Tensor, order: Tensor, ends: Tensor) -> Tensor:
    """Return when each coordinate is revealed (B, D), so that those of a step hardly influence each other.

    Args:
        field: correlations (D, D).
        movable: true (B, D) where a coordinate is masked; the others are known.
        order: a random order (B, D): 0 is the first of all, and it is that of the last evaluation.
        ends: (B, N + 1) how many are revealed after n evaluations.
    """
    batch, length = movable.shape
    covariance = field.repeat(batch, 1, 1)
    _reveal(covariance, movable.long().argsort(dim=1, stable=True), (~movable).sum(1))
    left, keys = movable.clone(), length + order
    for n in range(ends.shape[1] - 2):  # the last evaluation takes what is left
        count = ends[:, n + 1] - ends[:, n]
        if not count.any():  # fewer free coordinates than evaluations
            continue
        variance = covariance.diagonal(dim1=1, dim2=2).clamp(min=0) + MIN_VARIANCE
        explained = (covariance.square() * left[:, None]).sum(2) / variance
        if not n:
            explained.masked_fill_(order == 0, torch.inf)
        by_most = explained.masked_fill(~left, -torch.inf).argsort(dim=1, descending=True, stable=True)
        deviation = variance.sqrt()
        correlation = covariance.abs() / deviation[:, None] / deviation[:, :, None]
        places = _independent(correlation, by_most, left, count)
        chosen = torch.arange(places.shape[1]) < count[:, None]
        row, number = chosen.nonzero(as_tuple=True)
        keys[row, places[chosen]] = ends[row, n] + number
        left[row, places[chosen]] = False
        _reveal(covariance, places, count)
    return keys.argsort(1).argsort(1)


def _independent(correlation: Tensor, candidates: Tensor, left: Tensor, count: Tensor) -> Tensor:
    """Return places (B, K) of which the first so many (B,) are as independent as can be found."""
    low, high = torch.full((len(count),), FLOOR), torch.ones(len(count))
    best, _ = _greedy(correlation, candidates, left, count, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        places, enough = _greedy(correlation, candidates, left, count, middle)
        best = torch.where(enough[:, None], places, best)
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return best


def _greedy(
    correlation: Tensor, candidates: Tensor, left: Tensor, count: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return places (B, K) of candidates (B, D) in turn, none of them a neighbor of one before.

    Also whether the first so many (B,) of them are left (B, D), so that there are enough.
    """
    rows, length = torch.arange(len(count)), left.shape[1]
    ranks = candidates.argsort(1).masked_fill(~left, length)
    enough, places = torch.ones(len(count), dtype=torch.bool), []
    for number in range(int(count.max())):
        rank, place = ranks.min(1)
        enough &= (rank < length) | (number >= count)
        near = correlation[rows, place] > theta[:, None]
        ranks = ranks.masked_fill(near, length).scatter(1, place[:, None], length)
        places.append(place)
    return torch.stack(places, dim=1), enough


def _reveal(covariance: Tensor, places: Tensor, count: Tensor) -> None:
    """Make of a covariance (B, D, D) that given the first so many (B,) of the places (B, K)."""
    for number in range(int(count.max())):
        place = places[:, number, None]
        columns = covariance[torch.arange(len(place)), :, place.squeeze(1)]  # (B, D)
        variance = columns.gather(1, place).clamp(min=0) + MIN_VARIANCE
        weight = columns / variance * (number < count)[:, None]
        covariance.baddbmm_(weight[:, :, None], columns[:, None], alpha=-1)
