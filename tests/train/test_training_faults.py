"""Training that is stopped, disturbed or refused: what is safe, what is said, and what is left behind."""

import contextlib
import csv
import errno
import io
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ENV, ROOT, TINY, assert_equal, load_plain, read_scalars, run_train
from forked import run_script

from tauflow.cli.train import make_next_version, train
from tauflow.errors import SettingsError
from tauflow.evaluation import evaluate
from tauflow.evaluation.results import Results
from tauflow.files import lock_folder
from tauflow.train.module import DFMModule
from tauflow.train.resume import find_run_config

EVALUATED = [
    *("--evaluation.every_n_validations=2", "--evaluation.samplers=[tr_cie]", "--evaluation.nfes=[2,4]"),
    *("--evaluation.num_samples=4", "--evaluation.batch_size=4"),
]


class Ended(str):
    """What a call of train.py printed, and its exit code."""

    code: int
    error: str


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Calls train.py's entry point in this process, in a folder of its own; runs are in tmp_path/runs."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)

    def run(*args: str) -> Ended:
        printed = io.TextIOWrapper(io.BytesIO(), "utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.path", [*sys.path])
        monkeypatch.setattr("sys.argv", ["train.py", *TINY, "--trainer.default_root_dir=runs", *args])
        try:
            with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as stop:
                train()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        printed.seek(0)
        ended = Ended(printed.read())
        ended.error = stop.value.code if isinstance(stop.value.code, str) else ""
        ended.code = 1 if ended.error else stop.value.code
        return ended

    return run


def resuming(said: str) -> list[str]:
    """The arguments of the command that a message names."""
    return said.split("to resume: python train.py ")[1].splitlines()[0].split()


# Stopping


@pytest.fixture
def ask(monkeypatch):
    """Sends signals to this process when training, or a cell of the evaluation, is at the given number."""

    def plan(place: str, at: int, *signals: signal.Signals) -> None:
        count = 0
        owner, name = (DFMModule, "training_step") if place == "step" else (evaluate, "measure_cell")
        original = getattr(owner, name)

        def changed(*args, **kwargs):
            nonlocal count
            count += 1
            if count == at:
                for number in signals:
                    signal.raise_signal(number)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, changed)

    return plan


def test_asked_twice_before_anything_is_saved(here, ask, tmp_path):
    number = signal.SIGTERM
    ask("step", 2, number, number)
    ended = here("--trainer.max_steps=4000")
    assert ended.code == 130
    assert "stopped at step 1; nothing was saved yet; start it again" in ended
    assert not list(tmp_path.rglob("*.ckpt"))


def test_asked_twice_it_says_what_is_saved_and_continues(here, ask, trained, tmp_path):
    ask("step", 12, signal.SIGINT, signal.SIGTERM)
    ended = here("--trainer.max_steps=24")
    assert ended.code == 130
    assert "stopped at step 11; runs/version_0/last.ckpt of step 8 is safe; to resume:" in ended
    assert here(*resuming(ended)).code == 0
    left, right = load_plain(tmp_path / "runs/version_0/last.ckpt"), load_plain(trained / "last.ckpt")
    for part in ("global_step", "state_dict", "optimizer_states"):
        assert_equal(left[part], right[part], part)


@pytest.mark.parametrize(("steps", "often"), [(12, 1), (24, 2)])
def test_a_closing_evaluation_that_was_stopped_is_completed(here, ask, tmp_path, steps, often):
    """At the end between validations (12), and at one (24); asked once all steps are saved, asked twice those
    before. The resumed run makes what is missing, once; then it is finished."""
    args = [*EVALUATED, f"--trainer.max_steps={steps}"]
    ask("cell", 4, *[signal.SIGTERM] * often)  # the first evaluation, at step 8, has two cells
    ended = here(*args)
    assert ended.code == 130
    folder = tmp_path / "runs" / "version_0"
    saved = load_plain(folder / "last.ckpt")
    assert saved["global_step"] == (steps if often == 1 else {12: 8, 24: 16}[steps])
    assert "to resume:" in ended

    time.sleep(1)  # event files are named by the second, and TensorBoard reads them in the order of names
    resumed = here(*resuming(ended))
    assert resumed.code == 0, resumed.error
    assert ("the evaluation at its end was not" in resumed) == (often == 1)
    assert "error_rate (lower is better)" in resumed
    done = load_plain(folder / "last.ckpt")
    assert done["global_step"] == steps
    if often == 1:
        for part in ("state_dict", "optimizer_states", "lr_schedulers"):
            assert_equal(saved[part], done[part], part)
    curve = read_scalars(folder / "tr_cie")["error_rate/nfe_2"]
    assert [step for step, _ in curve] == [8, steps]
    assert Results.read(folder / "evaluation").settings["step"] == steps
    assert len(read_scalars(folder)["train/loss"]) == steps
    assert f"finished: step {steps} of {steps}" in here(*args, "--ckpt_path=last").error


