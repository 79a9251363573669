"""Renoise, for sources with a law over data tokens: bridge steps that also take tokens back to noise.

A trained denoiser draws wrong tokens now and then, and a wrong token that does not move again misleads all
later steps. So a step from kappa_n to kappa_{n+1} takes tokens back with probability sigma, and draws as many
more. With pi the law of the source and q the extrapolated row of `bridge` (bridge.py),

    P(y) = sigma pi(y) + r q(y) + (1 - sigma - r) 1{y = x}
    sigma = min(eta (kappa_{n+1} - kappa_n) / kappa_n, 1 - kappa_{n+1})    0 in the first `begin` of the steps
    r = (kappa_{n+1} - (1 - sigma) kappa_n) / (1 - kappa_n)

the kernel of `forward_backward` (remask.py) with q for p_n: every coordinate keeps its marginal law, and at
D = 1, where q = p_n, the sampler is exact. With few evaluations sigma is 1 - kappa_{n+1}, so that a step
draws all of x_1 and noises it anew; with many it goes to 0 as the steps do, and the law is that of the path.

The steps are at kappa_n = 1 - (1 - u^(7/4))^(5/2), u = n / N, dense at both ends. Coins are systematic
(draws.py::toss): what becomes noise lies evenly apart, so that the next evaluation sees a token of data on
either side of it. The gain of the extrapolation is g = 3/4 (sigma + r), sigma + r the share of the
coordinates that move: it makes up for what moves together.

Where the denoiser is exact there is nothing to repair, and drawing more tokens at once costs quality:
`bridge` is better there. Grid, gain and begin were chosen on the shipped countdown model, a text model and
exact laws, with other seeds than those of the results.
"""

from dataclasses import dataclass

import torch

from tauflow.process import Process
from tauflow.samplers.base import Problem, State, StepInfo, option, require
from tauflow.samplers.bridge import Bridge
from tauflow.samplers.draws import chunks, toss
from tauflow.samplers.grids import Grid, refuse_too_long
from tauflow.samplers.remask import made_up, taken_back, tossed_back

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
