"""Ground truth for tests: laws that can be enumerated, with their exact posteriors.

Shapes: B sequences, D coordinates, V data tokens, V^D sequences of the enumerated space.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from tauflow.schedules import Schedule
from tauflow.sources import Masked, Source
from tauflow.tasks.countdown import transition_matrix


def evidence(x: Tensor, t: Tensor, source: Source, schedule: Schedule) -> Tensor:
    """p(x_t^d | x_1^d = s) up to a factor that does not depend on s, float64 (B, D, V)."""
    same = x[:, :, None] == torch.arange(source.num_tokens)
    if isinstance(source, Masked):
        return (same | (x == source.mask_id)[:, :, None]).double()
    kappa = schedule.kappa(t.double())[:, None, None]
    return kappa * same + (1 - kappa) / source.num_tokens


@dataclass(frozen=True)
class EnumerableLaw:
    """A data law over all V^D sequences; `posterior` is the exact denoiser."""

    probabilities: Tensor  # (V^D,) float64
    num_tokens: int
    length: int

    @classmethod
    def random(cls, num_tokens: int, length: int, spread: float, seed: int = 0) -> "EnumerableLaw":
        """Log-probabilities are normal with the given spread: the larger it is, the more the coordinates depend on each other."""
        generator = torch.Generator().manual_seed(seed)
        logits = spread * torch.randn(num_tokens**length, generator=generator, dtype=torch.float64)
        return cls(logits.softmax(0), num_tokens, length)

    @property
    def sequences(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(self.num_tokens), repeat=self.length)))  # (V^D, D)

    @property
    def entropy(self) -> float:
        """Nats per coordinate."""
        return -(self.probabilities * self.probabilities.log()).sum().item() / self.length

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        return self.sequences[torch.multinomial(self.probabilities, count, replacement=True, generator=generator)]

    def posterior(self, x: Tensor, t: Tensor, source: Source, schedule: Schedule) -> Tensor:
        """p(x_1^d = s | x_t = x), float64 (B, D, V)."""
        likelihood = evidence(x, t, source, schedule)  # (B, D, V)
        by_token = torch.nn.functional.one_hot(self.sequences, self.num_tokens).double()  # (V^D, D, V)
        joint = self.probabilities * torch.einsum("bdv,ndv->bnd", likelihood, by_token).prod(-1)  # (B, V^D)
        weights = torch.einsum("bn,ndv->bdv", joint, by_token)
        return weights / weights.sum(-1, keepdim=True)


def countdown_posterior(x: Tensor, t: Tensor, source: Source, schedule: Schedule) -> Tensor:
    """The exact denoiser of the countdown chain by forward-backward, float64 (B, D, V)."""
    likelihood, transition = evidence(x, t, source, schedule), transition_matrix(source.num_tokens)
    forward, backward = likelihood.clone(), torch.ones_like(likelihood)
    forward[:, 0] /= forward[:, 0].sum(-1, keepdim=True)
    for d in range(1, x.shape[1]):
        forward[:, d] *= forward[:, d - 1] @ transition
        forward[:, d] /= forward[:, d].sum(-1, keepdim=True)
    for d in reversed(range(x.shape[1] - 1)):
        backward[:, d] = (backward[:, d + 1] * likelihood[:, d + 1]) @ transition.T
        backward[:, d] /= backward[:, d].sum(-1, keepdim=True)
    weights = forward * backward
    return weights / weights.sum(-1, keepdim=True)
