"""SamplerEvaluation: while a model trains, every sampler at every budget, in TensorBoard and as monitors."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from rich.progress import Progress
from torch.utils.tensorboard import SummaryWriter

from tauflow.errors import SettingsError
from tauflow.evaluation import tensorboard
from tauflow.evaluation.evaluate import (
    GridOptions,
    SamplerGrid,
    Sampling,
    describe_failure,
    nll_units,
    scales,
)
from tauflow.evaluation.figures import save_report
from tauflow.evaluation.results import Factors, Results
from tauflow.evaluation.tables import View, cell_name, headline, to_markdown
from tauflow.tasks import Task
from tauflow.train import Trained
from tauflow.train.boards import TensorBoard, board_of
from tauflow.train.callbacks import GracefulStop, validation_follows
from tauflow.train.module import DFMModule

VIEW = View()


@dataclass(eq=False)
class SamplerEvaluation(Callback):
    """Evaluates samplers on the averaged weights during training.

    Add it to a Lightning Trainer to see sample quality in TensorBoard while a model trains, or to use it as
    the monitor of checkpoints; `train.py` has it built in. It changes nothing in training, not a bit.

    Args:
        samplers: specs such as tr_cie(grid=tau), sets (all, paper, ablation, beyond), or auto, the
            recommended one.
        nfes: budgets of network evaluations.
        num_samples: samples per sampler and budget, over all devices.
        batch_size: samples drawn together; devices share batches, so there should be as many as devices.
        every_n_validations: evaluate at the first validation, then at every n-th, and when training ends;
            0 is never.
        seed: of the samples; the same at every evaluation, so that curves compare.
        show: samples of each sampler to show.
        guidance: weights of classifier-free guidance, each its own row; 1 is none.
        max_seconds: per evaluation. Cells that would start later are skipped with a note. None is no limit.
        nll_items: validation items, from the first on, whose likelihood is measured per sampler and budget,
            over all devices; 0 is none.

    Returns:
        A callback. `results` has the newest results, which are also written to `folder`.

    Examples:
        ```python
        evaluation = tauflow.SamplerEvaluation(samplers=["euler", "tr_cie"], nfes=[8, 32])
        trainer = lightning.Trainer(max_steps=1000, callbacks=[evaluation])
        trainer.fit(tauflow.DFMModule(task.facts), TaskData(task))  # from tauflow.tasks.data
        print(evaluation.results.to_markdown())
        ```
    """

    samplers: list[str] | str = "auto"
    nfes: list[int] = field(default_factory=lambda: [8, 16, 32])
    num_samples: int = 64
    batch_size: int = 16
    every_n_validations: int = 1
    seed: int = 0
    show: int = 2
    guidance: list[float] = field(default_factory=list)
    max_seconds: float | None = None
    nll_items: int = 16

    def __post_init__(self) -> None:
        seconds = 1.0 if self.max_seconds is None else self.max_seconds
        least = min(self.every_n_validations, self.show, self.nll_items)
        if least < 0 or not 0 < seconds < math.inf:
            raise SettingsError(
                "The evaluation needs every_n_validations >= 0, show >= 0, nll_items >= 0, and max_seconds > "
                f"0, got {self.every_n_validations}, {self.show}, {self.nll_items}, and {self.max_seconds}."
            )
        self.results: Results | None = None
        self.seconds = 0.0  # spent in evaluations so far
        self._validations = 0
        self._step: int | None = None  # of the newest evaluation
        self._owed: int | None = None  # step whose evaluation was begun, and not finished
        self._values: dict[str, float] = {}  # newest, by the name of the monitor
        self._writers: dict[Path, SummaryWriter] = {}  # of the rows in TensorBoard

    def state_dict(self) -> dict[str, Any]:
        state = {"validations": self._validations, "seconds": self.seconds, "values": self._values}
        return state | {"step": self._step, "owed": self._owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._validations = state["validations"]
        self.seconds = state["seconds"]
        self._values = state["values"]
        self._step = state.get("step")
        self._owed = state.get("owed")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise before training starts if something can't be evaluated."""
        self._root = Path(trainer.log_dir or trainer.default_root_dir)  # asked on all ranks: it is broadcast
        self._names: list[str] = []
        self._metrics: list[str] = []
        self._shown_metrics: list[tuple[str, str]] = []
        if not self.every_n_validations:
            return
        grid = self._grid(trainer, pl_module)
        cells = grid.cells()
        metrics = [str(name) for name in grid.task.sample_metrics()]
        self._names = [name_of(metric, cell) for metric in metrics for cell in cells]
        likely = [cell for cell in cells if cell["sampler"] in grid.likely]
        self._names += [name_of(metric, cell) for metric in nll_units(grid.task) for cell in likely]
        self._metrics = [*scales(grid.task), *(nll_units(grid.task) if likely else ())]
        tag = f"{grid.task.primary_metric}/nfe_{grid.nfes[-1]}"
        rows = dict.fromkeys(VIEW.label(cell, VIEW.row) for cell in cells)
        self._shown_metrics = [(row, tag) for row in rows]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DFMModule)
        task = task_of(trainer)
        settings = tensorboard.settings_of(pl_module, task)
        hparams = tensorboard.hparams_of(trainer, pl_module, task)  # on all ranks: it may need their data
        said = tensorboard.about(trainer, pl_module, settings, self._root)
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if isinstance(logger, TensorBoardLogger):
                tensorboard.write_hparams(logger, settings, hparams, self._shown_metrics)
                tensorboard.write_layout(logger.experiment, self._metrics)
            else:
                logger.log_hyperparams(hparams | {"settings": tensorboard.brief(settings)})
            if board := board_of(logger):
                board.text("overview/about_this_run", said, trainer.global_step)
        if self.every_n_validations and trainer.global_step and self._owed == trainer.global_step:
            self._evaluate(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit" or not self.every_n_validations:
            return
        if not trainer.sanity_checking:
            stop = _stop_of(trainer)
            caused_by_stop = stop is not None and bool(stop.stopped_by)
            counts = not caused_by_stop or validation_follows(trainer, trainer.fit_loop.batch_idx)
            self._validations += counts
            due = counts and (self._validations - 1) % self.every_n_validations == 0
            if due or _at_the_end(trainer):
                self._evaluate(trainer, pl_module)
        for name in self._names:  # between evaluations the newest values stand: monitors always find one
            pl_module.log(name, self._values.get(name, math.nan), logger=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate a run that ends between validations."""
        stop = _stop_of(trainer)
        stopped = stop is not None and bool(stop.stopped_by) and not _at_the_end(trainer)
        tried = trainer.global_step in (0, self._step, self._owed)
        if self.every_n_validations and not tried and not stopped:
            self._evaluate(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    @property
    def folder(self) -> Path | None:
        """Return where the newest results are written to."""
        return self._root / "evaluation" if self.results else None

    @property
    def sampling(self) -> Sampling:
        size = (self.num_samples, self.batch_size, self.seed, self.show)
        return Sampling(*size, nll_items=self.nll_items)

    def _grid(self, trainer: Trainer, module: LightningModule) -> SamplerGrid:
        task = task_of(trainer)
        if task is None or not isinstance(module, DFMModule):
            raise SettingsError(
                "SamplerEvaluation needs a DFMModule and a task, which measures samples. Train with "
                "tauflow.tasks.data.TaskData(task), or remove the callback."
            )
        trained = Trained(module.model(), task, trainer.global_step)
        return SamplerGrid(trained, self.samplers, self.nfes, self.guidance, self.sampling)

    def _evaluate(self, trainer: Trainer, module: LightningModule) -> None:
        """Measure and write; where training is asked to stop meanwhile, nothing: a resume does it then."""
        self._owed = trainer.global_step
        begin = time.perf_counter()
        try:
            with isolate_rng(), trainer.precision_plugin.forward_context():
                grid = self._grid(trainer, module)
                results = self._measured(trainer, grid, begin)
                stop = _stop_of(trainer)
                asked = stop is not None and stop.asked is not None
                if trainer.strategy.reduce_boolean_decision(asked, all=False):  # any process
                    return
                if trainer.is_global_zero and not fast_dev_run(trainer):
                    self._write(trainer, results, grid.task)
        except Exception as error:  # whatever happens here, training continues
            rank_zero_warn(
                f"the sampler evaluation at step {trainer.global_step} failed: {describe_failure(error)}"
            )
            self._values = {}
            return
        self.results = results
        self._values = values_of(results)
        self._step = trainer.global_step
        self._owed = None
        self._record(trainer, module, results, time.perf_counter() - begin)
        if trainer.is_global_zero and not _at_the_end(trainer):
            print(f"samplers    step {trainer.global_step}  {headline(results)}", flush=True)

    def _measured(self, trainer: Trainer, grid: SamplerGrid, begin: float) -> Results:
        def until() -> str:
            if self.max_seconds is not None and time.perf_counter() - begin > self.max_seconds:
                return f"the {self.max_seconds:g} seconds of the evaluation were spent"
            stop = _stop_of(trainer)
            return "training was asked to stop" if stop and stop.asked else ""

        bar = trainer.progress_bar_callback
        progress: bool | Progress = False
        if isinstance(bar, RichProgressBar) and bar.is_enabled and bar.progress:
            progress = bar.progress
        names = ("samplers", "nfes", "num_samples", "batch_size", "seed", "guidance", "nll_items")
        settings = {"step": trainer.global_step, **{name: getattr(self, name) for name in names}}
        return grid.run(
            Results(settings=settings), GridOptions(progress=progress, keep_going=True, until=until)
        )

    def _record(self, trainer: Trainer, module: LightningModule, results: Results, seconds: float) -> None:
        """Warn of problems, and give the values to other loggers than TensorBoard."""
        for cell in results.problems:
            rank_zero_warn(
                f"sampler evaluation at step {trainer.global_step}: {cell_name(cell.factors)}: {cell.problem}"
            )
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger):
                logger.log_metrics(values_of(results), step=trainer.global_step)
        self.seconds += seconds
        assert isinstance(module, DFMModule)
        module.record(trainer.global_step, {"sampling/evaluation_seconds": seconds})

    def _write(self, trainer: Trainer, results: Results, task: Task) -> None:
        """Write to files and boards. What fails is a warning: every rank keeps the same results."""
        try:
            save_report(results, self._root / "evaluation", task)
            self._write_boards(trainer, results, task)
        except Exception as error:
            rank_zero_warn(
                f"the sampler evaluation at step {trainer.global_step} can't be written: "
                f"{describe_failure(error)}"
            )

    def _write_boards(self, trainer: Trainer, results: Results, task: Task) -> None:
        for logger in trainer.loggers:
            board = board_of(logger)
            if board is None:
                continue
            step = trainer.global_step
            board.table("overview/table", results.to_frame(), to_markdown(results), step)
            tensorboard.write_figures(board, results, task, step)
            if isinstance(board, TensorBoard):
                self._write_tensorboard(board, results, task, step)
                continue
            for row, cells in tensorboard.rows_of(results).items():
                tensorboard.write_samples(board, f"samples/{row}", cells[-1], results, task, step)

    def _write_tensorboard(self, board: TensorBoard, results: Results, task: Task, step: int) -> None:
        """Write what only TensorBoard shows: an image of samples, and a run for each row."""
        tensorboard.write_first_samples(board, results, task, step)
        for row, cells in tensorboard.rows_of(results).items():
            folder = Path(board.writer.log_dir) / row
            if folder not in self._writers:  # TensorBoard drops what a killed run wrote after its checkpoint
                self._writers[folder] = SummaryWriter(str(folder), purge_step=step)
            tensorboard.write_cells(self._writers[folder], cells, results, task, step)
            tensorboard.replace_curves(folder, cells, results)
            self._writers[folder].flush()


def fast_dev_run(trainer: Trainer) -> bool:
    """Return whether this is a trial of a few batches, which leaves no files."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # set by a function of Lightning


def task_of(trainer: Trainer) -> Task | None:
    """Return the task whose data is trained on, if there is one."""
    return getattr(getattr(trainer, "datamodule", None), "task", None)


def name_of(metric: str, factors: Factors) -> str:
    """Return the name that a sampled metric has as a monitor."""
    return f"sampling/{metric}/{VIEW.label(factors, VIEW.row)}/nfe_{factors['nfe']}"


def values_of(results: Results) -> dict[str, float]:
    """Return the values of all monitors."""
    records = [each for each in results.records if "nfe" in each.factors and each.metric in results.scales]
    return {name_of(each.metric, each.factors): each.measured.value for each in records}


def owes_evaluation(checkpoint: dict[str, Any]) -> bool:
    """Return whether the evaluation of a checkpoint's step was begun, and has still to be made."""
    state = checkpoint.get("callbacks", {}).get(SamplerEvaluation.__qualname__, {})
    return state.get("owed") == checkpoint["global_step"]


def _at_the_end(trainer: Trainer) -> bool:
    return trainer.global_step >= trainer.estimated_stepping_batches


def _stop_of(trainer: Trainer) -> GracefulStop | None:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector of Lightning
    return next((callback for callback in callbacks if isinstance(callback, GracefulStop)), None)
