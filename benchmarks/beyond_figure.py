"""The figures of docs/results/beyond.md from the committed result files: a few samplers of the paper beside those beyond it.

    python benchmarks/beyond_figure.py

Writes docs/images/beyond.png (the countdown models), beyond_laws.png (laws with an exact denoiser) and beyond_text.png (text models).
"""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tauflow.plots import style_of
from tauflow.studies.base import Results

ROOT = Path(__file__).parents[1]
MASKED = ["euler", "tr_cie", "ho_fhs", "spaced", "spaced_even", "spaced_sharp"]
UNIFORM = ["euler", "tweedie", "tr_cie", "bridge", "bridge_systematic"]
NEW = {"spaced", "spaced_even", "spaced_sharp", "bridge", "bridge_systematic"}


def draw(places: list[tuple[str, str, str, str]], target: str) -> None:
    """One axes for each (folder, panel, metric, title)."""
    across = min(2, len(places))
    down = -(-len(places) // across)
    figure = Figure(figsize=(5.6 * across, 3.7 * down), layout="constrained")
    for axes, (folder, panel, metric, title) in zip(figure.subplots(down, across, squeeze=False).flat, places, strict=True):
        results = Results.read(ROOT / "docs" / "results" / folder)
        xs = results.xs(panel, metric)
        for row in MASKED if "masked" in panel else UNIFORM:
            found = [(x, each) for x in xs if (each := results.measured(panel, row, x, metric))]
            if found:
                options = style_of(row) | {"linewidth": 2.4 if row in NEW else 1.2, "linestyle": "-" if row in NEW else "--"}
                values, errors = [each.value for _, each in found], [each.standard_error for _, each in found]
                axes.errorbar([x for x, _ in found], values, yerr=errors, label=row, capsize=2, markersize=5, **options)
        real = results.measured(panel, "(real data)", xs[0], metric)
        if real and real.value > 0:
            axes.axhline(real.value, color="black", linestyle=":", label="real data")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(title=title, xlabel="network evaluations (NFE)", ylabel=metric)
        axes.grid(visible=True, which="both", alpha=0.25)
        axes.legend(fontsize=8, frameon=False)
    figure.savefig(ROOT / "docs" / "images" / target, dpi=110)


def main() -> None:
    draw([("countdown", source, "error_rate", f"countdown, {source} source") for source in ("masked", "uniform")], "beyond.png")
    laws = [("markov", "perplexity"), ("hidden markov", "perplexity"), ("countdown", "error_rate"), ("copy", "error_rate")]
    places = [
        ("laws", f"{law}, {source}", metric, f"{law}, {source} source, exact denoiser")
        for law, metric in laws
        for source in ("masked", "uniform")
    ]
    draw(places, "beyond_laws.png")
    draw([(f"text_{source}", source, "ppl_corpus_ngram", f"text, {source} source") for source in ("masked", "uniform")], "beyond_text.png")


if __name__ == "__main__":
    main()
