"""Where documents come from, and which of them are for validation."""

import errno
import glob
import gzip
import hashlib
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tauflow.errors import SettingsError, TauflowError, WriteError, first_line
from tauflow.numerics import seed_of

DocumentName = Literal["block", "file"]


class Corpus(ABC):
    """Abstract: documents in a fixed order, and a digest that changes when any of them does."""

    @abstractmethod
    def documents(self) -> Iterator[str]: ...

    @abstractmethod
    def digest(self) -> str: ...

    def describe(self) -> str:
        """Return what it is, for the start of a run."""
        return type(self).__name__


@dataclass(frozen=True)
class BuiltIn(Corpus):
    """The language reference that ships with CPython: 79 documents, half a million characters."""

    def describe(self) -> str:
        return "CPython's language reference"

    def documents(self) -> Iterator[str]:
        from pydoc_data.topics import topics

        yield from (text for _, text in sorted(topics.items()))

    def digest(self) -> str:
        return digest_of(text.encode() for text in self.documents())


@dataclass(frozen=True)
class TextFiles(Corpus):
    """Local text files, plain or .gz; a document is a block between empty lines, or a file."""

    patterns: tuple[str, ...]
    document: DocumentName = "block"

    def describe(self) -> str:
        return describe_files(find_files(self.patterns))

    def documents(self) -> Iterator[str]:
        for path in find_files(self.patterns):
            text = read_text(path)
            for part in re.split(r"\n[^\S\n]*\n\s*", text) if self.document == "block" else [text]:
                if part.strip():
                    yield part.strip("\n")

    def digest(self) -> str:
        return digest_of([self.document.encode(), *(path.read_bytes() for path in find_files(self.patterns))])


@dataclass(frozen=True)
class HubCorpus(Corpus):
    """A data set of the hub by name: a column of one split, downloaded once or streamed."""

    name: str
    config: str | None
    split: str
    column: str
    streaming: bool = False

    def describe(self) -> str:
        return f"{self.name} ({self.split})"

    def load(self) -> Any:
        import datasets

        try:
            data = datasets.load_dataset(self.name, self.config, split=self.split, streaming=self.streaming)
        except Exception as error:  # the library raises many kinds
            raise self._failure("load", error) from None
        if data.column_names is not None and self.column not in data.column_names:
            columns = ", ".join(data.column_names)
            raise SettingsError(
                f"the data set {self.name!r} has no column {self.column!r}; it has: {columns}"
            )
        return data

    def documents(self) -> Iterator[str]:
        return self.texts(self.load())

    def texts(self, rows: Iterable[dict[str, Any]]) -> Iterator[str]:
        """Yield the texts of rows of the data set, without empty ones."""
        rows = iter(rows)
        while True:
            try:
                row = next(rows, None)
            except Exception as error:  # as above, and when the network is lost
                raise self._failure("read", error) from None
            if row is None:
                return
            text = row[self.column]
            if not isinstance(text, str | None):
                raise SettingsError(
                    f"--data.hub_column must be a column of text, got {self.column!r} of {self.name!r}."
                )
            if text and text.strip():
                yield text

    def _failure(self, verb: str, error: Exception) -> TauflowError:
        # the library wraps the error of a full disk
        what = f"cannot {verb} the data set {self.name!r} (config {self.config}, split {self.split})"
        reason: BaseException | None = error
        while reason is not None:
            if isinstance(reason, OSError) and reason.errno in (errno.ENOSPC, errno.EDQUOT):
                return WriteError(
                    f"{what}: {reason.strerror}; free space, set HF_HOME to a folder of a larger disk, or "
                    "use --data.streaming true",
                    reason.errno,
                )
            reason = reason.__cause__ or reason.__context__
        return SettingsError(
            f"{what}: {first_line(error)}; check the names and the network, "
            "or train on local files with --data.files"
        )

    def digest(self) -> str:
        facts = repr((self.name, self.config, self.split, self.column))
        return digest_of([facts.encode(), str(self.load()._fingerprint).encode()])


def is_validation(document: str, share: float, seed: int) -> bool:
    """Return whether a document is for validation, by its own text: copies are on the same side."""
    own = hashlib.blake2b(document.encode(), digest_size=16).hexdigest()
    return seed_of("split", seed, own) / 2**63 < share


def split_patterns(names: str) -> tuple[str, ...]:
    """Return names or patterns of files separated by commas; a name that exists may have commas."""
    patterns: list[str] = []
    parts = names.split(",")
    while parts:
        longest_first = [",".join(parts[:count]) for count in range(len(parts), 0, -1)]
        candidates = (name for each in longest_first for name in (each, each.strip()))
        name = next((name for name in candidates if os.path.exists(name)), parts[0].strip())
        patterns.append(name)
        del parts[: name.count(",") + 1]
    return tuple(patterns)


def find_files(patterns: Iterable[str], flag: str = "--data.files") -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        paths = [Path(match) for match in matches if Path(match).is_file()]
        if not paths:
            raise SettingsError(
                f"{flag}: File not found: {pattern!r}. Separate several names or patterns with commas. For "
                "the files in a folder, add /*.txt."
            )
        found += paths
    return list(dict.fromkeys(found))


def describe_files(paths: Sequence[Path]) -> str:
    """Return the names of the first files, and the size of all of them."""
    names = ", ".join(path.name for path in paths[:3])
    more = f" and {len(paths) - 3} more files" if len(paths) > 3 else ""
    size = sum(path.stat().st_size for path in paths)
    return f"{names}{more} ({size / 1e6:.3g} MB)" if size >= 1e5 else f"{names}{more} ({size / 1e3:.3g} kB)"


def read_text(path: Path, flag: str = "--data.files") -> str:
    """Return the text of a file, plain or .gz, with simple line ends."""
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        text = data.decode("utf-8-sig")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SettingsError(
            f"{path} is not text in UTF-8 ({error}). Convert it, or remove it from {flag}."
        ) from None
    return text.replace("\r\n", "\n")


def digest_of(parts: Iterable[bytes]) -> str:
    """Return a digest that changes when any of the parts does."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
