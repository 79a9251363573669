"""AttendingDenoiser: sequences of different lengths in one batch.

Shapes: B sequences, D coordinates. Coordinates that are not attended to are padding: the network does not
read them, so that each sequence has the logits that it has alone, and a sampler leaves them as they are.
"""

import dataclasses

import torch
from torch import Tensor

from tauflow.denoise.context import Context
from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.evaluation import Evaluation
from tauflow.errors import SamplingError


class AttendingDenoiser(Wrapper):
    """Tells the network which coordinates (B, D) are read; the others are padding."""

    def __init__(self, denoiser: Denoiser, attention: Tensor):
        super().__init__(denoiser)
        if not denoiser.attends:
            raise SamplingError(
                "this network reads every coordinate, so sequences of different lengths need batches of "
                "their own; use a network that says attends = True and takes hidden(..., attention=)"
            )
        self.attention = attention
        self.samples = len(attention)
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        return self.copied(_context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        assert self.attention is not None
        attention = self._context.own(self.attention, len(x)).to(x.device)
        inner = self.denoiser.within(dataclasses.replace(self._context, attention=attention))
        return inner.evaluate(x, t, condition)


def checked_attention(attention: Tensor, length: int) -> Tensor:
    """Return true (B, D) where coordinates are read, from itself or from lengths (B,); refuse all else."""
    read = attention
    if attention.ndim == 1 and int(attention.max()) <= length:
        read = torch.arange(length, device=attention.device) < attention[:, None]
    if read.dtype != torch.bool or tuple(read.shape[1:]) != (length,) or not bool(read.any(1).all()):
        raise SamplingError(
            f"attention must be lengths (B,) from 1 to {length}, or a boolean tensor (B, {length}) with a "
            f"true one for each sequence; got {attention.dtype} {tuple(attention.shape)}"
        )
    return read
