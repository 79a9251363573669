"""What a sampler costs beside the network: time and memory of tr_cie, of its literal dense version and of
flow_matching's Euler solver.

    pip install -c constraints.txt -e '.[bench]'
    python -m benchmarks sampler_overhead            fifteen minutes on two cores; prints tables
    python -m benchmarks sampler_overhead --quick    the small shape only
    python -m benchmarks sampler_overhead --gpt2     the paper's size only, at 8 evaluations

Every case runs in its own process. `fixed` is a denoiser that returns the same logits at once, so that all
time is the sampler's; `network` is our Transformer (width 256, 4 blocks, 4 heads; at the paper's size width
768, 12 blocks, 12 heads) with its split head, given to flow_matching as a model that returns probabilities.
Overhead is the time of a step less the time of a bare forward with all logits. Peak memory is the rise of the
process's high-water mark over that of a bare evaluation (of the hidden states alone, for the split network),
in units of one logits tensor. The source is uniform, where every coordinate may move at every step: the
expensive case. The dense version and the peer, whose steps all cost the same, are timed over the first 8
steps of their grid at the larger shapes.
"""

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SHAPES = [(8, 256, 32), (8, 256, 8192), (4, 256, 50258)]
GPT2 = (1, 1024, 50257)
METHODS = ["tr_cie", "tr_cie dense", "flow_matching"]


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def clock(function: Callable[[], Any], repetitions: int = 1) -> float:
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class FixedLogits:
    """The same logits (B, D, V) at every call."""

    def __init__(self, shape: tuple[int, int, int]):
        self.logits = torch.randn(shape)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.logits


def network_of(shape: tuple[int, int, int]) -> Any:
    """Return our Transformer for samples of this shape."""
    from tauflow.networks import TransformerConfig

    _, length, v = shape
    small = {"width": 256, "blocks": 4, "heads": 4}
    size = {"width": 768, "blocks": 12, "heads": 12} if shape == GPT2 else small
    network = TransformerConfig(**size).build((length,), v, v).eval()
    torch.nn.init.normal_(network.output.weight, std=0.05)
    return network


def ours(model: Any, shape: tuple[int, int, int], nfe: int, steps: int, method: str) -> Callable[[], Any]:
    """Return a call that samples with tr_cie; with fewer steps than nfe, the first ones of the same grid."""
    import tauflow

    batch, length, v = shape
    sampled = tauflow.Model(model, tauflow.Mixture(tauflow.Uniform(v), "linear"), (length,))
    spec = "tr_cie(dense=true)" if "dense" in method else "tr_cie"
    if steps < nfe:
        spec = f"tr_cie(dense=true, finish=none, cutoff={1 - steps / nfe})"
    return lambda: tauflow.sample(sampled, spec, steps, count=batch)


def peer(model: Any, x: Tensor, v: int, nfe: int, steps: int) -> Callable[[], Any]:
    """Return a call that makes the first steps of flow_matching's Euler solver from x (B, D)."""
    from flow_matching.path import MixtureDiscreteProbPath
    from flow_matching.path.scheduler import PolynomialConvexScheduler
    from flow_matching.solver import MixtureDiscreteEulerSolver
    from flow_matching.utils import ModelWrapper

    class Probabilities(ModelWrapper):
        def forward(self, x: Tensor, t: Tensor, **extras: Any) -> Tensor:
            return self.model(x, t.expand(len(x))).softmax(-1)

    class Fixed(torch.nn.Module):
        def forward(self, x: Tensor, t: Tensor, **extras: Any) -> Tensor:
            return probabilities

    if isinstance(model, FixedLogits):
        probabilities = model.logits.softmax(-1)
        wrapper = Fixed()
    else:
        wrapper = Probabilities(model)
    path = MixtureDiscreteProbPath(scheduler=PolynomialConvexScheduler(n=1.0))
    solver = MixtureDiscreteEulerSolver(model=wrapper, path=path, vocabulary_size=v)
    grid = torch.tensor([0.0, steps / nfe])
    return lambda: solver.sample(x_init=x, step_size=1 / nfe, time_grid=grid)


def warm_up() -> None:
    """Sample a little, which loads what is loaded lazily."""
    import tauflow

    process = tauflow.Mixture(tauflow.Uniform(8), "linear")
    model = tauflow.Model(lambda x, t: torch.zeros(*x.shape, 8), process, (64,))
    tauflow.sample(model, "tr_cie", nfe=4, count=2)


def case(shape: tuple[int, int, int], nfe: int, kind: str, method: str) -> dict[str, float]:
    """Measure one case; meant for a process of its own."""
    torch.manual_seed(0)
    batch, length, v = shape
    small = v <= 1000
    x, t = torch.randint(v, (batch, length)), torch.full((batch,), 0.5)
    if kind == "network":
        model = network_of(shape)
        bare = lambda: model(x, t)  # noqa: E731
        start = lambda: model.hidden(x, t)  # noqa: E731
    else:
        model = FixedLogits(shape)
        bare = start = lambda: None
    steps = nfe if small or method == "tr_cie" else min(8, nfe)
    if method == "flow_matching":
        sample = peer(model, x, v, nfe, steps)
    else:
        sample = ours(model, shape, nfe, steps, method)
    warm_up()
    with torch.no_grad():
        start()
        before = peak()
        sample()
        extra = (peak() - before) / (batch * length * v * 4)
        repetitions = 5 if small else 2
        forward, total = [], []
        for _ in range(repetitions):  # interleaved
            forward.append(clock(bare, 5 if small else 3))
            total.append(clock(sample))
    forward, step = statistics.median(forward), statistics.median(total) / steps
    return {"overhead": 1e3 * (step - forward), "step": 1e3 * step, "forward": 1e3 * forward, "extra": extra}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small shape only")
    parser.add_argument("--gpt2", action="store_true", help="the paper's size only")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        shape, nfe, kind, method = json.loads(arguments.case)
        print(json.dumps(case(tuple(shape), nfe, kind, method)))
        return
    shapes, nfes = (SHAPES[:1] if arguments.quick else SHAPES), (8, 64)
    if arguments.gpt2:
        shapes, nfes = [GPT2], (8,)
    for kind in ("fixed", "network"):
        print(
            f"\n{kind}\n\n| B, D, V | NFE | method | overhead, ms/step | of flow_matching's "
            "| step / bare forward | peak extra |"
        )
        print("|---|---|---|---|---|---|---|")
        for shape, nfe in itertools.product(shapes, nfes):
            rows = {}
            for method in METHODS:
                command = [sys.executable, __file__, "--case", json.dumps([shape, nfe, kind, method])]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rows[method] = json.loads(done.stdout.splitlines()[-1])
            for method, row in rows.items():
                of_peer = row["overhead"] / rows["flow_matching"]["overhead"]
                extra = "" if shape[2] < 1000 else f"{row['extra']:.2f}"
                of_forward = f"{row['step'] / row['forward']:.2f}" if kind == "network" else ""
                print(
                    f"| {shape} | {nfe} | {method} | {row['overhead']:.2f} | {of_peer:.3f} "
                    f"| {of_forward} | {extra} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
