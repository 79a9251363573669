"""Files that are written atomically."""

import hashlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tauflow.errors import TauflowError

HOST = re.sub(r"\W", "-", socket.gethostname())


@contextmanager
def atomic(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` only when it is complete: a killed process leaves the old one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{path.name}.{HOST}.*.unfinished"):
        if not _alive(int(old.name.split(".")[-2])):
            old.unlink(missing_ok=True)  # of a killed process
    unfinished = path.with_name(f".{path.name}.{HOST}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(path: str | Path, text: str) -> None:
    with atomic(path) as file:
        file.write(text.encode())


def refuse_unwritable(folder: Path, advice: str) -> None:
    """Make the folder and try to write there, before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable."):
            pass
    except OSError as error:
        raise TauflowError(f"cannot write to {folder} ({error.strerror or error}); {advice}") from None
