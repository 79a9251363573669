"""Study: a question, the measurements that answer it, and `run`, which makes them one by one and can be interrupted.

A study is a list of jobs. A job belongs to a panel (a table, and axes of the figure), to a row of it (a line), to a value of x (such as the
NFE) and to a seed; measuring it gives records. Everything else - resuming, seeds, tables, the figure - is the same for all studies.
"""

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tauflow import files
from tauflow.errors import SettingsError, TauflowError
from tauflow.runs import SHIPPED, Run, load
from tauflow.tables import Measured, plain, versions


class Job(NamedTuple):
    panel: str
    row: str
    x: float
    seed: int


@dataclass(frozen=True)
class Record:
    """One number, found by a job."""

    panel: str
    row: str
    x: float
    seed: int
    metric: str
    value: float
    standard_error: float
    low: float | None = None  # 95 % interval, where there is one
    high: float | None = None
    count: float | None = None  # of what was measured, such as judged tokens


@dataclass(frozen=True)
class Settings:
    """What decides the numbers of a study."""

    samples: int
    seeds: Sequence[int]
    nfes: Sequence[int]
    samplers: Sequence[str] = ()
    checkpoints: Sequence[str] = ()
    judge: str | None = None
    batch_size: int = 32


class Study(ABC):
    """Abstract; the docstring of a final study is its question. Class variables say what to measure unless told otherwise."""

    samples: ClassVar[int] = 1024  # of each job
    seeds: ClassVar[tuple[int, ...]] = (0, 1, 2)
    nfes: ClassVar[tuple[int, ...]] = (8, 16, 32)
    samplers: ClassVar[tuple[str, ...]] = ()
    smoke: ClassVar[dict[str, Any]] = {"samples": 2, "seeds": (0,), "nfes": (3, 5), "batch_size": 2}  # small enough for a test
    x_name: ClassVar[str] = "NFE"
    shown: ClassVar[tuple[str, ...]] = ()  # metrics of the tables and the figure; ppl_* stands for all that begin so
    ignores: ClassVar[tuple[str, ...]] = ()  # settings that mean nothing to this study
    grows: ClassVar[tuple[str, ...]] = ()  # settings that choose jobs and change none: a folder of results may be given more of them
    panels_down: ClassVar[bool] = False  # in the figure: panels below each other, metrics side by side

    def __init__(self, settings: Settings):
        self.settings = settings
        self.notes: list[str] = []  # what a reader should know, such as samplers that were left out

    @abstractmethod
    def jobs(self) -> list[Job]: ...

    @abstractmethod
    def measure(self, job: Job) -> list[Record]: ...

    def record(self, job: Job, metrics: dict[str, Measured], x: float | None = None) -> list[Record]:
        x = job.x if x is None else x
        return [Record(job.panel, job.row, x, job.seed, name, *dataclasses.astuple(each)) for name, each in metrics.items()]

    def paths(self) -> list[str | Path]:
        """Of the trained models to study; a study that has none ignores them."""
        if "checkpoints" in self.ignores:
            return []
        return list(self.settings.checkpoints) or [SHIPPED / f"countdown_{source}.ckpt" for source in ("masked", "uniform")]

    @cache  # noqa: B019  a study lives as long as its process
    def models(self) -> dict[str, Run]:
        """The trained models to study, by the name of their source: the shipped ones, or those of --ckpt."""
        runs = {}
        for path in self.paths():
            run = load(path)
            source = type(run.source).__name__.lower()
            if source in runs:
                raise SettingsError(f"two checkpoints have a {source} source; give at most one of each to --ckpt")
            if self.settings.judge:
                run.task.use_judges(self.settings.judge)
            runs[source] = run
        return runs


