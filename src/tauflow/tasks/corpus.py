"""Where documents come from: the built-in corpus, local files, or a hub data set; and which of them are for validation."""

import glob
import gzip
import hashlib
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tauflow.errors import SettingsError
from tauflow.seeds import seed_of

DocumentName = Literal["block", "file"]


class Corpus(ABC):
    """Abstract: documents in a fixed order, and a digest that changes when any of them does."""

    @abstractmethod
    def documents(self) -> Iterator[str]: ...

    @abstractmethod
    def digest(self) -> str: ...


@dataclass(frozen=True)
class BuiltIn(Corpus):
    """The language reference that ships with CPython: 79 documents, half a million characters, nothing to download."""

    def documents(self):
        from pydoc_data.topics import topics

        yield from (text for _, text in sorted(topics.items()))

    def digest(self):
        return _digest(text.encode() for text in self.documents())


@dataclass(frozen=True)
class Files(Corpus):
    """Local text files, plain or .gz; a document is a block between empty lines, or a whole file."""

    patterns: tuple[str, ...]
    document: DocumentName = "block"

    def paths(self) -> list[Path]:
        found = []
        for pattern in self.patterns:
            matches = sorted(glob.glob(pattern, recursive=True))
            if not matches:
                raise SettingsError(f"--data.files: there is no file {pattern!r}; separate several names or patterns with commas")
            found += [Path(match) for match in matches if Path(match).is_file()]
        if not found:
            raise SettingsError(f"--data.files: {', '.join(self.patterns)} names folders only; add /*.txt")
        return list(dict.fromkeys(found))

    def documents(self):
        for path in self.paths():
            text = _read(path)
            for part in re.split(r"\n[^\S\n]*\n\s*", text) if self.document == "block" else [text]:
                if part.strip():
                    yield part.strip("\n")

    def digest(self):
        return _digest([self.document.encode(), *(path.read_bytes() for path in self.paths())])


@dataclass(frozen=True)
class Hub(Corpus):
    """A data set of the hub by name: a column of one split, downloaded once or streamed."""

    name: str
    config: str | None
    split: str
    column: str
    streaming: bool = False

    def load(self):
        import datasets

        try:
            data = datasets.load_dataset(self.name, self.config, split=self.split, streaming=self.streaming)
        except Exception as error:  # the library raises many kinds
            raise SettingsError(
                f"cannot load the data set {self.name!r} (config {self.config}, split {self.split}): {str(error).splitlines()[0]}; check "
                "the names and the network, or train on local files with --data.files"
            ) from None
        if data.column_names is not None and self.column not in data.column_names:
            raise SettingsError(f"the data set {self.name!r} has no column {self.column!r}; it has: {', '.join(data.column_names)}")
        return data

    def documents(self):
        for row in self.load():
            if row[self.column] and row[self.column].strip():
                yield row[self.column]

    def digest(self):
        return _digest([repr((self.name, self.config, self.split, self.column)).encode(), str(self.load()._fingerprint).encode()])


def in_validation(document: str, share: float, seed: int) -> bool:
    """A document belongs to validation by its own text: so copies of it are on the same side, however the corpus is read."""
    return seed_of("split", seed, hashlib.blake2b(document.encode(), digest_size=16).hexdigest()) / 2**63 < share


def _read(path: Path) -> str:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("utf-8-sig")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SettingsError(f"{path} is not text in UTF-8 ({error}); convert it, or leave it out of --data.files") from None
    if "\0" in text:
        raise SettingsError(f"{path} is not text: it holds zero bytes; leave it out of --data.files")
    return text.replace("\r\n", "\n")


def _digest(parts) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
