"""Studies that watch a sampler at work: what the paper's theory assumes, measured along trajectories."""

from itertools import product
from typing import ClassVar

from benchmarks.studies.study import Study, records
from benchmarks.theory import observers
from benchmarks.theory.diagnostic import Diagnostic
from tauflow.errors import SettingsError
from tauflow.evaluation.results import Cell, Factors, Measured, Record, Scale
from tauflow.evaluation.tables import View
from tauflow.numerics import generator_for
from tauflow.samplers import sample


class Observed(Study):
    """Abstract: samples that are drawn with an observer."""

    samples = 128
    nfes: ClassVar[tuple[int, ...]] = (8, 16, 32, 64, 128, 256)
    specs: ClassVar[tuple[str, ...]] = ("tr_cie", "tr_cie(grid=tau)")
    ignores = ("samplers", "judge")

    def cells(self) -> list[Factors]:
        nfes, seeds = self.settings.nfes, self.settings.seeds
        if min(nfes) < 3:
            raise SettingsError(
                "what is extrapolated can be watched from --nfes 3 on: a step of history, one that uses it, "
                "the final draw"
            )
        lines = product(self.models, self.specs, nfes, seeds)
        names = ("source", "sampler", "nfe", "seed")
        return [dict(zip(names, line, strict=True)) for line in lines]

    def watch(self, factors: Factors, spec: str, observer: Diagnostic) -> None:
        """Draw the samples of a cell in batches, each with a seed of its own."""
        model, settings = self.models[str(factors["source"])].model, self.settings
        for begin in range(0, settings.samples, settings.batch_size):
            count = min(settings.batch_size, settings.samples - begin)
            generator = generator_for("observed", int(factors["seed"]), begin)
            sample(model, spec, int(factors["nfe"]), count=count, seed=generator, observer=observer)


class PositivityStudy(Observed):
    """Share of the extrapolated intensities that are nonnegative before clamping (paper:
    tab:positive_pct_tasks), for both grids: over the channels of movable coordinates, and over all D V
    entries of a sequence (the paper does not say which it means)."""

    stated: ClassVar[dict[str, Scale]] = {
        f"percent_nonnegative_{name}": Scale(higher_is_better=True, logarithmic=False)
        for name in ("movable", "all")
    }

    def measure(self, factors: Factors) -> Cell:
        spec = str(factors["sampler"])
        observer = observers.Positivity(self.models[str(factors["source"])].model, spec)
        self.watch(factors, spec, observer)
        shares = observer.shares()
        root = self.settings.samples**0.5
        found = {}
        for name in ("movable", "all"):
            found[f"percent_nonnegative_{name}"] = Measured(
                100 * shares[name], 100 * shares[f"{name}_std"] / root
            )
        return Cell(factors, records(factors, found))


class Hamming(Observed):
    """Hamming-drift ratio R = max_n E[d_H(x_{n+1}, x_n)] / h_n (paper: hamming:drift, tab:drift_scaling), h
    in tau and in t: Corollary cie_expected needs it to stay bounded as the budget grows."""

    stated: ClassVar[dict[str, Scale]] = {"ratio_tau": Scale(), "ratio_t": Scale()}

    def measure(self, factors: Factors) -> Cell:
        observer = observers.HammingDrift(self.models[str(factors["source"])].model.process)
        self.watch(factors, str(factors["sampler"]), observer)
        root = self.settings.samples**0.5
        found = {}
        for domain in observers.DOMAINS:
            ratio = observer.ratio(domain)
            found[f"ratio_{domain}"] = Measured(ratio.value, ratio.trajectory_std / root)
        return Cell(factors, records(factors, found))


class ProxiesStudy(Observed):
    """Curvature and drift proxies along a trajectory (paper: fig:stiffness_analysis, App. drift_analysis):
    tau domain, t domain, and their ratio, against the time t of the step; tr_cie on a uniform tau grid."""

    nfes = (64,)
    seeds = (0,)
    view = View(x="t", row=("quantity",), panel=("source", "domain", "nfe"), x_name="t")
    stated: ClassVar[dict[str, Scale]] = {"proxy": Scale(), "ratio": Scale()}
    panels_down = True
    specs = ("tr_cie(grid=tau)",)
    smoke = Study.smoke | {"nfes": (5,)}

    def measure(self, factors: Factors) -> Cell:
        spec = str(factors["sampler"])
        observer = observers.Proxies(self.models[str(factors["source"])].model)
        self.watch(factors, spec, observer)
        found: list[Record] = []
        for row in observer.records():
            for domain in observers.DOMAINS:
                place = factors | {"domain": domain, "t": row["t"]}
                for short, quantity in (("curv", "curvature"), ("drift", "drift")):
                    proxy = {"proxy": Measured(row[f"{short}_{domain}"])}
                    found += records(place | {"quantity": quantity}, proxy)
                ratio = {"ratio": Measured(row[f"ratio_{domain}"])}
                found += records(place | {"quantity": "curvature / drift"}, ratio)
        return Cell(factors, found)
