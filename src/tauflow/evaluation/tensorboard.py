"""Results in TensorBoard: a run for each row of the table, so that one chart overlays the samplers.

docs/monitoring.md explains every tag.
"""

import math
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.loggers import TensorBoardLogger
from torch import tensor
from torch.utils.tensorboard import SummaryWriter

from tauflow import files
from tauflow.evaluation.evaluate import DETAILS
from tauflow.evaluation.figures import evolution, properties_figure, quality_figure
from tauflow.evaluation.images import (
    film_figure,
    samples_figure,
    samples_of,
    shows_only_images,
    summary_line,
)
from tauflow.evaluation.results import REAL, Cell, Results
from tauflow.evaluation.tables import Frame, View, cell_name, to_markdown
from tauflow.tasks import Task

CURVES = ".vs_nfe"  # ends the name of the event file with the curves over NFE
VIEW = View()
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
            group = f"{GROUPS[record.metric]}/" if record.metric in GROUPS else ""
            tag = f"{record.metric}/nfe_{cell.factors['nfe']}"
            writer.add_scalar(f"{group}{tag}", record.measured.value, step)
            if not group and math.isfinite(record.measured.standard_error):
                writer.add_scalar(f"standard_error/{tag}", record.measured.standard_error, step)
    if cells:
        write_samples(writer, cells[-1], results, task, step)


def write_samples(writer: SummaryWriter, cell: Cell, results: Results, task: Task, step: int) -> None:
    """Write the kept samples of a cell, as text, images or both, and how the first one came to be."""
    nfe = cell.factors["nfe"]
    images, film = samples_figure([cell], task), film_figure([cell], task)
    shown = samples_of(cell, task)
    texts = len(shown) > 0 and not shows_only_images(task)
    if images is not None:  # a tag is of texts or of images
        writer.add_figure(f"{'drawings' if texts else 'samples'}/nfe_{nfe}", images, step)
    if texts:
        text = "\n\n".join([summary_line(cell, results), *shown])
        writer.add_text(f"samples/nfe_{nfe}", "\n".join(f"    {line}" for line in text.splitlines()), step)
    if film is not None:
        writer.add_figure(f"evolution/nfe_{nfe}", film, step)
    elif cell.shown is not None and cell.shown.states is not None:
        asked = "" if cell.shown.condition is None else f", {task.caption(tensor(cell.shown.condition[0]))}"
        title = f"{cell_name(cell.factors)}{asked}: one sample from noise (top) to the end"
        writer.add_figure(f"evolution/nfe_{nfe}", evolution(cell.shown.states, task.num_tokens, title), step)


def write_figures(writer: SummaryWriter, results: Results, task: Task, step: int) -> None:
    """Write each metric against NFE as a figure with all samplers, and the numbers that samples have."""
    frame = Frame(results, VIEW)
    for metric in frame.metrics():
        if frame.xs("", metric):
            writer.add_figure(f"{metric}_vs_nfe", quality_figure(frame, metric), step)
    properties = properties_figure(results, task)
    if properties is not None:
        writer.add_figure("properties", properties, step)


def replace_curves(folder: Path, cells: list[Cell], results: Results) -> None:
    """Write each metric against NFE, in an event file that replaces that of the last evaluation.

    A TensorBoard that is running forgets the old points by itself, because steps go back.
    """
    old = list(folder.glob(f"*{CURVES}"))
    with SummaryWriter(str(folder), filename_suffix=CURVES) as writer:
        for cell in cells:
            for record in cell.records:
                if record.metric in results.scales and not math.isnan(record.measured.value):
                    tag = f"{record.metric}_vs_nfe"
                    writer.add_scalar(tag, record.measured.value, int(cell.factors["nfe"]))
    for path in old:
        path.unlink()


def write_grid(results: Results, folder: Path, task: Task, step: int) -> None:
    """Write a finished grid of sample.py into a folder of its own, which replaces that of an earlier call."""
    for path in folder.glob("**/events.out.tfevents.*"):
        path.unlink()
    with SummaryWriter(str(folder)) as writer:
        write_figures(writer, results, task, step)
        writer.add_text("table", to_markdown(results), step)
    for row, cells in rows_of(results).items():
        with SummaryWriter(str(folder / row)) as writer:
            write_cells(writer, cells, results, task, step)
        replace_curves(folder / row, cells, results)


def write_hparams(
    logger: TensorBoardLogger, settings: dict[str, Any], metrics: list[tuple[str, str]]
) -> None:
    """Write a row of the HParams tab: the settings of this run, and the tags whose newest values it shows."""
    from tensorboard.plugins.hparams import summary_v2 as hp  # its `api` would need tensorflow

    path = Path(logger.log_dir) / logger.NAME_HPARAMS_FILE
    files.write(path, yaml.safe_dump(settings, sort_keys=False))  # the logger's own way is not atomic
    values = _flat("", settings)
    columns = [hp.Metric("val/bound")]
    columns += [hp.Metric(tag, group=row, display_name=f"{row} {tag}") for row, tag in metrics]
    # torch's add_hparams would begin a new run and copy the metrics
    writer = logger.experiment._get_file_writer()
    writer.add_summary(hp.hparams_config_pb([hp.HParam(name) for name in values], columns))
    writer.add_summary(hp.hparams_pb(values, trial_id=str(logger.version)))


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        inner = value.get("init_args", value)
        parts = [_flat(f"{prefix}/{key}".lstrip("/"), inner[key]) for key in inner]
        return {name: item for part in parts for name, item in part.items()}
    if isinstance(value, str) and len(value) > 200:
        return {}  # a tokenizer is no hyper-parameter
    if isinstance(value, list):
        return {}
    return {prefix: str(value) if value is None else value}
