"""`python train.py`, configured by YAML files and flags that are the typed constructors themselves."""

import difflib
import hashlib
import inspect
import logging
import re
import sys
import warnings
from pathlib import Path

from jsonargparse import ArgumentError, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from tauflow.callbacks import Checkpoints, GracefulStop, Progress, Throughput
from tauflow.checkpoints import KEY, AtomicCheckpointIO, describe, read, refuse_foreign_classes
from tauflow.errors import CheckpointError, SettingsError, TauflowError
from tauflow.files import refuse_unwritable
from tauflow.module import DFMModule
from tauflow.monitoring import SamplerEvaluation
from tauflow.runs import CLASSES
from tauflow.tasks import Task

DEFAULT_CONFIG = Path(__file__).parents[3] / "configs" / "countdown.yaml"

DESCRIPTION = f"""Train a discrete-flow-matching denoiser.

With no arguments, trains the countdown task of {DEFAULT_CONFIG.name} on whatever device there is. Give configuration files with -c (later
ones override earlier ones) and single settings as flags, for example

  python train.py -c configs/countdown.yaml -c configs/smoke.yaml
  python train.py -c configs/countdown_uniform.yaml --model.learning_rate 3e-4 --trainer.max_steps 20000
  python train.py --ckpt_path last      (continue the newest run of this configuration)
  python train.py --print_config        (show every setting and its value)
"""

NOISE = [  # warnings of Lightning that are no news here
    ".*does not have many workers.*",  # countdown items take microseconds
    ".*module.s. in eval mode at the start of training.*",  # the averaged network always is
    ".*LeafSpec.*deprecated.*",
    ".*recommended to use `self.log.*sync_dist=True.*",  # validation metrics are reduced before they are logged
    ".*smaller than the logging interval.*",  # epochs may be short, steps are logged by their own count
]
NEWS = r".*(litlogger|litmodels|available: .*, us(ed|ing):|Loading `train_dataloader`)"  # of its log


class TauflowCLI(LightningCLI):
    """Task and module from typed configuration; runs in numbered folders; resuming in the folder of the checkpoint."""

    def __init__(self, args: list[str] | None = None):
        super().__init__(
            DFMModule,
            Task,
            subclass_mode_data=True,
            run=False,
            auto_configure_optimizers=False,
            args=args,
            seed_everything_default=0,
            parser_kwargs={"description": DESCRIPTION, "exit_on_error": False, "allow_abbrev": False},
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True},  # a resumed run writes its settings again
            load_from_checkpoint_support=False,  # tauflow.load rebuilds a run, without calling what a file names
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="Continue from this checkpoint, or from the newest: last.")
        parser.add_lightning_class_args(SamplerEvaluation, "evaluation")
        parser.add_lightning_class_args(Checkpoints, "checkpoints")
        parser.link_arguments("data.num_tokens", "model.num_tokens", apply_on="instantiate")
        parser.link_arguments("data.seq_len", "model.seq_len", apply_on="instantiate")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.set_defaults({"trainer.use_distributed_sampler": False})  # tasks split the global batch themselves

    def parse_arguments(self, parser: LightningArgumentParser, args: None) -> None:
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            raise TauflowError(f"{error}{_accepted_keys(parser, str(error))}") from None

    def before_instantiate_classes(self) -> None:
        config = self.config.trainer
        if config.logger is False:
            raise SettingsError(
                "a run is recorded in a folder of its own: leave --trainer.logger out for TensorBoard, or name another logger"
            )
        root = Path(config.default_root_dir or ".")
        self.ckpt_path = _resolve(self.config.ckpt_path, root)
        self.checkpoint = None
        if self.ckpt_path is not None:
            self.checkpoint = read(self.ckpt_path)
            _refuse_finished(self.checkpoint, self.ckpt_path, config)
        folder = self.ckpt_path.parent if self._continues_in_place() else root
        refuse_unwritable(folder, "choose another folder with --trainer.default_root_dir")

    def _continues_in_place(self) -> bool:
        """A run's last checkpoint continues in its folder; any other one begins a new run."""
        return self.ckpt_path is not None and self.ckpt_path.name == "last.ckpt" and (self.ckpt_path.parent / "config.yaml").exists()

    def instantiate_trainer(self, **kwargs) -> Trainer:
        config = self.config.trainer
        if config.logger in (None, True):
            place = {"save_dir": config.default_root_dir or "."}
            if self._continues_in_place():
                folder = self.ckpt_path.parent if self.ckpt_path.parent.name not in ("", "..") else self.ckpt_path.resolve().parent
                place = {"save_dir": folder.parent, "version": folder.name, "purge_step": self.checkpoint["global_step"] + 1}
            kwargs["logger"] = TensorBoardLogger(**place, name="", default_hp_metric=False)
        plugins = config.plugins or []
        kwargs["plugins"] = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        bar = [] if config.enable_progress_bar is False else [Progress()]
        self.trainer_defaults = {"callbacks": [GracefulStop(), Throughput(), *bar]}
        return super().instantiate_trainer(**kwargs)

    def fit(self) -> None:
        if self.checkpoint is not None:
            own = (type(self.datamodule), type(self.model.schedule))  # what the user's own configuration names is trusted
            refuse_foreign_classes(self.checkpoint, (*CLASSES, *own), self.ckpt_path)
            _refuse_other_settings(self.checkpoint, self.ckpt_path, self.model, self.datamodule, self.trainer)
            self.checkpoint = None
        self.trainer.fit(self.model, self.datamodule, ckpt_path=self.ckpt_path, weights_only=True)


