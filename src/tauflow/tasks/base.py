"""Items by position, and which positions are whose.

Position p counts training items since the beginning of training over all devices, so step p // B and row p %
B of the global batch of B items follow from it alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from torchmetrics import MetricCollection

from tauflow.denoise.model import ChannelsName, checked_channels
from tauflow.errors import SettingsError
from tauflow.numerics import seed_of
from tauflow.samplers import Prompt

Item = dict[str, Tensor]  # {"tokens": (D,) or the shape of a sample, "condition"?: (C,)}
ENDLESS = 2**62  # length of data that never ends


@dataclass(frozen=True)
class Share:
    """A rank's share of the global batches: every world_size-th item of a step, in `accumulate` parts."""

    batch_size: int  # of a step over all ranks and parts
    steps_per_epoch: int
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    step: Callable[[], int] = lambda: 0  # the step that training has reached

    @property
    def batches_per_epoch(self) -> int:
        return self.steps_per_epoch * self.accumulate

    def positions(self, batch: int) -> list[int]:
        """Return the positions of this rank's batch number 0, 1, ... since the beginning of training."""
        part = self.batch_size // self.accumulate
        begin = batch * part
        return list(range(begin + self.rank, begin + part, self.world_size))

    def epoch(self, first: int) -> range:
        """Return the numbers of the batches from the first one to the end of its epoch."""
        return range(first, (first // self.batches_per_epoch + 1) * self.batches_per_epoch)


class Shuffled(Dataset[Item]):
    """Finite data as an endless order: a permutation for each pass, a pure function of the seed and the pass.

    Args:
        data: items 0 to N - 1.
        seed: of the order.
        name: keys the order, so that two data sets with one seed are not shuffled alike.
    """

    def __init__(self, data: Any, seed: int, name: str = "order"):
        self.data = data
        self.seed = seed
        self.name = name
        self._pass = -1
        self._order: np.ndarray = np.empty(0)

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, position: int) -> Item:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Item]:
        return items_of(self.data, [self._row(int(position)) for position in positions])

    def _row(self, position: int) -> int:
        number, place = divmod(position, len(self.data))
        if number != self._pass:
            generator = np.random.Generator(np.random.Philox(seed_of(self.name, self.seed, number)))
            self._order = generator.permutation(len(self.data))
            self._pass = number
        return int(self._order[place])


def items_of(data: Any, numbers: Sequence[int]) -> list[Item]:
    """Return several items of a data set, at once where it can."""
    if hasattr(data, "__getitems__"):
        return data.__getitems__(numbers)
    return [data[number] for number in numbers]


# Rows: data that is a table with a row for each item, as items of a task.
#
# A table has a length, and `table[[numbers]]` gives its columns by name: "tokens" (N, D), perhaps "condition"
# (N, C).


class Rows(Dataset[Item]):
    """The rows of a table as items, all of them in their order."""

    def __init__(self, table: Any):
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        columns = self.table[[int(number) for number in numbers]]
        whole = {
            name: torch.from_numpy(np.asarray(column, dtype=np.int64)) for name, column in columns.items()
        }
        return [{name: column[row] for name, column in whole.items()} for row in range(len(numbers))]


class Fixed(Rows):
    """Validation items: the first rows of a permutation that the seed gives, or of all without a seed.

    A corpus may be sorted, by years for instance: rows from its beginning alone would not stand for it.
    """

    def __init__(self, table: Any, count: int, seed: int | None = None):
        super().__init__(table)
        order = np.arange(len(table))
        if seed is not None:
            np.random.Generator(np.random.Philox(seed_of("validation order", seed))).shuffle(order)
        self.rows = order[:count]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        return super().__getitems__(self.rows[list(numbers)].tolist())

    def tokens(self) -> np.ndarray:
        """Return the tokens (N, D) of all items."""
        return self.columns()["tokens"]

    def columns(self) -> dict[str, np.ndarray]:
        """Return all items as columns (N, ...)."""
        return {name: np.asarray(column) for name, column in self.table[self.rows.tolist()].items()}


class InMemory:
    """Columns (N, ...) of arrays, in memory or mapped into it, that answer like a data set."""

    def __init__(self, columns: dict[str, np.ndarray]):
        self.arrays = columns

    def __len__(self) -> int:
        return len(self.arrays["tokens"])

    def __getitem__(self, rows: list[int]) -> dict[str, np.ndarray]:
        return {name: column[rows] for name, column in self.arrays.items()}


# Task: data, what a sample is, and how good it is.
#
# Shapes: B samples, D coordinates, V data tokens, C columns of a condition.


UNIT = 2.0**-40  # of probabilities
UNIGRAM_ITEMS = 4096  # training items that the unigram law is counted in
LARGEST = 2**24  # tokens of a vocabulary, coordinates of a sample, values of a condition
MOST = 64  # dimensions of a sample
COLUMNS = 512  # of a condition, at most: prompts have one for each token


