"""Bridge, uniform source only: second order in law up to the data, the final draw included, with one evaluation a step.

With kappa_n on the early grid (grids.py), rho = (kappa_{n+1} - kappa_n) / (1 - kappa_n) and q an extrapolated row, a step is

    P(y) = (1 - rho) 1{y = x} + rho q(y)

the kernel of `tweedie` with q for p_n. The last step has rho = 1: it is the final draw. The row of the step before was made for another own
token and another kappa; with c_n(s; x) = kappa_n 1{s = x} + (1 - kappa_n) / V it is re-expressed for those of now,

    h(s) ~ p_{n-1}(s) c_n(s; x_n) / c_{n-1}(s; x_{n-1}),    q(s) ~ p_n(s) min(p_n(s) / h(s), 10)^w,
    w = g (kappa_{n+1} - kappa_n) / (2 (kappa_n - kappa_{n-1})),   w = 0 in the first step.

So q - p_n is only what *other* coordinates have changed: at D = 1 it is 0, and the sampler exact. Coordinates are candidates with
probability rho and only their rows are read; a candidate that draws its own token stays.

Coins are `independent`, with gain g = 1, or `systematic` (leap.py::toss): neighbours rarely move together then, and a pair that cannot move
together needs no correction, so g = 1 / (1 + kappa_n)^2, and 1 in the last step, where all move. The systematic coins choose candidates,
before any row is read. Over the exact probabilities rho (1 - q(x)) of moving, which takes the rows of all coordinates, they gain little:
countdown of length 64 with its exact denoiser has 0.29 % instead of 0.34 % wrong transitions (+- 0.01) at 8 evaluations, and at 16 and 32
the same 0.18 % and 0.15 %.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.denoisers import Evaluation
from tauflow.errors import SamplingError
from tauflow.samplers.base import Problem, Sampler, State, StepInfo, refuse_unknown
from tauflow.samplers.grids import Grid, make_grid
from tauflow.samplers.leap import CHUNK, CoinName, categorical, precise, toss
from tauflow.sources import Uniform

CAP = 10.0  # of the ratio of two rows
TINY = 1e-30


@dataclass(frozen=True)
class Bridge(Sampler):
    sources = (Uniform,)

    coins: CoinName = "independent"
    gain: float | None = None

    def __post_init__(self):
        refuse_unknown("coins", self.coins, CoinName)
        if self.gain is not None and not 0 <= self.gain < math.inf:
            raise SamplingError(f"gain must be a number of at least 0, got {self.gain}; 0 is no extrapolation, 1 all of it")

    def plan(self, nfe, schedule, free):
        return make_grid("early", nfe, schedule, cutoff=0.0, draws=False), nfe

    def exponent(self, grid: Grid, n: int) -> float:
        """w of step n."""
        if n == 0:
            return 0.0
        before, now, after = (-torch.expm1(-grid.tau[n - 1 : n + 2])).tolist()  # kappa
        gain = self.gain
        if gain is None:
            gain = 1 / (1 + now) ** 2 if self.coins == "systematic" and n < grid.steps - 1 else 1.0
        return gain * (after - now) / (2 * (now - before))

    def rows(self, problem: Problem, state: State, now: Evaluation, grid: Grid, n: int, index: Tensor | slice) -> Tensor:
        """q of the coordinates index (R,) in step n, (R, V)."""
        posterior = now.rows(index).to(precise(state.x.device))
        exponent = self.exponent(grid, n)
        if not exponent:
            return posterior
        history = state.evaluation.rows(index).to(posterior)
        for at, x, sign in ((n, state.x, 1), (n - 1, state.evaluated_at, -1)):
            kappa = problem.schedule.kappa(grid.t[at].item())
            # c(s; x) up to a factor: only the own token differs
            own = 1 + kappa * problem.source.num_tokens / (1 - kappa)
            token = x.flatten()[index][:, None]
            history = history.scatter(1, token, history.gather(1, token) * own**sign)
        history = history / history.sum(-1, keepdim=True)
        q = posterior * (posterior / history.clamp(min=TINY)).clamp(max=CAP) ** exponent
        return q / q.sum(-1, keepdim=True)

    def step(self, problem, state, grid, n, generator):
        x, movable = state.x, problem.movable(state.x)
        now = problem.evaluate(x, grid.t[n])
        chosen = toss(movable, -math.expm1(-grid.dtau(n)), self.coins, generator)
        result = x.clone().flatten()
        for index in chosen.split(max(1, CHUNK // problem.source.num_tokens)):
            result[index] = categorical(self.rows(problem, state, now, grid, n, index), generator)
        result = result.view_as(x)
        moved = (result != x).sum().item() / max(1, int(movable.sum()))
        return State(result, now, x), StepInfo(n, grid.t[n].item(), grid.t[n + 1].item(), moved)