class SaveConfig(SaveConfigCallback):
    """Leaves out where a run was resumed from, so that its config.yaml repeats it from the beginning."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs):
        config = config.clone()
        config.ckpt_path = None
        super().__init__(parser, config, **kwargs)


def train() -> None:
    """Entry point of train.py; exits with a message instead of a traceback where the user can mend the cause."""
    if not any(arg in ("-c", "--config") or arg.startswith("--config=") for arg in sys.argv[1:]):
        sys.argv[1:1] = ["--config", str(DEFAULT_CONFIG)]
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(lambda record: not re.match(NEWS, record.getMessage()))
    sys.stdout.reconfigure(errors="replace")  # a terminal without ± shows ? instead
    try:
        cli = TauflowCLI()
    except (TauflowError, MisconfigurationException, ValueError) as error:
        sys.exit(f"error: {error}")
    if not cli.trainer.fast_dev_run:
        _say(f"run folder  {cli.trainer.log_dir}\nwatch it    tensorboard --logdir {cli.trainer.default_root_dir}")
    try:
        cli.fit()
    except TauflowError as error:
        sys.exit(f"error: {error}")
    sys.exit(_conclude(cli))


def _accepted_keys(parser: LightningArgumentParser, message: str) -> str:
    """For a message about an unknown key: the keys that are accepted where it stands."""
    unknown = re.search(r"arguments: --([\w.]+)|[Oo]ption '([\w.]+)'", message)
    if not unknown:
        tasks = (f"{task.__module__.rpartition('.')[0]}.{task.__name__}" for task in CLASSES if issubclass(task, Task) and task is not Task)
        return f"\nKnown tasks: {', '.join(tasks)}" if message.startswith('Parser key "data"') else ""
    word = (unknown[1] or unknown[2]).removeprefix("data.init_args.").removeprefix("data.")
    settings = {option.removeprefix("--") for action in parser._actions for option in action.option_strings}
    settings |= {f"data.{name}" for task in CLASSES if issubclass(task, Task) for name in inspect.signature(task).parameters}
    group = re.search(r"Group '([\w.]+)'", message)
    close = difflib.get_close_matches(f"{group[1]}.{word}" if group else word, settings, n=1, cutoff=0.5)
    if not close:
        return f"\nSettings are grouped in: {', '.join(sorted(key for key in settings if '.' not in key and '-' not in key))}"
    near = close[0]
    siblings = sorted(key for key in settings if key.rpartition(".")[0] == near.rpartition(".")[0] and not key.endswith("help"))
    return f"\nDid you mean {near}? Accepted there: {', '.join(siblings)}"


@rank_zero_only
def _say(text: str) -> None:
    print(text, flush=True)


def _conclude(cli: TauflowCLI) -> int:
    """Says where everything is; the exit code is 0 if training reached its end."""
    trainer = cli.trainer
    files = next(callback for callback in trainer.callbacks if isinstance(callback, Checkpoints))
    stopped_by = next(callback for callback in trainer.callbacks if isinstance(callback, GracefulStop)).stopped_by
    evaluation = next(callback for callback in trainer.callbacks if isinstance(callback, SamplerEvaluation))
    if trainer.is_global_zero and evaluation.table:
        evaluation.table.print()
        _say(f"evaluated   samplers for {evaluation.seconds:.0f} s in all")
        if not trainer.fast_dev_run:
            _say(f"samplers    {evaluation.folder}  (the tables above, samples, plot)")
    if files.best_step is not None and not trainer.fast_dev_run:
        _say(f"best        {files.best_path}  ({files.monitor} {files.best_score:.5g} at step {files.best_step})")
    if files.last_path.exists() and not trainer.fast_dev_run:
        _say(f"last        {files.last_path}  (step {trainer.global_step})")
        _say(f"watch       tensorboard --logdir {trainer.default_root_dir}")
    if stopped_by or trainer.interrupted:
        _say(
            f"stopped at step {trainer.global_step}; to go on: python train.py -c {files.folder}/config.yaml --ckpt_path {files.last_path}"
        )
        return 130
    return 0


def _resolve(ckpt_path: str | None, root: Path) -> Path | None:
    if ckpt_path != "last":
        return Path(ckpt_path) if ckpt_path else None
    found = sorted(root.glob("*/last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise CheckpointError(f"--ckpt_path last: there is no run to continue under {root}; leave it out to start one")
    return found[-1]


def _refuse_finished(checkpoint: dict, path: Path, trainer: Namespace) -> None:
    step, epoch = checkpoint["global_step"], checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    if trainer.max_steps is not None and 0 <= trainer.max_steps <= step:
        raise CheckpointError(f"{path} is finished: step {step} of {trainer.max_steps}; raise --trainer.max_steps to train it further")
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= epoch:
        raise CheckpointError(f"{path} is finished: epoch {epoch} of {trainer.max_epochs}; raise --trainer.max_epochs to train it further")


def _refuse_other_settings(checkpoint: dict, path: Path, model: DFMModule, task: Task, trainer: Trainer) -> None:
    """What may not change on the way: the task, its split, the model, and how items are counted into steps and epochs."""

    def facts(model: dict, task: dict, accumulate: int) -> dict:
        both = model["init_args"] | task["init_args"] | {"task": task["class_path"], "accumulate_grad_batches": accumulate}
        if both.get("tokenizer_json"):
            both["tokenizer"] = f"one with digest {hashlib.sha256(both['tokenizer_json'].encode()).hexdigest()[:8]}"
        data = ("seed", "val_share", "document", "hub", "hub_config", "hub_split", "hub_column")  # files may have moved
        both |= {f"data.{name}": task["init_args"].get(name) for name in data}
        names = ("task", "num_tokens", "seq_len", "tokenizer", "source", "schedule", "network")
        names += ("batch_size", "epoch_items", "accumulate_grad_batches", *(f"data.{name}" for name in data))
        return {name: both.get(name) for name in names}

    entry = checkpoint[KEY]
    saved = facts(entry["model"], entry["task"], entry.get("accumulate_grad_batches"))
    now = facts(describe(model), describe(task), trainer.accumulate_grad_batches)
    if wrong := [f"{name}: {saved[name]} there, {now[name]} here" for name in saved if saved[name] != now[name]]:
        raise CheckpointError(
            f"{path} was trained with other settings ({'; '.join(wrong)}); continue it with its own: -c {path.parent}/config.yaml"
        )
