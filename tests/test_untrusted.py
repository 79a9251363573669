"""Files made to do harm, or broken, at the four doors for strangers' files.

The doors are `tauflow.load`, `tauflow.pretrained`, the learned files next to a checkpoint, and the config of
a diffusers scheduler. Each file ends in one clear line, runs no code, and touches nothing but itself.
"""

import contextlib
import copy
import io
import json
import math
import os
import pickle
import random
import re
import resource
import signal
import struct
import sys
import zipfile
from pathlib import Path

import fudoki
import pytest
import torch
from conftest import TINY, assert_equal, load_plain
from language_models import ESM, LLADA, LLADA_NAMES, SETTINGS, esm_weights, llama_weights, write
from torch import nn

import tauflow
from benchmarks.studies.command import main as study
from tauflow.cli.sample import sample
from tauflow.cli.train import train
from tauflow.errors import CheckpointError, SettingsError, TauflowError
from tauflow.networks import TransformerConfig
from tauflow.networks.network import weights_of
from tauflow.recipes import convert
from tauflow.samplers import sample as draw
from tauflow.samplers.learned import save_order
from tauflow.tasks import Countdown, Text
from tauflow.train import DFMModule
from tauflow.train.checkpoint import CLASSES, AtomicCheckpointIO, read
from tauflow.train.module import describe
from tauflow.untrusted import build, read_arrays

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"
HUGE = 10**12
MODEL = object()  # the model's own description


# What is watched

HARM = ("socket", "subprocess", "os.system", "os.exec", "os.posix_spawn", "os.fork", "ctypes.dlopen")
CHANGE = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.chmod", "shutil")


class Watch:
    """Hears what Python does: an audit hook can't be removed, so this one listens only when told to."""

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


def said_by(door, folder, capfd) -> str:
    """Return what a door says of a file, if it raises an error of ours in time and touches nothing."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it doesn't end"))
    signal.alarm(20)
    try:
        with watched() as done, pytest.raises((TauflowError, SystemExit)) as caught:
            door()
    finally:
        signal.alarm(0)
    printed = "".join(capfd.readouterr())
    error = caught.value
    if isinstance(error, SystemExit):
        assert isinstance(error.code, str), f"exit {error.code}: {printed}"
        assert error.code.startswith("error: ")
    text = printed + str(error)
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 10
    assert len(text) < 2000
    assert text.replace("\n", "").isprintable(), repr(text)
    assert not [each for each in done if str(folder / "runs") not in each], done
    assert not (folder / "pwned").exists()
    assert not list((folder / "runs").glob("version_*"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    return str(error)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Work in a folder with a module that must not be imported."""
    (tmp_path / "evil.py").write_text("open('pwned', 'w')")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)


