"""In which order to reveal a picture."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from benchmarks.studies.base import Study
from benchmarks.studies.images import METRIC, NEEDS, image_task
from tauflow.denoise import Model
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import Sampling, check, nll_scales, no_nll, task_of, with_nll
from tauflow.evaluation.results import Cell, Factors, Scale
from tauflow.evaluation.tables import View
from tauflow.samplers import Sampler, sampler_from
from tauflow.tasks import Images


@dataclass(frozen=True)
class Ordered:
    """A model whose coordinates are seen in a geometry, and the sampler that reveals them."""

    model: Model
    task: Images
    sampler: Sampler


class ImageOrders(Study):
    """In which order to reveal a picture: exact likelihood, in bits per dimension, of a masked model under
    random orders with equal and with growing counts, and under `spaced` and `spaced_even` in one dimension,
    on a grid of all axes, and with the channels of a pixel together or apart. All orders see the same real
    items, so differences to the random one are paired. Needs --ckpt, with or without channels."""

    samples = 0
    seeds = (0,)
    nfes = (8, 16, 32)
    nll_items = 32
    needs = NEEDS
    smoke = Study.smoke | {"nll_items": 2}
    view = View(row=("order",), panel=("tokens",))
    ignores = ("samples", "samplers", "judge")
    grows = ("nfes",)

    @cached_property
    def subjects(self) -> dict[tuple[str, str], Ordered]:
        """Return what is measured, by the kind of tokens and the order."""
        if not self.settings.nll_items:
            raise SettingsError(f"the study {self.name} measures nll alone; --nll_items must be at least 1")
        found: dict[tuple[str, str], Ordered] = {}
        for trained in self.loaded:
            task = image_task(trained, self.name)
            if any(tokens == task.tokens for tokens, _ in found):
                raise SettingsError(
                    f"two checkpoints have {task.tokens} tokens; give --ckpt at most one of each kind"
                )
            for name, (sampler, model) in orders(trained.model).items():
                if reason := no_nll(sampler, model, task, self.sampling(0)):
                    raise SettingsError(f"the study {self.name} measures likelihoods: {reason}")
                check(model, {str(sampler): sampler}, self.settings.nfes, self.sampling(0))
                found[task.tokens, name] = Ordered(model, task, sampler)
        return found

    def cells(self) -> list[Factors]:
        lines = product(self.subjects, self.settings.nfes, self.settings.seeds)
        return [
            {"tokens": tokens, "order": order, "nfe": nfe, "seed": seed}
            for (tokens, order), nfe, seed in lines
        ]

    def measure(self, factors: Factors) -> Cell:
        subject = self.subjects[str(factors["tokens"]), str(factors["order"])]
        sampling = self.sampling(int(factors["seed"]))
        cell = with_nll(Cell(factors), subject.model, subject.task, subject.sampler, sampling)
        named = factors | {"sampler": str(subject.sampler)}  # whose colour the order has in figures
        return dataclasses.replace(
            cell, records=[dataclasses.replace(each, factors=named) for each in cell.records]
        )

    def sampling(self, seed: int) -> Sampling:
        return Sampling(
            batch_size=self.settings.batch_size, seed=seed, show=0, nll_items=self.settings.nll_items
        )

    def scales(self) -> dict[str, Scale]:
        return {METRIC: nll_scales(task_of(self.loaded[0]))[METRIC]}


def orders(model: Model) -> dict[str, tuple[Sampler, Model]]:
    """Return samplers with the models on which they reveal in each order, by name; the first is the base."""
    found = {
        "random": (sampler_from("fhs"), model),
        "random, growing counts": (sampler_from("fhs", counts="power"), model),
    }
    for name in ("spaced", "spaced_even"):
        for words, seen in geometries(model).items():
            found[f"{name}, {words}"] = (sampler_from(name), seen)
    return found


def geometries(model: Model) -> dict[str, Model]:
    """Return the model with its coordinates seen as a line, as a grid, and as pixels with channels."""
    flat = dataclasses.replace(model, channels=None)
    found = {
        "one dimension": dataclasses.replace(flat, shape=(model.length,)),
        f"{len(model.shape)} dimensions": flat,
    }
    if len(model.shape) == 3:
        found["channels together"] = dataclasses.replace(model, channels="together")
        found["channels apart"] = dataclasses.replace(model, channels="apart")
    return found
