"""Draw the figures of docs/results/beyond.md from the committed result files.

    python -m benchmarks beyond_figure

A few samplers of the paper (dashed) beside those beyond it. Writes docs/images/beyond.png (the countdown
models), beyond_laws.png (laws with an exact denoiser) and beyond_text.png (text models).
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.pages import RESULTS, frame_of
from tauflow.evaluation.figures import styles
from tauflow.evaluation.results import REAL
from tauflow.samplers.registry import spec_name

ROOT = Path(__file__).parents[2]
MASKED = ("euler", "tr_cie", "ho_fhs", "spaced", "spaced_even", "spaced_sharp")
UNIFORM = ("euler", "tweedie", "tr_cie", "bridge", "bridge_systematic")
NEW = {"spaced", "spaced_even", "spaced_sharp", "bridge", "bridge_systematic"}


@dataclass(frozen=True)
class Place:
    """What one axes shows: a metric of a panel of a study."""

    folder: str
    panel: str
    metric: str
    title: str


def draw(places: list[Place], target: str) -> None:
    """Write one picture with an axes for each place."""
    across = min(2, len(places))
    down = -(-len(places) // across)
    figure = Figure(figsize=(5.6 * across, 3.7 * down), layout="constrained")
    for axes, place in zip(figure.subplots(down, across, squeeze=False).flat, places, strict=True):
        draw_place(axes, place)
    figure.savefig(ROOT / "docs" / "images" / target, dpi=110)


def draw_place(axes: Axes, place: Place) -> None:
    """Draw a line for each sampler that the place has, and real data."""
    frame = frame_of(RESULTS / place.folder)
    xs = frame.xs(place.panel, place.metric)
    rows = MASKED if "masked" in place.panel else UNIFORM
    looks = styles({row: spec_name(row) for row in rows})
    for row in rows:
        found = [(x, frame.measured(place.panel, row, x, place.metric)) for x in xs]
        points = [(x, each.value, each.standard_error) for x, each in found if each]
        if points:
            weight = (
                {"linewidth": 2.4, "linestyle": "-"} if row in NEW else {"linewidth": 1.2, "linestyle": "--"}
            )
            line = list(zip(*points, strict=True))
            axes.errorbar(
                line[0], line[1], yerr=line[2], label=row, capsize=2, markersize=5, **(looks[row] | weight)
            )
    real = frame.measured(place.panel, REAL, xs[0], place.metric)
    if real and real.value > 0:
        axes.axhline(real.value, color="black", linestyle=":", label="real data")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(xs, [f"{x:g}" for x in xs])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(title=place.title, xlabel="network evaluations (NFE)", ylabel=place.metric)
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize=8, frameon=False)


def main() -> None:
    sources = ("masked", "uniform")
    models = [Place("countdown", source, "error_rate", f"countdown, {source} source") for source in sources]
    draw(models, "beyond.png")
    laws = [("markov", "perplexity"), ("hidden markov", "perplexity"), ("countdown", "error_rate")]
    laws.append(("copy", "error_rate"))
    exact = []
    for law, metric in laws:
        for source in sources:
            exact.append(
                Place("laws", f"{law} law, {source}", metric, f"{law}, {source} source, exact denoiser")
            )
    draw(exact, "beyond_laws.png")
    texts = [
        Place(f"text_{source}", source, "ppl_corpus_ngram", f"text, {source} source") for source in sources
    ]
    draw(texts, "beyond_text.png")


if __name__ == "__main__":
    main()
