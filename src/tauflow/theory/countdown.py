"""The countdown chain: x^1 ~ U{0..V-1}; x^{i+1} = x^i - 1 if x^i > 0, else U{0..V-1} (exp_countdown).

With a step k it counts down by k: x^{i+1} = x^i - k if x^i >= k, else U{0..V-1}. Shapes: B sequences, D
coordinates, V values.
"""

import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from tauflow.process import Process

Values = TypeVar("Values", Tensor, np.ndarray)


def successor(x: Values, fresh: Values, step: "int | Values" = 1) -> Values:
    """Return what follows x, given a fresh uniform draw for the case that it is free."""
    return (x >= step) * (x - step) + (x < step) * fresh


def transition_matrix(values: int, step: int = 1) -> Tensor:
    """Return T[x, y] = P(next = y | x), float64 (V, V)."""
    x, fresh = torch.meshgrid(torch.arange(values), torch.arange(values), indexing="ij")
    ones = torch.full((values, values), 1 / values, dtype=torch.float64)
    return torch.zeros(values, values, dtype=torch.float64).scatter_add_(1, successor(x, fresh, step), ones)


def stationary_law(values: int, step: int = 1) -> Tensor:
    """Return the law that the chain leaves unchanged, float64 (V,)."""
    if step == 1:  # value s with probability proportional to P(U >= s) = (V - s) / V
        weights = torch.arange(values, 0, -1, dtype=torch.float64)
        return weights / weights.sum()
    law = torch.full((values,), 1 / values, dtype=torch.float64)
    return law @ torch.linalg.matrix_power(transition_matrix(values, step), 2**12)


def entropy(length: int, values: int, step: int = 1) -> float:
    """Return the exact entropy of a sequence in nats per coordinate: ln V for each free one."""
    law = torch.full((values,), 1 / values, dtype=torch.float64)
    transition = transition_matrix(values, step)
    draws = 1.0
    for _ in range(length - 1):
        draws += law[:step].sum().item()
        law = law @ transition
    return draws * math.log(values) / length


def violations(tokens: Tensor, values: int, step: "int | Tensor" = 1) -> Tensor:
    """Return which transitions of tokens (B, D) break the rule, bool (B, D - 1); foreign states do.

    The step may be one for each sequence, (B, 1).
    """
    foreign = (tokens < 0) | (tokens >= values)
    previous, following = tokens[:, :-1], tokens[:, 1:]
    return (successor(previous, following, step) != following) | foreign[:, :-1] | foreign[:, 1:]


def posterior(x: Tensor, t: Tensor, process: Process, leak: float = 0.0) -> Tensor:
    """Return the exact denoiser of the chain by forward-backward, float64 (B, D, V).

    A leak makes every transition possible, so that the posterior exists also at states with wrong
    transitions, which samplers reach.
    """
    likelihood = process.evidence(x, t)
    values = process.num_tokens
    transition = (1 - leak) * transition_matrix(values) + leak / values
    forward, backward = likelihood.clone(), torch.ones_like(likelihood)
    forward[:, 0] /= forward[:, 0].sum(-1, keepdim=True)
    for d in range(1, x.shape[1]):
        forward[:, d] *= forward[:, d - 1] @ transition
        forward[:, d] /= forward[:, d].sum(-1, keepdim=True)
    for d in reversed(range(x.shape[1] - 1)):
        backward[:, d] = (backward[:, d + 1] * likelihood[:, d + 1]) @ transition.T
        backward[:, d] /= backward[:, d].sum(-1, keepdim=True)
    weights = forward * backward
    return weights / weights.sum(-1, keepdim=True)
