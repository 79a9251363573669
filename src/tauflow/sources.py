"""Sources: where the probability path starts at t = 0, and which coordinates may move.

V is the number of data tokens, S the number of states a coordinate can be in (the mask is a state, never a data token).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Source(ABC):
    num_tokens: int  # V

    def __post_init__(self):
        if self.num_tokens < 2:
            raise ValueError(f"a source needs at least 2 data tokens, got {self.num_tokens}: there is nothing to learn with one")

    @property
    @abstractmethod
    def num_states(self) -> int:
        """S: how many states the network must embed."""

    @abstractmethod
    def sample(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """x_0 of the given shape, int64, on the generator's device."""

    @abstractmethod
    def movable(self, x: Tensor) -> Tensor:
        """Which coordinates of x (B, D) may still jump; a jump never goes to the mask nor to the token already there."""


class Masked(Source):
    """x_0 is all mask; `mask_id` = V. A coordinate that has left the mask never moves again (carry-over)."""

    @property
    def mask_id(self) -> int:
        return self.num_tokens

    @property
    def num_states(self) -> int:
        return self.num_tokens + 1

    def sample(self, shape, generator=None):
        return torch.full(shape, self.mask_id, device=generator.device if generator else None)

    def movable(self, x):
        return x == self.mask_id


class Uniform(Source):
    """x_0 is uniform over the data tokens; every coordinate may move at any time."""

    @property
    def num_states(self) -> int:
        return self.num_tokens

    def sample(self, shape, generator=None):
        return torch.randint(self.num_tokens, shape, generator=generator, device=generator.device if generator else None)

    def movable(self, x):
        return torch.ones_like(x, dtype=torch.bool)


SOURCES = {"masked": Masked, "uniform": Uniform}


def source_from(name: str, num_tokens: int) -> Source:
    if name not in SOURCES:
        raise ValueError(f"unknown source {name!r}; known sources: {', '.join(SOURCES)}")
    return SOURCES[name](num_tokens)
