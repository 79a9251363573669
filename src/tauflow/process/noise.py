"""Process: all that depends on the kind of noise; the noise of a batch, and the times it is looked at.

Shapes: B sequences, D coordinates, V data tokens, R rows. Noise is drawn apart from the data, so that it can
be a pure function of a seed and a step.
"""

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

LossOn = Literal["corrupted", "all"]


class Noise(NamedTuple):
    """Everything random about corrupting a batch; `rows` takes a part of it."""

    t: Tensor  # (B,)
    corrupted: Tensor  # (B, D) bool: redrawn from the source, perhaps as the token that was there
    x_0: Tensor  # (B, D)

    def corrupt(self, x_1: Tensor) -> Tensor:
        return torch.where(self.corrupted, self.x_0, x_1)

    def rows(self, index: Tensor) -> "Noise":
        return Noise(*(part[index] for part in self))

    def to(self, device: torch.device) -> "Noise":
        return Noise(*(part.to(device) for part in self))


class Process(ABC):
    """Abstract: a path from noise at t = 0 to data at t = 1, and its jumps given a posterior of the data.

    Jumps are counted on the process's own clock: a time, zero at t = 0, on which the intensities are bounded
    by `mass` before any posterior row is read.
    """

    num_tokens: int  # V
    num_states: int  # S: how many states the network must embed
    name: str  # what kind of noise it is, in messages and results
    recommended: str  # the sampler `auto`
    mass: float  # bound on the sum of the intensities of a coordinate, per unit of the clock
    loss_on: LossOn  # on which coordinates the cross-entropy is taken
    bound_cutoff: float  # 1 - kappa where the bound ends with a draw from the posterior
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
        """Return the times at which this share of the coordinates carries its data token."""

    # States

    @abstractmethod
    def start(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Draw x_0 of the given shape, int64, on the generator's device."""

    @abstractmethod
    def start_law(self) -> Tensor:
        """Return the law of a coordinate of x_0, float64 (S,)."""

    @abstractmethod
    def noise(self, t: Tensor, length: int, generator: torch.Generator | None = None) -> Noise:
        """Draw noise for sequences of the given length at the times t (B,)."""

    def corrupt(
        self, x_1: Tensor, t: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw x_t (B, D) from data x_1 (B, D) at times t (B,); also say which coordinates were redrawn."""
        noise = self.noise(t, x_1.shape[1], generator)
        return noise.corrupt(x_1), noise.corrupted

    @abstractmethod
    def movable(self, x: Tensor) -> Tensor:
        """Return which coordinates of x (B, D) may still jump."""

    @abstractmethod
    def masks(self, x: Tensor) -> Tensor:
        """Return which coordinates of x (B, D) carry no data token."""

    # Jumps

    @abstractmethod
    def intensity(self, rows: Tensor, tokens: Tensor, t: float) -> Tensor:
        """Return intensities (R, V) of jumps from tokens (R,) at t, on the clock; may overwrite rows."""

    @abstractmethod
    def only_jumps(self, intensity: Tensor, tokens: Tensor) -> Tensor:
        """Set to 0, in place, the intensities (R, V) of what is no jump from the tokens (R,)."""

    @abstractmethod
    def kernel(self, rows: Tensor, tokens: Tensor, step: float) -> Tensor:
        """Return the law (R, S) after a step of the clock from tokens (R,), with frozen rows (R, V)."""

    @abstractmethod
    def evidence(self, x: Tensor, t: Tensor) -> Tensor:
        """Return p(x_t^d | x_1^d = s) up to a factor without s, float64 (B, D, V)."""

    @abstractmethod
    def bound(self, logits: Tensor, x_t: Tensor, x_1: Tensor) -> Tensor:
        """Return the integrand (R,) of the bound on -ln p(x_1), per unit of the clock."""


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
