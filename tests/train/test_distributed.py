"""Two processes on the CPU through Lightning's DDP: the same run as one process, split; and a lost one."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ENV, ROOT, TINY, load_plain, read_scalars, run_train, train_command, train_here, wait_for
from forked import run_script

from tauflow import files
from tauflow.cli.sample import sample
from tauflow.evaluation.evaluate import DETAILS
from tauflow.evaluation.results import Results

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_processes_train_the_same_model(trained, tmp_path, optimizer):
    """The global batch is the same set of items with the same noise, so losses and weights agree with one
    process up to rounding.

    That also shows that the ranks see different data and noise: a rank that repeated the other's would change
    every loss.
    """
    one_folder = trained
    common = [*TINY, "--trainer.max_steps=24", f"--model.optimizer.name={optimizer}"]
    if optimizer != "adamw":  # `trained` is AdamW's
        train_here(*common, f"--trainer.default_root_dir={tmp_path}/one", cwd=tmp_path)
        one_folder = tmp_path / "one" / "version_0"
    split = ["--trainer.devices=2", "--trainer.strategy=ddp", f"--trainer.default_root_dir={tmp_path}/two"]
    result = run_train(*common, *split, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    two_folder = tmp_path / "two" / "version_0"
    assert sorted(path.name for path in two_folder.rglob("*.ckpt")) == ["best.ckpt", "last.ckpt"]
    assert result.stdout.count("run folder") == 1

    one, two = read_scalars(one_folder), read_scalars(two_folder)
    validation = ("val/bound", "val/bound_standard_error", "val/loss_kappa_quarter_1")
    for tag in ("train/loss", "train/gradient_norm", *validation):
        assert [step for step, _ in two[tag]] == [step for step, _ in one[tag]], tag
        assert [value for _, value in two[tag]] == pytest.approx(
            [value for _, value in one[tag]], rel=2e-3
        ), tag
    left, right = (load_plain(folder / "last.ckpt")["state_dict"] for folder in (one_folder, two_folder))
    # Muon scales every direction of a gradient to the same length, in bfloat16, so rounding grows.
    tolerance = 2e-3 if optimizer == "adamw" else 3e-2
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=tolerance, rtol=2e-2)


WORKER = """
import sys
import torch
from lightning.pytorch import Callback, Trainer
from tauflow.networks import TransformerConfig
from tauflow.tasks import Countdown
from tauflow.tasks.data import TaskData
from tauflow.train import DFMModule


class Watched(DFMModule):
    def loss(self, x_1, noise, rows, condition=None):
        seen.append((rows.tolist(), noise.t[rows].tolist(), x_1.sum(1).tolist()))
        return super().loss(x_1, noise, rows, condition)


class Save(Callback):
    def on_fit_end(self, trainer, model):
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        torch.save({"seen": seen, "metrics": metrics}, f"{sys.argv[1]}/rank{trainer.global_rank}.pt")


