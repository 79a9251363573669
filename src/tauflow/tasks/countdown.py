"""Countdown: sequences that count down to 0 and start again anywhere (paper, section exp_countdown).

The rule, its exact law and its exact denoiser are in `tauflow.theory.countdown`. Shapes: B sequences, D
coordinates, V values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError
from tauflow.samplers import Prompt
from tauflow.seeds import seed_of
from tauflow.tasks.base import Task
from tauflow.tasks.countdown_metrics import (
    STEPS,
    AskedErrorRate,
    AskedSequenceErrorRate,
    AskedUnigramTotalVariation,
    SequenceErrorRate,
    TransitionErrorRate,
    asked_step,
)
from tauflow.tasks.items import ENDLESS, Item
from tauflow.tasks.metrics import UnigramTotalVariation
from tauflow.theory.countdown import stationary_law, successor, violations

PER_LINE = 32  # values of a shown sample
LEAST = {"length": 2, "values": 2, "batch_size": 1, "val_items": 2}


@dataclass(eq=False)
class Countdown(Task):
    """The synthetic countdown task: endless, made on the fly, nothing to download.

    Args:
        length: coordinates of a sequence, D.
        values: number of values, V.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues with new items.
        val_items: items of the fixed validation set.
        seed: which data; item i is a pure function of the seed and i.
        num_workers: loader processes for each device; 0 makes items in the training process.
    """

    length: int = 256
    values: int = 32
    batch_size: int = 32
    epoch_items: int = 8192
    val_items: int = 512
    seed: int = 0
    num_workers: int = 0

    headline = "error_rate"

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise SettingsError(f"countdown needs {name} >= {least}, got {getattr(self, name)}")
        self.num_tokens = self.values
        self.shape = (self.length,)

    def setup(self, stage: str | None = None) -> None:
        self.train_data = self._items("train", ENDLESS)
        self.val_data = self._items("val", self.val_items)

    def _items(self, split: str, count: int) -> "CountdownItems":
        return CountdownItems(self.length, self.values, self.seed, split, count)

    def sample_metrics(self) -> MetricCollection:
        law = stationary_law(self.values)  # real data is not at distance 0 of it: a sequence begins uniform
        metrics: dict[str, Metric | MetricCollection] = {
            "error_rate": TransitionErrorRate(self.values),
            "sequence_error_rate": SequenceErrorRate(self.values),
            "unigram_tv": UnigramTotalVariation(law),
        }
        return MetricCollection(metrics, compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return lines of values; `!` stands before a value that breaks the rule."""
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
        if len(words) > self.length:
            raise SettingsError(
                f"the prompt has {len(words)} values, the model {self.length}; drop "
                f"{len(words) - self.length} of them"
            )
        if bad := [
            word for word in words if word != "_" and not (word.isdecimal() and int(word) < self.values)
        ]:
            raise SettingsError(
                f"a prompt of countdown holds values 0 to {self.values - 1} and _ for unknown ones, not "
                f"{bad[0]!r}"
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

    A sample is measured under the step that it was asked for; one that was asked for no step is refused,
    because a sequence that keeps to some step tells nothing about the condition.
    """

    length: int = 64
    values: int = 16

    conditions = (STEPS,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.values <= STEPS:
            raise SettingsError(f"countdown with labels needs values > {STEPS}, got {self.values}")

    def _items(self, split: str, count: int) -> "CountdownItems":
        return LabelledItems(self.length, self.values, self.seed, split, count)

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {"error_rate": AskedErrorRate(self.values)}
        for label in range(STEPS):
            metrics[f"error_rate_step_{label + 1}"] = AskedErrorRate(self.values, label)
        metrics["sequence_error_rate"] = AskedSequenceErrorRate(self.values)
        metrics["unigram_tv"] = AskedUnigramTotalVariation(self.values)
        return MetricCollection(metrics, compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return lines of values; `!` stands before one that breaks the rule of the step asked for."""
        if condition is None:
            return self._lines(tokens, torch.zeros_like(tokens[:, 1:]))
        return self._lines(tokens, violations(tokens, self.values, asked_step(condition)))

    def caption(self, condition: Tensor) -> str:
        """Return "step 2" for the label 1."""
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
            raise IndexError(
                f"items are numbered 0 to {self.count - 1}, got {min(numbers)} to {max(numbers)}"
            )
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
