"""Blocks: documents as tokens, each ended by EOS, packed into rows of equal length; cached as memory-mapped Arrow, or streamed.

A cache lies in `<root>/<key>/` with train.arrow and val.arrow; the key is a digest of the corpus, the tokenizer, the length and the split.
It is built in a folder of its own and renamed when it is complete: an interrupted build leaves nothing that is taken for a cache, and of
two builders at once the second finds the first one's and throws its own away.
"""

import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tauflow.errors import SettingsError
from tauflow.seeds import seed_of
from tauflow.tasks.corpus import Corpus, Hub, in_validation
from tauflow.tasks.vocabulary import Vocabulary

if TYPE_CHECKING:
    import datasets

VERSION = 1  # of the cache's format
ENCODED_TOGETHER = 512  # documents


def pack(documents: Iterable[str], vocabulary: Vocabulary, length: int) -> Iterator[np.ndarray]:
    """Rows (N, D) of the documents' tokens, as they get complete; what does not fill the last row is left."""
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
    root: str | Path, corpus: Corpus, vocabulary: Vocabulary, length: int, val_share: float, seed: int, progress: bool = False
) -> tuple["datasets.Dataset", "datasets.Dataset"]:
    """The blocks of the training and of the validation documents, memory-mapped; built if there is no cache for exactly these."""
    import datasets

    facts = (VERSION, corpus.digest(), vocabulary.tokenizer.to_str(), length, val_share, seed)
    folder = Path(root) / hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    if not folder.is_dir():
        _build(folder, corpus, vocabulary, length, val_share, seed, progress)
    train, val = (datasets.Dataset.from_file(str(folder / f"{split}.arrow")).with_format("numpy") for split in ("train", "val"))
    return train, val


def _build(folder: Path, corpus: Corpus, vocabulary: Vocabulary, length: int, val_share: float, seed: int, progress: bool) -> None:
    from datasets import Features, Sequence, Value
    from datasets.arrow_writer import ArrowWriter

    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building."))
    features = Features({"tokens": Sequence(Value("int32"), length=length)})
    counts = {}
    try:
        for split in ("train", "val"):
            chosen = (text for text in corpus.documents() if in_validation(text, val_share, seed) == (split == "val"))
            counts[split] = 0
            with ArrowWriter(path=str(new / f"{split}.arrow"), features=features) as writer:
                for rows in pack(_track(chosen, f"tokenising {split}", progress), vocabulary, length):
                    writer.write_batch({"tokens": list(rows)})
                    counts[split] += len(rows)
                writer.finalize()
        refuse_small(counts["train"], counts["val"], length, val_share)
        try:
            os.rename(new, folder)
        except OSError:
            if not folder.is_dir():
                raise  # else another process was faster
    finally:
        shutil.rmtree(new, ignore_errors=True)


def refuse_small(train: int, val: int, length: int, val_share: float) -> None:
    if not train:
        raise SettingsError(f"the corpus does not fill one block of {length} tokens; give more text, or lower --data.length")
    if not val:
        raise SettingsError(
            f"the validation documents ({val_share:.1%} of all, chosen by their text) do not fill one block of {length} tokens; raise "
            "--data.val_share, lower --data.length, or give more documents"
        )


class Shuffled(Dataset):
    """Training items by position: a permutation of the blocks for each pass, a pure function of the seed and the pass."""

    def __init__(self, blocks: "datasets.Dataset", seed: int):
        self.blocks, self.seed = blocks, seed
        self._pass, self._order = -1, np.empty(0)

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: list[int]) -> list[dict[str, Tensor]]:
        rows = self.blocks[[self._row(int(position)) for position in positions]]["tokens"]
        return [
            {"tokens": torch.from_numpy(np.asarray(row)).long(), "position": torch.tensor(p)}
            for row, p in zip(rows, positions, strict=True)
        ]

    def _row(self, position: int) -> int:
        number, place = divmod(position, len(self.blocks))
        if number != self._pass:
            generator = np.random.Generator(np.random.Philox(seed_of("text order", self.seed, number)))
            self._pass, self._order = number, generator.permutation(len(self.blocks))
        return int(self._order[place])


