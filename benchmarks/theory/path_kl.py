"""The KL of the target's paths from a sampler's, and the terms that bound it, on enumerable laws.

Shapes: B paths, D coordinates, V data tokens. Symbols as in observers.py.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.theory.diagnostic import leaping_from
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.local_error import quadrature, rates_at
from benchmarks.theory.propagator import Propagator
from tauflow.errors import SamplingError
from tauflow.process import Mixture, Process
from tauflow.samplers.leaping import intensities
from tauflow.samplers.sampler import Problem, Sampler, State


@dataclass(frozen=True)
class KLTerms:
    """Estimates over target paths (Theorem app_pathkl, Eq. kl_decomp).

    `freeze` and `variation` are without their factor C_Phi; `lipschitz` is the largest quotient that C_Phi
    has to bound (Eq. app_breg_lip) that was seen. `path_error` is the standard error of `path`.
    """

    path: float
    freeze: float
    variation: float
    integration: float
    lipschitz: float
    path_error: float


@torch.no_grad()
def kl_decomposition(
    law: EnumerableLaw,
    process: Process,
    sampler: Sampler | str,
    nfe: int,
    paths: int = 1000,
    seed: int = 0,
    nodes: int = 8,
) -> KLTerms:
    """Return the KL of the target's paths from the sampler's on [0, tau_N], and three terms that bound it.

    The finishing is no part of it. Paths X of the exact chain are simulated by thinning; on them the
    sampler's mu-hat is what it would do from X's own grid states and history, clamped to [eps_0, M] (Eq.
    app_hatmu_def). The floor is needed: without it a jump that the sampler gives no rate makes the KL
    infinite. From a source without masks that is every jump back to the token of x_n within a step, whose
    mu-hat is eps_0. Integrals over a step are Gauss-Legendre sums in tau, of expectations, which are smooth.
    Closed channels count nowhere, in both processes.
    """
    sampler = leaping_from(sampler)
    if not sampler.eps_0 > 0:
        raise SamplingError(
            "the path KL of a sampler without a floor is infinite; give it eps_0, for example eps_0=1e-6"
        )
    if not isinstance(process, Mixture):
        raise SamplingError(f"target paths are known for mixtures, not for {process}; use a Mixture")
    problem = Problem(law.model(process))
    grid = sampler.plan(process, law.length, nfe)
    generator = torch.Generator().manual_seed(seed)
    target = TargetPaths(problem, process.start((paths, law.length), generator), generator)
    path, freeze, variation, integration = torch.zeros(4, paths, dtype=torch.float64)
    lipschitz = 0.0
    state = State(target.x)
    for n in range(grid.steps):
        x_n, h = state.x, grid.dtau(n)
        terms = sampler.terms(problem, state, grid, n)
        clamp = sampler.leap_rule(grid, n).clamp
        total = intensities(process, terms, slice(None), x_n, clamp).total
        mu = (total / h).clamp(sampler.eps_0, sampler.ceiling)  # (paths * D, V)
        times = quadrature(grid.tau[n].item(), grid.tau[n + 1].item(), nodes)
        frozen = [rates_at(problem, x_n, tau) for tau, _ in times]  # u_tau(x_n)
        parts = [weight * u for (_, weight), u in zip(times, frozen, strict=True)]
        mean = torch.stack(parts).sum(0) / h  # u-bar_n
        start = _open(problem, x_n)
        integration += h * _over_channels(bregman(mean, mu), start, paths)
        for (tau, weight), still in zip(times, frozen, strict=True):
            x = target.until(tau)
            u, now = rates_at(problem, x, tau), _open(problem, x)
            path += weight * _over_channels(bregman(u, mu), now, paths)
            freeze += weight * _over_channels((u - still).abs(), now, paths)
            variation += weight * _over_channels((still - mean).abs(), start, paths)
            lipschitz = max(lipschitz, _quotient(u, still, mu, now), _quotient(still, mean, mu, start))
        state = State(target.until(grid.tau[n + 1].item()), terms[0].posterior)
    return KLTerms(
        path.mean().item(),
        freeze.mean().item(),
        variation.mean().item(),
        integration.mean().item(),
        lipschitz,
        path.std().item() / math.sqrt(paths),
    )


def terminal_kl(law: EnumerableLaw, process: Process, sampler: Sampler | str, nfe: int) -> float:
    """Return the exact KL(p_{tau_N} || q_{tau_N}) of the path at the cutoff from what the sampler reaches.

    It is at most the path KL.
    """
    sampler = leaping_from(sampler)
    if sampler.finishing != "none":
        raise SamplingError(
            f"the terminal KL is that at the cutoff; use finish='none' instead of {sampler.finishing!r}"
        )
    propagator = Propagator(law, process)
    p, q = propagator.marginal(1 - (sampler.cutoff or 0.0)), propagator.terminal_law(sampler, nfe)
    return torch.xlogy(p, p / q).nan_to_num(nan=0.0).sum().item()  # p = q = 0: no mass, no term


def bregman(a: Tensor, b: Tensor) -> Tensor:
    """Return a ln(a / b) - a + b, the KL of two Poisson rates (Eq. app_breg)."""
    return torch.xlogy(a, a / b) - a + b


class TargetPaths:
    """Exact paths of the target chain in tau, by thinning.

    A coordinate's posterior sums to 1, so candidates come at rate 1 for each coordinate, and a candidate at
    tau is a draw from the posterior of (tau, X); the own token is no move.
    """

    def __init__(self, problem: Problem, x_0: Tensor, generator: torch.Generator):
        self.problem = problem
        self.x = x_0
        self.generator = generator
        self._next = self._gaps(len(x_0))  # tau of the next candidate of each path

    def until(self, tau: float) -> Tensor:
        """Return the states just before tau (B, D), which may only grow."""
        length, problem = self.x.shape[1], self.problem
        while len(late := (self._next < tau).nonzero().squeeze(1)):
            x = self.x[late]
            place = torch.randint(length, late.shape, generator=self.generator)
            place = place + length * torch.arange(len(late))
            evaluation = problem.evaluate(x, problem.process.t_from_clock(self._next[late]))
            tokens = problem.draw_from(evaluation, place, self.generator)
            moves = problem.movable(x).flatten()[place]
            x.view(-1)[place[moves]] = tokens[moves]
            self.x = self.x.index_copy(0, late, x)
            self._next[late] += self._gaps(len(late))
        return self.x

    def _gaps(self, count: int) -> Tensor:
        uniforms = torch.rand(count, generator=self.generator, dtype=torch.float64)
        return -torch.log1p(-uniforms) / self.x.shape[1]


def _open(problem: Problem, x: Tensor) -> Tensor:
    """Return which channels are open at x, (B * D, V)."""
    tokens = torch.arange(problem.process.num_tokens, device=x.device)
    return problem.movable(x).flatten()[:, None] & (tokens != x.flatten()[:, None])


def _over_channels(values: Tensor, channels: Tensor, paths: int) -> Tensor:
    return (values * channels).view(paths, -1).sum(1)


def _quotient(a: Tensor, b: Tensor, mu: Tensor, channels: Tensor) -> float:
    """Return max |d_Breg(a, mu) - d_Breg(b, mu)| / |a - b| over the channels where a and b differ."""
    gap = (a - b).abs()
    quotient = (bregman(a, mu) - bregman(b, mu)).abs() / gap.clamp(min=1e-6)
    return (quotient * (channels & (gap > 1e-6))).max().item()
