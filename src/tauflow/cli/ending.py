"""How a training ended: what is safe, how to resume, and the exit code."""

import errno
import shlex
import threading
from typing import Any, TypeVar

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_only

from tauflow.errors import WriteError
from tauflow.evaluation.callback import SamplerEvaluation, fast_dev_run
from tauflow.evaluation.tables import print_results
from tauflow.train.callbacks import Checkpoints, GracefulStop

C = TypeVar("C", bound=Callback)
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}  # of a file that cannot be written


@rank_zero_only
def say(text: str) -> None:
    print(text, flush=True)


def callback_of(trainer: Trainer, kind: type[C]) -> C:
    """Return the callback of a class."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector of Lightning
    return next(callback for callback in callbacks if isinstance(callback, kind))


def safe(trainer: Trainer) -> str:
    """Return what of a run is saved, and how it continues."""
    files = callback_of(trainer, Checkpoints)
    if files.last_step is None:
        return "nothing was saved yet; start it again with the same command"
    folder = shlex.quote(str(files.folder))
    command = f"python train.py -c {folder}/config.yaml --ckpt_path {folder}/last.ckpt"
    return f"{files.last_path} of step {files.last_step} is safe; to resume: {command}"


def unwritten(error: BaseException | None) -> str:
    """Return what could not be written, if that is behind an error; else ""."""
    while error is not None:
        if isinstance(error, WriteError):
            return str(error)
        if isinstance(error, OSError) and error.errno in FULL:
            name = f" {error.filename}" if error.filename else " a file of the run"
            return f"cannot write{name} ({error.strerror})"
        error = error.__cause__ or error.__context__
    return ""


def quiet_threads() -> None:
    """Let a thread of a logger end without a report where a file cannot be written: the main one says so."""
    before = threading.excepthook
    threading.excepthook = lambda args: None if unwritten(args.exc_value) else before(args)


def conclude(trainer: Trainer) -> int:
    """Say where everything is; return the exit code, 0 if training reached its end."""
    files = callback_of(trainer, Checkpoints)
    stop = callback_of(trainer, GracefulStop)
    if trainer.is_global_zero:
        _show_evaluation(trainer)
    if fast_dev_run(trainer):
        return 0
    if files.best_step is not None:
        score = f"{files.monitor} {files.best_score:.5g} at step {files.best_step}"
        say(f"best        {files.best_path}  ({score})")
    if files.last_step is not None:
        say(f"last        {files.last_path}  (step {files.last_step})")
        say(f"watch       tensorboard --logdir {trainer.default_root_dir}")
    if stop.stopped_by or stop.asked or trainer.interrupted:
        say(f"stopped at step {trainer.global_step}; {safe(trainer)}")
        return 130
    return 0


def _show_evaluation(trainer: Trainer) -> None:
    evaluation = callback_of(trainer, SamplerEvaluation)
    if evaluation.results:
        print_results(evaluation.results)
        say(f"evaluation  {evaluation.seconds:.0f} s in total")
        if not fast_dev_run(trainer):
            say(f"samplers    {evaluation.folder}  (the tables above, samples, plot)")
