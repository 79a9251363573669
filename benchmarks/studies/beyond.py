"""Studies of the samplers beyond the paper: every family tuned alike, then reported on other seeds."""

import dataclasses
from functools import cached_property
from itertools import product
from typing import ClassVar

import torch

from benchmarks.studies.laws import JointTask, exact, laws
from benchmarks.studies.models import OnModels
from benchmarks.studies.study import Study, records
from benchmarks.studies.subjects import with_learned
from benchmarks.studies.theory import LAWS, joint_law
from tauflow.denoise import Model
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import choose_samplers, task_of
from tauflow.evaluation.results import Cell, Factors, Measured, Record, Scale
from tauflow.evaluation.tables import View
from tauflow.samplers import Sampler, sampler_from
from tauflow.samplers.learned import dependence, learn_order
from tauflow.tasks.task import items_of
from tauflow.train import Trained

CHOICE_SEED = 1000
"""On which options are chosen; reports are made on other seeds."""


def variants(model: Model) -> dict[str, Sampler]:
    """Return the same effort for every family: reveals by order, counts and weight; others by their own."""
    found: list[Sampler] = []
    if model.process.absorbing:
        orders, powers = ("random", "spaced", "even"), (1.0, None, 3.0)
        for order, power, weight in product(orders, powers, (0.0, 0.15, 1.0, None)):
            extrapolation = {"extrapolation": "hitting"} if weight is None else {"weight": weight}
            found.append(sampler_from("fhs", order=order, counts="power", power=power, **extrapolation))
    else:
        for coins, gain in product(("independent", "systematic"), (None, 0.5, 0.75, 1.0)):
            found.append(sampler_from("bridge", coins=coins, gain=gain))
    names, grids = ("euler", "tr", "tr_cie"), ("t", "tau", "early")
    for name, grid, coins in product(names, grids, ("independent", "systematic")):
        cutoff = {"cutoff": 0.02} if grid == "tau" else {}  # the other grids end in a draw and have none
        found.append(sampler_from(name, grid=grid, coins=coins, **cutoff))
    return {str(sampler): sampler for sampler in found}


class Tuning(OnModels):
    """Which options each family of samplers would like best, on choice seeds that no report uses: reveals by
    order x exponent of the counts x extrapolation (none, pairs, hitting times), leaps by grid x coins,
    bridges by coins x gain."""

    nfes = (8, 16, 32)
    samples = 64
    seeds = (CHOICE_SEED,)
    ignores = ("samplers",)

    def samplers_for(self, model: Model) -> dict[str, Sampler]:
        return variants(model)


class Tuned(OnModels):
    """The best options of each family, found by `tuning` on choice seeds, measured on report seeds: the
    paper's samplers with the grids, coins, counts and orders of the new ones."""

    ignores = ("samplers",)
    reveals: ClassVar[tuple[str, ...]] = (
        *("euler(coins=systematic)", "tr(coins=systematic)", "tr_cie(coins=systematic)"),
        *("spaced(extrapolation=hitting)", "spaced_even", "spaced_even(power=3)", "spaced(power=3)"),
    )
    """The best of each family from masks, by error with an eye on the unigram law."""
    bridges: ClassVar[tuple[str, ...]] = (
        *("tr_cie(grid=early)", "tr_cie(grid=early, coins=systematic)", "tr(grid=early, coins=systematic)"),
        *("euler(grid=early, coins=systematic)", "bridge(gain=0.5)", "bridge_systematic(gain=1)"),
    )
    """The same from noise."""

    def samplers_for(self, model: Model) -> dict[str, Sampler]:
        return choose_samplers(self.reveals if model.process.absorbing else self.bridges, model)[0]


class OnLaws(OnModels):
    """Abstract: laws with an exact denoiser in place of trained models."""

    samplers: ClassVar[tuple[str, ...]] = ("paper", "beyond")
    ignores = ("checkpoints", "judge")
    view = View(row=("sampler",), panel=("law", "source"))


