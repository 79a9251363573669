"""Folders of cached data: named by what they were made from, and never seen half-built."""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tauflow.errors import WriteError

T = TypeVar("T")
BUILDING = ".building."  # begins the names of folders that are not complete
ABANDONED = 24 * 3600  # seconds without a change after which such a folder is of a build that was killed


def key_of(*facts: Any) -> str:
    """Return a short digest of plain values, for a name that changes when any of them does."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


@contextmanager
def building(folder: Path, what: str) -> Iterator[Path]:
    """Give a new folder that takes the name only when it is complete, unless another process was faster.

    An interrupted build leaves nothing that is taken for a cache; what a killed one leaves is removed by a
    later build. `what` tells a WriteError what is cached.
    """
    new: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=BUILDING))
        yield new
        new.rename(folder)  # fails where the folder is there already
    except OSError as error:
        if folder.is_dir():
            return  # another process was faster
        written = sum(file.stat().st_size for file in new.iterdir()) if new else 0
        raise WriteError(
            f"cannot write {what} to {folder.parent} ({error.strerror or error}) after {written / 1e6:.1f} "
            "MB; free space, or choose another folder with --data.cache; nothing half-written is left",
            error.errno,
        ) from error
    finally:
        if new:
            shutil.rmtree(new, ignore_errors=True)


def _remove_abandoned(root: Path) -> None:
    """Drop the folders of builds that were killed; those of running builds have changed lately."""
    for folder in root.glob(f"{BUILDING}*"):
        with suppress(OSError):  # another process removes it too, or completes it
            changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if changed < time.time() - ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


def tracked(items: Iterable[T], description: str, progress: bool) -> Iterable[T]:
    """Return the items, counted by a bar where there is a terminal and progress is asked for."""
    if not progress:
        return items
    from rich import get_console
    from rich.progress import track

    return track(items, description=description, transient=True, disable=not get_console().is_terminal)
