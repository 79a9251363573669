"""Studies of the samplers beyond the paper: every family tuned alike on choice seeds, then reported on other seeds."""

import dataclasses
from functools import cache
from itertools import product

import torch

from tauflow.errors import SettingsError
from tauflow.oracles import EnumerableLaw
from tauflow.orders import dependence, learn_order
from tauflow.runs import Run
from tauflow.samplers import Sampler
from tauflow.sampling import sampler_from
from tauflow.studies.base import Job, Study
from tauflow.studies.laws import JointTask, exact_run, laws
from tauflow.studies.models import OnModels
from tauflow.studies.theory import LAWS
from tauflow.tables import Measured

CHOICE_SEED = 1000
"""On which options are chosen; reports are made on other seeds."""


def variants(source: str) -> dict[str, Sampler]:
    """The same effort for every family: each order, count and weight with each other for reveals; each grid and coin for leaps."""
    if source == "masked":
        reveals = product(("random", "spaced", "even"), (1.0, 2.0, 3.0), ("none", "pairs .15", "pairs 1", "hitting"))
        found = {f"reveal {order} m={power:g} {how}": _reveal(order, power, how) for order, power, how in reveals}
    else:
        gains = product(("independent", "systematic"), (None, 0.5, 0.75, 1.0))
        found = {f"bridge {coins} g={gain or 'derived'}": sampler_from("bridge", coins=coins, gain=gain) for coins, gain in gains}
    for name, grid, coins in product(("euler", "tr", "tr_cie"), ("t", "tau", "early"), ("independent", "systematic")):
        found[f"{name} {grid} {coins}"] = sampler_from(name, grid=grid, coins=coins, cutoff=0.02)
    return found


def _reveal(order: str, power: float, how: str) -> Sampler:
    extrapolation, weight = ("hitting", None) if how == "hitting" else ("pairs", {"none": 0.0, "pairs .15": 0.15, "pairs 1": 1.0}[how])
    return sampler_from("fhs", order=order, counts="power", power=power, extrapolation=extrapolation, weight=weight)


class Tuning(OnModels):
    """Which options each family of samplers would like best, on choice seeds that no report uses: reveals by order x count exponent m x
    extrapolation (none, pairs, hitting times), leaps by grid x coins, bridges by coins x gain."""

    nfes = (8, 16, 32)
    samples = 64
    seeds = (CHOICE_SEED,)
    ignores = ("samplers",)

    @cache  # noqa: B019  a study lives as long as its process
    def rows(self, source):
        return variants(source)


CHOSEN = {
    "masked": (
        *("euler t systematic", "tr t systematic", "tr_cie t systematic", "reveal spaced m=2 hitting"),
        *("reveal even m=2 none", "reveal even m=3 none", "reveal spaced m=3 none"),
    ),
    "uniform": (
        *("tr_cie early independent", "tr_cie early systematic", "tr early systematic", "euler early systematic"),
        *("bridge independent g=0.5", "bridge systematic g=1.0"),
    ),
}
"""The best of each family in the study `tuning`, by error with an eye on the unigram law."""


class Tuned(OnModels):
    """The best options of each family, found by `tuning` on choice seeds, measured on report seeds: the paper's samplers with the grids,
    coins, counts and orders of the new ones."""

    ignores = ("samplers",)

    @cache  # noqa: B019
    def rows(self, source):
        return {name: variants(source)[name] for name in CHOSEN[source]}


class Joints(OnModels):
    """Small joint laws without any geometry, with an exact denoiser: three coordinates of three tokens, weakly and strongly dependent.
    Total variation of the samples to the law; that of as many draws from the law itself is the row (real data)."""

    samples = 20_000
    nfes = (1, 2, 3, 4, 8)
    seeds = (0,)
    samplers = ("paper", "beyond")
    ignores = ("checkpoints", "judge")
    shown = ("total_variation",)
    smoke = OnModels.smoke | {"samples": 50, "batch_size": 50}

    @cache  # noqa: B019
    def models(self) -> dict[str, Run]:
        joints = {law: JointTask(EnumerableLaw.random(3, 3, spread)) for law, spread in LAWS.items()}
        return {f"{law}, {source}": exact_run(task, source, "linear") for law, task in joints.items() for source in ("masked", "uniform")}


class Laws(OnModels):
    """The same on laws with an exact denoiser, so that all error is the sampler's: a Markov chain, a hidden Markov chain of longer range,
    countdown, and copies half a sequence apart, where dependence does not fall with distance and spacing fails."""

    nfes = (8, 16, 32, 64)
    samples = 256
    samplers = ("paper", "beyond")
    ignores = ("checkpoints", "judge")
    shown = ("perplexity", "error_rate", "unigram_tv")

    @cache  # noqa: B019
    def models(self) -> dict[str, Run]:
        runs = {}
        for law, task in laws().items():
            run = exact_run(task, "masked")
            ranks = learn_order(run.denoiser, run.source, run.schedule, task.seq_len, contexts=min(16, self.settings.samples))
            runs[f"{law}, masked"] = dataclasses.replace(run, ranks=ranks)
            runs[f"{law}, uniform"] = exact_run(task, "uniform")
        return runs


class Dependence(Study):
    """Why spacing works, and where it cannot: by how much the posterior of a coordinate moves, in total variation, when another one is
    revealed, against the distance between the two; averaged over contexts of real data with a random share masked."""

    x_name = "distance"
    samples = 16  # contexts
    seeds = (0,)
    smoke = Study.smoke | {"samples": 1}
    shown = ("dependence",)
    ignores = ("samplers", "nfes", "judge", "batch_size")

    @cache  # noqa: B019
    def runs(self) -> dict[str, Run]:
        trained = {f"{type(run.task).__name__.lower()} model": run for source, run in self.models().items() if source == "masked"}
        return trained | {law: exact_run(task, "masked") for law, task in laws().items()}

    def jobs(self):
        if others := set(self.models()) - {"masked"} if self.settings.checkpoints else set():
            raise SettingsError(f"the study dependence reveals masked coordinates; this model has a {', '.join(others)} source")
        for row, run in self.runs().items():
            if not hasattr(run.task, "val_data"):
                run.task.setup("validate")
            if (needed := (max(self.settings.seeds) + 1) * self.settings.samples) > len(run.task.val_data):
                raise SettingsError(f"{row}: seeds x contexts need {needed} items, there are {len(run.task.val_data)}; lower them")
        return [Job("masked", row, 0, seed) for row in self.runs() for seed in self.settings.seeds]

    def measure(self, job):
        run, count = self.runs()[job.row], self.settings.samples
        first = job.seed * count
        data = torch.stack([item["tokens"] for item in run.task.val_data.__getitems__(list(range(first, first + count)))])
        matrix = dependence(run.denoiser, run.source, run.schedule, run.task.seq_len, data=data, seed=job.seed)
        records = []
        for distance in sorted({*(2**k for k in range(run.task.seq_len.bit_length())), 3, 6, 12, 24} - {run.task.seq_len}):
            if distance < run.task.seq_len:
                along = matrix.diagonal(distance)
                records += self.record(job, {"dependence": Measured(along.mean().item(), 0.0)}, distance)
        return records
