"""Arguments of train.py before the parser sees them: readable files of this version, loggers with a place."""

import difflib
import errno
import inspect
import json
import logging
import math
import re
import shlex
import shutil
import sys
import threading
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import yaml
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter, Namespace
from lightning.pytorch import Callback, LightningModule, Trainer, loggers
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from tauflow import files
from tauflow.distributed import is_lost_rank
from tauflow.errors import CheckpointError, SettingsError, TauflowError, WriteError, first_line
from tauflow.evaluation.callback import SamplerEvaluation, fast_dev_run, owes_evaluation
from tauflow.evaluation.evaluate import SamplerGrid
from tauflow.evaluation.tables import print_results
from tauflow.files import check_writable, lock_folder
from tauflow.imports import import_object
from tauflow.networks import NetworkConfig
from tauflow.process import Schedule
from tauflow.tasks import Task
from tauflow.tasks.data import TaskData
from tauflow.train.callbacks import Checkpoints, GracefulStop, LogLines, Progress, RunSummary, Throughput
from tauflow.train.checkpoint import (
    CLASSES,
    OPTIMIZER,
    AtomicCheckpointIO,
    Trained,
    check_classes,
    read,
    update_names,
)
from tauflow.train.module import DFMModule
from tauflow.train.resume import Restored, check_resumable, check_settings, resume_error

GROUPS = ("trainer", "model", "evaluation", "checkpoints")
HERE = ""  # stands for the folder of the run, as the place of a logger


def prepared(arguments: list[str]) -> list[str]:
    """Return the arguments with configuration files of an earlier version converted in memory.

    A logger without a folder writes to the folder of the run.
    """
    arguments = [update_names(word) for word in arguments]
    found = list(arguments)
    for number, word in enumerate(arguments):
        flag, sign, value = word.partition("=")
        before = arguments[number - 1] if number else ""
        if flag in ("-c", "--config") and sign:
            found[number] = f"--config={_file(value)}"
        elif flag in ("--trainer.logger", "--trainer.logger+") and sign:
            found[number] = f"{flag}={_logger_text(value)}"
        elif before in ("-c", "--config"):
            found[number] = _file(word)
        elif before in ("--trainer.logger", "--trainer.logger+"):
            found[number] = _logger_text(word)
        elif re.match("-c[^=]", word):
            found[number] = f"--config={_file(word[2:])}"
    return found


def _file(name: str) -> str:
    """Return a configuration file's name, or its converted text."""
    path = Path(name)
    if not name.strip():
        raise SettingsError("--config is empty. Pass a YAML file, or remove it for the default one.")
    if "\n" in name or name.lstrip().startswith("{"):
        _parsed(name, "the configuration")
        return name
    if not path.is_file():
        raise SettingsError(
            f"Configuration file not found: {path}. Pass a YAML file, such as configs/countdown.yaml."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"{path} isn't a configuration: {error}") from None
    current = update_names(text)
    config = _parsed(current, str(path))
    if not isinstance(config, dict):
        raise SettingsError(f"{path} holds no settings; write lines such as `trainer: {{max_steps: 100}}`")
    for group in GROUPS:
        if not isinstance(config.get(group), dict | NoneType):
            raise SettingsError(f"{path}: {group} must hold settings, got {config[group]!r:.80}")
    changed = (current != text) | _upgraded(config) | _with_places(config)
    return yaml.safe_dump(config, sort_keys=False) if changed else name


def _parsed(text: str, name: str) -> Any:
    """Return what YAML says."""
    try:
        return yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{name} isn't valid YAML: {' '.join(str(error).split())[:300]}") from None


def _upgraded(config: dict[str, Any]) -> bool:
    """Set what has moved into a group since where it belongs now; return whether there was any."""
    model = config.get("model")
    if not isinstance(model, dict):
        return False
    moved = [name for name in OPTIMIZER if name in model]
    for name in moved:
        model.setdefault("optimizer", {})[name] = model.pop(name)
    return bool(moved)


