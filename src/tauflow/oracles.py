"""Ground truth: laws that can be enumerated, with their exact posteriors, and the exact law that a sampler reaches on them.

Shapes: B sequences, D coordinates, V data tokens, V^D sequences of the enumerated space.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.denoisers import CallableDenoiser, LogitsEvaluation
from tauflow.samplers.base import Problem, Sampler, State
from tauflow.samplers.bridge import Bridge
from tauflow.samplers.grids import Grid, make_grid
from tauflow.samplers.leap import intensities
from tauflow.samplers.leaping import GridSampler, Leaping
from tauflow.samplers.theta import Theta
from tauflow.schedules import Schedule
from tauflow.sources import Masked, Source
from tauflow.tasks.countdown import transition_matrix

PROPAGATED = (Leaping, Theta, Bridge)  # samplers whose law `Propagator` computes, with independent coins


def evidence(x: Tensor, t: Tensor, source: Source, schedule: Schedule) -> Tensor:
    """p(x_t^d | x_1^d = s) up to a factor that does not depend on s, float64 (B, D, V)."""
    same = x[:, :, None] == torch.arange(source.num_tokens)
    if isinstance(source, Masked):
        return (same | (x == source.mask_id)[:, :, None]).double()
    kappa = schedule.kappa(t.double())[:, None, None]
    return kappa * same + (1 - kappa) / source.num_tokens


@dataclass(frozen=True)
class EnumerableLaw:
    """A data law over all V^D sequences; `posterior` is the exact denoiser."""

    probabilities: Tensor  # (V^D,) float64
    num_tokens: int
    length: int

    @classmethod
    def random(cls, num_tokens: int, length: int, spread: float, seed: int = 0) -> "EnumerableLaw":
        """Log-probabilities are normal with the given spread: the larger it is, the more the coordinates depend on each other."""
        generator = torch.Generator().manual_seed(seed)
        logits = spread * torch.randn(num_tokens**length, generator=generator, dtype=torch.float64)
        return cls(logits.softmax(0), num_tokens, length)

    @property
    def sequences(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(self.num_tokens), repeat=self.length)))  # (V^D, D)

    @property
    def entropy(self) -> float:
        """Nats per coordinate."""
        return -(self.probabilities * self.probabilities.log()).sum().item() / self.length

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        return self.sequences[torch.multinomial(self.probabilities, count, replacement=True, generator=generator)]

    def posterior(self, x: Tensor, t: Tensor, source: Source, schedule: Schedule) -> Tensor:
        """p(x_1^d = s | x_t = x), float64 (B, D, V)."""
        likelihood = evidence(x, t, source, schedule)  # (B, D, V)
        by_token = torch.nn.functional.one_hot(self.sequences, self.num_tokens).double()  # (V^D, D, V)
        joint = self.probabilities * torch.einsum("bdv,ndv->bnd", likelihood, by_token).prod(-1)  # (B, V^D)
        weights = torch.einsum("bn,ndv->bdv", joint, by_token)
        return weights / weights.sum(-1, keepdim=True)


def countdown_posterior(x: Tensor, t: Tensor, source: Source, schedule: Schedule, leak: float = 0.0) -> Tensor:
    """The exact denoiser of the countdown chain by forward-backward, float64 (B, D, V).

    A leak makes every transition possible, so that the posterior exists also at states with wrong transitions, which samplers reach.
    """
    likelihood = evidence(x, t, source, schedule)
    transition = (1 - leak) * transition_matrix(source.num_tokens) + leak / source.num_tokens
    forward, backward = likelihood.clone(), torch.ones_like(likelihood)
    forward[:, 0] /= forward[:, 0].sum(-1, keepdim=True)
    for d in range(1, x.shape[1]):
        forward[:, d] *= forward[:, d - 1] @ transition
        forward[:, d] /= forward[:, d].sum(-1, keepdim=True)
    for d in reversed(range(x.shape[1] - 1)):
        backward[:, d] = (backward[:, d + 1] * likelihood[:, d + 1]) @ transition.T
        backward[:, d] /= backward[:, d].sum(-1, keepdim=True)
    weights = forward * backward
    return weights / weights.sum(-1, keepdim=True)


class Propagator:
    """Pushes the whole distribution of states through a sampler, without Monte Carlo: terminal laws to many digits.

    The intensities are the sampler's own (its `terms`, its evaluations, its clamp), taken for all pairs (x_{n-1}, x_n) as one batch; only
    the jump rule, which turns them into probabilities, is written here again. M states in all, S a coordinate.
    """

    def __init__(self, law: EnumerableLaw, source: Source, schedule: Schedule):
        self.law, self.source, self.schedule = law, source, schedule
        self.states = torch.tensor(list(itertools.product(range(source.num_states), repeat=law.length)))  # (M, D)

        def logits(x, t):
            return law.posterior(x, t, source, schedule).log()

        self.problem = Problem(CallableDenoiser(logits, law.num_tokens), source, schedule, frozen=None, dense=False)

    def start(self) -> Tensor:
        """Law of x_0 (M,)."""
        if isinstance(self.source, Masked):
            return (self.states == self.source.mask_id).all(1).double()
        return torch.full((len(self.states),), 1 / len(self.states), dtype=torch.float64)

    def product(self, rows: Tensor) -> Tensor:
        """Joint law (N, M) of independent coordinates with laws rows (N, D, S)."""
        joint = torch.ones(len(rows), len(self.states), dtype=torch.float64)
        for d in range(self.law.length):
            joint = joint * rows[:, d, self.states[:, d]]
        return joint

    def jump(self, terms, clamp, x: Tensor, rule: str) -> Tensor:
        """Kernel (N, M) from the states x (N, D)."""
        intensity = intensities(terms, slice(None), x, clamp)[0].view(*x.shape, -1)  # (N, D, V)
        intensity = intensity * self.source.movable(x)[:, :, None]
        total = intensity.sum(-1, keepdim=True)
        moving = -torch.expm1(-total) / total.clamp(min=1e-300) if rule == "exponential" else torch.exp(-total)
        rows = torch.zeros(*x.shape, self.source.num_states, dtype=torch.float64)
        rows[..., : self.law.num_tokens] = intensity * moving
        rows.scatter_add_(2, x[:, :, None], 1 - rows.sum(-1, keepdim=True))
        return self.product(rows)

    def bridge(self, sampler: Bridge, state: State, grid: Grid, n: int) -> Tensor:
        """Kernel (N, M) of a bridge with independent coins: P(y) = (1 - rho) 1{y = x} + rho q(y)."""
        if sampler.coins != "independent":
            raise TypeError("coordinates with systematic coins do not move independently: there is no propagator for them")
        now = self.problem.evaluate(state.x, grid.t[n])
        rows = sampler.rows(self.problem, state, now, grid, n, slice(None)).view(*state.x.shape, -1)
        stay = torch.nn.functional.one_hot(state.x, self.source.num_states).double()
        return self.product(stay + -math.expm1(-grid.dtau(n)) * (rows - stay))

    def draw(self, evaluation, x: Tensor) -> Tensor:
        """Kernel (N, M) of the finishing draw."""
        rows = torch.zeros(*x.shape, self.source.num_states, dtype=torch.float64)
        rows[..., : self.law.num_tokens] = evaluation.dense()
        stay = torch.nn.functional.one_hot(x, self.source.num_states).double()
        return self.product(torch.where(self.source.movable(x)[:, :, None], rows, stay))

    def terminal_law(self, sampler: Sampler, nfe: int) -> Tensor:
        """Law (M,) of the states after `run`."""
        grid, steps = sampler.plan(nfe, self.schedule, free=self.law.length)
        m, x = len(self.states), self.states
        pair = torch.zeros(m, m, dtype=torch.float64)  # P(x_{n-1}, x_n); the first row stands for no history
        pair[0] = self.start()
        evaluation = None
        for n in range(steps):
            if isinstance(sampler, Leaping | Bridge):
                before, now = pair.nonzero().T
                index = (before[:, None] * self.law.length + torch.arange(self.law.length)).flatten()
                history = None if evaluation is None else LogitsEvaluation(evaluation.logits(index).unflatten(0, (len(before), -1)))
                state = State(x[now], history, x[before])
                if isinstance(sampler, Bridge):
                    kernel = self.bridge(sampler, state, grid, n)
                else:
                    kernel = self.jump(*sampler.terms(self.problem, state, grid, n), x[now], sampler.jump)
                mass = pair[before, now][:, None] * kernel
                pair = torch.zeros(m, m, dtype=torch.float64).index_add_(0, now, mass)
                evaluation = self.problem.evaluate(x, grid.t[n])
            elif isinstance(sampler, Theta):
                law = pair.sum(0)
                (first,) = sampler.first_stage(self.problem, x, grid, n)
                middle = law[:, None] * self.jump([first], sampler.clamp(sampler.theta * grid.dt(n)), x, sampler.jump)  # (x, x*)
                start, star = middle.nonzero().T
                (first,) = sampler.first_stage(self.problem, x[start], grid, n)
                terms = sampler.second_stage(self.problem, first, x[star], grid, n)
                again, rest = (x[star], 1 - sampler.theta) if sampler.trapezoidal else (x[start], 1)
                kernel = self.jump(terms, sampler.clamp(rest * grid.dt(n)), again, sampler.jump)
                pair = torch.zeros(m, m, dtype=torch.float64)
                pair[0] = middle[start, star] @ kernel
            else:
                raise TypeError(f"no propagator for {sampler}")
        law = pair.sum(0)
        if sampler.finishing == "draw":
            law = law @ self.draw(self.problem.evaluate(x, grid.t[-1]), x)
        elif sampler.finishing == "reuse":
            before, now = pair.nonzero().T
            rows = evaluation.dense()[before]
            stay = torch.nn.functional.one_hot(x[now], self.source.num_states).double()
            rows = torch.cat([rows, torch.zeros(*rows.shape[:2], self.source.num_states - rows.shape[2])], dim=2).double()
            leftover = (x[now] == self.law.num_tokens)[:, :, None]
            law = pair[before, now] @ self.product(torch.where(leftover, rows, stay))
        return law

    def tweedie_law(self, grid_name: str, nfe: int, cutoff: float = 1e-3, draws: bool = True) -> Tensor:
        """Terminal law (M,) of the Tweedie kernel P(y) = (1 - rho) 1{y = x} + rho p(y), on the grid with or without a finishing draw."""
        grid = make_grid(grid_name, nfe - draws, self.schedule, cutoff, draws=draws)
        x, law = self.states, self.start()
        for n in range(grid.steps):
            rho = 1 - math.exp(-grid.dtau(n))
            stay = torch.nn.functional.one_hot(x, self.source.num_states).double()
            rows = torch.zeros_like(stay)
            rows[..., : self.law.num_tokens] = self.problem.evaluate(x, grid.t[n]).dense()
            rows = torch.where(self.source.movable(x)[:, :, None], (1 - rho) * stay + rho * rows, stay)
            law = law @ self.product(rows)
        return law @ self.draw(self.problem.evaluate(x, grid.t[-1]), x) if draws else law

    def marginal(self, kappa: float) -> Tensor:
        """The exact law (M,) of x_t on the mixture path at this kappa."""
        noise = torch.nn.functional.one_hot(torch.tensor(self.source.num_states - 1), self.source.num_states).double()
        if not isinstance(self.source, Masked):
            noise = torch.full((self.source.num_states,), 1 / self.source.num_states, dtype=torch.float64)
        kept = torch.nn.functional.one_hot(self.law.sequences, self.source.num_states).double()  # (V^D, D, S)
        return self.law.probabilities @ self.product(kappa * kept + (1 - kappa) * noise)

    def error(self, sampler: Sampler, nfe: int) -> float:
        """Total variation to the exact law where the sampler ends: the data, or without a finishing draw the path at the cutoff."""
        kappa = 1 - sampler.cutoff if sampler.finishing == "none" and isinstance(sampler, GridSampler) else 1.0
        return (self.terminal_law(sampler, nfe) - self.marginal(kappa)).abs().sum().item() / 2


def slope(errors: list[float], counts: list[int]) -> float:
    """Least-squares slope of log error against log 1 / count: the order of convergence."""
    x, y = -torch.tensor(counts).double().log(), torch.tensor(errors).double().log()
    return (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()
