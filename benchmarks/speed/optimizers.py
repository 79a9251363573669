"""Which optimizer and precision reach a lower validation bound in the same CPU time?

    python -m benchmarks optimizers --config text_masked --seconds 600 --out results
    python -m benchmarks optimizers --config countdown --jobs 2 --trials "adamw 32-true" "muon bf16-mixed"

A trial is a configuration with an optimizer, a precision, and further flags of train.py. It trains in its own
process on one thread. The first steps are timed, and the learning-rate schedule then ends when the CPU
seconds are used up, so every trial has its whole schedule in the same time. Validations don't count. The
output is a table of bounds at a tenth, a fifth, a half, and the whole of the time.
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
TIMED = (4, 20)  # steps between which the time of a step is taken


class Clock(Callback):
    """Records [step, CPU seconds of training so far, val/bound] at each validation."""

    def __init__(self) -> None:
        self.curve: list[list[float]] = []
        self.seconds = 0.0
        self.by_step: list[float] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.begin = time.process_time()

    def on_train_batch_end(self, *args: Any) -> None:
        self.seconds += time.process_time() - self.begin
        self.by_step.append(self.seconds)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.curve.append(
                [trainer.global_step, self.seconds, trainer.callback_metrics["val/bound"].item()]
            )


def fit(words: list[str], folder: Path) -> Clock:
    """Train as train.py does with these words, without samplers."""
    import torch

    from tauflow.cli.train import TauflowCLI, convert_words

    torch.set_num_threads(1)
    words += [f"--trainer.default_root_dir={folder}", "--evaluation.every_n_validations=0"]
    cli = TauflowCLI(convert_words(words))
    clock = Clock()
    cli.trainer.callbacks.append(clock)
    cli.fit()
    return clock


def run_trial(config: str, trial: str, seconds: float, folder: Path) -> None:
    """Time a few steps, then train until the seconds are used up; write the curve."""
    name, precision, *flags = shlex.split(trial)
    words = ["-c", str(ROOT / "configs" / f"{config}.yaml"), f"--model.optimizer.name={name}"]
    words += [f"--trainer.precision={precision}", *flags]
    few = [f"--trainer.max_steps={TIMED[1] + 1}", "--data.epoch_items=10000000", "--data.val_items=16"]
    timed = fit([*words, *few], folder / "timed").by_step
    per_step = (timed[TIMED[1]] - timed[TIMED[0]]) / (TIMED[1] - TIMED[0])
    steps = max(1, round(seconds / per_step))
    curve = fit([*words, f"--trainer.max_steps={steps}"], folder).curve
    result = {"config": config, "trial": trial, "steps": steps, "seconds_per_step": per_step, "curve": curve}
    (folder / "curve.json").write_text(json.dumps(result, indent=1) + "\n")


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
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # a trial in its own process
    options = parser.parse_args()
    if options.one:
        run_trial(options.config, options.trials[0], options.seconds, options.one)
        return

    def start(number: int) -> dict[str, Any]:
        trial = options.trials[number]
        folder = (options.out / re.sub(r"[^\w.-]+", "_", f"{options.config} {trial}")).resolve()
        if not (folder / "curve.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            words = ["--config", options.config, "--seconds", str(options.seconds), "--one", str(folder)]
            with (folder / "log.txt").open("w") as log:
                subprocess.run(
                    [sys.executable, "-m", "benchmarks", "optimizers", *words, "--trials", trial],
                    cwd=ROOT,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=True,
                )
        return json.loads((folder / "curve.json").read_text())

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(start, range(len(options.trials))))
    print(f"{options.config}: val/bound after CPU seconds of training, one thread")
    print("| trial | s/step | steps |" + "".join(f" {options.seconds * share:.0f} s |" for share in SHARES))
    print("|---" * (3 + len(SHARES)) + "|")
    for result in results:
        bounds = []
        for share in SHARES:
            done = [bound for _, at, bound in result["curve"] if at <= options.seconds * share * 1.03]
            bounds.append(f" {done[-1]:.4f} |" if done else " |")
        row = f"| {result['trial']} | {result['seconds_per_step']:.3f} | {result['steps']} |"
        print(row + "".join(bounds))


if __name__ == "__main__":
    main()
