"""Where strings come from, and their table of tokens: built once, kept on disk, mapped into memory.

Sources are files with a string per line, tables, FASTA files, and a data set of the hub. The table is in
`<root>/<key>/`: train.npy and val.npy (N, D) with the smallest integers that hold the vocabulary, digests.npy
of the training strings, and facts.json. The key is a digest of the sources and rules.

Shapes: N strings, D tokens of the longest, V tokens of the vocabulary, C columns of labels.
"""

import csv
import hashlib
import io
import json
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tauflow.errors import SettingsError
from tauflow.tasks.caches import building, key_of, tracked
from tauflow.tasks.sequences.tokens import PAD, Tokens, describe_uncovered, learn_merges, make_splitter
from tauflow.tasks.text.corpus import (
    HubCorpus,
    describe_files,
    digest_of,
    find_files,
    is_validation,
    read_text,
    split_patterns,
)

TABLES = {".csv": ",", ".tsv": "\t"}  # and what separates their columns
FASTA = (".fasta", ".fa", ".faa", ".fna")
FIRST_WORD = (".smi", ".smiles")  # names of molecules follow on the line
VERSION = 1  # of the cache's format
MAX_TOKENS = 2**16 - 1  # of a vocabulary, without the padding
CHUNK = 2**15  # rows handled together
MAX_MERGED = 2**18  # training strings that merges are learned from
TooLong = Literal["refuse", "skip"]


class Entry(NamedTuple):
    """A string, and where it is."""

    text: str
    number: int
    kind: str  # line or row
    source: str

    @property
    def where(self) -> str:
        return f"{self.kind} {self.number} of {self.source}"


class SequenceSource(ABC):
    """Abstract: strings in a fixed order, none of them empty, and a digest that changes when any does."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]: ...

    @abstractmethod
    def digest(self) -> str: ...

    def describe(self) -> str:
        """Return what it is, for the start of a run."""
        return type(self).__name__


@dataclass(frozen=True)
class StringFiles(SequenceSource):
    """Local files, plain or .gz, read by what their names end with."""

    names: str  # or patterns, separated by commas
    column: str | None = None  # of tables with several columns
    flag: str = "--data.files"

    def describe(self) -> str:
        column = f", column {self.column}" if self.column else ""
        return f"{describe_files(self.paths())}{column}"

    def paths(self) -> list[Path]:
        return find_files(split_patterns(self.names), self.flag)

    def entries(self) -> Iterator[Entry]:
        for path in self.paths():
            ending, text = _ending(path), read_text(path, self.flag)
            if ending in TABLES:
                found = _cells(path, text, self.column, TABLES[ending])
            elif ending in FASTA:
                found = _records(path, text)
            else:
                found = _lines(text, ending in FIRST_WORD)
            source = str(path)
            for number, string in found:
                yield Entry(string, number, "line", source)

    def digest(self) -> str:
        facts = [str(self.column), *(_ending(path) for path in self.paths())]
        return digest_of([repr(facts).encode(), *(path.read_bytes() for path in self.paths())])


@dataclass(frozen=True)
class HubStrings(SequenceSource):
    """A column of a data set of the hub, or of a local one that the datasets library reads."""

    hub: HubCorpus

    def describe(self) -> str:
        return self.hub.describe()

    def entries(self) -> Iterator[Entry]:
        source = f"the data set {self.hub.name!r}"
        for number, text in enumerate(self.hub.documents(), start=1):
            yield Entry(text.strip(), number, "row", source)

    def digest(self) -> str:
        return self.hub.digest()


def _ending(path: Path) -> str:  # without .gz
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def _lines(text: str, first_word: bool) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold anything, with their numbers; or their first words."""
    for number, line in enumerate(text.split("\n"), start=1):
        string = line.strip()
        if string:
            yield number, string.split(maxsplit=1)[0] if first_word else string


def _cells(path: Path, text: str, column: str | None, delimiter: str) -> Iterator[tuple[int, str]]:
    """Yield the cells of a column that hold anything, with their line numbers; the first row has names."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    names = [name.strip() for name in next(reader, [])]
    if column is None and len(names) == 1:
        column = names[0]
    if column not in names:
        raise SettingsError(
            f"--data.column must be a column of {path} ({', '.join(names) or 'it is empty'}), got {column}."
        )
    place = names.index(column)
    for row in reader:
        if row and len(row) <= place:
            raise SettingsError(
                f"line {reader.line_num} of {path} has {len(row)} columns, the first line {len(names)}; "
                "fix or remove it"
            )
        if row and row[place].strip():
            yield reader.line_num, row[place].strip()


def _records(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the sequences of a FASTA file, with the line numbers of their headers."""
    header, parts = 0, [""]
    for number, line in enumerate([*text.split("\n"), ">"], start=1):
        if not line.startswith(">"):
            parts.append(line.strip())
            if not header and parts[-1]:
                raise SettingsError(f"line {number} of {path} isn't FASTA: a record starts with >")
            continue
        if any(parts):
            yield header, "".join(parts)
        header, parts = number, []


