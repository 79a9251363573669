"""What a sample costs by the clock."""

import importlib.util
import time
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.studies.study import Study, records
from tauflow.denoise import Model
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import choose_samplers
from tauflow.evaluation.results import Cell, Factors, Measured, Record, Scale
from tauflow.process import Mixture, Polynomial
from tauflow.samplers import Sampler, sample
from tauflow.tasks.metrics import standard_error

PEER = "flow_matching"


class Runtime(Study):
    """Milliseconds per sample by sampler and NFE (paper: tab:runtime_all_nfe), beside the Euler solver of the
    flow_matching package on the same network, one batch after another in one run; compare ratios, not times.
    The peer is skipped where it is not installed (pip install -c constraints.txt -e '.[bench]')."""

    samples = 64
    seeds = (0, 1, 2)
    nfes = (8, 16, 32, 64, 128)
    samplers = ("paper",)
    stated: ClassVar[dict[str, Scale]] = {"ms_per_sample": Scale(), "ratio_to_flow_matching": Scale()}

    def cells(self) -> list[Factors]:
        lines = product(self.samplers_by_source, self.settings.nfes, self.settings.seeds)
        return [{"source": source, "nfe": nfe, "seed": seed} for source, nfe, seed in lines]

    @cached_property
    def samplers_by_source(self) -> dict[str, dict[str, Sampler | None]]:
        """Return the samplers of each model by their specs; None is the peer."""
        peer: dict[str, Sampler | None] = {PEER: None} if importlib.util.find_spec(PEER) else {}
        found = {}
        for source, trained in self.models.items():
            chosen, notes = choose_samplers(self.settings.samplers, trained.model)
            self.notes.extend(notes)
            found[source] = {**chosen, **peer}
        return found

    def measure(self, factors: Factors) -> Cell:
        """Time all samplers at a budget, a batch each in turn: a busy moment falls on all of them."""
        source = str(factors["source"])
        model, samplers = self.models[source].model, self.samplers_by_source[source]
        nfe, first = int(factors["nfe"]), int(factors["seed"])
        size = self.settings.batch_size
        times: dict[str, list[float]] = {name: [] for name in samplers}
        for batch in range(max(1, self.settings.samples // size)):
            for name, sampler in samplers.items():
                begin = time.perf_counter()
                if sampler is None:
                    peer_sample(model, size, nfe, first + batch)
                else:
                    sample(model, sampler, nfe, count=size, seed=first + batch)
                times[name].append(1e3 * (time.perf_counter() - begin) / size)
        found: list[Record] = []
        for name, values in times.items():
            metrics = {"ms_per_sample": mean_of(torch.tensor(values))}
            if PEER in times:
                metrics["ratio_to_flow_matching"] = mean_of(torch.tensor(values) / torch.tensor(times[PEER]))
            found += records(factors | {"sampler": name}, metrics)
        return Cell(factors, found)


def mean_of(values: Tensor) -> Measured:
    return Measured(values.mean().item(), standard_error(values).nan_to_num().item())


@torch.no_grad()
def peer_sample(model: Model, count: int, nfe: int, seed: int) -> Tensor:
    """Sample with flow_matching's MixtureDiscreteEulerSolver on a uniform t grid."""
    from flow_matching.path import MixtureDiscreteProbPath
    from flow_matching.path.scheduler import PolynomialConvexScheduler
    from flow_matching.solver import MixtureDiscreteEulerSolver
    from flow_matching.utils import ModelWrapper

    process = model.process
    schedule = process.schedule if isinstance(process, Mixture) else None
    if not isinstance(schedule, Polynomial):
        raise SettingsError(
            f"flow_matching has no such process ({process}); study a model with a polynomial schedule"
        )
    states = process.num_states

    class Probabilities(ModelWrapper):
        def forward(self, x: Tensor, t: Tensor, **extras: Any) -> Tensor:
            rows = model.denoiser.evaluate(x, t.expand(len(x))).dense()
            return torch.nn.functional.pad(rows, (0, states - rows.shape[-1]))

    path = MixtureDiscreteProbPath(scheduler=PolynomialConvexScheduler(n=schedule.exponent))
    network = Probabilities(torch.nn.Identity())
    solver = MixtureDiscreteEulerSolver(model=network, path=path, vocabulary_size=states)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x_0 = process.start((count, model.length), torch.Generator().manual_seed(seed))
        return solver.sample(x_init=x_0, step_size=1 / nfe, verbose=False)
