"""A folder of results: continued where it stopped, and written by one process at a time."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from tauflow import files
from tauflow.errors import SettingsError, TauflowError, WriteError
from tauflow.evaluation.store import FILE, Results, plain
from tauflow.ranks import rank, world_size

T = TypeVar("T")
SAMPLE_FILES = ("samples.png", "evolution.png", "properties.png", "samples.csv")
"""What a task may show of its samples in addition to text."""
WRITTEN = ".written"  # lists the sample files that the last call wrote to a folder


@contextmanager
def opened_results(
    folder: Path | None,
    name: str,
    settings: dict[str, Any],
    grows: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Iterator[Results]:
    """Open the results in a folder to continue them, or new ones; the folder is held until the block ends.

    Refuses a folder that another process writes to, or with results of other settings. Settings that `grows`
    names choose cells and change none: a folder may be given more of them. Settings that it does not have yet
    are added. A folder without results.json must not hold any of the files `names`, which will be written
    there: they are the user's. In a process group every rank gets the results, or the error, of rank 0. A
    WriteError in the block says what is safe and how to resume.
    """
    settings = json.loads(json.dumps(plain(settings)))
    if folder is None:
        yield Results(name, settings)
        return
    with ExitStack() as stack:

        def open_first() -> Results:
            stack.enter_context(held(folder))
            if not (folder / FILE).exists():
                files.check_no_overwrite(folder, names)
            return _continued(folder, name, settings, grows)

        results = from_first(open_first)
        try:
            yield results
        except WriteError as error:
            safe = f"the cells finished before are safe in {folder / FILE}"
            kept = safe if (folder / FILE).exists() else "no cell was finished yet"
            said = f"{error}; {kept}; fix the cause, and the same command resumes"
            raise WriteError(said, error.errno) from error


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold an output folder, and create it if it is missing."""
    files.refuse_unwritable(folder, "choose another one with --out DIR")
    with files.held(folder, "wait for it or choose another folder with --out DIR"):
        yield


@contextmanager
def held_samples(folder: Path) -> Iterator[None]:
    """Hold a folder whose sample files each call replaces.

    The folder lists those that the last call wrote. Any others are the user's and raise an error.
    """
    with ExitStack() as stack:

        def hold_first() -> None:
            stack.enter_context(held(folder))
            files.check_no_overwrite(folder, set(SAMPLE_FILES) - _written(folder))

        from_first(hold_first)
        yield


def replace_samples(folder: Path, contents: dict[str, bytes]) -> None:
    """Write sample files in place of those that the last call wrote, and list them."""
    for name in _written(folder) - contents.keys():
        (folder / name).unlink(missing_ok=True)
    files.write(folder / WRITTEN, "\n".join(contents))
    for name, content in contents.items():
        files.write(folder / name, content)


def _written(folder: Path) -> set[str]:
    path = folder / WRITTEN
    listed = path.read_text().splitlines() if path.exists() else []
    return set(SAMPLE_FILES).intersection(listed)


def from_first(work: Callable[[], T]) -> T:
    """Return what the work gives on rank 0, on all ranks; raise an error of it on all of them."""
    if world_size() == 1:
        return work()
    found: list[Any] = [None, None]
    if rank() == 0:
        try:
            found[0] = work()
        except TauflowError as error:
            found[1] = error
    torch.distributed.broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    return found[0]


def _continued(folder: Path, name: str, settings: dict[str, Any], grows: Sequence[str]) -> Results:
    """Return the results in a folder with its settings and the new ones, or new results."""
    path = folder / FILE
    if not path.exists():
        return Results(name, settings)
    results = Results.read(folder)
    old = results.settings
    fixed = [each for each in settings if each in old and each not in grows]
    changed = [each for each in fixed if old[each] != settings[each]]
    if results.name != name or changed:
        facts = "; ".join(f"{each}: {old[each]} there, {settings[each]} now" for each in changed)
        raise SettingsError(
            f"{folder} holds results with other settings ({facts or f'of {results.name}'}); choose another "
            "--out, or remove it to start again"
        )
    for each in grows:
        settings[each] = list(dict.fromkeys([*old.get(each, []), *settings[each]]))
    results.settings = old | settings
    return results
