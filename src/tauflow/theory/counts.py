"""Counts of reveals learned from a network: the best ones of every budget, and a forecast of what they cost.

A sampler that has revealed the first c tokens of an order and draws the j-th from the same evaluation takes
it from p(. | first c) where one token an evaluation would take it from p(. | first j). That costs, in the
mean over data, the excess of a cross-entropy over another,

    E[c, j] = mean of -ln p(x_j | first c) + ln p(x_j | first j) = mean KL(p(. | first j) || p(. | first c))

where the second form, which is the one measured, is that of an exact denoiser: it has the same mean, is
never negative, and varies so much less that some ten sequences will do. The sum over all tokens of a sampler
is the KL divergence of its law from that of the data, given the order; for a trained network, from what the
same network draws with one token an evaluation. So the counts with the least sum are a shortest path from 0
to D in N steps, which dynamic programming finds for all N at once (Chen, Cong and Li 2025; Lavenant and
Zanella 2025). The matrix takes D evaluations of these sequences.

Orders that are random, or shifted at random, are drawn for each sequence as a sampler draws them; the
forecast is a mean over them, and bounds the divergence of the law that is mixed over orders from above.

Shapes: B sequences, D coordinates, V data tokens, N evaluations.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from tauflow.denoise import LearnedCounts, Model
from tauflow.denoise.counts import checked_counts
from tauflow.errors import SamplingError
from tauflow.samplers import sample
from tauflow.samplers.api import seeded
from tauflow.samplers.base import Problem, require
from tauflow.samplers.draws import chunks
from tauflow.samplers.reveal_counts import order_of_counts
from tauflow.samplers.reveal_order import OrderName, drawn_keys, drawn_times, needs_masks
from tauflow.theory import beside
from tauflow.theory.orders import checked_data

ALL = 32  # budgets up to this one have counts of their own
STEP = 2**0.25  # ratio of the larger budgets that have
DIGITS = 6  # of a forecast
ENTRIES = 2**26  # of rows that are kept at once: 256 megabytes
TINY = 1e-30  # a probability that counts as none


def learn_counts(
    model: Model,
    order: OrderName = "spaced",
    *,
    contexts: int = 16,
    data: Tensor | None = None,
    nfe: int | None = None,
    seed: int = 0,
) -> LearnedCounts:
    """Learn how many coordinates each evaluation should reveal, for samplers with counts=learned.

    Args:
        model: what is to be sampled; its source must be masked.
        order: along which tokens are revealed. For `even` of a sequence, whose order depends on the counts,
            those of `random` are learned.
        contexts: sequences on which the network is measured, in D evaluations.
        data: these sequences (B, D); by default samples of the model.
        nfe: budget of these samples; by default D, one token an evaluation.
        seed: of everything drawn.
    """
    refuse_order(model, order)
    generator = seeded(seed)
    if data is None:
        data = sample(model, "fhs", nfe or model.length, count=contexts, seed=generator).tokens
    counts, forecasts = best_counts(excess(model, order, data, generator))
    return LearnedCounts(order_of_counts(order, model.shape), counts, forecasts)


def refuse_order(model: Model, order: Any) -> None:
    """Raise if there is no such order of reveals, or none for this model."""
    names = get_args(OrderName)
    require(order in names, f"order must be one of {', '.join(names)}, got {order!r}")
    if reason := needs_masks(model, order):
        raise SamplingError(reason)


@torch.no_grad()
def excess(model: Model, order: OrderName, data: Tensor, seed: int | torch.Generator = 0) -> Tensor:
    """Measure E[c, j] on data (B, D), float64 (D, D): what the j-th token costs if it is drawn given c."""
    refuse_order(model, order)
    process, length, generator = model.process, model.length, seeded(seed)
    data = checked_data(data, length, process.num_tokens).to(model.denoiser.device)
    problem, along = Problem.of(model), order_of_counts(order, model.shape)
    keys = drawn_keys(along, problem, len(data), generator).expand(len(data), length)
    times = drawn_times(along, process, torch.full((len(data),), length), length, generator)
    group = max(1, ENTRIES // (length * process.num_tokens))
    parts = zip(data.split(group), keys.argsort(1).split(group), times.split(group), strict=True)
    total = sum((_excess(problem, *part) for part in parts), torch.zeros(length, length, dtype=torch.float64))
    return total / len(data)


def _excess(problem: Problem, data: Tensor, places: Tensor, times: Tensor) -> Tensor:
    """Return the sum over data (B, D) of E (D, D), from the last evaluation to the first.

    places (B, D): the j-th coordinate of the order; times (B, D + 1): of the evaluation after j reveals.
    """
    (batch, length), num_tokens = data.shape, problem.process.num_tokens
    places = places.to(data.device)
    ranks, start = places.argsort(1), problem.process.start((batch, length)).to(data.device)
    offsets = length * torch.arange(batch, device=data.device)[:, None]
    own = torch.zeros(batch * length, num_tokens, device=data.device)  # p(. | first j) at the j-th coordinate
    found = torch.zeros(length, length, dtype=torch.float64)
    for known in reversed(range(length)):
        evaluation = problem.evaluate(torch.where(ranks < known, data, start), times[:, known])
        hidden = offsets + places[:, known:]
        own[hidden[:, 0]] = evaluation.rows(hidden[:, 0]).float()
        costs = [
            divergence(own[index], evaluation.rows(index)) for index in chunks(hidden.flatten(), num_tokens)
        ]
        found[known, known:] = torch.cat(costs).view(batch, -1).cpu().double().sum(0)
    return found


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) of rows (R, V) in nats, (R,)."""
    logs = p.clamp(min=TINY).log() - q.clamp(min=TINY).log()
    return (p * logs).sum(-1).clamp(min=0)