def _with_places(config: dict[str, Any]) -> bool:
    """Give a place to the loggers of a configuration; return whether one had none."""
    trainer = config.get("trainer")
    if not isinstance(trainer, dict) or "logger" not in trainer:
        return False
    before = trainer["logger"]
    trainer["logger"] = _placed(before)
    return trainer["logger"] != before


def _logger_text(text: str) -> str:
    value = _parsed(text, "--trainer.logger")
    placed = _placed(value)
    return text if placed == value else json.dumps(placed)


def _placed(value: Any) -> Any:
    """Return the setting of one or several loggers; one that names no place gets that of the run."""
    if isinstance(value, list):
        return [_placed(each) for each in value]
    setting = {"class_path": value} if isinstance(value, str) else value
    if not isinstance(setting, dict) or not _needs_a_place(str(setting.get("class_path"))):
        return value
    arguments = setting.get("init_args") or {}
    return {**setting, "init_args": {"save_dir": HERE, **arguments}} if isinstance(arguments, dict) else value


def _needs_a_place(name: str) -> bool:
    try:
        cls = import_object(name if "." in name else f"{loggers.__name__}.{name}", Logger)
    except SettingsError:
        return False  # the parser says what is wrong with it
    place = inspect.signature(cls).parameters.get("save_dir")
    return place is not None and place.default is place.empty


# What was wrong with a setting, in a sentence and with the fix, instead of the parser's report.


class Choice(NamedTuple):
    """A setting that is a class: of what kind, and where those of the project are."""

    kind: type
    package: str
    plural: str


CHOICES = {
    "data": Choice(Task, "tauflow.tasks", "tasks"),
    "model.network": Choice(NetworkConfig, "tauflow.networks", "networks"),
    "model.schedule": Choice(Schedule, "tauflow.process.schedules", "schedules"),
}
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
MANY = 20  # settings that are too many to list
CLASS_PATH = r"class_path'?:? '([\w.]+)'|import path string: ([\w.]+)|Import path ([\w.]+) does"
PARSER_NOISE = (
    "Union subtypes|class types|Subtypes:|Errors:|Given value|Problem with given|Parser key|Expected a |"
    "- a (class|dict) "
)


def explained(parser: LightningArgumentParser, message: str) -> str:
    """Return what a message of the parser means to the user, in a few lines."""
    keys = list(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', message)))
    if not keys:
        needs_task = message.endswith("required: data")
        return message + (_known("data") if needs_task else _accepted(parser, message))
    group = re.search("Unable to load config '(.*)'", message)
    if group:
        return (
            f"--{keys[0]} must be a YAML file with its settings, got {group[1]}. Set one of them with "
            f"--{keys[0]}.NAME VALUE."
        )
    path = _class_path(message)
    if not path:
        return _about_value(".".join(keys), message) + _known(keys[0])
    return _about_class(keys[0], path, message) or _about_value(".".join(keys), message)


def _class_path(message: str) -> str:
    """Return the one class that a message is about; "" if there is none, or several."""
    found = {next(filter(None, groups)) for groups in re.findall(CLASS_PATH, message)}
    return found.pop() if len(found) == 1 else ""


def _about_class(key: str, path: str, message: str) -> str:
    """Return what is wrong with a class, or with a setting that it does not have; "" if with a value."""
    try:
        found = import_object(path, CHOICES[key].kind if key in CHOICES else object)
    except SettingsError as error:
        return f"--{key}: {error}{_known(key)}"
    option = re.search(r"Option '([\w.]+)' is not accepted", message)
    return _no_setting(found, option[1]) if option else ""


def _no_setting(cls: type, word: str) -> str:
    """Return that a class has no such setting, and those that it has."""
    names = sorted(ArgumentParser(exit_on_error=False).add_class_arguments(cls))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}? " if near else ". "
    return f"{cls.__name__} has no setting {word}{hint}{cls.__name__} takes: {', '.join(names) or 'none'}"


