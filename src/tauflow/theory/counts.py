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
Counts that were chosen on some sequences look better on these than on others, so each half of the data
chooses counts whose forecast is made on the other half; the counts that are kept are those of all.

The same matrix says how much extrapolation makes up for what was lost. With c_n tokens known at step n,

    L_n = sum of E[c_n, j] over the tokens j of step n: lost, since they are drawn as if independent
    C_n = sum of E[c_{n-1}, j] - E[c_n, j] over the same tokens: what those of step n - 1 say of them

and a row with the weight w, p_n (p_n / p_{n-1})^w, is as if step n - 1 said 1 + w times as much: w C_n nats
of dependence, where it is weak. So step n pays for what it loses and for what is still owed: w_n = debt /
C_n, at most 1. Where nothing is lost nothing is extrapolated. (`pairs` of samplers/reveal.py is the case of
equal dependence of all pairs: L_n = k_n (k_n - 1) / 2 and C_n = k_{n-1} k_n.) That is for orders which are
drawn for each sample, where tokens that lose their dependence here are told of each other there. Along the
one order of `learned` the same tokens are always drawn together, no other rows than p_n have a lower KL
divergence, and all weights are 0.

Shapes: B sequences, D coordinates, V data tokens, N evaluations.
"""

import dataclasses
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from tauflow.denoise import LearnedCounts, Model
from tauflow.denoise.model import checked_counts
from tauflow.errors import SamplingError
from tauflow.samplers import sample
from tauflow.samplers.base import Problem, require
from tauflow.samplers.draws import chunks
from tauflow.samplers.geometry import is_grid
from tauflow.samplers.reveal import OrderName, drawn_keys, drawn_times, needs_masks, order_of_counts
from tauflow.samplers.run import check_model, seeded
from tauflow.theory import beside
from tauflow.theory.orders import checked_data

ALL = 32  # budgets up to this one have counts of their own
STEP = 2**0.25  # ratio of the larger budgets that have
DIGITS = 6  # of a forecast
ENTRIES = 2**26  # of rows that are kept at once: 256 megabytes
TINY = 1e-30  # a probability that counts as none
LEAST = 1e-6  # nats that count as some


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
    check_model(model)
    refuse_order(model, order)
    generator = seeded(seed)
    if data is None:
        data = sample(model, "fhs", nfe or model.length, count=contexts, seed=generator).tokens
    data = checked_data(data, model.length, model.process.num_tokens)
    require(
        len(data) > 1,
        "counts are learned from at least 2 sequences: one half of them chooses, the other forecasts",
    )
    halves = [excess(model, order, half, generator) for half in data.chunk(2)]
    return learned_from(order_of_counts(order, model.shape), halves)


def refuse_order(model: Model, order: Any) -> None:
    """Raise if there is no such order of reveals, or none for this model."""
    names = get_args(OrderName)
    require(order in names, f"order must be one of {', '.join(names)}, got {order!r}")
    if reason := needs_masks(model, order):
        raise SamplingError(reason)


def orders_of(model: Model) -> list[OrderName]:
    """Return the orders of a model that can have counts of their own."""
    found: list[OrderName] = ["spaced", "random"]
    found += ["even"] if is_grid(model.shape) else []
    return found + (["learned"] if model.order is not None else [])


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


def learned_from(order: OrderName, halves: Sequence[Tensor]) -> LearnedCounts:
    """Return the best counts for the mean of two matrices E (D, D), each forecast by that of the other."""
    mean = (halves[0] + halves[1]) / 2
    both, (first, second) = Shortest(mean), (Shortest(half) for half in halves)
    excess = [
        (second.cost(first.counts(budget)) + first.cost(second.counts(budget))) / 2
        for budget in range(1, len(mean) + 1)
    ]
    counts = [both.counts(budget) for budget in budgets(len(mean))]
    weights = () if order == "learned" else tuple(weights_of(mean, each) for each in counts)
    return LearnedCounts(
        order,
        tuple(counts),
        tuple(round(each, DIGITS) for each in excess),
        weights,
    )


def forecast(costs: Tensor, counts: Sequence[int]) -> float:
    """Return the excess KL in nats of a sequence that is revealed by counts (N,)."""
    ends = list(accumulate(counts, initial=0))
    return sum(costs[known, known:end].sum().item() for known, end in pairwise(ends))


def weights_of(costs: Tensor, counts: Sequence[int]) -> tuple[float, ...]:
    """Return the weights (N,) of the extrapolation that pays for what counts (N,) lose, by E (D, D)."""
    ends = list(accumulate(counts, initial=0))
    debt, before, found = 0.0, 0, []
    for known, end in pairwise(ends):
        debt += costs[known, known:end].sum().item()
        says = (costs[before, known:end] - costs[known, known:end]).sum().item()
        weight = round(min(1.0, debt / says), DIGITS) if debt > LEAST and says > LEAST else 0.0
        debt -= weight * says
        found.append(weight)
        before = known
    return tuple(found)


def budgets(length: int) -> list[int]:
    """Return the budgets whose counts are kept: all small ones, then rising by a factor, and D."""
    found = list(range(1, min(length, ALL) + 1))
    while found[-1] < length:
        found.append(min(length, math.ceil(found[-1] * STEP)))
    return found


class Shortest:
    """The counts with the least sum of costs (D, D), for all budgets at once; `sums` holds the least sums."""

    def __init__(self, costs: Tensor):
        self.length = len(costs)
        size = (self.length + 1, self.length + 1)
        steps = torch.full(size, torch.inf, dtype=torch.float64)  # [c, e]: from c to e at once
        steps[: self.length, 1:] = costs.cumsum(1)
        steps.masked_fill_(torch.ones_like(steps, dtype=torch.bool).tril(), torch.inf)
        best = steps[0].clone()  # to each e in n steps
        self._steps = steps
        self._came, self.sums = [torch.zeros(self.length + 1, dtype=torch.long)], [best[-1].item()]
        for _ in range(self.length - 1):
            best, before = (best[:, None] + steps).min(0)
            self._came.append(before)
            self.sums.append(best[-1].item())

    def cost(self, counts: Sequence[int]) -> float:
        """Return the sum of costs of counts (N,), which may be the best ones of others."""
        ends = list(accumulate(counts, initial=0))
        return self._steps[ends[:-1], ends[1:]].sum().item()

    def counts(self, budget: int) -> tuple[int, ...]:
        """Return the counts of a budget, from 1 to D."""
        ends = [self.length]
        for n in reversed(range(budget)):
            ends.append(int(self._came[n][ends[-1]]))
        ends.reverse()
        return tuple(b - a for a, b in pairwise(ends))


def path_of(checkpoint: str | Path) -> Path:
    """Return where the counts of a checkpoint lie: best.ckpt has best.counts.json beside it."""
    return Path(checkpoint).with_suffix(".counts.json")


def save(checkpoint: str | Path, counts: tuple[LearnedCounts, ...]) -> Path:
    """Write the counts of a checkpoint beside it, from where `tauflow.load` takes them."""
    content = [dataclasses.asdict(each) for each in counts]
    return beside.save(path_of(checkpoint), checkpoint, {"learned": content})


def read(checkpoint: str | Path, length: int) -> tuple[LearnedCounts, ...]:
    """Return the counts of a checkpoint, one for each order that has some; warn of a file without use."""

    def parse(saved: Any) -> tuple[LearnedCounts, ...]:
        found = []
        for each in saved["learned"]:
            counts, weights = (tuple(map(tuple, each[name])) for name in ("counts", "weights"))
            found.append(LearnedCounts(each["order"], counts, tuple(each["excess"]), weights))
        if unknown := {each.order for each in found} - set(get_args(OrderName)):
            raise ValueError(f"unknown orders {unknown}")
        return checked_counts(found, length)

    largest = len(get_args(OrderName)) * (20_000 + 200 * length)
    what = f"counts for {length} coordinates"
    return beside.read(path_of(checkpoint), checkpoint, what, largest, parse) or ()