def test_a_stop_between_validations_does_not_move_the_evaluations(here, ask, tmp_path):
    """Validations at 8, 16 and 24 are evaluated at 8 and 24, though a stop has caused one more at 11."""
    ask("step", 11, signal.SIGINT)
    ended = here(*EVALUATED, "--trainer.max_steps=32")
    assert ended.code == 130
    assert here(*resuming(ended)).code == 0
    curve = read_scalars(tmp_path / "runs/version_0/tr_cie")["error_rate/nfe_2"]
    assert [step for step, _ in curve] == [8, 24, 32]


# Two at once


def test_runs_that_begin_together_get_folders_of_their_own(tmp_path, monkeypatch):
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(make_next_version, [tmp_path] * 64))
    assert sorted(made) == sorted(tmp_path / f"version_{number}" for number in range(64))
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([]))  # another run makes its folder right now
    assert make_next_version(tmp_path).name == "version_64"


def test_a_folder_in_which_a_run_trains_is_not_resumed(here, trained, tmp_path):
    folder = tmp_path / "runs" / "version_0"
    shutil.copytree(trained, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with lock_folder(folder, "the test holds it"):
        ended = here("--trainer.max_steps=32", "--ckpt_path=last")
    assert ended.error == (
        "error: another process is writing to runs/version_0; wait for it to end, or start another run "
        "without --ckpt_path"
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert here("--trainer.max_steps=32", "--ckpt_path=last").code == 0, "it is released when that has ended"


@pytest.mark.slow
def test_two_processes_at_once(tmp_path):
    """Two trainings that start together, then a resume of one of them while this process holds its folder."""
    common = [*TINY, f"--trainer.default_root_dir={tmp_path}", "--trainer.max_steps=8"]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: run_train(*common, cwd=tmp_path), range(2)))
    assert [each.returncode for each in both] == [0, 0]
    for name in ("version_0", "version_1"):
        assert len(read_scalars(tmp_path / name)["train/loss"]) == 8
    resume = [*common, "--trainer.max_steps=16", f"--ckpt_path={tmp_path}/version_0/last.ckpt"]
    with lock_folder(tmp_path / "version_0", "the test holds it"):
        refused = run_train(*resume, cwd=tmp_path)
    assert refused.returncode == 1
    assert "another process is writing to" in refused.stderr
    assert "Traceback" not in refused.stderr


# A full disk


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_at_a_checkpoint(here, tmp_path, monkeypatch):
    """The second validation cannot save: that of the first is safe, and the run resumes from there."""
    original = os.fsync
    saved = []

    def fsync(number: int) -> None:
        name = os.readlink(f"/proc/self/fd/{number}")
        saved.append(name)
        full() if len([each for each in saved if ".last.ckpt." in each]) == 2 else original(number)

    monkeypatch.setattr("tauflow.files.os.fsync", fsync)
    ended = here("--trainer.max_steps=24")
    monkeypatch.undo()
    assert ended.code == 1
    assert len(ended.error.splitlines()) == 1
    assert "cannot write runs/version_0/last.ckpt (No space left on device)" in ended.error
    assert "last.ckpt of step 8 is safe; to resume: python train.py -c runs/version_0/config" in ended.error
    assert load_plain(tmp_path / "runs/version_0/last.ckpt")["global_step"] == 8


def test_a_full_disk_at_the_log(here, monkeypatch, capfd):
    """TensorBoard writes from a thread of its own, which says nothing then: the main one does."""
    from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem

    original = LocalFileSystem.append
    count = 0

    def append(*args):
        nonlocal count
        count += 1
        return original(*args) if count < 60 else full()

    monkeypatch.setattr(LocalFileSystem, "append", append)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # in place of that of pytest
    ended = here("--trainer.max_steps=4000")
    assert ended.error.startswith("error: cannot write a file of the run (No space left on device); runs/")
    assert "is safe; to resume:" in ended.error
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["config.yaml", "hparams.yaml"])
def test_a_full_disk_at_the_beginning(here, monkeypatch, name):
    from tauflow import files

    monkeypatch.setattr(files, "atomic", lambda path, atomic=files.atomic: full_file(path, name, atomic))
    ended = here("--trainer.max_steps=4")
    assert f"cannot write runs/version_0/{name} (No space left on device)" in ended.error
    assert "nothing was saved yet; start it again with the same command" in ended.error


