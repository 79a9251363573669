"""The validation bound: the generalized-KL bound on -ln p(x_1) of fixed items under fixed noise.

An item is looked at in one place kappa, spread evenly over items, and the mean over items estimates the
integral over kappa. With it: what a batch must contain, {"tokens": (b, D) or (b, *shape), "condition"?: (b,
C)}.

Shapes: b items of a batch, D coordinates, R rows that count, V data tokens, C columns of a condition.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from tauflow.denoise import DROPPED
from tauflow.denoise.posterior import at_least_float32
from tauflow.errors import SettingsError
from tauflow.networks import Network
from tauflow.numerics import generator_for
from tauflow.process import Noise, Process, spread_kappas
from tauflow.tasks.metrics import joined
from tauflow.tasks.task import DataFacts

Batch = dict[str, Tensor]


def cross_entropy(logits: Tensor, x_1: Tensor) -> Tensor:
    """Return -ln p(x_1 | x_t) of each row (R,) with logits (R, V), in float32 at least."""
    return F.cross_entropy(at_least_float32(logits), x_1, reduction="none")


def stratified_mean(values: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and its standard error for values (N,) taken at spread points `at` (N,).

    Neighboring points share a stratum in all but name, so half the mean squared difference of neighbors is
    the variance within strata: the spread between strata, which stratification removed from the error, is not
    counted.
    """
    values = values[at.argsort()].double()
    steps = values.diff().square()
    count = len(values)
    error = (steps.sum() / (2 * count * (count - 1))).sqrt() if count > 1 else values.new_tensor(float("nan"))
    return values.mean(), error


# Batches


def batch_tokens(batch: Batch, facts: DataFacts) -> Tensor:
    """Return the tokens (b, D) of a batch, which must fit the model."""
    tokens = batch.get("tokens") if isinstance(batch, dict) else None
    if tokens is None or tokens.ndim < 2 or tokens[0].numel() != facts.length:
        got = f"a {type(batch).__name__}" if tokens is None else f"tokens of shape {tuple(tokens.shape)}"
        raise SettingsError(
            'A batch must be a dict {"tokens": ..., "condition"?: ...} that fits the model, which is made '
            f"for {facts}, got {got}."
        )
    return tokens.flatten(1).long()


def batch_condition(batch: Batch, facts: DataFacts) -> Tensor | None:
    """Return the condition (b, C) of a batch, which must fit the model; None for data without conditions."""
    condition = batch.get("condition")
    shape = (0,) if condition is None else tuple(condition.shape[1:])
    if shape != (len(facts.conditions),):
        got = "none" if condition is None else f"shape {tuple(condition.shape)}"
        raise SettingsError(
            f'The "condition" of a batch must have the {len(facts.conditions)} columns that the model is '
            f"made for, got {got}. Change the items, or the conditions of the task (or DataFacts)."
        )
    return None if condition is None else condition.long()


def check_values(batch: Batch, facts: DataFacts) -> None:
    """Raise unless tokens and conditions are whole numbers in range.

    A label that is too large by one would otherwise train as a dropped one.
    """
    ranges = [("tokens", batch["tokens"], 0, facts.num_tokens)]
    for column, size in enumerate(facts.conditions):
        ranges.append((f"column {column} of the condition", batch["condition"][:, column], DROPPED, size))
    for name, values, lowest, end in ranges:
        whole = not values.is_floating_point() and values.dtype != torch.bool
        if not whole or not lowest <= int(values.min()) <= int(values.max()) < end:
            raise SettingsError(
                f"The {name} of a batch must be whole numbers in {lowest} .. {end - 1}, got {values.dtype} "
                f"from {values.min()} to {values.max()}. Count from 0."
            )


# The bound


class CountedRows(NamedTuple):
    """The coordinates of a batch that count: a revealed one of a masked source has no rate."""

    logits: Tensor  # (R, V)
    x_t: Tensor  # (R,)
    x_1: Tensor  # (R,)
    t: Tensor  # (R,)
    redrawn: Tensor  # (R,) bool: noise, not data
    places: Tensor  # (R,) among the b * D coordinates


