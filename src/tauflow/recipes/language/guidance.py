"""Guidance of a masked language model by its prompt: away from what it would say without one.

LLaDA writes u + (w + 1) (c - u) with the logits u of the same network when the prompt is masked; that is the
weight w + 1 of `model.guided(w + 1, unprompted(model, prompt))`.

Shapes: B sequences, D coordinates.
"""

import dataclasses

from torch import Tensor

from tauflow.denoise import Denoiser, Evaluation, Model
from tauflow.denoise.context import Context
from tauflow.denoise.denoiser import Wrapper
from tauflow.errors import SamplingError
from tauflow.samplers import Prompt


class UnpromptedDenoiser(Wrapper):
    """Masks what is known, true (D,) for every sequence or (B, D), before the network sees it."""

    def __init__(self, denoiser: Denoiser, known: Tensor, mask: int):
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
        return self.denoiser.evaluate(x.masked_fill(known.to(x.device), self.mask), t, condition)


def unprompted(model: Model, prompt: Prompt) -> Model:
    """Return a masked model that does not see its prompt, for `Model.guided`."""
    if not model.process.absorbing:
        raise SamplingError(
            f"a prompt is hidden behind masks, which this model ({model.process}) has not; guide it by a "
            "condition"
        )
    denoiser = UnpromptedDenoiser(model.denoiser, prompt.known, model.process.num_tokens)
    return dataclasses.replace(model, denoiser=denoiser)
