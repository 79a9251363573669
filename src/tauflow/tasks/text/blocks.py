"""Blocks: documents as tokens, each ended by EOS, packed into rows of equal length; cached as Arrow files.

A cache lies in `<root>/<key>/` with train.arrow and val.arrow; the key is a digest of the corpus, the
tokenizer, the length and the split.

Shapes: N blocks, D tokens of a block.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from tauflow import files
from tauflow.errors import SettingsError, first_line
from tauflow.numerics import seed_of
from tauflow.tasks.caches import building, key_of, tracked
from tauflow.tasks.task import Share
from tauflow.tasks.text.corpus import Corpus, Hub, in_validation
from tauflow.tasks.text.vocabulary import Vocabulary, byte_level_bpe, characters, vocabulary_from

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


# Tokenizers that are made from a corpus, each cached as a tokenizer.json named by what it was made from.


def cached_tokenizer(root: str | Path, kind: str, size: int, corpus: Corpus, split: Split) -> str:
    """Return the tokenizer.json of kind `bpe`, with `size` tokens, or `characters`; make it if needed."""
    key = key_of(corpus.digest(), kind, size, split.val_share, split.seed)
    path = Path(root) / f"tokenizer-{key}.json"
    if not path.exists():
        files.write(path, _made(kind, size, corpus, split))
    return path.read_text(encoding="utf-8")


def _made(kind: str, size: int, corpus: Corpus, split: Split) -> str:
    documents = list(corpus.documents())
    if not documents:
        raise SettingsError("the corpus is empty: there is no document with any text in it")
    if kind == "characters":
        return characters(documents)
    training = [document for document in documents if not split.validates(document)]
    return byte_level_bpe(training or documents, size)


# Streams: training batches and validation blocks of a data set that is not downloaded.
#
# Shapes: N blocks, D tokens.


class Streamed(IterableDataset):
    """Training batches of one rank, split over ranks and their loader processes by `datasets` itself.

    Batch k of a rank belongs to step k // accumulate; the loader takes batches from its processes in turn, so
    process w makes batches w, w + W, ... The stream continues from epoch to epoch. A resumed run starts it
    again in another order: streams have no place to return to.
    """

    def __init__(self, corpus: Hub, vocabulary: Vocabulary, split: Split, share: Share, shuffle: int = 1000):
        self.corpus = corpus
        self.tokenizer_json = vocabulary.tokenizer.to_str()
        self.split = split
        self.share = dataclasses.replace(share, step=int)  # loader processes get a copy, without the trainer
        self.shuffle = shuffle
        self.first_step = share.step()
        self._done = 0  # batches of all epochs begun so far, from the beginning of training
        self._rows: Iterator[np.ndarray] | None = None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        epoch = self.share.epoch(self._done or self.first_step * self.share.accumulate)
        self._done = epoch.stop  # now: the trainer does not ask for what comes after the last batch
        for batch in epoch[number::count]:
            positions = self.share.positions(batch)
            rows = [next(self._endless()) for _ in positions]
            yield {"tokens": torch.from_numpy(np.stack(rows)).long(), "position": torch.tensor(positions)}

    def __len__(self) -> int:
        return self.share.batches_per_epoch

    def _endless(self) -> Iterator[np.ndarray]:
        if self._rows is None:
            self._rows = (row for number in itertools.count() for row in self.one_pass(number))
        return self._rows

    def one_pass(self, number: int = 0) -> Iterator[np.ndarray]:
        """Yield this process's blocks (D,) of pass `number`."""
        rows = None
        for rows in pack(self.documents(number), vocabulary_from(self.tokenizer_json), self.split.length):
            yield from rows
        if rows is None:
            raise SettingsError(
                f"this process's part of {self.corpus.name} does not fill one block; use fewer "
                "--data.num_workers"
            )

    def documents(self, number: int) -> Iterator[str]:
        """Yield this process's share of pass `number`, without validation documents."""
        from datasets.distributed import split_dataset_by_node

        stream = self.corpus.load()
        if self.shuffle:
            seed = seed_of("stream", self.split.seed, self.first_step, number) % 2**32
            stream = stream.shuffle(seed=seed, buffer_size=self.shuffle)
        if self.share.world_size > 1:
            stream = split_dataset_by_node(stream, rank=self.share.rank, world_size=self.share.world_size)
        for text in self.corpus.texts(stream.with_format("torch")):
            if not self.split.validates(text):
                yield text


def first_training_blocks(corpus: Hub, vocabulary: Vocabulary, split: Split, count: int) -> np.ndarray:
    """Return at most `count` blocks (N, D) from the beginning of a stream, without validation documents."""
    stream = Streamed(corpus, vocabulary, split, Share(batch_size=1, steps_per_epoch=1), shuffle=0)
    return np.stack(list(itertools.islice(stream.one_pass(), count)))


def first_validation_blocks(
    corpus: Hub, vocabulary: Vocabulary, split: Split, count: int
) -> dict[str, np.ndarray]:
    """Return at most `count` blocks of validation documents from the beginning of a stream."""
    chosen = (text for text in corpus.documents() if split.validates(text))
    rows: list[np.ndarray] = []
    for part in pack(chosen, vocabulary, split.length):
        rows.extend(part)
        if len(rows) >= count:
            break
    refuse_small(1, len(rows), split)
    return {"tokens": np.stack(rows[:count])}
