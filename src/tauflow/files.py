"""Files that are written atomically, and folders that one process holds at a time."""

import glob
import hashlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from tauflow.errors import FolderInUse, SettingsError, TauflowError, WriteError

LOCK = ".lock"  # in a folder that a process holds; it stays when the folder is released
ABANDONED = 600.0  # seconds without a write after which an unfinished file belongs to a killed process


@contextmanager
def atomic(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` only when it is complete: a killed process leaves the old one.

    Raises WriteError if it cannot be written; the old file is untouched then.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        with open(unfinished, "xb") as file:  # x: never a file or symbolic link that is there already
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):  # what went wrong before says more
            unfinished.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    for name in glob.glob(f"{glob.escape(str(path.parent))}/.{glob.escape(path.name)}.*.unfinished"):
        old = Path(name)
        try:
            if old.is_file() and not old.is_symlink() and time.time() - old.stat().st_mtime > ABANDONED:
                old.unlink(missing_ok=True)
        except OSError:
            continue  # of another user: it is in nobody's way


def _unwritable(path: Path, error: OSError) -> WriteError:
    before = (
        "the file that was there is untouched" if os.path.exists(path) else "no half-written file is left"
    )
    return WriteError(f"cannot write {path} ({error.strerror or error}); {before}", error.errno)


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_json(content: Any) -> str:
    """Return the SHA-256 of plain data as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write(path: str | Path, content: str | bytes) -> None:
    with atomic(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def lock_folder(folder: str | Path, advice: str) -> Iterator[None]:
    """Hold a folder for this process; raise FolderInUse with the advice if another process holds it.

    The system releases it when the process ends, however it ends.
    """
    lock = FileLock(Path(folder) / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUse(f"another process is writing to {folder}; {advice}") from None
    except OSError as error:
        raise _unwritable(Path(folder) / LOCK, error) from error
    except NotImplementedError as error:
        raise TauflowError(f"{folder} is on a file system without locks ({error}); choose another") from None
    try:
        yield
    finally:
        lock.release()


def check_no_overwrite(folder: Path, names: Iterable[str]) -> None:
    """Raise an error if the folder already has a file with one of these names or patterns."""
    for name in names:
        for path in folder.glob(name):
            raise SettingsError(
                f"{path} already exists and could be overwritten. Move it away, or choose another folder "
                "with --out DIR."
            )


def check_writable(folder: Path, advice: str) -> None:
    """Make the folder and try to write there, before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable."):
            pass
    except OSError as error:
        raise TauflowError(f"cannot write to {folder} ({error.strerror or error}); {advice}") from None
