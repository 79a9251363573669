"""What samplers learn from a network, and the files that keep it next to a checkpoint.

learn_order       an order in which coordinates revealed together depend little on each other
learn_influence   how much each pair of coordinates depends on each other, for the sampler independent
learn_counts      how many coordinates each evaluation should reveal along an order

All of it is for masked sources. Shapes: B sequences, D coordinates, V data tokens, C contexts, N evaluations.
"""

import base64
import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from tauflow.denoise import Denoiser, LearnedCounts, Model
from tauflow.denoise.model import check_counts
from tauflow.errors import CheckpointError, SamplingError
from tauflow.files import digest, digest_json, write
from tauflow.samplers.geometry import is_grid
from tauflow.samplers.random import chunks
from tauflow.samplers.reveal import OrderName, drawn_keys, drawn_times, needs_masks, order_of_counts
from tauflow.samplers.run import make_generator, model_from, sample
from tauflow.samplers.sampler import Problem, check
from tauflow.untrusted import read_json

# Small JSON files next to a checkpoint: learned order, counts, influence.
#
# A digest of the checkpoint ties them to its weights, a digest of their own content finds damage.

Learned = TypeVar("Learned")

FAULTS = (ValueError, TypeError, KeyError, OverflowError, SamplingError, CheckpointError)


def _save(path: Path, checkpoint: str | Path, content: dict[str, Any]) -> Path:
    """Write what was learned from a checkpoint, with both digests."""
    digests = {"checkpoint": digest(checkpoint), "sha256": digest_json(content)}
    write(path, json.dumps(digests | content) + "\n")
    return path


def _read(
    path: Path, checkpoint: str | Path, what: str, largest: int, parse: Callable[[Any], Learned]
) -> Learned | None:
    """Return what `parse` makes of the file, or None; warn if the file can't be used.

    `largest` bounds its size in bytes; `parse` raises one of FAULTS for content that doesn't fit.
    """
    if not path.exists():
        return None
    try:
        saved = read_json(path, largest)
        if saved.pop("checkpoint") != digest(checkpoint):
            fault = f"was learned from other weights than {checkpoint} has now"
        elif saved.pop("sha256", None) not in (
            None,
            digest_json(saved),
        ):  # 0.2 wrote none
            fault = "is damaged: its sha256 is wrong"
        else:
            return parse(saved)
    except FAULTS:
        fault = f"doesn't contain {what} and the digest of their checkpoint"
    warnings.warn(f"{path} {fault}, so it isn't used. Learn it again.", stacklevel=3)
    return None


# An order of reveals learned from a network, where the geometry is not known; its file by a checkpoint.
#
# Coordinates revealed together are drawn as if they were independent, so they should depend little on each
# other. `learn_order` measures how much: in contexts of the model's own samples (or of given data), part of
# them masked at random, it reveals one coordinate j more and takes the total variation by which the posterior
# of each other masked coordinate i changes. Averaged over contexts and made symmetric this is a matrix of
# dependence; the order is greedy: next comes the coordinate that depends least on those just before it.
#
# Shapes: B sequences, D coordinates, V data tokens, C contexts.

POSTERIORS = 2**24  # entries of a batch of posteriors: some tens of megabytes


def learn_order(
    model: Model, *, contexts: int = 16, data: Tensor | None = None, nfe: int = 16, seed: int = 0
) -> Tensor:
    """Learn an unmasking order in which tokens revealed together depend little on each other.

    Use it for the sampler learned_order, on masked models whose geometry isn't a line or a grid.
    `sample.py --learn_order` does it and saves the order next to the checkpoint.

    Args:
        model: the model to sample, with a masked source.
        contexts: sequences to measure dependence in. Each takes about D / 2 evaluations of one sequence.
        data: these sequences (C, D). None: samples of the model.
        nfe: budget of these samples.
        seed: of all randomness.

    Returns:
        The rank of each coordinate (D,), 0 first, for `order` of `tauflow.Model`.

    Examples:
        >>> import dataclasses, tauflow, torch
        >>> process = tauflow.Mixture(tauflow.Masked(5), "linear")
        >>> model = tauflow.Model(lambda x, t: torch.zeros(*x.shape, 5), process, (4,))
        >>> model = dataclasses.replace(model, order=tauflow.learn_order(model, contexts=2))
        >>> tauflow.sample(model, "learned_order", nfe=2).tokens.shape
        torch.Size([1, 4])
    """
    return greedy(dependence(model, contexts=contexts, data=data, nfe=nfe, seed=seed))


