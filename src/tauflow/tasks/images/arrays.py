"""Files of arrays: .npz without pickles, and MNIST's idx; sizes are checked before memory is taken."""

import gzip
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tauflow.errors import SettingsError
from tauflow.tasks import npz

DEFLATE = 1032  # bytes that a byte of gzip can unpack to at most
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file."""
    try:
        return npz.read(path)
    except UNREADABLE as error:
        reason = str(error).split("\n")[0]
        raise SettingsError(f"{path} is no .npz file that can be read ({reason}); replace it") from None


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the array of bytes in an idx file, plain or .gz, which has so many dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return _idx(file, path, dimensions)
    except UNREADABLE as error:
        raise SettingsError(f"{path} is damaged ({error}); replace it") from None


def _idx(file: BinaryIO | gzip.GzipFile, path: Path, dimensions: int) -> np.ndarray:
    head = file.read(4 + 4 * dimensions)
    if len(head) < 4 + 4 * dimensions or head[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"it does not begin as an idx file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    count = math.prod(shape)
    if count > path.stat().st_size * (DEFLATE if path.suffix == ".gz" else 1):
        raise ValueError(f"it is too short for the shape {shape}")
    data = file.read(count + 1)
    if len(data) != count:
        raise ValueError(f"it is too {'short' if len(data) < count else 'long'} for the shape {shape}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