class Calls:
    """Pickled as a call of something."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def flipped(path: Path, place: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


# The first door: tauflow.load


@pytest.fixture(scope="module")
def clean(trained):
    return trained / "last.ckpt"


def put(checkpoint, where: str, value):
    """Set an entry of a checkpoint by its path; `model.` and `task.` are short for their descriptions."""
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
EMBEDDING = "ema.network.embedding.weight"


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


def foreign(name, **arguments):
    return {"class_path": name, "init_args": arguments}


ENTRIES = {  # name: (where, value, what the answer says)
    "code": ("extra", Calls(os.system, "touch pwned"), r"more than plain data.* names (posix|nt)\.system"),
    "memory": ("extra", Calls(bytearray, 2**36), r"names (builtins|__builtin__)\.bytearray"),
    "class": ("model.schedule", foreign("antigravity.fly"), r"names antigravity\.fly"),
    "hydra": ("hyper_parameters", {"_target_": "os.system"}, r"names os\.system"),
    "source file": ("model.source", "evil.py:Source", r"names evil\.py:Source"),
    "source without description": ("model.source", "tauflow.process.sources.Masked", "not described"),
    "schedule by name": ("model.schedule", "antigravity.Schedule", "unknown schedule"),
    "model inside the model": (f"{FACTS}.unigrams", MODEL, "isn't one of"),
    "terminal": ("tauflow.model.class_path", f"os.{ESCAPE}", r"names os\.�"),
    "unknown weight": (f"state_dict.ema.{ESCAPE}", torch.ones(2), "unknown: .*�"),
    "shapes": (f"{NETWORK}.width", 4096, "of another shape: "),
    "many blocks": (f"{NETWORK}.blocks", 10**9, "from 1 to"),
    "vocabulary": (f"{FACTS}.num_tokens", HUGE, "1 to 16777216"),
    "dimensions": (f"{FACTS}.shape", [2**60] * 10**4, "at most 64"),
    "long number": ("task.val_items", 10**600, "contains a int"),
    "laughs": ("extra", laughs(), "repeats itself"),
    "nested": ("extra", deep(), "nested too deeply"),
    "tensor in settings": (f"{NETWORK}.width", torch.ones(2), "contains a Tensor"),
    "type": ("task.seed", "x", "seed of Countdown must be of type int, got str"),
    "value": ("model.schedule.init_args.exponent", math.nan, "exponent"),
    "format 1": (
        "tauflow",
        {"format": 1, "model": foreign("x", num_tokens="x", seq_len=[]), "task": None},
        "x",
    ),
    "no weights": ("state_dict", {}, "missing: "),
    "whole numbers": (f"state_dict.{EMBEDDING}", torch.ones(7, 16).long(), "of another type: .*int64"),
    "complex numbers": (f"state_dict.{EMBEDDING}", torch.ones(7, 16) * 1j, "of another type: .*complex64"),
    "weights of text": ("state_dict", {EMBEDDING: "x"}, "not complete"),
    "list of weights": ("state_dict", [torch.ones(2)], "not written by tauflow"),
    "step": ("global_step", -1, "not complete"),
}


def broken(clean, path, name) -> Path:
    """Write a checkpoint with one bad entry."""
    where, value, _ = ENTRIES[name]
    checkpoint = load_plain(clean)
    put(checkpoint, where, copy.deepcopy(checkpoint["tauflow"]["model"]) if value is MODEL else value)
    torch.save(checkpoint, path)
    return path


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_of_a_checkpoint(clean, tmp_path, capfd, name):
    path = broken(clean, tmp_path / "bad.ckpt", name)
    said = said_by(lambda: tauflow.load(path), tmp_path, capfd)
    assert str(path) in said
    assert re.search(ENTRIES[name][2], said), said


def by_sample(path):
    words = ["--sampler", "euler", "--nfe", "2", "--num_samples", "2", "--device", "cpu", "--no_progress"]
    sample(["--ckpt", str(path), *words])


def by_train(path):
    with pytest.MonkeyPatch.context() as patch:
        words = [f"--trainer.default_root_dir={path.parent / 'runs'}", "--trainer.max_steps=30"]
        patch.setattr("sys.argv", ["train.py", *TINY, *words, f"--ckpt_path={path}"])
        patch.setattr("sys.path", [*sys.path])
        train()


def by_study(path):
    words = ["--out", str(path.parent / "study"), "--smoke", "--no_progress"]
    study(["countdown", "--ckpt", str(path), *words])


@pytest.mark.parametrize("command", [by_sample, by_train, by_study])
def test_commands_read_through_the_same_door(clean, tmp_path, capfd, command):
    with contextlib.suppress(SystemExit, TauflowError):
        command(tmp_path / "nothing.ckpt")  # imports what is imported late
    capfd.readouterr()
    path = broken(clean, tmp_path / "bad.ckpt", "class")
    assert "names antigravity.fly" in said_by(lambda: command(path), tmp_path, capfd)


def zipped(clean, change=lambda name, data: data, compression=zipfile.ZIP_STORED, more=()) -> bytes:
    """Return the members of a checkpoint, changed, in a new zip, without those that become None."""
    file = io.BytesIO()
    with zipfile.ZipFile(clean) as old, zipfile.ZipFile(file, "w", compression) as new:
        members = [(name, change(name, old.read(name))) for name in old.namelist()]
        for name, data in [*members, *more]:
            if data is not None:
                new.writestr(zipfile.ZipInfo(name), data, compression)
    data = bytearray(file.getvalue())
    place = data.find(b"PK\x01\x02")
    while place >= 0:  # attributes of files, which torch doesn't write
        data[place + 38 : place + 42] = bytes(4)
        place = data.find(b"PK\x01\x02", place + 4)
    return bytes(data)


def patched(clean, name: str, offset: int, value: bytes) -> bytes:
    """Change bytes of the entry of a member in the directory of a zip."""
    data = clean.read_bytes()
    place = data.rfind(b"PK\x01\x02", 0, data.rfind(name.encode())) + offset
    return data[:place] + value + data[place + len(value) :]


def legacy(content) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def bomb(clean) -> bytes:
    """Return 64 MB of zeros in a file of some kB."""
    file = io.BytesIO()
    torch.save(load_plain(clean) | {"extra": torch.zeros(2**24)}, file)
    data = zipped(file, compression=zipfile.ZIP_DEFLATED)
    assert len(data) < 2**18
    return data


ARCHIVES = {  # name: (its bytes, what the answer says)
    "text": (lambda clean: b"hello world, this is text", ""),
    "half": (lambda clean: clean.read_bytes()[: clean.stat().st_size // 2], ""),
    "pickle": (lambda clean: pickle.dumps(Calls(os.system, "touch pwned")), ""),
    "legacy": (lambda clean: legacy(load_plain(clean)), ""),
    "other in front": (lambda clean: legacy(load_plain(clean)) + clean.read_bytes(), ""),
    "bomb": (bomb, "a part of it is compressed"),
    "folder": (lambda clean: patched(clean, "archive/data/5", 38, b"\x10"), "marked as a folder"),
    "lost tensor": (lambda clean: zipped(clean, lambda name, data: None if name[-2:] == "/5" else data), ""),
    "short tensor": (
        lambda clean: zipped(clean, lambda name, data: data[:-4] if name[-2:] == "/5" else data),
        "",
    ),
    "two pickles": (
        lambda clean: zipped(clean, more=[("other/data.pkl", b"N.")]),
        "torch.save didn't write it",
    ),
    "another pickle that torch would find": (
        lambda clean: zipped(clean, more=[("archive/DATA.PKL", b"N.")]),
        "torch.save didn't write its part archive/DATA.PKL",
    ),
    "encrypted": (lambda clean: patched(clean, "archive/data/5", 8, b"\x01"), ""),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_is_broken_or_does_harm(clean, tmp_path, capfd, name):
    make, answer = ARCHIVES[name]
    (tmp_path / "bad.ckpt").write_bytes(make(clean))
    said = said_by(lambda: tauflow.load(tmp_path / "bad.ckpt"), tmp_path, capfd)
    assert "can't be read: it's truncated, damaged, or of another kind" in said or "isn't loaded" in said
    assert answer in said


def test_a_pickle_that_is_nested_by_hand(clean, tmp_path, capfd):
    """No program that writes pickles gets so deep."""
    lists = b"\x80\x02" + b"]" * 10**4 + b"a" * (10**4 - 1) + b"."
    (tmp_path / "bad.ckpt").write_bytes(zipped(clean, lambda name, data: lists if "pkl" in name else data))
    said = said_by(lambda: tauflow.load(tmp_path / "bad.ckpt"), tmp_path, capfd)
    assert "nested too deeply" in said


def test_the_zip_of_these_tests_is_read_when_nothing_is_wrong(clean, tmp_path):
    (tmp_path / "same.ckpt").write_bytes(zipped(clean))
    assert_equal(read(tmp_path / "same.ckpt"), read(clean))


def test_a_flipped_bit_is_found_or_changes_nothing(clean, tmp_path):
    """Anywhere in the file, and 60 in the numbers of weights, where each is found.

    Those that change nothing are between the members, or in fields that nobody reads.
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
    path = tmp_path / "flipped.ckpt"
    for place in [*starts, *places]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << choose.randrange(8)]) + data[place + 1 :])
        try:
            assert_equal(read(path), contents)
        except CheckpointError as error:
            assert "damaged" in str(error)  # noqa: PT017 - or the contents are equal
        else:
            assert place not in starts
    path.write_bytes(data)
    flipped(path, starts[0])
    with pytest.raises(CheckpointError, match="the checksum of"):
        AtomicCheckpointIO().load_checkpoint(path)  # how the trainer reads it


