"""Where a model is: a file, the folder of a run, a folder of runs, a shipped name."""

import os

import pytest

import tauflow
from tauflow.errors import CheckpointError
from tauflow.train import SHIPPED
from tauflow.train.checkpoint import find_checkpoint


def touch(path, time=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (time, time))
    return path


def test_a_run_means_its_best_checkpoint_and_its_last_to_resume(tmp_path):
    best, last = touch(tmp_path / "best.ckpt"), touch(tmp_path / "last.ckpt", time=2)
    assert find_checkpoint(tmp_path) == find_checkpoint(best) == best
    assert find_checkpoint(tmp_path, last=True) == last


def test_a_run_without_a_validation_has_a_last_checkpoint_only(tmp_path):
    last = touch(tmp_path / "last.ckpt")
    assert find_checkpoint(tmp_path) == last


def test_a_folder_of_runs_means_its_newest_run(tmp_path):
    touch(tmp_path / "text" / "version_0" / "best.ckpt", time=30)
    touch(tmp_path / "text" / "version_0" / "last.ckpt", time=31)
    newest = touch(tmp_path / "text" / "version_1" / "best.ckpt", time=20)
    touch(tmp_path / "text" / "version_1" / "last.ckpt", time=40)
    touch(tmp_path / "images" / "version_0" / "last.ckpt", time=35)
    assert find_checkpoint(tmp_path / "text") == find_checkpoint(tmp_path) == newest


@pytest.mark.parametrize("name", ["countdown_masked", "countdown"])
def test_a_shipped_model_by_its_name_unless_something_here_has_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint(name) == SHIPPED / "countdown_masked.ckpt"
    own = touch(tmp_path / name / "best.ckpt")
    assert find_checkpoint(name) == own.relative_to(tmp_path)


@pytest.mark.parametrize("place", ["countdown", "user/name"])
def test_only_runs_of_this_machine_are_resumed(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"not found: {place}"):
        find_checkpoint(place, last=True)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (" ", "an empty one"),
        ("nothing", "not found: nothing. .*Train a model first"),
        (
            "runs/typo",
            "not found: runs/typo",
        ),  # the Hub isn't asked for what starts with a folder of this machine
        ("runs/a.ckpt", r"not found: runs/a\.ckpt. The folder has runs/b\.ckpt"),
        ("runs", r"runs has no best\.ckpt or last\.ckpt. Choose one of its files: b\.ckpt"),
        ("empty", r"empty has no best\.ckpt or last\.ckpt. Train"),
        ("bert", r"model of another library. Load it with tauflow\.pretrained"),
    ],
)
def test_what_is_no_model_is_explained(tmp_path, monkeypatch, place, said):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path / "runs" / "b.ckpt")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match=said):
        tauflow.load(place)
