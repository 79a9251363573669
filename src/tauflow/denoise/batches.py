"""BatchedDenoiser: evaluates a batch in parts, so that the logits of one part fit into memory.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

import torch
from torch import Tensor

from tauflow.denoise.context import Context, Memory
from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.evaluation import Evaluation

HELD = 2**29  # bytes of the parts of an evaluation that are kept for reading them again


class BatchedDenoiser(Wrapper):
    """Evaluates so many sequences at a time, when their rows are read."""

    def __init__(self, denoiser: Denoiser, batch_size: int):
        super().__init__(denoiser)
        self.batch_size = batch_size
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        return self.copied(_context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        return BatchedEvaluation(self._parts(len(x)), self.batch_size, x, t, condition)

    def _parts(self, count: int) -> list[Denoiser]:
        """Return the denoiser of each part, with what belongs to its sequences."""
        begins = range(0, count, self.batch_size)
        if not self.remembers and self.samples is None and self._context.attention is None:
            return [self.denoiser] * len(begins)
        memories = self._context.memory
        own = memories if isinstance(memories, tuple) else (None,) * len(begins)
        return [
            self.denoiser.within(self._context.part(begin, begin + self.batch_size, memory))
            for begin, memory in zip(begins, own, strict=True)
        ]


class BatchedEvaluation(Evaluation):
    """Evaluations of parts of a batch, each by its own denoiser.

    All are kept if that takes at most HELD bytes. Otherwise only the last one is, and a part whose rows are
    read again is evaluated again: a method that looks back then calls the network twice as often. What a part
    leaves for the next evaluation is kept.
    """

    def __init__(
        self,
        denoisers: list[Denoiser],
        batch_size: int,
        x: Tensor,
        t: Tensor,
        condition: Tensor | None = None,
    ):
        self.shape = (x.shape[0], x.shape[1])
        self._denoisers = denoisers
        conditions = [None] * len(denoisers) if condition is None else condition.split(batch_size)
        self._inputs = list(zip(x.split(batch_size), t.split(batch_size), conditions, strict=True))
        self._rows = batch_size * x.shape[1]  # of a part
        self._parts: dict[int, Evaluation] = {}
        self._left: dict[int, Memory] = {}  # by parts that are not kept
        self._keeps_all = True

    def part(self, number: int) -> Evaluation:
        """Return the evaluation of one part."""
        if number not in self._parts:
            if not self._keeps_all:
                self._forget()
            part = self._denoisers[number].evaluate(*self._inputs[number]).kept()
            self._keeps_all = part.nbytes * len(self._inputs) <= HELD
            self._parts[number] = part
        return self._parts[number]

    def _forget(self) -> None:
        """Drop the parts, but for what each leaves for the next evaluation."""
        for number, part in self._parts.items():
            if self._denoisers[number].remembers:
                self._left[number] = part.memory
        self._parts.clear()

    @property
    def memory(self) -> Memory:
        """Return what each part leaves; one that nobody has read is evaluated for it."""
        numbers = range(len(self._inputs))
        return tuple(self._left[n] if n in self._left else self.part(n).memory for n in numbers)

    def logits(self, index: Tensor | slice) -> Tensor:
        if isinstance(index, slice):
            batch, length = self.shape
            index = torch.arange(batch * length, device=self._inputs[0][0].device)[index]
        numbers = index // self._rows
        found = None
        for number in numbers.unique().tolist() or [0]:
            own = (numbers == number).nonzero().squeeze(1)
            logits = self.part(number).logits(index[own] % self._rows)
            if len(own) == len(index):
                return logits
            if found is None:
                found = logits.new_empty(len(index), logits.shape[-1])
            found[own] = logits  # copied at once: the head may answer in the same memory next time
        assert found is not None
        return found
