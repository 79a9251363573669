"""What happens around training steps: checkpoints, stopping on request, throughput, the progress bar."""

import math
import signal
import sys
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

    Both are written after every validation, `last.ckpt` also at the end. A subclass of Lightning's
    `ModelCheckpoint` would inherit only its comparison of scores, and replace the rest:

    - It doesn't save at the end of training: 20 steps, validated every 8, would leave `last.ckpt` at step 16.
    - It saves a step once. But only after the validation, or at the end, does the state say that the
      validation, its evaluation, or the epoch is done, so a resumed run would repeat or skip it.
    - It saves `last.ckpt` after a validation only if `best.ckpt` changed.
    - It saves, and lets training stop, between the parts of an accumulated step.
    - It forgets the best score when the run's folder has moved or one of its settings has changed.

    Args:
        monitor: logged metric that decides which checkpoint is the best.
        mode: whether less or more of it is better.
        every_n_steps: also write `last.ckpt` every N optimizer steps; by default only at validations.
    """

    def __init__(
        self,
        monitor: str = "val/bound",
        mode: Literal["min", "max"] = "min",
        every_n_steps: int | None = None,
    ):
        if every_n_steps is not None and every_n_steps < 1:
            raise SettingsError(
                f"--checkpoints.every_n_steps must be at least 1, got {every_n_steps}. Remove it to save at "
                "validations only."
            )
        self.monitor = monitor
        self.mode = mode
        self.every_n_steps = every_n_steps
        self.best_score: float | None = None
        self.best_step: int | None = None
        self.last_step: int | None = None  # of last.ckpt, None if there is none

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_step": self.best_step, "monitor": self.monitor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        score, step = state.get("best_score"), state.get("best_step")
        if state.get("monitor") == self.monitor and type(score) is float and type(step) is int:
            self.best_score = score
            self.best_step = step

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.folder = Path(trainer.log_dir or trainer.default_root_dir)

    @property
    def best_path(self) -> Path:
        return self.folder / "best.ckpt"

    @property
    def last_path(self) -> Path:
        return self.folder / "last.ckpt"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.last_path.exists():
            self.last_step = trainer.global_step  # resumed in its folder
        if not self.best_path.exists():  # resumed into another folder
            self.best_score = self.best_step = None
        self._stop_waits = False
        _check_validations_end_steps(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, DFMModule)
        if pl_module.is_inside_step:
            # Nothing can be resumed from here, so a stop (such as --trainer.max_time) waits.
            self._stop_waits |= trainer.should_stop
            trainer.should_stop = False
            return
        trainer.should_stop |= self._stop_waits
        step = trainer.global_step
        if not self.every_n_steps or step % self.every_n_steps or step == self.last_step:
            return
        # A validation or the end, which may follow, know more and save this step.
        ends = step >= trainer.estimated_stepping_batches or trainer.should_stop
        if not ends and not validation_follows(trainer, batch_idx):
            self.save_last(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        self._check_monitor(trainer, pl_module)
        if trainer.sanity_checking:
            return
        score = trainer.callback_metrics[self.monitor].item()
        sign = 1 if self.mode == "min" else -1
        if self.best_score is None or math.isnan(self.best_score) or sign * score < sign * self.best_score:
            self.best_score = score
            self.best_step = trainer.global_step
            self._save(trainer, self.best_path)
        self.save_last(trainer)

    def _check_monitor(self, trainer: Trainer, module: LightningModule) -> None:
        """Raise unless the monitor is logged. Before training, metrics of steps count as logged."""
        known = set(trainer.callback_metrics)
        if trainer.sanity_checking:
            known |= set(getattr(module, "step_metrics", ()))
        if self.monitor not in known:
            raise SettingsError(
                f"--checkpoints.monitor must be a logged metric, got {self.monitor!r}. Logged were: "
                f"{', '.join(sorted(known))}."
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save_last(trainer)  # even if the step is the same: only now the epoch counts as done

    def save_last(self, trainer: Trainer) -> None:
        """Write last.ckpt."""
        self._save(trainer, self.last_path)
        self.last_step = trainer.global_step

    def _save(self, trainer: Trainer, path: Path) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # Lightning sets it in a connector
            return
        for logger in trainer.loggers:
            logger.save()  # what was logged before the checkpoint is on disk before it
        trainer.save_checkpoint(path, weights_only=False)


def _check_validations_end_steps(trainer: Trainer) -> None:
    """Raise if a validation, which saves, would come between the parts of an optimizer step."""
    parts = trainer.accumulate_grad_batches
    batches = trainer.num_training_batches
    every = trainer.val_check_batch  # type: ignore[attr-defined]  # Lightning sets it in a connector
    if parts == 1 or not trainer.enable_validation or every in (batches, math.inf):
        return
    across_epochs = trainer.check_val_every_n_epoch is None and batches != math.inf
    if every is None or every % parts or (across_epochs and batches % parts):
        raise SettingsError(
            "Validations must come at the end of an optimizer step, because a run can't be resumed from the "
            "middle of one. Set --trainer.val_check_interval to a number of batches that is a multiple of "
            f"{parts} (--trainer.accumulate_grad_batches), got {trainer.val_check_interval}."
        )


def validation_follows(trainer: Trainer, batch_idx: int) -> bool:
    """Return whether the settings ask for a validation after this batch."""
    epochs = trainer.check_val_every_n_epoch
    if not trainer.enable_validation or (epochs and (trainer.current_epoch + 1) % epochs):
        return False
    every = trainer.val_check_batch  # type: ignore[attr-defined]  # Lightning sets it in a connector
    if every in (None, math.inf):  # validations by the clock, or data without a length
        return trainer.is_last_batch
    number = batch_idx if epochs else trainer.fit_loop.total_batch_idx
    return (number + 1) % every == 0


class GracefulStop(Callback):
    """Ends training after the current step on Ctrl-C or SIGTERM to any process of the run, and saves.

    A second signal ends it immediately, without saving.
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
            raise KeyboardInterrupt  # of SIGTERM too: Lightning then ends all processes of the run
        self.asked = signal.Signals(number).name
        print(
            f"\n{self.asked}: stopping after this step, then saving; once more to stop immediately",
            flush=True,
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, DFMModule)
        if pl_module.is_inside_step:
            return  # nothing can be resumed from here
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
    """Lightning's progress bar without the version number; it counts epochs if the end is given in steps."""

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
    """Records tokens per second of training steps over all devices, without data loading and validation."""

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
        due = every and not pl_module.is_inside_step and trainer.global_step % every == 0
        if due and torch.cuda.is_available():
            torch.cuda.synchronize()  # steps are queued ahead; wait for those that are timed
        self._seconds += time.perf_counter() - self._begin
        if due:
            pl_module.record(trainer.global_step, {"train/tokens_per_second": self._tokens / self._seconds})
            self._seconds = 0.0
            self._tokens = 0


