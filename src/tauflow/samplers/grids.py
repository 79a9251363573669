"""Where the steps go.

A grid is the times t_0 = 0 < t_1 < ... < t_S of S transitions, in float64, with their clock (tau for a
mixture). With a finishing draw the last evaluation stands at t_S and draws x_1, so the uniform t grid is t_n
= n / (S + 1) and needs no cutoff; the tau grid ends where 1 - kappa = cutoff, or with cutoff None at the same
t_S. Without a draw all end at the cutoff. The early grid is kappa_n = u^2 (2 - u^2) with u as t in the t
grid: dense where kappa is small, whatever the schedule, and like the tau grid where it is near 1; 1 - kappa =
(1 - u^2)^2.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from tauflow.errors import SamplingError
from tauflow.process import Process

MAX_STEPS = 10**6
GridName = Literal["t", "tau", "early"]


@dataclass(frozen=True)
class Grid:
    """A plan of S steps."""

    t: Tensor  # (S + 1,) float64
    tau: Tensor  # (S + 1,) float64

    @property
    def steps(self) -> int:
        return len(self.t) - 1

    @property
    def end(self) -> float:
        return self.t[-1].item()

    @cached_property
    def _steps(self) -> tuple[list[float], list[float]]:
        return self.t.diff().tolist(), self.tau.diff().tolist()

    def dt(self, n: int) -> float:
        return self._steps[0][n]

    def dtau(self, n: int) -> float:
        return self._steps[1][n]


def check_steps(nfe: int) -> None:
    """Raise an error for a budget that can only be a mistake."""
    if nfe > MAX_STEPS:
        raise SamplingError(
            f"nfe must be at most {MAX_STEPS} for a sampler on a time grid, got {nfe}; a thousand are "
            "close to the limit of small steps"
        )


def make_grid(name: GridName, steps: int, process: Process, cutoff: float | None, draws: bool) -> Grid:
    """Return S = `steps` transitions; `draws` says whether a finishing draw follows, as cutoff None needs."""
    number = torch.arange(steps + 1, dtype=torch.float64)
    if cutoff is None:
        last = process.clock(number[-1] / (steps + 1))
        cutoff = torch.exp(-last).item()
    else:
        last = -torch.log(torch.tensor(cutoff, dtype=torch.float64))  # tau where 1 - kappa = cutoff
    if name == "tau":
        tau = last * number / max(1, steps)
        return Grid(process.t_from_clock(tau), tau)
    if name == "early":
        u = number / (steps + 1) if draws else (1 - cutoff**0.5) ** 0.5 * number / max(1, steps)
        tau = -2 * torch.log1p(-u.square())
        return Grid(process.t_from_clock(tau), tau)
    t = number / (steps + 1) if draws else process.t_from_clock(last) * number / max(1, steps)
    return Grid(t, process.clock(t))
