"""Task: the data module that also knows what a sample is and how good it is.

A training batch is {"tokens": (b, D), "position": (b,)}: position p counts items since the beginning of training over all devices, so
step p // B and row p % B of the global batch of B items follow from it alone. A validation batch has "index" instead.
"""

import signal
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError


class Task(LightningDataModule):
    """Abstract. A final task sets `train_data` and `val_data` in `setup` and says what its samples are.

    `train_data[p]` must be the item at position p of an endless order (a permutation a pass, or fresh items) as {"tokens", "position"};
    `val_data[i]` a fixed item {"tokens", "index"}. Both take lists of positions through `__getitems__`.
    """

    num_tokens: int  # V
    seq_len: int  # D
    train_data: Dataset
    val_data: Dataset
    headline: str  # the metric that comes first in tables, and that plots and the HParams tab show
    folder: Path | None = None  # of the run that it belongs to
    alone: str = ""  # why there is no real data to measure against, for a checkpoint that came without it

    def __init__(self, batch_size: int, epoch_items: int, num_workers: int):
        super().__init__()
        self.batch_size = batch_size
        self.epoch_items = epoch_items
        self.num_workers = num_workers

    @property
    def geometry(self) -> tuple[int, ...]:
        """Sizes of the grid that the D coordinates are, the last axis fastest: a sequence, or (height, width) for images."""
        return (self.seq_len,)

    @abstractmethod
    def sample_metrics(self) -> MetricCollection:
        """Fresh metrics, fed with generated tokens (B, D) only; each computes (value, standard error over samples).

        Make the collection with compute_groups=False: torchmetrics otherwise shares the state of metrics that agree on the first batch.
        """

    @abstractmethod
    def show(self, tokens: Tensor) -> str:
        """Generated tokens (B, D) as text for people, with an empty line between samples."""

    def prompt(self, text: str) -> tuple[Tensor, Tensor]:
        """What is known of a sample, as the user wrote it: tokens (D,), and true (D,) where they are known."""
        raise SettingsError(f"{type(self).__name__} has no prompts; leave --prompt out")

    def infill(self, text: str) -> tuple[Tensor, Tensor]:
        """The same for text with blanks."""
        raise SettingsError(f"{type(self).__name__} has no texts to fill in; leave --infill out")

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        """Measures perplexity under other judges than those of the configuration, on a device."""
        raise SettingsError(f"{type(self).__name__} has no perplexity; leave --judge out")

    def train_dataloader(self) -> DataLoader:
        trainer = self.trainer or Alone()
        self._check_split(trainer)
        batches = GlobalBatches(
            steps_per_epoch=self.epoch_items // self.batch_size,
            batch_size=self.batch_size,
            accumulate=trainer.accumulate_grad_batches,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            step=lambda: trainer.global_step,
        )
        return self._loader(self.train_data, batches)

    def _check_split(self, trainer) -> None:
        shares = trainer.world_size * trainer.accumulate_grad_batches
        if self.batch_size % shares:
            raise SettingsError(
                f"the global batch of {self.batch_size} items cannot be split over {trainer.world_size} devices x "
                f"{trainer.accumulate_grad_batches} accumulated batches; make --data.batch_size a multiple of {shares}"
            )
        if self.epoch_items < self.batch_size:
            raise SettingsError(
                f"an epoch of {self.epoch_items} items holds no batch of {self.batch_size}; lower --data.batch_size or get more data"
            )

    def val_dataloader(self) -> DataLoader:
        trainer = self.trainer or Alone()
        mine = range(trainer.global_rank, len(self.val_data), trainer.world_size)
        size = max(1, self.batch_size // (trainer.world_size * trainer.accumulate_grad_batches))
        return self._loader(self.val_data, [list(mine[i : i + size]) for i in range(0, len(mine), size)])

    def _loader(self, data: Dataset, batches: Sampler | None) -> DataLoader:
        """A loader of batches of items by position, or of what an iterable makes batches of itself."""
        return ResumableLoader(
            data,
            **({"batch_sampler": batches} if batches is not None else {"batch_size": None}),
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # else every pass over the data would move the global one
            worker_init_fn=_leave_stopping_to_the_trainer,
        )


def standard_error(values: Tensor) -> Tensor:
    """Of the mean of values (N,); one value says nothing about it."""
    return values.std() / len(values) ** 0.5 if len(values) > 1 else torch.tensor(torch.nan)


class SampleMean(Metric):
    """Mean over samples of a number that each of them has, with its standard error. A final metric says which number."""

    higher_is_better = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        for name in ("count", "total", "squares"):
            self.add_state(name, torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    @abstractmethod
    def of(self, tokens: Tensor) -> Tensor:
        """The numbers (B,) of the samples tokens (B, D)."""

    def update(self, tokens: Tensor) -> None:
        values = self.of(tokens).double()
        self.count += len(values)
        self.total += values.sum()
        self.squares += values.square().sum()

    def compute(self) -> tuple[Tensor, Tensor]:
        mean = self.total / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=0) * self.count / (self.count - 1)
        return mean, (variance / self.count).sqrt()


class UnigramTotalVariation(Metric):
    """Total variation between the tokens seen at all coordinates and a law (V,); masks and the like are foreign to it.

    The standard error is of first order: the distance is linear in the shares as long as none crosses the law.
    """

    higher_is_better = False

    def __init__(self, law: Tensor, **kwargs):
        super().__init__(**kwargs)
        self.law = law
        self.add_state("tokens", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.tokens.append(tokens)

    def compute(self) -> tuple[Tensor, Tensor]:
        tokens = (torch.cat(self.tokens) if isinstance(self.tokens, list) else self.tokens).cpu()  # (N, D)
        values = len(self.law)
        tokens = tokens.masked_fill((tokens < 0) | (tokens >= values), values)
        shares = torch.bincount(tokens.flatten(), minlength=values + 1) / tokens.numel()
        difference = shares - torch.cat([self.law.double().cpu(), torch.zeros(1)])
        slopes = (difference.sign() / 2)[tokens].mean(1)  # what a sample adds to the distance, (N,)
        return difference.abs().sum() / 2, standard_error(slopes)


class Alone:
    """Stands for the trainer where there is none, to look at batches."""

    world_size = accumulate_grad_batches = 1
    global_rank = global_step = 0


def _leave_stopping_to_the_trainer(worker: int) -> None:
    """Ctrl-C reaches the loader's processes too, but the trainer still needs them to end its step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


class GlobalBatches(Sampler):
    """Batches of one rank, cut from a global order of positions so that no split changes which items a step sees.

    Step n takes positions n B ... (n + 1) B - 1. Each rank takes every world_size-th of them and cuts its share into `accumulate` parts.
    An epoch begins at the step that training has reached, asked from the trainer, so a resumed run continues with the next item.
    """

    def __init__(self, steps_per_epoch: int, batch_size: int, accumulate: int, rank: int, world_size: int, step: Callable[[], int]):
        self.steps_per_epoch = steps_per_epoch
        self.batch_size = batch_size
        self.accumulate = accumulate
        self.rank = rank
        self.world_size = world_size
        self.step = step

    def __len__(self) -> int:
        return self.steps_per_epoch * self.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        first = self.step()
        last = (first // self.steps_per_epoch + 1) * self.steps_per_epoch
        part = self.batch_size // self.accumulate
        for begin in range(first * self.batch_size, last * self.batch_size, part):
            yield list(range(begin + self.rank, begin + part, self.world_size))


class ResumableLoader(DataLoader):
    """Tells Lightning that a run may stop in the middle of an epoch: the place to continue follows from the trainer's step."""

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass
