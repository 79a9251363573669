"""Remask: samplers that take tokens back to the source and draw them again.

A reveal is final, so what a denoiser has drawn wrong stays wrong, and more than D evaluations are of no use
from masks. Here a step from kappa_t = kappa_n to kappa_s = kappa_{n+1} takes tokens back with probability
sigma and draws as many more, so that every coordinate keeps its marginal law:

    r = (kappa_s - (1 - sigma) kappa_t) / (1 - kappa_t)
    masks    a token becomes a mask with probability sigma, a mask is drawn from its row p with probability r
    noise    P(y) = sigma pi(y) + r p(y) + (1 - sigma - r) 1{y = x}, pi the law of the source

With sigma = 0 both are `tweedie`. From masks this is ReMDM (Wang et al. 2025). It is the kernel of
Psi-samplers (Deschenaux et al. 2026) as well, which follow the path with probability psi, and else draw
x_1 and noise it to kappa_s: psi = 1 - sigma / (1 - kappa_s). The last step has kappa_s = 1 and draws all
that is left.

    rule       sigma, at most m = min(1, (1 - kappa_s) / kappa_t) from masks, m = 1 - kappa_s from noise
    cap        eta                                  `remdm_cap`
    rescale    eta m                                `remdm_rescale`
    forward    eta (kappa_s - kappa_t) / kappa_t    `forward_backward`: the noising of the path itself
    psi        eta (1 - kappa_s)                    `psi`: a constant psi = 1 - eta

`begin` and `end` are shares of the evaluations between which tokens are taken back. With `hold`, kappa stays
at that value meanwhile: t rises evenly to it before, and from it to 1 afterwards (`remdm_loop`).

The law is kept as far as few coordinates that depend on each other are drawn in one step. `forward` takes
back as much as the steps are long, and converges as `tweedie` does. A fixed eta takes back as many in every
step, however short the steps are: the error of that goes away slowly from masks, as sigma does towards the
end of the path, and stays from noise and where kappa is held. Systematic coins (random.py: toss) choose what
is taken back, and what is drawn, evenly apart: each coordinate with the same probability, but neighbours
rarely together.

A step that begins without any mask needs no evaluation: its coins are tossed at the end of the step before.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.process import Mixture, Process
from tauflow.samplers.grids import Grid, make_grid, refuse_too_long
from tauflow.samplers.random import CoinName, draw, places_of, toss
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, fixed, option, require

BackName = Literal["cap", "rescale", "forward", "psi"]


@dataclass(frozen=True)
class RemaskState(State):
    _: KW_ONLY
    done: int = 0  # steps of the plan that are made


@dataclass(frozen=True)
class Remask(Sampler[Grid, RemaskState]):
    rule: BackName = fixed("rescale")
    eta: float = option(0.015, "how much is taken back in a step; 0 is nothing")
    begin: float = option(0.0, "share of the evaluations before which nothing is taken back")
    end: float = option(1.0, "share of the evaluations from which on nothing is taken back")
    hold: float | None = option(None, "kappa that is held from begin to end; none: it keeps rising")
    grid: Literal["t", "early"] = option("t", "where the steps are: equally long in t, or dense early")
    coins: CoinName = option("independent", "whether neighbours may move together as often as others")

    def __post_init__(self) -> None:
        super().__post_init__()
        most = math.inf if self.rule == "forward" else 1.0
        require(
            0 <= self.eta <= most and self.eta < math.inf,
            f"eta must be a number from 0 to {most:g}, got {self.eta}; 0 takes nothing back, 0.02 a little",
        )
        require(
            0 <= self.begin <= self.end <= 1,
            f"begin and end are shares of the evaluations, 0 <= begin <= end <= 1, got {self.begin} and "
            f"{self.end}; begin=0 and end=1 take tokens back all the time",
        )
        require(
            self.hold is None or (0 < self.hold < 1 and self.begin > 0 and self.end < 1),
            f"hold={self.hold} is a kappa between 0 and 1, with evaluations before begin and after end; try "
            "hold=0.9, begin=0.45, end=0.95",
        )
        require(
            self.hold is None or self.grid == "t",
            f"hold has a grid of its own, with even steps in t before and after; drop grid={self.grid}",
        )

    def refuses(self, model: Model) -> str:
        if isinstance(model.process, Mixture):
            return ""
        return (
            f"remasking takes tokens back to the source of a mixture, this model has a {model.process.name} "
            "path; try tr_cie(grid=tau)"
        )

    @property
    def keeps(self) -> bool:
        return True

    @property
    def no_likelihood(self) -> str:
        return (
            "remasking draws a token several times, so the path of tokens that data takes is not all of its "
            "probability; use a sampler that reveals once, such as spaced_even"
        )

    def plan(self, process: Process, free: int, nfe: int) -> Grid:
        refuse_too_long(nfe)
        if self.hold is None:
            return make_grid(self.grid, nfe, process, cutoff=0.0, draws=False)
        u = torch.arange(nfe + 1, dtype=torch.float64) / nfe
        held = process.t_from_share(torch.tensor(self.hold, dtype=torch.float64))
        rise, last = (u / self.begin).clamp(max=1), ((u - self.end) / (1 - self.end)).clamp(0, 1)
        t = (held * rise + (1 - held) * last).clamp(max=1)
        return Grid(t, process.clock(t))

    def init(self, problem: Problem, x_0: Tensor, plan: Grid, generator: torch.Generator) -> RemaskState:
        return RemaskState(x_0)

    def chances(self, process: Process, plan: Grid, n: int) -> tuple[float, float]:
        """Return sigma and r of step n."""
        left, after = torch.exp(-plan.tau[n : n + 2]).tolist()  # 1 - kappa
        now = 1 - left
        most = min(1.0, after / now) if process.absorbing and now else after
        wanted = {
            "cap": self.eta,
            "rescale": self.eta * most,
            "forward": self.eta * (left - after) / now if now else 0.0,
            "psi": self.eta * after,
        }
        within = self.begin <= n / plan.steps < self.end
        sigma = min(most, wanted[self.rule]) if within else 0.0
        return sigma, made_up(left, after, sigma)

    def step(
        self, problem: Problem, state: RemaskState, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[RemaskState, StepInfo]:
        x, process, done = state.x, problem.process, state.done
        sigma, chance = self.chances(process, plan, done)
        back = tossed_back(problem, x, sigma, self.coins, generator)
        if not process.absorbing:
            chance /= 1 - sigma  # of those that are not taken back, which overrides
        chosen = toss(problem.movable(x), chance, self.coins, generator, problem.walk)
        visit = problem.visit(x, plan.t[done])
        result = x.clone().flatten()
        result[chosen] = draw(visit.evaluation, chosen, process.num_tokens, generator, problem.drawing)
        x_next = taken_back(problem, result.view_as(x), back, generator)
        done += 1
        while done < plan.steps and not problem.movable(x_next).any():  # nothing to evaluate for
            sigma = self.chances(process, plan, done)[0]
            back = tossed_back(problem, x_next, sigma, self.coins, generator)
            x_next = taken_back(problem, x_next, back, generator)
            done += 1
        moved = (x_next != x).sum().item() / max(1, int(free(problem, x).sum()))
        info = StepInfo(n, plan.t[state.done].item(), plan.t[done].item(), moved)
        return RemaskState(x_next, visit, done=done), info


def made_up(left: float, after: float, sigma: float) -> float:
    """Return r, with which tokens are drawn where sigma are taken back; 1 - kappa falls to `after`."""
    return min(1.0, (left - after + sigma * (1 - left)) / left)


def tossed_back(
    problem: Problem, x: Tensor, sigma: float, coins: CoinName, generator: torch.Generator
) -> Tensor:
    """Return which coordinates (B, D) are taken back, of those that carry a token."""
    holders = free(problem, x) & ~problem.process.masks(x)
    back = torch.zeros_like(holders).flatten()
    back[toss(holders, sigma, coins, generator, problem.walk)] = True
    return back.view_as(x)


def free(problem: Problem, x: Tensor) -> Tensor:
    """Return which coordinates (B, D) are no prompt, whether they carry a token or not."""
    return torch.ones_like(x, dtype=torch.bool) if problem.frozen is None else ~problem.frozen


def taken_back(problem: Problem, x: Tensor, back: Tensor, generator: torch.Generator) -> Tensor:
    """Return states x (B, D) whose coordinates back (B, D) are draws from the source."""
    places, result = places_of(back), x.clone().flatten()
    result[places] = problem.process.start((len(places),), generator).to(x.device)
    return result.view_as(x)
