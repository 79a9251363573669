"""Arrays of numbers in an .npz file that is not trusted: sizes are checked before memory is taken."""

import math
import zipfile
from pathlib import Path

import numpy as np

RATIO = 50  # of compression, at most; real statistics have about 3
SMALL = 2**24  # bytes that are always allowed: a law of many tokens is mostly zeros
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays by name; raise some exception if anything about the file is wrong."""
    if not path.is_file():
        raise ValueError("it is no file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > SMALL + RATIO * path.stat().st_size:
            raise ValueError(f"it would take {unpacked / 1e9:.1f} GB of memory")
        return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"{member.filename} has an unknown format")
        shape, fortran, dtype = HEADERS[version](stream)
        if fortran or dtype.kind not in "iuf":
            raise ValueError(f"{member.filename} holds no plain numbers")
        if stream.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(f"{member.filename} does not have the size that it claims")
        return np.frombuffer(stream.read(), dtype).reshape(shape).copy()  # the last byte checks the checksum
