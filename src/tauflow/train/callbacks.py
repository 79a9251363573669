"""What happens around training steps: checkpoints, stopping on request, throughput, the progress bar."""

import math
import signal
import threading
import time
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, RichProgressBar

from tauflow.errors import SettingsError
from tauflow.train.module import DFMModule


class Checkpoints(Checkpoint):
    """Writes `best.ckpt` and `last.ckpt` into the run's folder.

    Both are written after every validation, `last.ckpt` also at the end.

    Args:
        monitor: logged metric that decides which checkpoint is the best.
        mode: whether less or more of it is better.
        every_n_steps: also write `last.ckpt` every so many optimizer steps; by default only at validations.
    """

    def __init__(
        self,
        monitor: str = "val/bound",
        mode: Literal["min", "max"] = "min",
        every_n_steps: int | None = None,
    ):
        self.monitor = monitor
        self.mode = mode
        self.every_n_steps = every_n_steps
        self.best_score: float | None = None
        self.best_step: int | None = None
        self._saved_step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_step": self.best_step, "monitor": self.monitor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["monitor"] == self.monitor:
            self.best_score = state["best_score"]
            self.best_step = state["best_step"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.folder = Path(trainer.log_dir or trainer.default_root_dir)

    @property
    def best_path(self) -> Path:
        return self.folder / "best.ckpt"

    @property
    def last_path(self) -> Path:
        return self.folder / "last.ckpt"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_step = trainer.global_step
        if not self.best_path.exists():  # resumed into another folder
            self.best_score = self.best_step = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        epochs = trainer.check_val_every_n_epoch or 1
        ends = trainer.is_last_batch and trainer.enable_validation
        validation_follows = ends and (trainer.current_epoch + 1) % epochs == 0
        if self.every_n_steps and trainer.global_step % self.every_n_steps == 0 and not validation_follows:
            self._save_last(trainer)  # else the validation writes it, knowing its result

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        if self.monitor not in trainer.callback_metrics:
            known = ", ".join(
                sorted(name for name in trainer.callback_metrics if not name.startswith("train/"))
            )
            raise SettingsError(
                f"--checkpoints.monitor {self.monitor!r} was not logged by this validation; logged were: "
                f"{known}"
            )
        if trainer.sanity_checking:
            return  # the check above has been made before any training
        score = trainer.callback_metrics[self.monitor].item()
        sign = 1 if self.mode == "min" else -1
        if self.best_score is None or math.isnan(self.best_score) or sign * score < sign * self.best_score:
            self.best_score = score
            self.best_step = trainer.global_step
            self._save(trainer, self.best_path)
        self._saved_step = -1  # last.ckpt must know about this validation, even if it was just written
        self._save_last(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_step = -1  # written again even if the step is the same: only now the epoch counts as done
        self._save_last(trainer)

    def _save_last(self, trainer: Trainer) -> None:
        if trainer.global_step != self._saved_step:
            self._saved_step = trainer.global_step
            self._save(trainer, self.last_path)

    def _save(self, trainer: Trainer, path: Path) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # Lightning sets it in a connector
            return
        for logger in trainer.loggers:
            logger.save()  # what was logged before the checkpoint is on disk before it
        trainer.save_checkpoint(path, weights_only=False)


class GracefulStop(Callback):
    """Ctrl-C or SIGTERM, to any process of the run, ends training after the current step; all is saved.

    A second one ends it at once.
    """

    def __init__(self) -> None:
        self.stopped_by: str | None = None
        self.asked: str | None = None  # the signal that came
        self._before: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
            }

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            self._restore()
            signal.raise_signal(number)
        else:
            self.asked = signal.Signals(number).name
            print(
                f"\n{self.asked}: stopping after this step, then saving; once more to stop at once",
                flush=True,
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # between the parts of a step nothing can be resumed
        if trainer.strategy.reduce_boolean_decision(self.asked is not None, all=False):
            self.stopped_by = self.asked or "another process"
            trainer.should_stop = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class Progress(RichProgressBar):
    """Lightning's bar, which counts epochs where the end is given in steps, without the version number."""

    def _get_train_description(self, current_epoch: int) -> str:
        trainer = self.trainer
        epochs = trainer.max_epochs
        if trainer.max_steps > 0:
            batches = trainer.max_steps * trainer.accumulate_grad_batches
            epochs = math.ceil(batches / trainer.num_training_batches)
        return f"Epoch {current_epoch + 1}" + (f" of {epochs}" if epochs and epochs > 0 else "")

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        return {name: value for name, value in metrics.items() if name != "v_num"}


class Throughput(Callback):
    """Records tokens per second of training steps over all devices.

    Loading data, validation and checkpoints are not counted.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seconds = 0.0
        self._tokens = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, DFMModule)
        self._tokens += batch["tokens"].numel() * trainer.world_size
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it in a connector
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        due = every and stepped and trainer.global_step % every == 0
        if due and torch.cuda.is_available():
            torch.cuda.synchronize()  # steps are queued ahead; wait for those that are timed
        self._seconds += time.perf_counter() - self._begin
        if due:
            pl_module.record(trainer.global_step, {"train/tokens_per_second": self._tokens / self._seconds})
            self._seconds = 0.0
            self._tokens = 0