def test_weights_that_share_their_numbers_take_no_memory(clean, tmp_path, capfd):
    """One number, expanded to a shape: a network of 800 MB in a file of a few kB."""
    checkpoint = load_plain(clean)
    put(checkpoint, f"{NETWORK}.width", 4096)
    module = copy.deepcopy(checkpoint["tauflow"]["model"])
    facts = build(module["init_args"]["facts"], CLASSES)
    config = build(module["init_args"]["network"], CLASSES)
    wanted = weights_of(config, facts.shape, facts.num_tokens + 1, facts.num_tokens)
    checkpoint["state_dict"] = {
        f"ema.network.{name}": torch.ones(()).expand(weight.shape) for name, weight in wanted.items()
    }
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    assert (tmp_path / "bad.ckpt").stat().st_size < 100_000
    said = said_by(lambda: tauflow.load(tmp_path / "bad.ckpt"), tmp_path, capfd)
    assert "share their numbers" in said


def leaves(value, where=""):
    """Yield the paths of all values of described objects."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"{where}.{name}"
            yield from leaves(item, f"{where}.{name}")


@pytest.mark.slow
def test_a_wrong_value_anywhere_in_the_description_is_an_error_or_does_not_matter(clean, tmp_path):
    checkpoint = load_plain(clean)
    paths = list(leaves(checkpoint["tauflow"], "tauflow"))
    assert len(paths) > 30
    errors = 0
    values = (None, ESCAPE, 2**62, math.nan, [1, "x"])
    for number, where in enumerate(paths):
        for value in (values[number % 5], values[(number + 2) % 5]):
            bad = checkpoint | {"tauflow": copy.deepcopy(checkpoint["tauflow"])}
            put(bad, where, value)
            torch.save(bad, tmp_path / "bad.ckpt")
            try:
                found = tauflow.load(tmp_path / "bad.ckpt")
            except CheckpointError as error:
                errors += 1
                assert len(str(error)) < 1000  # noqa: PT017
                assert str(error).isprintable()  # noqa: PT017
            else:
                if found.task is not None:
                    found.task.setup("validate")
                    assert len(found.task.val_data) >= 2
                    assert found.task.val_data[0]
                assert draw(found.model, "euler", 2, count=2).tokens.shape == (2, 16)
    assert errors > len(paths)


@pytest.fixture
def text(tmp_path):
    """The folder of a text model whose file names a cache, a hub, a tokenizer, and judges."""
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
    for _ in range(2):  # the first imports more
        with watched() as done, pytest.raises(SystemExit) as stop:
            by_sample(text / "text.ckpt")
    assert stop.value.code == 0
    assert not done
    assert sorted(tmp_path.rglob("*")) == before
    assert "entropy_bits" in capfd.readouterr().out


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
    with pytest.raises(SettingsError, match="may say place, not length"):
        place(length=8)
    with pytest.raises(SettingsError, match="may say nothing, not place"):
        tauflow.load(clean, data={"place": "here"})


def test_the_users_own_network_is_compared_when_it_is_built(clean, tmp_path):
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


# The second door: tauflow.pretrained


@pytest.fixture
def llada(tmp_path):
    return write(tmp_path / "llada", LLADA, llama_weights(LLADA_NAMES, bias=False))


@pytest.fixture
def esm(tmp_path):
    return write(tmp_path / "esm", ESM, esm_weights())


@pytest.fixture
def pickled(esm):
    """An ESM whose weights are in a pickle."""
    for path in esm.glob("*.safetensors*"):
        path.unlink()
    torch.save(esm_weights(), esm / "pytorch_model.bin")
    return esm


def configured(folder: Path, **settings) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def tokenized(folder: Path, **parts) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


def test_a_folder_with_a_device_or_a_pipe(llada, tmp_path, capfd):
    for name in ("config.json", "model-00001-of-00002.safetensors", "tokenizer.json"):
        content = (llada / name).read_bytes()
        for make in (
            lambda path: path.symlink_to("/dev/zero"),
            os.mkfifo,
            lambda path: path.symlink_to(path),
        ):
            (llada / name).unlink()
            make(llada / name)
            said = said_by(lambda: tauflow.pretrained(llada), tmp_path, capfd)
            assert re.search(f"{name} must be a regular file|not found: .*{name}", said), said
        (llada / name).unlink()
        (llada / name).write_bytes(content)
    assert tauflow.pretrained(llada)


def test_an_index_that_lists_a_pipe(llada, tmp_path, capfd):
    """In another folder, which isn't looked at."""
    (llada / "more").mkdir()
    os.mkfifo(llada / "more" / "a.safetensors")
    (llada / "model.safetensors.index.json").write_text('{"weight_map": {"x": "more/a.safetensors"}}')
    assert "lacks files of its index" in said_by(lambda: tauflow.pretrained(llada), tmp_path, capfd)


