"""Task: data, what a sample is, and how good it is. With it: text prompts, and items by position.

Position p counts training items since the start of training over all devices. Step p // B and row p % B of
the global batch of B items follow from it alone, which makes a resumed run exact.

Shapes: B samples, D coordinates, V data tokens, C columns of a condition.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, get_type_hints

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from torchmetrics import MetricCollection

from tauflow.denoise.model import ChannelsName, check_channels
from tauflow.errors import SettingsError
from tauflow.numerics import seed_of
from tauflow.samplers import Prompt

Item = dict[str, Tensor]  # {"tokens": (D,) or the shape of a sample, "condition"?: (C,)}
UNIGRAM_ITEMS = 4096  # training items that the unigram distribution is counted in
UNIT = 2.0**-40  # of unigram probabilities
MAX_SIZE = 2**24  # tokens of a vocabulary, coordinates of a sample, values of a condition
MAX_DIMENSIONS = 64  # of a sample
MAX_COLUMNS = 512  # of a condition; a prompt has one column per token


@dataclass(frozen=True)
class DataFacts:
    """What a model must know about its data.

    Args:
        num_tokens: data tokens, V.
        shape: of one sample: (D,) for a sequence, (H, W) or (H, W, C) for an image.
        conditions: number of values of each column of a condition; empty without conditions.
        unigrams: returns the distribution (V,) of the data tokens, which the marginal source starts from.
        channels: how the last axis of the shape is revealed, where it holds channels: together or apart.
        codebook: returns the vectors (V, E) of the data tokens, which the metric source moves through.
        positional: whether the position of a token matters because samples start somewhere. A Transformer
            then learns a vector per position, unless its config decides.
    """

    num_tokens: int
    shape: tuple[int, ...]
    conditions: tuple[int, ...] = ()
    unigrams: Callable[[], Tensor] | None = field(default=None, compare=False, repr=False)
    channels: ChannelsName | None = field(default=None, compare=False)
    codebook: Callable[[], Tensor] | None = field(default=None, compare=False, repr=False)
    positional: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        # numpy's numbers are numbers too
        object.__setattr__(self, "num_tokens", index(self.num_tokens))
        object.__setattr__(self, "shape", tuple(index(size) for size in self.shape))
        object.__setattr__(self, "conditions", tuple(index(size) for size in self.conditions))
        # The sizes may come from a stranger's checkpoint, and memory is allocated by them.
        sizes = (self.num_tokens, *self.shape, *self.conditions)
        few = len(self.shape) <= MAX_DIMENSIONS and len(self.conditions) <= MAX_COLUMNS
        if not few or not all(1 <= size <= MAX_SIZE for size in sizes) or self.length > MAX_SIZE:
            raise SettingsError(
                f"data has 1 to {MAX_SIZE} tokens, coordinates and values of a condition, at most "
                f"{MAX_DIMENSIONS} dimensions and {MAX_COLUMNS} columns of a condition; got {str(self)[:200]}"
            )
        check_channels(self.channels, self.shape)

    @property
    def length(self) -> int:
        """Return D, the coordinates of a sample."""
        return math.prod(self.shape)

    @property
    def init_args(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: channels only where there are some, as in earlier versions."""
        kept = {
            "num_tokens": self.num_tokens,
            "shape": self.shape,
            "conditions": self.conditions,
            "unigrams": None,
        }
        return kept | ({"channels": self.channels} if self.channels else {})

    def __str__(self) -> str:
        extra = f", conditions {self.conditions}" if self.conditions else ""
        return f"shape {self.shape} of {self.num_tokens} tokens{extra}"


