"""Arrays in an .npz file that is not trusted: sizes are checked before memory is taken; no pickles."""

import math
import zipfile
from pathlib import Path

import numpy as np

SMALL = 2**24  # bytes that a file may always unpack to: a law of many tokens is mostly zeros
RATIO = 200  # bytes that a byte of a larger one may unpack to; photographs give 1 to 2, drawings 30
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays by name; raise some exception, whose text is the reason, if anything is wrong."""
    if not path.is_file():
        raise ValueError("there is no such file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked, size = sum(member.file_size for member in members), path.stat().st_size
        if unpacked > max(SMALL, RATIO * size):
            names = ", ".join(member.filename for member in members)[:100]
            raise ValueError(
                f"{path.name} unpacks to {unpacked / 2**20:.0f} MB of {names} from {size / 2**20:.1f} MB"
            )
        return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"{member.filename} has an unknown format")
        shape, columns_first, kind = HEADERS[version](stream)
        if kind.hasobject:
            raise ValueError(f"{member.filename} holds objects of Python, save plain arrays")
        if columns_first or kind.kind not in "biufU":
            raise ValueError(f"{member.filename} holds no plain numbers in C order (numpy.ascontiguousarray)")
        if stream.tell() + math.prod(shape) * kind.itemsize != member.file_size:
            raise ValueError(f"{member.filename} does not have the size that it claims")
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)  # the last byte checks the checksum
