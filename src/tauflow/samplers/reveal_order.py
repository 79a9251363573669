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
from tauflow.samplers.spacing import evenly_ranks, farthest_ranks, is_grid, shifted, spaced_ranks

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


def drawn_keys(order: OrderName, problem: Problem, movable: Tensor, generator: torch.Generator) -> Tensor:
    """Draw keys (B, D) of coordinates of which some are movable (B, D): the lowest are revealed first."""
    batch, length = movable.shape
    if order == "random":
        return uniforms(batch * length, generator, CPU).view(batch, length)
    if order == "learned" and problem.order is not None:
        return problem.order.expand(batch, length)
    if order == "spaced" or is_grid(problem.shape):
        return _keys_on_grid(order, problem, movable, generator)
    return torch.arange(length).expand(batch, length)


def _keys_on_grid(order: OrderName, problem: Problem, movable: Tensor, generator: torch.Generator) -> Tensor:
    """Draw keys (B, D): of space, or of pixels, whose channels have one order or each its own."""
    shape, batch = problem.shape, len(movable)
    if problem.channels is None:
        return _ranks(order, shape, movable, generator)
    grid, count = shape[:-1], shape[-1]
    free = movable.view(batch, -1, count)  # (B, pixels, channels)
    if problem.channels == "together":
        ranks = _ranks(order, grid, free.any(2), generator)[:, :, None]
    else:
        of_channels = free.transpose(1, 2).flatten(0, 1)  # (B * channels, pixels)
        ranks = _ranks(order, grid, of_channels, generator).view(batch, count, -1).transpose(1, 2)
    return (count * ranks + torch.arange(count)).flatten(1)


def _ranks(order: OrderName, grid: tuple[int, ...], free: Tensor, generator: torch.Generator) -> Tensor:
    """Draw ranks (B, cells) of grids with free cells: an order moved round, or begun from what is known."""
    if order == "even" and not free.all():
        return farthest_ranks(grid, ~free, uniforms(free.numel(), generator, CPU).view_as(free))
    shift = uniforms(len(free) * len(grid), generator, CPU).view(len(free), -1)
    ranks = spaced_ranks(grid) if order == "spaced" else evenly_ranks(grid)
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
