"""Model: what is sampled, with everything that a sampler must know of it."""

import dataclasses
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise.denoiser import Denoiser, GuidedDenoiser, TemperedDenoiser, denoiser_from
from tauflow.errors import SamplingError
from tauflow.process import Process


@dataclass(frozen=True, init=False)
class Model:
    """A denoiser, the process of its training, and the shape of a sample.

    Args:
        denoiser: a Denoiser, a network with hidden() and head(), or any callable (x, t) -> logits (B, D, V).
        process: what noise is, as in training: `Mixture(Masked(V), "quadratic")`.
        shape: of one sample: (D,) for a sequence, (H, W) or (H, W, C) for a picture, the last axis fastest.
        order: when each of the D coordinates is revealed, 0 first, for the sampler learned_order; made by
            `tauflow.learn_order`.
    """

    denoiser: Denoiser
    process: Process
    shape: tuple[int, ...]
    order: Tensor | None = None

    def __init__(
        self,
        denoiser: Any,
        process: Process,
        shape: Sequence[int],
        order: Tensor | Sequence[int] | None = None,
    ):
        if not isinstance(process, Process):
            raise SamplingError(
                f"process must be a Process, such as Mixture(Masked(V), 'linear'), got {process!r}"
            )
        sizes = checked_shape(shape)
        object.__setattr__(self, "denoiser", denoiser_from(denoiser, process.num_tokens))
        object.__setattr__(self, "process", process)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "order", checked_order(order, math.prod(sizes)))

    @property
    def length(self) -> int:
        """Return D, the number of coordinates of a sample."""
        return math.prod(self.shape)

    @property
    def conditions(self) -> tuple[int, ...]:
        """Return how many values each column of a condition has; empty if the model takes none."""
        return self.denoiser.conditions

    @property
    def kind(self) -> str:
        """Return what two models must share to be mixed: tokens, shape and source."""
        return f"{self.process.num_tokens} tokens, shape {self.shape}, {self.process.name} source"

    def guided(self, weight: float, unconditional: Any = None) -> "Model":
        """Return the model with guidance, ln p = ln p_u + weight (ln p_c - ln p_u); weight 1 is none.

        `unconditional` is a Model or denoiser trained without the condition. None takes the same network with
        its condition dropped: classifier-free guidance, for a network trained with `condition_dropout`. An
        evaluation takes two forwards either way.
        """
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise SamplingError(
                f"the guidance weight must be a finite number, got {weight!r}; 1 is no guidance"
            )
        other = unconditional
        if isinstance(unconditional, Model):
            if unconditional.kind != self.kind:
                raise SamplingError(
                    f"the unconditional model ({unconditional.kind}) has another vocabulary, shape or source "
                    f"than this one ({self.kind}); guide with one of the same task"
                )
            other = unconditional.denoiser
        if other is not None:
            other = denoiser_from(other, self.process.num_tokens)
        elif not self.conditions:
            raise SamplingError(
                "this network takes no condition, so there is nothing to guide by; train one with "
                "conditions, or give the unconditional model (sample.py --unconditional PATH)"
            )
        return dataclasses.replace(self, denoiser=GuidedDenoiser(self.denoiser, other, float(weight)))

    def tempered(self, temperature: float) -> "Model":
        """Return the model with its logits divided by a temperature."""
        return dataclasses.replace(self, denoiser=TemperedDenoiser(self.denoiser, temperature))


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of a sample as whole numbers; refuse anything else."""
    sizes = shape if isinstance(shape, tuple | list | torch.Size) else ()
    try:
        numbers = tuple(operator.index(size) for size in sizes)
    except TypeError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise SamplingError(f"shape must be the sizes of a sample such as (256,) or (28, 28), got {shape!r}")
    return numbers


def checked_order(order: Any, length: int) -> Tensor | None:
    """Return a learned order (D,) on the CPU; refuse what is no permutation."""
    if order is None:
        return None
    order = torch.as_tensor(order).cpu()
    if order.shape != (length,) or not torch.equal(order.sort().values, torch.arange(length)):
        raise SamplingError(
            f"an order must hold each number from 0 to {length - 1} once, one for each coordinate; make it "
            "with tauflow.learn_order"
        )
    return order
