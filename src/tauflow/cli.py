"""The command line: `python train.py`, configured by YAML files and flags that are the typed constructors themselves."""

import difflib
import inspect
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

from jsonargparse import ArgumentError, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from tauflow.callbacks import Checkpoints, GracefulStop, Progress, Throughput
from tauflow.checkpoints import KEY, AtomicCheckpointIO, describe, read, refuse_foreign_classes
from tauflow.errors import CheckpointError, TauflowError
from tauflow.module import DFMModule
from tauflow.runs import CLASSES
from tauflow.tasks import Task

DEFAULT_CONFIG = Path(__file__).parents[2] / "configs" / "countdown.yaml"

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
]


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
            save_config_kwargs={"overwrite": True},  # a resumed run writes its settings again
            load_from_checkpoint_support=False,  # tauflow.load rebuilds a run, without calling what a file names
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="Continue from this checkpoint, or from the newest: last.")
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
        root = Path(self.config.trainer.default_root_dir or ".")
        self.ckpt_path = _resolve(self.config.ckpt_path, root)
        self.checkpoint = None
        if self.ckpt_path is not None:
            self.checkpoint = read(self.ckpt_path)
            refuse_foreign_classes(self.checkpoint, CLASSES, self.ckpt_path)
            _refuse_finished(self.checkpoint, self.ckpt_path, self.config.trainer)
        _check_writable(self.ckpt_path.parent if self.ckpt_path else root)

    def instantiate_trainer(self, **kwargs) -> Trainer:
        config = self.config.trainer
        if config.logger in (None, True):
            root = config.default_root_dir or "."
            if self.ckpt_path is None:
                kwargs["logger"] = TensorBoardLogger(root, name="", default_hp_metric=False)
            else:
                folder = self.ckpt_path.parent
                kwargs["logger"] = TensorBoardLogger(
                    folder.parent, name="", version=folder.name, default_hp_metric=False, purge_step=self.checkpoint["global_step"] + 1
                )
        plugins = config.plugins or []
        kwargs["plugins"] = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        bar = [] if config.enable_progress_bar is False else [Progress()]
        self.trainer_defaults = {"callbacks": [GracefulStop(), Throughput(), *bar]}
        return super().instantiate_trainer(**kwargs)

    def fit(self) -> None:
        if self.checkpoint is not None:
            _refuse_other_task(self.checkpoint, self.ckpt_path, self.model, self.datamodule)
            self.checkpoint = None
        if self.trainer.logger:
            self.trainer.logger.log_hyperparams({"model": describe(self.model), "task": describe(self.datamodule)})
        self.trainer.fit(self.model, self.datamodule, ckpt_path=self.ckpt_path, weights_only=True)


def train() -> None:
    """Entry point of train.py; exits with a message instead of a traceback where the user can mend the cause."""
    if not any(arg in ("-c", "--config") or arg.startswith("--config=") for arg in sys.argv[1:]):
        sys.argv[1:1] = ["--config", str(DEFAULT_CONFIG)]
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)
    try:
        cli = TauflowCLI()
        _say(f"run folder  {cli.trainer.log_dir}\nwatch it    tensorboard --logdir {cli.trainer.default_root_dir}")
        cli.fit()
    except (TauflowError, ValueError) as error:
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
    near = difflib.get_close_matches(f"{group[1]}.{word}" if group else word, settings, n=1, cutoff=0.0)[0]
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
    if files.best_step is not None:
        _say(f"best        {files.best_path}  ({files.monitor} {files.best_score:.5g} at step {files.best_step})")
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
    step, epoch = checkpoint["global_step"], checkpoint["epoch"]
    if trainer.max_steps is not None and 0 <= trainer.max_steps <= step:
        raise CheckpointError(f"{path} is finished: step {step} of {trainer.max_steps}; raise --trainer.max_steps to train it further")
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= epoch:
        raise CheckpointError(f"{path} is finished: epoch {epoch} of {trainer.max_epochs}; raise --trainer.max_epochs to train it further")


def _refuse_other_task(checkpoint: dict, path: Path, model: DFMModule, task: Task) -> None:
    def facts(model: dict, task: dict) -> dict:
        names = ("num_tokens", "seq_len", "source", "schedule", "network")
        return {"task": task["class_path"]} | {name: model["init_args"][name] for name in names}

    saved, now = facts(checkpoint[KEY]["model"], checkpoint[KEY]["task"]), facts(describe(model), describe(task))
    if wrong := [f"{name}: {saved[name]} there, {now[name]} here" for name in saved if saved[name] != now[name]]:
        raise CheckpointError(
            f"{path} was trained with other settings ({'; '.join(wrong)}); continue it with its own: -c {path.parent}/config.yaml"
        )


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable."):
            pass
    except OSError as error:
        raise TauflowError(
            f"cannot write to {folder} ({os.strerror(error.errno)}); choose another folder with --trainer.default_root_dir"
        ) from None
