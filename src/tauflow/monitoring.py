"""SamplerEvaluation: while a model trains, every sampler at every budget, in TensorBoard; docs/monitoring.md explains every tag."""

import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.tensorboard import SummaryWriter

from tauflow.callbacks import GracefulStop
from tauflow.checkpoints import describe
from tauflow.errors import SettingsError
from tauflow.evaluation import check, choose_samplers, evaluate
from tauflow.module import DFMModule
from tauflow.plots import evolution
from tauflow.runs import Run
from tauflow.tables import Cell, Table

DETAILS = {  # facts of a cell by the group of charts they stand in
    "steps": ("jumped", "clamped", "several_events", "leftover_masks"),
    "time": ("sampler_ms_per_sample", "network_share"),
}
CURVES = ".vs_nfe"  # ends the name of the event file with the curves over NFE


class SamplerEvaluation(Callback):
    """Evaluates samplers on the averaged weights during training. It changes nothing in training: not a bit of the weights.

    Args:
        samplers: names of samplers, or of sets: all, paper, ablation, beyond.
        nfes: budgets of network evaluations.
        num_samples: samples for each sampler and budget, over all devices.
        batch_size: samples drawn together; devices share batches, so there should be as many as devices.
        every_n_validations: evaluate at the first validation, at every so many after it, and when training ends; 0 for never.
        seed: of the samples; the same at every evaluation, so that curves compare.
        show: samples of each sampler to show as text, at most batch_size.
        max_seconds: of one evaluation; cells that would begin later are skipped, and that is said. By default no limit.
    """

    def __init__(
        self,
        samplers: list[str] | str = "paper",
        nfes: list[int] = [8, 16, 32],  # noqa: B006 - never changed
        num_samples: int = 64,
        batch_size: int = 16,
        every_n_validations: int = 1,
        seed: int = 0,
        show: int = 2,
        max_seconds: float | None = None,
    ):
        if every_n_validations < 0 or show < 0 or (max_seconds is not None and max_seconds <= 0):
            raise SettingsError(
                f"need every_n_validations >= 0, show >= 0 and max_seconds > 0, got {every_n_validations}, {show} and {max_seconds}"
            )
        self.samplers = samplers
        self.nfes = nfes
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.every_n_validations = every_n_validations
        self.seed = seed
        self.show = show
        self.max_seconds = max_seconds
        self.table: Table | None = None
        self.seconds = 0.0  # spent in evaluations so far
        self._validations = 0
        self._values: dict[str, float] = {}  # newest, by the name of the monitor
        self._writers: dict[str, SummaryWriter] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations, "seconds": self.seconds, "values": self._values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._validations, self.seconds, self._values = state["validations"], state["seconds"], state["values"]

    def setup(self, trainer: Trainer, pl_module: DFMModule, stage: str) -> None:
        """What cannot be evaluated is refused before training begins."""
        self._root = Path(trainer.log_dir or trainer.default_root_dir)  # asked on all ranks: it is broadcast
        self._names: list[str] = []
        self._shown_metrics: list[tuple[str, str]] = []
        if not self.every_n_validations:
            return
        run = self._run(trainer, pl_module)
        samplers, _ = choose_samplers(self.samplers, run)
        nfes = check(run, samplers, self.nfes, self.num_samples, self.batch_size)
        metrics = list(run.task.sample_metrics())
        self._names = [name_of(metric, sampler, nfe) for metric in metrics for sampler in samplers for nfe in nfes]
        self._shown_metrics = [(sampler, f"{run.task.headline}/nfe_{nfes[-1]}") for sampler in samplers]

    def on_train_start(self, trainer: Trainer, pl_module: DFMModule) -> None:
        settings = {"model": describe(pl_module)["init_args"], "task": describe(trainer.datamodule)["init_args"]}
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(settings)
            elif trainer.is_global_zero:
                write_hparams(logger, settings, self._shown_metrics)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: DFMModule) -> None:
        if trainer.state.fn != "fit" or not self.every_n_validations:
            return
        if not trainer.sanity_checking:
            self._validations += 1
            last = trainer.global_step >= trainer.estimated_stepping_batches
            if (self._validations - 1) % self.every_n_validations == 0 or last:
                self._values = self._evaluate(trainer, pl_module)
        for name in self._names:  # between evaluations the newest values stand, so that monitors always find one
            pl_module.log(name, self._values.get(name, math.nan), logger=False)

    def on_train_end(self, trainer: Trainer, pl_module: DFMModule) -> None:
        """A run may end between validations."""
        stop = _stop_of(trainer)
        evaluated = self.table is not None and self.table.settings["step"] == trainer.global_step
        if self.every_n_validations and trainer.global_step and not evaluated and not (stop and stop.stopped_by):
            self._values = self._evaluate(trainer, pl_module)

    def _evaluate(self, trainer: Trainer, pl_module: DFMModule) -> dict[str, float]:
        begin = time.perf_counter()

        def until() -> str:
            if self.max_seconds is not None and time.perf_counter() - begin > self.max_seconds:
                return f"the {self.max_seconds:g} seconds of the evaluation were spent"
            stop = _stop_of(trainer)
            return "training was asked to stop" if stop and stop.asked else ""

        bar = trainer.progress_bar_callback
        try:
            with isolate_rng(), trainer.precision_plugin.forward_context():
                table = evaluate(
                    self._run(trainer, pl_module),
                    self.samplers,
                    self.nfes,
                    self.num_samples,
                    batch_size=self.batch_size,
                    seed=self.seed,
                    show=self.show,
                    device=pl_module.device,
                    progress=bar.progress if isinstance(bar, RichProgressBar) and bar.is_enabled else False,
                    keep_going=True,
                    until=until,
                    settings=self._settings(trainer),
                )
                if trainer.is_global_zero and not trainer.fast_dev_run:
                    self._write(trainer, pl_module, table)
        except Exception as error:  # whatever happens here, training goes on
            rank_zero_warn(f"the sampler evaluation at step {trainer.global_step} failed: {type(error).__name__}: {error}")
            return {}
        for cell in table.problems:
            rank_zero_warn(f"sampler evaluation at step {trainer.global_step}: {cell.sampler} at NFE {cell.nfe} {cell.problem}")
        self.table = table
        values = {name_of(metric, cell.sampler, cell.nfe): found.value for cell in table.cells for metric, found in cell.metrics.items()}
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger):
                logger.log_metrics(values, step=trainer.global_step)
        seconds = time.perf_counter() - begin
        self.seconds += seconds
        pl_module.record(trainer.global_step, {"sampling/evaluation_seconds": seconds})
        return values

    def _settings(self, trainer: Trainer) -> dict[str, Any]:
        names = ("samplers", "nfes", "num_samples", "batch_size", "seed")
        return {"step": trainer.global_step, **{name: getattr(self, name) for name in names}}

    @property
    def folder(self) -> Path | None:
        """Where the newest table is written to."""
        return self._root / "evaluation" if self.table else None

    def _write(self, trainer: Trainer, pl_module: DFMModule, table: Table) -> None:
        table.save(self._root / "evaluation", trainer.datamodule)
        logger = _tensorboard(trainer)
        if not logger:
            return
        step = trainer.global_step
        for metric in table.higher_is_better:
            logger.experiment.add_figure(f"{metric}_vs_nfe", table.plot(metric), step)
        for sampler in table.samplers:
            if sampler not in self._writers:
                purge = step if self._validations > 1 else None  # of a resumed run: what the killed one wrote later
                self._writers[sampler] = SummaryWriter(str(self._root / sampler), purge_step=purge)
            writer = self._writers[sampler]
            cells = [cell for cell in table.cells if cell.sampler == sampler and not cell.problem]
            for cell in cells:
                _write_cell(writer, cell, step)
            _replace_curves(self._root / sampler, cells)
            if cells:
                self._write_samples(writer, cells[-1], pl_module, trainer, step)
            writer.flush()

    def _write_samples(self, writer: SummaryWriter, cell: Cell, pl_module: DFMModule, trainer: Trainer, step: int) -> None:
        """Text and a trajectory, at the largest budget."""
        if self.show:
            text = Table([cell], {}).samples_text(trainer.datamodule)
            writer.add_text(f"samples/nfe_{cell.nfe}", "\n".join(f"    {line}" for line in text.splitlines()), step)
        if cell.states is not None:
            title = f"{cell.sampler}, NFE {cell.nfe}: one sample from noise (top) to the end"
            writer.add_figure(f"evolution/nfe_{cell.nfe}", evolution(cell.states, pl_module.num_tokens, title), step)

    def teardown(self, trainer: Trainer, pl_module: DFMModule, stage: str) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    @staticmethod
    def _run(trainer: Trainer, pl_module: DFMModule) -> Run:
        path = pl_module.path
        return Run(trainer.datamodule, pl_module.denoiser(), path.source, path.schedule, trainer.global_step)


