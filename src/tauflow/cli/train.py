"""`python train.py`: train from YAML files and flags, which are the typed constructors themselves.

This file reads from top to bottom: the words of the command line, the checkpoint to resume, the folder of the
run and its loggers, the Lightning CLI, and how training ends.
"""

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
import time
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import yaml
from jsonargparse import ArgumentError, DefaultHelpFormatter, Namespace
from lightning.pytorch import Callback, LightningModule, Trainer, loggers
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from tauflow import files
from tauflow.cli.configs import find_config
from tauflow.cli.messages import exit_with_message, explain_parser, keep_facts
from tauflow.cli.sample import BARELY_TRAINED, describe_barely_trained
from tauflow.distributed import is_lost_rank
from tauflow.errors import CheckpointError, SettingsError, TauflowError, WriteError, first_line, program
from tauflow.evaluation.callback import SamplerEvaluation, fast_dev_run, owes_evaluation
from tauflow.evaluation.evaluate import SamplerGrid, real_items
from tauflow.evaluation.images import print_first_samples
from tauflow.evaluation.tables import print_summary
from tauflow.files import check_writable, lock_folder
from tauflow.imports import import_object
from tauflow.networks import NetworkConfig
from tauflow.process import Schedule
from tauflow.samplers.learned import counts_path, read_counts, read_order, save_counts
from tauflow.tasks import Task
from tauflow.tasks.data import TaskData
from tauflow.train.boards import board_of, where_to_look
from tauflow.train.callbacks import (
    Checkpoints,
    GracefulStop,
    LogLines,
    Progress,
    RunSummary,
    Throughput,
    TrainingTime,
    duration,
)
from tauflow.train.checkpoint import (
    CLASSES,
    OPTIMIZER,
    AtomicCheckpointIO,
    Trained,
    check_classes,
    find_checkpoint,
    read,
    update_names,
)
from tauflow.train.counts import CONTEXTS, budget_of, learn_within
from tauflow.train.module import DFMModule, OptimizerConfig
from tauflow.train.resume import (
    LONG,
    Restored,
    check_resumable,
    check_settings,
    find_changes,
    find_run_config,
    resume_error,
    show,
)
from tauflow.train.start import Start

DEFAULT_CONFIG = "countdown"
IN_RUN_FOLDER = ""  # `save_dir` of a logger that writes to the folder of the run
CHOICES = {"data": Task, "model.network": NetworkConfig, "model.schedule": Schedule}
"""Settings that are a class."""
C = TypeVar("C", bound=Callback)


@rank_zero_only
def print_once(text: str) -> None:
    print(text, flush=True)


def find_callback(trainer: Trainer, kind: type[C]) -> C:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector of Lightning
    return next(callback for callback in callbacks if isinstance(callback, kind))


# Words of the command line


def convert_words(words: list[str]) -> list[str]:
    """Return the words that the parser gets.

    Names and settings of earlier versions, in flags and in configuration files, become those of this one.
    Loggers without a folder write to the folder of the run.
    """
    converters = {
        "-c": _convert_config,
        "--config": _convert_config,
        "--trainer.logger": _convert_logger,
        "--trainer.logger+": _convert_logger,
    }
    words = [update_names(word) for word in words]
    converted = []
    for before, word in zip(["", *words], words, strict=False):
        flag, equals, value = word.partition("=")
        if re.match("-c[^=]", word):  # -cFILE
            flag, equals, value = "--config", "=", word[2:]
        if equals and flag in converters:
            converted.append(f"{flag}={converters[flag](value)}")
        elif before in converters:
            converted.append(converters[before](word))
        else:
            converted.append(word)
    return converted


def _convert_config(name: str) -> str:
    """Return the path of a configuration file, or its content if that has to be converted."""
    if "\n" in name or name.lstrip().startswith("{"):  # content already
        return name
    path = find_config(name)
    try:
        text = path.read_text(encoding="utf-8")
        config = yaml.safe_load(update_names(text))
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{path} isn't valid YAML: {' '.join(str(error).split())[:300]}") from None
    groups = ("trainer", "model", "evaluation", "checkpoints")  # the parser would ignore other values
    if not isinstance(config, dict) or not all(isinstance(config.get(each) or {}, dict) for each in groups):
        raise SettingsError(
            f"{path} must hold settings such as `trainer: {{max_steps: 100}}`, got {config!r:.80}."
        )
    model = config.get("model") or {}
    for moved in [each for each in OPTIMIZER if each in model]:
        model.setdefault("optimizer", {})[moved] = model.pop(moved)
    trainer = config.get("trainer") or {}
    if "logger" in trainer:
        trainer["logger"] = _with_folder(trainer["logger"])
    return str(path) if config == yaml.safe_load(text) else yaml.safe_dump(config, sort_keys=False)


