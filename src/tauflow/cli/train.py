"""`python train.py`, configured by YAML files and flags that are the typed constructors themselves."""

import logging
import re
import sys
import warnings
from argparse import RawDescriptionHelpFormatter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ArgumentError, DefaultHelpFormatter, Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from tauflow.cli.hints import cannot_be_made, explained
from tauflow.cli.resume import refuse_finished, resolve, upgraded_configs
from tauflow.errors import SettingsError, TauflowError
from tauflow.evaluation.callback import SamplerEvaluation, fast_dev_run
from tauflow.evaluation.evaluate import SamplerGrid
from tauflow.evaluation.measure import Sampling
from tauflow.evaluation.tables import print_results
from tauflow.files import refuse_unwritable
from tauflow.tasks import Task
from tauflow.tasks.data import TaskData
from tauflow.train.callbacks import Checkpoints, GracefulStop, Progress, Throughput
from tauflow.train.checkpoints import AtomicCheckpointIO, read, refuse_foreign_classes
from tauflow.train.messages import LogLines, Summary
from tauflow.train.module import DFMModule
from tauflow.train.resume import refuse_other_settings
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
]
NEWS = r".*(litlogger|litmodels|available: .*, us(ed|ing):|Loading `train_dataloader`)"  # of its log


C = TypeVar("C", bound=Callback)


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
            save_config_kwargs={"overwrite": True},  # a resumed run writes its settings again
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
        except TypeError as error:
            reason = cannot_be_made(error, self._class_paths())
            if reason:
                raise SettingsError(reason) from error
            raise
        self._refuse_unevaluable(self.datamodule)
        self.datamodule = TaskData(self.datamodule)

    def _class_paths(self) -> list[str]:
        """Return the import paths of the classes that the configuration names."""
        model = self.config.model
        parts = (self.config.data, model.source, model.schedule, model.network)
        return [part if isinstance(part, str) else part.class_path for part in parts if part is not None]

    def _refuse_unevaluable(self, task: Task) -> None:
        """Refuse what cannot be evaluated before the run has a folder."""
        asked = _callback(self.trainer, SamplerEvaluation)
        if asked.every_n_validations:
            sampling = Sampling(asked.num_samples, asked.batch_size, asked.seed, asked.show)
            trained = Trained(self.model.model(), task)
            SamplerGrid.of(trained, asked.samplers, asked.nfes, asked.guidance, sampling)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            raise SettingsError(explained(parser, str(error))) from None
        except SyntaxError as error:
            raise SettingsError(f"cannot import a class of the configuration: SyntaxError: {error}") from None

    def before_instantiate_classes(self) -> None:
        config = self.config.trainer
        if config.logger is False:
            raise SettingsError(
                "a run is recorded in a folder of its own: drop --trainer.logger for TensorBoard, or name "
                "another logger"
            )
        root = Path(config.default_root_dir or ".")
        self.resumed: Resumed | None = None
        path = resolve(self.config.ckpt_path, root)
        if path is not None:
            self.resumed = Resumed(path, read(path))
            refuse_finished(self.resumed.checkpoint, path, config)
        in_place = self.resumed is not None and self.resumed.in_place
        folder = path.parent if path is not None and in_place else root
        refuse_unwritable(folder, "choose another folder with --trainer.default_root_dir")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config.trainer
        if config.logger in (None, True):
            place: dict[str, Any] = {"save_dir": config.default_root_dir or "."}
            if self.resumed is not None and self.resumed.in_place:
                folder = self.resumed.folder
                step = self.resumed.checkpoint["global_step"]
                place = {"save_dir": folder.parent, "version": folder.name, "purge_step": step + 1}
            kwargs["logger"] = TensorBoardLogger(**place, name="", default_hp_metric=False)
        plugins = config.plugins or []
        kwargs["plugins"] = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        # by default Summary says it in a few lines
        kwargs["enable_model_summary"] = bool(config.enable_model_summary)
        with_bar = config.enable_progress_bar is not False and sys.stdout.isatty()
        kwargs["enable_progress_bar"] = with_bar  # LogLines speaks where there is no terminal
        bar = [Progress()] if with_bar else []
        lines = LogLines(always=not with_bar)
        self.trainer_defaults = {"callbacks": [GracefulStop(), Throughput(), Summary(), lines, *bar]}
        return super().instantiate_trainer(**kwargs)

    def fit(self) -> None:
        """Train; a resumed run only if its checkpoint is trusted and has the same settings."""
        path = None
        if self.resumed is not None:
            path = self.resumed.path
            task = self.datamodule.task
            refuse_foreign_classes(self.resumed.checkpoint, (*CLASSES, *own_classes(self.model, task)), path)
            accumulate = self.trainer.accumulate_grad_batches
            refuse_other_settings(self.resumed.checkpoint, path, self.model, task, accumulate)
            self.resumed = None  # the checkpoint is read again by the trainer
        self.trainer.fit(self.model, self.datamodule, ckpt_path=path, weights_only=True)


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


