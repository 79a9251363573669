"""Checkpoints made to do harm, or broken: each ends in one clear line, and touches nothing but itself.

The files are made here and go through every door: `tauflow.load`, sample.py, train.py --ckpt_path and the
studies, while files, hosts, programs and imports are watched.
"""

import contextlib
import copy
import io
import math
import os
import pickle
import random
import re
import resource
import struct
import sys
import time
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from conftest import TINY, assert_equal, load_plain

import tauflow
from tauflow.cli.sample import sample
from tauflow.cli.train import train
from tauflow.errors import CheckpointError, SettingsError, TauflowError
from tauflow.networks import TransformerConfig
from tauflow.networks.base import shapes_of
from tauflow.samplers import sample as draw
from tauflow.studies.__main__ import main as study
from tauflow.tasks import Countdown, Text
from tauflow.train import DFMModule
from tauflow.train.checkpoints import AtomicCheckpointIO, build, describe, export, read
from tauflow.train.resume import refuse_other_settings, refuse_unresumable
from tauflow.train.trained import CLASSES

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"
HUGE = 10**12
MODEL = object()  # the model's own description


# What is watched

HARM = ("socket", "subprocess", "os.system", "os.exec", "os.posix_spawn", "os.fork", "ctypes.dlopen")
CHANGE = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.chmod", "shutil")


class Watch:
    """Hears what Python does: an audit hook cannot be taken off, so there is one that is told to listen."""

    def __init__(self):
        self.done: list[str] | None = None
        sys.addaudithook(self.hear)

    def hear(self, event, arguments):
        if self.done is None:
            return
        if event == "open":
            name, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and isinstance(name, str | bytes | Path) and "__pycache__" not in os.fsdecode(name):
                self.done.append(f"wrote {os.fsdecode(name)}")
        elif event == "pickle.find_class" or event.startswith((*HARM, *CHANGE)):
            self.done.append(f"{event} {arguments}")
        elif event == "import" and arguments[0].split(".")[0] in ("antigravity", "evil"):
            self.done.append(f"imported {arguments[0]}")

    @contextlib.contextmanager
    def __call__(self):
        self.done = found = []
        try:
            yield found
        finally:
            self.done = None


watched = Watch()


# The doors


def by_load(path, folder):
    tauflow.load(path)


def by_sample(path, folder):
    words = ["--sampler", "euler", "--nfe", "2", "--num_samples", "2", "--device", "cpu", "--no_progress"]
    sample(["--ckpt", str(path), *words])


def by_train(path, folder):
    with pytest.MonkeyPatch.context() as patch:
        words = [f"--trainer.default_root_dir={folder / 'runs'}", "--trainer.max_steps=30"]
        patch.setattr("sys.argv", ["train.py", *TINY, *words, f"--ckpt_path={path}"])
        patch.setattr("sys.path", [*sys.path])
        train()


def by_study(path, folder):
    study(["countdown", "--ckpt", str(path), "--out", str(folder / "study"), "--smoke", "--no_progress"])


DOORS = {"load": by_load, "sample": by_sample, "train": by_train, "study": by_study}


def said_by(door, path, folder, capfd) -> str:
    """Return what a door says of a file, if it refuses it and touches nothing."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    with watched() as done, pytest.raises((TauflowError, SystemExit)) as caught:
        DOORS[door](path, folder)
    printed = "".join(capfd.readouterr())
    error = caught.value
    if isinstance(error, SystemExit):
        assert isinstance(error.code, str), f"exit {error.code}: {printed}"
        assert error.code.startswith("error: ")
    else:
        assert isinstance(error, CheckpointError)
    text = printed + str(error)
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 10
    assert len(text) < 2000
    assert text.replace("\n", "").isprintable(), repr(text)
    assert not [each for each in done if str(folder / "runs") not in each], done
    assert not (folder / "pwned").exists()
    assert not list((folder / "runs").glob("version_*"))
    assert time.monotonic() - begin < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    return str(error)


# The files


class Calls:
    """Pickled as a call of something."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def put(checkpoint, where: str, value):
    """Set an entry of a checkpoint by its path; `model.` and `task.` are those of what describes them."""
    short = {"model": "tauflow.model.init_args", "task": "tauflow.task.init_args"}
    first, _, rest = where.partition(".")
    if first == "state_dict" and rest:
        checkpoint[first][rest] = value  # the names of weights have dots
        return
    names = f"{short.get(first, first)}.{rest}".rstrip(".").split(".")
    for name in names[:-1]:
        checkpoint = checkpoint[int(name) if isinstance(checkpoint, list) else name]
    checkpoint[names[-1]] = value


