"""Results in TensorBoard: a run for each row of the table, so that one chart overlays the samplers.

Texts and figures are written to boards (`tauflow.train.boards`), which W&B and MLflow have too.
docs/monitoring.md explains every tag.
"""

import math
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import tensor
from torch.utils.tensorboard import SummaryWriter

from tauflow import files
from tauflow.errors import shorten
from tauflow.evaluation.evaluate import DETAILS
from tauflow.evaluation.figures import evolution, properties_figure, quality_figure, text_figure
from tauflow.evaluation.images import (
    film_figure,
    samples_figure,
    samples_of,
    shows_only_images,
    summary_line,
)
from tauflow.evaluation.results import REAL, Cell, Results, versions
from tauflow.evaluation.tables import Frame, View, cell_name, to_markdown
from tauflow.tasks import Task
from tauflow.train.boards import Board, TensorBoard, tensorboard_tag
from tauflow.train.callbacks import RunSummary, in_words
from tauflow.train.module import DFMModule, describe

CURVES = ".vs_nfe"  # ends the name of the event file with the curves over NFE
VIEW = View()
LONG = 16  # values of a list that are shown
NAMES = ("task", "source", "schedule", "network", "optimizer")
"""Settings of a run that the HParams tab shows first."""
GROUPS = {name: group for group, names in DETAILS.items() for name in names}


def rows_of(results: Results) -> dict[str, list[Cell]]:
    """Return the measured cells of each row, by its label."""
    rows: dict[str, list[Cell]] = {}
    for cell in results.cells:
        if not cell.problem and cell.factors.get("sampler") != REAL:
            rows.setdefault(VIEW.label(cell.factors, VIEW.row), []).append(cell)
    return rows


def write_cells(writer: SummaryWriter, cells: list[Cell], results: Results, task: Task, step: int) -> None:
    """Write the cells of one row at a training step: scalars, and the samples of the largest budget."""
    for cell in cells:
        for record in cell.records:
            if math.isnan(record.measured.value):  # such as the error rate of a label that nobody asked for
                continue
            group = GROUPS.get(record.metric)
            tag = f"{record.metric}/nfe_{cell.factors['nfe']}"
            name = f"details/{group}/{tag}" if group else f"quality/{tag}"
            writer.add_scalar(tensorboard_tag(name), record.measured.value, step)
            if not group and math.isfinite(record.measured.standard_error):
                name = tensorboard_tag(f"details/standard_error/{tag}")
                writer.add_scalar(name, record.measured.standard_error, step)
    if cells:
        write_samples(TensorBoard(writer), "samples", cells[-1], results, task, step)


def write_samples(board: Board, group: str, cell: Cell, results: Results, task: Task, step: int) -> None:
    """Write the kept samples of a cell, as text, images or both, and how the first one came to be."""
    nfe = cell.factors["nfe"]
    images, film = samples_figure([cell], task), film_figure([cell], task)
    shown = samples_of(cell, task)
    texts = len(shown) > 0 and not shows_only_images(task)
    if images is not None:  # a tag is of texts or of images
        board.figure(f"{group}/{'drawings/' if texts else ''}nfe_{nfe}", images, step)
    if texts:
        board.samples(f"{group}/nfe_{nfe}", summary_line(cell, results), list(shown), step)
    if film is not None:
        board.figure(f"{group}/evolution/nfe_{nfe}", film, step)
    elif cell.shown is not None and cell.shown.states is not None:
        asked = "" if cell.shown.condition is None else f", {task.caption(tensor(cell.shown.condition[0]))}"
        title = f"{cell_name(cell.factors)}{asked}: one sample, start to end"
        board.figure(
            f"{group}/evolution/nfe_{nfe}", evolution(cell.shown.states, task.num_tokens, title), step
        )


