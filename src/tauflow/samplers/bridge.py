"""Bridge, for sources with a law over data tokens: one evaluation a step, second order up to the data.

The order is that in law, where coordinates depend little on each other. With kappa_n on the early grid
(grids.py), rho = (kappa_{n+1} - kappa_n) / (1 - kappa_n) and q an extrapolated row, a step is

    P(y) = (1 - rho) 1{y = x} + rho q(y)

the kernel of `tweedie` with q for p_n. The last step has rho = 1: it is the final draw. The row of the step
before was made for another own token and another kappa; with c_n(s; x) = kappa_n 1{s = x} + (1 - kappa_n)
pi(x), pi the law of the source, it is re-expressed for those of now,

    h(s) ~ p_{n-1}(s) c_n(s; x_n) / c_{n-1}(s; x_{n-1}),    q(s) ~ p_n(s) min(p_n(s) / h(s), 10)^w,
    w = g (kappa_{n+1} - kappa_n) / (2 (kappa_n - kappa_{n-1})),   w = 0 in the first step.

So q - p_n is only what *other* coordinates have changed: at D = 1 it is 0, and the sampler exact. What is of
first degree in that change makes the law second order; the power also has parts of higher degree, which leave
a small error of first order. Coordinates are candidates with probability rho and only their rows are read; a
candidate that draws its own token stays.

Coins are `independent`, with gain g = 1, or `systematic` (draws.py::toss): neighbours rarely move together
then, and a pair that cannot move together needs no correction, so g = 1 / (1 + kappa_n)^2, and 1 in the last
step, where all move. The systematic coins choose candidates, before any row is read.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.devices import precise
from tauflow.process import Process
from tauflow.samplers.base import Problem, Sampler, State, StepInfo, Visit, option, require
from tauflow.samplers.draws import CoinName, chunks, toss
from tauflow.samplers.extrapolation import CAP, TINY
from tauflow.samplers.grids import Grid, make_grid, refuse_too_long
from tauflow.samplers.tweedie import mixture, needs_noise


@dataclass(frozen=True)
class Bridge(Sampler[Grid, State]):
    coins: CoinName = option("independent", "whether neighbours may move together as often as others")
    gain: float | None = option(
        None, "share of the extrapolation; none: 1, or less where coins are systematic"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.gain is None or 0 <= self.gain < math.inf,
            f"gain must be a number of at least 0, got {self.gain}; 0 is no extrapolation, 1 all of it",
        )

    def refuses(self, model: Model) -> str:
        return needs_noise(model, "bridge samplers redraw tokens")

    def plan(self, process: Process, free: int, nfe: int) -> Grid:
        refuse_too_long(nfe)
        return make_grid("early", nfe, process, cutoff=0.0, draws=False)

    def init(self, problem: Problem, x_0: Tensor, plan: Grid, generator: torch.Generator) -> State:
        return State(x_0)

    @property
    def keeps(self) -> bool:
        return True

    def exponent(self, grid: Grid, n: int) -> float:
        """Return w of step n."""
        if n == 0:
            return 0.0
        before, now, after = (-torch.expm1(-grid.tau[n - 1 : n + 2])).tolist()  # kappa
        return self.gain_of(grid, n) * (after - now) / (2 * (now - before))

    def gain_of(self, grid: Grid, n: int) -> float:
        """Return g of step n."""
        if self.gain is not None:
            return self.gain
        if self.coins == "independent" or n == grid.steps - 1:
            return 1.0
        return (1 + (-torch.expm1(-grid.tau[n])).item()) ** -2

    def rows(
        self, problem: Problem, state: State, visit: Visit, grid: Grid, n: int, index: Tensor | slice
    ) -> Tensor:
        """Return q of the coordinates index (R,) in step n, (R, V)."""
        posterior = visit.evaluation.rows(index).to(precise(state.x.device))
        exponent = self.exponent(grid, n)
        if not exponent or state.visit is None:
            return posterior
        history = state.visit.evaluation.rows(index).to(posterior)
        for at, x, sign in ((n, state.x, 1), (n - 1, state.visit.x, -1)):
            token = x.flatten()[index][:, None]
            odds = mixture(problem).own_odds(token, grid.t[at].item())  # c(s; x) up to a factor
            history.scatter_(1, token, history.gather(1, token) * odds**sign)
        history.div_(history.sum(-1, keepdim=True)).clamp_(min=TINY)
        ratio = torch.div(posterior, history, out=history).clamp_(max=CAP)  # in place: rows may be long
        q = posterior.mul_(ratio.pow_(exponent))
        return q.div_(q.sum(-1, keepdim=True))

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x, movable = state.x, problem.movable(state.x)
        chosen = toss(movable, -math.expm1(-plan.dtau(n)), self.coins, generator, problem.walk)
        if state.visit and self.gain != 0:
            state = State(x, state.visit.kept(chosen))
        visit = problem.visit(x, plan.t[n])
        result = x.clone().flatten()
        for index in chunks(chosen, problem.process.num_tokens):
            result[index] = (
                problem.drawing.tokens(  # rows without a name: they are freed before the next ones
                    self.rows(problem, state, visit, plan, n, index), index, generator
                )
            )
        result = result.view_as(x)
        moved = (result != x).sum().item() / max(1, int(movable.sum()))
        return State(result, visit), StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), moved)
