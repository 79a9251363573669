"""Studies that watch a sampler at work: what the paper's theory assumes, measured along trajectories (tauflow.diagnostics)."""

import torch

from tauflow import diagnostics
from tauflow.errors import SettingsError
from tauflow.oracles import EnumerableLaw, Propagator, slope
from tauflow.samplers.base import State
from tauflow.samplers.grids import Grid
from tauflow.sampling import sample, sampler_from
from tauflow.schedules import schedule_from
from tauflow.seeds import seed_of
from tauflow.sources import SOURCES
from tauflow.studies.base import Job, Study
from tauflow.tables import Measured


class Observed(Study):
    """What these studies share: the batches of a job, drawn with an observer."""

    samples = 128
    nfes = (8, 16, 32, 64, 128, 256)
    grids = ("t", "tau")
    ignores = ("samplers", "judge")

    def jobs(self):
        grids, nfes, seeds = self.grids, self.settings.nfes, self.settings.seeds
        if min(nfes) < 3:
            raise SettingsError("what is extrapolated can be watched from --nfes 3 on: a step of history, one that uses it, the final draw")
        return [
            Job(source, f"tr_cie {grid} grid", nfe, seed) for source in self.models() for grid in grids for nfe in nfes for seed in seeds
        ]

    def sampler(self, job: Job):
        return sampler_from("tr_cie", grid=job.row.split(" ")[1])

    def watch(self, job: Job, sampler, observer) -> None:
        run, settings = self.models()[job.panel], self.settings
        for begin in range(0, settings.samples, settings.batch_size):
            shape = (min(settings.batch_size, settings.samples - begin), run.task.seq_len)
            seed = seed_of("observed", job.seed, begin)
            sample(run.denoiser, run.source, run.schedule, shape, sampler, int(job.x), seed=seed, observer=observer)


class Positivity(Observed):
    """Share of the extrapolated intensities that are nonnegative before clamping (paper: tab:positive_pct_tasks), for both grids: over the
    channels of movable coordinates, and over all D V entries of a sequence (the paper does not say which it means)."""

    shown = ("percent_nonnegative_movable", "percent_nonnegative_all")

    def measure(self, job):
        run, sampler = self.models()[job.panel], self.sampler(job)
        observer = diagnostics.Positivity(run.denoiser, run.source, run.schedule, sampler)
        self.watch(job, sampler, observer)
        shares, root = observer.shares(), self.settings.samples**0.5
        found = {name: Measured(100 * shares[name], 100 * shares[f"{name}_std"] / root) for name in ("movable", "all")}
        return self.record(job, {f"percent_nonnegative_{name}": value for name, value in found.items()})


class Hamming(Observed):
    """Hamming-drift ratio R = max_n E[d_H(x_{n+1}, x_n)] / h_n (paper: hamming:drift, tab:drift_scaling), h in tau and in t: Corollary
    cie_expected needs it to stay bounded as the budget grows."""

    shown = ("ratio_tau", "ratio_t")

    def measure(self, job):
        observer = diagnostics.HammingDrift(self.models()[job.panel].schedule)
        self.watch(job, self.sampler(job), observer)
        found = {domain: observer.ratio(domain) for domain in ("tau", "t")}
        root = self.settings.samples**0.5
        return self.record(job, {f"ratio_{domain}": Measured(each.value, each.trajectory_std / root) for domain, each in found.items()})


class Proxies(Observed):
    """Curvature and drift proxies along a trajectory (paper: fig:stiffness_analysis, App. drift_analysis): tau domain, t domain, and their
    ratio, against the time t of the step; tr_cie on a uniform tau grid."""

    nfes = (64,)
    seeds = (0,)
    x_name = "t"
    shown = ("proxy", "ratio")
    panels_down = True
    smoke = Study.smoke | {"nfes": (5,)}

    def jobs(self):
        return [Job(source, "all", nfe, seed) for source in self.models() for nfe in self.settings.nfes for seed in self.settings.seeds]

    def measure(self, job):
        run, sampler = self.models()[job.panel], sampler_from("tr_cie", grid="tau")
        observer = diagnostics.Proxies(run.denoiser, run.source, run.schedule)
        self.watch(job, sampler, observer)
        records = []
        for row in observer.records():
            for domain in ("tau", "t"):
                panel = f"{job.panel}, {domain} domain" + (f", NFE {job.x:g}" if len(self.settings.nfes) > 1 else "")
                for name in ("curv", "drift"):
                    found = {"proxy": Measured(row[f"{name}_{domain}"], 0.0)}
                    records += self.record(Job(panel, {"curv": "curvature", "drift": "drift"}[name], job.x, job.seed), found, row["t"])
                found = {"ratio": Measured(row[f"ratio_{domain}"], 0.0)}
                records += self.record(Job(panel, "curvature / drift", job.x, job.seed), found, row["t"])
        return records