class Fixed(Dataset):
    """Validation items: the first blocks of a permutation that the seed gives, or of the order given where there is no seed.

    A corpus may be sorted, by years for instance: blocks from its beginning alone would not stand for it.
    """

    def __init__(self, blocks, count: int, seed: int | None = None):
        self.blocks, order = blocks, np.arange(len(blocks))
        if seed is not None:
            np.random.Generator(np.random.Philox(seed_of("validation order", seed))).shuffle(order)
        self.rows = order[:count]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: list[int]) -> list[dict[str, Tensor]]:
        rows = self.blocks[self.rows[items].tolist()]["tokens"]
        return [
            {"tokens": torch.from_numpy(np.asarray(row)).long(), "index": torch.tensor(int(i))} for row, i in zip(rows, items, strict=True)
        ]

    def tokens(self) -> np.ndarray:
        """All items (N, D)."""
        return np.asarray(self.blocks[self.rows.tolist()]["tokens"])


class Streamed(IterableDataset):
    """Training batches of one rank from a streamed data set, which is split over ranks and their loader processes by `datasets` itself.

    Batch k of a rank belongs to step k // accumulate; the loader takes batches from its processes in turn, so process w makes batches w,
    w + W, ... The stream goes on from epoch to epoch. A resumed run starts it again in another order: streams have no place to return to.
    """

    def __init__(
        self,
        corpus: Hub,
        vocabulary: Vocabulary,
        length: int,
        val_share: float,
        seed: int,
        batch_size: int,
        steps_per_epoch: int,
        accumulate: int,
        rank: int,
        world_size: int,
        step,
        shuffle: int = 1000,
    ):
        self.corpus, self.tokenizer_json, self.length = corpus, vocabulary.tokenizer.to_str(), length
        self.val_share, self.seed, self.shuffle = val_share, seed, shuffle
        self.batch_size, self.steps_per_epoch, self.accumulate = batch_size, steps_per_epoch, accumulate
        self.rank, self.world_size = rank, world_size
        self.first_step = step()
        self._done = 0  # batches of all epochs begun so far, from the beginning of training
        self._rows: Iterator[np.ndarray] | None = None

    def __iter__(self):
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        part, epoch = self.batch_size // self.accumulate, len(self)
        first = self._done or self.first_step * self.accumulate
        self._done = last = (first // epoch + 1) * epoch  # now: the trainer does not ask for what comes after the last batch
        for k in range(first + number, last, count):
            begin = k * part
            positions = list(range(begin + self.rank, begin + part, self.world_size))
            rows = [next(self._endless()) for _ in positions]
            yield {"tokens": torch.from_numpy(np.stack(rows)).long(), "position": torch.tensor(positions)}

    def __len__(self) -> int:
        return self.steps_per_epoch * self.accumulate

    def _endless(self) -> Iterator[np.ndarray]:
        if self._rows is None:
            self._rows = self._passes()
        return self._rows

    def _passes(self) -> Iterator[np.ndarray]:
        for number in itertools.count():
            yield from self.one_pass(number)

    def one_pass(self, number: int = 0) -> Iterator[np.ndarray]:
        """This process's blocks (D,) of pass `number`."""
        from tauflow.tasks.vocabulary import vocabulary_from

        rows = None
        for rows in pack(self.documents(number), vocabulary_from(self.tokenizer_json), self.length):
            yield from rows
        if rows is None:
            raise SettingsError(f"this process's part of {self.corpus.name} does not fill one block; use fewer --data.num_workers")

    def documents(self, number: int) -> Iterator[str]:
        """This process's share of pass `number`, without validation documents."""
        from datasets.distributed import split_dataset_by_node

        stream = self.corpus.load()
        if self.shuffle:
            stream = stream.shuffle(seed=seed_of("stream", self.seed, self.first_step, number) % 2**32, buffer_size=self.shuffle)
        if self.world_size > 1:
            stream = split_dataset_by_node(stream, rank=self.rank, world_size=self.world_size)
        for row in stream.with_format("torch"):
            text = row[self.corpus.column]
            if text and text.strip() and not in_validation(text, self.val_share, self.seed):
                yield text


def first_validation_blocks(
    corpus: Hub, vocabulary: Vocabulary, length: int, val_share: float, seed: int, count: int
) -> dict[str, np.ndarray]:
    """As many blocks of validation documents as asked for, from the beginning of a stream."""
    chosen = (text for text in corpus.documents() if in_validation(text, val_share, seed))
    rows: list[np.ndarray] = []
    for part in pack(chosen, vocabulary, length):
        rows.extend(part)
        if len(rows) >= count:
            break
    refuse_small(1, len(rows), length, val_share)
    return {"tokens": np.stack(rows[:count])}


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
    from tqdm.auto import tqdm

    return tqdm(documents, desc=description, unit=" documents", leave=False)
