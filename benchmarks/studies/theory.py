"""Studies on laws that can be enumerated: errors are computed, not sampled."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import ClassVar

import torch

from benchmarks.studies.models import OnModels
from benchmarks.studies.study import Study, records
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.local_error import local_error
from benchmarks.theory.path_kl import kl_decomposition, terminal_kl
from benchmarks.theory.propagator import PROPAGATED, Propagator, slope
from tauflow.denoise import Posterior, Query
from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.errors import SettingsError
from tauflow.evaluation.results import Cell, Factors, Measured, Record, Scale
from tauflow.evaluation.tables import View
from tauflow.process import Mixture, Schedule, schedule_from, source_from
from tauflow.samplers import State, sampler_from
from tauflow.samplers.grids import Grid
from tauflow.train import Trained

LAWS = {"weak": 0.2, "strong": 1.0}
"""Spread of the log-probabilities: on the weakly dependent law the clamp is idle, on the strong one it is
not."""

SIZE = 3  # coordinates, and tokens of each
SOURCES = ("masked", "uniform")
SAMPLED = ("checkpoints", "judge", "samples", "seeds", "batch_size")
"""Settings that mean nothing where errors are computed."""


@cache
def joint_law(spread: float) -> EnumerableLaw:
    return EnumerableLaw.random(SIZE, SIZE, spread)


def process_of(source: str, schedule: str = "quadratic") -> Mixture:
    return Mixture(source_from(source, SIZE), schedule_from(schedule))


@cache
def propagator(law: str, source: str, schedule: str) -> Propagator:
    return Propagator(joint_law(LAWS[law]), process_of(source, schedule))


def refuse_unpropagated(specs: Sequence[str]) -> None:
    for spec in specs:
        sampler = sampler_from(spec)
        if not isinstance(sampler, PROPAGATED) or getattr(sampler, "coins", "independent") != "independent":
            raise SettingsError(
                f"the law of {spec} cannot be computed on the oracle; name leaping samplers, theta_*, bridge"
            )


def series(factors: Factors, x: str, metric: str, errors: dict[int, float]) -> list[Record]:
    """Return the records of a line of errors along x, and the slope of its last three points."""
    found = []
    for count, error in errors.items():
        found += records(factors | {x: count}, {metric: Measured(error)})
    last = list(errors)[-3:]
    if len(last) > 1 and all(errors[count] > 0 for count in last):
        fitted = slope([errors[count] for count in last], last)
        found += records(factors | {x: last[-1]}, {"slope": Measured(fitted)})
    return found


class Order(Study):
    """Order of convergence in law on the oracle (paper: Theorems exact_error and cie_error, Corollary
    cie_expected): total variation to the exact law at kappa = 0.8, no finishing draw, uniform tau grid; the
    slope is fitted to the last three budgets."""

    seeds = (0,)
    samples = 0
    ignores = SAMPLED
    nfes = (8, 16, 32, 64, 128)
    samplers = ("euler", "tr", "cie", "tr_cie", "tr_cie_exact", "theta_rk2", "theta_trapezoidal")
    view = View(row=("sampler",), panel=("source", "law"))
    stated: ClassVar[dict[str, Scale]] = {
        "total_variation": Scale(),
        "slope": Scale(higher_is_better=True, logarithmic=False),
    }

    def cells(self) -> list[Factors]:
        specs = list(self.settings.samplers)
        refuse_unpropagated(specs)
        specs += ["tr_cie(jump=one_event)"] if "tr_cie" in specs else []
        lines = product(LAWS, SOURCES, specs)
        return [{"source": source, "law": law, "sampler": spec} for law, source, spec in lines]

    def measure(self, factors: Factors) -> Cell:
        sampler = sampler_from(str(factors["sampler"]), grid="tau", finish="none", cutoff=0.2)
        oracle = propagator(str(factors["law"]), str(factors["source"]), "quadratic")
        errors = {nfe: oracle.error(sampler, nfe) for nfe in self.settings.nfes}
        return Cell(factors, series(factors, "nfe", "total_variation", errors))


class Local(Study):
    """Local error of the cumulative intensity against a fine quadrature on the oracle (paper: Theorems
    exact_error and cie_error): with the history at the same state, and with a history whose state differs in
    one coordinate, which adds a drift term of order h."""

    samples = 0
    seeds = (0,)
    ignores = SAMPLED
    nfes = (8, 16, 32, 64, 128)  # 1 / h
    samplers = ("euler", "tr", "cie", "tr_cie", "tr_cie_exact")
    view = View(x="1/h", row=("sampler",), panel=("history",), x_name="1 / h")
    stated: ClassVar[dict[str, Scale]] = {
        "largest_error": Scale(),
        "slope": Scale(higher_is_better=True, logarithmic=False),
    }
    histories: ClassVar[dict[str, list[int]]] = {"same state": [0, 1, 2], "one token away": [0, 1, 0]}

    def cells(self) -> list[Factors]:
        lines = product(self.histories, self.settings.samplers)
        return [{"history": history, "sampler": spec} for history, spec in lines]

    def measure(self, factors: Factors) -> Cell:
        process = process_of("uniform")
        problem = Propagator(joint_law(0.5), process).problem
        x = torch.tensor([self.histories["same state"]])
        before = torch.tensor([self.histories[str(factors["history"])]])
        errors = {}
        for count in self.settings.nfes:
            tau = 0.5 + torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64) / count
            grid = Grid(process.t_from_clock(tau), tau)
            state = State(x, problem.evaluate(before, grid.t[0]))
            errors[count] = local_error(problem, str(factors["sampler"]), state, grid, 1).largest
        return Cell(factors, series(factors, "1/h", "largest_error", errors))


class Kl(Study):
    """The KL decomposition on the oracle (paper: Eq. kl_decomp, Theorem app_pathkl): path KL by the Bregman
    formula, its freeze, variation and integration terms (without C_Phi), and the exact terminal KL that they
    bound; up to kappa = 0.8, floor 1e-6, weak law."""

    samples = 4000  # paths
    ignores = ("checkpoints", "judge", "batch_size")
    seeds = (0,)
    nfes = (4, 8, 16, 32, 64)
    samplers = ("tr", "tr_cie", "tr_cie_exact")
    stated: ClassVar[dict[str, Scale]] = {
        name: Scale() for name in ("path", "terminal", "freeze", "variation", "integration")
    }
    smoke = Study.smoke | {"samples": 20}

    def cells(self) -> list[Factors]:
        lines = product(SOURCES, self.settings.samplers, self.settings.nfes, self.settings.seeds)
        names = ("source", "sampler", "nfe", "seed")
        return [dict(zip(names, line, strict=True)) for line in lines]

    def measure(self, factors: Factors) -> Cell:
        law, process, nfe = joint_law(LAWS["weak"]), process_of(str(factors["source"])), int(factors["nfe"])
        sampler = sampler_from(str(factors["sampler"]), grid="tau", finish="none", cutoff=0.2, eps_0=1e-6)
        terms = kl_decomposition(law, process, sampler, nfe, self.settings.samples, int(factors["seed"]))
        found = {"path": Measured(terms.path, terms.path_error)}
        found["terminal"] = Measured(terminal_kl(law, process, sampler, nfe))
        found |= {name: Measured(getattr(terms, name)) for name in ("freeze", "variation", "integration")}
        return Cell(factors, records(factors, found))


class Schedules(OnModels):
    """Which schedule to sample with: linear, quadratic, cubic, cosine. On the oracle (strong law, total
    variation, computed), and on the countdown models: a posterior depends on kappa alone, so a model trained
    with one schedule samples with any other once its time is translated. On a t grid the schedule decides
    where the steps go; the tau grid is the same for all."""

    names: ClassVar[Sequence[str]] = ("linear", "quadratic", "cubic", "cosine")
    samplers = ("euler", "tr_cie")
    nfes = (8, 16, 32)
    view = View(row=("sampler", "schedule"), panel=("where", "source"))
    shown = ("error_rate", "unigram_tv")

    def named_models(self) -> list[tuple[Factors, Trained]]:
        named = super().named_models()
        return [(factors | {"where": type(each.task).__name__.lower()}, each) for factors, each in named]

    def scales(self) -> dict[str, Scale]:
        return {"total_variation": Scale()} | super().scales()

    def cells(self) -> list[Factors]:
        refuse_unpropagated(self.settings.samplers)
        choices = product(self.settings.samplers, self.names, self.settings.nfes)
        lines: list[Factors] = [
            {"sampler": spec, "schedule": schedule, "nfe": nfe} for spec, schedule, nfe in choices
        ]
        oracles: list[Factors] = [{"where": "oracle", "source": source} for source in SOURCES]
        cells = [oracle | line for oracle in oracles for line in lines]
        for subject in self.subjects:
            for line, seed in product(lines, self.settings.seeds):
                cells.append(subject.factors | line | {"seed": seed})
        return cells

    def measure(self, factors: Factors) -> Cell:
        sampler, schedule = sampler_from(str(factors["sampler"])), str(factors["schedule"])
        if factors["where"] == "oracle":
            error = propagator("strong", str(factors["source"]), schedule).error(sampler, int(factors["nfe"]))
            return Cell(factors, records(factors, {"total_variation": Measured(error)}))
        trained = with_schedule(self.subject_of(factors).trained, schedule_from(schedule))
        return self.sampled(trained, sampler, factors)


class Translated(Wrapper):
    """A denoiser trained with one schedule, called with the times of another."""

    def __init__(self, denoiser: Denoiser, trained: Schedule, other: Schedule):
        super().__init__(denoiser)
        self.trained = trained
        self.other = other

    def posterior(self, query: Query) -> Posterior:
        own = self.trained.t_from_kappa(self.other.kappa(query.t.double())).to(query.t)
        return self.denoiser.posterior(query.replace(t=own))


def with_schedule(trained: Trained, schedule: Schedule) -> Trained:
    """Return a trained model to be sampled with another schedule than that of its training."""
    process = trained.model.process
    if not isinstance(process, Mixture):
        raise SettingsError(f"{process} has no schedule to exchange; study a model with a mixture process")
    denoiser = Translated(trained.model.denoiser, process.schedule, schedule)
    process = dataclasses.replace(process, schedule=schedule)
    model = dataclasses.replace(trained.model, denoiser=denoiser, process=process)
    return dataclasses.replace(trained, model=model)
