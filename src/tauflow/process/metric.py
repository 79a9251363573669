"""Distances between the codes of a codebook, and their distributions p(x) = softmax_x(-beta d(x, y)).

Shapes: V codes, E numbers of a vector, R rows. A table of all distances is kept for small codebooks alone;
else rows of it are made of the vectors, a few megabytes at a time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from tauflow.errors import SamplingError, SettingsError
from tauflow.numerics import precise
from tauflow.process.process import FACTS, Noise, Process
from tauflow.process.schedules import Schedule, schedule_from
from tauflow.process.sources import Codebook

SMALL = 256  # codes up to which all distances are kept
ENTRIES = 2**20  # distances that are held at a time
MAX_BETA = 1e30  # beta that stands for infinity: the distribution is the code itself
SAMPLED = 64  # codes of a large codebook that beta_0 is estimated from


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes with vectors of length 1; the distance of two is (2 - 2 cos)^2."""

    directions: Tensor  # (V, E) float64

    def __len__(self) -> int:
        return len(self.directions)

    @cached_property
    def table(self) -> Tensor:
        """Return all distances, float64 (V, V)."""
        return self._made(torch.arange(len(self)), torch.float64)

    @cached_property
    def largest(self) -> float:
        """Return a bound on all distances: the largest of a small codebook, 16 for any."""
        return self.table.max().item() if len(self) <= SMALL else 16.0

    def distances(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the distances (R, V) of codes (R,) to all."""
        if len(self) > SMALL:
            return self._made(codes, dtype)
        return self._table(codes.device, dtype).index_select(0, codes)

    def between(self, first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the distances (R,) of codes (R,) from others (R,)."""
        if len(self) <= SMALL:
            return self._table(first.device, dtype)[first, second]
        vectors = self._vectors(first.device, dtype)
        apart = (2 - 2 * (vectors[first] * vectors[second]).sum(-1)).square_()
        return apart.masked_fill_(first == second, 0)

    def _made(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        vectors = self._vectors(codes.device, dtype)
        cosines = vectors.index_select(0, codes) @ vectors.T
        return cosines.mul_(-2).add_(2).square_().scatter_(1, codes[:, None], 0)

    @cached_property
    def _cast(self) -> dict[tuple[str, torch.device, torch.dtype], Tensor]:
        """Return an empty dictionary, which keeps the vectors and the table by device and type."""
        return {}

    def _vectors(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        key = "vectors", device, dtype
        if key not in self._cast:
            self._cast[key] = self.directions.to(device, dtype)
        return self._cast[key]

    def _table(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        key = "table", device, dtype
        if key not in self._cast:
            self._cast[key] = self.table.to(device, dtype)
        return self._cast[key]

    def distribution(self, codes: Tensor, beta: Tensor) -> Tensor:
        """Return softmax_x(-beta d(x, y)) (R, V) of codes y (R,), at beta (R, 1) or for all of them ()."""
        return distribution_at(self.distances(codes, beta.dtype), beta)

    def log_partition(self, beta: Tensor) -> Tensor:
        """Return ln sum_x exp(-beta d(x, y)) (V,) of all codes y, at one beta ()."""
        every = torch.arange(len(self), device=beta.device)
        parts = [(self.distances(own, beta.dtype) * -beta).logsumexp(-1) for own in self.parted(every)]
        return torch.cat(parts)

    def draw(self, codes: Tensor, beta: Tensor, coins: Tensor) -> Tensor:
        """Draw tokens (R,) given codes (R,) at beta (R,) by inverse CDF, from coins (R,)."""
        parts = [
            _at_quantile(self.distribution(own, when[:, None]), coin)
            for own, when, coin in zip(*(self.parted(each) for each in (codes, beta, coins)), strict=True)
        ]
        return torch.cat(parts) if parts else codes

    def parted(self, rows: Tensor, width: int = 1) -> Sequence[Tensor]:
        """Split rows (R, ...) so that `width` times V distances of each row take a few megabytes."""
        return rows.split(max(1, ENTRIES // (len(self) * width))) if len(rows) else ()

    def origin(self) -> float:
        """Return beta_0 = C / H(0), so that jumps of the path are spread evenly over ln(1 + beta / beta_0).

        H(beta) is the rate of jumps on the path per unit of beta, E max(0, d(x, y) - d(x', y)) over codes y
        and independent x, x' of its distribution. Where the number of codes within a distance grows like a
        power of it, beta H(beta) is a constant C; here C is the largest value on a grid of beta (ratio
        sqrt 2, from 0.01 to 10^4). The mean is over all codes y of a small codebook, else over SAMPLED,
        evenly apart.
        """
        count = len(self) if len(self) <= SMALL else SAMPLED
        some = torch.arange(count) * len(self) // count
        near = self.distances(some, torch.float64).sort(-1).values
        betas = [0.01 * 2 ** (n / 2) for n in range(41)]
        return max(beta * _hazard(near, beta) for beta in betas) / _hazard(near, 0.0)


def distribution_at(near: Tensor, beta: Tensor) -> Tensor:
    """Return softmax(-beta d) (R, V) of distances (R, V), at beta (R, 1) or for all of them ()."""
    return (near * -beta.clamp(max=MAX_BETA)).softmax(-1)


def _hazard(near: Tensor, beta: float) -> float:
    """Return E max(0, d - d') over the distributions at beta of distances (R, V), which are sorted."""
    distribution = (near * -beta).softmax(-1)
    mass, moment = (
        distribution.cumsum(-1),
        (distribution * near).cumsum(-1),
    )  # of what is no farther; ties count 0
    return (distribution * (near * mass - moment)).sum(-1).mean().item()


def _at_quantile(distribution: Tensor, coins: Tensor) -> Tensor:
    """Return tokens (R,) where the distributions (R, V) reach the coins (R,)."""
    total = distribution.cumsum(-1, dtype=precise(distribution.device))
    found = torch.searchsorted(total, (coins.to(total.dtype) * total[:, -1])[:, None], right=True)
    return found.squeeze(1).clamp_(max=distribution.shape[-1] - 1)


# The chain of a coordinate on the metric path towards a known x_1: its distribution, and draws of it.
#
# From z it jumps to s with the rate p(s) max(0, d(z, x_1) - d(s, x_1)) per unit of beta, where p is the
# distribution of x_1 at beta: it only ever comes closer. Shapes: V codes, R rows.


EXACT = 1e-10  # largest change of a probability when the steps of a chain are halved


def chain_distributions(codes: Codes, beta: float, beta_next: float, origin: float) -> Tensor:
    """Return the distributions (V, V, V) of [x_1, z, y]: at y at beta_next from z at beta, on the way to x_1.

    Fourth-order Magnus steps on ln(1 + beta / origin), twice as many until no probability changes by EXACT.
    """
    begin, end = (math.log1p(each / origin) for each in (beta, beta_next))
    table, own = codes.table, torch.arange(len(codes))
    downhill = (table[:, :, None] - table[:, None, :]).relu_()  # [x_1, z, y]

    def generator(clock: float) -> Tensor:
        now = torch.tensor(origin * math.expm1(clock), dtype=torch.float64)
        rates = (now + origin) * codes.distribution(own, now)[:, None, :] * downhill
        rates.diagonal(dim1=1, dim2=2).sub_(rates.sum(-1))
        return rates

    def chain(steps: int) -> Tensor:
        h, distribution = (end - begin) / steps, torch.eye(len(codes), dtype=torch.float64)
        for step in range(steps):
            middle = begin + (step + 0.5) * h
            first, last = generator(middle - h * 3**0.5 / 6), generator(middle + h * 3**0.5 / 6)
            commutator = first @ last - last @ first
            distribution = distribution @ torch.linalg.matrix_exp(
                h / 2 * (first + last) + h**2 * 3**0.5 / 12 * commutator
            )
        return distribution

    steps, before = 2, chain(1)
    while ((distributions := chain(steps)) - before).abs().max() > EXACT:
        steps, before = 2 * steps, distributions
    return distributions


def thinned(
    codes: Codes, tokens: Tensor, x_1: Tensor, betas: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """Draw tokens (R,) at the last of two betas from those at the first, on the way to x_1 (R,)."""
    dtype = precise(tokens.device)

    def coins(count: int) -> Tensor:
        device = generator.device
        return torch.rand(count, generator=generator, dtype=dtype, device=device).to(tokens.device)

    result = tokens.clone()
    live = torch.arange(len(tokens), device=tokens.device)
    beta = torch.full(tokens.shape, betas[0], dtype=dtype, device=tokens.device)  # of the last candidate
    while len(live):
        here = codes.between(result[live], x_1[live], dtype)
        beta[live] -= torch.log1p(-coins(len(live))) / here  # infinite where x_1 is reached
        comes = beta[live] < betas[1]
        live, here = live[comes], here[comes]
        candidates = codes.draw(x_1[live], beta[live], coins(len(live)))
        closer = here - codes.between(candidates, x_1[live], dtype)
        jumps = coins(len(live)) * here < closer
        result[live[jumps]] = candidates[jumps]
    return result


# The metric path: from uniform codes to those of the data, through codes that are ever closer to them.
#
#     p_t(x^d | x_1^d) = softmax_x(-beta_t d(x^d, x_1^d)),    d(x, y) = (2 - 2 cos)^2 of the codes' vectors
#
# with beta = kappa / (1 - kappa), the odds of the schedule (`Beta` is FUDOKI's). Its rates are the
# kinetic-optimal ones: given x_1, a coordinate jumps from z only to codes s that are closer to x_1,
#
#     u(s, z | x_1) = p_t(s | x_1) max(0, d(z, x_1) - d(s, x_1))    per unit of beta.
#
# On the path jumps come at a rate of about C / beta, so its clock is ln(1 + beta / beta_0): they are spread
# evenly over it, and 1 - exp(-clock) = beta / (beta + beta_0) is the share of the way that is done. On the
# clock the intensity of a jump to s is (beta + beta_0) sum_{x_1} p(x_1 | x) u(s, z | x_1).
#
# Shapes: B sequences, D coordinates, V data tokens, E numbers of a vector, R rows, K codes of each.


KEPT = 64  # codes of a posterior that rates look at, where the codebook is large


@dataclass(frozen=True)
class MetricNoise(Noise):
    """Coins, which choose x_t by the distribution of each data token."""

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
    """A path on which tokens come closer to the data in a metric: p_t(x | x_1) = softmax(-beta_t d(x, x_1)).

    Use it for tokens with vectors, such as colors or image codes. FUDOKI is trained with this path.

    Args:
        codebook: a `Codebook`, or vectors (V, E), one per data token.
        schedule: a name from `SCHEDULES` or a `Schedule`. Its odds kappa / (1 - kappa) are beta_t.
        top: how many codes of a posterior the rates use. The most likely ones then get all of its mass, and
            steps log the mass that was discarded. None is all of up to 256 codes, and 64 of more.

    Returns:
        A process, which `tauflow.Model` takes.

    Examples:
        >>> import tauflow, torch
        >>> process = tauflow.Metric(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]))
        >>> print(process)
        metric source, beta
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

    def start_distribution(self) -> Tensor:
        return self.codebook.distribution

    def distribution_at(self, t: float) -> Tensor:
        beta = torch.tensor(self.schedule.odds(t), dtype=torch.float64)
        return self.codes.distribution(torch.arange(self.num_tokens), beta)

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
        distribution = distribution_at(near, near.new_tensor(beta))
        return (near.gather(1, tokens[:, None]) - near).relu_().mul_(distribution)

    def _rates(self, rows: Tensor, tokens: Tensor, beta: float) -> Tensor:
        """Return sum_{x_1} rows u(s, z | x_1) (R, V) per unit of beta."""
        result = torch.zeros_like(rows)
        groups = list(_by_value(tokens))
        for codes in self.codes.parted(torch.arange(self.num_tokens, device=rows.device)):  # x_1, (K,)
            near = self.codes.distances(codes, rows.dtype)  # (K, V)
            distribution = distribution_at(near, near.new_tensor(beta))
            for token, places in groups:
                rates = (near[:, token, None] - near).relu_().mul_(distribution)
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
            distribution = distribution_at(near, near.new_tensor(beta))
            here = near.gather(1, token.repeat_interleave(self.top)[:, None])
            rates = (here - near).relu_().mul_(distribution).unflatten(0, own.shape)  # (r, K, V)
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
                f"the exact distribution of a step takes V^3 numbers for V = {self.num_tokens} codes; "
                f"ask for it on a codebook of up to {SMALL}, or sample with tweedie"
            )
        dtype = precise(rows.device)
        distributions = chain_distributions(
            self.codes, self.beta_at(clock), self.beta_at(clock_next), self.beta_0
        )
        distributions = distributions.to(rows.device, dtype)
        result = torch.zeros(rows.shape, dtype=dtype, device=rows.device)
        for token, places in _by_value(tokens):
            result[places] = rows[places].to(dtype) @ distributions[:, token]
        return result

    def reach(self, clock: float, clock_next: float) -> float:
        return 1.0

    def follow(
        self, tokens: Tensor, x_1: Tensor, clock: float, clock_next: float, generator: torch.Generator
    ) -> Tensor:
        """Draw the chain on the way to x_1 by thinning.

        From z candidates come at the rate d(z, x_1) per unit of beta. One at beta is drawn from the
        distribution of x_1 there, and is a jump with the probability max(0, 1 - d(s, x_1) / d(z, x_1)).
        """
        return thinned(self.codes, tokens, x_1, (self.beta_at(clock), self.beta_at(clock_next)), generator)

    def evidence(self, x: Tensor, t: Tensor) -> Tensor:
        odds = self.schedule.odds(t.to(precise(x.device)))
        result = odds.new_zeros(*x.shape, self.num_tokens)
        for beta, places in _by_value(odds.clamp(max=MAX_BETA)):
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