NETWORK = "model.network.init_args"
FACTS = "model.facts.init_args"


def laughs():
    """Return a list that would have 2^60 items if it was written out."""
    value = ["ha"]
    for _ in range(60):
        value = [value, value]
    return value


def deep():
    value: list = []
    for _ in range(200):
        value = [value]
    return value


def cycle():
    value: list = []
    value.append(value)
    return value


def foreign(name, **arguments):
    return {"class_path": name, "init_args": arguments}


ENTRIES = {  # name: (where, value, what the answer says)
    "os.system": ("extra", Calls(os.system, "touch pwned"), "more than plain data"),
    "eval": ("state_dict.x", Calls(eval, "open('pwned', 'w')"), "more than plain data"),
    "bytearray": ("extra", Calls(bytearray, 2**36), r"names builtins\.bytearray|__builtin__\.bytearray"),
    "parameter": ("state_dict.x", torch.nn.Parameter(torch.ones(2)), "more than plain data"),
    "set": ("extra", {1, 2}, "more than plain data"),
    "schedule class": ("model.schedule", foreign("antigravity.fly"), r"names antigravity\.fly"),
    "task class": ("tauflow.task.class_path", "evil.Task", r"names evil\.Task"),
    "hydra": ("hyper_parameters", {"_target_": "os.system"}, r"names os\.system"),
    "source": ("model.source", "antigravity.Source", r"names antigravity\.Source"),
    "source file": ("model.source", "evil.py:Source", r"names evil\.py:Source"),
    "known source": ("model.source", "tauflow.process.sources.Masked", "not described|other settings"),
    "schedule": ("model.schedule", "antigravity.Schedule", "unknown schedule|other settings"),
    "network": ("model.network", "antigravity.Config", "str|other settings"),
    "list of sources": ("model.source", ["antigravity.Source"], "build|other settings"),
    "inner model": (f"{FACTS}.unigrams", MODEL, "is not one of|other settings"),
    "terminal": ("tauflow.model.class_path", f"os.{ESCAPE}", r"names os\.�"),
    "terminal weights": (f"state_dict.ema.{ESCAPE}", torch.ones(2), "other shapes|not that of a run"),
    "terminal step": ("tauflow.format", ESCAPE * 100, "has format"),
    "width": (f"{NETWORK}.width", 4096, "other shapes|other settings"),
    "mlp": (f"{NETWORK}.mlp_ratio", HUGE, "at most|other settings"),
    "depth": (f"{NETWORK}.blocks", 10**9, "at most|other settings"),
    "deep": (f"{NETWORK}.blocks", 256, "other shapes|other settings"),
    "vocabulary": (f"{FACTS}.num_tokens", HUGE, "1 to 16777216|other settings"),
    "vocabulary that fits": (f"{FACTS}.num_tokens", 2**24, "tokens|other settings"),
    "shape": (f"{FACTS}.shape", [HUGE], "1 to 16777216|other settings"),
    "many dimensions": (f"{FACTS}.shape", [2**60] * 10**4, "at most 64|other settings"),
    "conditions": (f"{FACTS}.conditions", [10**9], "1 to 16777216|other settings"),
    "columns": (f"{FACTS}.conditions", [1] * 10**4, "at most 64|other settings"),
    "long number": ("task.val_items", 10**600, "int that no checkpoint"),
    "laughs": ("extra", laughs(), "repeats itself"),
    "laughs in settings": ("model.seed", laughs(), "repeats itself"),
    "nested": ("extra", deep(), "nested too deeply"),
    "cycle": ("extra", cycle(), "nested too deeply|repeats itself"),
    "tensor in settings": (f"{NETWORK}.width", torch.ones(2), "Tensor that no checkpoint"),
    "type": ("task.seed", "x", "seed of Countdown must be of type int, not str|other settings"),
    "nan": ("model.schedule.init_args.exponent", math.nan, "exponent|other settings"),
    "format 1": (
        "tauflow",
        {"format": 1, "model": foreign("x", num_tokens="x", seq_len=[]), "task": None},
        "x",
    ),
    "no weights": ("state_dict", {}, "other shapes|not that of a run"),
    "weights by number": ("state_dict", {1: torch.ones(2)}, "not complete"),
    "weights of text": ("state_dict", {"ema.network.embedding.weight": "x"}, "not complete"),
    "no model": ("tauflow.model", None, "not complete"),
    "no arguments": ("tauflow.model.init_args", None, "init_args"),
    "list of weights": ("state_dict", [torch.ones(2)], "not written by tauflow"),
    "step": ("global_step", -1, "not complete"),
}


