"""Sequences: strings of varying length, padded to one length; samples as strings, and how good they are.

Shapes: B samples, D tokens of the longest string, V tokens of the vocabulary, C columns of a condition.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.errors import CheckpointError, SettingsError
from tauflow.samplers import Prompt
from tauflow.tasks.metrics import UnigramTotalVariation
from tauflow.tasks.sequences.metrics import (
    BrokenPadding,
    LengthTotalVariation,
    Matching,
    MeanLength,
    Novel,
    SequenceStatistics,
    Unique,
    digest_of_rows,
)
from tauflow.tasks.sequences.sources import (
    HubStrings,
    Rules,
    SequenceSource,
    SequenceTable,
    StringFiles,
    Strings,
    TooLong,
    cached_labels,
    cached_table,
)
from tauflow.tasks.sequences.tokens import Tokens, check_regex, find_fault, find_pattern
from tauflow.tasks.task import (
    UNIGRAM_ITEMS,
    InMemory,
    Shuffled,
    TableItems,
    TextTask,
    ValidationItems,
    index_of,
    unigram_distribution,
)
from tauflow.tasks.text.corpus import HubCorpus

STATISTICS = "statistics.npz"  # next to the checkpoints of a run
NO_DATA = (
    "a checkpoint's data is never opened by itself; pass it: `sample.py --data files=...` or "
    "`tauflow.load(path, data={'files': ...})`, or hub=..."
)


@dataclass(eq=False, repr=False)
class Sequences(TextTask):
    """Strings of varying length: one per line, a column of a table, FASTA, or a data set on the hub.

    Args:
        files: names or patterns of files, plain or .gz, separated by commas: .csv and .tsv are tables, .fasta
            and .fa have records, of .smi the first word of a line counts, others have one string per line.
        val_files: the same for validation; by default a share of the strings is.
        column: of tables with several columns.
        hub: name of a data set on the hub.
        hub_config: its configuration.
        hub_split: its split.
        hub_column: the column with the strings.
        tokens: `characters`, `smiles`, `amino_acids`, or a regular expression whose matches are the tokens.
        merges: tokens of a larger vocabulary, padding included, in which what often follows each other is one
            token (byte-pair encoding of the tokens): sequences are shorter. By default there are none.
        length: tokens of a sequence, D, padding included; by default those of the longest string.
        too_long: what becomes of longer strings: refuse or skip.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues in the order.
        val_share: share of the strings that are for validation, chosen by their text.
        val_items: strings of the validation set, at most.
        pattern: regular expression for the metric `pattern`: the share of samples that it matches as a whole.
        cache: folder for tokenized strings.
        seed: of the split and the order.
        num_workers: loader processes per device.
        token_names: the vocabulary itself, as a checkpoint keeps it; by default that of the strings.
    """

    shared_files = (STATISTICS,)
    local: ClassVar[tuple[str, ...]] = (
        *("files", "val_files", "column", "hub", "hub_config", "hub_split", "hub_column"),
        *("tokens", "pattern", "cache"),
    )
    may_change = (*TextTask.may_change, "files", "val_files", "pattern", "cache")  # files may have moved
    sample_settings: ClassVar[tuple[str, ...]] = ("token_names", "merges", "length")

    files: str | None = None
    val_files: str | None = None
    column: str | None = None
    hub: str | None = None
    hub_config: str | None = None
    hub_split: str = "train"
    hub_column: str = "text"
    tokens: str = "characters"
    length: int | None = None  # type: ignore[assignment]  # None until the strings are read
    too_long: TooLong = "refuse"
    batch_size: int = 32
    epoch_items: int = 8192
    val_share: float = 0.05
    val_items: int = 512
    cache: str = "data"
    seed: int = 0
    num_workers: int = 0
    token_names: list[str] | None = None
    merges: int | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.files and self.hub:
            raise SettingsError("Give --data.files or --data.hub, not both.")
        if self.pattern is not None:
            check_regex(self.pattern, "--data.pattern must be a regular expression")
        self.token_pattern: str | None = find_pattern(self.tokens)
        if self.token_names is None:
            self.token_names = list(self._table.names)
        if self.length is None:
            self.length = self._table.length
        self.vocabulary = Tokens(tuple(self.token_names), self.token_pattern)
        self.num_tokens = len(self.token_names)
        self.shape = (self.length,)

    @classmethod
    def rebuilt(cls, init_args: Mapping[str, Any], data: Mapping[str, Any]) -> Self:
        """Rebuild the task from a file that is not trusted: with its vocabulary, and without its data."""
        names = init_args.get("token_names")
        names = names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []
        if find_fault(names) or type(init_args.get("length")) is not int:
            raise CheckpointError("the checkpoint has no vocabulary: its data.token_names aren't tokens")
        task = super().rebuilt(init_args, data)
        if "tokens" not in data:  # the vocabulary is enough: no pattern from a file ever runs
            task.token_pattern = None
            task.vocabulary = Tokens(task.vocabulary.names, None)
        return task

    # Data

    @property
    def source(self) -> SequenceSource:
        if self.hub:
            return HubStrings(HubCorpus(self.hub, self.hub_config, self.hub_split, self.hub_column))
        if self.files:
            return StringFiles(self.files, self.column)
        raise SettingsError(NO_DATA if self.token_names else "choose the strings: --data.files or --data.hub")

    @property
    def val_source(self) -> SequenceSource | None:
        """Return where strings for validation come from, if not from the same place."""
        return StringFiles(self.val_files, self.column, "--data.val_files") if self.val_files else None

    @cached_property
    def _table(self) -> SequenceTable:
        names = None if self.token_names is None else tuple(self.token_names)
        rules = Rules(
            self.token_pattern,
            self.length,
            self.too_long,
            self.val_share,
            self.seed,
            names,
            self.merges,
        )
        found = cached_table(Path(self.cache), self.source, self.val_source, rules, progress=True)
        if found.skipped:
            total = found.skipped + len(found.train) + len(found.val)
            warnings.warn(
                f"{found.skipped} of {total} strings have more than {self.length} tokens and are skipped",
                stacklevel=2,
            )
        if names is None and self.merges is not None and len(found.names) < self.merges:
            reached = f"the strings give {len(found.names)} tokens only"
            warnings.warn(f"--data.merges is {self.merges}, but {reached}", stacklevel=2)
        return found

    @property
    def _digest(self) -> str:
        return digest_of_rows(self._table.train, self._table.val)

    def strings(self, split: Literal["train", "val"]) -> Sequence[str]:
        return Strings(self._table.train if split == "train" else self._table.val, self.vocabulary)

    def labels(self, text: str) -> list[int]:
        """Return the condition (C,) of a string, for a task that has conditions."""
        raise NotImplementedError

    @property
    def labelled_by(self) -> str:
        """Return what decides the labels, besides the strings: a change of it makes them again."""
        return type(self).__qualname__

    def _columns(self, split: Literal["train", "val"]) -> InMemory:
        columns = {"tokens": self._table.train if split == "train" else self._table.val}
        if self.conditions:
            key = f"{self._table.key} {split} {self.labelled_by}"
            columns["condition"] = cached_labels(self.cache, key, self.strings(split), self.labels, True)
        return InMemory(columns)

    def setup(self, stage: str | None = None) -> None:
        if stage != "fit" and self._saved:
            saved = InMemory(self.statistics.columns())  # in their order
            self.val_data = ValidationItems(saved, self.val_items)
        else:
            self.val_data = ValidationItems(self._columns("val"), self.val_items, self.seed)
        if stage in ("fit", None):
            self.train_data = Shuffled(TableItems(self._columns("train")), self.seed, name="sequence order")

    def origin(self) -> str:
        table = self._table
        skipped = f", {table.skipped:,} longer ones skipped" if table.skipped else ""
        return f"{self.source.describe()}, {len(table.train) + len(table.val):,} strings{skipped}"

    def begin_run(self, folder: Path) -> None:
        """Save the statistics of the strings; a resumed run must have the strings that it started with."""
        path = folder / STATISTICS
        if not path.exists():
            return self.statistics.save(path)
        saved = SequenceStatistics.load(path, self.num_tokens, self.shape[0], self.conditions).strings
        if saved and saved != self._digest:
            raise SettingsError(
                f"the run in {folder} started with other strings than the data holds now; pass those, or "
                "start a new run without --ckpt_path"
            )

    def unigrams(self) -> Tensor:
        rows = np.asarray(self._table.train[:UNIGRAM_ITEMS], dtype=np.int64)
        return unigram_distribution(torch.from_numpy(rows), self.num_tokens)

    @property
    def _saved(self) -> Path | None:
        return self.folder / STATISTICS if self.folder and (self.folder / STATISTICS).exists() else None

    @cached_property
    def statistics(self) -> SequenceStatistics:
        if self._saved:
            return SequenceStatistics.load(self._saved, self.num_tokens, self.shape[0], self.conditions)
        if not hasattr(self, "val_data"):
            self.setup("validate")
        table, validation = self._table, self.val_data.columns()
        return SequenceStatistics.of(
            table.train, table.digests, validation, self.num_tokens, self.extra_statistics(), self._digest
        )

    def extra_statistics(self) -> dict[str, np.ndarray]:
        """Return more arrays that a task saves with the statistics of a run."""
        return {}

    @property
    def alone(self) -> str:  # type: ignore[override]  # the base class has a plain default
        if self._saved or self.hub or self.files:
            return ""
        lost = "unigram_tv, length_tv, novel and real data are skipped"
        return f"{lost}: there is no {STATISTICS} next to the checkpoint, and {NO_DATA}"

    # Samples

    def texts(self, tokens: Tensor) -> list[str]:
        return [self.vocabulary.text(row) for row in tokens.tolist()]

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return numbered strings; with `·` for padding that tokens follow."""
        shown = (self.vocabulary.joined(row, "·").rstrip("·") for row in tokens.tolist())
        return [f"[{number}] {text}" for number, text in enumerate(shown, start=1)]

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.encode(text)

    def allowed(self, prompt: Prompt | None = None, length: int | None = None) -> Tensor | None:
        """Return no padding before what is known or a length, and padding alone from a length on."""
        end = 0 if prompt is None else index_of(prompt)
        if length is not None and not max(1, end) <= length <= self.shape[0]:
            raise SettingsError(
                f"--length must be from {max(1, end)} to {self.shape[0]}, got {length}. The text takes {end} "
                "tokens."
            )
        if not end and length is None:
            return None
        found = torch.ones(self.shape[0], self.num_tokens, dtype=torch.bool)
        found[: length or end, 0] = False
        if length is not None:
            found[length:, 1:] = False
        return found

    @property
    def primary_metric(self) -> str:  # type: ignore[override]  # depends on what there is
        if self.pattern is not None:
            return "pattern"
        return "broken_padding" if self.alone else "unigram_tv"

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {}
        if self.pattern is not None:
            metrics["pattern"] = Matching(self.texts, self.pattern)
        if not self.alone:
            metrics["unigram_tv"] = UnigramTotalVariation(torch.from_numpy(self.statistics.unigrams))
            metrics["length_tv"] = LengthTotalVariation(torch.from_numpy(self.statistics.lengths))
            metrics["novel"] = Novel(self.texts, self.statistics.known)
        metrics["unique"] = Unique(self.texts)
        metrics["broken_padding"] = BrokenPadding()
        metrics["mean_length"] = MeanLength()
        return MetricCollection(metrics, compute_groups=False)