# The table


@dataclass(frozen=True)
class Rules:
    """How strings become rows of two kinds."""

    pattern: str | None  # None: split by the names alone
    length: int | None  # tokens of a row, D; None: of the longest string
    too_long: TooLong
    val_share: float  # of the strings, chosen by their text; unused where there are strings for validation
    seed: int
    names: tuple[str, ...] | None = None  # the vocabulary; None: what the strings hold
    merges: int | None = None  # tokens of a vocabulary with merges, padding included


@dataclass(frozen=True)
class SequenceTable:
    """Rows of tokens, padded with 0, and what was found on the way."""

    names: tuple[str, ...]  # of the vocabulary
    length: int
    skipped: int  # strings that were too long
    train: np.ndarray  # (N, D)
    val: np.ndarray
    digests: np.ndarray  # (M,) sorted, of the distinct training strings
    key: str


def hash_string(text: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little"
    )


def cached_table(
    root: str | Path,
    source: SequenceSource,
    val_source: SequenceSource | None,
    rules: Rules,
    progress: bool = False,
) -> SequenceTable:
    val_digest = val_source.digest() if val_source else None
    key = key_of(VERSION, source.digest(), val_digest, astuple(rules))
    folder = Path(root) / key
    if not folder.exists():
        with building(folder, "the tokens of the strings") as new:
            _build(new, source, val_source, rules, progress)
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("train", "val", "digests")}
    return SequenceTable(tuple(facts["names"]), facts["length"], facts["skipped"], **arrays, key=key)


def cached_labels(
    root: str | Path,
    key: str,
    texts: Sequence[str],
    label: Callable[[str], list[int]],
    progress: bool = False,
) -> np.ndarray:
    """Return the labels (N, C) of strings, mapped into memory; make them if needed.

    `key` says what the strings are and how they are labeled.
    """
    folder = Path(root) / key_of(VERSION, "labels", key)
    if not folder.exists():
        with building(folder, "the labels of the strings") as new:
            rows = [label(text) for text in tracked(texts, "labels", progress)]
            np.save(new / "labels.npy", np.array(rows, dtype=np.int32))
            _sync(new / "labels.npy")
    return np.load(folder / "labels.npy", mmap_mode="r")


