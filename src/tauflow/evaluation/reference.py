"""Real data, measured like samples: what the numbers of samples are compared with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.evaluation.measure import measured, update
from tauflow.evaluation.store import REAL, Cell, Factors, Measured, Record
from tauflow.tasks import Task
from tauflow.tasks.items import Item, items_of


def reference(task: Task, count: int, first: int = 0) -> dict[str, Measured]:
    """Measure `count` real validation items from number `first` on; from 0 if there are not so many."""
    total = val_count(task)
    begin = first if first + count <= total else 0
    return _measured_items(task, list(range(begin, min(begin + count, total))))


def val_count(task: Task) -> int:
    """Return how many validation items there are, of a task that may have to make them first."""
    if not hasattr(task, "val_data"):
        task.setup("validate")
    return len(task.val_data)


def real_items(task: Task, numbers: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Return the tokens (N, D) of validation items, and what they are (N, C) if the task has conditions."""
    items = items_of(task.val_data, numbers)
    tokens = torch.stack([torch.as_tensor(item["tokens"]).flatten() for item in items])
    return tokens, _conditions(items) if task.conditions else None


def _fitting(task: Task, condition: Tensor | None) -> list[int]:
    """Return the numbers of the validation items with a condition (C,); -1 in it fits any value."""
    everything = list(range(val_count(task)))
    if condition is None or not task.conditions:
        return everything
    there = _conditions(items_of(task.val_data, everything))
    fits = ((there == condition.cpu()) | (condition.cpu() == DROPPED)).all(1)
    return fits.nonzero().flatten().tolist()


def _conditions(items: Sequence[Item]) -> Tensor:
    return torch.stack([torch.as_tensor(item["condition"]) for item in items]).long()


def _measured_items(task: Task, numbers: Sequence[int]) -> dict[str, Measured]:
    metrics = task.sample_metrics()
    for metric in metrics.values():
        metric.distributed_available_fn = lambda: False  # every rank looks at all of them
    update(metrics, *real_items(task, numbers))
    return measured(metrics)


def reference_cell(task: Task, count: int, condition: Tensor | None = None) -> tuple[Cell | None, str]:
    """Measure real data as a cell of its own, with a note where there is less of it, or none.

    For samples that are all asked for one condition (C,), real data are the items that have it.
    """
    if task.alone:
        return None, task.alone
    fitting = _fitting(task, condition)
    if not fitting:
        return None, "no numbers of real data: no validation item is what the samples are asked to be"
    found = _measured_items(task, fitting[:count])
    factors: Factors = {"sampler": REAL}
    fewer = len(fitting) < count
    note = f"real data: the {len(fitting)} validation items that there are" if fewer else ""
    return Cell(factors, [Record(factors, name, each) for name, each in found.items()]), note