def _convert_logger(text: str) -> str:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # the parser reports it
    converted = _with_folder(value)
    return text if converted == value else json.dumps(converted)


def _with_folder(value: Any) -> Any:
    """Return the setting of one or several loggers; one without a folder gets the folder of the run."""
    if isinstance(value, list):
        return [_with_folder(each) for each in value]
    setting = {"class_path": value} if isinstance(value, str) else value
    if not isinstance(setting, dict):
        return value
    name = str(setting.get("class_path"))
    try:
        cls = import_object(name if "." in name else f"{loggers.__name__}.{name}", Logger)
    except SettingsError:
        return value  # the parser reports it
    if "save_dir" not in inspect.signature(cls).parameters:
        return value
    return {**setting, "init_args": {"save_dir": IN_RUN_FOLDER, **(setting.get("init_args") or {})}}


# Checkpoint to resume


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that training continues from."""

    path: Path
    checkpoint: dict[str, Any]

    @property
    def in_place(self) -> bool:
        """Return whether the run continues in its folder: only from its last checkpoint."""
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
        """Return which limit is reached already, and how to train further; "" if none is."""
        epochs = self.checkpoint["epoch"]
        limits = (("step", self.step, trainer.max_steps), ("epoch", epochs, trainer.max_epochs))
        for name, reached, limit in limits:
            if limit is not None and 0 <= limit <= reached:
                return f"{name} {reached} of {limit}. Raise --trainer.max_{name}s to train further."
        return ""


def find_resumed(ckpt_path: str | None, root: Path) -> Path | None:
    """Return the checkpoint of --ckpt_path: a file, that of a run's folder, or `last`, of the newest run."""
    if ckpt_path is None:
        return None
    if not ckpt_path.strip():
        raise CheckpointError("--ckpt_path is empty. Pass a checkpoint, or remove it to start a new run.")
    if ckpt_path != "last":
        return find_checkpoint(ckpt_path, last=True)
    found = sorted(root.glob("*/last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise CheckpointError(f"--ckpt_path last: no run to resume under {root}. Remove it to start one.")
    return found[-1]


# Folder of the run and its loggers


# fmt: off
Precision = Literal[
    "auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true",
    "transformer-engine", "transformer-engine-float16", "64", "32", "16", "bf16", 64, 32, 16,
]
# fmt: on


class RunTrainer(Trainer):
    """Lightning's trainer, with a folder of the run that doesn't depend on its loggers.

    Args:
        precision: of the network, such as 32-true or bf16-mixed; auto is bf16-mixed if the device is fast at
            it, else 32-true.
    """

    run_folder: Path | None = None  # of rank 0; None in a trial, which leaves no files

    def __init__(self, *, precision: Precision | None = None, **kwargs: Any):
        if precision == "auto":
            precision = fast_precision(kwargs.get("accelerator", "auto"))
        super().__init__(precision=precision, **kwargs)

    @property
    def log_dir(self) -> str | None:
        """Return the folder of the run. Call it on all ranks: rank 0 broadcasts it."""
        return self.strategy.broadcast(str(self.run_folder) if self.run_folder else None)


def fast_precision(accelerator: Any) -> Literal["bf16-mixed", "32-true"]:
    """Return bf16-mixed if the device that an accelerator chooses is fast at it, else 32-true."""
    if torch.cuda.is_available() and accelerator != "cpu":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif torch.backends.mps.is_available() and accelerator != "cpu":
        fast = False
    else:
        cpu = torch.cpu.get_capabilities()
        fast = cpu.get("avx512_bf16") or cpu.get("amx_bf16")
    return "bf16-mixed" if fast else "32-true"


IN_USE = "wait for it to end, or start another run without --ckpt_path"
CHOOSE = "choose another folder with --trainer.default_root_dir"


@contextmanager
def open_run_folder(trainer: RunTrainer, setting: Any, root: Path, resumed: Resumed | None) -> Iterator[None]:
    """Lock the folder of a run while it trains, give the trainer its loggers, and print where it is.

    The folder is `root`/version_N, whatever the loggers. Only rank 0 writes there, and has loggers that do.

    Args:
        setting: that of the loggers.
    """
    if fast_dev_run(trainer):  # a trial of a few batches leaves no files
        yield
        return
    settings = setting if isinstance(setting, list) else [setting]
    if setting is None or setting is True:
        settings = []
    if not trainer.is_global_zero:
        trainer.loggers = [DummyLogger() for _ in settings or [None]]
        yield
        return
    continued = resumed if resumed is not None and resumed.in_place else None
    if continued:
        find_callback(trainer, SaveConfig).config_filename = f"config_from_step_{continued.step}.yaml"
    with _lock(continued.folder) if continued else _make_and_lock(root) as folder:
        trainer.run_folder = folder
        trainer.loggers = make_loggers(settings, folder, continued)
        checkpoints = find_callback(trainer, Checkpoints)
        checkpoints.folder = folder
        checkpoints.last_step = continued.step if continued else None
        print_once(f"run folder  {folder}")
        for logger in trainer.loggers:
            print_once(f"watch it    {where_to_look(logger)}")
        yield


def check_local(place: str | Path | None, name: str) -> None:
    """Raise for an address such as s3://bucket/runs, which would be taken for a local folder named s3:."""
    if "://" in str(place):
        raise SettingsError(
            f"{name} must be a local path, got {place}. Train in a local folder and copy it, or mount the "
            "bucket."
        )


@contextmanager
def _lock(folder: Path) -> Iterator[Path]:
    check_writable(folder, CHOOSE)
    with lock_folder(folder, IN_USE):
        yield folder


@contextmanager
def _make_and_lock(root: Path) -> Iterator[Path]:
    """Make the folder of a new run; remove it if settings turn out wrong before anything is saved."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    check_writable(root, CHOOSE)
    folder = make_next_version(root)
    try:
        with lock_folder(folder, IN_USE):
            yield folder
    except (SettingsError, CheckpointError):
        if not list(folder.glob("*.ckpt")):
            shutil.rmtree(folder)
            with suppress(OSError):  # another run uses it by now
                for made in missing:
                    made.rmdir()
        raise


def make_next_version(root: Path) -> Path:
    """Make the folder with the next number; runs that start together get one each."""
    names = [re.fullmatch(r"version_(\d+)", path.name) for path in root.iterdir()]
    first = max((int(name[1]) for name in names if name), default=-1) + 1
    for number in count(first):
        with suppress(FileExistsError):  # another run was faster
            (root / f"version_{number}").mkdir()
            break
    return root / f"version_{number}"


def make_loggers(settings: list[Any], folder: Path, resumed: Resumed | None) -> list[Logger]:
    """Return the loggers of a run, by default TensorBoard's, which write to its folder unless told where."""
    place: dict[str, Any] = {"save_dir": str(folder.parent), "name": "", "version": folder.name}
    if resumed is not None:
        place["purge_step"] = resumed.step + 1  # a killed run may have logged more than it saved
        _keep_earlier(folder / "hparams.yaml")
    if not settings:
        return [TensorBoardLogger(**place, default_hp_metric=False)]
    made = []
    for setting in settings:
        cls = import_object(setting.class_path, Logger)
        options = vars(setting.init_args).copy()
        save_dir = options.get("save_dir")
        check_local(save_dir, "--trainer.logger.save_dir")
        if save_dir == IN_RUN_FOLDER:
            default = inspect.signature(cls).parameters["save_dir"].default
            if default is inspect.Parameter.empty:  # it writes to save_dir/name/version
                options |= {name: value for name, value in place.items() if name in options}
            else:  # it writes to save_dir, such as W&B's "." and MLflow's "./mlruns"
                options["save_dir"] = str(folder / (default or ""))
        try:
            logger = cls(**options)
            if isinstance(logger, WandbLogger | MLFlowLogger):
                _ = logger.experiment  # connects
        except Exception as error:  # whatever a logger raises, such as for a package that isn't installed
            raise SettingsError(
                f"The logger {cls.__name__} can't be created: {' '.join(str(error).split())}"
            ) from error
        if isinstance(logger, CSVLogger):
            _keep_earlier(Path(logger.log_dir) / "metrics.csv")
        made.append(logger)
    return made


def _keep_earlier(path: Path) -> None:
    """Rename a file of an earlier part of the run, which its logger would replace."""
    if path.exists():
        free = (path.with_stem(f"{path.stem}_{number}") for number in count(1))
        path.rename(next(each for each in free if not each.exists()))


# Lightning CLI


DESCRIPTION = (
    "Train a discrete-flow-matching denoiser. --help without `all` has the settings people use most."
)

NOISE = [  # warnings of Lightning that are no news here
    ".*does not have many workers.*",  # countdown items take microseconds
    ".*module.s. in eval mode at the start of training.*",  # the averaged network always is
    ".*LeafSpec.*deprecated.*",
    ".*recommended to use `self.log.*sync_dist=True.*",  # they are reduced before they are logged
    ".*smaller than the logging interval.*",  # epochs may be short, steps are logged by their own count
    ".*Experiment logs directory .* is not empty.*",  # what CSVLogger would remove has been renamed
    ".*LightningCLI's args parameter.*",  # its processes get the words of this one
]
NEWS = (
    r"Seed set to|.*(litlogger|litmodels|available: .*, us(ed|ing):|Loading `train_dataloader`|"
    "`Trainer.fit` stopped)"
)
"""Lines of its log."""
MINIMA = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "gradient_clip_val": 0,
    "log_every_n_steps": 0,
    "max_epochs": -1,
    "max_steps": -1,
    "min_epochs": 0,
    "min_steps": 0,
    "num_nodes": 1,
    "num_sanity_val_steps": -1,
}
"""Smallest values of Lightning's settings that it doesn't check itself."""


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Shows the description as it is written, and settings as the parser does."""


class TauflowCLI(LightningCLI):
    """Task and module from typed configuration; runs in numbered folders, resumed where they are."""

    trainer: RunTrainer

    def __init__(self, args: list[str] | None = None):
        super().__init__(
            DFMModule,
            trainer_class=RunTrainer,
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
        parser.add_lightning_class_args(RunTrainer, "trainer")
        parser.add_lightning_class_args(DFMModule, "model")
        parser.add_subclass_arguments(Task, "data", required=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="Resume from this checkpoint, a run's folder (its last.ckpt), or the newest run: last.",
        )
        parser.add_argument(
            "--init_from",
            type=str | None,
            default=None,
            help="Start from a trained model, with its network and its tokenizer or vocabulary: a "
            "checkpoint, a run's folder, an exported folder, a shipped model, or user/name on the Hub.",
        )
        parser.add_lightning_class_args(SamplerEvaluation, "evaluation")
        parser.add_lightning_class_args(Checkpoints, "checkpoints")
        parser.link_arguments("data.facts", "model.facts", apply_on="instantiate")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        # the global batch is split by TaskData
        parser.set_defaults({"trainer.use_distributed_sampler": False})

    def instantiate_classes(self) -> None:
        logger = self.config.trainer.pop("logger")  # made when the run has a folder
        try:
            super().instantiate_classes()
        except ValueError as error:  # of a class, within a report of the parser
            said = keep_facts(str(error)) or str(error)
            if self.start is not None:
                said += self.start.describe_difference(import_object(self.config.data.class_path, Task))
            raise SettingsError(said) from error
        self.config.trainer.logger = logger
        if self.start is not None and self.resumed is None:
            self.start.give_weights(self.model, self.datamodule)
        asked = find_callback(self.trainer, SamplerEvaluation)
        if asked.every_n_validations:  # raise for what can't be done before the run has a folder
            trained = Trained(self.model.model(), self.datamodule)
            SamplerGrid(trained, asked.samplers, asked.nfes, asked.guidance, asked.sampling)
        self.datamodule = TaskData(self.datamodule)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self._parse(parser, args)
        self.start: Start | None = None
        if self.config.get("init_from") is None:
            return
        check_local(self.config.init_from, "--init_from")
        task = import_object(self.config.data.class_path, Task)
        network = import_object(self.config.model.network.class_path, NetworkConfig)
        # a resumed run has the settings from its own checkpoint: where it started from may be gone
        path = find_resumed(self.config.ckpt_path, self._root) or find_checkpoint(self.config.init_from)
        self.start = Start.load(path, (task, network))
        config = self.start.config(self.config.data.class_path, task)
        words = list(sys.argv[1:] if args is None else args)
        files = [n for n, word in enumerate(words, start=1) if word.startswith(("-c", "--config"))]
        last = max(files, default=0)
        last += bool(files) and words[last - 1] in ("-c", "--config")
        words[last:last] = ["--config", yaml.safe_dump(config)]  # flags come later, and win
        self._parse(parser, words)

    def _parse(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            raise SettingsError(explain_parser(parser, str(error), CHOICES, CLASSES)) from None
        except SyntaxError as error:
            raise SettingsError(f"cannot import a class of the configuration: SyntaxError: {error}") from None
        seed = self.config.get("seed_everything", 0)  # it is not there when only help is asked for
        if not isinstance(seed, bool) and not 0 <= seed < 2**32:
            raise SettingsError(f"--seed_everything must be 0 to {2**32 - 1}, got {seed}.")

    def before_instantiate_classes(self) -> None:
        config = self.config.trainer
        if config.logger is False:
            raise SettingsError(
                "--trainer.logger must be a logger, got false. Remove it for TensorBoard, or choose another "
                "one."
            )
        check_trainer_settings(config)
        check_local(config.default_root_dir, "--trainer.default_root_dir")
        check_local(self.config.ckpt_path, "--ckpt_path")
        self.resumed: Resumed | None = None
        self.only_evaluates = False
        path = find_resumed(self.config.ckpt_path, self._root)
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
            said = [OnlyEvaluate(self.resumed.step)]
        restored = Restored(self.resumed.step if self.resumed else 0)
        several = str(config.devices).isdecimal() and int(config.devices) > 1
        if config.strategy == "ddp" or (config.strategy == "auto" and several):
            kwargs["strategy"] = DDPStrategy(timeout=timedelta(minutes=10))
        self.trainer_defaults = {
            "callbacks": [restored, GracefulStop(), Throughput(), TrainingTime(), *said, *bar]
        }
        try:
            return super().instantiate_trainer(**kwargs)
        except (TypeError, ValueError, MisconfigurationException) as error:
            raise SettingsError(f"The trainer can't be created: {' '.join(str(error).split())}") from error

    def fit(self) -> None:
        """Train; a resumed run only if its checkpoint is trusted and has the same settings."""
        resumed = self.resumed
        if resumed is not None:
            task = self.datamodule.task
            parts = (task, self.model.schedule, self.model.source, self.model.network_config)
            allowed = (*CLASSES, *map(type, parts))  # the user's own configuration is trusted
            check_classes(resumed.checkpoint, allowed, resumed.path)
            accumulate = self.trainer.accumulate_grad_batches
            check_settings(resumed.checkpoint, resumed.path, self.model, task, accumulate)
        path = resumed.path if resumed is not None else None
        with open_run_folder(self.trainer, self.config.trainer.logger, self._root, resumed):
            if self.start is not None and resumed is None:
                print_once(f"start       {self.start.summary(type(self.datamodule.task))}")
            if resumed is not None:
                config = yaml.safe_load(dump_config(self.parser, self.config))
                changes = find_changes(resumed.checkpoint, resumed.path, config)
                report_changes(self.trainer, changes, resumed.step)
                report_other_rate(self.model.optimizer_config, changes)
            self.resumed = resumed = None  # the checkpoint is read again by the trainer
            if self.trainer.num_nodes > 1:
                cluster: Any = self.trainer.strategy.cluster_environment  # type: ignore[attr-defined]
                print_once(f"waiting for the other nodes at {cluster.main_address}:{cluster.main_port}")
            try:
                self.trainer.fit(self.model, self.datamodule, ckpt_path=path, weights_only=True)
            except Exception as error:
                if "val_check_interval" in str(error) and not isinstance(error, TauflowError):
                    raise SettingsError(" ".join(str(error).split())) from error  # Lightning's sentence
                clear = isinstance(error, TauflowError | OSError) or is_lost_rank(error)
                if clear or path is None or find_callback(self.trainer, Restored).done:
                    raise
                raise resume_error(path, str(error)) from error


def report_changes(trainer: Trainer, changes: dict[str, tuple[Any, Any]], step: int) -> None:
    """Print and log the settings that a resumed run changes."""
    lines = [f"{name} {show(old)} -> {show(new)} from step {step}" for name, (old, new) in changes.items()]
    for line in lines:
        print_once(f"changed     {line}")
    for logger in trainer.loggers:
        if lines and (board := board_of(logger)):
            board.text("overview/changed_settings", "\n".join(f"    {line}" for line in lines), step)


def report_other_rate(optimizer: OptimizerConfig, changes: dict[str, tuple[Any, Any]]) -> None:
    """Print which learning rate of Muon a resumed run keeps, if it changes only the other one."""
    names = ("learning_rate", "muon_learning_rate")
    kept = [name for name in names if f"model.optimizer.{name}" not in changes]
    if optimizer.name == "muon" and len(kept) == 1:
        value = getattr(optimizer, kept[0])
        print_once(f"note        muon has two learning rates: --model.optimizer.{kept[0]} stays {value:g}")


class OnlyEvaluate(Callback):
    """Ends a run that is trained to its end when the evaluation that it owes has been made."""

    def __init__(self, step: int):
        self.step = step

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.fit_loop.epoch_loop.max_steps = self.step + 1  # Lightning wouldn't start otherwise
        trainer.fit_loop.max_epochs = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        print_once("training is finished, but the evaluation at its end was not: it runs now")
        trainer.should_stop = True


def check_trainer_settings(trainer: Namespace) -> None:
    """Raise for settings that Lightning doesn't check, and that would train nothing or fail late."""
    for name, minimum in MINIMA.items():
        value = trainer.get(name)
        if value is not None and not minimum <= value < math.inf:
            raise SettingsError(f"--trainer.{name} must be at least {minimum}, got {value}.")
    for name in ("max_steps", "max_epochs", "val_check_interval", "limit_train_batches", "default_root_dir"):
        if trainer.get(name) in (0, ""):
            raise SettingsError(f"--trainer.{name} must not be 0 or empty. Remove it.")


class SaveConfig(SaveConfigCallback):
    """Writes the settings of each start atomically, without where the run was resumed from.

    The first start writes config.yaml, which repeats the run. A resume in its folder writes
    config_from_step_N.yaml; that of an earlier resume from step N, which was killed, gets another name.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        folder = trainer.log_dir  # asked on all ranks: it is broadcast
        if trainer.is_global_zero and folder:
            path = Path(folder) / self.config_filename
            _keep_earlier(path)
            files.write(path, dump_config(self.parser, self.config))


def dump_config(parser: LightningArgumentParser, config: Namespace) -> str:
    """Return the settings of a start as YAML that repeats it."""
    config = config.clone()
    config.ckpt_path = None
    if config.init_from is not None:  # a tokenizer, too long to read, comes with it
        arguments = vars(config.data.init_args)
        task: Any = import_object(config.data.class_path, Task)
        long = [name for name, value in arguments.items() if len(str(value)) > LONG]
        arguments |= {name: None for name in long if name in task.sample_settings}
    return parser.dump(config, skip_none=False)


# How training ends


FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}  # a file can't be written


def describe_saved(trainer: Trainer) -> str:
    """Return what of a run is saved, and how it continues."""
    saved = find_callback(trainer, Checkpoints)
    if saved.last_step is None:
        return "nothing was saved yet; start it again with the same command"
    folder = shlex.quote(str(saved.folder))
    config = find_run_config(saved.folder).name
    command = f"{program('train')} -c {folder}/{config} --ckpt_path {folder}/last.ckpt"
    return f"{saved.last_path} of step {saved.last_step} is safe; to resume: {command}"


def find_write_error(error: BaseException | None) -> str:
    """Return what could not be written, if that caused an error; else ""."""
    while error is not None:
        if isinstance(error, WriteError):
            return str(error)
        if isinstance(error, OSError) and error.errno in FULL:
            return f"cannot write {error.filename or 'a file of the run'} ({error.strerror})"
        error = error.__cause__ or error.__context__
    return ""


def learn_at_end(trainer: Trainer, module: DFMModule, task: Task) -> str:
    """Learn counts for best.ckpt, so that `auto` samples it better; return what to print about it.

    Nothing for other than masked sources and for runs that didn't end. If it would take too long, or fails,
    the command that does it.
    """
    saved = find_callback(trainer, Checkpoints)
    stop = find_callback(trainer, GracefulStop)
    ended = not (stop.stopped_by or stop.asked or trainer.interrupted or fast_dev_run(trainer))
    if not ended or saved.best_step is None or not module.process.absorbing:
        return ""
    begin = time.perf_counter()
    try:
        averaged = read(saved.best_path)["state_dict"]
        module.ema.load_state_dict(
            {name.removeprefix("ema."): each for name, each in averaged.items() if name.startswith("ema.")}
        )
        model = module.to(trainer.strategy.root_device).model()
        with warnings.catch_warnings(action="ignore"):  # of those of an earlier best checkpoint
            model = replace(model, order=read_order(saved.best_path, model.length))
            known = read_counts(saved.best_path, model.length)
        if known:
            return f"learned     counts for auto, earlier  ({counts_path(saved.best_path)})"
        data = real_items(task, range(min(len(task.val_data), max(CONTEXTS))))[0]
        budget = budget_of(find_callback(trainer, TrainingTime).seconds) if len(data) > 1 else 0.0
        with trainer.precision_plugin.forward_context():
            counts = learn_within(model, budget, data, progress=trainer.progress_bar_callback is not None)
        if counts:
            path = save_counts(saved.best_path, counts)
            return f"learned     counts for auto, {duration(time.perf_counter() - begin)}  ({path})"
        reason = "auto samples better with learned counts"
    except KeyboardInterrupt:
        reason = "the run is complete, but counts for auto aren't learned"
    except Exception as error:  # the run is complete, whatever happens here
        reason = f"counts for auto weren't learned ({first_line(error)})"
    command = f"{program('sample')} --ckpt {shlex.quote(str(saved.best_path))} --learn_counts"
    return f"counts      {reason}. To learn them: {command}"


def report_end(trainer: Trainer, task: Task, learned: str, fine_tuned: bool) -> int:
    """Print where everything is; return the exit code, 0 if training reached its end.

    Args:
        learned: what was learned from the best checkpoint.
        fine_tuned: whether the run started from a trained model.
    """
    saved = find_callback(trainer, Checkpoints)
    stop = find_callback(trainer, GracefulStop)
    evaluation = find_callback(trainer, SamplerEvaluation)
    trial = fast_dev_run(trainer)
    if evaluation.results:
        print()
        print_first_samples(evaluation.results, task)
        print_summary(evaluation.results)
        print(f"evaluation  {evaluation.seconds:.0f} s in total")
        if not trial:
            print(f"results     {evaluation.folder}  (all metrics in results.md, samples, plot)")
    if trial:
        return 0
    if saved.best_step is not None:
        score = f"{saved.monitor} {saved.best_score:.5g} at step {saved.best_step}"
        print(f"best        {saved.best_path}  ({score})")
    if learned:
        print(learned)
    if saved.last_step is not None:
        print(f"last        {saved.last_path}  (step {saved.last_step})")
        for logger in trainer.loggers:
            print(f"watch       {where_to_look(logger)}")
        if trainer.global_step < BARELY_TRAINED and not stop.stopped_by and not fine_tuned:
            print(describe_barely_trained(trainer.global_step, task))
    if stop.stopped_by or stop.asked or trainer.interrupted:
        print(f"stopped at step {trainer.global_step}; {describe_saved(trainer)}")
        return 130
    return 0


def train(argv: list[str] | None = None) -> None:
    """Run train.py, with the words of the command line unless `argv` is given."""
    words = sys.argv[1:] if argv is None else argv
    if not any(word.startswith(("-c", "--config")) for word in words):
        words = ["--config", DEFAULT_CONFIG, *words]
    sys.path.append(str(Path.cwd()))  # for your own classes, named in the configuration
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)
    for log in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(log).addFilter(lambda record: not re.match(NEWS, record.getMessage()))
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without ± shows ? instead
    with exit_with_message("Nothing was saved"):
        cli = TauflowCLI(convert_words(words))
    # A logger's thread ends without a report if a file can't be written: the main thread reports it.
    report = threading.excepthook
    threading.excepthook = lambda args: None if find_write_error(args.exc_value) else report(args)
    try:
        cli.fit()
    except SystemExit:  # from Lightning, at the second request to stop
        if not cli.trainer.interrupted:
            raise
    except Exception as error:
        reason = find_write_error(error)
        if not reason and is_lost_rank(error):
            reason = "another process of the run died or doesn't answer"
        if reason:
            sys.exit(f"error: {reason}; {describe_saved(cli.trainer)}")
        if isinstance(error, TauflowError):
            sys.exit(f"error: {error}")
        raise
    # Lightning kills the first process, which may still be writing, when another one ends with an error code.
    if not cli.trainer.is_global_zero:
        sys.exit(0)
    task = cli.datamodule.task
    learned = learn_at_end(cli.trainer, cli.model, task)
    sys.exit(report_end(cli.trainer, task, learned, fine_tuned=cli.start is not None))


if __name__ == "__main__":
    from tauflow.cli.commands import run

    run("train", sys.argv[1:])
