"""Bridge and renoise, for sources with a distribution over data tokens (uniform, marginal).

**Bridge** takes one evaluation per step and is second order up to the data, where coordinates depend little
on each other. With kappa_n on the early grid (grids.py), rho = (kappa_{n+1} - kappa_n) / (1 - kappa_n) and q
an extrapolated row, a step is

    P(y) = (1 - rho) 1{y = x} + rho q(y)

the kernel of `tweedie` with q for p_n. The last step has rho = 1: it is the final draw. The row of the step
before was made for another own token and another kappa; with c_n(s; x) = kappa_n 1{s = x} + (1 - kappa_n)
pi(x), pi the distribution of the source, it is re-expressed for those of now,

    h(s) ~ p_{n-1}(s) c_n(s; x_n) / c_{n-1}(s; x_{n-1}),    q(s) ~ p_n(s) min(p_n(s) / h(s), 10)^w,
    w = g (kappa_{n+1} - kappa_n) / (2 (kappa_n - kappa_{n-1})),   w = 0 in the first step.

So q - p_n is only what *other* coordinates have changed: at D = 1 it is 0, and the sampler exact. What is of
first degree in that change makes the sampler second order; the power also has parts of higher degree, which
leave a small error of first order. Coordinates are candidates with probability rho and only their rows are
read; a candidate that draws its own token stays.

Coins are `independent`, with gain g = 1, or `systematic` (random.py): neighbors rarely move together then,
and a pair that can't move together needs no correction, so g = 1 / (1 + kappa_n)^2, and 1 in the last step,
where all move. The systematic coins choose candidates, before any row is read.

**Renoise** also takes tokens back to noise. A trained denoiser draws wrong tokens now and then, and a wrong
token that doesn't move again misleads all later steps. So a step from kappa_n to kappa_{n+1} takes tokens
back with probability sigma, and draws as many more:

    P(y) = sigma pi(y) + r q(y) + (1 - sigma - r) 1{y = x}
    sigma = min(eta (kappa_{n+1} - kappa_n) / kappa_n, 1 - kappa_{n+1}),  0 in the first `begin` of the steps
    r = (kappa_{n+1} - (1 - sigma) kappa_n) / (1 - kappa_n)

the kernel of `forward_backward` (remask.py) with q for p_n: every coordinate keeps its marginal distribution,
and at D = 1, where q = p_n, the sampler is exact. With few evaluations sigma is 1 - kappa_{n+1}, so that a
step draws all of x_1 and noises it again; with many it goes to 0 as the steps do, and the distribution is
that of the path.

The steps are at kappa_n = 1 - (1 - u^(7/4))^(5/2), u = n / N, dense at both ends. Coins are systematic: what
becomes noise is evenly apart, so that the next evaluation sees a data token on either side of it. The gain of
the extrapolation is g = 3/4 (sigma + r), sigma + r the share of the coordinates that move: it makes up for
what moves together. Where the denoiser is exact there is nothing to repair, and drawing more tokens together
costs quality: `bridge` is better there. Grid, gain, and begin were chosen on the shipped countdown model, a
text model, and exact distributions, with other seeds than those of the results.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.denoise import Model, Posterior
from tauflow.numerics import precise
from tauflow.process import Process
from tauflow.samplers.grids import Grid, check_steps, make_grid
from tauflow.samplers.random import CoinName, chunks, sample_coins
from tauflow.samplers.remask import choose_noised, draw_probability, noise_again
from tauflow.samplers.reveal import MAX_RATIO, TINY
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, option
from tauflow.samplers.tweedie import info_of, mixture, needs_noise

RISE, FALL = 7 / 4, 5 / 2  # exponents of renoise's grid
SHARE = 3 / 4  # of renoise's extrapolation where all coordinates move


@dataclass(frozen=True)
class Bridge(Sampler[Grid, State]):
    coins: CoinName = option("independent", "whether neighbors may move together as often as others")
    gain: float | None = option(
        None, "share of the extrapolation; none: 1, or less where coins are systematic", low=0
    )

    clones_history = True

    def unsupported_reason(self, model: Model) -> str:
        return needs_noise(model, "bridge samplers redraw tokens")

    def plan(self, process: Process, free: int, nfe: int) -> Grid:
        check_steps(nfe)
        return make_grid("early", nfe, process, cutoff=0.0, draws=False)

    def init(self, problem: Problem, x_0: Tensor, plan: Grid, generator: torch.Generator) -> State:
        return State(x_0)

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

    def probs(
        self, problem: Problem, state: State, posterior: Posterior, grid: Grid, n: int, index: Tensor | slice
    ) -> Tensor:
        """Return q of the coordinates index (R,) in step n, (R, V)."""
        probs = posterior.probs(index).to(precise(state.x.device))
        exponent = self.exponent(grid, n)
        if not exponent or state.posterior is None:
            return probs
        history = state.posterior.probs(index).to(probs)
        for at, x, sign in ((n, state.x, 1), (n - 1, state.posterior.x, -1)):
            token = x.flatten()[index][:, None]
            odds = mixture(problem).own_odds(token, grid.t[at].item())  # c(s; x) up to a factor
            history.scatter_(1, token, history.gather(1, token) * odds**sign)
        history.div_(history.sum(-1, keepdim=True)).clamp_(min=TINY)
        ratio = torch.div(probs, history, out=history).clamp_(max=MAX_RATIO)  # in place: rows may be long
        q = probs.mul_(ratio.pow_(exponent))
        return q.div_(q.sum(-1, keepdim=True))

    def redraw(
        self, problem: Problem, state: State, grid: Grid, n: int, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Posterior]:
        """Evaluate, and draw the coordinates index (R,) of state.x from q; return both."""
        if state.posterior and self.gain != 0:
            state = State(state.x, state.posterior.clone(index))
        posterior = problem.evaluate(state.x, grid.t[n])
        x = state.x.clone()
        for part in chunks(index, problem.process.num_tokens):
            # the rows have no name, so that they are freed before the next ones
            x.view(-1)[part] = problem.draw(
                self.probs(problem, state, posterior, grid, n, part), part, generator
            )
        return x, posterior

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        movable = problem.movable(state.x)
        rho = -math.expm1(-plan.dtau(n))
        index = sample_coins(movable, rho, generator, self.coins, problem.curve)
        x, posterior = self.redraw(problem, state, plan, n, index, generator)
        return State(x, posterior), info_of(n, plan, state.x, x, movable)


@dataclass(frozen=True)
class Renoise(Bridge):
    gain: float | None = option(
        None, "share of the extrapolation; none: three quarters of the share of coordinates that move", low=0
    )
    eta: float = option(1.0, "how much is taken back, relative to how long a step is; 0 is nothing", low=0)
    begin: float = option(
        0.25, "share of the evaluations before which no token becomes noise again", low=0, high=1
    )

    def plan(self, process: Process, free: int, nfe: int) -> Grid:
        check_steps(nfe)
        u = torch.arange(nfe + 1, dtype=torch.float64) / nfe
        tau = -FALL * torch.log1p(-(u**RISE))
        return Grid(process.t_from_clock(tau), tau)

    def probabilities(self, plan: Grid, n: int) -> tuple[float, float]:
        """Return sigma and r of step n."""
        left, after = torch.exp(-plan.tau[n : n + 2]).tolist()  # 1 - kappa
        has_begun = n > 0 and n / plan.steps >= self.begin
        sigma = min(after, self.eta * (left - after) / (1 - left)) if has_begun else 0.0
        return sigma, draw_probability(left, after, sigma)

    def gain_of(self, grid: Grid, n: int) -> float:
        return SHARE * sum(self.probabilities(grid, n)) if self.gain is None else self.gain

    def step(
        self, problem: Problem, state: State, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[State, StepInfo]:
        movable = problem.movable(state.x)
        sigma, r = self.probabilities(plan, n)
        noised = choose_noised(problem, state.x, sigma, self.coins, generator)
        index = sample_coins(movable, r / (1 - sigma), generator, self.coins, problem.curve)
        index = index[~noised.flatten()[index]]  # noise overrides
        x, posterior = self.redraw(problem, state, plan, n, index, generator)
        x = noise_again(problem, x, noised, generator)
        return State(x, posterior), info_of(n, plan, state.x, x, movable)
