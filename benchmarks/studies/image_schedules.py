"""The paper's figure of pictures under four schedules, and whether its claim holds under each of them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.studies.images import METRIC, OnImages
from benchmarks.studies.layout import TableSpec
from benchmarks.studies.paired import difference
from tauflow.denoise import Model
from tauflow.errors import SettingsError
from tauflow.evaluation.results import REAL, Factors, Measured, Results
from tauflow.evaluation.tables import Frame, View, number_text
from tauflow.process import Mixture
from tauflow.train import Trained

CLAIM = (
    'The paper (fig:fid, without numbers): "Our method generally outperforms the baselines, especially when '
    'NFE is small." Here TR-CIE is compared with the best of these baselines at the same budget; below 0 it '
    "is better. The verdict is on all of them: yes if TR-CIE is below each by two standard errors of the "
    "difference, no if one of them is below TR-CIE by two and a half (the best of four noisy values is lower "
    "by chance). Differences are paired where real items are measured.\n"
)
COLUMNS = ("schedule", "NFE", "best of the others", "TR-CIE less it", "TR-CIE best?", "ours less TR-CIE")
TRIED = "tr_cie"
RIVALS = ("euler", "tweedie", "theta_rk2", "theta_trapezoidal")
BELOW, ABOVE = 2.0, 2.5  # standard errors beyond which TR-CIE is better than all, or one of four is better


class ImageSchedules(OnImages):
    """The paper's samplers and ours on pictures under the schedules linear, quadratic, cubic and cosine
    (paper: fig:fid), by exact likelihood and by distances in features, and whether TR-CIE is best under each.
    One network serves all schedules: the posterior depends on x_t and kappa only, and the network is told
    the time of its own schedule. Several checkpoints of a source are each studied under their own."""

    names: ClassVar[Sequence[str]] = ("linear", "quadratic", "cubic", "cosine")
    nfes = (8, 16, 32, 64)
    samplers = (*RIVALS, TRIED, "auto")
    view = View(row=("sampler",), panel=("source", "schedule"))
    shown = (METRIC, "kid_*", "fd16_*")

    def named_models(self) -> list[tuple[Factors, Trained]]:
        found: list[tuple[Factors, Trained]] = []
        for trained in self.loaded:
            for model in self.under_schedules(trained.model):
                process = mixture_of(model)
                factors: Factors = {"source": process.name, "schedule": process.schedule.name}
                if any(factors == other for other, _ in found):
                    raise SettingsError(
                        f"two checkpoints are {process}; give --ckpt one of a source, or one a schedule"
                    )
                found.append((factors, dataclasses.replace(trained, model=model)))
        for source in dict.fromkeys(factors["source"] for factors, _ in found):
            there = [factors["schedule"] for factors, _ in found if factors["source"] == source]
            if absent := [name for name in self.names if name not in there]:
                self.notes.append(f"{source}: there is no checkpoint of {', '.join(absent)}")
        return found

    def under_schedules(self, model: Model) -> list[Model]:
        """Return the model under all schedules, or under its own where others of its source are given."""
        source = mixture_of(model).name
        if sum(mixture_of(other.model).name == source for other in self.loaded) > 1:
            return [model]
        return [model.with_schedule(name) for name in self.names]

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, cls.view)
        found = {}
        for source in dict.fromkeys(str(cell.factors["source"]) for cell in results.cells):
            tables = [table for metric in frame.metrics() if (table := compared(frame, source, metric))]
            if tables:
                found[f"Is TR-CIE best? ({source})"] = "\n".join([CLAIM, *tables])
        return found


def compared(frame: Frame, source: str, metric: str) -> str:
    """Return a table with a line for each schedule and budget; nothing where TR-CIE has no such metric."""
    cells = frame.results.cells
    schedules = dict.fromkeys(str(c.factors["schedule"]) for c in cells if c.factors["source"] == source)
    lines = [line for schedule in schedules for line in _lines(frame, source, schedule, metric)]
    head = [f"| {metric}: {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*head, *lines, ""]) if lines else ""


def _lines(frame: Frame, source: str, schedule: str, metric: str) -> list[str]:
    """Return a line for each budget: TR-CIE against the best of its rivals, and ours against TR-CIE."""
    spec = TableSpec(f"{source}, {schedule}", metric)
    rows = frame.rows(spec.panel, metric)
    rivals = [row for row in rows if row in RIVALS]
    ours = [row for row in rows if row not in (*RIVALS, TRIED, REAL)]
    lines = []
    for x in frame.xs(spec.panel, metric) if TRIED in rows and rivals else []:
        rival, own = (_best(frame, spec, each, x) for each in (rivals, ours))
        less = difference(frame, spec, TRIED, rival, x) if rival else None
        gain = difference(frame, spec, own, TRIED, x) if own else None
        against = [difference(frame, spec, TRIED, each, x) for each in rivals]
        words = (schedule, f"{x:g}", rival, number_text(less), verdict(against))
        lines.append(f"| {' | '.join(words)} | {f'{own}: {number_text(gain)}' if own else ''} |")
    return lines


def _best(frame: Frame, spec: TableSpec, rows: Sequence[str], x: float) -> str:
    """Return the row with the lowest value at a budget; nothing if none has one."""
    found = {row: frame.measured(spec.panel, row, x, spec.metric) for row in rows}
    values = {row: each.value for row, each in found.items() if each and math.isfinite(each.value)}
    return min(values, key=lambda row: values[row], default="")


def verdict(against: Sequence[Measured | None]) -> str:
    """Return in a word whether the differences to all rivals are below 0, beyond the noise."""
    found = [each for each in against if each is not None and not math.isnan(each.value)]
    if not found:
        return "unknown"
    errors = [0.0 if math.isinf(each.value) else each.standard_error for each in found]
    if any(each.value > ABOVE * error for each, error in zip(found, errors, strict=True)):
        return "no"
    below = all(each.value < -BELOW * error for each, error in zip(found, errors, strict=True))
    return "yes" if below else "within noise"


def mixture_of(model: Model) -> Mixture:
    """Return the process of a model; refuse one without a schedule."""
    if not isinstance(model.process, Mixture):
        raise SettingsError(f"{model.process} has no schedule; study a model with a mixture process")
    return model.process
