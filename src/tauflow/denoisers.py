"""Denoiser: one network evaluation at (x, t), read lazily as rows of the posterior p(x_1^d = s | x_t).

Shapes: B sequences, D coordinates, V data tokens, R rows. A row is named by its place in the flattened (B * D,).
"""

import torch
from torch import Tensor, nn


class Evaluation:
    """The posterior of all coordinates after one evaluation; the head is applied only to the rows that are read."""

    def __init__(self, network: nn.Module, hidden: Tensor):
        self._network = network
        self._hidden = hidden  # (B, D, W)

    @torch.no_grad()
    def rows(self, index: Tensor) -> Tensor:
        """Posterior rows (R, V) of the coordinates index (R,)."""
        return self._network.head(self._hidden.flatten(0, 1)[index]).softmax(-1)

    def at(self, index: Tensor, tokens: Tensor) -> Tensor:
        """Posterior entries (R,) of one token for each of the coordinates index (R,)."""
        return self.rows(index).gather(1, tokens[:, None]).squeeze(1)

    @torch.no_grad()
    def dense(self) -> Tensor:
        """The whole posterior (B, D, V)."""
        return self._network.head(self._hidden).softmax(-1)


class Denoiser:
    """Wraps a network that is split into hidden(x, t) and head(rows); gradients are never kept."""

    def __init__(self, network: nn.Module):
        self.network = network.eval()

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @torch.no_grad()
    def evaluate(self, x: Tensor, t: Tensor) -> Evaluation:
        """One network evaluation of the states x (B, D) at the times t (B,)."""
        return Evaluation(self.network, self.network.hidden(x, t))