@dataclass
class Results:
    """What a study has found so far; `save` and `read` keep it in results.json."""

    study: str
    settings: dict[str, Any]
    records: list[Record] = field(default_factory=list)
    done: list[Job] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=versions)
    commands: list[str] = field(default_factory=list)

    def add(self, job: Job, records: list[Record]) -> None:
        self.done.append(job)
        self.records.extend(records)

    def save(self, folder: Path) -> None:
        values = dataclasses.asdict(self) | {"records": [dataclasses.astuple(record) for record in self.records]}
        rows = {name: values.pop(name) for name in ("done", "records")}
        text = json.dumps(plain(values), indent=1, allow_nan=False)[:-2]
        for name, items in rows.items():  # a line for each, so that changes can be read
            lines = ",\n".join(f"  {json.dumps(plain(list(item)), allow_nan=False)}" for item in items)
            text += f',\n "{name}": [\n{lines}\n ]'
        files.write(folder / "results.json", text + "\n}\n")

    @classmethod
    def read(cls, folder: Path) -> "Results":
        path = folder / "results.json"
        try:
            values = json.loads(path.read_text())
            records = [Record(*entry) for entry in values["records"]]
            records = [dataclasses.replace(each, value=number(each.value), standard_error=number(each.standard_error)) for each in records]
            return cls(**(values | {"records": records, "done": [Job(*entry) for entry in values["done"]]}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TauflowError(f"{path} is no result of a study that this version can read ({error}); choose another --out") from None

    def panels(self) -> list[str]:
        return list(dict.fromkeys(record.panel for record in self.records))

    def rows(self, panel: str, metric: str) -> list[str]:
        return list(dict.fromkeys(each.row for each in self.records if (each.panel, each.metric) == (panel, metric)))

    def xs(self, panel: str, metric: str) -> list[float]:
        return sorted({each.x for each in self.records if (each.panel, each.metric) == (panel, metric)})

    def measured(self, panel: str, row: str, x: float, metric: str) -> Measured | None:
        """Mean over seeds; its standard error is that over the samples of all seeds, its count that of all seeds."""
        found = [each for each in self.records if (each.panel, each.row, each.x, each.metric) == (panel, row, x, metric)]
        if not found:
            return None
        n = len(found)
        error = math.sqrt(sum(each.standard_error**2 for each in found)) / n
        counts = [each.count for each in found if each.count is not None]
        return Measured(sum(each.value for each in found) / n, error, count=sum(counts) if counts else None)


def number(value: float | None) -> float:
    """JSON has no NaN."""
    return math.nan if value is None else float(value)


def run(study: Study, folder: Path, progress: bool = True) -> Results:
    """Makes the jobs that `folder` does not have yet, and keeps what is found after each, beside what it has."""
    from tqdm.auto import tqdm

    jobs = study.jobs()  # refuses what cannot be done
    settings = dataclasses.asdict(study.settings) | {"sha256": [files.digest(path) for path in study.paths()]}
    name, settings = type(study).__name__.lower(), json.loads(json.dumps(plain(settings)))
    files.refuse_unwritable(folder, "choose another one with --out")
    results = Results(name, settings)
    if (folder / "results.json").exists():
        results = Results.read(folder)
        old = results.settings
        changed = [key for key in settings if old.get(key) != settings[key] and key not in study.grows]
        if results.study != name or changed:
            facts = "; ".join(f"{key}: {old.get(key)} there, {settings[key]} now" for key in changed) or f"the study {results.study}"
            raise SettingsError(f"{folder} holds results with other settings ({facts}); choose another --out, or remove it to start again")
        for key in study.grows:
            old[key] = list(dict.fromkeys([*old[key], *settings[key]]))
    todo = [job for job in jobs if job not in set(results.done)]
    bar = tqdm(todo, desc=name, unit="cell", disable=not progress, initial=len(jobs) - len(todo), total=len(jobs))
    for job in bar:
        bar.set_postfix_str(f"{job.panel} {job.row} {job.x:g}, seed {job.seed}")
        results.add(job, study.measure(job))
        results.save(folder)
    return results