class Task(ABC):
    """A dataset, what its samples are, and the metrics of generated samples.

    Subclass it to train on your own data, or `TextTask` if samples are text. You need three attributes
    (`num_tokens`, `shape`, `primary_metric`; with conditions also `conditions`) and three methods (`setup`,
    `sample_metrics`, `show`). Everything else has a default. Constructor arguments are settings
    (`--data.length`). Keep each as an attribute with the same name: a checkpoint describes the task by them.

    `setup` makes the data. `train_data[p]` is the item at position p of an endless order: a permutation per
    pass (`tauflow.tasks.Shuffled`), or fresh items. `val_data[i]` is a fixed item. An item is {"tokens": a
    sample, "condition"?: integers (C,)}. An optional `__getitems__` returns several items together.

    Options of sample.py call these optional methods: `prompt(text)` (--prompt), `infill(text)` (--infill),
    and `complete(path, keep)` (--complete) return a `Prompt`. `allowed(prompt, length)` (--length) returns
    the tokens bool (D, V) that samples may have, or None for all of them. `use_judges(names, device)`
    (--judge) measures with other models than the configured ones. `origin()` returns what was read, for the
    start of a run.

    Args:
        batch_size: items per optimizer step, over all devices and accumulated batches.
        epoch_items: training items per epoch.
        num_workers: loader processes per device.

    Returns:
        A task, which `tauflow.evaluate`, `tauflow.Trained`, and `train.py --data` take.

    Examples:
        >>> import tauflow, torch
        >>> from dataclasses import dataclass
        >>> from torchmetrics import MetricCollection
        >>> class Vowels(tauflow.tasks.SampleMean):
        ...     def of(self, tokens):
        ...         return torch.isin(tokens, torch.tensor([0, 4, 8, 14, 20])).double().mean(1)
        >>> @dataclass(eq=False)
        ... class Letters(tauflow.Task):
        ...     batch_size: int = 32
        ...
        ...     num_tokens = 26
        ...     shape = (8,)
        ...     primary_metric = "vowels"
        ...
        ...     def setup(self, stage=None):
        ...         items = [{"tokens": row} for row in torch.arange(800).remainder(26).view(100, 8)]
        ...         self.train_data = tauflow.tasks.Shuffled(items[10:], seed=0)
        ...         self.val_data = items[:10]
        ...
        ...     def sample_metrics(self):
        ...         return MetricCollection({"vowels": Vowels()}, compute_groups=False)
        ...
        ...     def show(self, tokens, condition=None):
        ...         return ["".join(chr(97 + token) for token in row) for row in tokens.tolist()]
        >>> task = Letters()
        >>> task.setup()
        >>> task.show(task.val_data[0]["tokens"][None])
        ['abcdefgh']
    """

    num_tokens: int  # V
    shape: tuple[int, ...]  # of one sample
    conditions: tuple[int, ...] = ()  # number of values of each column of a condition
    channels: ChannelsName | None = None  # how the last axis is revealed, where it holds channels
    positional: bool = True  # whether samples start somewhere; false for pieces of something longer
    primary_metric: str  # comes first in tables; plots and the HParams tab show it
    batch_size: int = 32
    epoch_items: int = 4096
    num_workers: int = 0
    units: ClassVar[Mapping[str, float]] = {}  # of the bound in addition to nats/token: name and factor
    train_data: Any
    val_data: Any
    folder: Path | None = None  # of the run that it belongs to
    local: ClassVar[tuple[str, ...]] = ()
    """Settings that say where things are, on this machine or a network. A checkpoint keeps them as facts; a
    task rebuilt from one gets them from the user only."""
    shared_files: ClassVar[tuple[str, ...]] = ()
    """Files that `begin_run` writes next to the checkpoints, and that `tauflow.export` copies."""
    may_change: ClassVar[tuple[str, ...]] = ("num_workers", "val_items")
    """Settings that may differ in a resumed run; all others must stay."""
    marks: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Marks in shown samples, and what they mean: {"!": "breaks the rule"}."""
    sample_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that say what a sample is: its shape and its tokens. With --init_from they're the model's."""
    alone: str = ""  # why there is no real data to compare with, for a checkpoint that came without it
    guidance: float | None = None  # the recommended weight, where there is one

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "headline" in vars(cls):  # what tasks called their primary metric before
            cls.primary_metric = vars(cls)["headline"]

    @classmethod
    def rebuilt(cls, init_args: Mapping[str, Any], data: Mapping[str, Any]) -> Self:
        """Return the task that a checkpoint describes, with the user's `data` for what is `local`."""
        kinds = get_type_hints(cls) if data else {}
        for name, value in data.items():
            wanted = kinds.get(name, object)
            if not isinstance(value, wanted):
                kind = getattr(wanted, "__name__", wanted)
                raise SettingsError(f"{name} of the data is of type {kind}, got {value!r}")
        return cls(**{name: value for name, value in init_args.items() if name not in cls.local}, **data)

    @property
    def length(self) -> int:
        return math.prod(self.shape)

    @property
    def facts(self) -> DataFacts:
        """Return what a model must know about the data."""
        return DataFacts(
            self.num_tokens,
            self.shape,
            self.conditions,
            self.unigrams,
            self.channels,
            self.codebook,
            self.positional,
        )

    # Data

    @abstractmethod
    def setup(self, stage: str | None = None) -> None:
        """Make `train_data` (stage "fit" or None) and `val_data`. The stages are Lightning's."""

    @property
    def train_items(self) -> int | None:
        """Return how many different training items there are; None if that isn't known, or has no end."""
        data = getattr(self, "train_data", None)
        return len(data.data) if isinstance(data, Shuffled) else None

    def origin(self) -> str:
        """Return what was read, such as "notes.txt (1.05 MB), 312,320 tokens"; "" if nothing was."""
        return ""

    def summary(self) -> list[str]:
        """Return lines about the data, which are printed when training starts; call `setup` first."""
        origin = self.origin()
        data = getattr(self, "train_data", None)
        train = "" if self.train_items is None else f"train {self.train_items:,} items, "
        if data is not None and self.train_items is None and len(data) == ENDLESS:
            train = "train on fresh items, "
        name = type(self).__name__
        return [
            f"{name}: {origin}" if origin else name,
            f"{train}validation {len(self.val_data):,} items, {self.facts}",
        ]

    def stream(self, share: "Share") -> IterableDataset | None:
        """Return one rank's training batches for data without positions; None: `train_data` has positions."""
        return None

    def begin_run(self, folder: Path) -> None:
        """Write, on rank zero, what belongs next to the checkpoints of a run; nothing by default."""
        return

    def unigrams(self) -> Tensor:
        """Return the distribution of the data tokens, float64 (V,), none of it 0.

        It counts the first UNIGRAM_ITEMS training items, or all if there are fewer: the same in every run.
        """
        if not hasattr(self, "train_data"):
            self.setup("fit")
        count = min(UNIGRAM_ITEMS, len(self.train_data))
        items = items_of(self.train_data, list(range(count)))
        tokens = torch.stack([torch.as_tensor(item["tokens"]) for item in items])
        return unigram_distribution(tokens, self.num_tokens)

    def codebook(self) -> Tensor:
        """Return a vector per data token (V, E), where tokens are codes that are more or less alike."""
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
        """Return generated tokens (B, D) for people: a text for each, or images uint8 (B, H, W, 3)."""

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

        They start again at 0 after the last item. None for a task without conditions.
        """
        if not self.conditions:
            return None
        if not hasattr(self, "val_data"):
            self.setup("validate")
        numbers = [number % len(self.val_data) for number in range(first, first + count)]
        conditions = [torch.as_tensor(item["condition"]) for item in items_of(self.val_data, numbers)]
        return torch.stack(conditions).long()

    def knowing(self, prompt: Prompt) -> Self:
        """Return the task for samples of which a part is known: its metrics, and how it shows them.

        Itself by default: known tokens count like generated ones.
        """
        return self


def unigram_distribution(tokens: Tensor, num_tokens: int) -> Tensor:
    """Return the distribution (V,) of tokens, float64, with one added to every count.

    Probabilities are multiples of UNIT that sum to 1 exactly: normalizing them again changes no bit, so a
    source rebuilt from them is the same.
    """
    counts = torch.bincount(tokens.flatten().long(), minlength=num_tokens).double() + 1
    units = (counts / counts.sum() / UNIT).round().clamp(min=1)
    units[units.argmax()] += 1 / UNIT - units.sum()
    return units * UNIT


def find_hook(task: Task, name: str, flag: str) -> Callable[..., Any]:
    """Return an optional method of a task by the name of the option that needs it."""
    if not hasattr(task, name):
        raise SettingsError(f"{type(task).__name__} doesn't support {flag}. Remove {flag}.")
    return getattr(task, name)


def parse_settings(words: Iterable[str]) -> dict[str, Any]:
    """Return the settings that words such as "files=corpus.txt" give; a value is YAML, or else text."""
    import yaml

    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise SettingsError(f"--data must be KEY=VALUE, such as files=corpus.txt, got {word!r}.")
        try:
            found[name] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):  # such as the regular expression [A-Z]{3}
            found[name] = text
    return found


# Text

CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # Unicode has no symbols for these


class TextTask(Task):
    """Abstract: a task whose samples are text, with prompts and blanks to fill in."""

    has_space: bool = True  # whether a space is a token; else it is a part of the word after it

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; raise SettingsError for what the vocabulary lacks."""

    @abstractmethod
    def texts(self, tokens: Tensor) -> list[str]:
        """Return samples (B, D) as text."""

    def prompt(self, text: str) -> Prompt:
        """Return the text that every sample starts with."""
        return prompt_of([self.encode(text)], self.shape[0])

    def infill(self, text: str) -> Prompt:
        """Return text with blanks: n >= 2 underscores (n >= 1 where `_` is no token) stand for n tokens.

        Everything after the text is to be generated too. A space before a blank belongs to the blank where a
        space is a part of the word after it, as in byte-level BPE.
        """
        try:
            self.encode("_")
            blank = r"(_{2,})"
        except SettingsError:
            blank = r"(_+)"
        words = re.split(blank, text)  # text and blanks in turn
        if len(words) == 1:
            raise SettingsError("--infill needs a blank: two or more underscores, one per token to fill in")
        parts: list[list[int] | int] = []
        for number, word in enumerate(words):
            if number % 2:
                parts.append(len(word))
            else:
                last = number == len(words) - 1
                parts.append(self.encode(word if self.has_space or last else word.rstrip(" ")))
        return prompt_of(parts, self.shape[0])