def _known(key: str) -> str:
    """Return a line with the project's own classes for a setting; "" if it is not one that is a class."""
    if key not in CHOICES:
        return ""
    kind, package, plural = CHOICES[key]
    names = ", ".join(f"{package}.{each.__name__}" for each in CLASSES if issubclass(each, kind))
    return f"\nKnown {plural}: {names}; or one of your own as module.Class, from the current folder"


def _about_value(key: str, message: str) -> str:
    """Return what a value must be and what it is."""
    found = re.search(r"Got value: (.*)|Given value: (.*)", message)
    got = next(filter(None, found.groups()), "nothing") if found else ""
    said = essence(message)
    if said:
        named = not found or got in said or got.startswith("Namespace")
        return f"--{key}: {said}" + ("" if named else f", got {got}")
    expected = re.findall(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[.*?\])", message)
    wanted = [_in_words(each) for each in dict.fromkeys(expected) if "NoneType" not in each]
    return f"--{key} must be {' or '.join(wanted)}, got {got}" if wanted and found else message


def essence(message: str) -> str:
    """Return what a report of the parser says after its first line, without what every report says."""
    lines = [line.strip(" -") for line in message.splitlines()[1:] if not re.search(PARSER_NOISE, line)]
    return "; ".join(dict.fromkeys(filter(None, lines)))


def _in_words(kind: str) -> str:
    if kind.startswith("typing.Literal"):
        return "one of " + kind.removeprefix("typing.Literal[").removesuffix("]").replace("'", "")
    name = kind.split("'")[1]
    return TYPES.get(name, f"a {name.rpartition('.')[2]}")


def _accepted(parser: LightningArgumentParser, message: str) -> str:
    """Return, for a message about an unknown flag or key, what was meant and what is accepted beside it."""
    unknown = re.search(r"arguments: --([\w.]+)|[Oo]ption '([\w.]+)'", message)
    if not unknown:
        return ""
    flags = [option for action in parser._actions for option in action.option_strings]
    settings = {flag.removeprefix("--") for flag in flags if re.fullmatch(r"--[\w.]+", flag)}
    settings.discard("print_shtab")
    group = re.search(r"Group '([\w.]+)'", message)
    word = unknown[1] or unknown[2]
    close = difflib.get_close_matches(f"{group[1]}.{word}" if group else word, settings, n=1, cutoff=0.5)
    above = close[0].rpartition(".")[0] if close else ""
    siblings = sorted(key.rpartition(".")[2] for key in settings if key.rpartition(".")[0] == above)
    siblings = [key for key in siblings if not re.match("help|config|print_", key)]
    hint = f"\nDid you mean {close[0]}?" if close else ""
    if not above:
        return f"{hint}\nSettings are grouped in: {', '.join(siblings)}"
    listed = f"{above} takes: {', '.join(siblings)}" if len(siblings) <= MANY else "--help lists all settings"
    return f"{hint} {listed}"


# Resuming a run: which checkpoint, and whether it may continue.


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that training continues from."""

    path: Path
    checkpoint: dict[str, Any]

    @property
    def in_place(self) -> bool:
        """Return whether the run continues in its folder, from its last checkpoint; others begin anew."""
        return self.path.name == "last.ckpt" and (self.path.parent / "config.yaml").exists()

    @property
    def folder(self) -> Path:
        """Return the folder of the run, with a name."""
        folder = self.path.parent
        return folder if folder.name not in ("", "..") else self.path.resolve().parent

    @property
    def step(self) -> int:
        return self.checkpoint["global_step"]

    def finished(self, trainer: Namespace) -> str:
        """Return which end that is asked for is reached already, and how to train further; "" if none."""
        epochs = self.checkpoint["epoch"]
        limits = (("step", self.step, trainer.max_steps), ("epoch", epochs, trainer.max_epochs))
        for name, reached, limit in limits:
            if limit is not None and 0 <= limit <= reached:
                return f"{name} {reached} of {limit}; raise --trainer.max_{name}s to train it further"
        return ""


def resolve(ckpt_path: str | None, root: Path) -> Path | None:
    """Return the checkpoint that is meant; `last` is that of the newest run."""
    if ckpt_path is None:
        return None
    if not ckpt_path.strip():
        raise CheckpointError("--ckpt_path is empty; name a checkpoint, or drop it to start a new run")
    if ckpt_path != "last":
        return Path(ckpt_path)
    found = sorted(root.glob("*/last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise CheckpointError(
            f"--ckpt_path last: there is no run to resume under {root}; drop it to start one"
        )
    return found[-1]


# How a training ended: what is safe, how to resume, and the exit code.


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


# The folder of a run, which one process writes to at a time, and the loggers that write there.


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
    check_writable(folder, CHOOSE)
    with lock_folder(folder, IN_USE):
        yield folder


@contextmanager
def _new(root: Path) -> Iterator[Path]:
    """Make and hold the folder of a new run; it vanishes if settings are refused before anything is saved."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    check_writable(root, CHOOSE)
    folder = next_version(root)
    try:
        with lock_folder(folder, IN_USE):
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


