"""Countdown: sequences that count down to 0 and start again anywhere (paper, section exp_countdown).

x^1 ~ U{0..V-1}; x^{i+1} = x^i - 1 if x^i > 0, else U{0..V-1}. Shapes: B sequences, D coordinates, V values.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchmetrics import MetricCollection

from tauflow.errors import SettingsError
from tauflow.seeds import seed_of
from tauflow.tasks.base import SampleMean, Task, UnigramTotalVariation

PER_LINE = 32  # values of a shown sample


def successor(x, fresh):
    """The rule: what follows x, given a fresh uniform draw for the case that it is free. Works on numpy arrays and tensors."""
    return (x > 0) * (x - 1) + (x == 0) * fresh


def transition_matrix(values: int) -> Tensor:
    """T[x, y] = P(next = y | x), float64 (V, V)."""
    x, fresh = torch.meshgrid(torch.arange(values), torch.arange(values), indexing="ij")
    ones = torch.full((values, values), 1 / values, dtype=torch.float64)
    return torch.zeros(values, values, dtype=torch.float64).scatter_add_(1, successor(x, fresh), ones)


def stationary_law(values: int) -> Tensor:
    """The law that the chain leaves unchanged, float64 (V,): value s with probability proportional to P(U >= s) = (V - s) / V."""
    weights = torch.arange(values, 0, -1, dtype=torch.float64)
    return weights / weights.sum()


def entropy(length: int, values: int) -> float:
    """Exact entropy of a sequence in nats per coordinate: ln V for the first coordinate and for each that follows a 0."""
    law, transition = torch.full((values,), 1 / values, dtype=torch.float64), transition_matrix(values)
    draws = 1.0
    for _ in range(length - 1):
        draws += law[0].item()
        law = law @ transition
    return draws * math.log(values) / length


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

    headline = "error_rate"

    def __init__(
        self,
        length: int = 256,
        values: int = 32,
        batch_size: int = 32,
        epoch_items: int = 8192,
        val_items: int = 512,
        seed: int = 0,
        num_workers: int = 0,
    ):
        if length < 2 or values < 2:
            raise SettingsError(f"countdown needs length >= 2 and values >= 2, got length {length} and values {values}")
        if batch_size < 1 or val_items < 2:
            raise SettingsError(f"countdown needs batch_size >= 1 and val_items >= 2, got {batch_size} and {val_items}")
        super().__init__(batch_size=batch_size, epoch_items=epoch_items, num_workers=num_workers)
        self.length = self.seq_len = length
        self.values = self.num_tokens = values
        self.val_items = val_items
        self.seed = seed

    def setup(self, stage: str | None = None) -> None:
        self.train_data = CountdownItems(self.length, self.values, self.seed, "train", count=2**62, name="position")
        self.val_data = CountdownItems(self.length, self.values, self.seed, "val", count=self.val_items, name="index")

    def sample_metrics(self) -> MetricCollection:
        return MetricCollection(
            {
                "error_rate": TransitionErrorRate(self.values),
                "sequence_error_rate": SequenceErrorRate(self.values),
                "unigram_tv": UnigramTotalVariation(stationary_law(self.values)),  # real data is not at 0: it begins uniform
            },
            compute_groups=False,
        )

    def show(self, tokens: Tensor) -> str:
        """`!` stands before a value that breaks the rule."""
        width = len(str(self.values)) + 1
        broken = torch.nn.functional.pad(violations(tokens, self.values), (1, 0))
        samples = []
        for row, bads in zip(tokens.tolist(), broken.tolist(), strict=True):
            words = [f"{'!' if bad else ''}{token}".rjust(width) for token, bad in zip(row, bads, strict=True)]
            samples.append("\n".join(" ".join(words[i : i + PER_LINE]) for i in range(0, len(words), PER_LINE)))
        return "\n\n".join(samples)

    def prompt(self, text: str) -> tuple[Tensor, Tensor]:
        """Values separated by blanks, from the beginning; `_` stands for one that is to be found: "31 30 _ 28"."""
        words = text.split()
        if len(words) > self.length:
            raise SettingsError(f"the prompt has {len(words)} values, the model {self.length}; leave {len(words) - self.length} out")
        if bad := [word for word in words if word != "_" and not (word.isdecimal() and int(word) < self.values)]:
            raise SettingsError(f"a prompt of countdown holds values 0 to {self.values - 1} and _ for unknown ones, not {bad[0]!r}")
        tokens, known = torch.zeros(self.length, dtype=torch.long), torch.zeros(self.length, dtype=torch.bool)
        for place, word in enumerate(words):
            if word != "_":
                tokens[place], known[place] = int(word), True
        return tokens, known


class CountdownItems(Dataset):
    """Item i is a pure function of (seed, split, i): not of order, workers, devices or what was drawn before."""

    def __init__(self, length: int, values: int, seed: int, split: str, count: int, name: str):
        self.length, self.values, self.seed, self.split, self.count, self.name = length, values, seed, split, count, name

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return self.__getitems__([i])[0]

    def __getitems__(self, items: list[int]) -> list[dict[str, Tensor]]:
        items = [int(i) for i in items]
        if min(items) < 0 or max(items) >= self.count:
            raise IndexError(f"items are numbered 0 to {self.count - 1}, got {min(items)} to {max(items)}")
        keys = [seed_of("countdown", self.seed, self.split, i) for i in items]
        fresh = np.stack([np.random.Generator(np.random.Philox(key)).integers(self.values, size=self.length) for key in keys])
        x = fresh.copy()  # (b, D)
        for d in range(1, self.length):
            x[:, d] = successor(x[:, d - 1], fresh[:, d])
        return [{"tokens": torch.from_numpy(row), self.name: torch.tensor(i)} for row, i in zip(x, items, strict=True)]


def violations(tokens: Tensor, values: int) -> Tensor:
    """Which transitions of tokens (B, D) break the rule, bool (B, D - 1); one from or to a mask, or any other foreign state, does."""
    foreign = (tokens < 0) | (tokens >= values)
    previous, following = tokens[:, :-1], tokens[:, 1:]
    return (successor(previous, following) != following) | foreign[:, :-1] | foreign[:, 1:]


class TransitionErrorRate(SampleMean):
    """Share of transitions that break the rule."""

    def __init__(self, values: int, **kwargs):
        super().__init__(**kwargs)
        self.values = values

    def of(self, tokens: Tensor) -> Tensor:
        return violations(tokens, self.values).double().mean(1)


class SequenceErrorRate(TransitionErrorRate):
    """Share of sequences with at least one transition that breaks the rule."""

    def of(self, tokens: Tensor) -> Tensor:
        return violations(tokens, self.values).any(1)
