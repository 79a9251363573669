"""Counts for `auto`: learned at the end of training and on export, where that takes little of its time."""

import shutil
import signal

import pytest
import torch
from conftest import TINY, train_here

import tauflow
from tauflow.train import counts

RUN = (*TINY, "--trainer.max_steps=8")


@pytest.fixture
def cheap(monkeypatch):
    """Let learning take any time."""
    monkeypatch.setattr(counts, "MIN_TRAINING", 0.0)
    monkeypatch.setattr(counts, "SHARE", 1e6)


def line(printed: str, name: str) -> str:
    return next((each for each in printed.splitlines() if each.startswith(name)), "")


def test_a_masked_run_learns_counts_for_its_best_checkpoint(tmp_path, cheap):
    printed = train_here(*RUN, f"--trainer.default_root_dir={tmp_path}", cwd=tmp_path)
    run = tmp_path / "version_0"
    assert line(printed, "learned").startswith("learned     counts for auto, ")
    assert str(run / "best.counts.json") in line(printed, "learned")
    trained = tauflow.load(run)
    assert [each.order for each in trained.model.counts] == ["spaced", "random"]
    assert str(tauflow.sampler_from("auto", trained.model)) == "best_learned"

    resume = (f"--ckpt_path={run / 'last.ckpt'}", "--trainer.max_steps=16")
    printed = train_here(*RUN, *resume, f"--trainer.default_root_dir={tmp_path}", cwd=tmp_path)
    assert str(run / "best.counts.json") in line(printed, "learned")
    newer = tauflow.load(run)
    assert newer.step == 16, "a better checkpoint has replaced the first"
    assert newer.model.counts, "and has counts of its own"
    assert newer.model.counts != trained.model.counts


def test_a_run_that_is_too_short_prints_the_command(tmp_path):
    printed = train_here(*RUN, f"--trainer.default_root_dir={tmp_path}", cwd=tmp_path)
    best = tmp_path / "version_0" / "best.ckpt"
    assert line(printed, "counts").endswith(f" --ckpt {best} --learn_counts")
    assert not (tmp_path / "version_0" / "best.counts.json").exists()


def test_other_sources_have_no_counts(tmp_path, cheap):
    flags = ("--model.source=uniform", "--model.network.time=true", f"--trainer.default_root_dir={tmp_path}")
    printed = train_here(*RUN, *flags, cwd=tmp_path)
    assert not line(printed, "learned") + line(printed, "counts")


def test_counts_belong_to_one_checkpoint(trained, tmp_path):
    for name in ("best.ckpt", "last.ckpt"):
        shutil.copy(trained / name, tmp_path / name)
    model = tauflow.load(tmp_path / "best.ckpt").model
    tauflow.samplers.learned.save_counts(tmp_path / "best.ckpt", (tauflow.learn_counts(model, contexts=2),))
    assert tauflow.load(tmp_path).model.counts
    shutil.copy(trained / "last.ckpt", tmp_path / "best.ckpt")
    with pytest.warns(UserWarning, match="learned from other weights"):
        assert not tauflow.load(tmp_path).model.counts


def test_the_budget_decides_on_the_orders(monkeypatch):
    """With a second for each evaluation, an order takes D = 4 seconds, and samples as much."""
    process = tauflow.Mixture(tauflow.Masked(3), "linear")
    model = tauflow.Model(lambda x, t: torch.zeros(*x.shape, 3), process, (4,))
    monkeypatch.setattr(counts, "seconds_of_evaluation", lambda model, contexts: contexts / 16)
    data = torch.randint(3, (16, 4), generator=torch.Generator().manual_seed(0))
    for budget, given, orders in (
        (0.0, data, []),
        (1.9, data, []),
        (2.1, data, ["spaced"]),  # of 8 sequences
        (4.1, data, ["spaced"]),
        (8.1, data, ["spaced", "random"]),
        (3.9, None, []),
        (4.1, None, ["spaced"]),
        (12.1, None, ["spaced", "random"]),
    ):
        assert [each.order for each in counts.learn_within(model, budget, given)] == orders, budget
    assert counts.budget_of(59.0) == 0.0
    assert counts.budget_of(100.0) == 5.0


def test_an_export_learns_them_too(trained, tmp_path, cheap):
    assert tauflow.load(tauflow.export(trained, tmp_path / "with")).model.counts
    assert not tauflow.load(tauflow.export(trained, tmp_path / "without", learn=False)).model.counts


def test_the_time_counts_over_resumes(tmp_path, cheap):
    flags = ("--checkpoints.every_n_steps=4", f"--trainer.default_root_dir={tmp_path}")
    last = tmp_path / "version_0" / "last.ckpt"
    train_here(*RUN, *flags, cwd=tmp_path)
    first = tauflow.train.checkpoint.read(last)["callbacks"]["TrainingTime"]["seconds"]
    train_here(*RUN, *flags, f"--ckpt_path={last}", "--trainer.max_steps=12", cwd=tmp_path)
    assert tauflow.train.checkpoint.read(last)["callbacks"]["TrainingTime"]["seconds"] > first > 0


def test_ctrl_c_ends_the_learning_and_not_the_run(tmp_path, cheap, monkeypatch):
    monkeypatch.setattr(counts, "orders_of", lambda model: signal.raise_signal(signal.SIGINT))
    printed = train_here(*RUN, f"--trainer.default_root_dir={tmp_path}", cwd=tmp_path)
    best = tmp_path / "version_0" / "best.ckpt"
    assert line(printed, "counts").startswith("counts      the run is complete")
    assert line(printed, "counts").endswith(f" --ckpt {best} --learn_counts")
    assert line(printed, "last").endswith("(step 8)")
