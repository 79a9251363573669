"""What a reveal sampler draws before its first evaluation: an order of the coordinates, and their times.

Shapes: B sequences, D coordinates.
"""

from typing import Literal

import torch
from torch import Tensor

from tauflow.denoise import Evaluation, Model
from tauflow.process import Process
from tauflow.samplers.base import Problem
from tauflow.samplers.draws import chunks, places_of, uniforms
from tauflow.samplers.spacing import farthest_ranks, is_grid, shifted, spaced_ranks

OrderName = Literal["random", "spaced", "even", "learned"]
CPU = torch.device("cpu")


def needs_masks(model: Model, order: OrderName) -> str:
    """Return why a model cannot be revealed in this order, or nothing if it can."""
    if not model.process.absorbing:
        return (
            f"reveal samplers need a masked source, this model has a {model.process.name} one; "
            f"try {model.process.recommended} or tr_cie"
        )
    if order == "learned" and model.order is None:
        return (
            "there is no learned order: make one with tauflow.learn_order(model), or sample.py "
            "--learn_order; or use spaced"
        )
    return ""


def drawn_keys(order: OrderName, problem: Problem, batch: int, generator: torch.Generator) -> Tensor:
    """Draw keys (B, D) or (1, D): coordinates are revealed from the lowest on."""
    length = torch.Size(problem.shape).numel()
    if order == "random":
        return uniforms(batch * length, generator, CPU).view(batch, length)
    if order == "learned" and problem.order is not None:
        return problem.order.expand(batch, length)
    if order == "spaced" or is_grid(problem.shape):
        return _keys_on_grid(order, problem, batch, generator)
    return torch.arange(length).expand(batch, length)


def _keys_on_grid(order: OrderName, problem: Problem, batch: int, generator: torch.Generator) -> Tensor:
    """Draw keys (B, D): of space, or of pixels, whose channels have one order or each its own."""
    shape = problem.shape
    if problem.channels is None:
        return _ranks(order, shape, batch, generator)
    grid, count = shape[:-1], shape[-1]
    if problem.channels == "together":
        ranks = _ranks(order, grid, batch, generator)[:, :, None]  # (B, pixels, 1)
    else:
        ranks = _ranks(order, grid, batch * count, generator).view(batch, count, -1).transpose(1, 2)
    return (count * ranks + torch.arange(count)).flatten(1)


def _ranks(order: OrderName, grid: tuple[int, ...], batch: int, generator: torch.Generator) -> Tensor:
    """Draw a shift for each sequence, and return the ranks (B, cells) of a grid that is moved round by it."""
    ranks = spaced_ranks(grid) if order == "spaced" else farthest_ranks(grid)
    shift = uniforms(batch * len(grid), generator, CPU).view(batch, -1)
    return shifted(ranks, grid, (shift * torch.tensor(grid)).long())


def drawn_times(
    order: OrderName, process: Process, free: Tensor, length: int, generator: torch.Generator
) -> Tensor:
    """Draw the times (B, D + 1) of evaluations before the k-th reveal, float64; the first is 0."""
    batch = len(free)
    if order != "random":
        kappa = (torch.arange(length + 1, dtype=torch.float64) / (free[:, None] + 1)).clamp(max=1)
        return process.t_from_share(kappa)
    remaining = (free[:, None] - torch.arange(length)).clamp(min=1)  # (B, D): masked before the k-th reveal
    logs = uniforms(batch * length, generator, CPU).view(batch, length).clamp(min=1e-300).log()
    survival = torch.cat([torch.zeros(batch, 1), logs.double() / remaining], dim=1).cumsum(1).exp()
    return process.t_from_share(1 - survival)


def entropies(evaluation: Evaluation, movable: Tensor, num_tokens: int, device: torch.device) -> Tensor:
    """Return entropies (B, D) of the rows that may still be drawn, in nats; infinite elsewhere."""
    entropy = torch.full(movable.shape, torch.inf, dtype=torch.float64).flatten()
    for index in chunks(places_of(movable), num_tokens):
        entropy[index] = torch.special.entr(evaluation.rows(index.to(device))).sum(-1).cpu().double()
    return entropy.view(movable.shape)