class TokenNumbers(dict[str, int]):
    """Numbers of tokens, from 1 in the order of their first occurrence."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self) + 1
        return number


@dataclass
class TokenRows:
    """Tokens of strings, one after the other, and how many each has."""

    tokens: array = field(default_factory=lambda: array("H"))
    lengths: array = field(default_factory=lambda: array("I"))

    def add(self, numbers: list[int]) -> None:
        self.tokens.extend(numbers)
        self.lengths.append(len(numbers))

    def write(self, path: Path, numbers: np.ndarray, length: int) -> None:
        """Write rows (N, D) of the tokens, each as its entry of `numbers`, padded with 0."""
        kind = np.uint8 if numbers.max() < 2**8 else np.uint16
        lengths = np.frombuffer(self.lengths, dtype=np.uint32).astype(np.int64)
        tokens = np.frombuffer(self.tokens, dtype=np.uint16)
        ends = np.concatenate([[0], lengths.cumsum()])
        rows = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(len(lengths), length))
        for begin in range(0, len(lengths), CHUNK):
            some = lengths[begin : begin + CHUNK]
            flat = tokens[ends[begin] : ends[begin + len(some)]]
            part = np.zeros((len(some), length), dtype=kind)
            part[np.arange(length) < some[:, None]] = numbers[flat]
            rows[begin : begin + len(some)] = part
        rows.flush()
        _sync(path)


class TableBuilder:
    """Reads entries into rows of tokens, with a growing vocabulary or a fixed one."""

    def __init__(self, rules: Rules):
        self.rules = rules
        self.numbers: dict[str, int] = TokenNumbers()
        self.skipped = 0
        if rules.names is not None:
            self.fix(rules.names)
        elif rules.pattern is not None:
            self.split = make_splitter(rules.pattern)

    def fix(self, names: Sequence[str]) -> None:
        """Allow only the tokens of a vocabulary from here on."""
        self.names = tuple(names)
        self.split = Tokens(self.names, self.rules.pattern).find
        self.numbers = {name: number for number, name in enumerate(names) if number}

    def encode(self, entry: Entry) -> list[int] | None:
        names = self.split(entry.text)
        if "".join(names) != entry.text:
            raise SettingsError(
                f"{entry.where}: {describe_uncovered(entry.text, names)}; fix it, or change --data.tokens"
            )
        if self.rules.length is not None and len(names) > self.rules.length:
            if self.rules.too_long == "refuse":
                raise SettingsError(
                    f"{entry.where} has {len(names)} tokens, --data.length is {self.rules.length}; raise it, "
                    "or skip such strings with --data.too_long skip"
                )
            self.skipped += 1
            return None
        try:
            return list(map(self.numbers.__getitem__, names))
        except KeyError as error:
            lacking = Tokens(self.names, self.rules.pattern).lacks(error.args[0])
            raise SettingsError(
                f"{entry.where}: {lacking}; remove that string, or train with it in --data.files"
            ) from None

    def read(self, entries: Iterable[Entry], rows_for: Callable[[str], TokenRows]) -> None:
        for entry in entries:
            numbers = self.encode(entry)
            if numbers is not None:
                rows_for(entry.text).add(numbers)


def _build(
    new: Path, source: SequenceSource, val_source: SequenceSource | None, rules: Rules, progress: bool
) -> None:
    train = TokenRows()
    val = TokenRows()
    digests = array("Q")

    def rows_for(text: str) -> TokenRows:
        if val_source is None and is_validation(text, rules.val_share, rules.seed):
            return val
        digests.append(hash_string(text))
        return train

    if rules.merges is not None and rules.names is None:
        rules = replace(rules, names=_merge_vocabulary(source, val_source is None, rules, progress))
    builder = TableBuilder(rules)
    builder.read(tracked(source.entries(), "tokenizing", progress), rows_for)
    names = Tokens(rules.names or (PAD, *sorted(builder.numbers)), rules.pattern).names
    numbers = np.arange(len(names), dtype=np.uint16)  # of the tokens, by those that the builder gave them
    if rules.names is None:
        order = {name: number for number, name in enumerate(names)}
        numbers[1:] = [order[name] for name in builder.numbers]
    if val_source is not None:
        builder.fix(names)
        builder.read(tracked(val_source.entries(), "tokenizing val", progress), lambda text: val)
    if not (train.lengths and val.lengths):
        limit = "" if rules.length is None else f" of at most {rules.length} tokens"
        raise SettingsError(
            f"Training and validation need strings{limit}, got {len(train.lengths)} and {len(val.lengths)}. "
            "Add different strings, change --data.val_share, or pass --data.val_files."
        )
    length = rules.length or max(max(train.lengths), max(val.lengths))
    train.write(new / "train.npy", numbers, length)
    val.write(new / "val.npy", numbers if val_source is None else np.arange(len(names)), length)
    np.save(new / "digests.npy", np.unique(np.frombuffer(digests, dtype=np.uint64)))
    _sync(new / "digests.npy")
    facts = {"names": names, "length": length, "skipped": builder.skipped}
    (new / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    _sync(new / "facts.json")


def _merge_vocabulary(source: SequenceSource, shared: bool, rules: Rules, progress: bool) -> tuple[str, ...]:
    """Return a vocabulary with merges, learned from training strings; all single tokens are in it."""
    builder = TableBuilder(replace(rules, length=None))  # how long a string is depends on the merges
    strings: list[list[str]] = []
    for entry in tracked(source.entries(), "merging", progress):
        builder.encode(entry)
        if len(strings) < MAX_MERGED and not (
            shared and is_validation(entry.text, rules.val_share, rules.seed)
        ):
            strings.append(builder.split(entry.text))
    names = Tokens((PAD, *sorted(builder.numbers)), rules.pattern).names[1:]
    if not len(names) + 1 < (rules.merges or 0) <= MAX_TOKENS:
        raise SettingsError(
            f"the strings have {len(names)} different tokens and padding; --data.merges, the tokens of a "
            f"vocabulary with merges, must be from {len(names) + 2} to {MAX_TOKENS}, got {rules.merges}"
        )
    return tuple(dict.fromkeys((PAD, *learn_merges(strings, names, (rules.merges or 0) - 1))))


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


class Strings(Sequence[str]):
    """The strings of rows (N, D), made when they are read."""

    def __init__(self, rows: np.ndarray, tokens: Tokens):
        self.rows = rows
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self.tokens.text(row) for row in self.rows[number].tolist()]
        return self.tokens.text(self.rows[number].tolist())
