"""Differences between rows: paired where they have seen the same real items, else of independent samples."""

import dataclasses
import math

from benchmarks.studies.layout import TableSpec, thinned
from tauflow.errors import TauflowError
from tauflow.evaluation.results import Cell, Measured, Record, Results, Scale
from tauflow.evaluation.tables import Frame, View, number_text


def difference(frame: Frame, spec: TableSpec, row: str, base: str, x: float) -> Measured | None:
    """Return the metric of a row less that of another one, with the standard error of the difference."""
    if base in frame.paired(spec.panel, spec.metric):
        return frame.difference(spec.panel, row, base, x, spec.metric)
    ours, theirs = (frame.measured(spec.panel, each, x, spec.metric) for each in (row, base))
    if ours is None or theirs is None:
        return None
    return Measured(ours.value - theirs.value, math.hypot(ours.standard_error, theirs.standard_error))


def difference_table(frame: Frame, spec: TableSpec, base: str) -> str:
    """Return a Markdown table of one panel and metric: each row less another one."""
    known, there = frame.rows(spec.panel, spec.metric), frame.xs(spec.panel, spec.metric)
    xs = list(spec.xs) or thinned(there)
    missing = [row for row in (*spec.rows, base) if row not in known]
    missing += [f"{x:g}" for x in xs if x not in there]
    if missing:
        raise TauflowError(
            f"the results of {frame.results.name} have no {spec.metric} of {spec.panel} for "
            f"{', '.join(missing)}"
        )
    title = f"{spec.panel}: {spec.metric} less that of {base}"
    title += ", paired" if base in frame.paired(spec.panel, spec.metric) else ""
    lines = [f"| {title} | {' | '.join(f'{x:.4g}' for x in xs)} |", "|---" * (len(xs) + 1) + "|"]
    for row in spec.rows or [row for row in known if row != base]:
        words = [number_text(difference(frame, spec, row, base, x)) for x in xs]
        if any(words):
            lines.append(f"| {row} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def with_differences(results: Results, view: View) -> Results:
    """Return results with one more metric for each that real items have: a row less the first one, paired.

    Items differ much more than samplers do on the same items, so a figure shows this one as well.
    """
    frame = Frame(results, view)
    scales: dict[str, Scale] = {}
    found: dict[tuple[str, str, str, float], Cell] = {}  # seeds are averaged already
    for metric, scale in results.scales.items():
        scales[metric] = scale
        for cell in results.cells:
            if metric in cell.items:
                panel, row = (view.label(cell.factors, names) for names in (view.panel, view.row))
                x, base = float(cell.factors[view.x]), frame.paired(panel, metric)[0]
                less = frame.difference(panel, row, base, x, metric) or Measured(math.nan)
                name = f"{metric} less {base}"
                scales[name] = Scale(scale.higher_is_better, logarithmic=False)
                factors = next(each.factors for each in cell.records if each.metric == metric)
                found[panel, row, metric, x] = Cell(factors, [Record(factors, name, less)])
    return dataclasses.replace(results, cells=[*results.cells, *found.values()], scales=scales)
