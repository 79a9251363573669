"""The process group, if there is one: which rank this is, work done on all ranks together, and lost ranks."""

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from tauflow.errors import SamplingError, TauflowError, WriteError

T = TypeVar("T")
LOST = re.compile("connection (was )?(likely )?(closed|reset)|timed out|timeout", re.IGNORECASE)


def backend() -> str:
    distributed = torch.distributed
    return distributed.get_backend() if distributed.is_available() and distributed.is_initialized() else ""


def rank() -> int:
    return torch.distributed.get_rank() if backend() else 0


def world_size() -> int:
    return torch.distributed.get_world_size() if backend() else 1


def all_reduce(values: Iterable[float], operation: str) -> list[float]:
    """Reduce each value over all ranks; `operation` is a name of `torch.distributed.ReduceOp`."""
    device = "cuda" if backend() == "nccl" else "cpu"
    tensor = torch.tensor(list(values), dtype=torch.float64, device=device)
    if backend():
        torch.distributed.all_reduce(tensor, getattr(torch.distributed.ReduceOp, operation))
    return tensor.tolist()


def all_reduce_max(value: float) -> float:
    return all_reduce([value], "MAX")[0]


def run_on_all_ranks(work: Callable[[], None]) -> None:
    """Do the work on all ranks; an error on any of them is raised on all."""
    problem: Exception | None = None
    try:
        work()
    except Exception as error:
        if world_size() == 1:
            raise
        problem = error
    severity = 0.0
    if problem is not None:
        severity = 2.0 if isinstance(problem, WriteError) else 1.0
    worst = all_reduce_max(severity)
    if worst:
        message = f"{type(problem).__name__}: {problem}" if problem else "failed on another device"
        raise WriteError(message) if worst == 2 else SamplingError(message)


def run_on_rank_zero(work: Callable[[], T]) -> T:
    """Do the work on rank 0 and return its result on all ranks; an error is raised on all of them."""
    if world_size() == 1:
        return work()
    found: list[Any] = [None, None]  # result, error
    if rank() == 0:
        try:
            found[0] = work()
        except TauflowError as error:
            found[1] = error
    torch.distributed.broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    return found[0]


def is_lost_rank(error: Exception) -> bool:
    """Return whether a torch.distributed error means that another rank died or doesn't answer."""
    return isinstance(error, RuntimeError) and bool(backend() and LOST.search(str(error)))
