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

Coins are `independent`, with gain g = 1, or `systematic` (random.py: toss): neighbours rarely move together
then, and a pair that cannot move together needs no correction, so g = 1 / (1 + kappa_n)^2, and 1 in the last
step, where all move. The systematic coins choose candidates, before any row is read.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.numerics import precise
from tauflow.process import Process
from tauflow.samplers.grids import Grid, make_grid, refuse_too_long
from tauflow.samplers.random import CoinName, chunks, toss
from tauflow.samplers.remask import made_up, taken_back, tossed_back
from tauflow.samplers.reveal import CAP, TINY
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, Visit, option, require
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


# Renoise, for sources with a law over data tokens: bridge steps that also take tokens back to noise.
#
# A trained denoiser draws wrong tokens now and then, and a wrong token that does not move again misleads all
# later steps. So a step from kappa_n to kappa_{n+1} takes tokens back with probability sigma, and draws as
# many more. With pi the law of the source and q the extrapolated row of `bridge` (bridge.py),
#
#     P(y) = sigma pi(y) + r q(y) + (1 - sigma - r) 1{y = x}
#     sigma = min(eta (kappa_{n+1} - kappa_n) / kappa_n, 1 - kappa_{n+1})    0 in the first `begin` of the
# steps
#     r = (kappa_{n+1} - (1 - sigma) kappa_n) / (1 - kappa_n)
#
# the kernel of `forward_backward` (remask.py) with q for p_n: every coordinate keeps its marginal law, and at
# D = 1, where q = p_n, the sampler is exact. With few evaluations sigma is 1 - kappa_{n+1}, so that a step
# draws all of x_1 and noises it anew; with many it goes to 0 as the steps do, and the law is that of the
# path.
#
# The steps are at kappa_n = 1 - (1 - u^(7/4))^(5/2), u = n / N, dense at both ends. Coins are systematic
# (random.py: toss): what becomes noise lies evenly apart, so that the next evaluation sees a token of data on
# either side of it. The gain of the extrapolation is g = 3/4 (sigma + r), sigma + r the share of the
# coordinates that move: it makes up for what moves together.
#
# Where the denoiser is exact there is nothing to repair, and drawing more tokens at once costs quality:
# `bridge` is better there. Grid, gain and begin were chosen on the shipped countdown model, a text model and
# exact laws, with other seeds than those of the results.


RISE, FALL = 7 / 4, 5 / 2  # exponents of the grid
SHARE = 3 / 4  # of the extrapolation where all coordinates move


@dataclass(frozen=True)
class Renoise(Bridge):
    gain: float | None = option(
        None, "share of the extrapolation; none: three quarters of the share of coordinates that move"
    )
    eta: float = option(1.0, "how much is taken back, relative to how long a step is; 0 is nothing")
    begin: float = option(0.25, "share of the evaluations before which no token becomes noise again")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.eta < torch.inf,
            f"eta must be a number of at least 0, got {self.eta}; 0 takes nothing back, 1 as the path does",
        )
        require(
            0 <= self.begin <= 1,
            f"begin is a share of the evaluations, from 0 to 1, got {self.begin}; 0 takes tokens back all "
            "the time",
        )

    def plan(self, process: Process, free: int, nfe: int) -> Grid:
        refuse_too_long(nfe)
        u = torch.arange(nfe + 1, dtype=torch.float64) / nfe
        tau = -FALL * torch.log1p(-(u**RISE))
        return Grid(process.t_from_clock(tau), tau)

    def chances(self, plan: Grid, n: int) -> tuple[float, float]:
        """Return sigma and r of step n."""
        left, after = torch.exp(-plan.tau[n : n + 2]).tolist()  # 1 - kappa
        taking = n > 0 and n / plan.steps >= self.begin
        sigma = min(after, self.eta * (left - after) / (1 - left)) if taking else 0.0
        return sigma, made_up(left, after, sigma)

    def gain_of(self, grid: Grid, n: int) -> float:
        return SHARE * sum(self.chances(grid, n)) if self.gain is None else self.gain

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        x, movable = state.x, problem.movable(state.x)
        sigma, chance = self.chances(plan, n)
        back = tossed_back(problem, x, sigma, self.coins, generator)
        chosen = toss(movable, chance / (1 - sigma), self.coins, generator, problem.walk)
        chosen = chosen[~back.flatten()[chosen]]  # taken back overrides
        if state.visit and self.gain != 0:
            state = State(x, state.visit.kept(chosen))
        visit = problem.visit(x, plan.t[n])
        result = x.clone().flatten()
        for index in chunks(chosen, problem.process.num_tokens):
            rows = self.rows(problem, state, visit, plan, n, index)
            result[index] = problem.drawing.tokens(rows, index, generator)
        x_next = taken_back(problem, result.view_as(x), back, generator)
        moved = (x_next != x).sum().item() / max(1, int(movable.sum()))
        return State(x_next, visit), StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), moved)
