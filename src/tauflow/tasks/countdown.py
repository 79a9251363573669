"""Countdown: sequences that count down to 0 and start again anywhere (the paper's countdown experiment).

    x^1 ~ U{0..V-1};  x^{i+1} = x^i - 1 if x^i > 0, else U{0..V-1}

With a step k it counts down by k: x^{i+1} = x^i - k if x^i >= k, else U{0..V-1}. The chain's distribution and
denoiser are known exactly, so every sampler can be tested against them.

Shapes: B sequences, D coordinates, V values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError
from tauflow.numerics import seed_of
from tauflow.process import Process
from tauflow.samplers import Prompt
from tauflow.tasks.metrics import ConditionalSampleMean, SampleMean, UnigramTotalVariation, joined
from tauflow.tasks.task import ENDLESS, Item, Task

Values = TypeVar("Values", Tensor, np.ndarray)


def successor(x: Values, fresh: Values, step: "int | Values" = 1) -> Values:
    """Return what follows x, given a fresh uniform draw for the case that it is free."""
    return (x >= step) * (x - step) + (x < step) * fresh


def transition_matrix(values: int, step: int = 1) -> Tensor:
    """Return T[x, y] = P(next = y | x), float64 (V, V)."""
    x, fresh = torch.meshgrid(torch.arange(values), torch.arange(values), indexing="ij")
    ones = torch.full((values, values), 1 / values, dtype=torch.float64)
    return torch.zeros(values, values, dtype=torch.float64).scatter_add_(1, successor(x, fresh, step), ones)


def stationary_distribution(values: int, step: int = 1) -> Tensor:
    """Return the distribution that the chain leaves unchanged, float64 (V,)."""
    if step == 1:  # value s with probability proportional to P(U >= s) = (V - s) / V
        weights = torch.arange(values, 0, -1, dtype=torch.float64)
        return weights / weights.sum()
    uniform = torch.full((values,), 1 / values, dtype=torch.float64)
    return uniform @ torch.linalg.matrix_power(transition_matrix(values, step), 2**12)


def entropy(length: int, values: int, step: int = 1) -> float:
    """Return the exact entropy of a sequence in nats per coordinate: ln V for each free one."""
    marginal = torch.full((values,), 1 / values, dtype=torch.float64)
    transition = transition_matrix(values, step)
    draws = 1.0
    for _ in range(length - 1):
        draws += marginal[:step].sum().item()
        marginal = marginal @ transition
    return draws * math.log(values) / length


def violations(tokens: Tensor, values: int, step: "int | Tensor" = 1) -> Tensor:
    """Return which transitions of tokens (B, D) break the rule, bool (B, D - 1); foreign states do.

    The step may be one for each sequence, (B, 1).
    """
    foreign = (tokens < 0) | (tokens >= values)
    previous, following = tokens[:, :-1], tokens[:, 1:]
    return (successor(previous, following, step) != following) | foreign[:, :-1] | foreign[:, 1:]


def posterior(x: Tensor, t: Tensor, process: Process, leak: float = 0.0) -> Tensor:
    """Return the exact denoiser of the chain by forward-backward, float64 (B, D, V).

    A leak makes every transition possible, so that the posterior exists also at states with wrong
    transitions, which samplers reach.
    """
    likelihood = process.evidence(x, t)
    values = process.num_tokens
    transition = (1 - leak) * transition_matrix(values) + leak / values
    forward, backward = likelihood.clone(), torch.ones_like(likelihood)
    forward[:, 0] /= forward[:, 0].sum(-1, keepdim=True)
    for d in range(1, x.shape[1]):
        forward[:, d] *= forward[:, d - 1] @ transition
        forward[:, d] /= forward[:, d].sum(-1, keepdim=True)
    for d in reversed(range(x.shape[1] - 1)):
        backward[:, d] = (backward[:, d + 1] * likelihood[:, d + 1]) @ transition.T
        backward[:, d] /= backward[:, d].sum(-1, keepdim=True)
    weights = forward * backward
    return weights / weights.sum(-1, keepdim=True)


# Metrics

STEPS = 3  # of labeled countdown: label k asks for step k + 1


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

    def __init__(self, values: int, label: int | None = None, sequences: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.values = values
        self.label = label
        self.sequences = sequences  # count those with any such transition, not the transitions
        self.logarithmic = not sequences

    def of(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        broken = violations(tokens, self.values, asked_step(condition))
        rates = broken.any(1) if self.sequences else broken.double().mean(1)
        return rates if condition is None or self.label is None else rates[condition[:, 0] == self.label]


class AskedUnigramTotalVariation(UnigramTotalVariation):
    """Total variation of the tokens from the distribution that the steps asked for have together."""

    steps: list[Tensor]

    def __init__(self, values: int, **kwargs: Any):
        every = torch.stack([stationary_distribution(values, label + 1) for label in range(STEPS)])
        super().__init__(every.mean(0), **kwargs)
        self.by_step = every  # (STEPS, V)
        self.add_state("steps", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor, condition: Tensor | None = None) -> None:
        super().update(tokens)
        self.steps.append(asked_step(condition))

    def compute(self) -> tuple[Tensor, Tensor]:
        self.distribution = self.by_step[joined(self.steps).flatten().cpu() - 1].mean(0)
        return super().compute()


def asked_step(condition: Tensor | None) -> Tensor:
    """Return the steps (B, 1) of conditions (B, 1), which every sample must have."""
    if condition is None or (condition < 0).any():
        raise SettingsError(
            "samples of countdown with labels are measured under the step they were asked for; sample with "
            f"a condition, a step from 1 to {STEPS}"
        )
    return condition + 1


# The tasks

PER_LINE = 16  # values of a shown sample: 63 characters for two digits


@dataclass(eq=False)
class Countdown(Task):
    """The synthetic countdown task: endless, made on the fly, nothing to download.

    Use it to try tauflow: a small model learns it in minutes, and the metrics are exact. An error rate of 0
    means that every transition keeps to the rule. `LabelledCountdown` is the same with a condition.

    Args:
        length: coordinates of a sequence, D.
        values: number of values, V.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues with new items.
        val_items: items of the fixed validation set.
        seed: which data; item i is a pure function of the seed and i.
        num_workers: loader processes per device; 0 makes items in the training process.

    Returns:
        A task, which `tauflow.Trained`, `tauflow.evaluate`, and `train.py --data` take.

    Examples:
        >>> import tauflow
        >>> task = tauflow.Countdown(length=8, values=4)
        >>> task.setup()
        >>> tokens = task.train_data[0]["tokens"]
        >>> tuple(tokens.shape)
        (8,)
        >>> metrics = task.sample_metrics()
        >>> metrics.update(tokens[None])
        >>> float(metrics["error_rate"].compute()[0])
        0.0
    """

    length: int = 256
    values: int = 32
    batch_size: int = 32
    epoch_items: int = 8192
    val_items: int = 512
    seed: int = 0
    num_workers: int = 0

    primary_metric = "error_rate"
    positional = False  # all positions but the first few have the same distribution
    marks = MappingProxyType({"!": "marks a value that breaks the rule"})

    def __post_init__(self) -> None:
        if self.length < 2 or self.values < 2:
            raise SettingsError(
                f"length and values of countdown must be at least 2, got {self.length} and {self.values}."
            )
        self.num_tokens = self.values
        self.shape = (self.length,)

    def setup(self, stage: str | None = None) -> None:
        self.train_data = self._items("train", ENDLESS)
        self.val_data = self._items("val", self.val_items)

    def _items(self, split: str, count: int) -> "CountdownItems":
        return CountdownItems(self.length, self.values, self.seed, split, count)

    def sample_metrics(self) -> MetricCollection:
        # real data isn't at distance 0 from it: the first token of a sequence is uniform
        distribution = stationary_distribution(self.values)
        metrics: dict[str, Metric | MetricCollection] = {
            "error_rate": TransitionErrorRate(self.values),
            "sequence_error_rate": SequenceErrorRate(self.values),
            "unigram_tv": UnigramTotalVariation(distribution),
        }
        return MetricCollection(metrics, compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return lines of values, with `!` before a value that breaks the rule."""
        return self._lines(tokens, violations(tokens, self.values))

    def _lines(self, tokens: Tensor, broken: Tensor) -> list[str]:
        width = len(str(self.values)) + 1
        broken = torch.nn.functional.pad(broken, (1, 0))
        samples = []
        for row, bads in zip(tokens.tolist(), broken.tolist(), strict=True):
            words = [
                f"{'!' if bad else ''}{token}".rjust(width) for token, bad in zip(row, bads, strict=True)
            ]
            lines = [" ".join(words[i : i + PER_LINE]) for i in range(0, len(words), PER_LINE)]
            samples.append("\n".join(lines))
        return samples

    def prompt(self, text: str) -> Prompt:
        """Read values separated by blanks, from the beginning, with `_` for one to be found: "31 30 _ 28"."""
        words = text.split()
        fits = [word == "_" or (word.isdecimal() and int(word) < self.values) for word in words]
        if len(words) > self.length or not all(fits):
            raise SettingsError(
                f"A countdown prompt must be at most {self.length} values 0 to {self.values - 1}, or _ for "
                f"unknown ones, got {len(words)}: {text!r}."
            )
        tokens = torch.zeros(self.length, dtype=torch.long)
        known = torch.zeros(self.length, dtype=torch.bool)
        for place, word in enumerate(words):
            if word != "_":
                tokens[place] = int(word)
                known[place] = True
        return Prompt(tokens, known)


