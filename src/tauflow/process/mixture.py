"""The mixture path of discrete flow matching.

    p_t(x^d | x_1^d) = kappa(t) 1{x^d = x_1^d} + (1 - kappa(t)) p_src(x^d)

Its clock is tau = -ln(1 - kappa) (Eq. tau_def). In tau the rate of a jump to s is the posterior p(s | x)
itself (Eq. cancel), so the intensities of a coordinate sum to at most 1 whatever the source is.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.errors import SettingsError
from tauflow.process.noise import Process, Redrawn
from tauflow.process.schedules import Schedule, schedule_from
from tauflow.process.sources import Codebook, Source

HALF = (torch.float16, torch.bfloat16)
FACTS = (
    *("num_tokens", "num_states", "name", "recommended"),
    *("loss_on", "bound_cutoff", "absorbing", "channels"),
)
"""What a mixture has from its source."""


def refuse_bad_law(source: Source) -> None:
    """Raise unless the law of a source is one over its states, above 0 where coordinates may come back."""
    law = source.law
    fits = tuple(law.shape) == (source.num_states,) and abs(law.sum().item() - 1) <= 1e-6
    if not fits or not bool((law >= 0 if source.absorbing else law > 0).all()):
        raise SettingsError(
            f"The distribution of {source.name} must be {source.num_states} probabilities with the sum 1, "
            f"above 0 unless it's a mask, got {law.tolist()[:8]}."
        )


@dataclass(frozen=True, init=False)
class Mixture(Process):
    """A source and a schedule, which may be given by name: `Mixture(Masked(32), "quadratic")`."""

    source: Source
    schedule: Schedule

    def __init__(self, source: Source, schedule: Schedule | str):
        if not isinstance(source, Source):
            raise SettingsError(
                f"source must be tauflow.Masked(V), tauflow.Uniform(V) or the like, got {source!r}"
            )
        if isinstance(source, Codebook):
            raise SettingsError("a codebook has a path of its own, no mixture: tauflow.Metric(codebook)")
        refuse_bad_law(source)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "schedule", schedule_from(schedule))
        for fact in FACTS:
            object.__setattr__(self, fact, getattr(source, fact))

    def __str__(self) -> str:
        return f"{self.name} source, {self.schedule.name}"

    def clock(self, t: Tensor) -> Tensor:
        return self.schedule.tau(t)

    def t_from_clock(self, clock: Tensor) -> Tensor:
        return self.schedule.t_from_tau(clock)

    def rate_factor(self, t: float) -> float:
        return self.schedule.rate_factor(t)

    def t_from_share(self, share: Tensor) -> Tensor:
        return self.schedule.t_from_kappa(share)

    def start(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        return self.source.sample(shape, generator)

    def start_law(self) -> Tensor:
        return self.source.law

    def law_at(self, t: float) -> Tensor:
        kappa = self.schedule.kappa(t)
        kept = torch.eye(self.num_tokens, self.num_states, dtype=torch.float64)
        return kappa * kept + (1 - kappa) * self.source.law

    def noise(self, t: Tensor, length: int, generator: torch.Generator | None = None) -> Redrawn:
        shape = (len(t), length)
        coins = torch.rand(shape, generator=generator, dtype=t.dtype, device=t.device)
        corrupted = coins >= self.schedule.kappa(t)[:, None]
        return Redrawn(t, corrupted, self.source.sample(shape, generator).to(t.device))

    def movable(self, x: Tensor) -> Tensor:
        return self.source.movable(x)

    def masks(self, x: Tensor) -> Tensor:
        return self.source.masks(x)

    def mass(self, t: float) -> float:
        return 1.0

    def intensity(self, rows: Tensor, tokens: Tensor, t: float) -> Tensor:
        return self.source.only_jumps(rows, tokens)

    def only_jumps(self, intensity: Tensor, tokens: Tensor) -> Tensor:
        return self.source.only_jumps(intensity, tokens)

    def kernel(self, rows: Tensor, tokens: Tensor, clock: float, clock_next: float) -> Tensor:
        """Return P(y) = (1 - rho) 1{y = x} + rho p(y) where x may move, rho = 1 - exp(-dtau)."""
        rho = self.reach(clock, clock_next) * self.movable(tokens)[:, None].double()
        stay = torch.nn.functional.one_hot(tokens, self.num_states).double()
        padded = torch.nn.functional.pad(rows.double(), (0, self.num_states - self.num_tokens))
        return (1 - rho) * stay + rho * padded

    def reach(self, clock: float, clock_next: float) -> float:
        return -math.expm1(clock - clock_next)

    def follow(
        self, tokens: Tensor, x_1: Tensor, clock: float, clock_next: float, generator: torch.Generator
    ) -> Tensor:
        return x_1

    def evidence(self, x: Tensor, t: Tensor) -> Tensor:
        return self.source.seen(x, self.schedule.kappa(t.double())[:, None, None])

    def bound(self, logits: Tensor, x_t: Tensor, x_1: Tensor, t: Tensor) -> Tensor:
        """Return the generalized KL of the conditional rates from the model's, of each row, per unit of tau.

        With conditional rate 1{s = x_1} and model rate p(s) to every s != x_t, the divergence sum_s [ u ln(u
        / v) - u + v ] is 1 - p(x_t) - 1{x_1 != x_t} (1 + ln p(x_1)). Integrated over tau and averaged over
        the path it bounds -ln p(x_1) from above; on a mask, where p(x_t) = 0, it is the cross-entropy.
        """
        logits = logits.float() if logits.dtype in HALF else logits
        total = logits.logsumexp(-1)  # (R,)
        is_token = x_t < logits.shape[-1]  # false on the mask
        p_stay = (logits.gather(1, (x_t * is_token)[:, None]).squeeze(1) - total).exp() * is_token
        log_p_1 = logits.gather(1, x_1[:, None]).squeeze(1) - total
        return 1 - p_stay - (x_t != x_1) * (1 + log_p_1)

    def own_odds(self, x: Tensor, t: float) -> Tensor | float:
        """Return p(x_t | x_1 = x_t) / p(x_t | x_1 != x_t) = 1 + kappa / ((1 - kappa) p_src(x)), as x."""
        kappa = self.schedule.kappa(t)
        return 1 + kappa * self.source.inverse_law(x) / (1 - kappa)
