"""What a batch must hold: {"tokens": (b, D) or (b, *shape), "condition"?: (b, C)}."""

import torch
from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.tasks.base import DataFacts

Batch = dict[str, Tensor]


def tokens_of(batch: Batch, facts: DataFacts) -> Tensor:
    """Return the tokens (b, D) of a batch; refuse one that does not fit the model."""
    if not isinstance(batch, dict) or "tokens" not in batch:
        raise SettingsError(
            'a batch must be a dict {"tokens": ..., "condition"?: ...}; make the items of the data set so'
        )
    tokens = batch["tokens"]
    if tokens.ndim < 2 or tokens[0].numel() != facts.length:
        raise SettingsError(
            f"the model is made for {facts}, a batch has tokens of the shape {tuple(tokens.shape)}"
        )
    return tokens.flatten(1).long()


def condition_of(batch: Batch, facts: DataFacts) -> Tensor | None:
    """Return the condition (b, C) of a batch, None where the data has none; refuse one that does not fit."""
    condition = batch.get("condition")
    columns = len(facts.conditions)
    if condition is None:
        if columns:
            raise SettingsError(
                f'the data is said to have conditions {facts.conditions}, a batch has no "condition"; '
                "add it to the items, or drop the conditions from the task"
            )
        return None
    if not columns:
        raise SettingsError(
            'a batch has a "condition", but the network takes none; say in the task (or DataFacts) '
            "what conditions the data has, or drop it from the items"
        )
    if condition.shape[1:] != (columns,):
        raise SettingsError(
            f"the condition of a batch has the shape {tuple(condition.shape)}, the model is made for "
            f"{columns} columns"
        )
    return condition.long()


def refuse_values(batch: Batch, facts: DataFacts) -> None:
    """Raise unless tokens and conditions are whole numbers in range.

    A label that is too large by one would otherwise train as a dropped one.
    """
    _refuse("tokens", tokens_of(batch, facts), batch["tokens"], 0, facts.num_tokens)
    condition = condition_of(batch, facts)
    if condition is not None:
        for column, size in enumerate(facts.conditions):
            name = f"column {column} of the condition"
            _refuse(name, condition[:, column], batch["condition"], DROPPED, size)


def _refuse(name: str, values: Tensor, given: Tensor, lowest: int, end: int) -> None:
    """Raise unless values were given as whole numbers from the lowest to one before the end."""
    if given.is_floating_point() or given.dtype == torch.bool:
        raise SettingsError(f"the {name} of a batch must be whole numbers, got {given.dtype}")
    if values.numel() and not lowest <= int(values.min()) <= int(values.max()) < end:
        raise SettingsError(
            f"the {name} of a batch must lie in {lowest} .. {end - 1}, got {int(values.min())} to "
            f"{int(values.max())}; count from 0"
        )