CONFIGS = {  # name: (what the folder is, settings, what the answer says)
    "buffer": ("esm", {"max_position_embeddings": 3 * 10**8}, "the buffer .*position_ids would have"),
    "labels": ("esm", {"num_labels": 10**7}, "num_labels in .* must be at most 4096"),
    "layers": ("llada", {"n_layers": 10**6}, "n_layers in .* must be at most 4096"),
    "more layers than weights": ("llada", {"n_layers": 4000}, "many more weights than the folder has"),
    "width": ("llada", {"d_model": 2**31}, "d_model in .* must be at most 1048576"),
    "inside": ("llada", {"rope_scaling": {"x": [{"num_blocks": 10**9}]}}, "num_blocks in .* must be at most"),
    "nested": ("llada", {"x": deep()}, "nested too deeply"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_would_take_memory_or_never_end(request, tmp_path, capfd, name):
    kind, settings, answer = CONFIGS[name]
    folder = request.getfixturevalue(kind)
    configured(folder, **settings)
    said = said_by(lambda: tauflow.pretrained(folder), tmp_path, capfd)
    assert re.search(answer, said), said


@pytest.mark.parametrize("setting", ["num_hidden_groups", "inner_group_num", "num_hidden_layers"])
def test_layers_under_other_names(tmp_path, capfd, setting):
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        vocab_size=30, embedding_size=8, hidden_size=8, num_attention_heads=1, intermediate_size=8
    )
    AlbertForMaskedLM(config).save_pretrained(tmp_path / "albert")
    configured(tmp_path / "albert", **{setting: 10**7})
    capfd.readouterr()
    said = said_by(lambda: tauflow.pretrained(tmp_path / "albert"), tmp_path, capfd)
    assert f"{setting} in " in said


def test_a_pickle_of_weights(pickled, tmp_path, capfd):
    path = pickled / "pytorch_model.bin"
    assert tauflow.pretrained(pickled)
    path.write_bytes(legacy(esm_weights()))
    assert tauflow.pretrained(pickled), "the format of an old torch"
    for content in (esm_weights() | {"x": Calls(bytearray, 2**33)}, Calls(os.system, "touch pwned")):
        for make in (lambda content: torch.save(content, path), lambda c: path.write_bytes(legacy(c))):
            make(content)
            said = said_by(lambda: tauflow.pretrained(pickled), tmp_path, capfd)
            assert re.search(r"names (\w+)\.(bytearray|system)", said), said
    torch.save(esm_weights() | {"x": torch.ones(2, device="meta")}, path)
    assert "_rebuild_meta_tensor" in said_by(lambda: tauflow.pretrained(pickled), tmp_path, capfd)


def test_a_pickle_of_weights_that_share_their_numbers(pickled, tmp_path, capfd):
    weights = {name: torch.ones(()).expand(weight.shape) for name, weight in esm_weights().items()}
    torch.save(weights, pickled / "pytorch_model.bin")
    assert "share their numbers" in said_by(lambda: tauflow.pretrained(pickled), tmp_path, capfd)


def test_a_flipped_bit_in_a_pickle_of_weights(pickled, tmp_path, capfd):
    path = pickled / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        place = max(archive.infolist(), key=lambda each: each.file_size).header_offset + 300
    flipped(path, place)
    assert "the checksum of" in said_by(lambda: tauflow.pretrained(pickled), tmp_path, capfd)


def test_an_exported_folder_finds_damage(tmp_path, capfd):
    """The safetensors format has no checksum, so tauflow writes a sha256 into the metadata."""
    folder = tmp_path / "out"
    convert(fudoki.write(tmp_path / "released", fudoki.weights()), folder)
    assert tauflow.pretrained(folder)
    path = folder / "model.safetensors"
    flipped(path, path.stat().st_size - 1000)
    assert "its sha256 is wrong" in said_by(lambda: tauflow.pretrained(folder), tmp_path, capfd)


def test_a_pickled_embedding_is_not_constructed(tmp_path, capfd):
    folder = fudoki.write(tmp_path / "released", fudoki.weights())
    torch.save(Calls(nn.Embedding, 2**14, 2**16), folder / "image_embedding.pt")
    said = said_by(lambda: tauflow.pretrained(folder), tmp_path, capfd)
    assert "takes no arguments" in said


GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TOKENIZERS = {  # name: (parts of tokenizer.json, what the answer says)
    "growing text": ({"normalizer": {"type": "Sequence", "normalizers": [GROWS] * 34}}, "times as long"),
    "a long prefix": ({"normalizer": {"type": "Prepend", "prepend": "x" * 10**7}}, "times as long"),
    "a list": ({"model": []}, "can't read the tokenizer in"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_of_a_folder(llada, tmp_path, capfd, name):
    parts, answer = TOKENIZERS[name]
    tokenized(llada, **parts)
    said = said_by(lambda: tauflow.pretrained(llada), tmp_path, capfd)
    assert re.search(answer, said), said


def test_many_replacements_of_equal_length_are_fine(llada):
    same = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    tokenized(llada, normalizer={"type": "Sequence", "normalizers": [same] * 34})
    assert tauflow.pretrained(llada)


def test_a_tokenizer_config_that_chooses_another_file(llada, tmp_path, capfd):
    chosen = SETTINGS | {"fast_tokenizer_files": ["../tokenizer.1.0.json"]}
    (llada / "tokenizer_config.json").write_text(json.dumps(chosen))
    assert "chooses other files" in said_by(lambda: tauflow.pretrained(llada), tmp_path, capfd)


def test_a_text_of_a_folder_that_is_too_large(llada, tmp_path, capfd):
    with open(llada / "chat_template.jinja", "wb") as file:
        file.truncate(2**31)  # takes no space on disk
    assert "must have at most" in said_by(lambda: tauflow.pretrained(llada), tmp_path, capfd)


def test_a_tokenizer_that_panics(llada):
    """Rust prints to the terminal by itself, so the output isn't checked."""
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenized(llada, pre_tokenizer=split)
    task = tauflow.pretrained(llada).task
    with pytest.raises(CheckpointError, match="The model's tokenizer can't encode the text"):
        task.text.encode("a" * 45 + "b")


@pytest.mark.parametrize("length", ["x", 0.5, None])
def test_a_length_that_is_not_a_number_of_tokens(llada, length):
    (llada / "tokenizer_config.json").write_text(json.dumps(SETTINGS | {"model_max_length": length}))
    assert tauflow.pretrained(llada).task.context == 64, "what config.json says"


def test_a_chat_template_that_never_ends(llada, tmp_path, capfd):
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    (llada / "tokenizer_config.json").write_text(json.dumps(SETTINGS | {"chat_template": loop}))
    task = tauflow.pretrained(llada).task
    assert "it runs too long" in said_by(lambda: task.chat("hello"), tmp_path, capfd)
    assert sys.gettrace() is None


# The third door: files next to a checkpoint


@pytest.fixture
def learned(clean, tmp_path):
    """A checkpoint with a learned order next to it."""
    path = tmp_path / "x.ckpt"
    path.write_bytes(clean.read_bytes())
    save_order(path, torch.arange(16))
    assert tauflow.load(path).model.order is not None
    return path


@pytest.mark.parametrize(
    "content",
    ["", "3", "[" * 10**5, '{"ranks": [1e400]}', '{"ranks": "x", "checkpoint": []}', " " * 10**7],
)
def test_an_order_that_is_broken_is_not_used(learned, content):
    (learned.parent / "x.order.json").write_text(content)
    with pytest.warns(UserWarning, match="so it isn't used. Learn it again"):
        assert tauflow.load(learned).model.order is None


def test_an_order_that_is_a_pipe_is_not_used(learned):
    (learned.parent / "x.order.json").unlink()
    os.mkfifo(learned.parent / "x.order.json")
    with pytest.warns(UserWarning, match="so it isn't used"):
        assert tauflow.load(learned).model.order is None


def test_arrays_that_unpack_to_much_more_than_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tauflow.untrusted.MAX_ARRAYS", 2**22)
    path = tmp_path / "statistics.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as member:
        for _ in range(2**2 + 1):
            member.write(bytes(2**20))
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_arrays(path)


def test_a_flipped_bit_in_a_learned_file(learned):
    path = learned.parent / "x.order.json"
    text = path.read_text()
    assert "[0, 1, 2" in text
    path.write_text(text.replace("[0, 1, 2", "[1, 0, 2"))
    with pytest.warns(UserWarning, match="its sha256 is wrong"):
        assert tauflow.load(learned).model.order is None


# The fourth door: the config of a diffusers scheduler


@pytest.mark.parametrize("sampler", ["evil.py:X", "scheduler/evil.py:X", "evil.X"])
def test_a_scheduler_config_runs_no_code(tmp_path, capfd, sampler):
    scheduling = pytest.importorskip("tauflow.integrations.diffusers", exc_type=SettingsError)
    folder = tmp_path / "scheduler"
    folder.mkdir()
    (folder / "evil.py").write_text("open('pwned', 'w')")
    config = {"_class_name": "TauflowScheduler", "sampler": sampler, "schedule": "linear"}
    (folder / "scheduler_config.json").write_text(json.dumps(config))
    door = scheduling.TauflowScheduler.from_pretrained
    assert "must be a registered name" in said_by(lambda: door(folder), tmp_path, capfd)


@pytest.mark.parametrize("content", ['"evil/repo"', "[1]", '{"sampler": 5}', '{"schedule": []}', "{"])
def test_a_scheduler_config_that_is_none(tmp_path, capfd, content):
    scheduling = pytest.importorskip("tauflow.integrations.diffusers", exc_type=SettingsError)
    (tmp_path / "scheduler_config.json").write_text(content)
    said_by(lambda: scheduling.TauflowScheduler.from_pretrained(tmp_path), tmp_path, capfd)
