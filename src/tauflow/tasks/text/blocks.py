"""Blocks: documents as tokens, each ended by EOS, packed into rows of equal length.

The blocks of a corpus are cached as Arrow files in `<root>/<key>/`: train.arrow and val.arrow. The key is a
digest of the corpus, the tokenizer, the length and the split. A streamed data set has no cache: its blocks
are made while it's read.

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
from tauflow.errors import SettingsError
from tauflow.numerics import seed_of
from tauflow.tasks.caches import building, key_of, tracked
from tauflow.tasks.task import Share
from tauflow.tasks.text.corpus import Corpus, HubCorpus, is_validation
from tauflow.tasks.text.vocabulary import Vocabulary, character_tokenizer, train_bpe, vocabulary_from

if TYPE_CHECKING:
    import datasets

VERSION = 1  # of the cache's format
ENCODE_BATCH = 512  # documents encoded together


@dataclass(frozen=True)
class TextSplit:
    """How documents become blocks for training and validation."""

    length: int  # tokens of a block, D
    val_share: float  # of the documents, chosen by their text
    seed: int

    def validates(self, document: str) -> bool:
        return is_validation(document, self.val_share, self.seed)


def cached_tokenizer(root: str | Path, kind: str, size: int, corpus: Corpus, split: TextSplit) -> str:
    """Return the tokenizer.json of kind `bpe`, with `size` tokens, or `characters`; make it if needed."""
    key = key_of(corpus.digest(), kind, size, split.val_share, split.seed)
    path = Path(root) / f"tokenizer-{key}.json"
    if not path.exists():
        documents = list(corpus.documents())
        if kind == "characters":
            tokenizer = character_tokenizer(documents)
        else:
            training = [document for document in documents if not split.validates(document)]
            tokenizer = train_bpe(training or documents, size)
        files.write(path, tokenizer)
    return path.read_text(encoding="utf-8")


def pack(documents: Iterable[str], vocabulary: Vocabulary, length: int) -> Iterator[np.ndarray]:
    """Yield rows (N, D) of the documents' tokens as they get complete; the unfilled last one is dropped."""
    rest = np.empty(0, dtype=np.int32)
    documents = iter(documents)
    while batch := list(itertools.islice(documents, ENCODE_BATCH)):
        parts = [np.array([*ids, vocabulary.eos], dtype=np.int32) for ids in vocabulary.encode(batch)]
        rest = np.concatenate([rest, *parts])
        full = len(rest) // length * length
        if full:
            yield rest[:full].reshape(-1, length)
            rest = rest[full:]


def check_counts(train: int, val: int, split: TextSplit) -> None:
    if train and val:
        return
    documents = f"validation documents ({split.val_share:.1%} of all)" if train else "training documents"
    raise SettingsError(
        f"The {documents} must fill one block of {split.length} tokens. Add documents, lower --data.length, "
        "or change --data.val_share."
    )


def cached_blocks(
    root: str | Path, corpus: Corpus, vocabulary: Vocabulary, split: TextSplit, progress: bool = False
) -> tuple["datasets.Dataset", "datasets.Dataset"]:
    """Return the blocks of the training and validation documents, memory-mapped; build them if needed."""
    import datasets

    tokenizer = vocabulary.tokenizer.to_str()
    key = key_of(VERSION, corpus.digest(), tokenizer, split.length, split.val_share, split.seed)
    folder = Path(root) / key
    if not folder.exists():
        with building(folder, "the blocks of the corpus") as new:
            _build(new, corpus, vocabulary, split, progress)
    train, val = (
        datasets.Dataset.from_file(str(folder / f"{name}.arrow")).with_format("numpy")
        for name in ("train", "val")
    )
    return train, val


def _build(new: Path, corpus: Corpus, vocabulary: Vocabulary, split: TextSplit, progress: bool) -> None:
    from datasets import Features, Sequence, Value
    from datasets.arrow_writer import ArrowWriter

    features = Features({"tokens": Sequence(Value("int32"), length=split.length)})
    counts = {}
    for name in ("train", "val"):
        chosen = (text for text in corpus.documents() if split.validates(text) == (name == "val"))
        counts[name] = 0
        with ArrowWriter(path=str(new / f"{name}.arrow"), features=features) as writer:
            for rows in pack(tracked(chosen, f"tokenizing {name}", progress), vocabulary, split.length):
                writer.write_batch({"tokens": list(rows)})
                counts[name] += len(rows)
            writer.finalize()
        with open(new / f"{name}.arrow", "rb") as file:
            os.fsync(file.fileno())
    check_counts(counts["train"], counts["val"], split)


class Streamed(IterableDataset):
    """Training batches of one rank, split over ranks and their loader processes by `datasets` itself.

    Batch k of a rank belongs to step k // accumulate; the loader takes batches from its processes in turn, so
    process w makes batches w, w + W, ... The stream continues from epoch to epoch. A resumed run starts it
    again in another order: a stream has no place to return to.
    """

    def __init__(
        self,
        corpus: HubCorpus,
        vocabulary: Vocabulary,
        split: TextSplit,
        share: Share,
        shuffle: int = 1000,
    ):
        self.corpus = corpus
        self.tokenizer_json = vocabulary.tokenizer.to_str()
        self.split = split
        self.share = dataclasses.replace(share, step=int)  # loader processes get a copy, without the trainer
        self.shuffle = shuffle
        self.first_step = share.step()
        self._done = 0  # batches of all epochs begun so far, from the start of training
        self._rows: Iterator[np.ndarray] | None = None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        epoch = self.share.epoch(self._done or self.first_step * self.share.accumulate)
        self._done = epoch.stop  # now: the trainer does not ask for what comes after the last batch
        if self._rows is None:
            self._rows = (row for number in itertools.count() for row in self.one_pass(number))
        for batch in epoch[number::count]:
            positions = self.share.positions(batch)
            rows = [next(self._rows) for _ in positions]
            yield {"tokens": torch.from_numpy(np.stack(rows)).long(), "position": torch.tensor(positions)}

    def __len__(self) -> int:
        return self.share.batches_per_epoch

    def one_pass(self, number: int = 0) -> Iterator[np.ndarray]:
        """Yield this process's blocks (D,) of pass `number`."""
        rows = None
        for rows in pack(self.documents(number), vocabulary_from(self.tokenizer_json), self.split.length):
            yield from rows
        if rows is None:
            raise SettingsError(
                f"Each process's part of {self.corpus.name} must fill one block. Lower --data.num_workers."
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


def first_validation_blocks(
    corpus: HubCorpus, vocabulary: Vocabulary, split: TextSplit, count: int
) -> np.ndarray:
    """Return at most `count` blocks (N, D) of validation documents from the start of a stream."""
    chosen = (text for text in corpus.documents() if split.validates(text))
    blocks = (row for rows in pack(chosen, vocabulary, split.length) for row in rows)
    found = list(itertools.islice(blocks, count))
    check_counts(1, len(found), split)
    return np.stack(found)