def write_figures(board: Board, results: Results, task: Task, step: int) -> None:
    """Write the figures of all samplers: each metric against NFE, and the numbers that samples have."""
    frame = Frame(results, VIEW)
    first, *others = [metric for metric in frame.metrics() if frame.xs("", metric)] or [""]
    if first:
        board.figure(f"overview/{first}_vs_nfe", quality_figure(frame, first), step)
    for metric in others:
        board.figure(f"curves/{metric}_vs_nfe", quality_figure(frame, metric), step)
    properties = properties_figure(results, task)
    if properties is not None:
        board.figure("samples/properties", properties, step)


def write_first_samples(board: TensorBoard, results: Results, task: Task, step: int) -> None:
    """Write samples of the first sampler at the largest budget as an image, for the first screen."""
    for cells in list(rows_of(results).values())[:1]:
        shown = samples_of(cells[-1], task)
        if isinstance(shown, np.ndarray):
            figure = samples_figure(cells[-1:], task)
        else:
            figure = text_figure(shown, results.title(cells[-1].factors)) if shown else None
        if figure is not None:
            board.figure("overview/samples", figure, step)


def replace_curves(folder: Path, cells: list[Cell], results: Results) -> None:
    """Write each metric against NFE, in an event file that replaces that of the last evaluation.

    A TensorBoard that is running forgets the old points by itself, because steps go back.
    """
    old = list(folder.glob(f"*{CURVES}"))
    with SummaryWriter(str(folder), filename_suffix=CURVES) as writer:
        for cell in cells:
            for record in cell.records:
                if record.metric in results.scales and not math.isnan(record.measured.value):
                    tag = tensorboard_tag(f"curves/{record.metric}_vs_nfe")
                    writer.add_scalar(tag, record.measured.value, int(cell.factors["nfe"]))
    for path in old:
        path.unlink()


def write_grid(results: Results, folder: Path, task: Task, step: int) -> None:
    """Write a finished grid of sample.py into a folder of its own, which replaces that of an earlier call."""
    for path in folder.glob("**/events.out.tfevents.*"):
        path.unlink()
    with SummaryWriter(str(folder)) as writer:
        board = TensorBoard(writer)
        write_figures(board, results, task, step)
        write_first_samples(board, results, task, step)
        board.table("overview/table", results.to_frame(), to_markdown(results), step)
    for row, cells in rows_of(results).items():
        with SummaryWriter(str(folder / row)) as writer:
            write_cells(writer, cells, results, task, step)
        replace_curves(folder / row, cells, results)


# A run itself: its settings, its charts, and what it is


def settings_of(module: DFMModule, task: Task | None) -> dict[str, Any]:
    """Return the settings of a module and its task as plain data."""
    settings = {"model": describe(module)["init_args"]}
    return settings | ({"task": describe(task)["init_args"]} if task is not None else {})


def brief(settings: Any) -> Any:
    """Return settings without what is too long to read, such as a tokenizer."""
    if isinstance(settings, dict):
        return {name: brief(value) for name, value in settings.items()}
    if isinstance(settings, list) and len(settings) > LONG:
        return f"{len(settings)} values"
    return shorten(settings) if isinstance(settings, str) else settings


def hparams_of(trainer: Trainer, module: DFMModule, task: Task | None) -> dict[str, str | float | bool]:
    """Return the settings that tell runs apart: names, then numbers."""
    optimizer = module.optimizer_config
    rate = optimizer.muon_learning_rate if optimizer.name == "muon" else optimizer.learning_rate
    parameters = in_words(sum(parameter.numel() for parameter in module.network.parameters()))
    network = describe(module.network_config)["init_args"]
    rates = ["learning_rate", *(["muon_learning_rate"] if optimizer.name == "muon" else [])]
    others = ("warmup_steps", "weight_decay", "ema_decay")
    return {
        **({"task": type(task).__name__} if task is not None else {}),
        "source": module.process.name,
        "schedule": module.schedule.name,
        "network": f"{type(module.network).__name__}, {parameters}",
        "optimizer": f"{optimizer.name}, {rate:g}",
        **{name: getattr(optimizer, name) for name in rates},
        **{name: value for name, value in network.items() if isinstance(value, bool | int | float | str)},
        **({"batch_size": task.batch_size} if task is not None else {}),
        "steps": trainer.estimated_stepping_batches,
        **{name: getattr(optimizer, name) for name in others},
        "seed": module.seed,
    }