@pytest.fixture(scope="module")
def clean(trained):
    return trained / "last.ckpt"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Be in a folder with modules that must not be imported."""
    (tmp_path / "evil.py").write_text("open('pwned', 'w')")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def imported(clean, tmp_path_factory):
    """Go through every door once, so that what is imported late is there."""
    folder = tmp_path_factory.mktemp("once")
    for door in DOORS.values():
        with contextlib.suppress(SystemExit, TauflowError):
            door(folder / "nothing.ckpt", folder)
    tauflow.load(clean)


def broken(clean, where, value) -> bytes:
    checkpoint = load_plain(clean)
    put(checkpoint, where, copy.deepcopy(checkpoint["tauflow"]["model"]) if value is MODEL else value)
    file = io.BytesIO()
    torch.save(checkpoint, file)
    return file.getvalue()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_does_harm(clean, tmp_path, capfd, name, door):
    where, value, answer = ENTRIES[name]
    path = tmp_path / "bad.ckpt"
    path.write_bytes(broken(clean, where, value))
    said = said_by(door, path, tmp_path, capfd)
    assert str(path) in said
    assert re.search(answer, said), said


# Zips


def zipped(clean, change=lambda name, data: data, compression=zipfile.ZIP_STORED, more=()) -> bytes:
    """Return the members of a checkpoint, changed, in a zip of its own, without those that become None."""
    file = io.BytesIO()
    with zipfile.ZipFile(clean) as old, zipfile.ZipFile(file, "w", compression) as new:
        members = [(name, change(name, old.read(name))) for name in old.namelist()]
        for name, data in [*members, *more]:
            if data is not None:
                new.writestr(zipfile.ZipInfo(name), data, compression)
    data = bytearray(file.getvalue())
    place = data.find(b"PK\x01\x02")
    while place >= 0:  # attributes of files, which torch does not write
        data[place + 38 : place + 42] = bytes(4)
        place = data.find(b"PK\x01\x02", place + 4)
    return bytes(data)


def directory(data: bytes, name: str) -> int:
    """Return where the entry of a member is in the directory of a zip."""
    return data.rfind(b"PK\x01\x02", 0, data.rfind(name.encode()))


def patched(data: bytes, name: str, offset: int, value: bytes) -> bytes:
    """Change bytes of the entry of a member in the directory of a zip."""
    place = directory(data, name) + offset
    return data[:place] + value + data[place + len(value) :]


def legacy(clean) -> bytes:
    file = io.BytesIO()
    torch.save(load_plain(clean), file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def overlapping(clean) -> bytes:
    """Return a member that contains the next ones, with the right checksum: the same bytes are read twice."""
    data = clean.read_bytes()
    [place] = struct.unpack_from("<I", data, directory(data, "archive/data/5") + 42)
    begin = place + 30 + sum(struct.unpack_from("<HH", data, place + 26))
    sizes = struct.pack("<III", zlib.crc32(data[begin : begin + 5000]), 5000, 5000)
    return patched(data, "archive/data/5", 16, sizes)


def other_in_front(clean) -> bytes:
    """Return a file that torch would read in its first half, and whose second half is a good zip."""
    return legacy(clean) + clean.read_bytes()


def two_directories(clean) -> bytes:
    """Return two zips whose end points to the directory of the first: zipfile reads the second."""
    data = zipped(clean)
    end = data.rfind(b"PK\x05\x06")
    return data[:end] + data


def bomb(clean) -> bytes:
    """Return 64 MB of zeros in a file of some kB."""
    file = io.BytesIO()
    torch.save(load_plain(clean) | {"extra": torch.zeros(2**24)}, file)
    data = zipped(file, compression=zipfile.ZIP_DEFLATED)
    assert len(data) < 2**18
    return data


def folder_bit(clean) -> bytes:
    return patched(clean.read_bytes(), "archive/data/5", 38, b"\x10")


ARCHIVES = {
    "empty": lambda clean: b"",
    "text": lambda clean: b"hello world, this is text",
    "picture": lambda clean: b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "noise": lambda clean: random.Random(0).randbytes(4096),
    "pickle": lambda clean: pickle.dumps(Calls(os.system, "touch pwned")),
    "legacy": legacy,
    "half": lambda clean: clean.read_bytes()[: clean.stat().st_size // 2],
    "cut": lambda clean: clean.read_bytes()[:-1],
    "front cut": lambda clean: clean.read_bytes()[100:],
    "bomb": bomb,
    "overlap": overlapping,
    "other in front": other_in_front,
    "two directories": two_directories,
    "folder": folder_bit,
    "lost tensor": lambda clean: zipped(clean, lambda name, data: None if name.endswith("/5") else data),
    "lost pickle": lambda clean: zipped(clean, lambda name, data: None if "pkl" in name else data),
    "two pickles": lambda clean: zipped(clean, more=[("other/data.pkl", b"N.")]),
    "short tensor": lambda clean: zipped(
        clean, lambda name, data: data[:-4] if name.endswith("/5") else data
    ),
    "garbled pickle": lambda clean: zipped(clean, lambda name, data: data[:500] if "pkl" in name else data),
    "encrypted": lambda clean: patched(clean.read_bytes(), "archive/data/5", 8, b"\x01"),
    "only a zip": lambda clean: zipped(clean, lambda name, data: None, more=[("a.txt", b"hello")]),
}


WHY = {
    "bomb": "a part of it is compressed",
    "overlap": "two parts of it overlap",
    "other in front": "two parts of it overlap, or something lies before",
    "two directories": "two parts of it overlap, or something lies before",
    "folder": "a part of it is marked as a folder",
    "two pickles": "its parts are not those of torch.save",
    "lost pickle": "its parts are not those of torch.save",
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_is_broken_or_does_harm(clean, tmp_path, capfd, name, door):
    path = tmp_path / "bad.ckpt"
    path.write_bytes(ARCHIVES[name](clean))
    said = said_by(door, path, tmp_path, capfd)
    assert f"cannot be read, it is truncated, damaged or not a checkpoint ({WHY.get(name, '')}" in said


def test_a_pickle_that_is_nested_by_hand(clean, tmp_path, capfd):
    """No program that writes pickles gets so deep."""
    lists = b"\x80\x02" + b"]" * 10**4 + b"a" * (10**4 - 1) + b"."
    data = zipped(clean, lambda name, data: lists if "pkl" in name else data)
    (tmp_path / "bad.ckpt").write_bytes(data)
    assert "nested too deeply" in said_by("load", tmp_path / "bad.ckpt", tmp_path, capfd)


def test_the_zip_of_these_tests_is_read_when_nothing_is_wrong(clean, tmp_path):
    (tmp_path / "same.ckpt").write_bytes(zipped(clean))
    assert_equal(read(tmp_path / "same.ckpt"), read(clean))


def test_a_flipped_bit_is_found_or_changes_nothing(clean, tmp_path):
    """Anywhere in the file, and 60 in the numbers of weights, where each is found.

    Those that change nothing are in what is between the members, or in fields that nobody reads.
    """
    data = clean.read_bytes()
    contents = read(clean)
    choose = random.Random(0)
    with zipfile.ZipFile(clean) as archive:
        begin = archive.start_dir
        weights = [each for each in archive.infolist() if "/data/" in each.filename and each.file_size > 500]
    headers = [each.header_offset for each in weights]
    lengths = [struct.unpack("<HH", data[place + 26 : place + 30]) for place in headers]
    begins = [place + 30 + sum(both) for place, both in zip(headers, lengths, strict=True)]
    starts = [choose.choice(begins) + choose.randrange(500) for _ in range(60)]
    places = [*(choose.randrange(len(data)) for _ in range(100)), *range(begin, len(data), 61)]
    for place in [*starts, *places]:
        path = tmp_path / "flipped.ckpt"
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << choose.randrange(8)]) + data[place + 1 :])
        try:
            assert_equal(read(path), contents)
        except CheckpointError as error:
            assert "damaged" in str(error)  # noqa: PT017 - or the contents are equal
        else:
            assert place not in starts
    path.write_bytes(data[: starts[0]] + bytes([data[starts[0]] ^ 1]) + data[starts[0] + 1 :])
    with pytest.raises(CheckpointError, match="the checksum of"):
        AtomicCheckpointIO().load_checkpoint(path)  # where the trainer reads it


def test_weights_that_share_their_numbers_take_no_memory(clean, tmp_path, capfd):
    """One number, written out by a shape: a network of 800 MB in a file of a few kB."""
    checkpoint = load_plain(clean)
    put(checkpoint, f"{NETWORK}.width", 4096)
    module = copy.deepcopy(checkpoint["tauflow"]["model"])
    facts = build(module["init_args"]["facts"], CLASSES)
    config = build(module["init_args"]["network"], CLASSES)
    shapes = shapes_of(config, facts.shape, facts.num_tokens + 1, facts.num_tokens)
    checkpoint["state_dict"] = {
        f"ema.network.{name}": torch.ones(()).expand(size) for name, size in shapes.items()
    }
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    assert (tmp_path / "bad.ckpt").stat().st_size < 100_000
    assert "share their numbers" in said_by("load", tmp_path / "bad.ckpt", tmp_path, capfd)


# Wrong values everywhere

VALUES = (None, ESCAPE, 2**62, math.nan, [1, "x"])


def leaves(value, where=""):
    """Yield the paths of all values of described objects."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"{where}.{name}"
            yield from leaves(item, f"{where}.{name}")


