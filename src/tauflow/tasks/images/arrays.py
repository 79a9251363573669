"""Files of arrays: .npz without pickles, and MNIST's idx."""

import gzip
from pathlib import Path

import numpy as np

from tauflow.errors import SettingsError, first_line
from tauflow.untrusted import read_arrays


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file."""
    try:
        return read_arrays(path)
    except Exception as error:  # zipfile and numpy raise many kinds
        raise SettingsError(
            f"{path} must be an .npz file of plain arrays ({first_line(error)}). Replace it."
        ) from None


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the array of bytes in an idx file, plain or .gz, which has so many dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read()
        shape = np.frombuffer(data, ">u4", dimensions, offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + shape.nbytes).reshape(shape.tolist())
    except Exception as error:  # gzip and numpy raise many kinds
        raise SettingsError(
            f"{path} must be an idx file of {dimensions}-dimensional bytes ({first_line(error)}). Replace it."
        ) from None
