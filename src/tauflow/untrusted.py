"""The reader for files from strangers.

A stranger's file reaches tauflow through four doors: a checkpoint given to `tauflow.load`, a folder given to
`tauflow.pretrained`, the learned files next to a checkpoint, and the config of a diffusers scheduler. All of
them read through this module, which makes three promises: no code from a file runs, nothing outside the file
is touched, and sizes are checked before memory is allocated.

`torch.load(weights_only=True)` alone isn't enough: it ignores checksums, unpacks compressed members, and
calls `bytearray`. The user's own settings, caches, and results are trusted and don't come through here.
"""

import inspect
import json
import math
import pickletools
import re
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tauflow.errors import CheckpointError, TauflowError, first_line, join_names, shorten

PICKLED = r"collections OrderedDict|torch\._utils _rebuild_tensor_v2|torch \w+Storage"
"""The "module name" pairs that a pickle of tensors and plain data contains."""
MEMBERS = (
    r"[^/]+/(data\.pkl|byteorder|version|\.format_version|\.storage_alignment|"
    r"\.data/serialization_id|data/\d+)"
)
"""Members of a zip file that `torch.save` writes. torch itself finds them whatever their case is."""
ZIP = b"PK\x03\x04"
LEGACY_PICKLES = 5  # pickles in a file that torch wrote before it wrote zip files
VALUES = (bool, int, float, str, NoneType)
MAX_DEPTH = 64  # nested dictionaries and lists; a checkpoint has about ten
MAX_JSON = 2**24  # bytes
MAX_TEXT = 2**27  # bytes of a tokenizer file; the largest have 35 MB
MAX_ARRAYS = 2**30  # bytes of all arrays of an .npz file
MAX_SETTING = 2**20  # an integer in config.json; a few names may have more
MAX_COUNT = 4096  # layers, blocks, labels, ...
MAX_GROWTH = 2**8  # how much longer a tokenizer may make a text; Llama's makes it 4 times as long
MAX_TEMPLATE_LINES = 10**7  # lines of Python that a chat template may run; compiling one of 8 kB takes 10**6
MAX_BUFFERS = 2**26  # bytes of computed buffers, for weights smaller than that
LARGE = re.compile(r"theta|position|max_sequence_length|model_max_length|^length$")
COUNTS = re.compile(r"(?!.*(size|dim|length)).*(layer|block|group|network|label|depth)")
ARGUMENT_TYPES: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


class Damaged(Exception):
    """What is wrong with a file."""


# JSON and plain data


def check_regular(path: Path) -> None:
    """Raise unless a path is a regular file, or a link to one: reading a device or a pipe never ends."""
    if not path.exists():
        raise CheckpointError(
            f"File not found: {path}. Pass the path of a complete model, or download it again."
        )
    if not path.is_file():
        raise CheckpointError(f"{path} must be a regular file. Download it again.")


def read_json(path: Path, max_bytes: int = MAX_JSON) -> dict[str, Any]:
    """Read a JSON file that contains a dictionary."""
    check_regular(path)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise Damaged(f"it has {size} bytes, more than {max_bytes}")
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise Damaged("it doesn't contain a dictionary")
        check_plain(found, sys.maxsize, path, VALUES)
    except (OSError, ValueError, RecursionError, Damaged) as error:
        raise CheckpointError(f"{path} can't be read: {first_line(error)}. Download it again.") from None
    return found


def read_text(path: Path) -> str:
    """Read a text file, such as a tokenizer."""
    check_regular(path)
    if path.stat().st_size > MAX_TEXT:
        raise CheckpointError(f"{path} must have at most {MAX_TEXT} bytes. Download it again.")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read: {first_line(error)}. Download it again.") from None


def check_plain(data: Any, max_items: int, path: Path, types: tuple[type, ...] = (*VALUES, Tensor)) -> None:
    """Raise unless data has plain types, isn't nested deeply, and has few items when it's written out."""
    left = [(data, 0)]
    count = 0
    while left:
        value, depth = left.pop()
        count += 1
        if type(value) in (dict, OrderedDict):
            inside = [*value, *value.values()]
        elif type(value) in (list, tuple):
            inside = list(value)
        elif type(value) not in types or (type(value) is int and not -(2**63) <= value < 2**63):
            raise CheckpointError(f"{path} contains a {type(value).__name__}, which isn't allowed there.")
        else:
            continue
        if depth == MAX_DEPTH or count + len(left) + len(inside) > max_items:
            raise CheckpointError(f"{path} is nested too deeply or repeats itself too often.")
        left += [(item, depth + 1) for item in inside]


# Tensors


