"""What a run says of itself: a summary at the beginning, a line at every validation."""

import math
import sys
import time

from lightning.pytorch import Callback, LightningModule, Trainer

from tauflow.train.module import DFMModule


class Summary(Callback):
    """Prints what is trained, on what and for how long, in a few lines."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DFMModule)
        lines = self.lines(trainer, pl_module)  # on all ranks: the number of steps may need their data
        if trainer.is_global_zero:
            print("\n".join(lines), flush=True)

    def lines(self, trainer: Trainer, module: DFMModule) -> list[str]:
        """Return the summary of a run."""
        parameters = in_words(sum(parameter.numel() for parameter in module.network.parameters()))
        name = type(module.task).__name__ if module.task is not None else "a data loader"
        source = module.process.name
        steps = trainer.estimated_stepping_batches
        batch = f" x {module.task.batch_size} items" if module.task is not None else ""
        training = "until it is stopped" if steps == math.inf else f"{steps:.0f} steps{batch}"
        return [
            f"network     {type(module.network).__name__}, {parameters} parameters, plus an averaged copy",
            f"data        {name}, {module.facts}",
            f"process     {source} source, {module.schedule.name} schedule",
            f"training    {training}, on {trainer.strategy.root_device.type} x {trainer.world_size}",
        ]


class LogLines(Callback):
    """Prints a line at every validation where the output is no terminal: a file or the log of a cluster.

    Args:
        always: print it in a terminal too, for instance where the progress bar is switched off.
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
