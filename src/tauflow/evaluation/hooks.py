"""What a task may tell of its samples besides `show`: drawings of texts, and a table with their numbers.

A task has these methods or not. Drawings go to samples.png and TensorBoard, a table to samples.csv, and its
columns of numbers are drawn against those of real data (`distributions`).
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tauflow.ranks import world_size

Table = dict[str, list[str] | list[bool] | list[float]]  # columns of one length, by name


@runtime_checkable
class Drawn(Protocol):
    """A task that shows texts and has a picture of each."""

    def pictures(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        """Return pictures uint8 (B, H, W, 3) of samples (B, D)."""


@runtime_checkable
class Tabled(Protocol):
    """A task that knows more of a sample than its tokens."""

    def table(self, tokens: Tensor, condition: Tensor | None = None) -> Table:
        """Return what is known of samples (B, D), a row for each; a number that one does not have is NaN."""


def table_of(task: Any, tokens: Tensor, condition: Tensor | None = None) -> Table:
    """Return what a task knows of samples (B, D) in columns; none where it has no table."""
    return task.table(tokens.cpu(), condition) if isinstance(task, Tabled) else {}


def joined_tables(tables: Mapping[int, Table]) -> Table:
    """Return the rows of numbered batches, those of all ranks, in their order."""
    everywhere: list[Any] = [tables]
    if world_size() > 1:
        everywhere = [None] * world_size()
        torch.distributed.all_gather_object(everywhere, dict(tables))
    parts = {number: table for each in everywhere for number, table in each.items()}
    names = parts[min(parts)] if parts else {}
    return {name: [value for number in sorted(parts) for value in parts[number][name]] for name in names}
