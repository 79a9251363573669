"""A network of one's own: it mixes all positions by their mean, and knows the label."""

from dataclasses import dataclass

import torch
from torch import nn

from tauflow import Network, NetworkConfig


@dataclass(frozen=True)
class MeanConfig(NetworkConfig):
    """A small network."""

    width: int = 16  # of the hidden states

    takes_condition = True

    def build(self, shape, num_states, num_tokens, conditions=()):
        return Mean(self, num_states, num_tokens, conditions)


class Mean(Network):
    def __init__(self, config, num_states, num_tokens, conditions):
        super().__init__()
        self.config, self.conditions = config, conditions
        self.embedding = nn.Embedding(num_states, config.width)
        self.label = nn.Embedding(sum(conditions) + 1, config.width)
        self.mix = nn.Linear(2 * config.width, config.width)
        self.output = nn.Linear(config.width, num_tokens)

    def hidden(self, x, t, condition=None):
        own = self.embedding(x) + (0 if condition is None else self.label(condition[:, :1] + 1))
        return self.mix(torch.cat([own, own.mean(1, keepdim=True).expand_as(own)], -1)).tanh()

    def head(self, rows):
        return self.output(rows)
