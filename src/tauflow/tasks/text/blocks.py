"""Blocks: documents as tokens, each ended by EOS, packed into rows of equal length; cached as Arrow files.

A cache lies in `<root>/<key>/` with train.arrow and val.arrow; the key is a digest of the corpus, the
tokenizer, the length and the split.

Shapes: N blocks, D tokens of a block.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tauflow.errors import SettingsError, first_line
from tauflow.tasks.caches import building, key_of, tracked
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
    tokenizer = vocabulary.tokenizer.to_str()
    key = key_of(VERSION, corpus.digest(), tokenizer, split.length, split.val_share, split.seed)
    folder = Path(root) / key
    if not folder.exists():
        with building(folder, "the blocks of the corpus") as new:
            _build(new, corpus, vocabulary, split, progress)
    try:
        train, val = (_opened(folder / f"{name}.arrow") for name in ("train", "val"))
    except Exception as error:  # pyarrow raises many kinds
        raise SettingsError(
            f"the cached blocks in {folder} are damaged ({first_line(error)}); remove that folder: they are "
            "made again from the corpus"
        ) from None
    return train, val


def _opened(path: Path) -> "datasets.Dataset":
    import datasets

    return datasets.Dataset.from_file(str(path)).with_format("numpy")


def _features(length: int) -> "datasets.Features":
    from datasets import Features, Sequence, Value

    return Features({"tokens": Sequence(Value("int32"), length=length)})


def _build(new: Path, corpus: Corpus, vocabulary: Vocabulary, split: Split, progress: bool) -> None:
    from datasets.arrow_writer import ArrowWriter

    counts = {}
    for name in ("train", "val"):
        chosen = (text for text in corpus.documents() if split.validates(text) == (name == "val"))
        counts[name] = 0
        with ArrowWriter(path=str(new / f"{name}.arrow"), features=_features(split.length)) as writer:
            for rows in pack(tracked(chosen, f"tokenising {name}", progress), vocabulary, split.length):
                writer.write_batch({"tokens": list(rows)})
                counts[name] += len(rows)
            writer.finalize()
        with open(new / f"{name}.arrow", "rb") as file:
            os.fsync(file.fileno())
    refuse_small(counts["train"], counts["val"], split)


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