@dataclass(frozen=True)
class DataFacts:
    """What a model must know of its data.

    Args:
        num_tokens: data tokens, V.
        shape: of one sample: (D,) for a sequence, (H, W) or (H, W, C) for a picture.
        conditions: how many values each column of a condition has; none: there is no condition.
        unigrams: gives the law (V,) of the data tokens, which the marginal source starts from.
        channels: how the last axis of the shape is revealed, where it holds channels: together or apart.
        codebook: gives the vectors (V, E) of the data tokens, which the metric source moves through.
    """

    num_tokens: int
    shape: tuple[int, ...]
    conditions: tuple[int, ...] = ()
    unigrams: Callable[[], Tensor] | None = field(default=None, compare=False, repr=False)
    channels: ChannelsName | None = field(default=None, compare=False)
    codebook: Callable[[], Tensor] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        try:  # numbers of numpy are numbers too
            object.__setattr__(self, "num_tokens", index(self.num_tokens))
            object.__setattr__(self, "shape", tuple(index(size) for size in self.shape))
            object.__setattr__(self, "conditions", tuple(index(size) for size in self.conditions))
        except TypeError as error:
            raise SettingsError(
                f"num_tokens, shape and conditions of data are whole numbers: {error}"
            ) from None
        sizes = (self.num_tokens, *self.shape, *self.conditions)
        few = len(self.shape) <= MOST and len(self.conditions) <= COLUMNS
        if not few or not all(1 <= size <= LARGEST for size in sizes) or self.length > LARGEST:
            raise SettingsError(
                f"data has 1 to {LARGEST} tokens, coordinates and values of a condition, at most {MOST} "
                f"dimensions and at most {COLUMNS} columns of a condition; got {str(self)[:200]}"
            )
        checked_channels(self.channels, self.shape)

    @property
    def length(self) -> int:
        """Return D, the coordinates of a sample."""
        return math.prod(self.shape)

    @property
    def init_args(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: channels only where there are some, as in earlier versions."""
        sizes = {"num_tokens": self.num_tokens, "shape": self.shape, "conditions": self.conditions}
        return {**sizes, "unigrams": None} | ({"channels": self.channels} if self.channels else {})

    def __str__(self) -> str:
        extra = f", conditions {self.conditions}" if self.conditions else ""
        return f"shape {self.shape} of {self.num_tokens} tokens{extra}"


class Task(ABC):
    """Abstract. A final task says its sizes, makes its data in `setup`, and knows its samples.

    Constructor arguments are the settings (`--data.length`), and each is kept as an attribute of its name: a
    checkpoint describes the task by them. `train_data[p]` is the item at position p of an endless order, a
    permutation for each pass (`tauflow.tasks.Shuffled`) or fresh items; `val_data[i]` is a fixed one. An item
    is {"tokens": a sample, "condition"?: integers (C,)}. `__getitems__`, where there is one, gives several at
    once.
    """

    num_tokens: int  # V
    shape: tuple[int, ...]  # of one sample
    conditions: tuple[int, ...] = ()  # how many values each column of a condition has
    channels: ChannelsName | None = None  # how the last axis is revealed, where it holds channels
    primary_metric: str  # the metric that comes first in tables, and that plots and the HParams tab show
    batch_size: int = 32  # items of an optimizer step over all devices and accumulated batches together
    epoch_items: int = 4096  # training items called an epoch
    num_workers: int = 0  # loader processes for each device
    units: ClassVar[Mapping[str, float]] = {}  # of the bound besides nats for each token: name and factor
    train_data: Any
    val_data: Any
    folder: Path | None = None  # of the run that it belongs to
    local: ClassVar[tuple[str, ...]] = ()
    """Settings that say where things are, on this machine or a network. A checkpoint keeps them as facts; a
    task that is rebuilt from one gets them from the user only."""
    may_change: ClassVar[tuple[str, ...]] = ("num_workers", "val_items")
    """Settings that a resumed run may have others of; all that are not listed must stay."""
    alone: str = ""  # why there is no real data to measure against, for a checkpoint that came without it
    guidance: float | None = None  # the weight that is recommended, where there is one

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "headline" in vars(cls):  # what tasks called their primary metric before
            cls.primary_metric = vars(cls)["headline"]

    @classmethod
    def rebuilt(cls, init_args: Mapping[str, Any], data: Mapping[str, Any]) -> Self:
        """Return the task that a checkpoint describes, with `data` of the user for what is `local`."""
        kinds = get_type_hints(cls) if data else {}
        for name, value in data.items():
            wanted = kinds.get(name, object)
            if not isinstance(value, wanted):
                kind = getattr(wanted, "__name__", wanted)
                raise SettingsError(f"{name} of the data is of type {kind}, got {value!r}")
        return cls(**{name: value for name, value in init_args.items() if name not in cls.local}, **data)

    @property
    def length(self) -> int:
        """Return D, the coordinates of a sample."""
        return math.prod(self.shape)

    @property
    def facts(self) -> DataFacts:
        """Return what a model must know of the data."""
        sizes = self.num_tokens, self.shape, self.conditions
        return DataFacts(*sizes, self.unigrams, self.channels, self.codebook)

    # Data

    @abstractmethod
    def setup(self, stage: str | None = None) -> None:
        """Make `train_data` (stage "fit" or None) and `val_data`; stages are those of Lightning."""

    def stream(self, share: Share) -> IterableDataset | None:
        """Return one rank's training batches for data without positions; None: `train_data` has positions."""
        return None

    def begin_run(self, folder: Path) -> None:
        """Write, on rank zero, what belongs beside the checkpoints of a run; nothing by default."""
        return

    def unigrams(self) -> Tensor:
        """Return the law of the data tokens, float64 (V,), none of it 0.

        One is added to the count of every token in the first UNIGRAM_ITEMS items of training, or as many as
        there are: the same law in every run.
        """
        if not hasattr(self, "train_data"):
            self.setup("fit")
        count = min(UNIGRAM_ITEMS, len(self.train_data))
        items = items_of(self.train_data, list(range(count)))
        return unigram_law(torch.stack([torch.as_tensor(item["tokens"]) for item in items]), self.num_tokens)

    def codebook(self) -> Tensor:
        """Return a vector for each data token (V, E), where tokens are codes that are more or less alike."""
        raise SettingsError(
            f"the tokens of {type(self).__name__} have no vectors, which the metric source needs; use "
            "--model.source uniform"
        )

    # Samples

    @abstractmethod
    def sample_metrics(self) -> MetricCollection:
        """Return fresh metrics, fed with tokens (B, D); each computes (value, standard error).

        Make the collection with compute_groups=False: torchmetrics otherwise shares the state of metrics that
        agree on the first batch.
        """

    @abstractmethod
    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str] | np.ndarray:
        """Return generated tokens (B, D) for people: a text for each, or pictures uint8 (B, H, W, 3)."""

    def caption(self, condition: Tensor) -> str:
        """Return one condition (C,) in words."""
        return " ".join(str(value) for value in condition.tolist())

    def condition(self, text: str) -> Tensor:
        """Return a condition (C,) from what the user wrote."""
        if not self.conditions:
            raise SettingsError(f"{type(self).__name__} has no conditions; drop --condition")
        words = text.replace(",", " ").split()
        values = [int(word) if word.isdecimal() else -1 for word in words]
        fits = len(values) == len(self.conditions)
        if not fits or any(not 0 <= v < size for v, size in zip(values, self.conditions, strict=True)):
            ranges = ", ".join(f"0 to {size - 1}" for size in self.conditions)
            raise SettingsError(
                f"a condition of {type(self).__name__} is whole numbers ({ranges}), got {text!r}"
            )
        return torch.tensor(values)

    def sample_conditions(self, count: int, first: int = 0) -> Tensor | None:
        """Return the conditions (count, C) of validation items from number `first` on.

        They begin again at 0 after the last item. None for a task without conditions.
        """
        if not self.conditions:
            return None
        if not hasattr(self, "val_data"):
            self.setup("validate")
        numbers = [number % len(self.val_data) for number in range(first, first + count)]
        conditions = [torch.as_tensor(item["condition"]) for item in items_of(self.val_data, numbers)]
        return torch.stack(conditions).long()

    def prompt(self, text: str) -> Prompt:
        """Return what is known of a sample, as the user wrote it: tokens (D,), true (D,) where known."""
        raise SettingsError(f"{type(self).__name__} has no prompts; drop --prompt")

    def infill(self, text: str) -> Prompt:
        """Return the same for text with blanks."""
        raise SettingsError(f"{type(self).__name__} has no texts to fill in; drop --infill")

    def knowing(self, prompt: Prompt) -> Self:
        """Return the task for samples of which a part is known: its metrics, and how it shows them.

        Itself by default: what is known counts like what is drawn.
        """
        return self

    def allowed(self, prompt: Prompt | None = None, length: int | None = None) -> Tensor | None:
        """Return which tokens (D, V) samples may have, given what is known and their length; None: all.

        `Model.allowing` takes it.
        """
        if length is not None:
            raise SettingsError(f"all samples of {type(self).__name__} have one length; drop --length")
        return None

    def complete(self, path: str | Path, keep: str) -> Prompt:
        """Return what is known of a picture in a file, of which a part is kept, such as its left half."""
        raise SettingsError(f"{type(self).__name__} has no pictures to complete; drop --complete")

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        """Measure with other judges than those of the configuration, on a device.

        They give the perplexity of texts, or a score of pictures with prompts.
        """
        raise SettingsError(f"{type(self).__name__} has no judges; drop --judge")


def unigram_law(tokens: Tensor, num_tokens: int) -> Tensor:
    """Return the law (V,) of tokens, float64, with one added to every count.

    Probabilities are multiples of UNIT that sum to 1 exactly: to normalise them again changes no bit, so a
    source that is rebuilt from them is the same.
    """
    counts = torch.bincount(tokens.flatten().long(), minlength=num_tokens).double() + 1
    units = (counts / counts.sum() / UNIT).round().clamp(min=1)
    units[units.argmax()] += 1 / UNIT - units.sum()
    return units * UNIT