def _stop_of(trainer: Trainer) -> GracefulStop | None:
    return next((callback for callback in trainer.callbacks if isinstance(callback, GracefulStop)), None)


def name_of(metric: str, sampler: str, nfe: int) -> str:
    """The name that a sampled metric has as a monitor."""
    return f"sampling/{metric}/{sampler}/nfe_{nfe}"


def _write_cell(writer: SummaryWriter, cell: Cell, step: int) -> None:
    """Scalars against the training step."""
    for metric, found in cell.metrics.items():
        writer.add_scalar(f"{metric}/nfe_{cell.nfe}", found.value, step)
        if math.isfinite(found.standard_error):
            writer.add_scalar(f"standard_error/{metric}/nfe_{cell.nfe}", found.standard_error, step)
    for group, names in DETAILS.items():
        for name in names:
            writer.add_scalar(f"{group}/{name}/nfe_{cell.nfe}", getattr(cell, name), step)


def _replace_curves(folder: Path, cells: list[Cell]) -> None:
    """Each metric against NFE, in an event file of its own that takes the place of the last evaluation's: the newest curve alone is shown.
    A TensorBoard that is running forgets the old points by itself, because steps go back."""
    old = list(folder.glob(f"*{CURVES}"))
    with SummaryWriter(str(folder), filename_suffix=CURVES) as writer:
        for cell in cells:
            for metric, found in cell.metrics.items():
                writer.add_scalar(f"{metric}_vs_nfe", found.value, cell.nfe)
    for path in old:
        path.unlink()


