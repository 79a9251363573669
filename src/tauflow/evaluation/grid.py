"""run_grid: the one resumable loop over cells, for sample.py, the callback and the studies."""

import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tauflow.errors import TauflowError, WriteError
from tauflow.evaluation.folder import from_first
from tauflow.evaluation.store import Cell, Factors, Results, key
from tauflow.evaluation.views import cell_name
from tauflow.ranks import is_lost_rank, largest, rank

if TYPE_CHECKING:
    from rich.progress import Progress

DESCRIPTION = 36  # characters of a cell's name beside a progress bar


@dataclass(frozen=True)
class GridOptions:
    """How a grid is run; none of it changes a number.

    Args:
        folder: where results.json is written after every cell.
        progress: true for a progress bar of its own, or a rich.progress.Progress to add one to.
        keep_going: note a cell that fails and continue; else raise, as always where a file cannot be written.
        until: asked before each cell for a reason to stop; the remaining cells are noted as skipped for that
            reason.
    """

    folder: Path | None = None
    progress: "bool | Progress" = False
    keep_going: bool = False
    until: Callable[[], str] | None = None


def run_grid(
    results: Results, cells: Sequence[Factors], measure: Callable[[Factors], Cell], options: GridOptions
) -> Results:
    """Measure the cells that the results do not have yet, and keep what is found after each.

    In a process group every rank runs the same grid; rank 0 writes.
    """
    todo = results.missing(cells)
    place = {key(cell.factors): number for number, cell in enumerate(results.cells)}
    for factors in cells:  # what was there before keeps its place
        place.setdefault(key(factors), len(place))
    with progress_bar(options.progress) as bar:
        task = bar.add_task(results.name, total=len(cells), completed=len(cells) - len(todo)) if bar else None
        for factors in todo:
            if bar and task is not None:
                said = textwrap.shorten(cell_name(factors), DESCRIPTION, placeholder=" ...")
                bar.update(task, description=said, refresh=True)
            results.add(_measured(factors, measure, options))
            if options.folder:
                from_first(partial(results.save, options.folder))
            if bar and task is not None:
                bar.update(task, advance=1, refresh=True)
        if bar and task is not None:
            bar.remove_task(task)
    results.cells.sort(key=lambda cell: place[key(cell.factors)])
    return results


def _measured(factors: Factors, measure: Callable[[Factors], Cell], options: GridOptions) -> Cell:
    reason = options.until() if options.until else ""
    if options.until and largest(float(bool(reason))):
        return Cell(factors, problem=f"skipped: {reason or 'stopped on another device'}", kind="skipped")
    try:
        return measure(factors)
    except WriteError:
        raise  # the next cell would fail alike
    except Exception as error:
        if not options.keep_going or is_lost_rank(error):
            raise
        return Cell(factors, problem=f"failed: {error_line(error)}", kind="failed")


def error_line(error: Exception) -> str:
    """Return an error in one line; one that tauflow does not raise itself with the place where it arose."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, TauflowError) or not frames:
        return said
    return f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})"


@contextmanager
def progress_bar(progress: "bool | Progress") -> "Iterator[Progress | None]":
    """Return a progress bar of its own on standard error, the one that was given, or none."""
    if progress is not True:
        yield progress or None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if rank():
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        yield bar
