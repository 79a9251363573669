"""BatchedDenoiser: evaluates a batch in parts, so that the logits of one part fit into memory.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

import torch
from torch import Tensor

from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.evaluation import Evaluation

HELD = 2**29  # bytes of the parts of an evaluation that are kept for reading them again


class BatchedDenoiser(Wrapper):
    """Evaluates so many sequences at a time, when their rows are read."""

    def __init__(self, denoiser: Denoiser, batch_size: int):
        super().__init__(denoiser)
        self.batch_size = batch_size

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        return BatchedEvaluation(self.denoiser, self.batch_size, x, t, condition)


class BatchedEvaluation(Evaluation):
    """Evaluations of parts of a batch. All are kept if that takes at most HELD bytes.

    Otherwise only the last one is, and a part whose rows are read again is evaluated again: a method that
    looks back then calls the network twice as often.
    """

    def __init__(
        self, denoiser: Denoiser, batch_size: int, x: Tensor, t: Tensor, condition: Tensor | None = None
    ):
        self.shape = (x.shape[0], x.shape[1])
        self._denoiser = denoiser
        conditions = [None] * -(-len(x) // batch_size) if condition is None else condition.split(batch_size)
        self._inputs = list(zip(x.split(batch_size), t.split(batch_size), conditions, strict=True))
        self._rows = batch_size * x.shape[1]  # of a part
        self._parts: dict[int, Evaluation] = {}
        self._keeps_all = True

    def part(self, number: int) -> Evaluation:
        """Return the evaluation of one part."""
        if number not in self._parts:
            if not self._keeps_all:
                self._parts.clear()
            part = self._denoiser.evaluate(*self._inputs[number]).kept()
            self._keeps_all = part.nbytes * len(self._inputs) <= HELD
            self._parts[number] = part
        return self._parts[number]

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
