"""nll: how likely real items are to a sampler at a budget, measured beside its samples.

Every sampler sees the same validation items in the same batches with the same seeds, and a cell keeps the
number of each item: so differences between samplers are paired. Ranks share the batches.
"""

import dataclasses
from collections.abc import Callable

from tauflow.denoise import Model
from tauflow.evaluation.measure import Sampling, together
from tauflow.evaluation.reference import real_items, val_count
from tauflow.evaluation.store import Cell, Measured, Record, Scale
from tauflow.ranks import over_ranks, rank, world_size
from tauflow.samplers import Sampler, nll
from tauflow.samplers.likelihood import no_likelihood
from tauflow.tasks import Task

NLL = "nll"  # in nats for each coordinate


def nll_units(task: Task) -> dict[str, float]:
    """Return the names of nll with their factors: nats for each coordinate, and the units of the task."""
    return {NLL: 1.0} | {f"nll_{name}": factor for name, factor in task.units.items()}


def nll_scales(task: Task) -> dict[str, Scale]:
    """Return how nll is read, in each unit."""
    return dict.fromkeys(nll_units(task), Scale(logarithmic=False))


def no_nll(sampler: Sampler, model: Model, task: Task, sampling: Sampling) -> str:
    """Return why the nll of a sampler is not measured, or nothing if it is."""
    if sampling.condition is not None or sampling.prompt is not None:
        return "it is that of validation items, and samples were asked for a condition or a prompt"
    if sampling.top_k is not None or sampling.top_p is not None:
        return "tokens of real data that top-k or top-p cuts off have no probability"
    if task.alone:
        return "there is no real data"
    return no_likelihood(sampler, model)


def nll_batches(task: Task, sampling: Sampling) -> list[range]:
    """Return the numbers of the items of each batch."""
    count, size = min(sampling.nll_items, val_count(task)), sampling.batch_size
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def with_nll(
    cell: Cell,
    model: Model,
    task: Task,
    sampler: Sampler,
    sampling: Sampling,
    advance: Callable[[], None] = lambda: None,
) -> Cell:
    """Return a measured cell with the nll of validation items, in all units."""
    model = sampling.model_of(model, cell.factors)
    batches = nll_batches(task, sampling)
    nats = [0.0] * sum(map(len, batches))  # of each item, where it is this rank's

    def force() -> None:
        for batch in range(rank(), len(batches), world_size()):
            tokens, condition = real_items(task, batches[batch])
            generator = sampling.generator_for(batch)
            nfe = int(cell.factors["nfe"])
            found = nll(model, sampler, nfe, tokens, condition=condition, seed=generator)
            nats[batches[batch].start : batches[batch].stop] = found.tolist()
            advance()

    together(force)
    each = [number / task.length for number in over_ranks(nats, "SUM")]
    items = {name: [factor * number for number in each] for name, factor in nll_units(task).items()}
    records = [Record(cell.factors, name, Measured.mean(numbers)) for name, numbers in items.items()]
    return dataclasses.replace(cell, records=cell.records + records, items=cell.items | items)
