"""The folder of a run, which one process writes to at a time, and the loggers that write there."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from tauflow.cli.configs import HERE
from tauflow.cli.ending import callback_of, say
from tauflow.cli.resume import Resumed
from tauflow.errors import CheckpointError, SettingsError
from tauflow.evaluation.callback import fast_dev_run
from tauflow.files import held, refuse_unwritable
from tauflow.imports import import_object
from tauflow.train.callbacks import Checkpoints

IN_USE = "wait for it to end, or begin another run without --ckpt_path"
CHOOSE = "choose another folder with --trainer.default_root_dir"
LISTED = "metrics{}.csv"  # of CSVLogger


@contextmanager
def run_folder(trainer: Trainer, chosen: Any, root: Path, resumed: Resumed | None) -> Iterator[None]:
    """Hold the folder of a run while it trains, give the trainer its loggers, and say where it is.

    `chosen` is the setting of the loggers. Only the first process does so: the others write nothing, and are
    told the folder by it.
    """
    settings = [] if chosen in (None, True) else chosen if isinstance(chosen, list) else [chosen]
    continued = resumed if resumed is not None and resumed.in_place else None
    with ExitStack() as stack:
        if fast_dev_run(trainer):
            pass  # a trial of a few batches, which leaves no files
        elif not trainer.is_global_zero:
            trainer.loggers = loggers_of(settings, root / "version", None)
        elif settings and vars(settings[0].init_args).get("save_dir") != HERE:  # the user says where
            trainer.loggers = loggers_of(settings, root, None)
            check_local(trainer.log_dir, "The folder of a logger")
            stack.enter_context(_held(Path(trainer.log_dir or root)))
        else:
            folder = stack.enter_context(_held(continued.folder) if continued else _new(root))
            trainer.loggers = loggers_of(settings, folder, continued)
            checkpoints = callback_of(trainer, Checkpoints)
            checkpoints.folder = folder
            checkpoints.last_step = continued.step if continued else None
        if not fast_dev_run(trainer):
            say(f"run folder  {trainer.log_dir}")
            say(f"watch it    tensorboard --logdir {trainer.default_root_dir}")
        yield


def check_local(place: str | Path | None, name: str) -> None:
    """Raise for an address such as s3://bucket/runs, which would be taken for a local folder named s3:."""
    if "://" in str(place):
        raise SettingsError(
            f"{name} must be a local path, got {place}. Train in a local folder and copy it, or mount the "
            "bucket."
        )


@contextmanager
def _held(folder: Path) -> Iterator[Path]:
    refuse_unwritable(folder, CHOOSE)
    with held(folder, IN_USE):
        yield folder


@contextmanager
def _new(root: Path) -> Iterator[Path]:
    """Make and hold the folder of a new run; it vanishes if settings are refused before anything is saved."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    refuse_unwritable(root, CHOOSE)
    folder = next_version(root)
    try:
        with held(folder, IN_USE):
            yield folder
    except (SettingsError, CheckpointError):
        if not list(folder.glob("*.ckpt")):
            shutil.rmtree(folder)
            with suppress(OSError):  # of another run by now
                for made in missing:
                    made.rmdir()
        raise


def next_version(root: Path) -> Path:
    """Make the folder with the next number: runs that begin together get one each."""
    names = (re.fullmatch(r"version_(\d+)", path.name) for path in root.iterdir())
    for number in count(max((int(name[1]) for name in names if name), default=-1) + 1):
        folder = root / f"version_{number}"
        with suppress(FileExistsError):  # another run was faster
            folder.mkdir()
            return folder
    raise AssertionError("numbers do not end")


def loggers_of(settings: list[Any], folder: Path, resumed: Resumed | None) -> list[Logger]:
    """Return the loggers of a run, by default TensorBoard's; those without a place write to its folder."""
    place: dict[str, Any] = {"save_dir": str(folder.parent), "name": "", "version": folder.name}
    if resumed is not None:
        place["purge_step"] = resumed.step + 1  # what a killed run wrote after its checkpoint
    if not settings:
        return [TensorBoardLogger(**place, default_hp_metric=False)]
    made = []
    for setting in settings:
        arguments = vars(setting.init_args).copy()
        if arguments.get("save_dir") == HERE:
            arguments |= {name: value for name, value in place.items() if name in arguments}
        made.append(import_object(setting.class_path, Logger)(**arguments))
        if isinstance(made[-1], CSVLogger):
            _keep_lists(Path(made[-1].log_dir))
    return made


def _keep_lists(folder: Path) -> None:
    """Rename what an earlier part of the run has listed: CSVLogger would remove it."""
    old = folder / LISTED.format("")
    if old.exists():
        free = (folder / LISTED.format(f"_{number}") for number in count(1))
        old.rename(next(path for path in free if not path.exists()))
