"""Tweedie tau-leaping, the exact kernel of a frozen posterior; stratified hazards; FUDOKI's own sampler.

With rho = (kappa_{n+1} - kappa_n) / (1 - kappa_n) = 1 - exp(-dtau), the probability that a coordinate that
has not flipped yet flips in the step, and pi the distribution of the source:

    tweedie         P(y) = (1 - rho) 1{y = x} + rho p(y)
    tweedie_d3pm    P(y) = (b 1{y = x} + (1 - b) pi(x)) (kappa_s p(y) / Dn(y) + (1 - kappa_s) pi(y) C),
                    s = t_{n+1}, t = t_n, b = kappa_t / kappa_s,
                    Dn(y) = kappa_t 1{y = x} + (1 - kappa_t) pi(x),
                    C = p(x) / (kappa_t + (1 - kappa_t) pi(x)) + (1 - p(x)) / ((1 - kappa_t) pi(x))

The second is the reverse kernel of D3PM and SEDD, a chain with the same marginals that re-noises. It is for
sources with a distribution over data tokens; on a masked source the two coincide.

    shs             stratified hazard sampling (Jang et al. 2026), a baseline: jumps come when hazard has
                    added up. With q the kernel of tweedie_d3pm (on masks, tweedie), a coordinate adds up its
                    probabilities of leaving, S <- S + 1 - q(x), and jumps when S passes theta + k, k = 0, 1,
                    ...; theta is uniform, and drawn once. Where to is drawn from q without the own token. So
                    the number of jumps varies by less than one about its mean.

On a noise source shs does not keep the distribution, however many evaluations there are, even at D = 1.
Whether a coordinate jumps depends on when it last did, not only on the state, so a token that has waited is
more often noise than the denoiser takes it for. Systematic coins stratify over coordinates, with new numbers
in every step, and keep each coordinate's distribution. On a masked source shs is a reveal in random order
that is done before the path ends.

    fudoki          a guess of the data, and a leap of the chain towards it. In every step each coordinate
                    draws x_1 from its posterior. With u(s; x, x_1) the rate of its jumps on the path to that
                    x_1, per unit of t, and L = h sum_s u(s), it moves with the probability 1 - exp(-L), to s
                    in proportion to u(s)

FUDOKI's grid is t_n = n / N, and the last of N evaluations draws x_1. Where the rate is infinite at t = 0 a
metric process says 0, as FUDOKI does, so the first evaluation then moves nothing. As in leaping.py a
coordinate is a candidate with the probability 1 - exp(-A) first, A = h lam(t) mass(t) >= L, and only rows of
candidates are read.
"""

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from tauflow.denoise import Model, Posterior
from tauflow.numerics import precise
from tauflow.process import Mixture
from tauflow.samplers.grids import Grid
from tauflow.samplers.leaping import GridSampler
from tauflow.samplers.random import chunks, index_of, sample_coins, uniforms
from tauflow.samplers.sampler import Problem, State, StepInfo


@dataclass(frozen=True)
class Tweedie(GridSampler):
    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x, process = state.x, problem.process
        posterior = problem.evaluate(x, plan.t[n])
        clock, clock_next = plan.tau[n].item(), plan.tau[n + 1].item()
        movable = problem.movable(x)
        index = sample_coins(movable, process.reach(clock, clock_next), generator)
        x_1 = problem.draw_from(posterior, index, generator)
        x_next = x.clone()
        x_next.view(-1)[index] = process.follow(x.flatten()[index], x_1, clock, clock_next, generator)
        return State(x_next, posterior), info_of(n, plan, x, x_next, movable)


@dataclass(frozen=True)
class TweedieD3PM(GridSampler):
    def unsupported_reason(self, model: Model) -> str:
        return needs_noise(model, "tweedie_d3pm redraws tokens")

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x = state.x
        posterior = problem.evaluate(x, plan.t[n])
        times = plan.t[n].item(), plan.t[n + 1].item()
        movable = problem.movable(x)
        x_next = x.clone()
        for index in chunks(index_of(movable), problem.process.num_tokens):
            kernel = d3pm_kernel(mixture(problem), posterior.probs(index), x.flatten()[index], *times)
            x_next.view(-1)[index] = problem.draw(kernel, index, generator)
        return State(x_next, posterior), info_of(n, plan, x, x_next, movable)


def info_of(n: int, plan: Grid, x: Tensor, x_next: Tensor, movable: Tensor) -> StepInfo:
    """Return the log of step n from x to x_next (B, D)."""
    moved = (x_next != x).sum().item() / max(1, int(movable.sum()))
    return StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), moved)


