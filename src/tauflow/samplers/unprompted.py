"""Guidance by a prompt: away from what the same network says without it.

Where noise is masks the prompt is masked. LLaDA writes u + (w + 1) (c - u) with the logits u of that; it is
the weight w + 1 of `model.guided(w + 1, unprompted(model, prompt))`. Other noise has no token that says
nothing, so there the network does not read the prompt: it answers as to the rest of the sequence alone.

Shapes: B sequences, D coordinates.
"""

import dataclasses

from torch import Tensor

from tauflow.denoise import Denoiser, Evaluation, Model
from tauflow.denoise.context import Context
from tauflow.denoise.denoiser import Wrapper
from tauflow.errors import SamplingError
from tauflow.samplers.api import Prompt


class UnpromptedDenoiser(Wrapper):
    """Hides what is known, true (D,) for every sequence or (B, D), from the network.

    With a mask it is masked; without one the network is told not to read it.
    """

    def __init__(self, denoiser: Denoiser, known: Tensor, mask: int | None):
        super().__init__(denoiser)
        self.known = known
        self.mask = mask
        self._context = Context()
        if known.ndim == 2:
            self.samples = len(known)

    def within(self, context: Context) -> Denoiser:
        return self.copied(denoiser=self.denoiser.within(context), _context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        known = self.known if self.known.ndim == 1 else self._context.own(self.known, len(x))
        known = known.to(x.device).expand_as(x)
        if self.mask is not None:
            return self.denoiser.evaluate(x.masked_fill(known, self.mask), t, condition)
        read = self._context.attention
        read = ~known if read is None else ~known & read.to(x.device)
        read = read | ~read.any(1, keepdim=True)  # a sequence that is all known has no use for an answer
        return self.denoiser.within(dataclasses.replace(self._context, attention=read)).evaluate(
            x, t, condition
        )


def unprompted(model: Model, prompt: Prompt) -> Model:
    """Return a model that does not see its prompt, for `Model.guided`."""
    mask = model.process.num_tokens if model.process.absorbing else None
    if mask is None and not model.denoiser.attends:
        raise SamplingError(
            f"a prompt cannot be hidden from this model ({model.process}): it has no masks, and its network "
            "reads every coordinate; drop the guidance"
        )
    return dataclasses.replace(model, denoiser=UnpromptedDenoiser(model.denoiser, prompt.known, mask))
