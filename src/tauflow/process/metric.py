"""The metric path: from uniform codes to those of the data, through codes that are ever closer to them.

    p_t(x^d | x_1^d) = softmax_x(-beta_t d(x^d, x_1^d)),    d(x, y) = (2 - 2 cos)^2 of the codes' vectors

with beta = kappa / (1 - kappa), the odds of the schedule (`Beta` is FUDOKI's). Its rates are the
kinetic-optimal ones: given x_1, a coordinate jumps from z only to codes s that are closer to x_1,

    u(s, z | x_1) = p_t(s | x_1) max(0, d(z, x_1) - d(s, x_1))    per unit of beta.

On the path jumps come at a rate of about C / beta, so its clock is ln(1 + beta / beta_0): they are spread
evenly over it, and 1 - exp(-clock) = beta / (beta + beta_0) is the share of the way that is done. On the
clock the intensity of a jump to s is (beta + beta_0) sum_{x_1} p(x_1 | x) u(s, z | x_1).

Shapes: B sequences, D coordinates, V data tokens, E numbers of a vector, R rows, K codes of each.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tauflow.devices import precise
from tauflow.errors import SamplingError, SettingsError
from tauflow.process.chains import chain_laws, thinned
from tauflow.process.codes import LARGEST, SMALL, Codes, law_at
from tauflow.process.mixture import FACTS
from tauflow.process.noise import Noise, Process
from tauflow.process.schedules import Schedule, schedule_from
from tauflow.process.sources import Codebook

KEPT = 64  # codes of a posterior that rates look at, where the codebook is large


@dataclass(frozen=True)
class MetricNoise(Noise):
    """Coins, which choose x_t by the law of each data token."""

    coins: Tensor  # (B, D) in [0, 1)
    process: "Metric"

    def corrupt(self, x_1: Tensor) -> Tensor:
        beta = self.process.schedule.odds(self.t)[:, None].expand(x_1.shape)
        tokens = self.process.codes.draw(x_1.flatten(), beta.flatten(), self.coins.flatten())
        return tokens.view_as(x_1)

    def redrawn(self, x_1: Tensor, x_t: Tensor) -> Tensor:
        return x_t != x_1


@dataclass(frozen=True, init=False)
class Metric(Process):
    """A codebook and a schedule, whose odds are beta.

    Args:
        codebook: a Codebook, or vectors (V, E), one for each data token.
        schedule: a schedule or its name.
        top: how many codes of a posterior the rates look at, its largest ones, which then have all of its
            mass; None: all of up to 256 codes, 64 of more. Steps log the mass that is discarded.
    """

    codebook: Codebook
    schedule: Schedule
    top: int | None
    codes: Codes = field(init=False, compare=False, repr=False)
    beta_0: float = field(init=False, compare=False, repr=False)

    redraws = False

    def __init__(
        self, codebook: Codebook | Tensor, schedule: Schedule | str = "beta", top: int | None = None
    ):
        source = codebook if isinstance(codebook, Codebook) else Codebook(codebook)
        kept = KEPT if top is None else top
        if kept < 1:
            raise SettingsError(f"top must be at least 1, or None, got {top!r}")
        cuts = kept < source.num_tokens and (top is not None or source.num_tokens > SMALL)
        codes = Codes(source.directions)
        values = {
            "codebook": source,
            "schedule": schedule_from(schedule),
            "top": kept if cuts else None,
            "codes": codes,
            "beta_0": codes.origin(),
        }
        for name, value in (values | {fact: getattr(source, fact) for fact in FACTS}).items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return f"{self.name} source, {self.schedule.name}" + (f", top {self.top}" if self.top else "")

    def clock(self, t: Tensor) -> Tensor:
        return torch.log1p(self.schedule.odds(t) / self.beta_0)

    def t_from_clock(self, clock: Tensor) -> Tensor:
        return self.schedule.t_from_odds(self.beta_0 * torch.expm1(clock))

    def rate_factor(self, t: float) -> float:
        """Return d clock / dt; an infinite one at t = 0 is taken for 0, as in FUDOKI: nothing moves then."""
        kappa, survival = self.schedule.kappa(t), self.schedule.survival(t)
        rate = self.schedule.rate_factor(t) / (kappa + self.beta_0 * survival)
        return 0.0 if t == 0 and rate == math.inf else rate

    def t_from_share(self, share: Tensor) -> Tensor:
        return self.t_from_clock(-torch.log1p(-share))

    def bound_times(self, kappa: Tensor) -> tuple[Tensor, Tensor]:
        """Return times that are spread evenly over the clock, as the jumps are."""
        last = -math.log(self.bound_cutoff)
        return self.t_from_clock(kappa / (1 - self.bound_cutoff) * last), torch.full_like(kappa, last)

    def start(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        return self.codebook.sample(shape, generator)

    def start_law(self) -> Tensor:
        return self.codebook.law

    def law_at(self, t: float) -> Tensor:
        beta = torch.tensor(self.schedule.odds(t), dtype=torch.float64)
        return self.codes.law(torch.arange(self.num_tokens), beta)

    def noise(self, t: Tensor, length: int, generator: torch.Generator | None = None) -> MetricNoise:
        coins = torch.rand((len(t), length), generator=generator, dtype=t.dtype, device=t.device)
        return MetricNoise(t, coins, self)

    def movable(self, x: Tensor) -> Tensor:
        return self.codebook.movable(x)

    def masks(self, x: Tensor) -> Tensor:
        return self.codebook.masks(x)

    def mass(self, t: float) -> float:
        return (self.schedule.odds(t) + self.beta_0) * self.codes.largest

    def intensity(self, rows: Tensor, tokens: Tensor, t: float) -> Tensor:
        beta = self.schedule.odds(t)
        rates = self._rates(rows, tokens, beta) if self.top is None else self._top_rates(rows, tokens, beta)
        return rates.mul_(beta + self.beta_0)

    def toward(self, x_1: Tensor, tokens: Tensor, t: float) -> Tensor:
        beta = self.schedule.odds(t)
        return self._toward(x_1, tokens, beta).mul_(beta + self.beta_0)

    def _toward(self, x_1: Tensor, tokens: Tensor, beta: float) -> Tensor:
        """Return u(s, z | x_1) (R, V) per unit of beta."""
        near = self.codes.distances(x_1, precise(x_1.device))
        law = law_at(near, near.new_tensor(beta))
        return (near.gather(1, tokens[:, None]) - near).relu_().mul_(law)

    def _rates(self, rows: Tensor, tokens: Tensor, beta: float) -> Tensor:
        """Return sum_{x_1} rows u(s, z | x_1) (R, V) per unit of beta."""
        result = torch.zeros_like(rows)
        groups = list(_by_value(tokens))
        for codes in self.codes.parted(torch.arange(self.num_tokens, device=rows.device)):  # x_1, (K,)
            near = self.codes.distances(codes, rows.dtype)  # (K, V)
            law = law_at(near, near.new_tensor(beta))
            for token, places in groups:
                rates = (near[:, token, None] - near).relu_().mul_(law)
                result[places] += rows[places][:, codes] @ rates
        return result

    def _top_rates(self, rows: Tensor, tokens: Tensor, beta: float) -> Tensor:
        """Return the same for rows without all but their K largest entries."""
        assert self.top is not None
        codes = rows.abs().topk(self.top).indices  # (R, K); rows may have a negative coefficient
        kept = rows.gather(1, codes)
        kept = kept * (rows.sum(1) / kept.sum(1)).nan_to_num()[:, None]
        parts = []
        split = (self.codes.parted(each, self.top) for each in (codes, kept, tokens))
        for own, weights, token in zip(*split, strict=True):
            near = self.codes.distances(own.flatten(), rows.dtype)
            law = law_at(near, near.new_tensor(beta))
            here = near.gather(1, token.repeat_interleave(self.top)[:, None])
            rates = (here - near).relu_().mul_(law).unflatten(0, own.shape)  # (r, K, V)
            parts.append(torch.einsum("rk,rkv->rv", weights, rates))
        return torch.cat(parts) if parts else rows

    def discarded(self, rows: Tensor) -> float:
        if self.top is None or not len(rows):
            return 0.0
        return 1 - (rows.topk(self.top).values.sum() / rows.sum()).item()

    def only_jumps(self, intensity: Tensor, tokens: Tensor) -> Tensor:
        return self.codebook.only_jumps(intensity, tokens)

    def beta_at(self, clock: float) -> float:
        """Return beta where the clock shows this."""
        return self.beta_0 * math.expm1(clock)

    def kernel(self, rows: Tensor, tokens: Tensor, clock: float, clock_next: float) -> Tensor:
        if self.num_tokens > SMALL:
            raise SamplingError(
                f"the exact law of a step takes V^3 numbers for V = {self.num_tokens} codes; ask for it on a "
                f"codebook of up to {SMALL}, or sample with tweedie"
            )
        dtype = precise(rows.device)
        laws = chain_laws(self.codes, self.beta_at(clock), self.beta_at(clock_next), self.beta_0)
        laws = laws.to(rows.device, dtype)
        result = torch.zeros(rows.shape, dtype=dtype, device=rows.device)
        for token, places in _by_value(tokens):
            result[places] = rows[places].to(dtype) @ laws[:, token]
        return result

    def reach(self, clock: float, clock_next: float) -> float:
        return 1.0

    def follow(
        self, tokens: Tensor, x_1: Tensor, clock: float, clock_next: float, generator: torch.Generator
    ) -> Tensor:
        """Draw the chain on the way to x_1 by thinning.

        From z candidates come at the rate d(z, x_1) per unit of beta. One at beta is drawn from the law of
        x_1 there, and is a jump with the probability max(0, 1 - d(s, x_1) / d(z, x_1)).
        """
        return thinned(self.codes, tokens, x_1, (self.beta_at(clock), self.beta_at(clock_next)), generator)

    def evidence(self, x: Tensor, t: Tensor) -> Tensor:
        odds = self.schedule.odds(t.to(precise(x.device)))
        result = odds.new_zeros(*x.shape, self.num_tokens)
        for beta, places in _by_value(odds.clamp(max=LARGEST)):
            near = self.codes.distances(x[places].flatten(), odds.dtype).unflatten(0, (-1, x.shape[1]))
            result[places] = -beta * near - self.codes.log_partition(beta)
        return (result - result.amax(-1, keepdim=True)).exp_()

    def bound(self, logits: Tensor, x_t: Tensor, x_1: Tensor, t: Tensor) -> Tensor:
        """Return the generalized KL of the conditional rates from the model's, of each row, on the clock.

        sum_s [ u ln(u / v) - u + v ] with the rates u given x_1 and their mean v over the posterior.
        """
        posterior = logits.to(precise(logits.device)).softmax(-1)
        result = posterior.new_zeros(len(x_t))
        for when, places in _by_value(t):
            beta = self.schedule.odds(when.item())
            v = self._rates(posterior[places], x_t[places], beta)
            u = self._toward(x_1[places], x_t[places], beta)
            terms = torch.xlogy(u, u) - torch.xlogy(u, v) - u + v
            result[places] = terms.sum(-1) * (beta + self.beta_0)
        return result


def _by_value(values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Return each value () of a tensor (R,), and the places where it is."""
    found, counts = values.unique(return_counts=True)
    yield from zip(found, values.argsort().split(counts.tolist()), strict=True)
