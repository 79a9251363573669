"""What a sampler costs beside the network: time and memory of tr_cie, of its literal dense version and of flow_matching's Euler solver.

    pip install -c constraints.txt -e '.[bench]'
    python benchmarks/sampler_overhead.py            about fifteen minutes on two cores; prints Markdown tables
    python benchmarks/sampler_overhead.py --quick    the small shape only
    python benchmarks/sampler_overhead.py --gpt2     the paper's size only, at 8 evaluations: about fifteen minutes

Every case runs in its own process. `fixed` is a denoiser that returns the same logits at once, so that all time is the sampler's; `network`
is our Transformer (width 256, 4 blocks, 4 heads; at the paper's size width 768, 12 blocks, 12 heads) with its split head, given to
flow_matching as a model that returns probabilities. Overhead is the time of a step less the time of a bare forward with all logits. Peak
memory is the rise of the process's high-water mark over that of a bare evaluation (of the hidden states alone, for the split network), in
units of one logits tensor. The source is uniform, where every coordinate may move at every step: the expensive case. The dense version and
the peer, whose steps all cost the same, are timed over the first 8 steps of their grid at the larger shapes.
"""

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time

import torch

SHAPES = [(8, 256, 32), (8, 256, 8192), (4, 256, 50258)]
GPT2 = (1, 1024, 50257)
METHODS = ["tr_cie", "tr_cie dense", "flow_matching"]


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def clock(function, repetitions: int = 1) -> float:
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def case(shape: tuple[int, int, int], nfe: int, kind: str, method: str) -> dict:
    """One measurement; meant for a process of its own."""
    import tauflow
    from tauflow.networks import Transformer, TransformerConfig

    torch.manual_seed(0)
    batch, length, v = shape
    source, small = tauflow.Uniform(v), v <= 1000
    x, t = torch.randint(v, (batch, length)), torch.full((batch,), 0.5)
    if kind == "network":
        size = {"width": 768, "blocks": 12, "heads": 12} if shape == GPT2 else {"width": 256, "blocks": 4, "heads": 4}
        model = Transformer(TransformerConfig(**size), v, v).eval()
        torch.nn.init.normal_(model.output.weight, std=0.05)
        bare = lambda: model(x, t)  # noqa: E731
        start = lambda: model.hidden(x, t)  # noqa: E731
    else:
        logits = torch.randn(batch, length, v)
        model = lambda x, t: logits  # noqa: E731
        bare = start = lambda: None
    steps = nfe if small or method == "tr_cie" else min(8, nfe)
    if method == "flow_matching":
        from flow_matching.path import MixtureDiscreteProbPath
        from flow_matching.path.scheduler import PolynomialConvexScheduler
        from flow_matching.solver import MixtureDiscreteEulerSolver
        from flow_matching.utils import ModelWrapper

        class Probabilities(ModelWrapper):
            def forward(self, x, t, **extras):
                return self.model(x, t.expand(len(x))).softmax(-1)

        class Fixed(torch.nn.Module):
            def forward(self, x, t, **extras):
                return probabilities

        if kind == "fixed":
            probabilities = logits.softmax(-1)
            wrapper = Fixed()
        else:
            wrapper = Probabilities(model)
        path = MixtureDiscreteProbPath(scheduler=PolynomialConvexScheduler(n=1.0))
        solver = MixtureDiscreteEulerSolver(model=wrapper, path=path, vocabulary_size=v)
        grid = torch.tensor([0.0, steps / nfe])
        sample = lambda: solver.sample(x_init=x, step_size=1 / nfe, time_grid=grid)  # noqa: E731
    elif steps < nfe:  # the first steps of the same grid
        sample = lambda: tauflow.sample(  # noqa: E731
            model, source, "linear", (batch, length), nfe=steps, dense=True, finish="none", cutoff=1 - steps / nfe
        )
    else:
        sample = lambda: tauflow.sample(model, source, "linear", (batch, length), nfe=nfe, dense="dense" in method)  # noqa: E731

    tauflow.sample(lambda x, t: torch.zeros(*x.shape, 8), tauflow.Uniform(8), "linear", (2, 64), nfe=4)  # loads what is loaded lazily
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        print(f"\n{kind}\n\n| B, D, V | NFE | method | overhead, ms a step | of flow_matching's | step / bare forward | peak extra |")
        print("|---|---|---|---|---|---|---|")
        for shape, nfe in itertools.product(shapes, nfes):
            rows = {}
            for method in METHODS:
                command = [sys.executable, __file__, "--case", json.dumps([shape, nfe, kind, method])]
                rows[method] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
            for method, row in rows.items():
                of_peer = row["overhead"] / rows["flow_matching"]["overhead"]
                extra = "" if shape[2] < 1000 else f"{row['extra']:.2f}"
                of_forward = f"{row['step'] / row['forward']:.2f}" if kind == "network" else ""
                print(
                    f"| {shape} | {nfe} | {method} | {row['overhead']:.2f} | {of_peer:.3f} | {of_forward} | {extra} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
