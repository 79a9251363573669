"""Masked language models of the transformers package."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tauflow.denoise.adapters.flow_matching import with_parameters


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

    return with_parameters(model, function)
