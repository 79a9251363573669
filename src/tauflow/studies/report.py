"""What a person looks at: results as CSV, as Markdown tables and as one figure."""

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tauflow import files
from tauflow.errors import TauflowError
from tauflow.plots import style_of
from tauflow.samplers import SAMPLERS
from tauflow.studies.base import Record, Results, Study

COLUMNS = 10  # of a table; a longer series is thinned out
TAB20 = colormaps["tab20"].colors
# of linear axes; others are logarithmic
LINEAR = {"sequence_error_rate", "entropy_bits", "memorised_8grams", "slope", *(f"distinct_{n}" for n in (1, 2, 3))}


def save(study: Study, results: Results, folder: Path, command: str) -> None:
    """Writes results.csv, results.md and figure.png beside results.json, which gets the command; each file whole."""
    results.commands = list(dict.fromkeys([*results.commands, command]))
    results.save(folder)
    files.write(folder / "results.csv", to_csv(results))
    files.write(folder / "results.md", to_markdown(study, results))
    with files.whole(folder / "figure.png") as file:
        figure(study, results).savefig(file, format="png", dpi=110)


def to_csv(results: Results) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([item.name for item in dataclasses.fields(Record)])
    writer.writerows(dataclasses.astuple(dataclasses.replace(each, x=f"{each.x:g}")) for each in results.records)
    return text.getvalue()


def to_markdown(study: Study, results: Results) -> str:
    question = " ".join((type(study).__doc__ or "").split())
    settings = study.settings
    commands = "\n".join(results.commands)
    parts = [f"# {results.study}\n\n{question}\n\n```bash\n{commands}\n```\n"]
    if settings.samples:
        size = f"{settings.samples} samples of each of {len(settings.seeds)} seeds"
        parts.append(f"{size}; mean over seeds ± standard error over all samples.\n")
    parts.extend(f"- {note}\n" for note in dict.fromkeys(study.notes))
    for panel in results.panels():
        for metric in shown(study, results):
            if results.rows(panel, metric):
                parts.append(table(results, panel, metric, study.x_name) + _counted(results, panel, metric))
    return "\n".join(parts)


def shown(study: Study, results: Results) -> list[str]:
    """The metrics that the study shows and the results have."""
    there = list(dict.fromkeys(record.metric for record in results.records))
    return list(dict.fromkeys(name for pattern in study.shown for name in there if fnmatch(name, pattern)))


def _counted(results: Results, panel: str, metric: str) -> str:
    counts = [each.count for each in results.records if (each.panel, each.metric) == (panel, metric) and each.count is not None]
    return f"\nEach number is of {min(counts):,.0f} to {max(counts):,.0f} judged tokens a seed.\n" if counts else ""


def table(
    results: Results,
    panel: str,
    metric: str,
    x_name: str | None = None,
    xs: Sequence[float] | None = None,
    rows: Sequence[str] | None = None,
    ratio: str | None = None,
) -> str:
    """A Markdown table of one panel and metric: a line for each row, a column for each x; as ratios to a row if one is named."""
    xs, given = xs or results.xs(panel, metric), bool(xs)
    if len(xs) > COLUMNS and not given:
        xs = [xs[round(i * (len(xs) - 1) / (COLUMNS - 1))] for i in range(COLUMNS)]
    found = rows or results.rows(panel, metric)
    missing = sorted({*found, *([ratio] if ratio else [])} - set(results.rows(panel, metric)))
    missing += [f"{x:g}" for x in xs if x not in results.xs(panel, metric)]
    if not found or not xs or missing:
        raise TauflowError(f"the study {results.study} has no {metric} of {panel}" + (f" for {', '.join(missing)}" if missing else ""))
    title = f"{panel}: {metric}" + (f" by {x_name}" if x_name else "") + (f", ratio to {ratio}" if ratio else "")
    lines = [f"| {title} | {' | '.join(f'{x:.4g}' for x in xs)} |", "|---" * (len(xs) + 1) + "|"]
    for row in found:
        lines.append(f"| {row} | {' | '.join(cell(results, panel, row, x, metric, ratio) for x in xs)} |")
    return "\n".join(lines) + "\n"