class Kl(Study):
    """The KL decomposition on the oracle (paper: Eq. kl_decomp, Theorem app_pathkl): path KL by the Bregman formula, its freeze, variation
    and integration terms (without C_Phi), and the exact terminal KL that they bound; up to kappa = 0.8, floor 1e-6, weak law."""

    samples = 4000  # paths
    ignores = ("checkpoints", "judge", "batch_size")
    seeds = (0,)
    nfes = (4, 8, 16, 32, 64)
    samplers = ("tr", "tr_cie", "tr_cie_exact")
    shown = ("path", "terminal", "freeze", "variation", "integration")
    smoke = Study.smoke | {"samples": 20}

    def jobs(self):
        names, nfes, seeds = self.settings.samplers, self.settings.nfes, self.settings.seeds
        return [Job(source, name, nfe, seed) for source in SOURCES for name in names for nfe in nfes for seed in seeds]

    def measure(self, job):
        law, source, schedule = EnumerableLaw.random(3, 3, 0.2), SOURCES[job.panel](3), schedule_from("quadratic")
        sampler = sampler_from(job.row, grid="tau", finish="none", cutoff=0.2, eps_0=1e-6)
        terms = diagnostics.kl_decomposition(law, source, schedule, sampler, int(job.x), self.settings.samples, job.seed)
        found = {name: Measured(getattr(terms, name), 0.0) for name in ("freeze", "variation", "integration")}
        terminal = diagnostics.terminal_kl(law, source, schedule, sampler, int(job.x))
        return self.record(job, {"path": Measured(terms.path, terms.path_error), "terminal": Measured(terminal, 0.0)} | found)


class Local(Study):
    """Local error of the cumulative intensity against a fine quadrature on the oracle (paper: Theorems exact_error and cie_error): with the
    history at the same state, and with a history whose state differs in one coordinate, which adds a drift term of order h."""

    samples = 0
    seeds = (0,)
    ignores = ("checkpoints", "judge", "samples", "seeds", "batch_size")
    nfes = (8, 16, 32, 64, 128)  # 1 / h
    samplers = ("euler", "tr", "cie", "tr_cie", "tr_cie_exact")
    x_name = "1 / h"
    shown = ("largest_error", "slope")

    def jobs(self):
        panels = ("history at the same state", "history one token away")
        return [Job(panel, name, max(self.settings.nfes), 0) for panel in panels for name in self.settings.samplers]

    def measure(self, job):
        law, source, schedule = EnumerableLaw.random(3, 3, 0.5), SOURCES["uniform"](3), schedule_from("quadratic")
        problem = Propagator(law, source, schedule).problem
        x = torch.tensor([[0, 1, 2]])
        before = x if job.panel == "history at the same state" else torch.tensor([[0, 1, 0]])
        errors = {}
        for count in self.settings.nfes:
            tau = 0.5 + torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64) / count
            grid = Grid(schedule.t_from_tau(tau), tau)
            state = State(x, problem.evaluate(before, grid.t[0]), before)
            errors[count] = diagnostics.local_error(problem, sampler_from(job.row), state, grid, 1).largest
        records = [record for count, error in errors.items() for record in self.record(job, {"largest_error": Measured(error, 0.0)}, count)]
        last = list(errors)[-3:]
        found = {"slope": Measured(slope([errors[count] for count in last], last), 0.0)}
        return records + self.record(job, found, last[-1])