class Joints(OnLaws):
    """Small joint laws without any geometry, with an exact denoiser: three coordinates of three tokens,
    weakly and strongly dependent. Total variation of the samples to the law; that of as many draws from the
    law itself is the row (real data)."""

    samples = 20_000
    nfes = (1, 2, 3, 4, 8)
    seeds = (0,)
    shown = ("total_variation",)
    smoke = OnModels.smoke | {"samples": 50, "batch_size": 50}

    def named_models(self) -> list[tuple[Factors, Trained]]:
        found: list[tuple[Factors, Trained]] = []
        for law, spread in LAWS.items():
            task = JointTask(joint_law(spread))
            for source in ("masked", "uniform"):
                found.append(({"law": law, "source": source}, exact(task, source, "linear")))
        return found


class Laws(OnLaws):
    """The same on laws with an exact denoiser, so that all error is the sampler's: a Markov chain, a hidden
    Markov chain of longer range, countdown, and copies half a sequence apart, where dependence does not fall
    with distance and spacing fails."""

    nfes = (8, 16, 32, 64)
    samples = 256
    shown = ("perplexity", "error_rate", "unigram_tv")

    def named_models(self) -> list[tuple[Factors, Trained]]:
        found: list[tuple[Factors, Trained]] = []
        for law, task in laws().items():
            masked = exact(task, "masked")
            contexts = min(16, self.settings.samples)
            order = learn_order(masked.model, contexts=contexts)
            masked = dataclasses.replace(masked, model=dataclasses.replace(masked.model, order=order))
            masked = with_learned(masked, self.settings.samplers, contexts)
            found.append(({"law": law, "source": "masked"}, masked))
            found.append(({"law": law, "source": "uniform"}, exact(task, "uniform")))
        return found


class Dependence(Study):
    """Why spacing works, and where it cannot: by how much the posterior of a coordinate moves, in total
    variation, when another one is revealed, against the distance between the two; averaged over contexts of
    real data with a random share masked."""

    samples = 16  # contexts
    seeds = (0,)
    smoke = Study.smoke | {"samples": 1}
    view = View(x="distance", row=("denoiser",), panel=("source",), x_name="distance")
    stated: ClassVar[dict[str, Scale]] = {"dependence": Scale()}
    ignores = ("samplers", "nfes", "judge", "batch_size")

    @cached_property
    def denoisers(self) -> dict[str, Trained]:
        found = {}
        if "masked" in self.models:
            trained = self.models["masked"]
            found[f"{type(trained.task).__name__.lower()} model"] = trained
        return found | {f"{law} law": exact(task, "masked") for law, task in laws().items()}

    def cells(self) -> list[Factors]:
        others = set(self.models) - {"masked"} if self.settings.checkpoints else set()
        if others:
            raise SettingsError(
                f"the study dependence reveals masks; this model has a {', '.join(others)} source"
            )
        needed = (max(self.settings.seeds) + 1) * self.settings.samples
        for name, trained in self.denoisers.items():
            task = task_of(trained)
            if not hasattr(task, "val_data"):
                task.setup("validate")
            if needed > len(task.val_data):
                raise SettingsError(
                    f"{name}: seeds x contexts need {needed} items of {len(task.val_data)}; ask for fewer"
                )
        lines = product(self.denoisers, self.settings.seeds)
        return [{"source": "masked", "denoiser": name, "seed": seed} for name, seed in lines]

    def measure(self, factors: Factors) -> Cell:
        trained = self.denoisers[str(factors["denoiser"])]
        seed, count = int(factors["seed"]), self.settings.samples
        items = items_of(task_of(trained).val_data, list(range(seed * count, (seed + 1) * count)))
        data = torch.stack([item["tokens"].flatten() for item in items])
        matrix = dependence(trained.model, data=data, seed=seed)
        length = trained.model.length
        powers = {2**k for k in range(length.bit_length())}
        found: list[Record] = []
        for distance in sorted(each for each in powers | {3, 6, 12, 24} if each < length):
            mean = matrix.diagonal(distance).mean().item()
            found += records(factors | {"distance": distance}, {"dependence": Measured(mean)})
        return Cell(factors, found)