def cell(results: Results, panel: str, row: str, x: float, metric: str, ratio: str | None = None) -> str:
    """A number as every table and page shows it: as many digits as mean something."""
    found = results.measured(panel, row, x, metric)
    if found is None or math.isnan(found.value):
        return ""
    if ratio:
        base = results.measured(panel, ratio, x, metric)
        if not base or not base.value:
            return ""
        error = math.hypot(found.standard_error / found.value, base.standard_error / base.value) if found.value and row != ratio else 0.0
        share = found.value / base.value
        return f"{share:.3f}" + (f" ± {share * error:.3f}" if error else "")
    size = abs(found.value)
    if size and not 1e-3 <= size < 1e5:
        return f"{found.value:.2e}" + (f" ± {found.standard_error:.1e}" if found.standard_error > 0 else "")
    digits = 4 if size < 1 else 3 if size < 10 else 1
    rounded = f"{found.standard_error:.{digits}f}"
    error = f" ± {rounded if float(rounded) else f'{found.standard_error:.0e}'}" if found.standard_error > 0 else ""
    return f"{found.value:.{digits}f}{error}"


def figure(study: Study, results: Results) -> Figure:
    """A panel against a metric in each place, two in a row if there is one panel; a line for each row, bars of one standard error."""
    metrics, panels = shown(study, results), results.panels()
    places = [(panel, metric) for panel in panels for metric in metrics]
    across = len(metrics)
    if not study.panels_down:
        places, across = [(panel, metric) for metric in metrics for panel in panels], len(panels)
    across = across if across > 1 else min(2, len(places))
    down = math.ceil(len(places) / across)
    picture = Figure(figsize=(5.6 * across + 2.2, 3.9 * down), layout="constrained")
    axes = list(picture.subplots(down, across, squeeze=False).flat)
    for place, (panel, metric) in zip(axes, places, strict=False):
        _draw(place, study, results, panel, metric)
    for place in axes[len(places) :]:
        place.set_visible(False)
    handles = {label: handle for place in axes for handle, label in zip(*place.get_legend_handles_labels(), strict=True)}
    picture.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False, fontsize=9)
    return picture


def _draw(axes, study: Study, results: Results, panel: str, metric: str) -> None:
    xs = results.xs(panel, metric)
    values = []
    for row in results.rows(panel, metric):
        found = [(x, each) for x in xs if (each := results.measured(panel, row, x, metric)) and math.isfinite(each.value)]
        values += [each.value for _, each in found]
        if row == "(real data)" and found:
            axes.axhline(found[0][1].value, color="black", linestyle="--", linewidth=1, label=row)
            continue
        errors = [each.standard_error if math.isfinite(each.standard_error) else 0.0 for _, each in found]
        options = {"label": row, "capsize": 2, "markersize": 4} | _style(row, results)
        axes.errorbar([x for x, _ in found], [each.value for _, each in found], yerr=errors, **options)
    axes.set(title=panel, xlabel=study.x_name, ylabel=metric)
    if xs and min(xs) > 0 and study.x_name != "t":
        axes.set_xscale("log")
        if len(xs) <= COLUMNS:
            axes.set_xticks(xs, [f"{x:g}" for x in xs])
            axes.xaxis.set_minor_formatter(NullFormatter())
    elif xs and study.x_name == "eps_0":
        axes.set_xscale("symlog", linthresh=min(x for x in xs if x > 0))
    if metric not in LINEAR and any(value > 0 for value in values):
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=min(value for value in values if value > 0) / 1.5)
    axes.grid(visible=True, which="both", alpha=0.25)


def _style(row: str, results: Results) -> dict:
    """A sampler looks the same in every figure; variants get dashed lines of their own colours."""
    if row in SAMPLERS:
        return style_of(row)
    others = [name for name in dict.fromkeys(each.row for each in results.records) if name not in SAMPLERS]
    number = others.index(row)
    return {"color": TAB20[number % 20], "marker": "os^vDP*X"[number % 8], "linestyle": "--" if len(others) > 8 else "-"}
