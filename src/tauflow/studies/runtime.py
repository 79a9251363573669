"""What a sample costs by the clock."""

import importlib.util
import time
from functools import cache

import torch

from tauflow.errors import SettingsError
from tauflow.evaluation import choose_samplers
from tauflow.runs import Run
from tauflow.samplers import Sampler
from tauflow.sampling import sample
from tauflow.schedules import Polynomial
from tauflow.sources import Masked
from tauflow.studies.base import Job, Study
from tauflow.tables import Measured
from tauflow.tasks.base import standard_error

PEER = "flow_matching"


class Runtime(Study):
    """Milliseconds a sample by sampler and NFE (paper: tab:runtime_all_nfe), beside the Euler solver of the flow_matching package on the
    same network, one batch after another in one run; compare ratios, not times. The peer is left out where it is not installed
    (pip install -c constraints.txt -e '.[bench]')."""

    samples = 64
    seeds = (0, 1, 2)
    nfes = (8, 16, 32, 64, 128)
    samplers = ("paper",)
    shown = ("ms_per_sample", "ratio_to_flow_matching")

    @cache  # noqa: B019  a study lives as long as its process
    def rows(self, source: str) -> dict[str, Sampler | None]:
        rows = choose_samplers(list(self.settings.samplers), self.models()[source])[0]
        return rows | ({PEER: None} if importlib.util.find_spec(PEER) else {})

    def jobs(self):
        return [Job(source, "all", nfe, seed) for source in self.models() for nfe in self.settings.nfes for seed in self.settings.seeds]

    def measure(self, job):
        """All samplers of a budget in one job, a batch each in turn: so a busy moment of the machine falls on all of them."""
        run, rows, settings = self.models()[job.panel], self.rows(job.panel), self.settings
        times: dict[str, list[float]] = {row: [] for row in rows}
        for i in range(max(1, settings.samples // settings.batch_size)):
            for row, sampler in rows.items():
                begin = time.perf_counter()
                self.draw(run, sampler, int(job.x), job.seed + i)
                times[row].append(1e3 * (time.perf_counter() - begin) / settings.batch_size)
        records = []
        for row, found in times.items():
            values = torch.tensor(found)
            metrics = {"ms_per_sample": Measured(values.mean().item(), standard_error(values).nan_to_num().item())}
            if PEER in times:
                ratios = values / torch.tensor(times[PEER])
                metrics["ratio_to_flow_matching"] = Measured(ratios.mean().item(), standard_error(ratios).nan_to_num().item())
            records += self.record(Job(job.panel, row, job.x, job.seed), metrics)
        return records

    def draw(self, run: Run, sampler: Sampler | None, nfe: int, seed: int) -> None:
        shape = (self.settings.batch_size, run.task.seq_len)
        if sampler is None:
            peer_sample(run, shape, nfe, seed)
        else:
            sample(run.denoiser, run.source, run.schedule, shape, sampler, nfe, seed=seed, geometry=run.task.geometry, ranks=run.ranks)


@torch.no_grad()
def peer_sample(run: Run, shape: tuple[int, int], nfe: int, seed: int) -> torch.Tensor:
    """Samples of flow_matching's MixtureDiscreteEulerSolver with a uniform t grid."""
    from flow_matching.path import MixtureDiscreteProbPath
    from flow_matching.path.scheduler import PolynomialConvexScheduler
    from flow_matching.solver import MixtureDiscreteEulerSolver
    from flow_matching.utils import ModelWrapper

    if not isinstance(run.schedule, Polynomial):
        raise SettingsError(f"flow_matching has no schedule {run.schedule}; study a model with a polynomial one")
    states = run.source.num_states

    class Probabilities(ModelWrapper):
        def forward(self, x, t, **extras):
            rows = run.denoiser.evaluate(x, t.expand(len(x))).dense()
            return torch.nn.functional.pad(rows, (0, states - rows.shape[-1]))

    path = MixtureDiscreteProbPath(scheduler=PolynomialConvexScheduler(n=run.schedule.exponent))
    solver = MixtureDiscreteEulerSolver(model=Probabilities(torch.nn.Identity()), path=path, vocabulary_size=states)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x_0 = torch.full(shape, run.source.mask_id) if isinstance(run.source, Masked) else torch.randint(states, shape)
        return solver.sample(x_init=x_0, step_size=1 / nfe, verbose=False)
