"""Best: of the orders with learned counts, the one that is forecast to lose least at the budget.

The forecast that comes with learned counts (theory/counts.py) compares orders before anything is sampled. It
depends on the budget: an order that is best with eight evaluations may not be with sixty.
"""

from dataclasses import dataclass
from typing import Any, cast, get_args

import torch
from torch import Tensor

from tauflow.denoise import LearnedCounts, Model
from tauflow.samplers.base import Problem, StepInfo, fixed
from tauflow.samplers.extrapolation import ExtrapolationName
from tauflow.samplers.reveal import Reveal, RevealPlan, RevealState
from tauflow.samplers.reveal_counts import CountName, order_of_counts
from tauflow.samplers.reveal_order import OrderName, needs_masks


@dataclass(frozen=True)
class Best(Reveal):
    order: OrderName = fixed("random")  # the one that `chosen` takes stands in its place
    counts: CountName = fixed("learned")
    power: float | None = fixed(None)
    extrapolation: ExtrapolationName = fixed("learned")
    weight: float = fixed(0.0)

    def refuses(self, model: Model) -> str:
        missing = (
            "there are no learned counts for an order of this model: make them with "
            "tauflow.learn_counts(model), or sample.py --learn_counts; or use spaced_even"
        )
        return needs_masks(model, "random") or ("" if usable(model) else missing)

    def chosen(self, problem: Problem, nfe: int) -> Reveal:
        """Return the sampler of the order that loses least with so many evaluations."""
        best = min(usable(problem), key=lambda each: each.forecast(nfe))
        return Reveal(best.order, "learned", extrapolation="learned")  # type: ignore[arg-type]

    def init(
        self, problem: Problem, x_0: Tensor, plan: RevealPlan, generator: torch.Generator
    ) -> RevealState:
        return self.chosen(problem, plan.steps).init(problem, x_0, plan, generator)

    def step(
        self, problem: Problem, state: RevealState, plan: RevealPlan, n: int, generator: torch.Generator
    ) -> tuple[RevealState, StepInfo]:
        return self.chosen(problem, plan.steps).step(problem, state, plan, n, generator)


def usable(model: Model | Problem) -> list[LearnedCounts]:
    """Return the counts whose order a model has."""
    found = [each for each in model.counts if each.order in get_args(OrderName)]
    own = [each for each in found if order_of_counts(cast(Any, each.order), model.shape) == each.order]
    return [each for each in own if each.order != "learned" or model.order is not None]
