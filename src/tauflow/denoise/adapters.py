"""Models of other packages as denoisers: Transformers masked LMs, and models that return probabilities."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def from_masked_lm(
    model: nn.Module, tokens: Tensor, mask_token_id: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Adapt a masked language model of transformers.

    `tokens` (V,) are the model's ids of the data tokens, without its special tokens: token s of tauflow is
    `tokens[s]` of the model, and the mask of a Masked(V) source becomes `mask_token_id`.
    """

    def function(x: Tensor, t: Tensor) -> Tensor:
        ids = torch.cat([tokens, tokens.new_tensor([mask_token_id])]).to(x.device)
        return model(input_ids=ids[x]).logits[..., ids[:-1]]

    return _with_parameters(model, function)


def from_probabilities(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Adapt a model that returns probabilities, such as a ModelWrapper of flow_matching."""
    return _with_parameters(model, lambda x, t: model(x=x, t=t).log())


def _with_parameters(model: Any, function: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function with the model's parameters, so that its device is known."""
    if hasattr(model, "parameters"):
        function.parameters = model.parameters
    return function
