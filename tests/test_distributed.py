"""Two processes on the CPU through Lightning's DDP: the same run as one process, split."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from conftest import ENV, TINY, load_plain, read_scalars, run_train, train_command, wait_for

pytestmark = pytest.mark.slow


def test_two_processes_train_the_same_model(trained, tmp_path):
    """The global batch is the same set of items with the same noise, so losses and weights agree with one
    process up to rounding.

    That also shows that the ranks see different data and noise: a rank that repeated the other's would change
    every loss.
    """
    split = ["--trainer.devices=2", "--trainer.strategy=ddp", f"--trainer.default_root_dir={tmp_path}"]
    result = run_train(*TINY, "--trainer.max_steps=24", *split, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in tmp_path.rglob("*.ckpt")) == ["best.ckpt", "last.ckpt"]
    assert result.stdout.count("run folder") == 1

    one, two = read_scalars(trained), read_scalars(tmp_path / "version_0")
    validation = ("val/bound", "val/bound_standard_error", "val/loss_kappa_quarter_1")
    for tag in ("train/loss", "train/gradient_norm", *validation):
        assert [step for step, _ in two[tag]] == [step for step, _ in one[tag]], tag
        assert [value for _, value in two[tag]] == pytest.approx(
            [value for _, value in one[tag]], rel=2e-3
        ), tag
    folders = trained, tmp_path / "version_0"
    left, right = (load_plain(folder / "last.ckpt")["state_dict"] for folder in folders)
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=2e-3, rtol=2e-2)


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
    accelerator="cpu", devices=2, strategy="ddp", max_steps=2, logger=False, callbacks=[Save()],
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    use_distributed_sampler=False, default_root_dir=sys.argv[1],
)
trainer.fit(model, TaskData(task))
"""


def test_ranks_see_different_items_and_times_and_the_same_metrics(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, "worker.py", str(tmp_path)]
    result = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=240)
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
