"""Study: a question, the cells that answer it, and how one cell is measured.

A cell is a combination of factors, and the view of a study says which factors make a panel, a row and the
axis of its tables and its figure. The store, the resumable loop and the tables are those of
`tauflow.evaluation`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import study_name
from benchmarks.studies.report import FILES, save
from tauflow import files
from tauflow.errors import SettingsError, TauflowError
from tauflow.evaluation.evaluate import GridOptions, run_grid, task_of
from tauflow.evaluation.results import Cell, Factors, Measured, Record, Results, Scale, open_results
from tauflow.evaluation.tables import View
from tauflow.recipes import pretrained
from tauflow.recipes.folders import digest_folder
from tauflow.tasks.task import find_hook
from tauflow.train import SHIPPED, Trained, load
from tauflow.train.checkpoint import find_checkpoint, is_pretrained


@dataclass(frozen=True)
class Settings:
    """What decides the numbers of a study."""

    samples: int
    seeds: Sequence[int]
    nfes: Sequence[int]
    samplers: Sequence[str] = ()  # specs
    checkpoints: Sequence[str] = ()
    judge: str | None = None
    batch_size: int = 32
    data: dict[str, Any] = field(default_factory=dict)  # where the data of the checkpoints lies
    nll_items: int = 0  # real items whose likelihood is measured
    guidance: Sequence[float] = ()  # weights


class Study(ABC):
    """Abstract; the docstring of a final study is its question, its class variables what is measured."""

    samples: ClassVar[int] = 1024  # of each cell
    seeds: ClassVar[tuple[int, ...]] = (0, 1, 2)
    nfes: ClassVar[tuple[int, ...]] = (8, 16, 32)
    samplers: ClassVar[tuple[str, ...]] = ()
    nll_items: ClassVar[int | None] = None  # real items whose likelihood is measured; None: it never is
    guidance: ClassVar[tuple[float, ...] | None] = None  # weights; None: the study has no use for them
    smoke: ClassVar[dict[str, Any]] = {"samples": 2, "seeds": (0,), "nfes": (3, 5), "batch_size": 2}
    view: ClassVar[View] = View(row=("sampler",), panel=("source",))
    stated: ClassVar[dict[str, Scale]] = {}  # the metrics of the tables and the figure
    drawn: ClassVar[tuple[str, ...]] = ()  # patterns of those that the figure shows; none: all of them
    ignores: ClassVar[tuple[str, ...]] = ()  # settings that mean nothing to this study
    grows: ClassVar[tuple[str, ...]] = ()  # settings that choose cells and change none: a folder takes more
    panels_down: ClassVar[bool] = False  # in the figure: panels below each other, metrics side by side
    needs: ClassVar[str] = ""  # checkpoints that a user must name; none: the shipped countdown models will do

    def __init__(self, settings: Settings):
        self.settings = settings
        self.notes: list[str] = []  # what a reader should know, such as samplers that were skipped
        self.written: list[str] = []  # names of the files of the last run

    @property
    def name(self) -> str:
        return name_of(type(self))

    @abstractmethod
    def cells(self) -> list[Factors]:
        """Return what is to be measured; refuse, before any work, what cannot be done."""

    @abstractmethod
    def measure(self, factors: Factors) -> Cell:
        """Measure one cell. Its records may add factors, such as the times of a series that one run finds."""

    def scales(self) -> dict[str, Scale]:
        """Return how the metrics are read that tables and the figure show, in their order."""
        return self.stated

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        """Return what else follows from the results, in Markdown by name: for results.md, and for pages."""
        return {}

    def illustrate(self, results: Results, folder: Path) -> list[str]:
        """Write what people look at beside the report; return the names of the files."""
        return []

    def run(self, folder: Path, progress: bool = False, command: str = "") -> Results:
        """Measure the cells that the folder does not have yet, keep what is found after each, and report.

        The folder is held all the time: a study that another process runs there is refused.
        """
        cells = self.cells()
        settings = dataclasses.asdict(self.settings) | {"sha256": [_digest(path) for path in self.paths()]}
        with open_results(folder, self.name, settings, self.grows, FILES) as results:
            results.scales = self.scales()
            for note in self.notes:
                results.note(note)
            run_grid(results, cells, self.measure, GridOptions(folder, progress))
            self.written = [*save(type(self), results, folder, command), *self.illustrate(results, folder)]
        return results

    def paths(self) -> list[str | Path]:
        """Return the checkpoints to study: those of --ckpt, or the shipped countdown models."""
        if "checkpoints" in self.ignores:
            return []
        if self.needs and not self.settings.checkpoints:
            raise SettingsError(f"the study {self.name} needs --ckpt PATH: {self.needs}")
        shipped = [SHIPPED / f"countdown_{source}.ckpt" for source in ("masked", "uniform")]
        return self.asked() or list(shipped)

    def asked(self) -> list[str | Path]:
        """Return the files of --ckpt, and its folders of pretrained models."""
        asked = self.settings.checkpoints
        return [Path(place) if is_pretrained(place) else find_checkpoint(place) for place in asked]

    @cached_property
    def loaded(self) -> list[Trained]:
        """Return the trained models to study."""
        found = [_loaded(path, self.settings.data) for path in self.paths()]
        if self.settings.judge:
            for trained in found:
                find_hook(task_of(trained), "use_judges", "--judge")(self.settings.judge)
        return found

    @cached_property
    def models(self) -> dict[str, Trained]:
        """Return the trained models to study by the name of their source."""
        found: dict[str, Trained] = {}
        for trained in self.loaded:
            source = trained.model.process.name
            if source in found:
                raise SettingsError(
                    f"two checkpoints have a {source} source; give --ckpt at most one of each"
                )
            found[source] = trained
        return found


def name_of(study: type[Study]) -> str:
    return study_name(study.__name__)


def _loaded(path: str | Path, data: Mapping[str, Any]) -> Trained:
    """Load a checkpoint, or a folder of a pretrained model."""
    return pretrained(path) if Path(path).is_dir() else load(path, data=data)


def _digest(path: str | Path) -> str:
    try:
        return digest_folder(Path(path)) if Path(path).is_dir() else files.digest(path)
    except OSError as error:
        raise TauflowError(f"cannot read {path} ({error.strerror or error}); name another --ckpt") from None


def records(factors: Factors, found: Mapping[str, Measured]) -> list[Record]:
    """Return the records of what was found for these factors."""
    return [Record(factors, name, each) for name, each in found.items()]
