"""How well sequences keep to the countdown rule. Shapes: B sequences, D coordinates, V values."""

from typing import Any

import torch
from torch import Tensor

from tauflow.errors import SettingsError
from tauflow.tasks.metrics import ConditionalSampleMean, SampleMean, UnigramTotalVariation, joined
from tauflow.theory.countdown import stationary_law, violations

STEPS = 3  # of labelled countdown: label k asks for step k + 1


class TransitionErrorRate(SampleMean):
    """Share of transitions that break the rule."""

    def __init__(self, values: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.values = values

    def of(self, tokens: Tensor) -> Tensor:
        return violations(tokens, self.values).double().mean(1)


class SequenceErrorRate(TransitionErrorRate):
    """Share of sequences with at least one transition that breaks the rule."""

    logarithmic = False

    def of(self, tokens: Tensor) -> Tensor:
        return violations(tokens, self.values).any(1)


class AskedErrorRate(ConditionalSampleMean):
    """Share of transitions that break the rule of the step asked for, of all samples or of one label."""

    def __init__(self, values: int, label: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.values = values
        self.label = label

    def of(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        rates = self.rates(violations(tokens, self.values, asked_step(condition)))
        return rates if condition is None or self.label is None else rates[condition[:, 0] == self.label]

    def rates(self, broken: Tensor) -> Tensor:
        """Return the number (B,) of each sample from which of its transitions (B, D - 1) are broken."""
        return broken.double().mean(1)


class AskedSequenceErrorRate(AskedErrorRate):
    """Share of sequences with at least one transition that breaks the rule with the step asked for."""

    logarithmic = False

    def rates(self, broken: Tensor) -> Tensor:
        return broken.any(1)


class AskedUnigramTotalVariation(UnigramTotalVariation):
    """Total variation of the tokens from the law that the steps asked for have together."""

    steps: list[Tensor]

    def __init__(self, values: int, **kwargs: Any):
        laws = torch.stack([stationary_law(values, label + 1) for label in range(STEPS)])  # (STEPS, V)
        super().__init__(laws.mean(0), **kwargs)
        self.laws = laws
        self.add_state("steps", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor, condition: Tensor | None = None) -> None:
        super().update(tokens)
        self.steps.append(asked_step(condition))

    def compute(self) -> tuple[Tensor, Tensor]:
        self.law = self.laws[joined(self.steps).flatten().cpu() - 1].mean(0)
        return super().compute()


def asked_step(condition: Tensor | None) -> Tensor:
    """Return the steps (B, 1) of conditions (B, 1); refuse samples that were asked for no step."""
    if condition is None or (condition < 0).any():
        raise SettingsError(
            "samples of countdown with labels are measured under the step they were asked for; sample with "
            f"a condition, a step from 1 to {STEPS}"
        )
    return condition + 1
