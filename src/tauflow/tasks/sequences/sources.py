"""Where strings come from: files with a string a line, tables, FASTA files, a data set of the hub."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tauflow.errors import SettingsError
from tauflow.tasks.text.corpus import Hub, bytes_of, digest_of, paths_of, patterns_in, text_of

TABLES = {".csv": ",", ".tsv": "\t"}  # and what separates their columns
FASTA = (".fasta", ".fa", ".faa", ".fna")
FIRST_WORD = (".smi", ".smiles")  # names of molecules stand after them


class Entry(NamedTuple):
    """A string, and where it stands."""

    text: str
    number: int
    kind: str  # line or row
    source: str

    @property
    def where(self) -> str:
        return f"{self.kind} {self.number} of {self.source}"


class Source(ABC):
    """Abstract: strings in a fixed order, none of them empty, and a digest that changes when any does."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]: ...

    @abstractmethod
    def digest(self) -> str: ...


@dataclass(frozen=True)
class StringFiles(Source):
    """Local files, plain or .gz, read by what their names end with.

    Args:
        names: of the files, or patterns, separated by commas.
        column: of tables with several columns.
        flag: of the command line that named them.
    """

    names: str
    column: str | None = None
    flag: str = "--data.files"

    def paths(self) -> list[Path]:
        return paths_of(patterns_in(self.names), self.flag)

    def entries(self) -> Iterator[Entry]:
        for path in self.paths():
            ending, text = _ending(path), text_of(path, self.flag)
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
        return digest_of([repr(facts).encode(), *(bytes_of(path, self.flag) for path in self.paths())])


@dataclass(frozen=True)
class HubStrings(Source):
    """A column of a data set of the hub, or of a local one that the datasets library reads."""

    hub: Hub

    def entries(self) -> Iterator[Entry]:
        source = f"the data set {self.hub.name!r}"
        for number, text in enumerate(self.hub.documents(), start=1):
            yield Entry(text.strip(), number, "row", source)

    def digest(self) -> str:
        return self.hub.digest()


def _ending(path: Path) -> str:
    """Return what the name of a file ends with, without .gz."""
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
    try:
        names = [name.strip() for name in next(reader, [])]
        place = _place(path, names, column)
        for row in reader:
            if not row:
                continue
            if len(row) <= place:
                raise SettingsError(
                    f"line {reader.line_num} of {path} has {len(row)} columns, the first line {len(names)}; "
                    "fix or remove it"
                )
            if string := row[place].strip():
                yield reader.line_num, string
    except csv.Error as error:
        raise SettingsError(
            f"line {reader.line_num} of {path} is no row of a table ({error}); fix it"
        ) from None


def _place(path: Path, names: list[str], column: str | None) -> int:
    """Return the number of the column that is meant."""
    if not names:
        raise SettingsError(f"{path} is empty; a table begins with a line of the names of its columns")
    if column is None and len(names) == 1:
        return 0
    if column not in names:
        asked = "has several columns" if column is None else f"has no column {column!r}"
        raise SettingsError(f"{path} {asked}; name one of them with --data.column: {', '.join(names)}")
    return names.index(column)


def _records(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the sequences of a FASTA file, with the line numbers of their headers."""
    header, parts = 0, [""]
    for number, line in enumerate([*text.split("\n"), ">"], start=1):
        if not line.startswith(">"):
            parts.append(line.strip())
            if not header and parts[-1]:
                raise SettingsError(f"line {number} of {path} is no FASTA: a record begins with >")
            continue
        if header:
            if not any(parts):
                raise SettingsError(
                    f"the record at line {header} of {path} has no sequence; fix or remove it"
                )
            yield header, "".join(parts)
        header, parts = number, []
