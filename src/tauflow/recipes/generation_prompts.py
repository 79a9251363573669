"""Prompts of language models: those that stand before new tokens, and those that are conditions.

Shapes: B prompts, A of them whose texts have not ended, P tokens of the longest prompt, N new tokens, K
tokens of a block, D coordinates, C columns of a condition.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tauflow.denoise import Model, TruncatedDenoiser
from tauflow.recipes.language.task import Language
from tauflow.samplers import Prompt
from tauflow.samplers.run import unprompted


@dataclass(frozen=True)
class Asked:
    """What is sampled for one block: K coordinates from `place` on.

    Args:
        model: of samples of D coordinates.
        tokens: what stands around the block (A, D).
        place: of the block.
        size: K.
        condition: (A, C), or None.
    """

    model: Model
    tokens: Tensor
    place: int
    size: int
    condition: Tensor | None = None

    @property
    def frozen(self) -> Tensor:
        """Return true (A, D) on all that is no part of the block."""
        columns = torch.arange(self.model.length)
        inside = (columns >= self.place) & (columns < self.place + self.size)
        return (~inside).expand(len(self.tokens), -1)

    def block(self, x: Tensor) -> Tensor:
        """Return the block (A, K) of states (A, D)."""
        return x[:, self.place : self.place + self.size]


class Prompted(Protocol):
    """A model with prompts."""

    def asked(self, new: Tensor, rows: Tensor, begin: int, size: int) -> Asked:
        """Return what is sampled for the new tokens from `begin` on, of the samples rows (A,) so far."""
        ...


class Continued:
    """Prompts that stand before the new tokens in one sequence.

    They end in the same column; what stands before shorter ones is padding, which the network does not read.
    """

    def __init__(self, model: Model, prompts: Sequence[list[int]], adjusted: "Adjusted"):
        self.model = model
        self.adjusted = adjusted
        width = max(map(len, prompts))
        self.prompts = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]).long()
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        self.real = torch.arange(-width, 0) >= -lengths[:, None]  # (B, P)

    def asked(self, new: Tensor, rows: Tensor, begin: int, size: int) -> Asked:
        seen = new if self.model.process.absorbing else new[:, : begin + size]
        tokens = torch.cat([self.prompts[rows], seen], 1)
        real, width = self.real[rows], self.real.shape[1]
        model = dataclasses.replace(self.model, shape=tokens.shape[1:])
        model = self.adjusted.of(model, Prompt(tokens, torch.arange(model.length) < width))
        if not real.all():
            model = model.attending(torch.cat([real, torch.ones_like(seen, dtype=torch.bool)], 1))
        return Asked(model, tokens, width + begin, size)


class Conditioned:
    """Prompts that are conditions, which new tokens become a part of when the next block is sampled."""

    def __init__(self, model: Model, task: Language, prompts: Sequence[list[int]], adjusted: "Adjusted"):
        self.model = model
        self.task = task
        self.prompts = prompts
        self.adjusted = adjusted

    def asked(self, new: Tensor, rows: Tensor, begin: int, size: int) -> Asked:
        before = [self.prompts[row] for row in rows.tolist()]
        known = [prompt + more for prompt, more in zip(before, new[:, :begin].tolist(), strict=True)]
        condition = torch.stack([self.task.row(tokens) for tokens in known])
        model = self.adjusted.of(dataclasses.replace(self.model, shape=(size,)), None)
        return Asked(model, new[:, begin : begin + size], 0, size, condition)


@dataclass(frozen=True)
class Adjusted:
    """Guidance and temperature; 1 is none."""

    guidance: float = 1.0
    temperature: float = 1.0

    def of(self, model: Model, prompt: Prompt | None) -> Model:
        """Return a model with both; it is guided away from what it says without the prompt.

        What is cut from its rows is cut after both.
        """
        truncated = model.denoiser
        if isinstance(truncated, TruncatedDenoiser):
            model = dataclasses.replace(model, denoiser=truncated.denoiser)
        if self.guidance != 1:
            model = model.guided(self.guidance, prompt and unprompted(model, prompt))
        if self.temperature != 1:
            model = model.tempered(self.temperature)
        if isinstance(truncated, TruncatedDenoiser):
            model = model.truncated(truncated.top_k, truncated.top_p)
        return model


def prompted_model(
    model: Model, task: Language, prompts: Sequence[list[int]], adjusted: Adjusted
) -> Prompted:
    """Return a model with prompts as it takes them."""
    if task.conditions:
        return Conditioned(model, task, prompts, adjusted)
    return Continued(model, prompts, adjusted)
