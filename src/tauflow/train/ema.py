"""Exponential moving average of a network's weights, held beside it as a second network."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from tauflow.networks import Network


class EMA(nn.Module):
    """The averaged copy. Validation, samplers and reloaded checkpoints use it; only `update` changes it.

    Being a submodule, it is saved, restored and moved with the raw weights, and no weights are ever swapped.
    """

    def __init__(self, network: Network, decay: float):
        super().__init__()
        self.decay = decay
        self.network: Network = copy.deepcopy(network).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Average in the weights after step n = 1, 2, ...; the decay rises as (1 + n) / (10 + n)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(self.network.parameters()), list(network.parameters()), 0)

    def train(self, mode: bool = True) -> "EMA":
        return super().train(False)