@contextlib.contextmanager
def full_file(path, name, atomic):
    from tauflow.errors import WriteError

    if Path(path).name == name:
        raise WriteError(f"cannot write {path} (No space left on device)", errno.ENOSPC)
    with atomic(path) as file:
        yield file


# Loggers and monitors


def test_a_logger_without_a_place_writes_to_the_run(here, tmp_path):
    assert here("--trainer.max_steps=16", "--trainer.logger=CSVLogger").code == 0
    folder = tmp_path / "runs" / "version_0"
    assert (folder / "last.ckpt").exists()
    with open(folder / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["step"] for row in rows if row["train/loss"]} == {str(step) for step in range(1, 17)}
    assert here("--trainer.max_steps=24", "--trainer.logger=CSVLogger", "--ckpt_path=last").code == 0
    assert (folder / "metrics_1.csv").exists(), "what the first part has listed is kept"
    assert (folder / "metrics.csv").exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["version_0"]


@pytest.mark.parametrize(
    "args",
    [
        ["--trainer.logger+=TensorBoardLogger", "--trainer.logger+=CSVLogger"],
        ["--trainer.logger=[CSVLogger, {class_path: TensorBoardLogger}]"],
        ["-c", "two.yaml"],
    ],
    ids=["flags", "list", "yaml"],
)
def test_two_loggers_share_the_folder(here, tmp_path, args):
    (tmp_path / "two.yaml").write_text("trainer:\n  logger: [TensorBoardLogger, class_path: CSVLogger]\n")
    ended = here("--trainer.max_steps=8", *EVALUATED, *args)
    assert ended.code == 0, ended.error
    folder = tmp_path / "runs" / "version_0"
    assert len(read_scalars(folder)["train/loss"]) == 8
    assert "train/loss" in (folder / "metrics.csv").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["version_0"]
    again = here("-c", str(folder / "config.yaml"), "--trainer.max_steps=8")
    assert again.code == 0, again.error
    assert (tmp_path / "runs" / "version_1" / "metrics.csv").exists(), "config.yaml repeats it elsewhere"


def test_a_logger_with_a_place_of_its_own(here, tmp_path):
    place = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=logs", "--trainer.logger.name=mine"]
    ended = here("--trainer.max_steps=8", *place)
    assert ended.code == 0, ended.error
    assert "run folder  runs/version_0" in ended
    assert (tmp_path / "runs/version_0/last.ckpt").exists(), "only the logger's own files are elsewhere"
    own = {path.name for path in (tmp_path / "logs/mine/version_0").iterdir()}
    assert own == {"metrics.csv", "hparams.yaml"}