@dataclass(eq=False)
class LabelledCountdown(Countdown):
    """Countdown with a label that says the step by which to count down: 1, 2 or 3.

    A sample is measured under the step that it was asked for. Samples without a step raise an error:
    a sequence that keeps to some step tells nothing about the condition.
    """

    length: int = 64
    values: int = 16

    conditions = (STEPS,)

    def _items(self, split: str, count: int) -> "CountdownItems":
        return LabelledItems(self.length, self.values, self.seed, split, count)

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {"error_rate": AskedErrorRate(self.values)}
        for label in range(STEPS):
            metrics[f"error_rate_step_{label + 1}"] = AskedErrorRate(self.values, label)
        metrics["sequence_error_rate"] = AskedErrorRate(self.values, sequences=True)
        metrics["unigram_tv"] = AskedUnigramTotalVariation(self.values)
        return MetricCollection(metrics, compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return lines of values, with `!` before one that breaks the rule of the step asked for."""
        if condition is None:
            return self._lines(tokens, torch.zeros_like(tokens[:, 1:]))
        return self._lines(tokens, violations(tokens, self.values, asked_step(condition)))

    def caption(self, condition: Tensor) -> str:
        return f"step {int(condition[0]) + 1}"

    def condition(self, text: str) -> Tensor:
        """Read the step: "1", "2" or "3"."""
        word = text.strip().removeprefix("step").strip()
        if word not in {str(label + 1) for label in range(STEPS)}:
            raise SettingsError(f"the condition of this countdown is its step, 1 to {STEPS}, got {text!r}")
        return torch.tensor([int(word) - 1])


@dataclass
class CountdownItems(Dataset[Item]):
    """Item i is a pure function of (seed, split, i): not of order, workers or what was drawn before."""

    length: int
    values: int
    seed: int
    split: str
    count: int

    name = "countdown"  # keys the draws

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        numbers = [int(number) for number in numbers]
        if min(numbers) < 0 or max(numbers) >= self.count:
            raise IndexError(f"Items are numbered 0 to {self.count - 1}.")
        keys = [seed_of(self.name, self.seed, self.split, number) for number in numbers]
        return self._made([np.random.Generator(np.random.Philox(key)) for key in keys])

    def _made(self, generators: list[np.random.Generator]) -> list[Item]:
        return [{"tokens": row} for row in self._sequences(generators, 1)]

    def _sequences(self, generators: list[np.random.Generator], step: Any) -> Tensor:
        """Return sequences (b, D), one from each generator, with a step for all or for each (b,)."""
        fresh = np.stack([generator.integers(self.values, size=self.length) for generator in generators])
        x = fresh.copy()  # (b, D)
        for d in range(1, self.length):
            x[:, d] = successor(x[:, d - 1], fresh[:, d], step)
        return torch.from_numpy(x)


class LabelledItems(CountdownItems):
    """The same with a label, drawn first: {"tokens", "condition"}."""

    name = "labelled countdown"

    def _made(self, generators: list[np.random.Generator]) -> list[Item]:
        labels = np.array([generator.integers(STEPS) for generator in generators])
        sequences = self._sequences(generators, labels + 1)
        conditions = torch.from_numpy(labels)[:, None]
        return [{"tokens": row, "condition": label} for row, label in zip(sequences, conditions, strict=True)]
