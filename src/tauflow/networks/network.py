"""Network, the config that builds it, and features that networks share.

Shapes: B batch, D coordinates, R rows, S states, V data tokens, W width, C columns of a condition.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow.denoise import DROPPED
from tauflow.denoise.posterior import at_least_float32
from tauflow.errors import SettingsError


class Network(nn.Module, ABC):
    """Abstract: hidden states of all coordinates, and a head that runs only on the rows that are read.

    Subclass it to train your own architecture, and write a `NetworkConfig` that builds it. To only sample a
    network from elsewhere, pass it to `tauflow.Model` as it is. A network has V logits, so it never gives
    mass to a mask.

    Args:
        conditions: how many values each column of a condition has; empty if it takes none. `network_from`
            sets it.

    Returns:
        A module. `network(x, t)` returns logits (B, D, V).

    Examples:
        >>> import tauflow, torch
        >>> from torch import nn
        >>> class Pointwise(tauflow.Network):
        ...     def __init__(self, width, num_states, num_tokens):
        ...         super().__init__()
        ...         self.embedding = nn.Embedding(num_states, width)
        ...         self.output = nn.Linear(width, num_tokens)
        ...
        ...     def hidden(self, x, t):  # t is in [0, 1], data at 1
        ...         return self.embedding(x)
        ...
        ...     def head(self, rows):
        ...         return self.output(rows)
        >>> network = Pointwise(16, num_states=6, num_tokens=5)
        >>> network(torch.zeros(2, 8).long(), torch.zeros(2)).shape
        torch.Size([2, 8, 5])
    """

    conditions: tuple[int, ...] = ()  # how many values each column of a condition has; empty: it takes none

    @abstractmethod
    def hidden(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return hidden states (B, D, W) of states x (B, D) at times t (B,) under a condition (B, C).

        A column of a condition that holds -1 is not given. A network without conditions may omit the
        argument.
        """

    @abstractmethod
    def head(self, rows: Tensor) -> Tensor:
        """Return logits (..., V) of hidden rows (..., W)."""

    def nll(self, rows: Tensor, x_1: Tensor) -> Tensor:
        """Return -ln p(x_1 | x_t) (R,) of hidden rows (R, W), in float32 at least.

        A head that can do so without all V logits overrides it: training asks for nothing else.
        """
        return F.cross_entropy(at_least_float32(self.head(rows)), x_1, reduction="none")

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return logits (B, D, V); the arguments are those of `hidden`."""
        return self.head(self.hidden(*inputs, **options))

    def hidden_matrices(self) -> list[Tensor]:
        """Return the weights that Muon updates: by default of linear and convolution layers but `output`."""
        return [
            module.weight
            for name, module in self.named_modules()
            if isinstance(module, nn.Linear | nn.Conv2d) and name.split(".")[0] != "output"
        ]

    def compile_parts(self) -> None:
        """Compile, in place, what is worth it; parameter names must not change."""
        raise SettingsError(
            f"{type(self).__name__} has no parts to compile. Remove --model.compile_network, or write its "
            "compile_parts()."
        )


class NetworkConfig(ABC):
    """Abstract: the settings of a network, a frozen dataclass, and how it's built from them.

    Write one for your own network, and choose it by `class_path` in the configuration, or pass it to
    `tauflow.DFMModule`. Its fields are flags of train.py, and a checkpoint stores them.

    Args:
        takes_condition: whether its network takes conditions.

    Returns:
        A config, whose `build` makes the network.

    Examples:
        ```python
        @dataclass(frozen=True)
        class MyConfig(tauflow.NetworkConfig):
            width: int = 64

            def build(self, shape, num_states, num_tokens, conditions=()):
                return MyNetwork(self.width, num_states, num_tokens)
        ```
    """

    takes_condition: ClassVar[bool] = False

    @abstractmethod
    def build(
        self, shape: tuple[int, ...], num_states: int, num_tokens: int, conditions: tuple[int, ...] = ()
    ) -> Network:
        """Return a network for samples of this shape with S states and V data tokens.

        `conditions` says how many values each column of a condition has; only networks with `takes_condition`
        get any.
        """


def network_from(
    config: NetworkConfig,
    shape: tuple[int, ...],
    num_states: int,
    num_tokens: int,
    conditions: tuple[int, ...] = (),
) -> Network:
    """Build the network of a config, which must take the conditions if there are any."""
    if conditions and not config.takes_condition:
        raise SettingsError(
            f"The task has conditions {conditions}, but the network of {type(config).__name__} takes none. "
            "Choose one that does, such as tauflow.networks.TransformerConfig, or a task without conditions."
        )
    given = {"conditions": conditions} if conditions else {}  # a config without them may omit the argument
    network = config.build(shape, num_states, num_tokens, **given)
    network.conditions = tuple(conditions)
    return network


def weights_of(
    config: NetworkConfig,
    shape: tuple[int, ...],
    num_states: int,
    num_tokens: int,
    conditions: tuple[int, ...] = (),
) -> dict[str, Tensor]:
    """Return the weights that `network_from` would build, on the meta device, where they take no memory."""
    with torch.device("meta"):
        network = network_from(config, shape, num_states, num_tokens, conditions)
    return network.state_dict()


class ConditionFeatures(nn.Module):
    """The sum of one embedding for each column of a condition; the last row of a table is "not given"."""

    def __init__(self, conditions: tuple[int, ...], width: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size + 1, width) for size in conditions)

    def forward(self, condition: Tensor | None, count: int) -> Tensor:
        """Return features (B, W) of a condition (B, C); none at all is one that drops every column."""
        if condition is None:
            device = next(self.parameters()).device
            condition = torch.full((count, len(self.tables)), DROPPED, device=device)
        total = torch.zeros((), device=condition.device)
        for column, table in zip(condition.unbind(1), self.tables, strict=True):
            assert isinstance(table, nn.Embedding)
            total = total + table(torch.where(column == DROPPED, table.num_embeddings - 1, column))
        return total


class TimeFeatures(nn.Module):
    """Smooth learned functions of t: a Fourier basis up to frequency 16 and a small MLP."""

    frequencies = 32

    def __init__(self, width: int):
        super().__init__()
        first = nn.Linear(2 * self.frequencies, 2 * width)
        self.mlp = nn.Sequential(first, nn.SiLU(), nn.Linear(2 * width, width), nn.SiLU())

    def forward(self, t: Tensor) -> Tensor:
        weight = next(self.mlp.parameters())
        frequencies = torch.linspace(0, 16 * math.pi, self.frequencies, device=weight.device)
        angles = t.to(weight.dtype)[:, None] * frequencies
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))
