"""Models of other packages as denoisers: Transformers masked LMs, and models that return probabilities."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def from_masked_lm(
    model: nn.Module, tokens: Tensor, mask_token_id: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Adapt a Transformers masked LM, so that you can sample it.

    Use it for a model that you've loaded with Transformers. `tauflow.pretrained` does it for models it knows.

    Args:
        model: called as `model(input_ids=...)`; its output has `logits`.
        tokens: ids of the data tokens in the model (V,), without special tokens. tauflow's token s is the
            model's `tokens[s]`.
        mask_token_id: the model's id of the mask, which is tauflow's token V.

    Returns:
        A callable (x, t) -> logits (B, D, V) for `tauflow.Model`.

    Examples:
        >>> bert = transformers.AutoModelForMaskedLM.from_pretrained(name).eval()  # doctest: +SKIP
        >>> network = tauflow.from_masked_lm(bert, torch.arange(999, 30522), 103)  # doctest: +SKIP
        >>> process = tauflow.Mixture(tauflow.Masked(30522 - 999), "linear")  # doctest: +SKIP
        >>> tauflow.sample(tauflow.Model(network, process, (32,)), nfe=16)  # doctest: +SKIP
    """

    def function(x: Tensor, t: Tensor) -> Tensor:
        ids = torch.cat([tokens, tokens.new_tensor([mask_token_id])]).to(x.device)
        return model(input_ids=ids[x]).logits[..., ids[:-1]]

    return _with_parameters(model, function)


def from_probabilities(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Adapt a model that returns probabilities instead of logits.

    Use it for a `ModelWrapper` of flow_matching, or for any other model that ends with a softmax.

    Args:
        model: called as `model(x=x, t=t)`; returns probabilities (B, D, V).

    Returns:
        A callable (x, t) -> logits (B, D, V) for `tauflow.Model`.

    Examples:
        >>> import tauflow, torch
        >>> def uniform(x, t):
        ...     return torch.full((*x.shape, 4), 0.25)
        >>> network = tauflow.from_probabilities(uniform)
        >>> network(torch.zeros(1, 2).long(), torch.zeros(1)).exp()[0, 0].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return _with_parameters(model, lambda x, t: model(x=x, t=t).log())


def _with_parameters(model: Any, function: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function with the model's parameters, so that its device is known."""
    if hasattr(model, "parameters"):
        function.parameters = model.parameters
    return function