def d3pm_kernel(process: Mixture, probs: Tensor, tokens: Tensor, t: float, t_next: float) -> Tensor:
    """Return the kernel (R, V) of tweedie_d3pm from tokens (R,) at t to t_next, with probs (R, V)."""
    kappa_t, kappa_s = (process.schedule.kappa(each) for each in (t, t_next))
    b = kappa_t / kappa_s
    p = probs.to(precise(probs.device))
    every = torch.arange(process.num_tokens, device=probs.device)
    everywhere = process.source.inverse_probability(every)  # 1 / pi(y), (V,)
    own = tokens[:, None]
    v = process.source.inverse_probability(own)  # 1 / pi(x), (R, 1)
    p_own = p.gather(1, own)
    c = p_own / (kappa_t + (1 - kappa_t) / v) + (1 - p_own) * v / (1 - kappa_t)
    here = torch.zeros_like(p).scatter_(1, own, 1.0)
    kept = kappa_s * p / (kappa_t * here + (1 - kappa_t) / v)
    return (b * here + (1 - b) / v) * (kept + (1 - kappa_s) / everywhere * c)


def needs_noise(model: Model, why: str) -> str:
    """Return why a model without noise over data tokens isn't supported; empty if it has it."""
    if isinstance(model.process, Mixture) and not model.process.absorbing:
        return ""
    return (
        f"{why}: it needs a uniform or marginal source, this model has a {model.process.name} one; try tr_cie"
    )


def mixture(problem: Problem) -> Mixture:
    """Return the process as the mixture that `unsupported_reason` has found it to be."""
    assert isinstance(problem.process, Mixture)
    return problem.process


@dataclass(frozen=True)
class HazardState(State):
    _: KW_ONLY
    left: Tensor  # (B, D): hazard until the next jump


@dataclass(frozen=True)
class Hazard(GridSampler):
    def unsupported_reason(self, model: Model) -> str:
        if isinstance(model.process, Mixture):
            return ""
        return f"shs is made for a mixture, this model has a {model.process.name} path; try tr_cie(grid=tau)"

    def init(self, problem: Problem, x_0: Tensor, plan: Grid, generator: torch.Generator) -> HazardState:
        return HazardState(x_0, left=uniforms(x_0.numel(), generator, x_0.device).view_as(x_0))

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        assert isinstance(state, HazardState)
        x, left = state.x, state.left.clone().flatten()
        posterior = problem.evaluate(x, plan.t[n])
        movable = problem.movable(x)
        x_next = x.clone()
        for index in chunks(index_of(movable), problem.process.num_tokens):
            targets, leaving = self.leaving(problem, posterior, plan, n, index)
            left[index] -= leaving
            jumps = ((left[index] <= 0) & (leaving > 0)).nonzero().squeeze(1)
            moving = index[jumps]
            x_next.view(-1)[moving] = problem.draw(targets[jumps], moving, generator)
            left[moving] += 1
        info = info_of(n, plan, x, x_next, movable)
        return HazardState(x_next, posterior, left=left.view_as(x)), info

    def leaving(
        self, problem: Problem, posterior: Posterior, plan: Grid, n: int, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return where the coordinates index (R,) go if they leave (R, V), and the probability of it (R,)."""
        probs, process = posterior.probs(index), problem.process
        if process.absorbing:
            reach = process.reach(plan.tau[n].item(), plan.tau[n + 1].item())
            return probs, probs.new_full((len(probs),), reach, dtype=precise(probs.device))
        own = posterior.x.flatten()[index]
        kernel = d3pm_kernel(mixture(problem), probs, own, plan.t[n].item(), plan.t[n + 1].item())
        kernel = kernel / kernel.sum(-1, keepdim=True)
        targets = kernel.scatter(1, own[:, None], 0)
        return targets, targets.sum(-1)


@dataclass(frozen=True)
class Fudoki(GridSampler):
    uses_rate = True

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x, process, t = state.x, problem.process, plan.t[n].item()
        posterior = problem.evaluate(x, t)
        scale = plan.dt(n) * process.rate_factor(t)
        candidate = -math.expm1(-scale * process.mass(t))
        movable = problem.movable(x)
        x_next = x.clone()
        for index in chunks(sample_coins(movable, candidate, generator), process.num_tokens):
            x_1 = problem.draw(posterior.probs(index), index, generator)
            rates = process.toward(x_1, x.flatten()[index], t) * scale
            probability = -torch.expm1(-rates.sum(-1))
            coins = uniforms(len(index), generator, x.device) * candidate < probability
            moves = coins.nonzero().squeeze(1)
            moving = index.index_select(0, moves)
            x_next.view(-1)[moving] = problem.draw(rates.index_select(0, moves), moving, generator)
        return State(x_next, posterior), info_of(n, plan, x, x_next, movable)
