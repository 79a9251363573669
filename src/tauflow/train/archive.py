"""The file of a checkpoint as `torch.save` writes it, checked before and after torch reads it.

torch checks no sum, unpacks what is compressed and calls more than tensors need. Here a file may hold plain
data and tensors only, takes no more memory than its own size, and a flipped bit is found.
"""

import pickletools
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from tauflow.errors import CheckpointError

KNOWN = re.compile(r"collections OrderedDict|torch\._utils _rebuild_tensor_v2|torch \w+Storage")
"""What tensors and plain data are made of, as "module name"; anything else in a pickle is refused."""
DESCRIBED = (bool, int, float, str, NoneType)  # types of values by which objects are described
PLAIN = (*DESCRIBED, Tensor)
DEEPEST = 64  # dictionaries and lists inside each other; a checkpoint has about ten
HEADER = 30  # bytes before the name of a member of a zip
FOLLOWED = 8  # flag of a member whose checksum and sizes stand after it
TRAILER, LONG_TRAILER = 16, 24  # bytes of these, with sizes of 32 or of 64 bits


class Damaged(Exception):
    """Says what is wrong with a zip."""


def read_archive(path: Path) -> Any:
    """Return the data of a file of `torch.save`; raise CheckpointError unless it is plain and undamaged."""
    try:
        with open(path, "rb") as file:
            pickled = _pickle_of(file)
            _refuse_foreign(pickled, path)
            file.seek(0)
            data = torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # torch, zipfile and pickletools raise any kind
        raise CheckpointError(
            f"{path} cannot be read, it is truncated, damaged or not a checkpoint ({_first_line(error)}); "
            "use another one of the run"
        ) from None
    refuse_unplain(data, len(pickled), path)
    return data


def _pickle_of(file: BinaryIO) -> bytes:
    """Return the pickle of a zip whose members are all there, stored as they are and undamaged."""
    with zipfile.ZipFile(file) as archive:
        end = 0
        for member in sorted(archive.infolist(), key=lambda each: each.header_offset):
            if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
                raise Damaged("a part of it is compressed, which torch.save never does")
            if member.external_attr:
                raise Damaged("a part of it is marked as a folder, which torch would not read")
            if member.header_offset != end:  # else torch might read what is between, and not what is checked
                raise Damaged("two parts of it overlap, or something lies before or between them")
            end = _end_of(file, member)
        if end != archive.start_dir:
            raise Damaged("a part of it is longer than the file, or something follows the parts")
        names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/data\.pkl", name)]
        if len(set(archive.namelist())) < len(archive.namelist()) or len(names) != 1:
            raise Damaged("its parts are not those of torch.save")
        wrong = archive.testzip()
        if wrong is not None:
            raise Damaged(f"the checksum of {wrong} is wrong")
        return archive.read(names[0])


def _end_of(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Return where a member ends, by the sizes that stand before and after it."""
    file.seek(member.header_offset)
    header = file.read(HEADER)
    name, extra = (int.from_bytes(header[place : place + 2], "little") for place in (26, 28))
    end = member.header_offset + HEADER + name + extra + member.file_size
    if not member.flag_bits & FOLLOWED:
        return end
    file.seek(end)
    size = int.from_bytes(file.read(TRAILER)[12:], "little")  # in the longer form, the high bits of a size
    return end + (TRAILER if size == member.file_size else LONG_TRAILER)


def _refuse_foreign(pickled: bytes, path: Path) -> None:
    """Raise if a pickle names anything that plain data and tensors do not need; nothing is called."""
    named = {str(value) for code, value, _ in pickletools.genops(pickled) if "GLOBAL" in code.name}
    foreign = sorted(name for name in named if not KNOWN.fullmatch(name))
    if foreign:
        raise CheckpointError(
            f"{path} holds more than plain data and is refused, it could run code when loaded: it names "
            f"{listed(name.replace(' ', '.') for name in foreign)}"
        )


def refuse_unplain(data: Any, most: int, path: Path, kinds: tuple[type, ...] = PLAIN) -> None:
    """Raise unless data is of plain kinds, not nested deeply, and has at most so many items written out."""
    left = [(data, 0)]
    count = 0
    while left:
        value, depth = left.pop()
        count += 1
        if type(value) in (dict, OrderedDict):
            inside = [*value, *value.values()]
        elif type(value) in (list, tuple):
            inside = list(value)
        elif type(value) not in kinds or (type(value) is int and not -(2**63) <= value < 2**63):
            raise CheckpointError(f"{path} holds a {type(value).__name__} that no checkpoint of tauflow has")
        else:
            continue
        if depth == DEEPEST or count + len(left) + len(inside) > most:
            raise CheckpointError(
                f"{path} is nested too deeply, or repeats itself too often, to be a checkpoint of tauflow"
            )
        left += [(item, depth + 1) for item in inside]


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return names of a file as a list of some of them, each cut to a length that can be read."""
    names = [shortened(name) for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shortened(text: str, most: int = 120) -> str:
    """Return a text on one line, with its end cut off where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]} ..."


def _first_line(error: Exception) -> str:
    return shortened((str(error).strip() or type(error).__name__).splitlines()[0])