@pytest.mark.slow
def test_a_wrong_value_anywhere_in_the_description_is_refused_or_does_not_matter(clean, tmp_path):
    checkpoint = load_plain(clean)
    paths = list(leaves(checkpoint["tauflow"], "tauflow"))
    assert len(paths) > 30
    refused = 0
    for where in paths:
        for value in VALUES:
            bad = checkpoint | {"tauflow": copy.deepcopy(checkpoint["tauflow"])}
            put(bad, where, value)
            torch.save(bad, tmp_path / "bad.ckpt")
            try:
                found = tauflow.load(tmp_path / "bad.ckpt")
            except CheckpointError as error:
                refused += 1
                assert len(str(error)) < 1000  # noqa: PT017
                assert str(error).isprintable()  # noqa: PT017
            else:
                if found.task is not None:
                    found.task.setup("validate")
                    assert len(found.task.val_data) >= 2
                    assert found.task.val_data[0]
                assert draw(found.model, "euler", 2, count=2).tokens.shape == (2, 16)
    assert refused > len(paths) * len(VALUES) / 2


# Training


@pytest.fixture(scope="module")
def resumed(clean):
    """A checkpoint, and the model and task that continue from it."""
    checkpoint = read(clean)
    model, task = (build(checkpoint["tauflow"][part], CLASSES) for part in ("model", "task"))
    return checkpoint, model, task


