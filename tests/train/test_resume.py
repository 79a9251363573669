"""A run that is killed and resumed ends bit for bit where the uninterrupted one does."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from conftest import (
    ROOT,
    TINY,
    assert_equal,
    load_plain,
    paused,
    read_scalars,
    run_train,
    train_here,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tauflow.train.checkpoint import AtomicCheckpointIO
from tauflow.train.module import DFMModule, OptimizerConfig
from tauflow.train.resume import find_run_config

STEPS = 20  # an epoch is 8 steps, so 20 end in the middle of one

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    result = run_train(
        *TINY, f"--trainer.max_steps={STEPS}", f"--trainer.default_root_dir={folder}", cwd=folder
    )
    assert result.returncode == 0, result.stderr
    return folder / "version_0"


def assert_same_run(a: Path, b: Path) -> None:
    left, right = load_plain(a / "last.ckpt"), load_plain(b / "last.ckpt")
    # state_dict has both weights
    for part in ("global_step", "state_dict", "optimizer_states", "lr_schedulers"):
        assert_equal(left[part], right[part], part)
    left, right = read_scalars(a), read_scalars(b)
    assert left.keys() == right.keys()
    assert len(left["train/loss"]) == STEPS  # each step was logged once: the same data, order and noise
    for tag in left.keys() - {"train/tokens_per_second"}:
        assert left[tag] == right[tag], tag


def test_kill_9_and_resume(uninterrupted, tmp_path):
    """Killed by SIGKILL after the checkpoint of step 5, in the middle of an epoch, wherever the run then was:
    it stops itself there, so that it can't end before it is killed. Ctrl-C, below, stops it at the end of an
    epoch, and test_kills.py at random moments."""
    common = [*TINY, f"--trainer.default_root_dir={tmp_path}", "--checkpoints.every_n_steps=5"]
    common += [f"--trainer.max_steps={STEPS}"]
    last = tmp_path / "version_0" / "last.ckpt"
    run = paused(ROOT / "train.py", *common, written=last, cwd=tmp_path)
    run.process.kill()
    run.finish()
    assert 5 <= load_plain(last)["global_step"] < STEPS, "killed too late to test anything"

    result = run_train(*common, "--ckpt_path=last", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["version_0"]
    assert_same_run(uninterrupted, tmp_path / "version_0")


@pytest.mark.parametrize(
    "extra", [[], ["--data.num_workers=2", "--trainer.accumulate_grad_batches=2"]], ids=["plain", "workers"]
)
def test_ctrl_c_saves_and_resumes(uninterrupted, tmp_path, extra):
    """Ctrl-C as a terminal sends it: to every process of the group, loader workers too; also between the
    parts of an accumulated step."""
    common = [*TINY, *extra, f"--trainer.default_root_dir={tmp_path}", f"--trainer.max_steps={STEPS}"]
    last = tmp_path / "version_0" / "last.ckpt"
    run = paused(ROOT / "train.py", *common, written=last, cwd=tmp_path)
    os.killpg(run.process.pid, signal.SIGINT)
    os.kill(run.process.pid, signal.SIGCONT)
    ended = run.finish()
    assert ended.returncode == 130, ended.stderr
    assert "to resume: python train.py -c" in ended.stdout
    stopped = load_plain(tmp_path / "version_0" / "last.ckpt")["global_step"]
    assert 8 <= stopped < STEPS

    command = ended.stdout.split("to resume: python train.py ")[1].split("\n")[0].split()
    result = run_train(*command, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    runs = uninterrupted, tmp_path / "version_0"
    left, right = (read_scalars(folder)["train/loss"] for folder in runs)
    if not extra:
        assert left == right
        left, right = (load_plain(folder / "last.ckpt") for folder in runs)
        for part in ("state_dict", "optimizer_states"):
            assert_equal(left[part], right[part], part)
    else:  # summed in two parts, so equal up to rounding
        assert [step for step, _ in left] == [step for step, _ in right]
        assert [value for _, value in left] == pytest.approx([value for _, value in right], rel=1e-4)


@pytest.fixture
def saved(tmp_path, monkeypatch) -> list[Path]:
    """Copies of every checkpoint saved from now on."""
    copies = []
    save = AtomicCheckpointIO.save_checkpoint

    def save_twice(self, checkpoint, path, storage_options=None):
        save(self, checkpoint, path)
        copies.append(tmp_path / f"{len(copies)}.ckpt")
        shutil.copy(path, copies[-1])

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save_twice)
    return copies


PARTS = [
    *TINY,
    "--trainer.accumulate_grad_batches=2",
    "--trainer.max_steps=6",
    "--checkpoints.every_n_steps=1",
]


@pytest.mark.parametrize(
    "settings",
    [["--trainer.val_check_interval=4"], ["--trainer.limit_train_batches=5"]],
    ids=["validations within epochs", "a last step of one part"],
)
def test_every_checkpoint_of_accumulated_steps_resumes(tmp_path, monkeypatch, saved, settings):
    root = f"--trainer.default_root_dir={tmp_path}"
    train_here(*PARTS, *settings, root, cwd=tmp_path)
    monkeypatch.undo()
    whole = load_plain(tmp_path / "version_0" / "last.ckpt")
    starts = [path for path in saved if load_plain(path)["global_step"] < 6]
    assert {load_plain(path)["global_step"] for path in starts} == {1, 2, 3, 4, 5}
    for number, path in enumerate(starts, start=1):
        train_here(*PARTS, *settings, root, f"--ckpt_path={path}", cwd=tmp_path)
        resumed = load_plain(tmp_path / f"version_{number}" / "last.ckpt")
        for part in ("global_step", "state_dict", "optimizer_states", "lr_schedulers"):
            assert_equal(whole[part], resumed[part], f"{path.name}: {part}")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_mixed_precision_resumes_bit_for_bit(tmp_path, monkeypatch, saved, optimizer):
    """With each optimizer, whose states a checkpoint must hold whole: from step 3 on as if never stopped."""
    settings = [*TINY, f"--model.optimizer.name={optimizer}", "--trainer.precision=bf16-mixed"]
    settings += ["--trainer.max_steps=6", "--checkpoints.every_n_steps=3"]
    settings += [f"--trainer.default_root_dir={tmp_path}"]
    train_here(*settings, cwd=tmp_path)
    monkeypatch.undo()
    start = next(path for path in saved if load_plain(path)["global_step"] == 3)
    train_here(*settings, f"--ckpt_path={start}", cwd=tmp_path)
    whole, resumed = (load_plain(tmp_path / f"version_{number}" / "last.ckpt") for number in (0, 1))
    for part in ("global_step", "state_dict", "optimizer_states", "lr_schedulers"):
        assert_equal(whole[part], resumed[part], part)


def test_a_stop_waits_for_the_end_of_an_accumulated_step(tmp_path, monkeypatch):
    """As --trainer.max_time or a custom callback asks for it, at the third batch: in the second step."""
    training_step = DFMModule.training_step

    def stopping(module, batch, batch_idx):
        module.trainer.should_stop = batch_idx == 2
        return training_step(module, batch, batch_idx)

    monkeypatch.setattr(DFMModule, "training_step", stopping)
    train_here(*PARTS, f"--trainer.default_root_dir={tmp_path}", cwd=tmp_path)
    last = load_plain(tmp_path / "version_0" / "last.ckpt")
    assert last["global_step"] == 2
    assert last["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"] == 4


def test_a_validation_within_a_step_is_an_error(tmp_path):
    settings = ["--trainer.val_check_interval=3", f"--trainer.default_root_dir={tmp_path}/runs"]
    result = run_train(*PARTS, *settings, cwd=tmp_path)
    assert result.returncode == 1
    assert "multiple of 2 (--trainer.accumulate_grad_batches), got 3" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_another_checkpoint_begins_a_new_run(trained, tmp_path):
    """From best.ckpt, or a copy elsewhere: the folder it lies in is left alone."""
    copy = tmp_path / "copy" / "my.ckpt"
    copy.parent.mkdir()
    copy.write_bytes((trained / "last.ckpt").read_bytes())
    place = [f"--trainer.default_root_dir={tmp_path}/runs", f"--ckpt_path={copy}"]
    result = run_train(*TINY, "--trainer.max_steps=26", *place, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in copy.parent.iterdir()] == ["my.ckpt"]
    folder = tmp_path / "runs" / "version_0"
    assert load_plain(folder / "last.ckpt")["global_step"] == 26
    config = (folder / "config.yaml").read_text()
    assert "ckpt_path: null" in config, "the saved settings repeat the run, they do not resume it"


def no_optimizer_key(checkpoint):
    del checkpoint["optimizer_states"]


def no_optimizer(checkpoint):
    checkpoint["optimizer_states"] = []


def no_loop(checkpoint):
    checkpoint["loops"] = {}


def no_counts(checkpoint):
    checkpoint["loops"]["fit_loop"] = {}


def other_weight(checkpoint):
    checkpoint["state_dict"]["network.embedding.weight"] = torch.ones(3, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (no_optimizer_key, "holds a model to sample from, but no training state"),
        (no_optimizer, "its training state doesn't fit (optimizer_states is [])"),
        (no_loop, "its training state doesn't fit ('fit_loop')"),
        (no_counts, "its training state doesn't fit (the loops are at step 0, the checkpoint at 24)"),
        (other_weight, "size mismatch for network.embedding.weight"),
    ],
)
def test_a_training_state_that_does_not_fit(trained, tmp_path, change, reason):
    checkpoint = load_plain(trained / "last.ckpt")
    change(checkpoint)
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    result = run_train(*TINY, "--trainer.max_steps=26", "--ckpt_path=bad.ckpt", cwd=tmp_path)
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: bad.ckpt ")]
    assert reason in line
    assert "Traceback" not in result.stderr
    assert "step 26" not in result.stdout


def test_a_run_begun_by_an_earlier_version_resumes(tmp_path):
    """tests/data/format_1 is a run of the version before this one, stopped at step 6 of 16: it ends where an
    uninterrupted run of this version does. The tolerance is for other machines than the one that made it."""
    folder = tmp_path / "version_0"
    shutil.copytree(ROOT / "tests" / "data" / "format_1", folder)
    root = f"--trainer.default_root_dir={tmp_path}"
    config = ["-c", str(folder / "config.yaml"), root]
    result = run_train(*config, "--ckpt_path", str(folder / "last.ckpt"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "step 16 of 16" in result.stdout
    result = run_train(*config, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    old, new = (load_plain(tmp_path / name / "last.ckpt") for name in ("version_0", "version_1"))
    assert old["global_step"] == new["global_step"] == 16
    assert old["tauflow"] == new["tauflow"], "the resumed run writes checkpoints of this version"
    for part in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(old[part], new[part], atol=1e-5, rtol=1e-4)


# Settings that a resumed run changes


def rates(folder: Path, name: str) -> list[float]:
    return [value for _, value in read_scalars(folder)[f"train/{name}"]]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_settings_change_from_the_resumed_step_on(tmp_path, name):
    """Twice: the learning rates of an uninterrupted run with the new settings follow, and each start keeps
    its record."""
    peak = "learning_rate" if name == "adamw" else "muon_learning_rate"
    common = [*TINY, f"--model.optimizer.name={name}", f"--trainer.default_root_dir={tmp_path}"]
    train_here(*common, "--trainer.max_steps=8", f"--model.optimizer.{peak}=0.004", cwd=tmp_path)
    folder = tmp_path / "version_0"
    first = (folder / "config.yaml").read_text(), (folder / "hparams.yaml").read_text()

    time.sleep(1)  # event files are named by the second, and TensorBoard reads them in the order of names
    new = [f"--model.optimizer.{peak}=0.0005", "--model.optimizer.weight_decay=0.5"]
    new += ["--trainer.max_steps=12", "--model.optimizer.warmup_steps=1", "--trainer.gradient_clip_val=0.5"]
    said = train_here(*common, *new, "--ckpt_path=last", cwd=tmp_path)
    assert f"changed     model.optimizer.{peak} 0.004 -> 0.0005 from step 8" in said
    assert "changed     trainer.max_steps 8 -> 12 from step 8" in said
    assert said.count("changed ") == 5
    assert ("--model.optimizer.learning_rate stays 0.003" in said) == (name == "muon")
    config = OptimizerConfig(warmup_steps=1, final_rate=0.02)
    assert rates(folder, peak)[8:] == pytest.approx(
        [0.0005 * config.factor(step, 12) for step in range(8, 12)]
    )
    groups = load_plain(folder / "last.ckpt")["optimizer_states"][0]["param_groups"]
    assert 0.5 in [group["weight_decay"] for group in groups]
    assert ((folder / "config.yaml").read_text(), (folder / "hparams_1.yaml").read_text()) == first
    assert f"{peak}: 0.0005" in (folder / "config_from_step_8.yaml").read_text()
    assert f"{peak}: 0.0005" in (folder / "hparams.yaml").read_text()

    texts = EventAccumulator(str(folder)).Reload().Tags()["tensors"]
    assert "1_overview/changed_settings/text_summary" in texts

    time.sleep(1)
    again = ["-c", str(folder / "config_from_step_8.yaml"), "--trainer.max_steps=14"]
    said = train_here(*again, "--ckpt_path", str(folder / "last.ckpt"), cwd=tmp_path)
    assert [line for line in said.splitlines() if line.startswith("changed")] == [
        "changed     trainer.max_steps 12 -> 14 from step 12"
    ]
    assert rates(folder, peak)[12] == pytest.approx(0.0005 * config.factor(12, 14))


def test_each_start_from_a_step_keeps_its_record(tmp_path):
    """The second run is resumed twice from step 8: the first time, it's killed before it saves again."""
    common = [*TINY, f"--trainer.default_root_dir={tmp_path}"]
    train_here(*common, "--trainer.max_steps=8", cwd=tmp_path)
    folder = tmp_path / "version_0"
    last = (folder / "last.ckpt").read_bytes()
    for steps in (10, 12):
        (folder / "last.ckpt").write_bytes(last)
        train_here(*common, f"--trainer.max_steps={steps}", "--ckpt_path=last", cwd=tmp_path)
    names = ("config.yaml", "config_from_step_8_1.yaml", "config_from_step_8.yaml")
    configs = [yaml.safe_load((folder / name).read_text()) for name in names]
    assert [config["trainer"]["max_steps"] for config in configs] == [8, 10, 12]
    assert find_run_config(folder).name == "config_from_step_8.yaml"
    assert find_run_config(folder, 8).name == "config.yaml"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("--seed_everything=1", "seed: 0 there, 1 here"),
        ("--model.optimizer.name=muon", "optimizer.name: adamw there, muon here"),
        ("--model.condition_dropout=0.5", "condition_dropout: 0.1 there, 0.5 here"),
        ("--model.loss_on=all", "loss_on: corrupted there, all here"),
    ],
)
def test_settings_that_cannot_change(trained, tmp_path, change, expected):
    place = [f"--trainer.default_root_dir={tmp_path}", f"--ckpt_path={trained}/last.ckpt"]
    with pytest.raises(AssertionError, match=expected):
        train_here(*TINY, *place, "--trainer.max_steps=32", change, cwd=tmp_path)
    assert not list(tmp_path.iterdir())
