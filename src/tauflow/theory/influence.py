"""Influence of coordinates on each other, learned from a network; its file by a checkpoint.

The influence of coordinate j on i is the total variation by which the posterior of i moves when j, and
nothing else, is revealed: in the mean over tokens of j, and over both ways. The sampler independent reads it
as the correlations of a Gaussian field, which says what is left of it once other coordinates are revealed
(samplers/independent.py); `learn_order` measures the mean over contexts instead (orders.py).

Shapes: B sequences, D coordinates, V data tokens.
"""

import base64
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.errors import SamplingError
from tauflow.samplers import sample
from tauflow.samplers.base import Problem
from tauflow.samplers.run import check_model, seeded
from tauflow.theory import beside
from tauflow.theory.orders import ENTRIES, checked_data

LEVELS = 255  # of the root of an influence: one byte, and small ones are told apart


@torch.no_grad()
def learn_influence(
    model: Model, *, contexts: int = 16, data: Tensor | None = None, nfe: int = 16, seed: int = 0
) -> Tensor:
    """Learn how much coordinates influence each other, (D, D), for the sampler independent.

    Args:
        model: what is to be sampled; its source must be masked.
        contexts: sequences whose tokens are revealed one at a time; each takes D evaluations of one sequence.
        data: these sequences (B, D); by default samples of the model.
        nfe: budget of these samples.
        seed: of everything drawn.
    """
    check_model(model)
    process, length = model.process, model.length
    if not process.absorbing:
        raise SamplingError(
            f"influence is of reveals, from a masked source; this model has a {process.name} one"
        )
    if data is None:
        data = sample(model, "fhs", nfe, count=contexts, seed=seeded(seed)).tokens
    data = checked_data(data, length, process.num_tokens).to(model.denoiser.device)
    problem, masks = Problem.of(model), process.start((1, length)).to(data.device)
    t = process.t_from_share(torch.tensor([1 / (length + 1)], dtype=torch.float64))
    nothing = problem.evaluate(masks, t).kept().dense()  # (1, D, V)
    total = torch.zeros(length, length, dtype=torch.float64)
    for tokens in data:
        for places in torch.arange(length).split(max(1, ENTRIES // (length * process.num_tokens))):
            at = places.to(data.device)[:, None]
            one = masks.repeat(len(at), 1).scatter(1, at, tokens[at])
            moved = (problem.evaluate(one, t).dense() - nothing).abs().sum(-1) / 2
            total[places] += moved.cpu().double()
    mean = (total + total.T).fill_diagonal_(0) / (2 * len(data))
    return unpacked(packed(mean), length)


def packed(influence: Tensor) -> bytes:
    """Return the influence (D, D) of all pairs, a byte each."""
    row, column = torch.triu_indices(len(influence), len(influence), offset=1)
    return bytes((influence[row, column].sqrt() * LEVELS).round().int().tolist())


def unpacked(content: bytes, length: int) -> Tensor:
    """Return influence (D, D) from a byte for each pair."""
    row, column = torch.triu_indices(length, length, offset=1)
    if len(content) != len(row):
        raise ValueError(f"{len(content)} numbers for {len(row)} pairs")
    influence = torch.zeros(length, length)
    influence[row, column] = (torch.tensor(list(content)) / LEVELS).square()
    return influence + influence.T


def path_of(checkpoint: str | Path) -> Path:
    """Return where the influence of a checkpoint lies: best.ckpt has best.influence.json beside it."""
    return Path(checkpoint).with_suffix(".influence.json")


def save(checkpoint: str | Path, influence: Tensor) -> Path:
    """Write the influence of a checkpoint beside it, from where `tauflow.load` takes it."""
    content = base64.b64encode(packed(influence)).decode()
    return beside.save(path_of(checkpoint), checkpoint, {"pairs": content})


def read(checkpoint: str | Path, length: int) -> Tensor | None:
    """Return the influence of a checkpoint, or None; warn of one that cannot be used."""

    def parse(saved: Any) -> Tensor:
        return unpacked(base64.b64decode(saved["pairs"], validate=True), length)

    largest = 1000 + length * length  # more than four characters for three pairs
    what = f"the influence of {length} coordinates"
    return beside.read(path_of(checkpoint), checkpoint, what, largest, parse)
