"""A source of one's own: noise that prefers the low tokens."""

import torch

from tauflow import Source


class Sloping(Source):
    """x_0 is token s with a probability proportional to V - s."""

    @property
    def distribution(self):
        weights = torch.arange(self.num_tokens, 0, -1, dtype=torch.float64)
        return weights / weights.sum()
