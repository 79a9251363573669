"""AttendingDenoiser: sequences of different lengths in one batch.

Shapes: B sequences, D coordinates. Coordinates that are not attended to are padding: the network does not
read them, so that each sequence has the logits that it has alone, and a sampler leaves them as they are.
"""

import dataclasses
from typing import Any

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
        if denoiser.attention is not None:
            raise SamplingError("this model attends to some coordinates already; say which ones once")
        if denoiser.samples not in (None, len(attention)):
            raise SamplingError(
                f"the model is made for {denoiser.samples} samples, got attention of {len(attention)}"
            )
        self.attention = attention
        self.samples = len(attention)
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        return self.copied(_context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        assert self.attention is not None
        attention = self._context.own(self.attention, len(x)).to(x.device)
        if attention.shape != x.shape:
            raise SamplingError(
                f"the model is made for samples of the shape {tuple(self.attention.shape)}, not "
                f"{tuple(x.shape)}; make it with attending() of these sequences"
            )
        inner = self.denoiser.within(dataclasses.replace(self._context, attention=attention))
        return inner.evaluate(x, t, condition)


def checked_attention(attention: Any, length: int) -> Tensor:
    """Return true (B, D) where coordinates are read, from itself or from lengths (B,); refuse all else."""
    if isinstance(attention, Tensor) and attention.ndim == 2 and attention.dtype == torch.bool:
        read = attention
        if read.shape[1] == length and len(read) and bool(read.any(1).all()):
            return read
    elif isinstance(attention, Tensor) and attention.ndim == 1 and len(attention):
        whole = not (attention.is_floating_point() or attention.dtype == torch.bool)
        if whole and int(attention.min()) >= 1 and int(attention.max()) <= length:
            return torch.arange(length, device=attention.device) < attention[:, None]
    got = (
        f"{attention.dtype} {tuple(attention.shape)}"
        if isinstance(attention, Tensor)
        else type(attention).__name__
    )
    raise SamplingError(
        f"attention must be lengths (B,) from 1 to {length}, or a boolean tensor (B, {length}) with a true "
        f"one for each sequence; got {got}"
    )
