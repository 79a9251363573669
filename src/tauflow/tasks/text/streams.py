"""Streams: training batches and validation blocks of a data set that is not downloaded.

Shapes: N blocks, D tokens.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from tauflow.errors import SettingsError
from tauflow.seeds import seed_of
from tauflow.tasks.base import Share
from tauflow.tasks.text.blocks import Split, pack, refuse_small
from tauflow.tasks.text.corpus import Hub
from tauflow.tasks.text.vocabulary import Vocabulary, vocabulary_from


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
