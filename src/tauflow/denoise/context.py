"""Context: what an evaluation is told besides states, times and conditions.

`Denoiser.within(context)` gives the denoiser that answers so; every denoiser around another one hands it on.
"""

import dataclasses
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Memory: TypeAlias = "Tensor | tuple[Memory, ...] | None"
"""What an evaluation leaves for the next: hidden states or logits (B, D, ...), or a memory for each of the
networks or parts of a batch that it is made of."""


@dataclass(frozen=True)
class Context:
    """What an evaluation is told besides states, times and conditions.

    Args:
        first: number of the first sequence in the batch that is sampled, where a part of it is evaluated;
            None: all are.
        attention: true (B, D) where a coordinate is read; the others are padding.
        memory: what the evaluation before left.
    """

    first: int | None = None
    attention: Tensor | None = None
    memory: Memory = None

    def part(self, begin: int, end: int, memory: Memory) -> "Context":
        """Return the context of the sequences from begin to end, which remember something of their own."""
        attention = None if self.attention is None else self.attention[begin:end]
        return Context((self.first or 0) + begin, attention, memory)

    def own(self, values: Tensor, count: int) -> Tensor:
        """Return what belongs to `count` sequences of this context, of values (B, ...) of all."""
        return values if self.first is None else values[self.first : self.first + count]

    def remembering(self, memory: Memory) -> "Context":
        """Return the context with another memory."""
        return dataclasses.replace(self, memory=memory)
