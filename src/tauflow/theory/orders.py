"""An order of reveals learned from a network, where the geometry is not known; its file by a checkpoint.

Coordinates that are revealed together are drawn as if they were independent, so they should depend little on
each other. `learn_order` measures how much: in contexts of the model's own samples (or of given data), part
of them masked at random, it reveals one coordinate j more and takes the total variation by which the
posterior of each other masked coordinate i changes. Averaged over contexts and made symmetric this is a
matrix of dependence; the order is greedy: next comes the coordinate that depends least on those just before
it.

Shapes: B sequences, D coordinates, V data tokens, C contexts.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise import Denoiser, Model
from tauflow.errors import SamplingError
from tauflow.samplers import sample
from tauflow.samplers.run import check_model, seeded
from tauflow.theory import beside

ENTRIES = 2**24  # of a batch of posteriors: some tens of megabytes


def learn_order(
    model: Model, *, contexts: int = 16, data: Tensor | None = None, nfe: int = 16, seed: int = 0
) -> Tensor:
    """Learn an order (D,) for the sampler learned_order: coordinate 0 of the order is revealed first.

    Args:
        model: what is to be sampled; its source must be masked.
        contexts: sequences in which dependence is measured; each takes about D / 2 evaluations of one
            sequence.
        data: sequences (C, D) to measure it in; by default samples of the model.
        nfe: budget of these samples.
        seed: of everything drawn.
    """
    return greedy(dependence(model, contexts=contexts, data=data, nfe=nfe, seed=seed))


@torch.no_grad()
def dependence(
    model: Model, *, contexts: int = 16, data: Tensor | None = None, nfe: int = 16, seed: int = 0
) -> Tensor:
    """Measure by how much revealing one coordinate moves the posterior of another, (D, D)."""
    check_model(model)
    process, denoiser, length = model.process, model.denoiser, model.length
    if not process.absorbing:
        raise SamplingError(f"an order of reveals needs a masked source; this model has a {process.name} one")
    generator = seeded(seed)
    if data is None:
        data = sample(model, "fhs", nfe, count=contexts, seed=generator).tokens
    data = checked_data(data, length, process.num_tokens)
    total = torch.zeros(length, length, dtype=torch.float64)
    count = torch.zeros(length, length, dtype=torch.float64)
    for number, tokens in enumerate(data.to(denoiser.device)):
        kappa = (number + torch.rand(1, generator=generator).item()) / len(data)  # spread evenly
        masked = (torch.rand(length, generator=generator) >= kappa).to(tokens.device)
        hidden = masked.nonzero().squeeze(1)  # (M,)
        if not len(hidden):
            continue
        x = torch.where(masked, process.start((1, length)).to(tokens.device).squeeze(0), tokens)
        t = float(process.t_from_share(torch.tensor(kappa, dtype=torch.float64)))
        changes = []
        before = _posteriors(denoiser, x[None], t, hidden)
        for reveal in hidden.split(max(1, ENTRIES // (length * process.num_tokens))):
            more = x.repeat(len(reveal), 1).scatter(1, reveal[:, None], tokens[reveal][:, None])
            after = _posteriors(denoiser, more, t, hidden)  # (R, M, V)
            changes.append((after - before).abs().sum(-1).cpu().double() / 2)
        at = hidden.cpu()
        total[at[:, None], at] += torch.cat(changes)
        count[at[:, None], at] += 1
    both = total / count.clamp(min=1)
    return ((both + both.T) / 2).fill_diagonal_(0)


def checked_data(data: Any, length: int, num_tokens: int) -> Tensor:
    """Return sequences (C, D) of data tokens, int64; refuse anything else."""
    if not isinstance(data, Tensor) or data.ndim != 2 or data.shape[1] != length or not len(data):
        got = tuple(data.shape) if isinstance(data, Tensor) else type(data).__name__
        raise SamplingError(f"data must be a tensor of the shape (C, {length}) with C at least 1, got {got}")
    if data.is_floating_point() or data.is_complex() or data.dtype == torch.bool:
        raise SamplingError(f"data must hold integer tokens, got {data.dtype}")
    if int(data.min()) < 0 or int(data.max()) >= num_tokens:
        raise SamplingError(
            f"data holds tokens outside 0 .. {num_tokens - 1}; give sequences of the model's own tokens"
        )
    return data.long()


def greedy(matrix: Tensor) -> Tensor:
    """Return ranks (D,): the next one has the least sum of dependence / (ranks apart) on those before."""
    length = len(matrix)
    chosen = [int(matrix.sum(1).argmax())]
    left = torch.ones(length, dtype=torch.bool)
    left[chosen] = False
    while len(chosen) < length:
        near = 1 / torch.arange(len(chosen), 0, -1, dtype=matrix.dtype)
        cost = (matrix[:, chosen] @ near).masked_fill(~left, torch.inf)
        chosen.append(int(cost.argmin()))
        left[chosen[-1]] = False
    return torch.tensor(chosen).argsort()


def path_of(checkpoint: str | Path) -> Path:
    """Return where the order of a checkpoint lies: best.ckpt has best.order.json beside it."""
    return Path(checkpoint).with_suffix(".order.json")


def save(checkpoint: str | Path, ranks: Tensor) -> Path:
    """Write the order of a checkpoint beside it, from where `tauflow.load` takes it."""
    return beside.save(path_of(checkpoint), checkpoint, {"ranks": ranks.tolist()})


def read(checkpoint: str | Path, length: int) -> Tensor | None:
    """Return the order of a checkpoint, or None; warn of one that cannot be used."""

    def parse(saved: Any) -> Tensor:
        if sorted(saved["ranks"]) != list(range(length)):
            raise ValueError
        return torch.tensor(saved["ranks"], dtype=torch.long)

    largest = 1000 + 32 * length  # more than a number for each coordinate
    what = f"an order of {length} coordinates"
    return beside.read(path_of(checkpoint), checkpoint, what, largest, parse)


def _posteriors(denoiser: Denoiser, x: Tensor, t: float, places: Tensor) -> Tensor:
    """Return posterior rows (B, M, V) at places (M,) of each sequence."""
    evaluation = denoiser.evaluate(x, torch.full((len(x),), t, device=x.device))
    index = torch.arange(len(x), device=x.device)[:, None] * x.shape[1] + places
    return evaluation.rows(index.flatten()).unflatten(0, index.shape)
