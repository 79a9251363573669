"""What a step costs where the vocabulary is large, beside the head and beside the schedulers of diffusers.

    pip install -c constraints.txt -e '.[diffusers]'
    taskset -c 1 python -m benchmarks large_vocabulary    five minutes on one core and 8 GB; prints tables

The hidden states (B, D, W) are fixed, so all time is the head's and the sampler's: B = 4, D = 256, a uniform
source, and V of LLaDA and of DiffusionGemma. Each row has a token of its own with a probability of about 0.8.
The unit of time is a bare head pass over all B D rows, which diffusers needs before each of its steps; times
are of the processor, on one thread, all from one process. The unit of memory is a logits tensor (B, D, V): a
peak is the rise of the process's resident memory over that before, for diffusers beside the logits it is
given.
"""

import argparse
import ctypes
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import BlockRefinementScheduler, DiscreteDDIMScheduler
from torch import Tensor

import tauflow

B, D = 4, 256
VOCABULARIES = (126464, 262144)
SAMPLERS = ("bridge_systematic", "tr_cie")
HEADER = """| V | NFE | method | rows through the head a step | a step, in head passes | beyond the head, of \
DiscreteDDIM's | peak extra, logits tensors |
|---|---|---|---|---|---|---|"""
PEERS = {"BlockRefinement": BlockRefinementScheduler, "DiscreteDDIM": DiscreteDDIMScheduler}


class Head:
    """A network of fixed hidden states (B, D, W) with a linear head that counts its rows and its seconds."""

    def __init__(self, num_tokens: int, width: int):
        torch.manual_seed(0)
        self.weight = torch.randn(num_tokens, width).div_(width**0.5)
        own = self.weight[torch.randint(num_tokens, (B, D))]
        # others have logits of N(0, 1), so logsumexp ln V + 1/2; the own one stands 1.4 above it
        height = torch.tensor(num_tokens).log() + 0.5 + 1.4
        self.states = own * (height / own.square().sum(-1, keepdim=True)) + torch.randn(B, D, width)
        self.reset()

    def reset(self) -> None:
        self.rows, self.seconds = 0, 0.0

    def hidden(self, x: Tensor, t: Tensor) -> Tensor:
        return self.states

    def head(self, rows: Tensor) -> Tensor:
        begin = time.process_time()
        logits = rows @ self.weight.T
        self.seconds += time.process_time() - begin
        self.rows += len(rows)
        return logits


def seconds(function: Callable[[], Any]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def memory(name: str) -> int:
    """Return a number of bytes that the kernel knows of this process."""
    found = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(found[name].split()[0])


def peak(function: Callable[[], Any]) -> float:
    """Return by how many bytes resident memory rose while a function ran."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the present
    before = memory("VmRSS")
    function()
    return memory("VmHWM") - before


def warm_up() -> None:
    """Sample a little, which loads what is loaded lazily."""
    model = tauflow.Model(
        lambda x, t: torch.zeros(B, D, 64), tauflow.Mixture(tauflow.Uniform(64), "linear"), (D,)
    )
    for name in SAMPLERS:
        tauflow.sample(model, name, 4, count=B)


def print_row(*cells: Any) -> None:
    print(
        "|",
        " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells),
        "|",
        flush=True,
    )


def head_by_rows(head: Head, bare: float) -> None:
    """Print what a row costs where few go through the head at once."""
    flat = head.states.flatten(0, 1)
    print("\nrows at once, and the cost of a row, of that in a pass over all rows: ", end="")
    for rows in (1, 2, 4, 8, 16, 32):
        head.head(flat[:rows])
        took = statistics.median(seconds(lambda rows=rows: head.head(flat[:rows])) for _ in range(3))
        print(f"{rows}: {took / rows / (bare / (B * D)):.1f}", end="; " if rows < 32 else "\n\n")


def peer_step(name: str, temperature: float, logits: Tensor, x: Tensor) -> Callable[[], Any]:
    scheduler = PEERS[name]()
    scheduler.set_timesteps(64)
    generator = torch.Generator().manual_seed(0)
    return lambda: scheduler.step(logits, 3, x, temperature=temperature, generator=generator)


def peers(head: Head) -> tuple[float, float]:
    """Print the rows of diffusers; return the seconds of a head pass, and of a step of DiscreteDDIM."""
    num_tokens = len(head.weight)
    flat = head.states.flatten(0, 1)
    x = torch.randint(num_tokens, (B, D))
    logits = head.head(flat).view(B, D, -1)
    found = {}
    for key in itertools.product(PEERS, (1.0, 0.0)):
        step = peer_step(*key, logits, x)
        found[key] = peak(step) / logits.nbytes, seconds(step)
    del logits, step
    bare = statistics.median(seconds(lambda: head.head(flat)) for _ in range(3))
    head_by_rows(head, bare)
    print(HEADER)
    ddim = found["DiscreteDDIM", 1.0][1]
    for (name, temperature), (extra, took) in found.items():
        name = f"{name}, temperature {temperature:g}"
        print_row(num_tokens, "any", name, 1.0, 1 + took / bare, took / ddim, extra)
    return bare, ddim


def ours(head: Head, name: str, nfe: int, bare: float, ddim: float) -> None:
    """Print the row of a sampler."""
    num_tokens = len(head.weight)
    model = tauflow.Model(head, tauflow.Mixture(tauflow.Uniform(num_tokens), "linear"), (D,))
    times = []

    def sample() -> None:
        times.append(seconds(lambda: tauflow.sample(model, name, nfe, count=B)))

    head.reset()
    extra = peak(sample) / (4 * B * D * num_tokens)
    step, beyond = times[0] / nfe, (times[0] - head.seconds) / nfe
    print_row(num_tokens, nfe, name, head.rows / nfe / (B * D), step / bare, beyond / ddim, extra)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=128, help="W of the hidden states")
    parser.add_argument("--vocabulary", type=int, nargs="+", default=VOCABULARIES, help="V")
    parser.add_argument("--nfe", type=int, nargs="+", default=[64, 8], help="budgets of evaluations")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warm_up()
    for num_tokens in arguments.vocabulary:
        head = Head(num_tokens, arguments.width)
        units = peers(head)
        for nfe in arguments.nfe:
            for name in SAMPLERS:
                ours(head, name, nfe, *units)


if __name__ == "__main__":
    main()
