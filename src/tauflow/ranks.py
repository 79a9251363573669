"""The process group, if there is one: which rank this is, numbers reduced over all ranks, and lost ranks."""

import re
from collections.abc import Iterable

import torch

LOST = re.compile("connection (was )?(likely )?(closed|reset)|timed out|timeout", re.IGNORECASE)


def backend() -> str:
    distributed = torch.distributed
    return distributed.get_backend() if distributed.is_available() and distributed.is_initialized() else ""


def rank() -> int:
    return torch.distributed.get_rank() if backend() else 0


def world_size() -> int:
    return torch.distributed.get_world_size() if backend() else 1


def over_ranks(values: Iterable[float], operation: str) -> list[float]:
    device = "cuda" if backend() == "nccl" else "cpu"
    tensor = torch.tensor(list(values), dtype=torch.float64, device=device)
    if backend():
        torch.distributed.all_reduce(tensor, getattr(torch.distributed.ReduceOp, operation))
    return tensor.tolist()


def largest(value: float) -> float:
    return over_ranks([value], "MAX")[0]


def is_lost_rank(error: Exception) -> bool:
    """Return whether an error of torch.distributed says that another rank died or doesn't answer."""
    return isinstance(error, RuntimeError) and bool(backend() and LOST.search(str(error)))
