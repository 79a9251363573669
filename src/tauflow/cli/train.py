"""`python train.py`, configured by YAML files and flags that are the typed constructors themselves."""

import logging
import math
import re
import sys
import warnings
from argparse import RawDescriptionHelpFormatter
from datetime import timedelta
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, DefaultHelpFormatter, Namespace
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from tauflow import files
from tauflow.cli.configs import prepared
from tauflow.cli.ending import callback_of, conclude, quiet_threads, safe, say, unwritten
from tauflow.cli.hints import essence, explained
from tauflow.cli.resume import Resumed, resolve
from tauflow.cli.runs import check_local, run_folder
from tauflow.errors import CheckpointError, SettingsError, TauflowError, first_line
from tauflow.evaluation.callback import SamplerEvaluation, owes_evaluation
from tauflow.evaluation.evaluate import SamplerGrid
from tauflow.ranks import is_lost_rank
from tauflow.tasks import Task
from tauflow.tasks.data import TaskData
from tauflow.train.callbacks import Checkpoints, GracefulStop, Progress, Throughput
from tauflow.train.checkpoints import AtomicCheckpointIO, read, refuse_foreign_classes
from tauflow.train.messages import LogLines, Summary
from tauflow.train.module import DFMModule
from tauflow.train.resume import Restored, refuse_other_settings, refuse_unresumable, unfit
from tauflow.train.trained import CLASSES, Trained

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
            refuse_unresumable(self.resumed.checkpoint, path)
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
        # by default Summary says it in a few lines
        kwargs["enable_model_summary"] = bool(config.enable_model_summary)
        with_bar = config.enable_progress_bar is not False and sys.stdout.isatty()
        kwargs["enable_progress_bar"] = with_bar  # LogLines speaks where there is no terminal
        bar = [Progress()] if with_bar else []
        said: list[Callback] = [Summary(), LogLines(always=not with_bar)]
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
            refuse_foreign_classes(resumed.checkpoint, allowed, resumed.path)
            accumulate = self.trainer.accumulate_grad_batches
            refuse_other_settings(resumed.checkpoint, resumed.path, self.model, task, accumulate)
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
                raise unfit(path, first_line(error)) from error


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