class Validated(NamedTuple):
    """What is known of a validation batch."""

    bound: Tensor  # (b,) nats per coordinate, float64
    kappa: Tensor  # (b,) where each item was looked at: kappa, or the share of another process's clock
    losses: Tensor  # (R,) cross-entropies of the rows that were redrawn
    quarters: Tensor  # (R,) the quarter of kappa, 0 to 3, that each of them is in


@dataclass(frozen=True)
class Validation:
    """Looks at items under noise that is a pure function of their index."""

    process: Process
    length: int  # D

    def kappas(self, index: Tensor) -> Tensor:
        """Return where validation items (b,) are looked at, spread evenly over [0, 1 - cutoff)."""
        return spread_kappas(index) * (1 - self.process.bound_cutoff)

    def __call__(self, network: Network, x_1: Tensor, index: Tensor, condition: Tensor | None) -> Validated:
        """Look at the items x_1 (b, D) with their numbers index (b,)."""
        kappa = self.kappas(index)
        t, weight = self.process.bound_times(kappa)
        noise = self._noise_by_index(t.float(), index, "validation noise").to(x_1.device)
        rows = self._rows(network, x_1, noise, condition)
        terms = self.process.bound(rows.logits, rows.x_t, rows.x_1, rows.t).cpu().double()
        total = torch.zeros(x_1.numel(), dtype=torch.float64).index_add(0, rows.places.cpu(), terms)
        bound = total.view(x_1.shape).mean(1) * weight
        if self.process.bound_cutoff:
            bound = bound + self._cost_of_the_draw(network, x_1, index, condition)
        quarters = (kappa * 4).long().to(x_1.device).repeat_interleave(self.length)[rows.places]
        losses = cross_entropy(rows.logits, rows.x_1)
        return Validated(bound, kappa, losses[rows.redrawn], quarters[rows.redrawn])

    def _noise_by_index(self, t: Tensor, index: Tensor, name: str) -> Noise:
        parts = [
            self.process.noise(t[i : i + 1], self.length, generator_for(name, number))
            for i, number in enumerate(index.tolist())
        ]
        return parts[0].joined(parts[1:])

    def _rows(self, network: Network, x_1: Tensor, noise: Noise, condition: Tensor | None) -> CountedRows:
        x_t = noise.corrupt(x_1)
        places = self.process.movable(x_t).flatten().nonzero().squeeze(1)
        hidden = network.hidden(x_t, noise.t, *([] if condition is None else [condition]))
        logits = network.head(hidden.flatten(0, 1)[places])
        times, redrawn = noise.t[:, None].expand(x_t.shape), noise.redrawn(x_1, x_t)
        seen = [each.flatten()[places] for each in (x_t, x_1, times, redrawn)]
        return CountedRows(logits, seen[0], seen[1], seen[2], seen[3], places)

    def _cost_of_the_draw(
        self, network: Network, x_1: Tensor, index: Tensor, condition: Tensor | None
    ) -> Tensor:
        """Return -ln p(x_1 | x_t) (b,) per coordinate at the cutoff, where the path ends with a draw."""
        end = torch.tensor(1 - self.process.bound_cutoff, dtype=torch.float64)
        t = torch.full((len(index),), self.process.t_from_share(end).item())
        noise = self._noise_by_index(t, index, "validation draw").to(x_1.device)
        rows = self._rows(network, x_1, noise, condition)
        return cross_entropy(rows.logits, rows.x_1).view(x_1.shape).mean(1).cpu().double()


class Bound(Metric):
    """The bound in nats per token, and its standard error, from the bounds of sequences at spread kappas."""

    higher_is_better = False
    values: list[Tensor]
    kappas: list[Tensor]

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("values", [], dist_reduce_fx="cat")
        self.add_state("kappas", [], dist_reduce_fx="cat")

    def update(self, values: Tensor, kappas: Tensor) -> None:
        self.values.append(values.float().to(self.device))
        self.kappas.append(kappas.float().to(self.device))

    def compute(self) -> tuple[Tensor, Tensor]:
        return stratified_mean(joined(self.values).cpu(), joined(self.kappas).cpu())