@pytest.mark.slow
def test_a_logger_that_cannot_connect_is_an_error_before_training(tmp_path):
    env = ENV | {"HOME": str(tmp_path), "WANDB_API_KEY": "", "WANDB_MODE": "online"}
    args = [*TINY, "--trainer.logger=WandbLogger", "--trainer.max_steps=8"]
    result = run_script(ROOT / "train.py", *args, cwd=tmp_path, env=env)
    assert result.returncode == 1
    assert "error: The logger WandbLogger can't be created: " in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_runs_with_weights_and_biases_keep_their_own_folders(tmp_path):
    """Two in a row, and a resume of the second: that part is another W&B run, so nothing is logged twice."""
    wandb = ["--trainer.logger=WandbLogger", "--trainer.logger.offline=true"]
    common = [*TINY, *wandb, "--trainer.default_root_dir=runs"]
    first, second = tmp_path / "runs/version_0", tmp_path / "runs/version_1"
    assert run_train(*common, "--trainer.max_steps=8", cwd=tmp_path).returncode == 0
    before = {path: path.read_bytes() for path in first.iterdir() if path.is_file()}
    assert {"best.ckpt", "last.ckpt", "config.yaml"} <= {path.name for path in before}
    assert run_train(*common, "--trainer.max_steps=8", cwd=tmp_path).returncode == 0
    resumed = run_train(*common, "--trainer.max_steps=16", "--ckpt_path=last", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert load_plain(second / "last.ckpt")["global_step"] == 16
    assert {path: path.read_bytes() for path in first.iterdir() if path.is_file()} == before
    logs = [len(list(folder.glob("wandb/offline-run-*/*.wandb"))) for folder in (first, second)]
    assert logs == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_logger_that_cannot_be_made(here, tmp_path):
    (tmp_path / "own_logger.py").write_text(
        "from lightning.pytorch.loggers import CSVLogger\n"
        "class Broken(CSVLogger):\n"
        "    def __init__(self, save_dir: str): raise RuntimeError('no key')\n"
    )
    refused(
        here, tmp_path, ["--trainer.logger=own_logger.Broken"], "The logger Broken can't be created: no key"
    )


def test_a_logger_whose_folder_is_none_by_default(here, tmp_path):
    (tmp_path / "quiet_logger.py").write_text(
        "from lightning.pytorch.loggers import CSVLogger\n"
        "class Quiet(CSVLogger):\n"
        "    def __init__(self, save_dir: str | None = None): super().__init__(save_dir, 'quiet', 0)\n"
    )
    ended = here("--trainer.max_steps=8", "--trainer.logger=quiet_logger.Quiet")
    assert ended.code == 0, ended.error
    assert (tmp_path / "runs/version_0/quiet/version_0/metrics.csv").exists()


def test_the_command_that_resumes_has_the_newest_settings(here, tmp_path, monkeypatch):
    training_step = DFMModule.training_step

    def stopped(module, batch, batch_idx):
        if module.trainer.global_step == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return training_step(module, batch, batch_idx)

    assert here("--trainer.max_steps=8").code == 0
    monkeypatch.setattr(DFMModule, "training_step", stopped)
    ended = here("--trainer.max_steps=16", "--ckpt_path=last", "--model.optimizer.learning_rate=0.003")
    assert ended.code == 130
    folder = "runs/version_0"
    assert f"-c {folder}/config_from_step_8.yaml --ckpt_path {folder}/last.ckpt" in ended
    assert find_run_config(tmp_path / folder, 8).name == "config.yaml", "the checkpoint of step 8 had these"


def test_a_metric_of_training_is_the_monitor(here, tmp_path):
    ended = here("--trainer.max_steps=24", "--checkpoints.monitor=train/loss")
    assert ended.code == 0, ended.error
    losses = dict(read_scalars(tmp_path / "runs/version_0")["train/loss"])
    step, value = min(((step, losses[step]) for step in (8, 16, 24)), key=lambda point: point[1])
    assert f"(train/loss {value:.5g} at step {step})" in ended


def test_a_run_of_several_nodes_says_that_it_waits_for_them(here, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1234")
    monkeypatch.setattr("lightning.pytorch.Trainer.fit", lambda *args, **options: None)
    said = here("--trainer.num_nodes=2", "--trainer.strategy=ddp")
    assert "waiting for the other nodes at 127.0.0.1:1234" in said


# Settings that cannot be


CONFIGS = {
    "list": (b"- 1\n- 2\n", "must hold settings"),
    "binary": (bytes(range(256)), "isn't valid YAML"),
    "broken": (b"a: [1\nb: }", "isn't valid YAML"),
    "group": (b"trainer: 5", "must hold settings"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_is_none(here, tmp_path, name):
    contents, expected = CONFIGS[name]
    path = tmp_path / f"{name}.yaml"
    path.write_bytes(contents)
    refused(here, tmp_path, ["-c", str(path)], expected, f"{name}.yaml")


@pytest.mark.parametrize(
    "args",
    [
        ["--trainer.default_root_dir=s3://bucket/runs"],
        ["--ckpt_path=hf://owner/model/last.ckpt"],
        ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=memory://logs"],
    ],
    ids=["root", "checkpoint", "logger"],
)
def test_an_address_is_not_a_local_folder(here, tmp_path, args):
    refused(
        here, tmp_path, args, f"must be a local path, got {args[-1].partition('=')[2]}", "mount the bucket"
    )


def test_the_folder_of_a_failed_run_is_removed_unless_something_was_saved(here, tmp_path, monkeypatch):
    training_step = DFMModule.training_step
    calls = 0

    def failing(module, batch, batch_idx):
        nonlocal calls
        calls += 1
        if calls in (2, 12):  # the first run, at its second step; the next one, at its tenth
            raise SettingsError("this batch can't be used")
        return training_step(module, batch, batch_idx)

    monkeypatch.setattr(DFMModule, "training_step", failing)
    assert "this batch can't be used" in here("--trainer.max_steps=16").error
    assert not list(tmp_path.iterdir()), "nothing was saved: the folders it made are gone"
    assert "this batch can't be used" in here("--trainer.max_steps=16").error
    assert load_plain(tmp_path / "runs/version_0/last.ckpt")["global_step"] == 8


def refused(here, folder: Path, args: list[str], *expected: str) -> None:
    """Assert that train.py says why in a few lines, and leaves nothing behind."""
    before = set(folder.rglob("*"))
    ended = here(*args)
    assert ended.code == 1
    assert len(ended.error.splitlines()) <= 10
    for text in expected:
        assert text in ended.error
    assert set(folder.rglob("*")) == before