STATES = {  # where: values that are wrong there
    "epoch": (None, "x", -1),
    "pytorch-lightning_version": (3, "", "0.1", ESCAPE),
    "loops": (None, [], {}),
    "loops.fit_loop": (None, {}),
    "callbacks": (None, [], {"Checkpoints": "x"}),
    "optimizer_states": (None, [], [{}], ["x"], {}),
    "optimizer_states.0.param_groups": (None, [], [{}, {}]),
    "optimizer_states.0.param_groups.0.params": ([], [0], "x"),
    "optimizer_states.0.param_groups.0.lr": ("x", math.nan, None),
    "optimizer_states.0.param_groups.0.betas": (0.9, [0.9], ["x", "y"]),
    "optimizer_states.0.param_groups.0.amsgrad": (True, "x"),
    "optimizer_states.0.state": (None, [], {99: {}}, {0: {}}, {0: "x"}),
    "lr_schedulers": (None, [], ["x"], [{}], [{"get_lr": 3}]),
    "lr_schedulers.0.last_epoch": (None, -1, "x"),
    "lr_schedulers.0.base_lrs": ([], ["x", 0.1], None),
    "lr_schedulers.0.optimizer": ("x",),
}


@pytest.mark.parametrize("where", STATES)
def test_a_state_of_training_that_is_wrong(clean, resumed, where):
    checkpoint, model, task = resumed
    refuse_other_settings(checkpoint, clean, model, task, 1)
    for value in STATES[where]:
        bad = copy.deepcopy(checkpoint)
        put(bad, where, value)
        with pytest.raises(
            CheckpointError, match=r"last\.ckpt cannot be resumed, its .* is missing or not that"
        ):
            refuse_other_settings(bad, clean, model, task, 1)


