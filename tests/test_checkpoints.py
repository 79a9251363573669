"""Checkpoint files: plain, whole, and not trusted."""

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
from conftest import load_plain

import tauflow
from tauflow.checkpoints import AtomicCheckpointIO, build, describe
from tauflow.errors import CheckpointError
from tauflow.networks import TransformerConfig
from tauflow.runs import CLASSES
from tauflow.schedules import Cosine, Polynomial
from tauflow.tasks import Countdown


def plain(value) -> bool:
    if isinstance(value, dict):
        return all(plain(key) and plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str, torch.Tensor)


def test_only_plain_types_inside(trained):
    for name in ("best.ckpt", "last.ckpt"):
        checkpoint = load_plain(trained / name)
        for key, value in checkpoint.items():
            assert plain(value) or key == "state_dict", key  # state_dict is an OrderedDict of tensors
        assert all(type(value) is torch.Tensor for value in checkpoint["state_dict"].values())


@pytest.mark.parametrize("value", [Polynomial(1.5), Cosine(), TransformerConfig(width=32), [1, "a", None, 2.5, True]])
def test_describe_and_build(value):
    assert build(describe(value), CLASSES) == value


def test_task_is_described_by_its_settings():
    task = build(describe(Countdown(length=8, values=5, seed=3)), CLASSES)
    assert isinstance(task, Countdown)
    assert describe(task) == describe(Countdown(length=8, values=5, seed=3))


HOSTILE = ["os.system", "builtins.eval", "subprocess.Popen", "antigravity.fly", "tauflow.checkpoints.read"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["model", "schedule", "task", "hyper_parameters", "_instantiator", "deep"])
def test_a_hostile_checkpoint_is_refused_and_nothing_is_imported_or_run(trained, tmp_path, name, where):
    checkpoint = load_plain(trained / "last.ckpt")
    bad = {"class_path": name, "init_args": {"command": f"touch {tmp_path}/pwned", "source": f"open('{tmp_path}/pwned', 'w')"}}
    if where == "model":
        checkpoint["tauflow"]["model"] = bad
    elif where == "schedule":
        checkpoint["tauflow"]["model"]["init_args"]["schedule"] = bad
    elif where == "task":
        checkpoint["tauflow"]["task"]["class_path"] = name
    elif where == "hyper_parameters":
        checkpoint["hyper_parameters"] = {"schedule": bad}
    elif where == "_instantiator":
        checkpoint["hyper_parameters"] = {"_instantiator": name}
    else:
        checkpoint["datamodule_hyper_parameters"] = {"callbacks": [[{"x": bad}]]}
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    with pytest.raises(CheckpointError, match=f"names {name}, which tauflow does not know"):
        tauflow.load(tmp_path / "bad.ckpt")
    assert "antigravity" not in sys.modules
    assert not (tmp_path / "pwned").exists()


def test_pickled_code_is_refused(trained, tmp_path):
    class Exploit:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/pwned",)

    torch.save(load_plain(trained / "last.ckpt") | {"extra": Exploit()}, tmp_path / "bad.ckpt")
    with pytest.raises(CheckpointError, match="more than plain data and is refused"):
        tauflow.load(tmp_path / "bad.ckpt")
    (tmp_path / "raw.ckpt").write_bytes(pickle.dumps(Exploit()))
    with pytest.raises(CheckpointError):
        tauflow.load(tmp_path / "raw.ckpt")
    assert not (tmp_path / "pwned").exists()


def test_bad_files(trained, tmp_path):
    whole = (trained / "last.ckpt").read_bytes()
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nothing\.ckpt.*there are .*best\.ckpt"):
        tauflow.load(trained / "nothing.ckpt")
    with pytest.raises(CheckpointError, match=r"train one with `python train\.py`"):
        tauflow.load(tmp_path / "nothing.ckpt")
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.ckpt").write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="truncated"):
            tauflow.load(tmp_path / "cut.ckpt")
    for content in (b"hello world, this is text", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"a: 1\nb: [2]\n", os.urandom(4096)):
        (tmp_path / "cut.ckpt").write_bytes(content)
        with pytest.raises(CheckpointError, match="not a checkpoint"):
            tauflow.load(tmp_path / "cut.ckpt")
    torch.save({"weights": torch.ones(3)}, tmp_path / "foreign.ckpt")
    with pytest.raises(CheckpointError, match=r"not written by tauflow"):
        tauflow.load(tmp_path / "foreign.ckpt")
    checkpoint = load_plain(trained / "last.ckpt")
    changed = copy.deepcopy(checkpoint)
    changed["tauflow"]["format"] = 99
    torch.save(changed, tmp_path / "future.ckpt")
    with pytest.raises(CheckpointError, match="format 99"):
        tauflow.load(tmp_path / "future.ckpt")
    for key, value, message in [
        ("global_step", "x", "not complete"),
        ("tauflow", {"format": 1, "model": "hello", "task": None}, "not complete"),
        ("tauflow", checkpoint["tauflow"] | {"task": checkpoint["tauflow"]["model"]}, "a DFMModule as the task"),
        ("tauflow", checkpoint["tauflow"] | {"task": describe(Countdown(length=16, values=9))}, "different sizes"),
    ]:
        torch.save(checkpoint | {key: value}, tmp_path / "odd.ckpt")
        with pytest.raises(CheckpointError, match=message):
            tauflow.load(tmp_path / "odd.ckpt")
    changed = copy.deepcopy(checkpoint)
    changed["tauflow"]["model"]["init_args"]["network"]["init_args"]["width"] = 32
    torch.save(changed, tmp_path / "wrong.ckpt")
    with pytest.raises(CheckpointError, match="does not describe a model"):
        tauflow.load(tmp_path / "wrong.ckpt")


def test_own_classes_can_be_allowed(trained, tmp_path):
    checkpoint = load_plain(trained / "last.ckpt")
    checkpoint["tauflow"]["model"]["init_args"]["schedule"] = describe(Own())
    torch.save(checkpoint, tmp_path / "own.ckpt")
    with pytest.raises(CheckpointError, match="Own"):
        tauflow.load(tmp_path / "own.ckpt")
    assert tauflow.load(tmp_path / "own.ckpt", classes=[Own]).schedule == Own()


class Own(Cosine):
    pass


def test_loading_leaves_the_global_rng_alone(trained):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    tauflow.load(trained / "best.ckpt")
    assert torch.equal(before, torch.get_rng_state())


KILLED = """
import os, sys, torch
from tauflow.checkpoints import AtomicCheckpointIO

class Bomb:  # dies in the middle of writing
    def __reduce__(self):
        os.kill(os.getpid(), 9)

AtomicCheckpointIO().save_checkpoint({"a": torch.ones(10**6), "b": Bomb()}, sys.argv[1])
"""


def test_a_finished_file_is_never_half_written(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"a": torch.zeros(3)}, path)
    with pytest.raises(Exception, match="pickle"):
        AtomicCheckpointIO().save_checkpoint({"a": torch.ones(10**5), "b": lambda: 0}, path)
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -9
    assert torch.equal(load_plain(path)["a"], torch.zeros(3))
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode, "as readable as any other file"
