"""Remask: samplers that take tokens back to the source and draw them again.

A reveal is final, so what a denoiser has drawn wrong stays wrong, and more than D evaluations are of no use
on a masked source. Here a step from kappa_t = kappa_n to kappa_s = kappa_{n+1} takes tokens back with
probability sigma and draws as many more, so that every coordinate keeps its marginal distribution:

    r = (kappa_s - (1 - sigma) kappa_t) / (1 - kappa_t)
    masks    a token becomes a mask with probability sigma, a mask is drawn from its row p with probability r
    noise    P(y) = sigma pi(y) + r p(y) + (1 - sigma - r) 1{y = x}, pi the distribution of the source

With sigma = 0 both are `tweedie`. On masks this is ReMDM (Wang et al. 2025). It is the kernel of Psi-samplers
(Deschenaux et al. 2026) as well, which follow the path with probability psi, and else draw x_1 and noise it
to kappa_s: psi = 1 - sigma / (1 - kappa_s). The last step has kappa_s = 1 and draws all that is left.

    rule       sigma, at most m = min(1, (1 - kappa_s) / kappa_t) on masks, m = 1 - kappa_s on noise
    cap        eta                                  `remdm_cap`
    rescale    eta m                                `remdm_rescale`
    forward    eta (kappa_s - kappa_t) / kappa_t    `forward_backward`: the noising of the path itself
    psi        eta (1 - kappa_s)                    `psi`: a constant psi = 1 - eta

`begin` and `end` are shares of the evaluations between which tokens are taken back. With `hold`, kappa stays
at that value meanwhile: t rises evenly to it before, and from it to 1 afterwards (`remdm_loop`).

The distribution is kept as far as few coordinates that depend on each other are drawn in one step. `forward`
takes back as much as the steps are long, and converges as `tweedie` does. A fixed eta takes back as many in
every step, however short the steps are: the error of that goes away slowly on masks, as sigma does towards
the end of the path, and stays on noise and where kappa is held. Systematic coins (random.py) choose what is
taken back, and what is drawn, evenly apart: each coordinate with the same probability, but neighbors rarely
together.

A step that starts without any mask needs no evaluation: its coins are tossed at the end of the step before.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.process import Mixture, Process
from tauflow.samplers.grids import Grid, check_steps, make_grid
from tauflow.samplers.random import CoinName, index_of, sample_coins
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, check, fixed, option

BackName = Literal["cap", "rescale", "forward", "psi"]


@dataclass(frozen=True)
class RemaskState(State):
    _: KW_ONLY
    done: int = 0  # steps of the plan that are made


@dataclass(frozen=True)
class Remask(Sampler[Grid, RemaskState]):
    rule: BackName = fixed("rescale")
    eta: float = option(0.015, "how much is taken back in a step; 0 is nothing", low=0)
    begin: float = option(0.0, "share of the evaluations before which nothing is taken back", low=0, high=1)
    end: float = option(1.0, "share of the evaluations from which on nothing is taken back", low=0, high=1)
    hold: float | None = option(
        None, "kappa that is held from begin to end; none: it keeps rising", above=0, below=1
    )
    grid: Literal["t", "early"] = option("t", "where the steps are: equally long in t, or dense early")
    coins: CoinName = option("independent", "whether neighbors may move together as often as others")

    clones_history = True
    no_likelihood = (
        "remasking draws a token several times, so the path of tokens that data takes is not all of its "
        "probability; use a sampler that reveals once, such as spaced_even"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.eta <= 1 or self.rule == "forward",
            f"eta must be a number from 0 to 1, got {self.eta}; 0 takes nothing back, 0.02 a little",
        )
        check(
            self.begin <= self.end,
            f"begin and end are shares of the evaluations, 0 <= begin <= end <= 1, got {self.begin} and "
            f"{self.end}; begin=0 and end=1 take tokens back all the time",
        )
        check(
            self.hold is None or (self.begin > 0 and self.end < 1),
            f"hold={self.hold} is a kappa between 0 and 1, with evaluations before begin and after end; try "
            "hold=0.9, begin=0.45, end=0.95",
        )
        check(
            self.hold is None or self.grid == "t",
            f"hold has a grid of its own, with even steps in t before and after; drop grid={self.grid}",
        )

    def unsupported_reason(self, model: Model) -> str:
        if isinstance(model.process, Mixture):
            return ""
        return (
            f"remasking takes tokens back to the source of a mixture, this model has a {model.process.name} "
            "path; try tr_cie(grid=tau)"
        )

    def plan(self, process: Process, free: int, nfe: int) -> Grid:
        check_steps(nfe)
        if self.hold is None:
            return make_grid(self.grid, nfe, process, cutoff=0.0, draws=False)
        u = torch.arange(nfe + 1, dtype=torch.float64) / nfe
        held = process.t_from_share(torch.tensor(self.hold, dtype=torch.float64))
        rise, last = (u / self.begin).clamp(max=1), ((u - self.end) / (1 - self.end)).clamp(0, 1)
        t = (held * rise + (1 - held) * last).clamp(max=1)
        return Grid(t, process.clock(t))

    def init(self, problem: Problem, x_0: Tensor, plan: Grid, generator: torch.Generator) -> RemaskState:
        return RemaskState(x_0)

    def probabilities(self, process: Process, plan: Grid, n: int) -> tuple[float, float]:
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
        return sigma, draw_probability(left, after, sigma)

    def step(
        self, problem: Problem, state: RemaskState, plan: Grid, n: int, generator: torch.Generator
    ) -> tuple[RemaskState, StepInfo]:
        process, done = problem.process, state.done
        sigma, r = self.probabilities(process, plan, done)
        noised = choose_noised(problem, state.x, sigma, self.coins, generator)
        if not process.absorbing:
            r /= 1 - sigma  # of those that aren't taken back, which overrides
        index = sample_coins(problem.movable(state.x), r, generator, self.coins, problem.curve)
        posterior = problem.evaluate(state.x, plan.t[done])
        x = state.x.clone()
        x.view(-1)[index] = problem.draw_from(posterior, index, generator)
        x = noise_again(problem, x, noised, generator)
        done += 1
        while done < plan.steps and not problem.movable(x).any():  # nothing to evaluate for
            sigma, _ = self.probabilities(process, plan, done)
            noised = choose_noised(problem, x, sigma, self.coins, generator)
            x = noise_again(problem, x, noised, generator)
            done += 1
        moved = (x != state.x).sum().item() / max(1, int(free(problem, x).sum()))
        info = StepInfo(n, plan.t[state.done].item(), plan.t[done].item(), moved)
        return RemaskState(x, posterior, done=done), info


def draw_probability(left: float, after: float, sigma: float) -> float:
    """Return r, which makes up for the tokens taken back with probability sigma.

    1 - kappa is `left` before the step and `after` it.
    """
    return min(1.0, (left - after + sigma * (1 - left)) / left)


def choose_noised(
    problem: Problem, x: Tensor, sigma: float, coins: CoinName, generator: torch.Generator
) -> Tensor:
    """Choose coordinates (B, D) that become noise again, of those that carry a token."""
    holders = free(problem, x) & ~problem.process.masks(x)
    noised = torch.zeros_like(holders).flatten()
    noised[sample_coins(holders, sigma, generator, coins, problem.curve)] = True
    return noised.view_as(x)


def noise_again(problem: Problem, x: Tensor, noised: Tensor, generator: torch.Generator) -> Tensor:
    """Return states x (B, D) whose coordinates `noised` (B, D) are new draws from the source."""
    index = index_of(noised)
    result = x.clone()
    result.view(-1)[index] = problem.process.start((len(index),), generator).to(x.device)
    return result


def free(problem: Problem, x: Tensor) -> Tensor:
    """Return which coordinates (B, D) aren't known, whether they carry a token or not."""
    return torch.ones_like(x, dtype=torch.bool) if problem.known is None else ~problem.known
