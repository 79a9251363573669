"""Draws the curves of a countdown run, with the exact entropy of its data beside the validation bound.

python -m benchmarks training_curves checkpoints/countdown/version_0 docs/images/training.png
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tauflow.tasks.countdown import entropy
from tauflow.train.boards import tensorboard_tag


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("out", type=Path, help="picture to write")
    arguments = parser.parse_args()
    events = EventAccumulator(str(arguments.run), size_guidance={"scalars": 0})
    events.Reload()

    def curve(tag: str) -> tuple[list[int], list[float]]:
        points = events.Scalars(tensorboard_tag(tag))
        return [point.step for point in points], [point.value for point in points]

    settings = yaml.safe_load((arguments.run / "config.yaml").read_text())["data"]["init_args"]
    exact = entropy(settings["length"], settings["values"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    left.plot(*curve("train/loss"), color="0.6", label="train/loss, nats per masked token")
    steps, bounds = curve("val/bound")
    _, errors = curve("val/bound_standard_error")
    left.errorbar(
        steps, bounds, yerr=errors, color="C0", marker="o", markersize=4, label="val/bound, nats per token"
    )
    left.axhline(exact, color="k", linestyle="--", linewidth=1, label=f"exact entropy {exact:.4f}")
    left.set(xlabel="optimizer step", yscale="log", title="loss and bound")
    left.legend()
    for quarter in (1, 2, 3, 4):
        right.plot(
            *curve(f"val/loss_kappa_quarter_{quarter}"),
            marker="o",
            markersize=3,
            label=f"{(quarter - 1) / 4} - {quarter / 4}",
        )
    right.set(xlabel="optimizer step", yscale="log", title="validation cross-entropy of masked tokens")
    right.legend(title="kappa")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
