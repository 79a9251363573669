"""Studies on laws that can be enumerated: errors are computed, not sampled."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from itertools import product

from tauflow.denoisers import Denoiser
from tauflow.errors import SettingsError
from tauflow.oracles import PROPAGATED, EnumerableLaw, Propagator, slope
from tauflow.runs import Run
from tauflow.sampling import sampler_from
from tauflow.schedules import Schedule, schedule_from
from tauflow.sources import SOURCES
from tauflow.studies.base import Job, Study
from tauflow.studies.models import OnModels
from tauflow.tables import Measured

LAWS = {"weak": 0.2, "strong": 1.0}
"""Spread of the log-probabilities: on the weakly dependent law the clamp is idle, on the strong one it fires."""


@cache
def propagator(law: str, source: str, schedule: str = "linear") -> Propagator:
    """Three coordinates of three tokens."""
    return Propagator(EnumerableLaw.random(3, 3, LAWS[law]), SOURCES[source](3), schedule_from(schedule))


def refuse_unpropagated(names: Sequence[str]) -> None:
    for name in names:
        sampler = sampler_from(name)
        if not isinstance(sampler, PROPAGATED) or getattr(sampler, "coins", "independent") != "independent":
            raise SettingsError(f"the law of {name} cannot be computed on the oracle; name leaping samplers, theta_* or bridge")


class Exact(Study):
    """What studies with computed errors share: one job for a line, no seeds, total variation of the terminal law to the exact one."""

    seeds = (0,)
    samples = 0
    ignores = ("checkpoints", "judge", "samples", "seeds", "batch_size")
    shown = ("total_variation", "slope")

    def line(self, job: Job, errors: dict[int, float]) -> list:
        """Records of one line, and the slope of its last three points."""
        found = [record for nfe, error in errors.items() for record in self.record(job, {"total_variation": Measured(error, 0.0)}, nfe)]
        last = list(errors)[-3:]
        if len(last) > 1 and all(errors[nfe] > 0 for nfe in last):
            found += self.record(job, {"slope": Measured(slope([errors[nfe] for nfe in last], last), 0.0)}, last[-1])
        return found


class Order(Exact):
    """Order of convergence in law on the oracle (paper: Theorems exact_error and cie_error, Corollary cie_expected): total variation to the
    exact law at kappa = 0.8, no finishing draw, uniform tau grid; the slope is fitted to the last three budgets."""

    nfes = (8, 16, 32, 64, 128)
    samplers = ("euler", "tr", "cie", "tr_cie", "tr_cie_exact", "theta_rk2", "theta_trapezoidal")

    def jobs(self):
        refuse_unpropagated(self.settings.samplers)
        panels = [f"{source}, {law} law" for law in LAWS for source in SOURCES]
        rows = [*self.settings.samplers, *(f"{name} one_event" for name in self.settings.samplers if name == "tr_cie")]
        return [Job(panel, row, max(self.settings.nfes), 0) for panel in panels for row in rows]

    def measure(self, job):
        source, law = job.panel.removesuffix(" law").split(", ")
        name, *jump = job.row.split(" ")
        sampler = sampler_from(name, grid="tau", finish="none", cutoff=0.2, jump=jump[0] if jump else None)
        return self.line(job, {nfe: propagator(law, source, "quadratic").error(sampler, nfe) for nfe in self.settings.nfes})


class Schedules(OnModels):
    """Which schedule to sample with: linear, quadratic, cubic, cosine. On the oracle (strong law, total variation, computed), and on the
    countdown models: a posterior depends on kappa alone, so a model trained with one schedule samples with any other once its time is
    translated. On a t grid the schedule decides where the steps go; the tau grid is the same for all."""

    names = ("linear", "quadratic", "cubic", "cosine")
    samplers = ("euler", "tr_cie")
    nfes = (8, 16, 32)
    shown = ("total_variation", "error_rate", "unigram_tv")

    def jobs(self):
        refuse_unpropagated(self.settings.samplers)
        lines = [f"{sampler} {schedule}" for sampler in self.settings.samplers for schedule in self.names]
        nfes, seeds = self.settings.nfes, self.settings.seeds
        jobs = [Job(f"oracle, {source}", row, nfe, seeds[0]) for source in SOURCES for row, nfe in product(lines, nfes)]
        models = [Job(f"countdown, {source}", row, nfe, seed) for source in self.models() for row, nfe, seed in product(lines, nfes, seeds)]
        return jobs + models

    def measure(self, job):
        kind, source = job.panel.split(", ")
        name, schedule = job.row.split(" ")
        if kind == "oracle":
            error = propagator("strong", source, schedule).error(sampler_from(name), int(job.x))
            return self.record(job, {"total_variation": Measured(error, 0.0)})
        return self.sampled(job, with_schedule(self.models()[source], schedule_from(schedule)), sampler_from(name), int(job.x))


class Translated(Denoiser):
    """A denoiser trained with one schedule, called with the times of another."""

    def __init__(self, denoiser: Denoiser, trained: Schedule, other: Schedule):
        self.denoiser, self.trained, self.other = denoiser, trained, other
        self.forwards = denoiser.forwards

    def evaluate(self, x, t):
        return self.denoiser.evaluate(x, self.trained.t_from_kappa(self.other.kappa(t.double())).to(t))


def with_schedule(run: Run, schedule: Schedule) -> Run:
    return dataclasses.replace(run, denoiser=Translated(run.denoiser, run.schedule, schedule), schedule=schedule)
