"""Items by position, and which positions are whose.

Position p counts training items since the beginning of training over all devices, so step p // B and row p %
B of the global batch of B items follow from it alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from tauflow.seeds import seed_of

Item = dict[str, Tensor]  # {"tokens": (D,) or the shape of a sample, "condition"?: (C,)}
ENDLESS = 2**62  # length of data that never ends


@dataclass(frozen=True)
class Share:
    """A rank's share of the global batches: every world_size-th item of a step, in `accumulate` parts."""

    batch_size: int  # of a step over all ranks and parts
    steps_per_epoch: int
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    step: Callable[[], int] = lambda: 0  # the step that training has reached

    @property
    def batches_per_epoch(self) -> int:
        return self.steps_per_epoch * self.accumulate

    def positions(self, batch: int) -> list[int]:
        """Return the positions of this rank's batch number 0, 1, ... since the beginning of training."""
        part = self.batch_size // self.accumulate
        begin = batch * part
        return list(range(begin + self.rank, begin + part, self.world_size))

    def epoch(self, first: int) -> range:
        """Return the numbers of the batches from the first one to the end of its epoch."""
        return range(first, (first // self.batches_per_epoch + 1) * self.batches_per_epoch)


class Shuffled(Dataset[Item]):
    """Finite data as an endless order: a permutation for each pass, a pure function of the seed and the pass.

    Args:
        data: items 0 to N - 1.
        seed: of the order.
        name: keys the order, so that two data sets with one seed are not shuffled alike.
    """

    def __init__(self, data: Any, seed: int, name: str = "order"):
        self.data = data
        self.seed = seed
        self.name = name
        self._pass = -1
        self._order: np.ndarray = np.empty(0)

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, position: int) -> Item:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Item]:
        return items_of(self.data, [self._row(int(position)) for position in positions])

    def _row(self, position: int) -> int:
        number, place = divmod(position, len(self.data))
        if number != self._pass:
            generator = np.random.Generator(np.random.Philox(seed_of(self.name, self.seed, number)))
            self._order = generator.permutation(len(self.data))
            self._pass = number
        return int(self._order[place])


def items_of(data: Any, numbers: Sequence[int]) -> list[Item]:
    """Return several items of a data set, at once where it can."""
    if hasattr(data, "__getitems__"):
        return data.__getitems__(numbers)
    return [data[number] for number in numbers]
