"""AllowedDenoiser: samples of a model that have certain tokens only, coordinate by coordinate.

The network is asked as always; the logits of tokens that are not allowed at their coordinate are -inf, so
that a posterior row is the network's own, conditioned on the allowed tokens. The noise stays that of the
training: a state may hold any token of the source, and only what is drawn from a posterior is restricted.
That is the process of the data whose coordinates are each conditioned so, whatever the source is: given x_1,
noise does not depend on what x_1 was allowed to be. So the law of samples is exact where coordinates are
independent; else each token is conditioned on its own set and on the tokens before it, not on the sets of
those to come.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

from typing import Any

import torch
from torch import Tensor

from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.evaluation import Evaluation, Wrapped
from tauflow.errors import SamplingError


class AllowedDenoiser(Wrapper):
    """Gives tokens that are not allowed (D, V) at their coordinate the probability 0."""

    def __init__(self, denoiser: Denoiser, allowed: Tensor):
        super().__init__(denoiser)
        self.allowed = allowed

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        self.allowed = self.allowed.to(x.device)
        return AllowedEvaluation(self.denoiser.evaluate(x, t, condition), self.allowed)


class AllowedEvaluation(Wrapped):
    """Logits that are -inf where a token is not allowed (D, V)."""

    def __init__(self, evaluation: Evaluation, allowed: Tensor):
        super().__init__(evaluation)
        self._allowed = allowed

    def logits(self, index: Tensor | slice) -> Tensor:
        logits = self._evaluations[0].logits(index)
        if isinstance(index, slice):
            index = torch.arange(self.shape[0] * self.shape[1], device=logits.device)[index]
        return logits.masked_fill(~self._allowed[index % self.shape[1]], -torch.inf)


def checked_allowed(allowed: Any, length: int, num_tokens: int) -> Tensor:
    """Return allowed tokens (D, V), from those of each coordinate or of all (V,); refuse anything else."""
    shapes = ((length, num_tokens), (num_tokens,))
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool or tuple(allowed.shape) not in shapes:
        got = (
            f"{allowed.dtype} {tuple(allowed.shape)}"
            if isinstance(allowed, Tensor)
            else type(allowed).__name__
        )
        raise SamplingError(
            f"allowed must be a boolean tensor of the shape {shapes[0]} or {shapes[1]}, true where a token "
            f"may stand; got {got}"
        )
    allowed = allowed.expand(length, num_tokens)
    empty = (~allowed.any(1)).nonzero().flatten().tolist()
    if empty:
        raise SamplingError(f"coordinate {empty[0]} is allowed no token at all; allow at least one")
    return allowed
