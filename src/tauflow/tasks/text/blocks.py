"""Blocks: documents as tokens, each ended by EOS, packed into rows of equal length; cached as Arrow files.

A cache lies in `<root>/<key>/` with train.arrow and val.arrow; the key is a digest of the corpus, the
tokenizer, the length and the split. It is built in a folder of its own and renamed when it is complete: an
interrupted build leaves nothing that is taken for a cache, and of two builders at once the second finds the
first one's and drops its own.

Shapes: N blocks, D tokens of a block.
"""

import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from tauflow.errors import SettingsError
from tauflow.seeds import seed_of
from tauflow.tasks.items import Item
from tauflow.tasks.text.corpus import Corpus, in_validation
from tauflow.tasks.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import datasets

VERSION = 1  # of the cache's format
ENCODED_TOGETHER = 512  # documents


@dataclass(frozen=True)
class Split:
    """How documents become blocks of two kinds."""

    length: int  # tokens of a block, D
    val_share: float  # of the documents, chosen by their text
    seed: int

    def validates(self, document: str) -> bool:
        """Return whether a document is for validation."""
        return in_validation(document, self.val_share, self.seed)


def pack(documents: Iterable[str], vocabulary: Vocabulary, length: int) -> Iterator[np.ndarray]:
    """Yield rows (N, D) of the documents' tokens as they get complete; the unfilled last one is dropped."""
    rest = np.empty(0, dtype=np.int32)
    documents = iter(documents)
    while batch := list(itertools.islice(documents, ENCODED_TOGETHER)):
        parts = [np.array([*ids, vocabulary.eos], dtype=np.int32) for ids in vocabulary.encode(batch)]
        rest = np.concatenate([rest, *parts])
        full = len(rest) // length * length
        if full:
            yield rest[:full].reshape(-1, length)
            rest = rest[full:]


def cached_blocks(
    root: str | Path, corpus: Corpus, vocabulary: Vocabulary, split: Split, progress: bool = False
) -> tuple["datasets.Dataset", "datasets.Dataset"]:
    """Return the blocks of the training and validation documents, memory-mapped; build them if needed."""
    import datasets

    tokenizer = vocabulary.tokenizer.to_str()
    facts = (VERSION, corpus.digest(), tokenizer, split.length, split.val_share, split.seed)
    folder = Path(root) / hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    if not folder.is_dir():
        _build(folder, corpus, vocabulary, split, progress)
    train, val = (
        datasets.Dataset.from_file(str(folder / f"{name}.arrow")).with_format("numpy")
        for name in ("train", "val")
    )
    return train, val


def _build(folder: Path, corpus: Corpus, vocabulary: Vocabulary, split: Split, progress: bool) -> None:
    from datasets import Features, Sequence, Value
    from datasets.arrow_writer import ArrowWriter

    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building."))
    features = Features({"tokens": Sequence(Value("int32"), length=split.length)})
    counts = {}
    try:
        for name in ("train", "val"):
            chosen = (text for text in corpus.documents() if split.validates(text) == (name == "val"))
            counts[name] = 0
            with ArrowWriter(path=str(new / f"{name}.arrow"), features=features) as writer:
                for rows in pack(_track(chosen, f"tokenising {name}", progress), vocabulary, split.length):
                    writer.write_batch({"tokens": list(rows)})
                    counts[name] += len(rows)
                writer.finalize()
        refuse_small(counts["train"], counts["val"], split)
        try:
            os.rename(new, folder)
        except OSError:
            if not folder.is_dir():
                raise  # else another process was faster
    finally:
        shutil.rmtree(new, ignore_errors=True)


def refuse_small(train: int, val: int, split: Split) -> None:
    """Refuse a corpus that does not fill a block of each kind."""
    if not train:
        raise SettingsError(
            f"the corpus does not fill one block of {split.length} tokens; give more text, or lower "
            "--data.length"
        )
    if not val:
        raise SettingsError(
            f"the validation documents ({split.val_share:.1%} of all, chosen by their text) do not fill one "
            f"block of {split.length} tokens; raise --data.val_share, lower --data.length, or give more "
            "documents"
        )


class Blocks(Dataset[Item]):
    """Blocks as items, all of them in their order."""

    def __init__(self, blocks: Any):
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        rows = self.blocks[[int(number) for number in numbers]]["tokens"]
        return [{"tokens": torch.from_numpy(np.asarray(row)).long()} for row in rows]


class Fixed(Blocks):
    """Validation items: the first blocks of a permutation that the seed gives, or of all without a seed.

    A corpus may be sorted, by years for instance: blocks from its beginning alone would not stand for it.
    """

    def __init__(self, blocks: Any, count: int, seed: int | None = None):
        super().__init__(blocks)
        order = np.arange(len(blocks))
        if seed is not None:
            np.random.Generator(np.random.Philox(seed_of("validation order", seed))).shuffle(order)
        self.rows = order[:count]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        return super().__getitems__(self.rows[list(numbers)].tolist())

    def tokens(self) -> np.ndarray:
        """Return all items (N, D)."""
        return np.asarray(self.blocks[self.rows.tolist()]["tokens"])


class InMemory:
    """Blocks (N, D) that answer like a data set."""

    def __init__(self, columns: dict[str, np.ndarray]):
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["tokens"])

    def __getitem__(self, rows: list[int]) -> dict[str, np.ndarray]:
        return {name: column[rows] for name, column in self.columns.items()}


def _track(documents: Iterable[str], description: str, progress: bool) -> Iterable[str]:
    if not progress:
        return documents
    from rich import get_console
    from rich.progress import track

    hidden = not get_console().is_terminal
    return track(documents, description=description, transient=True, disable=hidden)
