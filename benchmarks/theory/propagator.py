"""The exact law that a sampler reaches on an enumerable data law.

Shapes: B sequences, D coordinates, V data tokens, M states of the space, S states of a coordinate.
"""

import itertools

import torch
from torch import Tensor

from benchmarks.theory.laws import EnumerableLaw
from tauflow.denoise import LogitsPosterior, Posterior
from tauflow.process import Process
from tauflow.samplers.bridge import Bridge, Renoise
from tauflow.samplers.grids import Grid, GridName, make_grid
from tauflow.samplers.leaping import GridSampler, Leaping, Rule, Term, intensities
from tauflow.samplers.sampler import Problem, Sampler, State
from tauflow.samplers.theta import Theta

PROPAGATED = (Leaping, Theta, Bridge)  # samplers whose law `Propagator` computes, with independent coins


class Propagator:
    """The law of all states, pushed through a sampler without Monte Carlo: terminal laws to many digits.

    The intensities are the sampler's own (its `terms`, its evaluations, its clamp), taken for all pairs
    (x_{n-1}, x_n) as one batch; only the jump rule, which turns them into probabilities, is written here
    again.
    """

    def __init__(self, law: EnumerableLaw, process: Process):
        self.law = law
        self.process = process
        self.model = law.model(process)
        self.problem = Problem(self.model)
        states = itertools.product(range(process.num_states), repeat=law.length)
        self.states = torch.tensor(list(states))  # (M, D)

    def start(self) -> Tensor:
        """Return the law of x_0 (M,)."""
        return self.product(self.process.start_distribution().expand(1, self.law.length, -1)).squeeze(0)

    def product(self, rows: Tensor) -> Tensor:
        """Return the joint law (N, M) of independent coordinates with laws rows (N, D, S)."""
        joint = torch.ones(len(rows), len(self.states), dtype=torch.float64)
        for d in range(self.law.length):
            joint = joint * rows[:, d, self.states[:, d]]
        return joint

    def jump(self, terms: list[Term], rule: Rule, x: Tensor) -> Tensor:
        """Return the kernel (N, M) from the states x (N, D)."""
        intensity = intensities(self.process, terms, slice(None), x, rule.clamp).total
        intensity = intensity.view(*x.shape, -1) * self.process.movable(x)[:, :, None]  # (N, D, V)
        total = intensity.sum(-1, keepdim=True)
        moving = torch.exp(-total)
        if rule.jump == "exponential":
            moving = -torch.expm1(-total) / total.clamp(min=1e-300)
        rows = self._padded(intensity * moving)
        rows.scatter_add_(2, x[:, :, None], 1 - rows.sum(-1, keepdim=True))
        return self.product(rows)

    def bridge(self, sampler: Bridge, state: State, grid: Grid, n: int) -> Tensor:
        """Return the kernel (N, M) of a bridge, or of one that takes tokens back, with independent coins."""
        if sampler.coins != "independent":
            raise TypeError("there is no propagator for systematic coins: coordinates depend on each other")
        posterior = self.problem.evaluate(state.x, grid.t[n])
        rows = sampler.probs(self.problem, state, posterior, grid, n, slice(None))
        if not isinstance(sampler, Renoise):
            return self.frozen(rows, state.x, grid, n)
        sigma, chance = sampler.probabilities(grid, n)
        stay = torch.nn.functional.one_hot(state.x, self.process.num_states).double()
        drawn = self._padded(rows).view(*state.x.shape, -1)
        return self.product(
            sigma * self.process.start_distribution() + chance * drawn + (1 - sigma - chance) * stay
        )

    def frozen(self, rows: Tensor, x: Tensor, grid: Grid, n: int) -> Tensor:
        """Return the kernel (N, M) of step n from x (N, D) with frozen rows (N * D, V)."""
        clock, clock_next = grid.tau[n].item(), grid.tau[n + 1].item()
        return self.product(self.process.kernel(rows, x.flatten(), clock, clock_next).view(*x.shape, -1))

    def draw(self, posterior: Posterior, x: Tensor) -> Tensor:
        """Return the kernel (N, M) of the finishing draw."""
        return self._replaced(posterior.dense(), x, self.process.movable(x))

    def terminal_law(self, sampler: Sampler, nfe: int) -> Tensor:
        """Return the law (M,) of the states after `run`."""
        grid = sampler.plan(self.process, self.law.length, nfe)
        x = self.states
        pair = torch.zeros(len(x), len(x), dtype=torch.float64)  # P(x_{n-1}, x_n); the first row: no history
        pair[0] = self.start()
        evaluation = None
        for n in range(grid.steps):
            if isinstance(sampler, Leaping | Bridge):
                pair = self._step(sampler, pair, evaluation, grid, n)
                evaluation = self.problem.evaluate(x, grid.t[n])
            elif isinstance(sampler, Theta):
                law = self._two_stages(sampler, pair.sum(0), grid, n)
                pair = torch.zeros_like(pair)
                pair[0] = law
            else:
                raise TypeError(f"no propagator for {sampler}")
        if sampler.finishing == "draw":
            return pair.sum(0) @ self.draw(self.problem.evaluate(x, grid.t[-1]), x)
        if sampler.finishing == "reuse" and evaluation is not None:
            before, now = pair.nonzero().T
            leftover = self.process.masks(x[now])
            return pair[before, now] @ self._replaced(evaluation.dense()[before], x[now], leftover)
        return pair.sum(0)

    def _step(self, sampler: Sampler, pair: Tensor, last: Posterior | None, grid: Grid, n: int) -> Tensor:
        """Return P(x_n, x_{n+1}) from P(x_{n-1}, x_n) and the evaluation of all states at step n - 1."""
        before, now = pair.nonzero().T
        x, history = self.states, None
        if last is not None:
            index = (before[:, None] * self.law.length + torch.arange(self.law.length)).flatten()
            logits = last.logits(index).unflatten(0, (len(before), -1))
            history = LogitsPosterior(logits).evaluated_at(x[before], grid.t[n - 1].item())
        state = State(x[now], history)
        if isinstance(sampler, Bridge):
            kernel = self.bridge(sampler, state, grid, n)
        else:
            assert isinstance(sampler, Leaping)
            terms = sampler.terms(self.problem, state, grid, n)
            kernel = self.jump(terms, sampler.leap_rule(grid, n), x[now])
        return torch.zeros_like(pair).index_add_(0, now, pair[before, now][:, None] * kernel)

    def _two_stages(self, sampler: Theta, law: Tensor, grid: Grid, n: int) -> Tensor:
        """Return the law (M,) after a step of a theta method."""
        x, h = self.states, grid.dt(n)
        first = sampler.first_stage(self.problem, x, grid, n)
        middle = law[:, None] * self.jump([first], sampler.rule_for(sampler.theta * h), x)  # (x, x*)
        start, star = middle.nonzero().T
        first = sampler.first_stage(self.problem, x[start], grid, n)
        terms = sampler.second_stage(self.problem, first, x[star], grid, n)
        again, rest = (x[star], 1 - sampler.theta) if sampler.trapezoidal else (x[start], 1.0)
        return middle[start, star] @ self.jump(terms, sampler.rule_for(rest * h), again)

    def _padded(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.pad(rows.double(), (0, self.process.num_states - self.law.num_tokens))

    def _replaced(self, rows: Tensor, x: Tensor, where: Tensor) -> Tensor:
        stay = torch.nn.functional.one_hot(x, self.process.num_states).double()
        return self.product(torch.where(where[:, :, None], self._padded(rows), stay))

    def tweedie_law(self, grid_name: GridName, nfe: int, cutoff: float = 1e-3, draws: bool = True) -> Tensor:
        """Return the terminal law (M,) of the process's own kernel, with or without a finishing draw."""
        grid = make_grid(grid_name, nfe - draws, self.process, cutoff, draws=draws)
        x, law = self.states, self.start()
        for n in range(grid.steps):
            rows = self.problem.evaluate(x, grid.t[n]).probs(slice(None))
            law = law @ self.frozen(rows, x, grid, n)
        return law @ self.draw(self.problem.evaluate(x, grid.t[-1]), x) if draws else law

    def marginal(self, share: float) -> Tensor:
        """Return the exact law (M,) of x_t where this share of the path (kappa of a mixture) is done."""
        t = self.process.t_from_share(torch.tensor(share, dtype=torch.float64)).item()
        return self.law.probabilities @ self.product(self.process.distribution_at(t)[self.law.sequences])

    def error(self, sampler: Sampler, nfe: int) -> float:
        """Return the total variation to the exact law where the sampler ends: the data, or at the cutoff."""
        data = torch.nn.functional.one_hot(self.law.sequences, self.process.num_states).double()
        exact = self.law.probabilities @ self.product(data)
        if isinstance(sampler, GridSampler) and sampler.finishing == "none":
            exact = self.marginal(1 - (sampler.cutoff or 0.0))  # which such a sampler always has
        return (self.terminal_law(sampler, nfe) - exact).abs().sum().item() / 2


def slope(errors: list[float], counts: list[int]) -> float:
    """Return the least-squares slope of log error against log 1 / count: the order of convergence."""
    x, y = -torch.tensor(counts).double().log(), torch.tensor(errors).double().log()
    return (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()
