"""Data laws with an exact denoiser: laws that can be enumerated, and chains that are too long for it.

Shapes: B sequences, D coordinates, V data tokens, H hidden states, V^D sequences of the enumerated space.
"""

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tauflow.denoise import CallableDenoiser, Model
from tauflow.numerics import generator_for
from tauflow.process import Process


@dataclass(frozen=True)
class EnumerableLaw:
    """A data law over all V^D sequences; `posterior` is the exact denoiser."""

    probabilities: Tensor  # (V^D,) float64
    num_tokens: int
    length: int

    @classmethod
    def random(cls, num_tokens: int, length: int, spread: float, seed: int = 0) -> "EnumerableLaw":
        """Draw log-probabilities with a spread: the larger, the more coordinates depend on each other."""
        generator = torch.Generator().manual_seed(seed)
        logits = spread * torch.randn(num_tokens**length, generator=generator, dtype=torch.float64)
        return cls(logits.softmax(0), num_tokens, length)

    @property
    def sequences(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(self.num_tokens), repeat=self.length)))  # (V^D, D)

    @property
    def entropy(self) -> float:
        """Return nats per coordinate."""
        return -(self.probabilities * self.probabilities.log()).sum().item() / self.length

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        rows = torch.multinomial(self.probabilities, count, replacement=True, generator=generator)
        return self.sequences[rows]

    def model(self, process: Process) -> Model:
        """Return the exact denoiser of the law as a model."""
        denoiser = CallableDenoiser(lambda x, t: self.posterior(x, t, process).log(), self.num_tokens)
        return Model(denoiser, process, (self.length,))

    def posterior(self, x: Tensor, t: Tensor, process: Process) -> Tensor:
        """Return p(x_1^d = s | x_t = x), float64 (B, D, V)."""
        likelihood = process.evidence(x, t)  # (B, D, V)
        by_token = torch.nn.functional.one_hot(self.sequences, self.num_tokens).double()  # (V^D, D, V)
        joint = self.probabilities * torch.einsum("bdv,ndv->bnd", likelihood, by_token).prod(-1)  # (B, V^D)
        weights = torch.einsum("bn,ndv->bdv", joint, by_token)
        return weights / weights.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Chain:
    """A hidden Markov law; a Markov chain is one whose emission is the identity."""

    transition: Tensor  # (H, H) float64
    emission: Tensor  # (H, V) float64

    @classmethod
    def markov(cls, values: int, spread: float, seed: int = 0) -> "Chain":
        generator = generator_for("chain", seed)
        rows = spread * torch.randn(values, values, generator=generator, dtype=torch.float64)
        return cls(rows.softmax(-1), torch.eye(values, dtype=torch.float64))

    @classmethod
    def hidden(cls, states: int, values: int, stay: float, spread: float, seed: int = 0) -> "Chain":
        """Return a law whose hidden states last 1 / (1 - stay) tokens each: a longer range."""
        transition = stay * torch.eye(states, dtype=torch.float64) + (1 - stay) / states
        generator = generator_for("hidden chain", seed)
        rows = spread * torch.randn(states, values, generator=generator, dtype=torch.float64)
        return cls(transition, rows.softmax(-1))

    @classmethod
    def fitted(cls, counts: Tensor, smoothing: float) -> "Chain":
        """Return the Markov chain of counted transitions (V, V), mixed with a share of the law of tokens.

        So every transition is possible, and the posterior exists wherever a sampler may go.
        """
        counts = counts.double()
        law = counts.sum(0) / counts.sum()  # of what follows
        rows = torch.where(counts.sum(1, keepdim=True) > 0, counts, law)  # nothing ever followed this token
        rows = rows / rows.sum(1, keepdim=True)
        return cls((1 - smoothing) * rows + smoothing * law, torch.eye(len(counts), dtype=torch.float64))

    @cached_property
    def start(self) -> Tensor:
        """Return the law of hidden states that the chain leaves unchanged, (H,)."""
        return torch.linalg.matrix_power(self.transition, 2**12)[0]

    def sample(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        state = torch.multinomial(self.start, count, replacement=True, generator=generator)
        tokens = []
        for _ in range(length):
            tokens.append(torch.multinomial(self.emission[state], 1, generator=generator).squeeze(1))
            state = torch.multinomial(self.transition[state], 1, generator=generator).squeeze(1)
        return torch.stack(tokens, 1)

    def filter(self, likelihood: Tensor) -> tuple[Tensor, Tensor]:
        """Return forward messages (B, D, H) and the log-likelihood (B,) of evidence on hidden states."""
        forward, total = likelihood.clone(), torch.zeros(len(likelihood), dtype=torch.float64)
        for d in range(likelihood.shape[1]):
            forward[:, d] *= forward[:, d - 1] @ self.transition if d else self.start
            norm = forward[:, d].sum(-1, keepdim=True)
            forward[:, d] /= norm
            total += norm.squeeze(1).log()
        return forward, total

    def posterior(self, x: Tensor, t: Tensor, process: Process) -> Tensor:
        """Return p(x_1^d = s | x), float64 (B, D, V)."""
        seen = process.evidence(x, t)  # (B, D, V)
        likelihood = seen @ self.emission.T  # (B, D, H)
        forward, _ = self.filter(likelihood)
        backward = torch.ones_like(likelihood)
        for d in reversed(range(x.shape[1] - 1)):
            backward[:, d] = (backward[:, d + 1] * likelihood[:, d + 1]) @ self.transition.T
            backward[:, d] /= backward[:, d].sum(-1, keepdim=True)
        others = forward * backward / likelihood.clamp(min=1e-300)  # of all but the own token
        weights = (others @ self.emission) * seen
        return weights / weights.sum(-1, keepdim=True)

    def nll(self, tokens: Tensor) -> Tensor:
        """Return nats per token (B,)."""
        _, total = self.filter(self.emission.T[tokens])
        return -total / tokens.shape[1]


def transition_counts(tokens: Tensor, num_tokens: int) -> Tensor:
    """Count the transitions of sequences (B, D) of data tokens, (V, V)."""
    pairs = tokens[:, :-1] * num_tokens + tokens[:, 1:]
    return torch.bincount(pairs.flatten(), minlength=num_tokens**2).view(num_tokens, num_tokens)
