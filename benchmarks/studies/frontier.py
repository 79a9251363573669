"""Quality against entropy along temperatures: which sampler is better where samples are equally diverse.

Quality and diversity trade off, so that a single point says little: the logarithm of a perplexity less the
entropy is one divergence (Pynadath, Shi and Zhang, arXiv 2604.02718). A sampler is a curve over temperatures,
and is read where its entropy is that of data.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, ClassVar

from matplotlib.figure import Figure

from benchmarks.studies.subjects import OnLawsAndModels, entropy_of, quality_of, with_legend
from tauflow.evaluation.evaluate import Sampling
from tauflow.evaluation.figures import styles
from tauflow.evaluation.results import REAL, Factors, Measured, Results
from tauflow.evaluation.tables import Frame, View, number_text

PERPLEXITIES = ("ppl", "perplexity")  # how their names begin; they are compared by their logarithms


@dataclass(frozen=True)
class Point:
    """Samples at one temperature, or data."""

    entropy: Measured
    quality: Measured
    temperature: float = 1.0


@dataclass(frozen=True)
class Matched:
    """Quality where the entropy is that of data, and the temperature that it takes."""

    quality: Measured
    temperature: float


def matched(curve: Sequence[Point], entropy: Measured) -> Matched | None:
    """Return a curve, in the order of its temperatures, at an entropy; None: it never has that.

    Errors of all qualities and entropies are taken as independent. Of several places that near temperature 1
    counts.
    """
    found: list[Matched] = []
    for a, b in pairwise(curve):
        low, high = sorted((a.entropy.value, b.entropy.value))
        if not low <= entropy.value <= high or low == high:
            continue
        share = (entropy.value - a.entropy.value) / (b.entropy.value - a.entropy.value)
        slope = (b.quality.value - a.quality.value) / (b.entropy.value - a.entropy.value)
        error = math.hypot(
            (1 - share) * a.quality.standard_error,
            share * b.quality.standard_error,
            slope * (1 - share) * a.entropy.standard_error,
            slope * share * b.entropy.standard_error,
            slope * entropy.standard_error,
        )
        value = a.quality.value + share * (b.quality.value - a.quality.value)
        place = a.temperature + share * (b.temperature - a.temperature)
        found.append(Matched(Measured(value, error), place))
    return min(found, key=lambda each: abs(each.temperature - 1), default=None)


def excess(curve: Sequence[Point], data: Point) -> Matched | None:
    """Return by how much the quality is above that of data where the entropy is that of data."""
    at = matched(curve, data.entropy)
    if at is None:
        return None
    error = math.hypot(at.quality.standard_error, data.quality.standard_error)
    return Matched(Measured(at.quality.value - data.quality.value, error), at.temperature)


class Frontier(OnLawsAndModels):
    """Quality against entropy along temperatures, for samplers at budgets; then one number, the excess of
    each at the entropy of data: of ln perplexity in nats, or of an error rate. Entropy is that of transitions
    where there are few tokens, else that of the tokens of a sample; real data are as many items as samples,
    so that small numbers bias both alike. Laws with an exact denoiser, or the models of --ckpt."""

    nfes = (8, 32)
    samples = 256
    samplers = (
        *("euler", "tr_cie", "spaced_even", "spaced_learned", "independent", "bridge_systematic", "renoise"),
        *("confidence", "margin", "remask_spaced", "gibbs"),
    )
    view = View(x="temperature", row=("sampler", "nfe"), panel=("data", "source"), x_name="temperature")
    laws = ("markov", "countdown")
    temperatures: ClassVar[tuple[float, ...]] = (0.6, 0.8, 0.9, 1.0, 1.1, 1.3)

    def cells(self) -> list[Factors]:
        found: list[Factors] = []
        for cell in super().cells():
            steps: tuple[Factors, ...] = tuple({"temperature": each} for each in self.temperatures)
            found += [cell | each for each in (steps if cell["sampler"] != REAL else ({},))]
        return found

    def sampling(self, factors: Factors) -> Sampling:
        warmth = float(factors.get("temperature", 1.0))
        return dataclasses.replace(super().sampling(factors), temperature=warmth)

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, cls.view)
        tables = [excess_table(frame, panel) for panel in frame.panels]
        return {"Excess at the entropy of data": "\n".join(table for table in tables if table)}

    def figure(self, results: Results) -> Figure:
        return frontier_figure(Frame(results, self.view))


def lines_of(frame: Frame) -> dict[tuple[str, float], str]:
    """Return the rows of a frame by sampler and budget."""
    found: dict[tuple[str, float], str] = {}
    for factors in (cell.factors for cell in frame.results.cells if "nfe" in cell.factors):
        key = str(factors["sampler"]), float(factors["nfe"])
        found[key] = frame.view.label(factors, frame.view.row)
    return found


def curve_of(frame: Frame, panel: str, row: str) -> list[Point]:
    """Return a row as points in the order of temperatures; perplexities as logarithms."""
    name, bits = quality_of(frame, panel), entropy_of(frame, panel)
    found = []
    for temperature in frame.xs(panel, name):
        entropy, quality = (frame.measured(panel, row, temperature, each) for each in (bits, name))
        if entropy is not None and quality is not None and math.isfinite(quality.value):
            if name.startswith(PERPLEXITIES):
                quality = Measured(math.log(quality.value), quality.standard_error / quality.value)
            found.append(Point(entropy, quality, temperature))
    return found


def excess_table(frame: Frame, panel: str) -> str:
    """Return the excess of each sampler at each budget, with the temperature in brackets; best in bold."""
    data, lines, name = curve_of(frame, panel, REAL), lines_of(frame), quality_of(frame, panel)
    if not data:
        return f"{panel}: there is no real data to compare with\n"
    curves = {key: curve for key, row in lines.items() if (curve := curve_of(frame, panel, row))}
    found = {key: each for key, curve in curves.items() if (each := excess(curve, data[0]))}
    best = {
        nfe: _best(frame, name, [each for key, each in found.items() if key[1] == nfe]) for _, nfe in lines
    }
    budgets = sorted({nfe for _, nfe in curves})
    title = f"{panel}: excess of {_title(name)}"
    table = [f"| {title} | {' | '.join(f'{nfe:g}' for nfe in budgets)} |", "|---" * (1 + len(budgets)) + "|"]
    for sampler in dict.fromkeys(sampler for sampler, _ in curves):
        words = []
        for nfe in budgets:
            own = found.get((sampler, nfe))
            word = _word(own, curves.get((sampler, nfe), []), data[0])
            words.append(f"**{word}**" if own and own is best[nfe] else word)
        table.append(f"| {sampler} | {' | '.join(words)} |")
    return "\n".join([*table, ""])


def _title(name: str) -> str:
    return f"ln {name}" if name.startswith(PERPLEXITIES) else name


def _best(frame: Frame, name: str, found: Sequence[Matched]) -> Matched | None:
    scale = frame.results.scales[name]
    sign = -1 if scale.higher_is_better else 1
    return min(found, key=lambda each: sign * each.quality.value, default=None)


def _word(found: Matched | None, curve: Sequence[Point], data: Point) -> str:
    """Return an excess and its temperature, or on which side of the data all entropies are."""
    if found:
        return f"{number_text(found.quality)} (T {found.temperature:.2f})"
    if not curve:
        return ""
    return "entropy too high" if curve[0].entropy.value > data.entropy.value else "entropy too low"


def frontier_figure(frame: Frame) -> Figure:
    """Draw quality over entropy: a curve for each sampler, a ring at temperature 1, a star for data."""
    lines, panels = lines_of(frame), frame.panels
    budgets = sorted({nfe for _, nfe in lines})
    figure = Figure(figsize=(5.0 * len(budgets) + 2.4, 3.9 * len(panels)), layout="constrained")
    places = figure.subplots(len(panels), len(budgets), squeeze=False)
    looks = styles({sampler: frame.names([row])[row] for (sampler, _), row in lines.items()})
    for (across, panel), (number, nfe) in product(zip(places, panels, strict=True), enumerate(budgets)):
        axes, data = across[number], curve_of(frame, panel, REAL)
        for (sampler, own), row in lines.items():
            if own == nfe:
                _draw(axes, curve_of(frame, panel, row), {"label": sampler} | looks[sampler])
        if data:
            star: dict[str, Any] = {"marker": "*", "ms": 15, "mec": "black", "zorder": 5, "linestyle": "none"}
            entropy, quality = data[0].entropy.value, data[0].quality.value
            axes.axvline(entropy, color="black", linestyle=":", linewidth=1)
            axes.plot(entropy, quality, color="gold", label=REAL, **star)
        names = {"xlabel": entropy_of(frame, panel), "ylabel": _title(quality_of(frame, panel))}
        axes.set(title=f"{panel}, NFE {nfe:g}", **names)
        axes.grid(visible=True, alpha=0.25)
    return with_legend(figure)


def _draw(axes: Any, curve: Sequence[Point], look: dict[str, Any]) -> None:
    """Draw one curve with the errors of both axes."""
    if not curve:
        return
    numbers = [[each.value for each in kind] for kind in _kinds(curve)]
    errors = [[each.standard_error for each in kind] for kind in _kinds(curve)]
    finite = [[each if math.isfinite(each) else 0.0 for each in kind] for kind in errors]
    options: dict[str, Any] = {"capsize": 0, "markersize": 3, "linewidth": 1.2} | look
    axes.errorbar(*numbers, xerr=finite[0], yerr=finite[1], **options)
    ring: dict[str, Any] = {"markersize": 9, "mfc": "none", "mec": look["color"]}
    for point in (each for each in curve if each.temperature == 1):
        axes.plot(point.entropy.value, point.quality.value, "o", **ring)


def _kinds(curve: Sequence[Point]) -> tuple[list[Measured], list[Measured]]:
    return [each.entropy for each in curve], [each.quality for each in curve]
