"""What a reveal sampler will lose at each budget, from the network alone: no samples are drawn."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise, product
from typing import ClassVar, get_args

import torch
from torch import Tensor

from benchmarks.studies.study import Study, records
from tauflow.denoise import LearnedCounts, Model
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import choose_samplers, task_of
from tauflow.evaluation.results import Cell, Factors, Measured, Record, Results, Scale
from tauflow.evaluation.tables import Frame, View
from tauflow.samplers import Problem
from tauflow.samplers.learned import Shortest, budgets, excess, forecast
from tauflow.samplers.registry import spec_name
from tauflow.samplers.reveal import OrderName, Reveal, order_of_counts
from tauflow.tasks.task import items_of
from tauflow.train import Trained

TARGETS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)  # nats of a sequence
NONE = "no forecast of {}: it needs an order that is fixed before the counts, no entropies, no extrapolation"


class Forecast(Study):
    """What reveals lose at each budget, forecast without sampling: the excess of the KL divergence, in nats
    of a sequence, over one token an evaluation, for orders and counts of reveals, on real data. Counts that
    are learned come from one half of the data, and their forecast from the other. For random and shifted
    orders it is the mean over them."""

    samples = 16  # sequences
    seeds = (0,)
    nfes = (1, 2, 4, 8, 16, 32, 64, 128)
    samplers = (
        *("fhs", "fhs(counts=power)", "fhs(counts=learned)", "spaced(counts=equal)", "spaced"),
        *("spaced(counts=doubling)", "spaced(counts=learned)"),
        *("learned_order", "learned_order(counts=learned)"),
    )
    view = View(row=("sampler",), panel=("source",))
    stated: ClassVar[dict[str, Scale]] = {"excess_nats": Scale()}
    ignores = ("judge", "batch_size")

    @cached_property
    def trained(self) -> Trained:
        found = [each for each in self.loaded if each.model.process.absorbing]
        if len(found) != 1:
            raise SettingsError(f"the study forecast needs one model with masks, {len(found)} are given")
        return found[0]

    @cached_property
    def halves(self) -> dict[tuple[str, int], list[Tensor]]:
        """Return the matrices that are measured already, by order and seed."""
        return {}

    @cached_property
    def chosen(self) -> dict[str, Reveal]:
        model, specs = self.trained.model, list(self.settings.samplers)
        if model.order is None:
            specs = [spec for spec in specs if spec_name(spec) != "learned_order"]
            self.notes.append("the model has no learned order, so there is no forecast of learned_order")
        once, free = ((model.length,),), (0.0,) * model.length
        any_counts = tuple(LearnedCounts(order, once, free) for order in get_args(OrderName))
        found, notes = choose_samplers(specs, dataclasses.replace(model, counts=any_counts))
        chosen = {
            name: each for name, each in found.items() if isinstance(each, Reveal) and fits(each, model)
        }
        self.notes += [*notes, *(NONE.format(name) for name in found if name not in chosen)]
        return chosen

    def cells(self) -> list[Factors]:
        task, needed = task_of(self.trained), (max(self.settings.seeds) + 1) * self.settings.samples
        if not hasattr(task, "val_data"):
            task.setup("validate")
        if self.settings.samples < 2 or needed > len(task.val_data):
            raise SettingsError(
                f"a forecast needs at least 2 sequences, and {needed} for all seeds of {len(task.val_data)} "
                "real ones; change --samples"
            )
        source = self.trained.model.process.name
        lines = product(self.chosen, self.settings.seeds)
        return [{"source": source, "sampler": name, "seed": seed} for name, seed in lines]

    def measure(self, factors: Factors) -> Cell:
        sampler, length = self.chosen[str(factors["sampler"])], self.trained.model.length
        first, second = self.matrices(sampler, int(factors["seed"]))
        asked = sorted({nfe for nfe in self.settings.nfes if nfe <= length} | set(budgets(length)))
        models = [self.learned(sampler, other) for other in (second, first)]
        nats: dict[int, float] = {}
        for nfe in asked:
            plans = [counts_of(sampler, model, nfe) for model in models]
            nats[nfe] = (forecast(first, plans[0]) + forecast(second, plans[1])) / 2
        found: list[Record] = []
        for nfe in self.settings.nfes:
            if nfe in nats:
                found += records(factors | {"nfe": nfe}, {"excess_nats": Measured(nats[nfe])})
        for target in TARGETS:
            enough = next(nfe for nfe in asked if nats[nfe] <= target)
            found += records(factors | {"nats": target}, {"evaluations": Measured(float(enough))})
        return Cell(factors, found)

    def matrices(self, sampler: Reveal, seed: int) -> list[Tensor]:
        """Measure what tokens cost along the order of a sampler, on each half of the data of a seed."""
        if (sampler.order, seed) not in self.halves:
            count = self.settings.samples
            items = items_of(task_of(self.trained).val_data, list(range(seed * count, (seed + 1) * count)))
            data = torch.stack([item["tokens"].flatten() for item in items])
            found = [
                excess(self.trained.model, sampler.order, data=half, seed=seed) for half in data.chunk(2)
            ]
            self.halves[sampler.order, seed] = found
        return self.halves[sampler.order, seed]

    def learned(self, sampler: Reveal, costs: Tensor) -> Model:
        """Return the model with the best counts for these costs."""
        model = self.trained.model
        best = Shortest(costs)
        counts = tuple(best.counts(budget) for budget in budgets(len(costs)))
        order = order_of_counts(sampler.order, model.shape)
        learned = LearnedCounts(order, counts, tuple(max(0.0, each) for each in best.sums))
        return dataclasses.replace(model, counts=(learned,))

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, View(x="nats", row=("sampler",), panel=("source",)))
        head = "".join(f" {target:g} nats |" for target in TARGETS)
        lines = [f"| sampler |{head}", "|---" * (1 + len(TARGETS)) + "|"]
        for panel in frame.panels:
            for row in frame.rows(panel, "evaluations"):
                found = [frame.measured(panel, row, target, "evaluations") for target in TARGETS]
                lines.append(f"| {row} | {' | '.join(f'{each.value:g}' if each else '' for each in found)} |")
        return {"Evaluations needed for an excess of at most": "\n".join([*lines, ""])}


def fits(sampler: Reveal, model: Model) -> bool:
    """Return whether a reveal sampler can be forecast: its order and counts are known before it begins."""
    fixed = type(sampler) is Reveal and order_of_counts(sampler.order, model.shape) == sampler.order
    return fixed and sampler.counts != "entropy" and not sampler.extrapolates


def counts_of(sampler: Reveal, model: Model, nfe: int) -> Sequence[int]:
    """Return how many coordinates each of so many evaluations reveals of a sequence without a prompt."""
    problem, free = Problem(model), torch.tensor([model.length])
    done = [int(sampler.after(problem, free, n, nfe)) for n in range(nfe + 1)]
    return [b - a for a, b in pairwise(done)]
