"""Which optimizer and precision reach a lower validation bound in the same CPU time?

    python -m benchmarks optimizers --config text_masked --seconds 600 --out results
    python -m benchmarks optimizers --config countdown --jobs 2 --trials "adamw 32-true" "muon bf16-mixed"

A trial is a configuration with an optimizer, a precision, and further flags of train.py. First a few steps of
each are timed, on one thread, in rounds that take turns, and the fastest round counts. So the ratio of two
times holds on a busy machine, too. Then each trains in its own process for as many steps as fit into the
seconds, with its whole learning-rate schedule. Validations don't count. The output is a table of bounds at a
tenth, a fifth, a half, and the whole of the time.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

ROOT = Path(__file__).parents[2]
TRIALS = ["adamw 32-true", "adamw bf16-mixed", "muon 32-true", "muon bf16-mixed"]
SHARES = (0.1, 0.2, 0.5, 1.0)
TIMED = (4, 16)  # steps between which the time of a step is taken
ROUNDS = 3


class Clock(Callback):
    """Records the CPU seconds of each training step, and [step, val/bound] at each validation."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.curve: list[list[float]] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.begin = time.process_time()

    def on_train_batch_end(self, *args: Any) -> None:
        self.seconds.append(time.process_time() - self.begin)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.curve.append([trainer.global_step, trainer.callback_metrics["val/bound"].item()])


def train(config: str, trial: str, steps: int, folder: Path, *flags: str) -> Clock:
    """Train a trial as train.py does, without samplers."""
    import torch

    from tauflow.cli.train import TauflowCLI, convert_words

    torch.set_num_threads(1)
    name, precision, *own = shlex.split(trial)
    words = ["-c", str(ROOT / "configs" / f"{config}.yaml"), f"--model.optimizer.name={name}"]
    words += [f"--trainer.precision={precision}", f"--trainer.max_steps={steps}", *own, *flags]
    words += [f"--trainer.default_root_dir={folder}", "--evaluation.every_n_validations=0"]
    cli = TauflowCLI(convert_words(words))
    clock = Clock()
    cli.trainer.callbacks.append(clock)
    cli.fit()
    if clock.curve and clock.curve[-1][0] < steps:  # the end is between two validations
        cli.trainer.validate(cli.model, cli.datamodule, verbose=False)
    return clock


def time_step(config: str, trial: str, folder: Path) -> float:
    """Return the CPU seconds of a step of a trial."""
    few = ("--data.epoch_items=10000000", "--data.val_items=16")
    seconds = train(config, trial, TIMED[1] + 1, folder, *few).seconds[slice(*TIMED)]
    return sum(seconds) / len(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks optimizers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", default="countdown", help="name of a file in configs/")
    parser.add_argument("--trials", nargs="+", default=TRIALS, help='such as "muon bf16-mixed --FLAG=VALUE"')
    parser.add_argument("--seconds", type=float, default=300, help="CPU seconds of each trial")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--out", type=Path, default=Path("results_optimizers"), help="folder of the results")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # a part of a trial in its own process
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        if options.steps:
            result: Any = train(options.config, options.trials[0], options.steps, options.one.parent).curve
        else:
            result = time_step(options.config, options.trials[0], options.one.parent)
        options.one.write_text(json.dumps(result) + "\n")
        return

    def run(trial: str, name: str, steps: int = 0) -> Any:
        """Run a part of a trial unless its result is there already; return the result."""
        folder = (options.out / re.sub(r"[^\w.-]+", "_", f"{options.config} {trial}")).resolve()
        path = folder / name
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            words = ["--config", options.config, "--one", str(path), "--steps", str(steps), "--trials", trial]
            with (folder / "log.txt").open("a") as log:
                subprocess.run(
                    [sys.executable, "-m", "benchmarks", "optimizers", *words],
                    cwd=ROOT,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=True,
                )
        return json.loads(path.read_text())

    rounds = [[run(trial, f"step_{n}.json") for trial in options.trials] for n in range(ROUNDS)]
    per_step = [min(times) for times in zip(*rounds, strict=True)]
    steps = [max(1, round(options.seconds / each)) for each in per_step]
    names = [f"curve_{each}.json" for each in steps]
    with ThreadPoolExecutor(options.jobs) as pool:
        curves = list(pool.map(run, options.trials, names, steps))
    print(f"{options.config}: val/bound after CPU seconds of training, one thread")
    print("| trial | s/step | steps |" + "".join(f" {options.seconds * share:.0f} s |" for share in SHARES))
    print("|---" * (3 + len(SHARES)) + "|")
    for trial, seconds, count, curve in zip(options.trials, per_step, steps, curves, strict=True):
        row = f"| {trial} | {seconds:.3f} | {count} |"
        for share in SHARES:
            done = [bound for step, bound in curve if step <= count * share * 1.01]
            row += f" {done[-1]:.4f} |" if done else " |"
        print(row)


if __name__ == "__main__":
    main()