def test_counts_of_a_loop_that_are_wrong(clean, resumed):
    checkpoint, _, _ = resumed
    for name, inside in checkpoint["loops"]["fit_loop"].items():
        for value in (None, "x", {"total": {"ready": -1}, "current": 3}):
            if name.endswith("progress") or value in (None, "x"):
                bad = copy.deepcopy(checkpoint)
                bad["loops"]["fit_loop"][name] = value
                with pytest.raises(CheckpointError, match=re.escape(f"its loops.fit_loop.{name}")):
                    refuse_unresumable(bad, clean)
        assert isinstance(inside, dict)


def missing_weight(checkpoint):
    del checkpoint["state_dict"]["network.embedding.weight"]


def other_shape(checkpoint):
    checkpoint["state_dict"]["network.embedding.weight"] = torch.ones(3, 3)


def more_weights(checkpoint):
    checkpoint["state_dict"]["network.more"] = torch.ones(3, 3)


def other_moment(checkpoint):
    checkpoint["optimizer_states"][0]["state"][0]["exp_avg"] = torch.ones(3, 3)


def repeated(checkpoint):
    moments = checkpoint["optimizer_states"][0]["state"][0]
    moments["exp_avg"] = torch.ones(1, 1).expand_as(moments["exp_avg"])


def no_optimizer(checkpoint):
    del checkpoint["optimizer_states"]


def no_loops(checkpoint):
    del checkpoint["loops"]


RESUMED = [
    (no_optimizer, "no state of its training"),
    (no_loops, "no state of its training"),
    (missing_weight, r"its network\.embedding\.weight is missing or not"),
    (other_shape, r"its network\.embedding\.weight is missing or not"),
    (more_weights, r"its network\.more is missing or not"),
    (other_moment, r"its optimizer_states\.0\.state\.0\.exp_avg is"),
    (repeated, r"its optimizer_states\.0\.state\.0\.exp_avg is"),
]


@pytest.mark.parametrize(("change", "answer"), RESUMED, ids=[change.__name__ for change, _ in RESUMED])
def test_training_does_not_begin_from_a_part_of_a_checkpoint(clean, tmp_path, capfd, change, answer):
    checkpoint = load_plain(clean)
    change(checkpoint)
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    assert re.search(answer, said_by("train", tmp_path / "bad.ckpt", tmp_path, capfd))


def test_training_does_not_begin_from_an_exported_checkpoint(clean, tmp_path, capfd):
    export(clean, tmp_path / "small.ckpt")
    tauflow.load(tmp_path / "small.ckpt")
    said = said_by("train", tmp_path / "small.ckpt", tmp_path, capfd)
    assert "holds a model to sample from, but no state of its training" in said


def test_other_settings_are_named_without_control_characters(clean, tmp_path, capfd):
    (tmp_path / "bad.ckpt").write_bytes(broken(clean, "task.hub", f"x{ESCAPE}" * 100))
    said = said_by("train", tmp_path / "bad.ckpt", tmp_path, capfd)
    assert "data.hub" in said
    assert "if you trust that file: classes that it names are imported" in said


# Text, and files beside a checkpoint


