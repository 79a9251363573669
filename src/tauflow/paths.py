"""The mixture path p_t(x^d | x_1^d) = kappa(t) 1{x^d = x_1^d} + (1 - kappa(t)) p_src(x^d), and the times it is looked at.

Shapes: B sequences, D coordinates. Noise is drawn apart from the data, so that it can be a pure function of a seed and a step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tauflow.schedules import Schedule
from tauflow.sources import Source


class Noise(NamedTuple):
    """Everything random about corrupting a batch; index it to take rows."""

    t: Tensor  # (B,)
    corrupted: Tensor  # (B, D) bool: the coordinate was redrawn from the source (and may, if uniform, have kept its token)
    x_0: Tensor  # (B, D)

    def corrupt(self, x_1: Tensor) -> Tensor:
        return torch.where(self.corrupted, self.x_0, x_1)

    def rows(self, index: Tensor) -> "Noise":
        return Noise(*(part[index] for part in self))

    def to(self, device: torch.device) -> "Noise":
        return Noise(*(part.to(device) for part in self))


@dataclass(frozen=True)
class MixturePath:
    source: Source
    schedule: Schedule

    def noise(self, t: Tensor, length: int, generator: torch.Generator | None = None) -> Noise:
        """Noise for sequences of the given length at the times t (B,)."""
        shape = (len(t), length)
        coins = torch.rand(shape, generator=generator, dtype=t.dtype, device=t.device)
        corrupted = coins >= self.schedule.kappa(t)[:, None]
        return Noise(t, corrupted, self.source.sample(shape, generator).to(t.device))

    def corrupt(self, x_1: Tensor, t: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x_t (B, D) from data x_1 (B, D) at the times t (B,), and which coordinates were redrawn."""
        noise = self.noise(t, x_1.shape[1], generator)
        return noise.corrupt(x_1), noise.corrupted


def stratified_times(count: int, generator: torch.Generator | None = None) -> Tensor:
    """One time in each of `count` equal strata of [0, 1), with one shared offset: the batch always covers all times."""
    offset = torch.rand((), generator=generator, dtype=torch.float32)
    return (torch.arange(count, dtype=torch.float32) + offset).div(count).clamp(max=1 - 2**-24)


def spread_kappas(index: Tensor) -> Tensor:
    """kappa in [0, 1) for the given item numbers, in float64: the first 2^k items have one in each of 2^k strata, for every k.

    A scrambled Sobol sequence with a fixed scramble, so any leading part of a validation set is spread evenly, whatever its size.
    """
    sobol = torch.quasirandom.SobolEngine(dimension=1, scramble=True, seed=0)
    return sobol.draw(int(index.max()) + 1, dtype=torch.float64).squeeze(1)[index]