@torch.no_grad()
def dependence(
    model: Model, *, contexts: int = 16, data: Tensor | None = None, nfe: int = 16, seed: int = 0
) -> Tensor:
    """Measure by how much revealing one coordinate moves the posterior of another, (D, D)."""
    model = model_from(model)
    process, denoiser, length = model.process, model.denoiser, model.length
    if not process.absorbing:
        raise SamplingError(f"an order of reveals needs a masked source; this model has a {process.name} one")
    generator = make_generator(seed)
    if data is None:
        data = sample(model, "fhs", nfe, count=contexts, seed=generator).tokens
    data = check_data(data, length, process.num_tokens)
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
        for reveal in hidden.split(max(1, POSTERIORS // (length * process.num_tokens))):
            more = x.repeat(len(reveal), 1).scatter(1, reveal[:, None], tokens[reveal][:, None])
            after = _posteriors(denoiser, more, t, hidden)  # (R, M, V)
            changes.append((after - before).abs().sum(-1).cpu().double() / 2)
        at = hidden.cpu()
        total[at[:, None], at] += torch.cat(changes)
        count[at[:, None], at] += 1
    both = total / count.clamp(min=1)
    return ((both + both.T) / 2).fill_diagonal_(0)


def check_data(data: Any, length: int, num_tokens: int) -> Tensor:
    """Return sequences (C, D) of data tokens, int64."""
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


def order_path(checkpoint: str | Path) -> Path:
    """Return where the order of a checkpoint lies: best.ckpt has best.order.json beside it."""
    return Path(checkpoint).with_suffix(".order.json")


def save_order(checkpoint: str | Path, ranks: Tensor) -> Path:
    """Write the order of a checkpoint beside it, from where `tauflow.load` takes it."""
    return _save(order_path(checkpoint), checkpoint, {"ranks": ranks.tolist()})


def read_order(checkpoint: str | Path, length: int) -> Tensor | None:
    """Return the order of a checkpoint, or None; warn of one that cannot be used."""

    def parse(saved: Any) -> Tensor:
        if sorted(saved["ranks"]) != list(range(length)):
            raise ValueError
        return torch.tensor(saved["ranks"], dtype=torch.long)

    largest = 1000 + 32 * length  # more than a number for each coordinate
    what = f"an order of {length} coordinates"
    return _read(order_path(checkpoint), checkpoint, what, largest, parse)


def _posteriors(denoiser: Denoiser, x: Tensor, t: float, places: Tensor) -> Tensor:
    """Return posterior rows (B, M, V) at places (M,) of each sequence."""
    posterior = denoiser.evaluate(x, torch.full((len(x),), t, device=x.device))
    index = torch.arange(len(x), device=x.device)[:, None] * x.shape[1] + places
    return posterior.probs(index.flatten()).unflatten(0, index.shape)


# Influence of coordinates on each other, learned from a network; its file by a checkpoint.
#
# The influence of coordinate j on i is the total variation by which the posterior of i moves when j, and
# nothing else, is revealed: in the mean over tokens of j, and over both ways. The sampler independent reads
# it as the correlations of a Gaussian field, which says what is left of it once other coordinates are
# revealed (independent.py); `learn_order` measures the mean over contexts instead.
#
# Shapes: B sequences, D coordinates, V data tokens.

MAX_BYTE = 255  # of the root of an influence: one byte, and small ones are told apart


@torch.no_grad()
def learn_influence(
    model: Model, *, contexts: int = 16, data: Tensor | None = None, nfe: int = 16, seed: int = 0
) -> Tensor:
    """Learn how much each two coordinates depend on each other.

    Use it for the sampler independent, which reveals tokens together that don't depend on each other.
    `sample.py --learn_influence` does it and saves the result next to the checkpoint.

    Args:
        model: the model to sample, with a masked source.
        contexts: sequences whose tokens are revealed one at a time. Each takes D evaluations of one sequence.
        data: these sequences (B, D). None: samples of the model.
        nfe: budget of these samples.
        seed: of all randomness.

    Returns:
        Influence (D, D) from 0 to 1, symmetric, for `influence` of `tauflow.Model`.

    Examples:
        >>> import dataclasses, tauflow, torch
        >>> process = tauflow.Mixture(tauflow.Masked(5), "linear")
        >>> model = tauflow.Model(lambda x, t: torch.zeros(*x.shape, 5), process, (4,))
        >>> model = dataclasses.replace(model, influence=tauflow.learn_influence(model, contexts=2))
        >>> tauflow.sample(model, "independent", nfe=2).tokens.shape
        torch.Size([1, 4])
    """
    model = model_from(model)
    process, length = model.process, model.length
    if not process.absorbing:
        raise SamplingError(
            f"influence is of reveals, from a masked source; this model has a {process.name} one"
        )
    if data is None:
        data = sample(model, "fhs", nfe, count=contexts, seed=make_generator(seed)).tokens
    data = check_data(data, length, process.num_tokens).to(model.denoiser.device)
    problem, masks = Problem(model), process.start((1, length)).to(data.device)
    t = process.t_from_share(torch.tensor([1 / (length + 1)], dtype=torch.float64))
    nothing = problem.evaluate(masks, t).clone().dense()  # (1, D, V)
    total = torch.zeros(length, length, dtype=torch.float64)
    for tokens in data:
        for places in torch.arange(length).split(max(1, POSTERIORS // (length * process.num_tokens))):
            at = places.to(data.device)[:, None]
            one = masks.repeat(len(at), 1).scatter(1, at, tokens[at])
            moved = (problem.evaluate(one, t).dense() - nothing).abs().sum(-1) / 2
            total[places] += moved.cpu().double()
    mean = (total + total.T).fill_diagonal_(0) / (2 * len(data))
    return _unpack(_pack(mean), length)


def _pack(influence: Tensor) -> bytes:
    """Return the influence (D, D) of all pairs, a byte each."""
    row, column = torch.triu_indices(len(influence), len(influence), offset=1)
    return bytes((influence[row, column].sqrt() * MAX_BYTE).round().int().tolist())


def _unpack(content: bytes, length: int) -> Tensor:
    """Return influence (D, D) from a byte for each pair."""
    row, column = torch.triu_indices(length, length, offset=1)
    if len(content) != len(row):
        raise ValueError(f"{len(content)} numbers for {len(row)} pairs")
    influence = torch.zeros(length, length)
    influence[row, column] = (torch.tensor(list(content)) / MAX_BYTE).square()
    return influence + influence.T


def influence_path(checkpoint: str | Path) -> Path:
    """Return where the influence of a checkpoint lies: best.ckpt has best.influence.json beside it."""
    return Path(checkpoint).with_suffix(".influence.json")


def save_influence(checkpoint: str | Path, influence: Tensor) -> Path:
    """Write the influence of a checkpoint beside it, from where `tauflow.load` takes it."""
    content = base64.b64encode(_pack(influence)).decode()
    return _save(influence_path(checkpoint), checkpoint, {"pairs": content})


def read_influence(checkpoint: str | Path, length: int) -> Tensor | None:
    """Return the influence of a checkpoint, or None; warn of one that cannot be used."""

    def parse(saved: Any) -> Tensor:
        return _unpack(base64.b64decode(saved["pairs"], validate=True), length)

    largest = 1000 + length * length  # more than four characters for three pairs
    what = f"the influence of {length} coordinates"
    return _read(influence_path(checkpoint), checkpoint, what, largest, parse)


# Counts of reveals learned from a network: the best ones of every budget, and a forecast of what they cost.
#
# A sampler that has revealed the first c tokens of an order and draws the j-th from the same evaluation takes
# it from p(. | first c) where one token an evaluation would take it from p(. | first j). That costs, in the
# mean over data, the excess of a cross-entropy over another,
#
#     E[c, j] = mean of -ln p(x_j | first c) + ln p(x_j | first j) = mean KL(p(. | first j) || p(. | first c))
#
# where the second form, which is the one measured, is that of an exact denoiser: it has the same mean, is
# never negative, and varies so much less that some ten sequences will do. The sum over all tokens of a
# sampler is the KL divergence of its distribution from that of the data, given the order; for a trained
# network, from what the same network draws with one token an evaluation. So the counts with the least sum are
# a shortest path from 0 to D in N steps, which dynamic programming finds for all N at once (Chen, Cong and Li
# 2025; Lavenant and Zanella 2025). The matrix takes D evaluations of these sequences.
#
# Orders that are random, or shifted at random, are drawn for each sequence as a sampler draws them; the
# forecast is a mean over them, and bounds the divergence of the distribution mixed over orders from above.
# Counts that were chosen on some sequences look better on these than on others, so each half of the data
# chooses counts whose forecast is made on the other half; the counts that are kept are those of all.
#
# The same matrix says how much extrapolation makes up for what was lost. With c_n tokens known at step n,
#
#     L_n = sum of E[c_n, j] over the tokens j of step n: lost, since they are drawn as if independent
#     C_n = sum of E[c_{n-1}, j] - E[c_n, j] over the same tokens: what those of step n - 1 say of them
#
# and a row with the weight w, p_n (p_n / p_{n-1})^w, is as if step n - 1 said 1 + w times as much: w C_n nats
# of dependence, where it is weak. So step n pays for what it loses and for what is still owed: w_n = debt /
# C_n, at most 1. Where nothing is lost nothing is extrapolated. (`pairs` of reveal.py is the case of equal
# dependence of all pairs: L_n = k_n (k_n - 1) / 2 and C_n = k_{n-1} k_n.) That is for orders which are drawn
# for each sample, where tokens that lose their dependence here are told of each other there. Along the one
# order of `learned` the same tokens are always drawn together, no other rows than p_n have a lower KL
# divergence, and all weights are 0.
#
# Shapes: B sequences, D coordinates, V data tokens, N evaluations.

ALL = 32  # budgets up to this one have counts of their own
STEP = 2**0.25  # ratio of the larger budgets that have
DIGITS = 6  # of a forecast
ROWS = 2**26  # entries of rows held together: 256 megabytes
TINY = 1e-30  # a probability that counts as none
MIN_NATS = 1e-6  # nats that count as some


def learn_counts(
    model: Model,
    order: OrderName = "spaced",
    *,
    contexts: int = 16,
    data: Tensor | None = None,
    nfe: int | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> LearnedCounts:
    """Learn how many coordinates each evaluation should reveal.

    Use it for samplers with counts=learned, on masked models. The result also forecasts what a budget costs:
    `counts.forecast(nfe)` is in nats per sequence.

    Args:
        model: the model to sample, with a masked source.
        order: unmasking order of the sampler. For `even` on a sequence, whose order depends on the counts,
            the counts of `random` are learned.
        contexts: sequences to measure the network on, in D evaluations.
        data: these sequences (B, D). None: samples of the model.
        nfe: budget of these samples. None is D, one token per evaluation.
        seed: of all randomness.
        advance: called with the number of sequences after each evaluation, for a progress bar: D times for
            each sequence.

    Returns:
        Counts for every budget, for `counts` of `tauflow.Model`.

    Examples:
        >>> import dataclasses, tauflow, torch
        >>> process = tauflow.Mixture(tauflow.Masked(5), "linear")
        >>> model = tauflow.Model(lambda x, t: torch.zeros(*x.shape, 5), process, (4,))
        >>> counts = tauflow.learn_counts(model, contexts=2)
        >>> model = dataclasses.replace(model, counts=[counts])
        >>> tauflow.sample(model, "spaced(counts=learned)", nfe=2).tokens.shape
        torch.Size([1, 4])
    """
    model = model_from(model)
    check_order(model, order)
    generator = make_generator(seed)
    if data is None:
        data = sample(model, "fhs", nfe or model.length, count=contexts, seed=generator).tokens
    data = check_data(data, model.length, model.process.num_tokens)
    check(
        len(data) > 1,
        "counts are learned from at least 2 sequences: one half of them chooses, the other forecasts",
    )
    halves = [excess(model, order, half, generator, advance) for half in data.chunk(2)]
    return learned_from(order_of_counts(order, model.shape), halves)


def check_order(model: Model, order: Any) -> None:
    """Raise if there is no such order of reveals, or none for this model."""
    names = get_args(OrderName)
    check(order in names, f"order must be one of {', '.join(names)}, got {order!r}")
    if reason := needs_masks(model, order):
        raise SamplingError(reason)


def orders_of(model: Model) -> list[OrderName]:
    """Return the orders of a model that can have counts of their own."""
    found: list[OrderName] = ["spaced", "random"]
    found += ["even"] if is_grid(model.shape) else []
    return found + (["learned"] if model.order is not None else [])


@torch.no_grad()
def excess(
    model: Model,
    order: OrderName,
    data: Tensor,
    seed: int | torch.Generator = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """Measure E[c, j] on data (B, D), float64 (D, D): what the j-th token costs if it is drawn given c."""
    check_order(model, order)
    process, length, generator = model.process, model.length, make_generator(seed)
    data = check_data(data, length, process.num_tokens).to(model.denoiser.device)
    problem, along = Problem(model), order_of_counts(order, model.shape)
    keys = drawn_keys(along, problem, len(data), generator).expand(len(data), length)
    times = drawn_times(along, process, torch.full((len(data),), length), length, generator)
    group = max(1, ROWS // (length * process.num_tokens))
    parts = zip(data.split(group), keys.argsort(1).split(group), times.split(group), strict=True)
    total = sum(
        (_excess(problem, *part, advance) for part in parts), torch.zeros(length, length, dtype=torch.float64)
    )
    return total / len(data)


def _excess(
    problem: Problem, data: Tensor, places: Tensor, times: Tensor, advance: Callable[[int], None]
) -> Tensor:
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
        posterior = problem.evaluate(torch.where(ranks < known, data, start), times[:, known])
        hidden = offsets + places[:, known:]
        own[hidden[:, 0]] = posterior.probs(hidden[:, 0]).float()
        costs = [
            divergence(own[index], posterior.probs(index)) for index in chunks(hidden.flatten(), num_tokens)
        ]
        found[known, known:] = torch.cat(costs).view(batch, -1).cpu().double().sum(0)
        advance(batch)
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
        weight = round(min(1.0, debt / says), DIGITS) if debt > MIN_NATS and says > MIN_NATS else 0.0
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


def counts_path(checkpoint: str | Path) -> Path:
    """Return where the counts of a checkpoint lie: best.ckpt has best.counts.json beside it."""
    return Path(checkpoint).with_suffix(".counts.json")


def save_counts(checkpoint: str | Path, counts: tuple[LearnedCounts, ...]) -> Path:
    """Write the counts of a checkpoint beside it, from where `tauflow.load` takes them."""
    content = [dataclasses.asdict(each) for each in counts]
    return _save(counts_path(checkpoint), checkpoint, {"learned": content})


def read_counts(checkpoint: str | Path, length: int) -> tuple[LearnedCounts, ...]:
    """Return the counts of a checkpoint, one for each order that has some; warn of a file without use."""

    def parse(saved: Any) -> tuple[LearnedCounts, ...]:
        found = []
        for each in saved["learned"]:
            counts, weights = (tuple(map(tuple, each[name])) for name in ("counts", "weights"))
            found.append(LearnedCounts(each["order"], counts, tuple(each["excess"]), weights))
        if unknown := {each.order for each in found} - set(get_args(OrderName)):
            raise ValueError(f"unknown orders {unknown}")
        return check_counts(found, length)

    largest = len(get_args(OrderName)) * (20_000 + 200 * length)
    what = f"counts for {length} coordinates"
    return _read(counts_path(checkpoint), checkpoint, what, largest, parse) or ()
