"""Checkpoint files: plain, atomic, not trusted, and those of earlier versions."""

import copy
import pkgutil
import re
import subprocess
import sys

import pytest
import torch
import yaml
from conftest import load_plain

import tauflow
from tauflow import Cosine, Marginal, Masked, Polynomial
from tauflow.cli.train import convert_words
from tauflow.errors import CheckpointError, SettingsError
from tauflow.networks import TransformerConfig
from tauflow.tasks import Countdown, DataFacts, LabelledCountdown
from tauflow.train import SHIPPED, DFMModule, OptimizerConfig
from tauflow.train.checkpoint import CLASSES, MOVED, AtomicCheckpointIO, current_name, read
from tauflow.train.module import describe
from tauflow.train.resume import check_settings
from tauflow.untrusted import build


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


VALUES = [
    *(Polynomial(1.5), Cosine(), Masked(5), Marginal([0.25, 0.5, 0.25]), TransformerConfig(width=32)),
    *(OptimizerConfig(betas=(0.9, 0.95)), DataFacts(4, (2, 3), (5,)), [1, "a", None, 2.5, True]),
]


@pytest.mark.parametrize("value", VALUES)
def test_describe_and_build(value):
    assert build(describe(value), CLASSES) == value


def test_task_is_described_by_its_settings():
    task = build(describe(Countdown(length=8, values=5, seed=3)), CLASSES)
    assert isinstance(task, Countdown)
    assert describe(task) == describe(Countdown(length=8, values=5, seed=3))


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("os.system", "model"),
        ("builtins.eval", "schedule"),
        ("subprocess.Popen", "task"),
        ("antigravity.fly", "hyper_parameters"),
        ("antigravity.fly", "_instantiator"),
        ("tauflow.train.checkpoint.read", "deep"),
    ],
)
def test_a_hostile_checkpoint_is_refused_and_nothing_is_imported_or_run(trained, tmp_path, name, where):
    checkpoint = load_plain(trained / "last.ckpt")
    bad = {
        "class_path": name,
        "init_args": {"command": f"touch {tmp_path}/pwned", "source": f"open('{tmp_path}/pwned', 'w')"},
    }
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
    with pytest.raises(CheckpointError, match=rf"names .*{re.escape(name)}.*which tauflow does not know"):
        tauflow.load(tmp_path / "bad.ckpt")
    assert "antigravity" not in sys.modules
    assert not (tmp_path / "pwned").exists()


def test_a_source_by_import_path_is_not_imported_from_a_checkpoint(trained, tmp_path):
    """On the command line a source may be named so; a file that is not trusted may not."""
    checkpoint = load_plain(trained / "last.ckpt")
    for name in ("antigravity.Source", f"{tmp_path}/own.py:Own"):
        (tmp_path / "own.py").write_text(f"open('{tmp_path}/pwned', 'w')")
        checkpoint["tauflow"]["model"]["init_args"]["source"] = name
        torch.save(checkpoint, tmp_path / "bad.ckpt")
        with pytest.raises(CheckpointError, match=rf"names {re.escape(name)}, which tauflow does not know"):
            tauflow.load(tmp_path / "bad.ckpt")
    assert "antigravity" not in sys.modules
    assert not (tmp_path / "pwned").exists()


def test_bad_files(trained, tmp_path):
    whole = (trained / "last.ckpt").read_bytes()
    with pytest.raises(CheckpointError, match=r"not found: .*nothing\.ckpt.*The folder has .*best\.ckpt"):
        tauflow.load(trained / "nothing.ckpt")
    with pytest.raises(CheckpointError, match="Train a model first with"):
        tauflow.load(tmp_path / "nothing.ckpt")
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.ckpt").write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="truncated"):
            tauflow.load(tmp_path / "cut.ckpt")
    (tmp_path / "text.ckpt").write_bytes(b"hello world, this is text")
    with pytest.raises(CheckpointError, match="of another kind"):
        tauflow.load(tmp_path / "text.ckpt")
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
        ("tauflow", {"format": 2, "model": "hello", "task": None}, "not complete"),
        ("tauflow", {name: checkpoint["tauflow"][name] for name in ("format", "model")}, "not complete"),
        (
            "tauflow",
            checkpoint["tauflow"] | {"task": checkpoint["tauflow"]["model"]},
            "a DFMModule as the task",
        ),
        (
            "tauflow",
            checkpoint["tauflow"] | {"task": describe(Countdown(length=16, values=9))},
            "different sizes",
        ),
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
    assert tauflow.load(tmp_path / "own.ckpt", classes=[Own]).model.process.schedule == Own()


class Own(Cosine):
    pass


def test_loading_leaves_the_global_rng_alone(trained):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    tauflow.load(trained / "best.ckpt")
    assert torch.equal(before, torch.get_rng_state())