def write_hparams(
    logger: TensorBoardLogger,
    settings: dict[str, Any],
    hparams: dict[str, str | float | bool],
    metrics: list[tuple[str, str]],
) -> None:
    """Write a row of the HParams tab: what tells runs apart, and the tags whose newest values it shows."""
    from tensorboard.plugins.hparams import plugin_data_pb2
    from tensorboard.plugins.hparams import summary_v2 as hp  # its `api` would need tensorflow

    path = Path(logger.log_dir) / logger.NAME_HPARAMS_FILE
    files.write(path, yaml.safe_dump(settings, sort_keys=False))  # the logger's own way is not atomic
    columns = [hp.Metric(tensorboard_tag("val/bound"), display_name="val/bound")]
    for row, name in metrics:
        columns.append(hp.Metric(tensorboard_tag(f"quality/{name}"), group=row, display_name=f"{row} {name}"))
    summary = hp.hparams_config_pb([hp.HParam(name) for name in hparams], columns)
    plugin = summary.value[0].metadata.plugin_data
    data = plugin_data_pb2.HParamsPluginData.FromString(plugin.content)
    for info in data.experiment.hparam_infos:
        info.differs = info.name in NAMES  # TensorBoard lists those first, and shows five
    plugin.content = data.SerializeToString()
    # torch's add_hparams would begin a new run and copy the metrics
    writer = logger.experiment._get_file_writer()
    writer.add_summary(summary)
    # rows of one name are averaged, so each run has its own
    writer.add_summary(hp.hparams_pb(hparams, trial_id=name_of_run(Path(logger.log_dir))))


def name_of_run(folder: Path) -> str:
    """Return where a run is, with what tells runs apart at the beginning: smoke/version_0 in checkpoints."""
    folder, here = folder.resolve(), Path.cwd()
    parent = folder.parent.parent
    place = parent.relative_to(here) if parent.is_relative_to(here) else parent
    return f"{folder.parent.name}/{folder.name} in {place}"


def write_layout(writer: SummaryWriter, metrics: list[str]) -> None:
    """Write the charts of the Custom Scalars tab: the loss, the bound, and each metric of samples."""

    def chart(name: str, end: str = "$") -> list[Any]:
        return ["Multiline", [f"^{tensorboard_tag(name)}{end}"]]

    training = {name: chart(name) for name in ("train/loss", "val/bound")}
    quality = {f"{metric} by training step": chart(f"quality/{metric}", "/nfe_") for metric in metrics}
    curves = {f"{metric} by NFE (called step)": chart(f"curves/{metric}_vs_nfe") for metric in metrics}
    writer.add_custom_scalars({"1 Training": training, "2 Quality": quality, "3 Quality by NFE": curves})


def about(trainer: Trainer, module: DFMModule, settings: dict[str, Any], folder: Path) -> str:
    """Return what a run is, in Markdown: command, folder, network, data, versions, settings."""
    installed = Path(sys.argv[0]).name == "tauflow"
    first, *words = sys.argv if installed else sys.orig_argv
    facts = [("command", f"`{shlex.join([Path(first).name, *words])}`"), ("run folder", f"`{folder}`")]
    for line in RunSummary().lines(trainer, module):
        name, _, rest = line.partition(" ")
        facts.append((name, rest.strip()))
    facts.append(("versions", ", ".join(f"{name} {version}" for name, version in versions().items())))
    table = "\n".join(f"| {name} | {fact} |" for name, fact in facts)
    shown = yaml.safe_dump(brief(settings), sort_keys=False, width=100)
    head = "| about | this run |\n|---|---|"
    return f"{head}\n{table}\n\nThe settings of the trainer are in `config.yaml`.\n\n```yaml\n{shown}```"