seen = []
torch.manual_seed(0)
task = Countdown(length=16, values=6, batch_size=8, epoch_items=16, val_items=7)  # the ranks validate 4 and 3
model = Watched(task.facts, network=TransformerConfig(width=16, blocks=1, heads=2))
trainer = Trainer(
    accelerator="cpu", devices=2, strategy="ddp_fork", max_steps=2, logger=False, callbacks=[Save()],
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    use_distributed_sampler=False, default_root_dir=sys.argv[1],
)
trainer.fit(model, TaskData(task))
"""


def test_ranks_see_different_items_and_times_and_the_same_metrics(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    result = run_script(tmp_path / "worker.py", str(tmp_path), cwd=tmp_path, env=ENV)
    assert result.returncode == 0, result.stderr
    ranks = [load_plain(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for step in (0, 1):
        rows, times, sums = zip(*(rank["seen"][step] for rank in ranks), strict=True)
        assert sorted(rows[0] + rows[1]) == list(range(8))
        strata = sorted(int(t * 8) for t in times[0] + times[1])
        assert strata == list(range(8)), "one time in each stratum of the global batch"
        assert sums[0] != sums[1]
    assert ranks[0]["metrics"] == ranks[1]["metrics"]
    assert "val/bound" in ranks[0]["metrics"]


def test_a_signal_to_one_process_stops_all_and_saves(tmp_path):
    """SIGTERM to the first process alone: both agree to stop after the same step, and that samplers are not
    evaluated then."""
    args = [*TINY, "--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=100000"]
    args += [f"--trainer.default_root_dir={tmp_path}"]
    args += [
        "--evaluation.every_n_validations=1000000",
        "--evaluation.samplers=euler",
        "--evaluation.nfes=[2]",
    ]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(train_command(*args), cwd=tmp_path, env=ENV, **options)
    wait_for(tmp_path / "version_0" / "last.ckpt", process)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "to resume:" in output
    assert load_plain(tmp_path / "version_0" / "last.ckpt")["global_step"] > 8


def test_a_lost_rank_ends_the_run(tmp_path):
    """In a minute, with one line that says what is safe; last.ckpt is whole."""
    args = [*TINY, "--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=100000"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    args += [f"--trainer.default_root_dir={tmp_path}"]
    first = subprocess.Popen(train_command(*args), env=ENV, **options)
    assert any(said.startswith("step 16 ") for said in first.stdout), first.stderr.read()
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    second = next(int(child) for child in children if b".py" in Path(f"/proc/{child}/cmdline").read_bytes())
    os.kill(second, signal.SIGKILL)
    said = first.communicate(timeout=60)[1]
    assert first.returncode == 1
    assert "Traceback" not in said
    assert "error: another process of the run died or doesn't answer" in said
    step = load_plain(tmp_path / "version_0" / "last.ckpt")["global_step"]
    assert f"last.ckpt of step {step} is safe; to resume: python train.py -c" in said


def test_two_devices_sample_beside_a_run_that_saves(trained, tmp_path):
    """The second process begins seconds after the first: it would read another version of the file."""
    path, over = tmp_path / "last.ckpt", threading.Event()
    versions = [trained / "best.ckpt", tmp_path / "other.ckpt"]
    torch.save(load_plain(versions[0]) | {"global_step": 7}, versions[1])
    shutil.copy(versions[0], path)

    def save():
        number = 0
        while not over.wait(0.1):
            number += 1
            with files.atomic(path) as file:
                file.write(versions[number % 2].read_bytes())

    thread = threading.Thread(target=save)
    thread.start()
    words = ["--ckpt", path, "--nfe", 2, "--num_samples", 4, "--batch_size", 2, "--accelerator", "cpu"]
    command = [sys.executable, ROOT / "sample.py", *words, "--devices", 2]
    try:
        result = subprocess.run(
            list(map(str, command)), cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=120
        )
    finally:
        over.set()
        thread.join()
    assert result.returncode == 0, result.stderr


FEATURES = """
import torch

class Powers(torch.nn.Module):
    def forward(self, pictures):
        return (pictures.double() / 255).mean((1, 2, 3))[:, None] ** torch.arange(1, 4)
"""


@pytest.fixture
def pictures(tmp_path):
    """Train a tiny U-Net on made pictures with labels; return its checkpoint."""
    levels = np.random.default_rng(0).integers(0, 256, (40, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "made.npz", images=levels, labels=np.arange(40) % 2)
    args = ["-c", str(ROOT / "configs" / "fashion.yaml"), "--data.hub=null", "--data.npz=made.npz"]
    args += ["--data.size=null", "--data.class_names=null", "--data.val_share=0.3", "--data.val_items=6"]
    args += ["--data.batch_size=8", "--data.epoch_items=8", "--model.optimizer.warmup_steps=1"]
    args += ["--model.network.width=8", "--model.network.multipliers=[1,2]", "--model.network.blocks=1"]
    args += ["--trainer.max_steps=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    args += ["--evaluation.every_n_validations=0", f"--trainer.default_root_dir={tmp_path}"]
    train_here(*args, cwd=tmp_path)
    return tmp_path / "version_0" / "last.ckpt"


def test_two_processes_draw_and_measure_the_pictures_of_one(pictures, tmp_path, monkeypatch):
    """Distances are sums over the pictures in another order: equal to rounding. All else is equal."""
    (tmp_path / "made.py").write_text(FEATURES)
    monkeypatch.chdir(tmp_path)
    words = ["--ckpt", pictures, "--sampler", "spaced", "tr_cie", "--nfe", 3, "--num_samples", 7]
    words += ["--batch_size", 2, "--accelerator", "cpu", "--no_progress"]
    words += ["--data", "npz=made.npz", "--data", "features=made.py:Powers"]
    with pytest.raises(SystemExit) as stop:
        sample(list(map(str, [*words, "--out", "one"])))
    assert stop.value.code == 0
    command = [sys.executable, ROOT / "sample.py", *words, "--devices", 2, "--out", "two"]
    result = subprocess.run(list(map(str, command)), env=ENV, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert Path("one/samples.png").read_bytes() == Path("two/samples.png").read_bytes()
    for one, two in zip(Results.read("one").cells, Results.read("two").cells, strict=True):
        assert one.shown == two.shown
        assert {record.metric for record in one.records} >= {"kid_Powers", "brightness_sd", "quiet_luma"}
        for left, right in zip(one.records, two.records, strict=True):
            if left.metric not in DETAILS["time"]:
                numbers = left.measured.value, left.measured.standard_error
                found = right.measured.value, right.measured.standard_error
                assert found == pytest.approx(numbers, rel=1e-9, abs=1e-9), (one.factors, left.metric)