# `python train.py`, configured by YAML files and flags that are the typed constructors themselves.


DEFAULT_CONFIG = Path(__file__).parents[3] / "configs" / "countdown.yaml"

DESCRIPTION = f"""Train a discrete-flow-matching denoiser.

With no arguments, trains the countdown task of {DEFAULT_CONFIG.name} on whatever device there is. Give
configuration files with -c (later ones override earlier ones) and single settings as flags, for example

  python train.py -c configs/countdown.yaml -c configs/smoke.yaml
  python train.py -c configs/countdown_uniform.yaml --model.optimizer.learning_rate 3e-4
  python train.py --ckpt_path last      (continue the newest run of this configuration)
  python train.py --print_config        (show every setting and its value)
"""

NOISE = [  # warnings of Lightning that are no news here
    ".*does not have many workers.*",  # countdown items take microseconds
    ".*module.s. in eval mode at the start of training.*",  # the averaged network always is
    ".*LeafSpec.*deprecated.*",
    ".*recommended to use `self.log.*sync_dist=True.*",  # they are reduced before they are logged
    ".*smaller than the logging interval.*",  # epochs may be short, steps are logged by their own count
    ".*Experiment logs directory .* is not empty.*",  # what CSVLogger would remove has been renamed
]
NEWS = r".*(litlogger|litmodels|available: .*, us(ed|ing):|Loading `train_dataloader`)"  # of its log
AT_LEAST = {  # of Lightning's settings that it does not check itself
    **{"accumulate_grad_batches": 1, "check_val_every_n_epoch": 1, "log_every_n_steps": 0, "max_epochs": -1},
    **{"gradient_clip_val": 0, "max_steps": -1, "min_steps": 0, "min_epochs": 0, "num_nodes": 1},
    **{"num_sanity_val_steps": -1},
}
SEEDS = 2**32


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Shows the description as it is written, and settings as the parser does."""


class TauflowCLI(LightningCLI):
    """Task and module from typed configuration; runs in numbered folders, resumed where they are."""

    def __init__(self, args: list[str] | None = None):
        super().__init__(
            DFMModule,
            run=False,
            auto_configure_optimizers=False,
            args=args,
            seed_everything_default=0,
            parser_kwargs={
                "description": DESCRIPTION,
                "formatter_class": HelpFormatter,
                "exit_on_error": False,
                "allow_abbrev": False,
            },
            save_config_callback=SaveConfig,
            load_from_checkpoint_support=False,  # tauflow.load does, without calling what a file names
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add trainer, model and task; Lightning would take a data module of its own for the task."""
        parser.add_lightning_class_args(Trainer, "trainer")
        parser.add_lightning_class_args(DFMModule, "model")
        parser.add_subclass_arguments(Task, "data", required=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="Resume from this checkpoint, or from the newest: last.",
        )
        parser.add_lightning_class_args(SamplerEvaluation, "evaluation")
        parser.add_lightning_class_args(Checkpoints, "checkpoints")
        parser.link_arguments("data.facts", "model.facts", apply_on="instantiate")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        # the global batch is split by TaskData
        parser.set_defaults({"trainer.use_distributed_sampler": False})

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ValueError as error:  # of a class, within a report of the parser
            raise SettingsError(essence(str(error)) or str(error)) from error
        self._refuse_unevaluable(self.datamodule)
        self.datamodule = TaskData(self.datamodule)

    def _refuse_unevaluable(self, task: Task) -> None:
        """Refuse what cannot be evaluated before the run has a folder."""
        asked = callback_of(self.trainer, SamplerEvaluation)
        if asked.every_n_validations:
            trained = Trained(self.model.model(), task)
            SamplerGrid.of(trained, asked.samplers, asked.nfes, asked.guidance, asked.sampling)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            raise SettingsError(explained(parser, str(error))) from None
        except SyntaxError as error:
            raise SettingsError(f"cannot import a class of the configuration: SyntaxError: {error}") from None
        seed = self.config.get("seed_everything", 0)  # it is not there when only help is asked for
        if not isinstance(seed, bool) and not 0 <= seed < SEEDS:
            raise SettingsError(f"--seed_everything must be 0 to {SEEDS - 1}, got {seed}")

    def before_instantiate_classes(self) -> None:
        config = self.config.trainer
        if config.logger is False:
            raise SettingsError(
                "a run is recorded in a folder of its own: drop --trainer.logger for TensorBoard, or name "
                "another logger"
            )
        refuse_out_of_range(config)
        check_local(config.default_root_dir, "--trainer.default_root_dir")
        check_local(self.config.ckpt_path, "--ckpt_path")
        self.resumed: Resumed | None = None
        self.only_evaluates = False
        path = resolve(self.config.ckpt_path, self._root)
        if path is not None:
            self.resumed = Resumed(path, read(path))
            check_resumable(self.resumed.checkpoint, path)
            finished = self.resumed.finished(config)
            evaluates = bool(self.config.evaluation.every_n_validations)
            self.only_evaluates = bool(finished) and evaluates and owes_evaluation(self.resumed.checkpoint)
            if finished and not self.only_evaluates:
                raise CheckpointError(f"{path} is finished: {finished}")

    @property
    def _root(self) -> Path:
        return Path(self.config.trainer.default_root_dir or ".")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config.trainer
        kwargs["logger"] = False  # they are made when the folder of the run is
        plugins = config.plugins or []
        kwargs["plugins"] = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        # by default RunSummary says it in a few lines
        kwargs["enable_model_summary"] = bool(config.enable_model_summary)
        with_bar = config.enable_progress_bar is not False and sys.stdout.isatty()
        kwargs["enable_progress_bar"] = with_bar  # LogLines speaks where there is no terminal
        bar = [Progress()] if with_bar else []
        said: list[Callback] = [RunSummary(), LogLines(always=not with_bar)]
        if self.only_evaluates and self.resumed:
            kwargs |= {"max_steps": self.resumed.step + 1, "max_epochs": -1}
            said = [OnlyEvaluate()]
        restored = Restored(self.resumed.step if self.resumed else 0)
        if config.strategy == "ddp" or (config.strategy == "auto" and is_many(config.devices)):
            kwargs["strategy"] = DDPStrategy(timeout=timedelta(minutes=10))
        self.trainer_defaults = {"callbacks": [restored, GracefulStop(), Throughput(), *said, *bar]}
        try:
            return super().instantiate_trainer(**kwargs)
        except (TypeError, ValueError, MisconfigurationException) as error:
            raise SettingsError(f"the trainer cannot be made: {' '.join(str(error).split())}") from error

    def fit(self) -> None:
        """Train; a resumed run only if its checkpoint is trusted and has the same settings."""
        resumed = self.resumed
        if resumed is not None:
            task = self.datamodule.task
            allowed = (*CLASSES, *own_classes(self.model, task))
            check_classes(resumed.checkpoint, allowed, resumed.path)
            accumulate = self.trainer.accumulate_grad_batches
            check_settings(resumed.checkpoint, resumed.path, self.model, task, accumulate)
        path = resumed.path if resumed is not None else None
        with run_folder(self.trainer, self.config.trainer.logger, self._root, resumed):
            self.resumed = resumed = None  # the checkpoint is read again by the trainer
            if self.trainer.num_nodes > 1:
                cluster: Any = self.trainer.strategy.cluster_environment  # type: ignore[attr-defined]
                say(f"waiting for the other nodes at {cluster.main_address}:{cluster.main_port}")
            try:
                self.trainer.fit(self.model, self.datamodule, ckpt_path=path, weights_only=True)
            except (TauflowError, OSError):
                raise
            except Exception as error:
                if "val_check_interval" in str(error):  # Lightning's sentence about it
                    raise SettingsError(" ".join(str(error).split())) from error
                if path is None or callback_of(self.trainer, Restored).done or is_lost_rank(error):
                    raise
                raise resume_error(path, first_line(error)) from error