@pytest.fixture
def text(tmp_path):
    """The folder of a text model whose file names a cache, a hub, a tokenizer and judges."""
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"document {n} of the people" for n in range(50)))
    task = Text(files=str(tmp_path / "corpus.txt"), cache=str(tmp_path / "cache"), length=16, vocabulary=260)
    checkpoint = {"global_step": 0, "tauflow": {"format": 2, "task": describe(task)}}
    module = DFMModule(task.facts, network=TransformerConfig(width=16, blocks=1, heads=1))
    checkpoint["tauflow"]["model"] = describe(module)
    checkpoint["state_dict"] = {k: v for k, v in module.state_dict().items() if k.startswith("ema.")}
    named = {
        "hub": "pandas",
        "cache": "made",
        "tokenizer": "somebody/x",
        "judges": "somebody/y",
        "files": None,
    }
    checkpoint["tauflow"]["task"]["init_args"] |= named
    folder = tmp_path / "text"
    folder.mkdir()
    torch.save(checkpoint, folder / "text.ckpt")
    for name in ("train.pkl", "pandas"):
        (tmp_path / name).write_bytes(pickle.dumps(Calls(os.system, "touch pwned")))
    return folder


def test_a_text_model_is_sampled_without_anything_that_its_file_names(text, tmp_path, capfd):
    before = sorted(tmp_path.rglob("*"))
    path = text / "text.ckpt"
    for _ in range(2):  # the first imports more
        with watched() as done, pytest.raises(SystemExit) as stop:
            by_sample(path, tmp_path)
    assert stop.value.code == 0
    assert not done
    assert sorted(tmp_path.rglob("*")) == before
    printed = capfd.readouterr().out
    assert "entropy_bits" in printed
    assert "name it: `sample.py --data" in printed
    words = ["text", "--ckpt", str(path), "--out", str(tmp_path / "study"), "--smoke", "--no_progress"]
    with watched() as done:
        study([*words, "--samplers", "euler"])
    assert not [each for each in done if str(tmp_path / "study") not in each]
    made = [each for each in tmp_path.rglob("*") if tmp_path / "study" not in (each, *each.parents)]
    assert sorted(made) == before


@pytest.mark.parametrize(
    "order",
    [
        "",
        "{",
        "[" * 1400,
        "[" * 10**5,
        "3",
        '{"ranks": [1e400]}',
        '{"ranks": "x", "checkpoint": []}',
        " " * 10**7,
    ],
)
def test_an_order_that_is_broken_is_not_used(clean, tmp_path, order):
    (tmp_path / "x.ckpt").write_bytes(clean.read_bytes())
    (tmp_path / "x.order.json").write_text(order)
    with pytest.warns(UserWarning, match="and is not used; learn it again"):
        assert tauflow.load(tmp_path / "x.ckpt").model.order is None


# What is the user's


class Placed(Countdown):
    """Countdown with a setting that says where something is."""

    local = ("place",)

    def __init__(self, place: str = "nowhere", length: int = 16, values: int = 6):
        super().__init__(length=length, values=values)
        self.place = place


def test_where_things_are_is_said_by_the_user_only(clean, tmp_path):
    checkpoint = load_plain(clean)
    checkpoint["tauflow"]["task"] = describe(Placed("/etc/passwd"))
    torch.save(checkpoint, tmp_path / "placed.ckpt")

    def place(**data):
        return tauflow.load(tmp_path / "placed.ckpt", classes=[Placed], data=data).task.place

    assert place() == "nowhere"
    assert place(place="here") == "here"
    for data in ({"length": 8}, {"nonsense": 1}):
        with pytest.raises(SettingsError, match=f"may say place, not {next(iter(data))}"):
            place(**data)
    with pytest.raises(SettingsError, match="may say nothing, not place"):
        tauflow.load(clean, data={"place": "here"})


def test_a_network_of_the_users_own_is_compared_when_it_is_built(clean, tmp_path):
    checkpoint = load_plain(clean)
    network = checkpoint["tauflow"]["model"]["init_args"]["network"]
    network["class_path"] = f"{Own.__module__}.{Own.__qualname__}"
    torch.save(checkpoint, tmp_path / "own.ckpt")
    assert isinstance(tauflow.load(tmp_path / "own.ckpt", classes=[Own]).model, tauflow.Model)
    network["init_args"]["width"] = 32
    torch.save(checkpoint, tmp_path / "own.ckpt")
    with pytest.raises(CheckpointError, match="size mismatch"):
        tauflow.load(tmp_path / "own.ckpt", classes=[Own])


class Own(TransformerConfig):
    pass