def read_tensors(path: Path, *, released: bool = False, stand_ins: Mapping[str, type] | None = None) -> Any:
    """Read what `torch.save` wrote: tensors and plain data, undamaged.

    Args:
        path: the file.
        released: whether it's a file of a released model, which may be large and written by an old torch.
            Then it's mapped into memory, and the old format without checksums is read too.
        stand_ins: {"module.Class": class} for classes that the file may also contain. An object becomes an
            instance of our class with the file's attributes, so that no code of the named class runs.
    """
    check_regular(path)
    stand_ins = stand_ins or {}
    try:
        with open(path, "rb") as file:
            is_zip = file.read(len(ZIP)) == ZIP  # as torch decides it
            if not is_zip and not released:
                raise Damaged("torch.save didn't write it")
            pickles = [_zip_pickle(file)] if is_zip else _legacy_pickles(file)
            _check_pickled_names(pickles, path, stand_ins)
            file.seek(0)
            source = path if released and is_zip else file
            with torch.serialization.safe_globals([(cls, name) for name, cls in stand_ins.items()]):
                data = torch.load(source, map_location="cpu", weights_only=True, mmap=source is path)
    except CheckpointError:
        raise
    except Exception as error:  # torch, zipfile, and pickletools raise many kinds
        raise CheckpointError(
            f"{path} can't be read: it's truncated, damaged, or of another kind ({first_line(error)}). Use "
            "another checkpoint, or download it again."
        ) from None
    if not stand_ins:
        check_plain(data, sum(map(len, pickles)), path)
    return data


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, whose sizes are those of its numbers."""
    check_regular(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged ({first_line(error)}). Export or download it again."
        ) from None


def _zip_pickle(file: BinaryIO) -> bytes:
    """Return the pickle of a zip file whose members are stored as they are and have the right checksums."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
                raise Damaged("a part of it is compressed")
            if not re.fullmatch(MEMBERS, member.filename):
                raise Damaged(f"torch.save didn't write its part {shorten(member.filename)}")
            if member.external_attr:
                raise Damaged("a part of it is marked as a folder, so torch wouldn't read it")
        wrong = archive.testzip()
        if wrong is not None:
            raise Damaged(f"the checksum of {wrong} is wrong")
        names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/data\.pkl", name)]
        if len(names) != 1:
            raise Damaged("torch.save didn't write it")
        return archive.read(names[0])


def _legacy_pickles(file: BinaryIO) -> list[bytes]:
    """Return the pickles at the start of a file that an old torch wrote."""
    found = []
    file.seek(0)
    for _ in range(LEGACY_PICKLES):
        start = file.tell()
        for _ in pickletools.genops(file):
            pass
        size = file.tell() - start
        file.seek(start)
        found.append(file.read(size))
    return found


def _check_pickled_names(pickles: Iterable[bytes], path: Path, stand_ins: Mapping[str, type]) -> None:
    """Raise if a pickle names something that isn't a tensor or plain data; nothing is called to find out."""
    codes = [code for each in pickles for code in pickletools.genops(each)]
    named = {str(value) for code, value, _ in codes if "GLOBAL" in code.name}
    more = {"torch._utils _rebuild_parameter", "__builtin__ set"} if stand_ins else set()
    more |= {" ".join(name.rsplit(".", 1)) for name in stand_ins}
    foreign = sorted(name for name in named - more if not re.fullmatch(PICKLED, name))
    if foreign:
        raise CheckpointError(
            f"{path} contains more than plain data and could run code, so it isn't loaded: it names "
            f"{join_names(name.replace(' ', '.') for name in foreign)}."
        )