class TrainingTime(Callback):
    """Counts the seconds of training, with validations and evaluations, over all parts of a resumed run."""

    def __init__(self) -> None:
        self._before = 0.0  # in parts of the run that ended
        self._begin: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (time.perf_counter() - self._begin if self._begin is not None else 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before = float(state["seconds"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = time.perf_counter()


class RunSummary(Callback):
    """Prints a summary when training starts: network, data, process, and length."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DFMModule)
        lines = self.lines(trainer, pl_module)  # on all ranks: the number of steps may need their data
        if trainer.is_global_zero:
            print("\n".join(lines), flush=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print that a run ends before its first validation, and what it therefore lacks."""
        every = trainer.val_check_batch  # type: ignore[attr-defined]  # Lightning sets it in a connector
        batches = trainer.estimated_stepping_batches * trainer.accumulate_grad_batches
        if trainer.is_global_zero and trainer.enable_validation and every and batches < every:
            steps = math.ceil(every / trainer.accumulate_grad_batches)
            print(
                f"note        the run ends before its first validation (step {steps}): no val/bound, no "
                "best.ckpt\n            validate more often with a lower --data.epoch_items",
                flush=True,
            )

    def lines(self, trainer: Trainer, module: DFMModule) -> list[str]:
        """Return the summary of a run."""
        parameters = in_words(sum(parameter.numel() for parameter in module.network.parameters()))
        data = ["a data loader", str(module.facts)] if module.task is None else module.task.summary()
        steps = trainer.estimated_stepping_batches
        training = "until it is stopped" if steps == math.inf else f"{steps:.0f} steps"
        if module.task is not None:
            training += f" x {module.task.batch_size} items"
            items = module.task.train_items
            if items and steps != math.inf:
                training += f" = {steps * module.task.batch_size / items:.3g} passes over the training data"
        return [
            f"network     {type(module.network).__name__}, {parameters} parameters, plus an averaged copy",
            f"data        {data[0]}",
            *(f"            {line}" for line in data[1:]),
            f"process     {module.process.name} source, {module.schedule.name} schedule",
            f"training    {training}, on {trainer.strategy.root_device.type} x {trainer.world_size}",
        ]


class LogLines(Callback):
    """Prints a line at every validation if the output isn't a terminal, such as the log of a cluster.

    Args:
        always: also print it in a terminal, for instance without a progress bar.
    """

    def __init__(self, always: bool = False):
        self.always = always
        self._begin = 0.0
        self._first = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = time.perf_counter()
        self._first = trainer.global_step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        silent = trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_global_zero
        if silent or (sys.stdout.isatty() and not self.always):
            return
        print(self.line(trainer, time.perf_counter() - self._begin), flush=True)

    def line(self, trainer: Trainer, seconds: float) -> str:
        """Return where training is after so many seconds: step, loss, bound, speed, time left."""
        step = trainer.global_step
        total = trainer.estimated_stepping_batches
        parts = [f"step {step}" + (f" of {total:.0f}" if total != math.inf else "")]
        metrics = trainer.callback_metrics
        parts += [
            f"{name} {metrics[name].item():.4f}" for name in ("train/loss", "val/bound") if name in metrics
        ]
        done = step - self._first
        if done and seconds > 0:
            parts.append(f"{done / seconds:.3g} steps/s")
            if total != math.inf:
                parts.append(f"{duration((total - step) * seconds / done)} left")
        return "  ".join(parts)


def in_words(number: int) -> str:
    """Return a large number as 1.23 M or the like."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)


def duration(seconds: float) -> str:
    """Return a time as 2 h 05 min, 3 min 20 s or 12 s."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"