def own_classes(model: DFMModule, task: Task) -> list[type]:
    """Return the classes that the user's own configuration names, which is trusted."""
    parts = (task, model.schedule, model.source, model.network_config)
    return [type(part) for part in parts if not isinstance(part, str)]


class SaveConfig(SaveConfigCallback):
    """Drops where a run was resumed from, so that its config.yaml repeats it from the beginning."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs: Any):
        config = config.clone()
        config.ckpt_path = None
        super().__init__(parser, config, **kwargs)


def train() -> None:
    """Run train.py; exit with a message instead of a traceback where the user can fix the cause."""
    if not any(arg in ("-c", "--config") or arg.startswith("--config=") for arg in sys.argv[1:]):
        sys.argv[1:1] = ["--config", str(DEFAULT_CONFIG)]
    sys.argv[1:] = upgraded_configs(sys.argv[1:])
    sys.path.append(str(Path.cwd()))  # for classes of the user's own, named in the configuration
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: not re.match(NEWS, record.getMessage())
    )
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without ± shows ? instead
    try:
        cli = TauflowCLI()
    except (TauflowError, MisconfigurationException, ValueError) as error:
        sys.exit(f"error: {error}")
    if not fast_dev_run(cli.trainer):
        _say(f"run folder  {cli.trainer.log_dir}")
        _say(f"watch it    tensorboard --logdir {cli.trainer.default_root_dir}")
    try:
        cli.fit()
    except TauflowError as error:
        sys.exit(f"error: {error}")
    sys.exit(_conclude(cli))


@rank_zero_only
def _say(text: str) -> None:
    print(text, flush=True)


def _conclude(cli: TauflowCLI) -> int:
    """Say where everything is; return the exit code, 0 if training reached its end."""
    trainer = cli.trainer
    files = _callback(trainer, Checkpoints)
    evaluation = _callback(trainer, SamplerEvaluation)
    stopped_by = _callback(trainer, GracefulStop).stopped_by
    if trainer.is_global_zero and evaluation.results:
        print_results(evaluation.results)
        _say(f"evaluation  {evaluation.seconds:.0f} s in total")
        if not fast_dev_run(trainer):
            _say(f"samplers    {evaluation.folder}  (the tables above, samples, plot)")
    if files.best_step is not None and not fast_dev_run(trainer):
        score = f"{files.monitor} {files.best_score:.5g} at step {files.best_step}"
        _say(f"best        {files.best_path}  ({score})")
    if files.last_path.exists() and not fast_dev_run(trainer):
        _say(f"last        {files.last_path}  (step {trainer.global_step})")
        _say(f"watch       tensorboard --logdir {trainer.default_root_dir}")
    if stopped_by or trainer.interrupted:
        command = f"python train.py -c {files.folder}/config.yaml --ckpt_path {files.last_path}"
        _say(f"stopped at step {trainer.global_step}; to resume: {command}")
        return 130
    return 0


def _callback(trainer: Trainer, kind: type[C]) -> C:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector of Lightning
    return next(callback for callback in callbacks if isinstance(callback, kind))