KILLED = """
import os, sys, torch
from tauflow.train.checkpoint import AtomicCheckpointIO

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


def test_what_cannot_be_described_is_refused_with_the_fix():
    class Forgetful(Countdown):
        def __init__(self, size: int = 3):
            super().__init__(length=16)

    with pytest.raises(SettingsError, match="Keep its constructor argument 'size' as an attribute"):
        describe(Forgetful())


# Format 1


def test_a_checkpoint_of_format_1_is_described_as_this_version_does():
    entry = read(SHIPPED / "countdown_uniform.ckpt")["tauflow"]
    old = load_plain(SHIPPED / "countdown_uniform.ckpt")["tauflow"]
    assert old["format"] == 1
    assert entry["format"] == 2
    model = build(entry["model"], CLASSES)
    assert model.facts == DataFacts(32, (256,))
    assert model.source == tauflow.Uniform(32)
    assert model.schedule == Polynomial(2.0)
    settings = old["model"]["init_args"]
    assert model.optimizer_config.learning_rate == settings["learning_rate"]
    assert model.optimizer_config.ema_decay == settings["ema_decay"]
    assert describe(model) == entry["model"] | {
        "init_args": entry["model"]["init_args"]
        | {"condition_dropout": 0.1, "optimizer": describe(model.optimizer_config)}  # newer settings
    }
    assert entry["task"] == old["task"]


def of_format_1(checkpoint) -> dict:
    """The entry of a tiny run as the first version of tauflow wrote it."""
    network = {
        "class_path": "tauflow.networks.TransformerConfig",
        "init_args": {"width": 16, "blocks": 1, "heads": 2, "mlp_ratio": 4, "time": False, "time_width": 64},
    }
    arguments = {
        "num_tokens": 6,
        "seq_len": 16,
        "source": "masked",
        "schedule": {"class_path": "tauflow.schedules.Polynomial", "init_args": {"exponent": 1.5}},
        "network": network,
        "seed": 0,
    }
    arguments |= {"learning_rate": 1e-3, "warmup_steps": 2, "loss_on": "corrupted", "compile_network": False}
    model = {"class_path": "tauflow.module.DFMModule", "init_args": arguments}
    entry = {"format": 1, "model": model, "task": checkpoint["tauflow"]["task"]}
    return entry | {"accumulate_grad_batches": 1}


def test_classes_of_format_1_have_moved(trained, tmp_path):
    """Schedules and networks by their old names, and a name that was never one, which is refused."""
    checkpoint = load_plain(trained / "last.ckpt")
    checkpoint["tauflow"] = of_format_1(checkpoint)
    torch.save(checkpoint, tmp_path / "old.ckpt")
    assert tauflow.load(tmp_path / "old.ckpt").model.process.schedule == Polynomial(1.5)
    schedule = checkpoint["tauflow"]["model"]["init_args"]["schedule"]
    schedule["class_path"] = "tauflow.schedules.Nonsense"
    torch.save(checkpoint, tmp_path / "old.ckpt")
    with pytest.raises(CheckpointError, match=r"names tauflow\.process\.schedules\.Nonsense"):
        tauflow.load(tmp_path / "old.ckpt")


def test_a_checkpoint_and_a_config_with_names_of_earlier_versions(trained, tmp_path):
    for new in MOVED.values():
        assert pkgutil.resolve_name(new)
        assert current_name(new) == new
    checkpoint = load_plain(trained / "last.ckpt")
    old = {"class_path": "tauflow.train.optimizer.OptimizerConfig", "init_args": {"learning_rate": 0.5}}
    checkpoint["tauflow"]["model"]["init_args"]["optimizer"] = old
    checkpoint["hyper_parameters"] = {"optimizer": old}
    torch.save(checkpoint, tmp_path / "old.ckpt")
    tauflow.load(tmp_path / "old.ckpt")
    model = read(tmp_path / "old.ckpt")["tauflow"]["model"]
    assert build(model, CLASSES).optimizer_config == OptimizerConfig(learning_rate=0.5)
    config = tmp_path / "config.yaml"
    config.write_text("model:\n  optimizer:\n    class_path: tauflow.train.optimizer.OptimizerConfig\n")
    flag = "--model.optimizer=tauflow.train.optimizer.OptimizerConfig"
    _, text, converted = convert_words(["-c", str(config), flag])
    optimizer = {"class_path": "tauflow.train.module.OptimizerConfig"}
    assert yaml.safe_load(text)["model"]["optimizer"] == optimizer
    assert converted == "--model.optimizer=tauflow.train.module.OptimizerConfig"


# What may not change on the way


def test_a_run_is_resumed_with_its_own_settings_only(trained):
    path = trained / "last.ckpt"
    checkpoint = read(path)
    entry = checkpoint["tauflow"]
    model, task = (build(entry[part], CLASSES) for part in ("model", "task"))
    check_settings(checkpoint, path, model, task, 1)
    faster = DFMModule(task.facts, network=model.network_config, optimizer=OptimizerConfig(learning_rate=0.5))
    check_settings(checkpoint, path, faster, task, 1)  # may change
    for other_model, other_task, accumulate, message in (
        (model, task, 2, "accumulate_grad_batches: 1 there, 2 here"),
        (
            model,
            Countdown(length=16, values=6, batch_size=4, epoch_items=64),
            1,
            "data.batch_size: 8 there, 4 here",
        ),
        (model, LabelledCountdown(length=16, values=6), 1, "LabelledCountdown here"),
        (
            DFMModule(task.facts, source="uniform", network=model.network_config),
            task,
            1,
            r"Uniform\(num_tokens=6\) here",
        ),
        (DFMModule(DataFacts(6, (4, 4)), network=model.network_config), task, 1, r"shape=\[4, 4\]"),
    ):
        with pytest.raises(CheckpointError, match=message):
            check_settings(checkpoint, path, other_model, other_task, accumulate)


def test_a_run_of_format_1_may_be_resumed(trained, tmp_path):
    """Its settings are the same, though they were written otherwise."""
    checkpoint = load_plain(trained / "last.ckpt")
    checkpoint["tauflow"] = of_format_1(checkpoint)
    torch.save(checkpoint, tmp_path / "old.ckpt")
    found = read(tmp_path / "old.ckpt")
    model, task = (build(found["tauflow"][part], CLASSES) for part in ("model", "task"))
    check_settings(found, tmp_path / "old.ckpt", model, task, 1)
