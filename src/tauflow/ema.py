"""Exponential moving average of a network's weights, held beside it as a second network."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class EMA(nn.Module):
    """The averaged copy. Validation, samplers and reloaded checkpoints use it; training never touches it but through `update`.

    Being a submodule, it is saved, restored and moved with the raw weights, and no weights are ever swapped.
    """

    def __init__(self, network: nn.Module, decay: float):
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"the EMA decay must be in [0, 1), got {decay}; 0 keeps the raw weights")
        self.decay = decay
        self.network = copy.deepcopy(network).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Averages in the weights after step n = 1, 2, ...; the decay rises to its final value as (1 + n) / (10 + n)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(self.network.parameters()), list(network.parameters()), None)

    def train(self, mode: bool = True) -> "EMA":
        return super().train(False)
