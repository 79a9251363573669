"""Boards: the texts, tables, and figures that loggers show next to numbers, and where to look at them.

A name is `group/what`, such as `samples/tr_cie/nfe_32`. TensorBoard sorts charts by the group, so there the
groups are numbered: what everybody wants to see first comes first. Other loggers get the plain names.
"""

import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter

GROUPS = ("overview", "quality", "curves", "samples", "training", "details")
"""Groups of charts in TensorBoard, in their order."""
OVERVIEW = ("train/loss", "val/bound")


def tensorboard_tag(name: str) -> str:
    """Return the tag of a name in TensorBoard: `quality/nll/nfe_8` is `2_quality/nll/nfe_8`.

    Metrics of training, such as `train/loss`, keep their name behind the group: `1_overview/train/loss`.
    """
    group, _, _ = name.partition("/")
    if name in OVERVIEW:
        name = f"overview/{name}"
    elif group in ("train", "val"):
        name = f"training/{name}"
    elif group not in GROUPS:
        name = f"details/{name}"
    return f"{GROUPS.index(name.partition('/')[0]) + 1}_{name}"


def log_scalars(loggers: Sequence[Logger], values: dict[str, float], step: int) -> None:
    """Write numbers to loggers, in TensorBoard in their groups."""
    for logger in loggers:
        grouped = isinstance(logger, TensorBoardLogger)
        logger.log_metrics(
            {tensorboard_tag(name) if grouped else name: v for name, v in values.items()}, step
        )


class Board(Protocol):
    """Where a logger shows more than numbers."""

    def text(self, name: str, markdown: str, step: int) -> None:
        """Show a text in Markdown."""

    def samples(self, name: str, heading: str, texts: Sequence[str], step: int) -> None:
        """Show samples that are texts, with a line about them where the logger can show one."""

    def table(self, name: str, frame: "pandas.DataFrame", markdown: str, step: int) -> None:
        """Show a table: as a data frame, or as what it is in Markdown."""

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """Show a figure."""


class TensorBoard:
    """TensorBoard's board: a run of it, which is a folder."""

    def __init__(self, writer: "SummaryWriter"):
        self.writer = writer

    def text(self, name: str, markdown: str, step: int) -> None:
        self.writer.add_text(tensorboard_tag(name), markdown, step)

    def samples(self, name: str, heading: str, texts: Sequence[str], step: int) -> None:
        lines = "\n\n".join([heading, *texts]).splitlines()
        code = "\n".join(f"    {line}" for line in lines)  # in which no line is wrapped or joined
        self.text(name, code, step)

    def table(self, name: str, frame: "pandas.DataFrame", markdown: str, step: int) -> None:
        self.text(name, markdown, step)

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        self.writer.add_figure(tensorboard_tag(name), figure, step)


class Wandb:
    """The board of W&B: tables and images of the run's workspace."""

    def __init__(self, logger: WandbLogger):
        self.logger = logger

    def text(self, name: str, markdown: str, step: int) -> None:
        self.logger.log_text(name, columns=["text"], data=[[markdown]], step=step)

    def samples(self, name: str, heading: str, texts: Sequence[str], step: int) -> None:
        self.logger.log_text(name, columns=["sample"], data=[[text] for text in texts], step=step)

    def table(self, name: str, frame: "pandas.DataFrame", markdown: str, step: int) -> None:
        cells = frame.astype(object).where(frame.notna(), None)  # W&B takes numbers or nothing
        self.logger.log_table(name, columns=list(frame), data=cells.values.tolist(), step=step)

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        from PIL import Image

        file = io.BytesIO()
        figure.savefig(file, format="png")
        self.logger.log_image(name, images=[Image.open(file)], step=step)


class MLflow:
    """The board of MLflow: artifacts of the run, a file per name and step."""

    def __init__(self, logger: MLFlowLogger):
        self.logger = logger

    def text(self, name: str, markdown: str, step: int) -> None:
        self.logger.experiment.log_text(self.logger.run_id, markdown, f"{name}/step_{step}.md")

    def samples(self, name: str, heading: str, texts: Sequence[str], step: int) -> None:
        text = "\n\n".join([heading, *texts])
        self.logger.experiment.log_text(self.logger.run_id, text, f"{name}/step_{step}.txt")

    def table(self, name: str, frame: "pandas.DataFrame", markdown: str, step: int) -> None:
        self.text(name, markdown, step)

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        self.logger.experiment.log_figure(self.logger.run_id, figure, f"{name}/step_{step}.png")


def board_of(logger: Logger) -> Board | None:
    """Return the board of a logger; None if it shows numbers only."""
    if isinstance(logger, TensorBoardLogger):
        return TensorBoard(logger.experiment)
    if isinstance(logger, WandbLogger):
        return Wandb(logger)
    if isinstance(logger, MLFlowLogger):
        return MLflow(logger)
    return None


def where_to_look(logger: Logger) -> str:
    """Return the command, address, or file that shows what a logger has written."""
    if isinstance(logger, TensorBoardLogger):
        folder = Path(logger.log_dir)
        return f"tensorboard --logdir {shlex.quote(str(folder.parent))}"
    if isinstance(logger, CSVLogger):
        return str(Path(logger.log_dir) / "metrics.csv")
    if isinstance(logger, WandbLogger):
        run: Any = logger.experiment
        if run.disabled:
            return "nowhere: W&B is disabled"
        return f"wandb sync {shlex.quote(str(Path(run.dir).parent))}" if run.offline else run.url
    if isinstance(logger, MLFlowLogger):
        place = str(logger._tracking_uri)
        served = place.startswith(("http://", "https://", "databricks"))
        return place if served else f"mlflow ui --backend-store-uri {shlex.quote(place)}"
    return f"{type(logger).__name__} {logger.save_dir or ''}".strip()
