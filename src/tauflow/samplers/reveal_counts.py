"""How many coordinates are revealed after n of N evaluations: rules that look at no token.

A rule is a share of the free coordinates F that rises from 0 to 1 with n; `rounded` makes whole numbers of
it, of which every evaluation has at least one.

Shapes: B sequences.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import LearnedCounts, Model
from tauflow.errors import SamplingError
from tauflow.samplers.reveal_order import OrderName
from tauflow.samplers.spacing import is_grid

CountName = Literal["equal", "power", "arccos", "doubling", "learned", "entropy"]


def share_of(counts: CountName, n: int, steps: int, exponent: float) -> float:
    """Return the share of the coordinates that a rule has revealed after n of so many evaluations."""
    if counts == "arccos":
        return 1 - 2 / math.pi * math.acos(n / steps)
    if counts == "doubling":
        return 2.0 ** (n - steps) if n else 0.0
    return (n / steps) ** exponent


def rounded(free: Tensor, share: float, n: int, steps: int) -> Tensor:
    """Return a share of the free (B,) coordinates after n steps, so that every step has one to reveal."""
    wanted = (free.double() * share + 0.5).floor().long()
    within = torch.minimum(wanted.clamp(min=n), free - (steps - n))
    return torch.where(free < steps, free * n // steps, within)


def order_of_counts(order: OrderName, shape: tuple[int, ...]) -> OrderName:
    """Return the order whose counts an order takes: `even` of a sequence those of `random`, others their own.

    What `even` reveals next depends on the counts themselves, so it has no matrix of its own to learn from.
    """
    return "random" if order == "even" and not is_grid(shape) else order


def learned_for(order: OrderName, counts: Sequence[LearnedCounts], shape: tuple[int, ...]) -> LearnedCounts:
    """Return the learned counts that an order takes; raise if there are none."""
    wanted = order_of_counts(order, shape)
    for each in counts:
        if each.order == wanted:
            return each
    raise SamplingError(
        f"there are no learned counts for the order {order}: make them with tauflow.learn_counts(model, "
        f"{order!r}), or sample.py --learn_counts; or use spaced_even"
    )


def no_counts(order: OrderName, model: Model) -> str:
    """Return why a model cannot be revealed with learned counts, or nothing if it can."""
    try:
        learned_for(order, model.counts, model.shape)
    except SamplingError as error:
        return str(error)
    return ""


def no_weights(order: OrderName, model: Model) -> str:
    """Return why an order has no learned weights of extrapolation, or nothing if it has."""
    along = order_of_counts(order, model.shape)
    if along == order:
        return ""
    return (
        f"the order {order} takes the counts of the order {along}, whose weights are not its own; use "
        "extrapolation=pairs"
    )