class OnlyEvaluate(Callback):
    """Ends a run that is trained to its end when the evaluation that it owes has been made."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        say("training is finished; the evaluation at its end was not, and is made now")
        trainer.should_stop = True


def refuse_out_of_range(trainer: Namespace) -> None:
    """Raise for settings of Lightning's trainer that would train nothing, or fail late."""
    for name, least in AT_LEAST.items():
        value = trainer.get(name)
        if value is not None and not least <= value < math.inf:
            raise SettingsError(f"--trainer.{name} must be at least {least}, got {value}")
    for name in ("max_steps", "max_epochs", "val_check_interval", "limit_train_batches", "default_root_dir"):
        if trainer.get(name) in (0, ""):
            raise SettingsError(f"--trainer.{name} must not be 0 or empty; drop it")


def is_many(devices: Any) -> bool:
    return str(devices).isdecimal() and int(devices) > 1


def own_classes(model: DFMModule, task: Task) -> list[type]:
    """Return the classes that the user's own configuration names, which is trusted."""
    parts = (task, model.schedule, model.source, model.network_config)
    return [type(part) for part in parts if not isinstance(part, str)]


class SaveConfig(SaveConfigCallback):
    """Writes config.yaml atomically, without where the run was resumed from: it repeats all of it."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        folder = trainer.log_dir  # asked on all ranks: it is broadcast
        if trainer.is_global_zero and folder:
            config = self.config.clone()
            config.ckpt_path = None
            files.write(Path(folder) / self.config_filename, self.parser.dump(config, skip_none=False))


def train() -> None:
    """Run train.py; exit with a message instead of a traceback where the user can fix the cause."""
    if not any(arg in ("-c", "--config") or arg.startswith(("-c=", "--config=")) for arg in sys.argv[1:]):
        sys.argv[1:1] = ["--config", str(DEFAULT_CONFIG)]
    sys.path.append(str(Path.cwd()))  # for classes of the user's own, named in the configuration
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: not re.match(NEWS, record.getMessage())
    )
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without ± shows ? instead
    try:
        sys.argv[1:] = prepared(sys.argv[1:])
        cli = TauflowCLI()
    except (TauflowError, MisconfigurationException, ValueError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot read or write a file: {error}")
    except KeyboardInterrupt:
        say("stopped before training began; nothing was saved")
        sys.exit(130)
    quiet_threads()
    try:
        cli.fit()
    except SystemExit:  # of Lightning, when it is asked twice to stop
        if not cli.trainer.interrupted:
            raise
    except Exception as error:
        lost = unwritten(error)
        if lost:
            sys.exit(f"error: {lost}; {safe(cli.trainer)}")
        if is_lost_rank(error):
            sys.exit(f"error: another process of the run died or doesn't answer; {safe(cli.trainer)}")
        if isinstance(error, TauflowError):
            sys.exit(f"error: {error}")
        raise
    # Lightning kills the first process, which may still be writing, when another one ends with an error code.
    sys.exit(conclude(cli.trainer) if cli.trainer.is_global_zero else 0)
