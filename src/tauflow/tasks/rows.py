"""Rows: data that is a table with a row for each item, as items of a task.

A table has a length, and `table[[numbers]]` gives its columns by name: "tokens" (N, D), perhaps "condition"
(N, C).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from tauflow.seeds import seed_of
from tauflow.tasks.items import Item


class Rows(Dataset[Item]):
    """The rows of a table as items, all of them in their order."""

    def __init__(self, table: Any):
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        columns = self.table[[int(number) for number in numbers]]
        whole = {
            name: torch.from_numpy(np.asarray(column, dtype=np.int64)) for name, column in columns.items()
        }
        return [{name: column[row] for name, column in whole.items()} for row in range(len(numbers))]


class Fixed(Rows):
    """Validation items: the first rows of a permutation that the seed gives, or of all without a seed.

    A corpus may be sorted, by years for instance: rows from its beginning alone would not stand for it.
    """

    def __init__(self, table: Any, count: int, seed: int | None = None):
        super().__init__(table)
        order = np.arange(len(table))
        if seed is not None:
            np.random.Generator(np.random.Philox(seed_of("validation order", seed))).shuffle(order)
        self.rows = order[:count]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        return super().__getitems__(self.rows[list(numbers)].tolist())

    def tokens(self) -> np.ndarray:
        """Return the tokens (N, D) of all items."""
        return self.columns()["tokens"]

    def columns(self) -> dict[str, np.ndarray]:
        """Return all items as columns (N, ...)."""
        return {name: np.asarray(column) for name, column in self.table[self.rows.tolist()].items()}


class InMemory:
    """Columns (N, ...) of arrays, in memory or mapped into it, that answer like a data set."""

    def __init__(self, columns: dict[str, np.ndarray]):
        self.arrays = columns

    def __len__(self) -> int:
        return len(self.arrays["tokens"])

    def __getitem__(self, rows: list[int]) -> dict[str, np.ndarray]:
        return {name: column[rows] for name, column in self.arrays.items()}