def forecast(costs: Tensor, counts: Sequence[int]) -> float:
    """Return the excess KL in nats of a sequence that is revealed by counts (N,)."""
    ends = list(accumulate(counts, initial=0))
    return sum(costs[known, known:end].sum().item() for known, end in pairwise(ends))


def budgets(length: int) -> list[int]:
    """Return the budgets whose counts are kept: all small ones, then rising by a factor, and D."""
    found = list(range(1, min(length, ALL) + 1))
    while found[-1] < length:
        found.append(min(length, math.ceil(found[-1] * STEP)))
    return found


def best_counts(costs: Tensor) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """Return the counts of `budgets` with the least sum of costs (D, D), and the sums for N = 1 .. D."""
    length = len(costs)
    steps = torch.full(
        (length + 1, length + 1), torch.inf, dtype=torch.float64
    )  # [c, e]: from c to e at once
    steps[:length, 1:] = costs.cumsum(1)
    steps.masked_fill_(torch.ones_like(steps, dtype=torch.bool).tril(), torch.inf)
    best = steps[0].clone()  # to each e in n steps
    came, sums = [torch.zeros(length + 1, dtype=torch.long)], [best[-1].item()]
    for _ in range(length - 1):
        best, before = (best[:, None] + steps).min(0)
        came.append(before)
        sums.append(best[-1].item())
    found = []
    for budget in budgets(length):
        ends = [length]
        for n in reversed(range(budget)):
            ends.append(int(came[n][ends[-1]]))
        ends.reverse()
        found.append(tuple(b - a for a, b in pairwise(ends)))
    return tuple(found), tuple(round(each, DIGITS) for each in sums)


def path_of(checkpoint: str | Path) -> Path:
    """Return where the counts of a checkpoint lie: best.ckpt has best.counts.json beside it."""
    return Path(checkpoint).with_suffix(".counts.json")


def save(checkpoint: str | Path, counts: tuple[LearnedCounts, ...]) -> Path:
    """Write the counts of a checkpoint beside it, from where `tauflow.load` takes them."""
    content = [{"order": each.order, "counts": each.counts, "excess": each.excess} for each in counts]
    return beside.save(path_of(checkpoint), checkpoint, {"learned": content})


def read(checkpoint: str | Path, length: int) -> tuple[LearnedCounts, ...]:
    """Return the counts of a checkpoint, one for each order that has some; warn of a file without use."""

    def parse(saved: Any) -> tuple[LearnedCounts, ...]:
        found = [
            LearnedCounts(each["order"], tuple(map(tuple, each["counts"])), tuple(each["excess"]))
            for each in saved["learned"]
        ]
        return checked_counts(found, length)

    largest = len(get_args(OrderName)) * (10_000 + 100 * length)
    what = f"counts for {length} coordinates"
    return beside.read(path_of(checkpoint), checkpoint, what, largest, parse) or ()
