"""Counts for `auto`, learned when a masked model is trained, where that costs little of the training time.

`auto` samples a masked model best with counts learned from it (samplers/learned.py). They take an evaluation
per coordinate and order, on a few sequences. How long that takes follows from one evaluation, timed before.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from tauflow.denoise import LearnedCounts, Model
from tauflow.samplers import sample
from tauflow.samplers.learned import learn_counts, orders_of
from tauflow.samplers.random import chunks
from tauflow.samplers.sampler import Problem

SHARE = 0.05  # of the training time that learning may take
MIN_TRAINING = 60.0  # seconds; a shorter training is a trial
CONTEXTS = (16, 8)  # sequences to learn from: fewer if more would take too long


def budget_of(seconds: float) -> float:
    """Return how many seconds learning may take after so many seconds of training."""
    return SHARE * seconds if seconds >= MIN_TRAINING else 0.0


def learn_within(
    model: Model, budget: float, data: Tensor | None = None, progress: bool = False
) -> tuple[LearnedCounts, ...]:
    """Learn counts along as many orders as fit in a budget of seconds; none if not even one does.

    Args:
        model: a model with a masked source.
        budget: seconds that it may take, by an estimate.
        data: sequences (B, D) to learn from, at least 2. None: samples of the model, which take as long as an
            order.
        progress: show a bar.
    """
    if not budget:
        return ()
    orders = sorted(orders_of(model), key=lambda order: order == "random")  # that one is seldom the best
    for contexts in CONTEXTS:
        passes = budget / (model.length * seconds_of_evaluation(model, contexts))  # over all coordinates
        count = min(len(orders), int(passes if data is not None else passes - 1))
        if count > 0:
            break
    else:
        return ()
    if data is None:
        data = sample(model, "fhs", model.length, count=contexts, seed=0).tokens
    with _bar(count * model.length * contexts, progress) as advance:
        return tuple(
            learn_counts(model, order, data=data[:contexts], advance=advance) for order in orders[:count]
        )


def seconds_of_evaluation(model: Model, contexts: int) -> float:
    """Time an evaluation of so many sequences in two halves, and what is computed from all of its rows."""
    problem = Problem(model)
    x = model.process.start((contexts // 2, model.length)).to(model.denoiser.device)
    t = model.process.t_from_share(torch.tensor([0.5], dtype=torch.float64))
    index = torch.arange(x.numel(), device=x.device)
    with torch.no_grad():
        for _ in range(2):  # the first one is slower
            begin = time.perf_counter()
            posterior = problem.evaluate(x, t)
            for rows in chunks(index, model.process.num_tokens):
                posterior.probs(rows).sum().item()  # which waits for the device
            seconds = time.perf_counter() - begin
    return 2 * seconds


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task("learning counts for auto", total=total)
        yield lambda count: bar.advance(task, count)