def write_hparams(logger: TensorBoardLogger, settings: dict[str, Any], metrics: list[tuple[str, str]]) -> None:
    """A row of the HParams tab: the settings of this run; its metrics are the newest values of val/bound and of the samplers' tags."""
    from tensorboard.plugins.hparams import summary_v2 as hp  # its `api` would need tensorflow

    logger.hparams.update(settings)  # it writes them to hparams.yaml
    values = _flat("", settings)
    columns = [hp.Metric("val/bound"), *(hp.Metric(tag, group=sampler, display_name=f"{sampler} {tag}") for sampler, tag in metrics)]
    writer = logger.experiment._get_file_writer()  # add_hparams of torch would begin a new run and copy the metrics there
    writer.add_summary(hp.hparams_config_pb([hp.HParam(name) for name in values], columns))
    writer.add_summary(hp.hparams_pb(values, trial_id=str(logger.version)))


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        inner = value.get("init_args", value)
        return {name: item for key in inner for name, item in _flat(f"{prefix}/{key}".lstrip("/"), inner[key]).items()}
    if isinstance(value, str) and len(value) > 200:
        return {}  # a whole tokenizer is no hyper-parameter
    return {} if isinstance(value, list) else {prefix: str(value) if value is None else value}


def _tensorboard(trainer: Trainer) -> TensorBoardLogger | None:
    if not trainer.is_global_zero:
        return None
    return next((logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)), None)
