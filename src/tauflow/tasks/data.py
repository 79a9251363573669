"""TaskData: the Lightning data module around a task, with positions for exact resume.

A training batch is {"tokens": (b, D), "condition"?: (b, C), "position": (b,)}; a validation batch has "index"
instead.
"""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Sampler

from tauflow.errors import SettingsError
from tauflow.tasks.task import Item, Share, Task, items_of

# stands for the trainer where there is none, to look at batches
ALONE = SimpleNamespace(world_size=1, accumulate_grad_batches=1, global_rank=0, global_step=0)


class TaskData(LightningDataModule):
    """Loaders of a task's items; the global batch of a step is the same however it is split."""

    def __init__(self, task: Task):
        super().__init__()
        self.task = task

    def setup(self, stage: str | None = None) -> None:
        self.task.setup(stage)
        if stage != "fit" or self.trainer is None:
            return
        folder = self.trainer.log_dir  # all ranks ask for it together
        if folder:
            self.task.folder = Path(folder)
            if self.trainer.is_global_zero:
                self.task.begin_run(self.task.folder)

    def train_dataloader(self) -> DataLoader:
        share = self._share()
        stream = self.task.stream(share)
        if stream is not None:
            return self._loader(stream, None)
        return self._loader(Numbered(self.task.train_data, "position"), GlobalBatches(share))

    def val_dataloader(self) -> DataLoader:
        trainer = self.trainer or ALONE
        mine = range(trainer.global_rank, len(self.task.val_data), trainer.world_size)
        size = max(1, self.task.batch_size // (trainer.world_size * trainer.accumulate_grad_batches))
        batches = [list(mine[i : i + size]) for i in range(0, len(mine), size)]
        return self._loader(Numbered(self.task.val_data, "index"), batches)

    def _share(self) -> Share:
        trainer = self.trainer or ALONE
        task = self.task
        parts = trainer.world_size * trainer.accumulate_grad_batches
        if task.batch_size % parts or not 1 <= task.batch_size <= task.epoch_items:
            raise SettingsError(
                f"--data.batch_size must be a multiple of {parts} ({trainer.world_size} devices x "
                f"{trainer.accumulate_grad_batches} accumulated batches) up to the {task.epoch_items} items "
                f"of an epoch, got {task.batch_size}. Change it, or --data.epoch_items."
            )
        return Share(
            batch_size=task.batch_size,
            steps_per_epoch=task.epoch_items // task.batch_size,
            accumulate=trainer.accumulate_grad_batches,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            step=lambda: trainer.global_step,
        )

    def _loader(self, data: Dataset, batches: Any) -> DataLoader:
        """Return a loader of batches of items by position, or of what an iterable makes batches of itself."""
        return ResumableLoader(
            data,
            **({"batch_sampler": batches} if batches is not None else {"batch_size": None}),
            num_workers=self.task.num_workers,
            persistent_workers=self.task.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # else every pass over the data would move the global one
            worker_init_fn=_leave_stopping_to_the_trainer,
        )


class Numbered(Dataset[Item]):
    """The items of a data set, each with its number under a name."""

    def __init__(self, data: Any, name: str):
        self.data = data
        self.name = name

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        if max(numbers) >= len(self.data):
            raise SettingsError(
                f"training asks for item {max(numbers)}, the data has {len(self.data)}; make train_data "
                "endless, for example with tauflow.tasks.Shuffled(data, seed)"
            )
        return [
            {name: torch.as_tensor(value) for name, value in (item | {self.name: number}).items()}
            for item, number in zip(items_of(self.data, numbers), numbers, strict=True)
        ]


class GlobalBatches(Sampler[list[int]]):
    """Batches of one rank, cut from a global order of positions: no split changes the items of a step.

    An epoch begins at the step that training has reached, so a resumed run continues with the next item.
    """

    def __init__(self, share: Share):
        self.share = share

    def __len__(self) -> int:
        return self.share.batches_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.share.epoch(self.share.step() * self.share.accumulate):
            yield self.share.positions(batch)


class ResumableLoader(DataLoader):
    """Tells Lightning that a run may stop within an epoch: its place follows from the trainer's step."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _leave_stopping_to_the_trainer(worker: int) -> None:
    """Ignore Ctrl-C in a loader's process: the trainer still needs it to end its step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