class TextPrompt(Prompt):
    """A prompt made from text, and how many places the text takes, a blank at its end included."""

    places: int


def index_of(prompt: Prompt) -> int:
    """Return how many places a prompt takes: those of its text, or else those up to the last known one."""
    if isinstance(prompt, TextPrompt):
        return prompt.places
    return 1 + max(prompt.known.nonzero().flatten().tolist(), default=-1)


def prompt_of(parts: list[list[int] | int], length: int) -> TextPrompt:
    """Return a prompt of tokens and blanks, given as numbers of places, for samples of `length` tokens."""
    taken = sum(part if isinstance(part, int) else len(part) for part in parts)
    if taken > length:
        raise SettingsError(f"the text takes {taken} tokens, the model has {length}; shorten it")
    tokens: list[int] = []
    known: list[bool] = []
    for part in [*parts, length - taken]:
        ids = [0] * part if isinstance(part, int) else part
        tokens += ids
        known += [not isinstance(part, int)] * len(ids)
    prompt = TextPrompt(torch.tensor(tokens), torch.tensor(known))
    prompt.places = taken
    return prompt


# Items by position

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
        """Return the positions of this rank's batch number 0, 1, ... since the start of training."""
        part = self.batch_size // self.accumulate
        begin = batch * part
        return list(range(begin + self.rank, begin + part, self.world_size))

    def epoch(self, first: int) -> range:
        """Return the numbers of the batches from the first one to the end of its epoch."""
        return range(first, (first // self.batches_per_epoch + 1) * self.batches_per_epoch)


def items_of(data: Any, numbers: Sequence[int]) -> list[Item]:
    """Return several items of a data set, together where it can."""
    if hasattr(data, "__getitems__"):
        return data.__getitems__(numbers)
    return [data[number] for number in numbers]


class Shuffled(Dataset[Item]):
    """Finite data as an endless order: a permutation per pass, a pure function of the seed and the pass.

    Args:
        data: items 0 to N - 1.
        seed: of the order.
        name: keys the order, so that two data sets with one seed aren't shuffled alike.
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


class InMemory:
    """Columns (N, ...) of arrays, in memory or mapped into it.

    A table has a length, and `table[[numbers]]` returns its columns by name: "tokens" (N, D), perhaps
    "condition" (N, C). A data set of the datasets library is one too.
    """

    def __init__(self, columns: dict[str, np.ndarray]):
        self.arrays = columns

    def __len__(self) -> int:
        return len(self.arrays["tokens"])

    def __getitem__(self, rows: list[int]) -> dict[str, np.ndarray]:
        return {name: column[rows] for name, column in self.arrays.items()}


class TableItems(Dataset[Item]):
    """The rows of a table as items, all of them in their order."""

    def __init__(self, table: Any):
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        columns = {
            name: torch.from_numpy(np.asarray(column, dtype=np.int64))
            for name, column in self.table[[int(number) for number in numbers]].items()
        }
        return [{name: column[row] for name, column in columns.items()} for row in range(len(numbers))]


class ValidationItems(TableItems):
    """The first rows of a permutation that the seed gives, or of the table itself without a seed.

    A corpus may be sorted, by year for instance: its first rows wouldn't represent it.
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

    def columns(self) -> dict[str, np.ndarray]:
        """Return all items as columns (N, ...)."""
        return {name: np.asarray(column) for name, column in self.table[self.rows.tolist()].items()}