def check_weights(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the weights of a file are those of a module; neither has to be in memory.

    Names and shapes must be equal, and both must be floating-point numbers or neither.
    """
    faults = {
        "missing": sorted(wanted.keys() - found.keys()),
        "unknown": sorted(found.keys() - wanted.keys()),
        "of another shape": [
            f"{name} {tuple(found[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in sorted(wanted.keys() & found.keys())
            if found[name].shape != wanted[name].shape
        ],
        "of another type": [
            f"{name} {found[name].dtype}"
            for name in sorted(wanted.keys() & found.keys())
            if found[name].is_floating_point() != wanted[name].is_floating_point()
        ],
    }
    said = [f"{what}: {join_names(names)}" for what, names in faults.items() if names]
    if said:
        raise ValueError("its weights don't fit its settings; " + "; ".join(said))


def check_storage(weights: Mapping[str, Tensor], path: Path | str) -> None:
    """Raise if weights expand a few stored numbers to large shapes, so that they'd take more memory."""
    storages = [weight.untyped_storage() for weight in weights.values()]
    stored = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    if sum(weight.nbytes for weight in weights.values()) > stored:
        raise CheckpointError(
            f"The weights in {path} share their numbers, so they'd take more memory than the file."
        )


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name, without pickles."""
    check_regular(path)
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > MAX_ARRAYS:
            raise ValueError(f"{path.name} unpacks to more than {MAX_ARRAYS} bytes")
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


# Settings of a pretrained model


def check_folder(folder: Path) -> None:
    """Raise if a folder has an entry that isn't a regular file or a folder, or a text that is too large."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            continue
        check_regular(path)
        if path.suffix in (".json", ".jinja", ".txt", ".model") and path.stat().st_size > MAX_TEXT:
            raise CheckpointError(f"{path} must have at most {MAX_TEXT} bytes. Download it again.")


def check_sizes(config: Any, path: Path, name: str = "") -> None:
    """Raise if an integer in a config.json is so large that building the model would never end."""
    if isinstance(config, dict):
        for key, value in config.items():
            check_sizes(value, path, key)
    elif isinstance(config, list):
        for value in config:
            check_sizes(value, path, name)
    elif isinstance(config, int):
        limit = MAX_COUNT if COUNTS.match(name) else MAX_SETTING
        if config > limit and not LARGE.search(name):
            raise CheckpointError(f"{shorten(name)} in {path} must be at most {limit}, got {config}.")


@contextmanager
def limit_parameters(most: int) -> Iterator[None]:
    """Raise ValueError when modules built in the block have more parameters than `most`."""
    count = 0

    def hook(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        count += 1
        if count > most:
            raise ValueError("it describes many more weights than the folder has")

    handle = nn.modules.module.register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def check_buffers(host: nn.Module, found: Iterable[str], weight_bytes: int) -> None:
    """Raise ValueError if buffers that a file doesn't contain would take more memory than its weights."""
    computed = {name: buffer.nbytes for name, buffer in host.named_buffers() if name not in set(found)}
    if sum(computed.values()) > max(MAX_BUFFERS, weight_bytes):
        largest = max(computed, key=lambda name: computed[name])
        raise ValueError(f"the buffer {largest} would have {computed[largest]} bytes, more than its weights")


# Tokenizers


def check_tokenizer(text: str) -> None:
    """Raise ValueError if the steps of a tokenizer.json could turn a short text into a huge one."""
    described = json.loads(text)
    if not isinstance(described, dict):
        raise ValueError("it doesn't contain a dictionary")
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if math.prod(_growths(described.get(name))) > MAX_GROWTH:
            raise ValueError(f"its {name} can make a text more than {MAX_GROWTH} times as long")


def _growths(step: Any) -> Iterator[int]:
    """Yield how many times as long each step can make a text."""
    if isinstance(step, list):
        for each in step:
            yield from _growths(each)
    elif isinstance(step, dict):
        if step.get("type") == "ByteLevel":
            yield 4  # a character has up to four bytes
        added = [step[name] for name in ("content", "prepend") if isinstance(step.get(name), str)]
        replaced = step["pattern"].get("String") if isinstance(step.get("pattern"), dict) else None
        if isinstance(replaced, str) and replaced:
            yield from (max(1, math.ceil(len(text) / len(replaced))) for text in added)
        else:
            yield from (1 + len(text) for text in added)
        for value in step.values():
            yield from _growths(value)


@contextmanager
def blame_tokenizer(what: str, kind: type[TauflowError] = CheckpointError) -> Iterator[None]:
    """Raise an error of ours for whatever a tokenizer raises, also when its Rust code panics."""
    try:
        yield
    except TauflowError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {first_line(error)}") from None


@contextmanager
def limit_template() -> Iterator[None]:
    """Raise ValueError when a chat template runs too long: its loops may be nested without an end."""
    left = MAX_TEMPLATE_LINES

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("it runs too long")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


# Classes that a file may name


def path_of(cls: type) -> str:
    """Return the name that describes a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def class_of(spec: dict[str, Any], allowed: Iterable[type]) -> type:
    """Return the class of a described object, which must be one of those allowed; nothing is imported."""
    classes = {path_of(cls): cls for cls in allowed}
    name = str(spec.get("class_path"))
    if name not in classes:
        raise ValueError(f"class {shorten(name)!r} isn't one of {', '.join(sorted(classes))}")
    return classes[name]


def arguments_of(spec: dict[str, Any], allowed: Iterable[type]) -> dict[str, Any]:
    """Return the constructor arguments of a described object, built from allowed classes."""
    arguments = spec.get("init_args")
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise ValueError("an object without init_args")
    return {name: build(item, allowed) for name, item in arguments.items()}


def build(spec: Any, allowed: Iterable[type]) -> Any:
    """Build a described object, {"class_path": ..., "init_args": {...}}, from allowed classes."""
    if isinstance(spec, list):
        return [build(item, allowed) for item in spec]
    if not isinstance(spec, dict):
        return spec
    cls, arguments = class_of(spec, allowed), arguments_of(spec, allowed)
    check_types(cls, arguments)
    return cls(**arguments)


def check_types(cls: type, arguments: dict[str, Any]) -> None:
    """Raise ValueError if an argument doesn't have the plain type that a constructor declares."""
    parameters = inspect.signature(cls).parameters
    for name, value in arguments.items():
        wanted = ARGUMENT_TYPES.get(parameters[name].annotation) if name in parameters else None
        if wanted is not None and type(value) not in wanted:
            expected, found = parameters[name].annotation.__name__, type(value).__name__
            raise ValueError(f"{name} of {cls.__name__} must be of type {expected}, got {found}")
