"""The error of one step's cumulative intensity, which Theorems exact_error and cie_error bound.

Shapes: B trajectories, D coordinates, V data tokens. Symbols as in observers.py.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.theory.diagnostic import ObservedStep, Reevaluating, leaping_from
from tauflow.denoise import Model
from tauflow.samplers.grids import Grid
from tauflow.samplers.leaping import Leaping, Term, intensities
from tauflow.samplers.sampler import Problem, Sampler, State


class LocalErrors(Reevaluating):
    """`local_error` along a run, beside d_H(x_n, x_{n-1}) and h.

    The two sides of Theorem cie_error and Corollary cie_expected.
    """

    names = ("largest", "total", "hamming", "h")

    def __init__(
        self,
        model: Model,
        sampler: Sampler | str,
        nodes: int = 16,
        frozen: Tensor | None = None,
        condition: Tensor | None = None,
    ):
        super().__init__(model, frozen, condition)
        self.sampler = leaping_from(sampler)
        self.nodes = nodes

    def measure(self, step: ObservedStep) -> Tensor:
        grid, n = step.grid(self.problem.process)
        errors = _local_errors(self.problem, self.sampler, step.state(), grid, n, self.nodes).cpu()
        hamming = (step.x != step.before.x).sum(1) if step.before else torch.zeros(len(step.x))
        return torch.column_stack([errors, hamming.cpu(), torch.full((len(errors),), grid.dtau(n))])


@dataclass(frozen=True)
class LocalError:
    """|Lambda-hat - Lambda(x_n)|: the largest channel and the sum of all, each a mean over trajectories."""

    largest: float
    total: float


def local_error(
    problem: Problem, sampler: Sampler | str, state: State, grid: Grid, n: int, nodes: int = 16
) -> LocalError:
    """Return the error of the cumulative intensity of step n at the frozen state.

    Theorems exact_error and cie_error bound it. Lambda-hat is the sampler's own from `state` (x_n and, for
    n > 0, that of step n - 1), clamped as the sampler uses it; Lambda the integral of u_tau(s; x_n) over
    the step by Gauss-Legendre quadrature in tau.
    """
    errors = _local_errors(problem, leaping_from(sampler), state, grid, n, nodes)
    return LocalError(*errors.nanmean(0).tolist())


@torch.no_grad()
def _local_errors(problem: Problem, sampler: Leaping, state: State, grid: Grid, n: int, nodes: int) -> Tensor:
    """Return the largest and the sum over channels, (B, 2); NaN where nothing may move."""
    x, movable = state.x, problem.movable(state.x)
    terms, clamp = sampler.terms(problem, state, grid, n), sampler.leap_rule(grid, n).clamp
    error = intensities(problem.process, terms, slice(None), x, clamp).total.double()  # (B * D, V)
    for tau, weight in quadrature(grid.tau[n].item(), grid.tau[n + 1].item(), nodes):
        error -= weight * rates_at(problem, x, tau)
    error = (error.abs() * movable.flatten()[:, None]).view(len(x), -1)  # (B, D V)
    return torch.stack([error.amax(1), error.sum(1)], 1).where(movable.any(1, keepdim=True), math.nan)


def rates_at(problem: Problem, x: Tensor, tau: float) -> Tensor:
    """Return u_tau(s; x), float64 (B * D, V)."""
    t = problem.process.t_from_clock(torch.tensor(tau, dtype=torch.float64))
    return Term(1.0, problem.evaluate(x, t)).rates(slice(None), problem.process).double()


def quadrature(start: float, end: float, nodes: int) -> list[tuple[float, float]]:
    """Return Gauss-Legendre nodes in (start, end), in order, with their weights."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    half = (end - start) / 2
    return [
        (start + half * (1 + place), half * weight)
        for place, weight in zip(places.tolist(), weights.tolist(), strict=True)
    ]
