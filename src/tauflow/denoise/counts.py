"""LearnedCounts: how many coordinates each evaluation should reveal, learned for one order of a model.

With them come the weights of the extrapolation that makes up for what is lost, and a forecast of the loss.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tauflow.errors import SamplingError


@dataclass(frozen=True)
class LearnedCounts:
    """The best counts of reveals along an order, and what they are forecast to cost; `tauflow.learn_counts`.

    Args:
        order: the order that they are for.
        counts: N counts for each of some budgets N, which rise from 1; their sum is D.
        excess: forecast of the excess KL in nats of a sequence, with the best counts of N = 1 .. D
            evaluations and without extrapolation; the last is 0, one coordinate each.
        weights: of the extrapolation in each of the N steps, from 0 to 1, for the same budgets; empty: 0.
    """

    order: str
    counts: tuple[tuple[int, ...], ...]
    excess: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            none = tuple((0.0,) * len(counts) for counts in self.counts)
            object.__setattr__(self, "weights", none)
        budgets = [len(counts) for counts in self.counts]
        numbers = all(type(count) is int and count > 0 for counts in self.counts for count in counts)
        rising = budgets[:1] == [1] and all(a < b for a, b in pairwise(budgets))
        fit = numbers and {sum(counts) for counts in self.counts} == {len(self.excess)}
        forecast = all(each >= 0 and math.isfinite(each) for each in self.excess)
        weights = [len(each) for each in self.weights] == budgets and all(
            0 <= weight <= 1 for each in self.weights for weight in each
        )
        if not (rising and fit and forecast and weights):
            raise SamplingError(
                "learned counts must be positive, for budgets that rise from 1, all with the sum D, have a "
                "forecast of at least 0 for each of D budgets, and a weight from 0 to 1 for each count; make "
                "them with tauflow.learn_counts"
            )

    @property
    def length(self) -> int:
        """Return D, the number of coordinates that are revealed."""
        return len(self.excess)

    def share(self, n: int, steps: int) -> float:
        """Return the share of the coordinates that is revealed after n of so many evaluations.

        Between the budgets that have counts of their own it is interpolated from the next smaller one.
        """
        counts = self.counts[self._nearest(steps)]
        number, part = divmod(n * len(counts), steps)
        return (sum(counts[:number]) + (part / steps * counts[number] if part else 0)) / self.length

    def weight(self, n: int, steps: int) -> float:
        """Return the weight of the extrapolation in step n of so many."""
        weights = self.weights[self._nearest(steps)]
        return weights[n * len(weights) // steps]

    def forecast(self, nfe: int) -> float:
        """Return the forecast excess of so many evaluations, in nats of a sequence."""
        return self.excess[min(nfe, self.length) - 1]

    def _nearest(self, steps: int) -> int:
        """Return which of the budgets is the largest that is not above so many steps."""
        return max(number for number, each in enumerate(self.counts) if len(each) <= steps)

    def evaluations(self, nats: float) -> int:
        """Return how many evaluations keep the forecast excess at or below so many nats of a sequence."""
        return next((n for n, each in enumerate(self.excess, 1) if each <= nats), self.length)


def checked_counts(counts: Any, length: int) -> tuple[LearnedCounts, ...]:
    """Return learned counts of D coordinates, one for each order; refuse anything else."""
    several = (counts,) if isinstance(counts, LearnedCounts) else counts
    found = tuple(several) if isinstance(several, Iterable) else (several,)
    fit = all(isinstance(each, LearnedCounts) and each.length == length for each in found)
    if not fit or len({each.order for each in found}) < len(found):
        raise SamplingError(
            f"counts must be learned for {length} coordinates, once for each order; make them with "
            "tauflow.learn_counts"
        )
    return found
