"""Two versions of tauflow against each other: sampling and training steps, side by side in one run.

    git worktree add ../before <commit>
    python -m benchmarks before_after --before ../before        about ten minutes on one core; prints a table

Each version runs in a process of its own. The two take turns, a measurement at a time, so that a busy moment
of the machine falls on both; reported is the median ratio of neighbouring measurements with its quartiles.
The worker speaks the interface of the version it finds (0.1: denoiser, source, schedule and shape; 0.2: a
Model).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SAMPLING = [
    *(
        (name, "masked", 32, nfe)
        for name in ("tr_cie", "tweedie", "theta_trapezoidal", "spaced_even")
        for nfe in (8, 64)
    ),
    *((name, "uniform", 32, nfe) for name in ("tr_cie", "euler", "bridge_systematic") for nfe in (8, 64)),
    ("tr_cie", "uniform", 8192, 64),
    ("spaced_even", "masked", 8192, 64),
]
TRAINING = [("masked", 32), ("uniform", 32), ("masked", 8192)]
BATCH, LENGTH = 8, 256


def sampling(name: str, source: str, tokens: int, nfe: int) -> Callable[[], object]:
    """Return a call that draws a batch from fixed logits: all its time is the sampler's."""
    import torch

    import tauflow

    logits = torch.randn(BATCH, LENGTH, tokens, generator=torch.Generator().manual_seed(0))
    kind = {"masked": tauflow.Masked, "uniform": tauflow.Uniform}[source](tokens)
    if hasattr(tauflow, "Model"):
        model = tauflow.Model(lambda x, t: logits, tauflow.Mixture(kind, "quadratic"), (LENGTH,))
        return lambda: tauflow.sample(model, name, nfe, count=BATCH)
    return lambda: tauflow.sample(lambda x, t: logits, kind, "quadratic", (BATCH, LENGTH), name, nfe)


def training(source: str, tokens: int) -> Callable[[], object]:
    """Return a call that makes a training step: loss, gradient, optimizer, averaged weights."""
    import torch

    torch.manual_seed(0)
    sizes = {"width": 128, "blocks": 2, "heads": 4}
    try:
        from tauflow.networks import TransformerConfig
        from tauflow.tasks import DataFacts
        from tauflow.train import DFMModule

        module = DFMModule(DataFacts(tokens, (LENGTH,)), source, network=TransformerConfig(**sizes))
    except ImportError:
        from tauflow.module import DFMModule

        from tauflow.networks import TransformerConfig

        module = DFMModule(tokens, LENGTH, source, network=TransformerConfig(**sizes))
    optimizer = torch.optim.AdamW(module.network.parameters(), lr=1e-3)
    x_1 = torch.randint(tokens, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        noise = module.training_noise(0, BATCH)
        loss = module.loss(x_1, noise, torch.arange(BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        module.ema.update(module.network, 1)

    return step


def worker() -> None:
    """Answer each line, a case with a number of repetitions, with the seconds of that many calls."""
    import torch

    torch.set_num_threads(1)
    calls: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        kind, case, repetitions = json.loads(line)
        key = json.dumps([kind, case])
        if key not in calls:
            calls[key] = {"sampling": sampling, "training": training}[kind](*case)
            calls[key]()  # loads what is loaded lazily
        begin = time.perf_counter()
        for _ in range(repetitions):
            calls[key]()
        print(json.dumps(time.perf_counter() - begin), flush=True)


def start(root: Path) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def ask(process: subprocess.Popen, kind: str, case: tuple, repetitions: int) -> float:
    process.stdin.write(json.dumps([kind, case, repetitions]) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def compare(processes: list[subprocess.Popen], kind: str, case: tuple, rounds: int) -> None:
    once = [ask(process, kind, case, 1) for process in processes]
    repetitions = max(1, round(0.2 / max(once)))
    ratios, befores = [], []
    for number in range(rounds):
        order = processes if number % 2 else processes[::-1]
        found = {id(process): ask(process, kind, case, repetitions) for process in order}
        before, after = (found[id(process)] for process in processes)
        ratios.append(after / before)
        befores.append(1e3 * before / repetitions)
    low, middle, high = statistics.quantiles(ratios, n=4)
    name = ", ".join(map(str, case))
    print(
        f"| {kind}: {name} | {statistics.median(befores):.1f} | {middle:.3f} | {low:.3f} - {high:.3f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--rounds", type=int, default=21, help="measurements of each case (default 21)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker()
        return
    if arguments.before is None or not (arguments.before / "src").is_dir():
        sys.exit("error: --before must name a checkout of tauflow, a folder with src/ in it")
    processes = [start(arguments.before.resolve()), start(Path(__file__).resolve().parents[2])]
    print(
        f"B = {BATCH}, D = {LENGTH}\n\n| case | before, ms | after / before | quartiles |\n|---|---|---|---|"
    )
    for case in SAMPLING:
        compare(processes, "sampling", case, arguments.rounds)
    for case in TRAINING:
        compare(processes, "training", case, arguments.rounds)


if __name__ == "__main__":
    main()
