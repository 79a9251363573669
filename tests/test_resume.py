"""A run that is killed and resumed ends bit for bit where the uninterrupted one does."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ENV, TINY, assert_equal, load_plain, read_scalars, run_train, train_command, wait_for

STEPS = 20  # an epoch is 8 steps, so 20 end in the middle of one


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    result = run_train(*TINY, f"--trainer.max_steps={STEPS}", f"--trainer.default_root_dir={folder}", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "version_0"


def assert_same_run(a: Path, b: Path) -> None:
    left, right = load_plain(a / "last.ckpt"), load_plain(b / "last.ckpt")
    for part in ("global_step", "state_dict", "optimizer_states", "lr_schedulers"):  # raw and averaged weights are in state_dict
        assert_equal(left[part], right[part], part)
    left, right = read_scalars(a), read_scalars(b)
    assert left.keys() == right.keys()
    assert len(left["train/loss"]) == STEPS  # every step was logged once: the same data in the same order with the same noise
    for tag in left.keys() - {"train/tokens_per_second"}:
        assert left[tag] == right[tag], tag


@pytest.mark.parametrize("every", [5, 8])
def test_kill_9_and_resume(uninterrupted, tmp_path, every):
    """Killed by SIGKILL after the checkpoint of step `every` (in the middle or at the end of an epoch), wherever the run then was."""
    common = [*TINY, f"--trainer.default_root_dir={tmp_path}", f"--checkpoints.every_n_steps={every}", f"--trainer.max_steps={STEPS}"]
    last = tmp_path / "version_0" / "last.ckpt"
    process = subprocess.Popen(train_command(*common), cwd=tmp_path, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not last.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert every <= load_plain(last)["global_step"] < STEPS, "killed too late to test anything"

    result = run_train(*common, "--ckpt_path=last", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["version_0"]
    assert_same_run(uninterrupted, tmp_path / "version_0")


@pytest.mark.parametrize("extra", [[], ["--data.num_workers=2", "--trainer.accumulate_grad_batches=2"]], ids=["plain", "workers"])
def test_ctrl_c_saves_and_resumes(uninterrupted, tmp_path, extra):
    """Ctrl-C as a terminal sends it: to every process of the group, loader workers too; also between the parts of an accumulated step."""
    common = [*TINY, *extra, f"--trainer.default_root_dir={tmp_path}", f"--trainer.max_steps={STEPS}"]
    process = subprocess.Popen(
        train_command(*common), cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    wait_for(tmp_path / "version_0" / "last.ckpt", process)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "to go on: python train.py -c" in output
    stopped = load_plain(tmp_path / "version_0" / "last.ckpt")["global_step"]
    assert 8 <= stopped < STEPS

    command = output.split("to go on: python train.py ")[1].split("\n")[0].split()
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


def test_another_checkpoint_begins_a_new_run(trained, tmp_path):
    """From best.ckpt, or a copy elsewhere: the folder it lies in is left alone."""
    copy = tmp_path / "copy" / "my.ckpt"
    copy.parent.mkdir()
    copy.write_bytes((trained / "last.ckpt").read_bytes())
    result = run_train(*TINY, "--trainer.max_steps=26", f"--trainer.default_root_dir={tmp_path}/runs", f"--ckpt_path={copy}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in copy.parent.iterdir()] == ["my.ckpt"]
    folder = tmp_path / "runs" / "version_0"
    assert load_plain(folder / "last.ckpt")["global_step"] == 26
    assert "ckpt_path: null" in (folder / "config.yaml").read_text(), "the saved settings repeat the run, they do not resume it"
