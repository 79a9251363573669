"""Process: all that depends on the kind of noise; the noise of a batch, and the times it is looked at.

Shapes: B sequences, D coordinates, V data tokens, R rows. Noise is drawn apart from the data, so that it can
be a pure function of a seed and a step.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from tauflow.errors import SettingsError
from tauflow.numerics import precise
from tauflow.process.schedules import Schedule, schedule_from
from tauflow.process.sources import Codebook, Source

LossOn = Literal["corrupted", "all"]


@dataclass(frozen=True)
class Noise(ABC):
    """Abstract: everything random about corrupting a batch; `rows` takes a part of it."""

    t: Tensor  # (B,)

    @abstractmethod
    def corrupt(self, x_1: Tensor) -> Tensor:
        """Return x_t (B, D) of data x_1 (B, D)."""

    @abstractmethod
    def redrawn(self, x_1: Tensor, x_t: Tensor) -> Tensor:
        """Return which coordinates (B, D) of the x_t that data x_1 became are noise."""

    def rows(self, index: Tensor) -> Self:
        return self._each(lambda part: part[index])

    def to(self, device: torch.device) -> Self:
        return self._each(lambda part: part.to(device))

    def joined(self, others: Sequence[Self]) -> Self:
        """Return this noise and that of more sequences as one."""
        parts = {name: [part] for name, part in self._parts.items()}
        for other in others:
            for name, part in other._parts.items():
                parts[name].append(part)
        return dataclasses.replace(self, **{name: torch.cat(each) for name, each in parts.items()})

    @property
    def _parts(self) -> dict[str, Tensor]:
        named = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {name: part for name, part in named.items() if isinstance(part, Tensor)}

    def _each(self, function: Callable[[Tensor], Tensor]) -> Self:
        return dataclasses.replace(self, **{name: function(part) for name, part in self._parts.items()})


@dataclass(frozen=True)
class Redrawn(Noise):
    """Coordinates that are redrawn from the source, whatever the data is, and as what."""

    corrupted: Tensor  # (B, D) bool: redrawn, perhaps as the token that was there
    x_0: Tensor  # (B, D)

    def corrupt(self, x_1: Tensor) -> Tensor:
        return torch.where(self.corrupted, self.x_0, x_1)

    def redrawn(self, x_1: Tensor, x_t: Tensor) -> Tensor:
        return self.corrupted


class Process(ABC):
    """Abstract: a path from noise at t = 0 to data at t = 1, and its jumps given a posterior of the data.

    Use `Mixture`, the path of discrete flow matching, or `Metric`. Subclass it only for a new kind of path.
    `process.loss` is the training loss, and `process.corrupt` draws x_t.

    Jumps are counted on the process's own clock: a time, zero at t = 0, on which the intensities are bounded
    by `mass` before any posterior row is read. 1 - exp(-clock) is the share of the way that is done: kappa of
    a mixture, and what plays its part (grids, cutoffs, the bound) for any other process.

    Examples:
        >>> import tauflow, torch
        >>> process = tauflow.Mixture(tauflow.Masked(5), "linear")
        >>> x_t, redrawn = process.corrupt(torch.zeros(2, 8).long(), torch.tensor([0.0, 0.5]))
        >>> x_t[0].tolist()  # all masks at t = 0
        [5, 5, 5, 5, 5, 5, 5, 5]
    """

    num_tokens: int  # V
    num_states: int  # S: how many states the network must embed
    name: str  # what kind of noise it is, in messages and results
    recommended: str  # the sampler `auto` of a model that has learned nothing
    loss_on: LossOn  # on which coordinates the cross-entropy is taken
    redraws: bool = True  # whether its noise is `Redrawn`: it says, apart from the data, where
    bound_cutoff: float  # 1 - share where the bound ends with a draw from the posterior
    absorbing: bool  # whether a coordinate moves once, from a mask
    channels: int  # tokens that a movable coordinate can jump to

    # Time

    @abstractmethod
    def clock(self, t: Tensor) -> Tensor:
        """Return the clock at times t; infinite at t = 1."""

    @abstractmethod
    def t_from_clock(self, clock: Tensor) -> Tensor:
        """Invert `clock`."""

    @abstractmethod
    def rate_factor(self, t: float) -> float:
        """Return d clock / dt."""

    @abstractmethod
    def t_from_share(self, share: Tensor) -> Tensor:
        """Return the times at which this share of the way is done."""

    def bound_times(self, kappa: Tensor) -> tuple[Tensor, Tensor]:
        """Return times for the bound, of numbers spread evenly over [0, 1 - cutoff), and d clock per number.

        By default they are shares of the way, where d clock = d share / (1 - share).
        """
        return self.t_from_share(kappa), (1 - self.bound_cutoff) / (1 - kappa)

    # States

    @abstractmethod
    def start(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Draw x_0 of the given shape, int64, on the generator's device."""

    @abstractmethod
    def start_distribution(self) -> Tensor:
        """Return the distribution of a coordinate of x_0, float64 (S,)."""

    @abstractmethod
    def distribution_at(self, t: float) -> Tensor:
        """Return the distribution of a coordinate of x_t for each data token, float64 (V, S)."""

    @abstractmethod
    def noise(self, t: Tensor, length: int, generator: torch.Generator | None = None) -> Noise:
        """Draw noise for sequences of the given length at the times t (B,)."""

    def corrupt(
        self, x_1: Tensor, t: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw x_t (B, D) from data x_1 (B, D) at times t (B,); also say which coordinates were redrawn."""
        noise = self.noise(t, x_1.shape[1], generator)
        x_t = noise.corrupt(x_1)
        return x_t, noise.redrawn(x_1, x_t)

    @abstractmethod
    def movable(self, x: Tensor) -> Tensor:
        """Return which coordinates of x (B, D) may still jump."""

    @abstractmethod
    def masks(self, x: Tensor) -> Tensor:
        """Return which coordinates of x (B, D) carry no data token."""

    # Jumps

    @abstractmethod
    def mass(self, t: float) -> float:
        """Return a bound on the sum of the intensities of a coordinate at t, per unit of the clock."""

    @abstractmethod
    def intensity(self, rows: Tensor, tokens: Tensor, t: float) -> Tensor:
        """Return intensities (R, V) of jumps from tokens (R,) at t, on the clock; may overwrite rows."""

    def toward(self, x_1: Tensor, tokens: Tensor, t: float) -> Tensor:
        """Return intensities (R, V) of jumps from tokens (R,) at t where x_1 (R,) is known, on the clock."""
        known = torch.nn.functional.one_hot(x_1, self.num_tokens).to(precise(x_1.device))
        return self.intensity(known, tokens, t)

    @abstractmethod
    def only_jumps(self, intensity: Tensor, tokens: Tensor) -> Tensor:
        """Set to 0, in place, the intensities (R, V) of what is no jump from the tokens (R,)."""

    def discarded(self, rows: Tensor) -> float:
        """Return the share of the mass of posterior rows (R, V) that `intensity` does not look at."""
        return 0.0

    @abstractmethod
    def kernel(self, rows: Tensor, tokens: Tensor, clock: float, clock_next: float) -> Tensor:
        """Return probabilities (R, S) at clock_next from tokens (R,) at clock, x_1 drawn from rows (R, V)."""

    @abstractmethod
    def reach(self, clock: float, clock_next: float) -> float:
        """Return a bound on the probability that a coordinate moves between two values of the clock."""

    @abstractmethod
    def follow(
        self, tokens: Tensor, x_1: Tensor, clock: float, clock_next: float, generator: torch.Generator
    ) -> Tensor:
        """Draw tokens (R,) at clock_next on the way to x_1 (R,), given that a coin of `reach` chose them."""

    @abstractmethod
    def evidence(self, x: Tensor, t: Tensor) -> Tensor:
        """Return p(x_t^d | x_1^d = s) up to a factor without s, float64 (B, D, V)."""

    # Training

    def loss(
        self,
        network: Callable[..., Tensor],
        x_1: Tensor,
        generator: torch.Generator | None = None,
        condition: Tensor | None = None,
        loss_on: LossOn | None = None,
    ) -> Tensor:
        """Return the training loss of a batch: the mean of -ln p(x_1 | x_t) at stratified times.

        Use it in your own training loop. `DFMModule` minimizes the same loss.

        Args:
            network: maps states x_t (B, D), times t (B,), and the condition, if there is one, to logits
                (B, D, V). A `tauflow.Network` runs its head only where the loss is taken.
            x_1: data tokens (B, D), or in the shape of a sample (B, ...).
            generator: draws times and noise, on its own device.
            condition: what the items are, (B, C).
            loss_on: coordinates that count: corrupted, or all; by default what suits the source.

        Returns:
            A scalar to call `backward()` on.

        Examples:
            >>> import torch
            >>> process = tauflow.Mixture(tauflow.Masked(5), "linear")
            >>> network = tauflow.networks.TransformerConfig(width=16, heads=2).build((8,), 6, 5)
            >>> x_1 = torch.randint(5, (4, 8))
            >>> loss = process.loss(network, x_1, torch.Generator().manual_seed(0))
            >>> loss.backward()
            >>> round(loss.item(), 3)  # ln 5, before any training
            1.609
        """
        x_1 = x_1.flatten(1)
        noise = self.noise(stratified_times(len(x_1), generator), x_1.shape[1], generator).to(x_1.device)
        losses = self.losses(network, x_1, noise, condition, loss_on)
        return losses.sum() / max(1, len(losses))

    def losses(
        self,
        network: Callable[..., Tensor],
        x_1: Tensor,
        noise: Noise,
        condition: Tensor | None = None,
        loss_on: LossOn | None = None,
    ) -> Tensor:
        """Return -ln p(x_1 | x_t) (R,) of the coordinates that count, under the given noise."""
        inputs = [noise.corrupt(x_1), noise.t] + ([] if condition is None else [condition])
        # A tauflow.Network has a head apart: it runs on the rows that count.
        rows = network.hidden(*inputs) if hasattr(network, "hidden") else network(*inputs)
        rows, x_1 = rows.flatten(0, 1), x_1.flatten()
        if (loss_on or self.loss_on) == "corrupted":
            assert isinstance(noise, Redrawn)
            counted = noise.corrupted.flatten().nonzero().squeeze(1)  # (R,)
            rows, x_1 = rows[counted], x_1[counted]
        if hasattr(network, "nll"):
            return network.nll(rows, x_1)
        logits = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return torch.nn.functional.cross_entropy(logits, x_1, reduction="none")

    @abstractmethod
    def bound(self, logits: Tensor, x_t: Tensor, x_1: Tensor, t: Tensor) -> Tensor:
        """Return the integrand (R,) of the bound on -ln p(x_1) at times t (R,), per unit of the clock."""


def stratified_times(count: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw a time in each of `count` equal strata of [0, 1), with one shared offset."""
    offset = torch.rand((), generator=generator, dtype=torch.float32)
    return (torch.arange(count, dtype=torch.float32) + offset).div(count).clamp(max=1 - 2**-24)


def spread_kappas(index: Tensor) -> Tensor:
    """Return kappa in [0, 1) for item numbers, in float64: for every k the first 2^k items fill 2^k strata.

    A scrambled Sobol sequence with a fixed scramble: any leading part of a validation set is spread evenly.
    """
    sobol = torch.quasirandom.SobolEngine(dimension=1, scramble=True, seed=0)
    return sobol.draw(int(index.max()) + 1, dtype=torch.float64).squeeze(1)[index]


# The mixture path of discrete flow matching.
#
#     p_t(x^d | x_1^d) = kappa(t) 1{x^d = x_1^d} + (1 - kappa(t)) p_src(x^d)
#
# Its clock is tau = -ln(1 - kappa) (Eq. 10). In tau the rate of a jump to s is the posterior p(s | x)
# itself (Eq. 12), so the intensities of a coordinate sum to at most 1 whatever the source is.


HALF = (torch.float16, torch.bfloat16)
FACTS = (
    *("num_tokens", "num_states", "name", "recommended"),
    *("loss_on", "bound_cutoff", "absorbing", "channels"),
)
"""What a mixture has from its source."""


def check_distribution(source: Source) -> None:
    """Raise unless a source has a probability for each state, above 0 where coordinates may come back."""
    distribution = source.distribution
    fits = tuple(distribution.shape) == (source.num_states,) and abs(distribution.sum().item() - 1) <= 1e-6
    if not fits or not bool((distribution >= 0 if source.absorbing else distribution > 0).all()):
        raise SettingsError(
            f"The distribution of {source.name} must be {source.num_states} probabilities with the sum 1, "
            f"above 0 unless it's a mask, got {distribution.tolist()[:8]}."
        )


@dataclass(frozen=True, init=False)
class Mixture(Process):
    """The path of discrete flow matching: a token is its data token with probability kappa(t), else noise.

    Use it for nearly every model. It must be the one that the model was trained with; the schedule can be
    changed later with `model.with_schedule`.

    Args:
        source: distribution of the noise, such as `Masked(V)` or `Uniform(V)`.
        schedule: kappa(t), a name from `SCHEDULES` or a `Schedule`.

    Returns:
        A process, which `tauflow.Model` takes.

    Examples:
        >>> import tauflow
        >>> process = tauflow.Mixture(tauflow.Masked(32), "quadratic")
        >>> print(process)
        masked source, quadratic
        >>> process.num_tokens, process.num_states
        (32, 33)
    """

    source: Source
    schedule: Schedule

    def __init__(self, source: Source, schedule: Schedule | str):
        if not isinstance(source, Source):
            raise SettingsError(
                f"source must be tauflow.Masked(V), tauflow.Uniform(V) or the like, got {source!r}"
            )
        if isinstance(source, Codebook):
            raise SettingsError("a codebook has a path of its own, no mixture: tauflow.Metric(codebook)")
        check_distribution(source)
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

    def start_distribution(self) -> Tensor:
        return self.source.distribution

    def distribution_at(self, t: float) -> Tensor:
        kappa = self.schedule.kappa(t)
        kept = torch.eye(self.num_tokens, self.num_states, dtype=torch.float64)
        return kappa * kept + (1 - kappa) * self.source.distribution

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
        return 1 + kappa * self.source.inverse_probability(x) / (1 - kappa)
