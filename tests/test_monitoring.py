"""Samplers evaluated during training: what TensorBoard gets, what training does not notice."""

import json
import math
import shutil
from dataclasses import dataclass

import pytest
import torch
from conftest import TINY, assert_equal, load_plain, read_scalars, run_train

import tauflow
from tauflow.cli.training import TauflowCLI
from tauflow.samplers import SAMPLERS
from tauflow.samplers.leaping import Leaping
from tauflow.tables import Table

WATCH = [
    *TINY,
    *("--evaluation.samplers=[euler,tr_cie]", "--evaluation.nfes=[2,4]", "--evaluation.num_samples=6", "--evaluation.batch_size=4"),
    "--evaluation.every_n_validations=1",
]
METRICS = ["error_rate", "sequence_error_rate", "unigram_tv"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run of 24 steps with three validations, monitored by a sampled metric; (folder, what it printed)."""
    folder = tmp_path_factory.mktemp("watched")
    monitor = "--checkpoints.monitor=sampling/error_rate/tr_cie/nfe_4"
    result = run_train(*WATCH, monitor, "--trainer.max_steps=24", f"--trainer.default_root_dir={folder}", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "version_0", result.stdout


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    found.Reload()
    return found


@pytest.mark.parametrize("sampler", ["euler", "tr_cie"])
def test_every_promised_tag_has_its_points(watched, sampler):
    folder, _ = watched
    scalars = read_scalars(folder / sampler)
    expected = {f"{name}/nfe_{nfe}" for name in METRICS for nfe in (2, 4)}
    expected |= {f"standard_error/{name}/nfe_{nfe}" for name in METRICS for nfe in (2, 4)}
    details = [*(f"steps/{name}" for name in ("jumped", "clamped", "several_events", "leftover_masks"))]
    details += ["time/sampler_ms_per_sample", "time/network_share"]
    expected |= {f"{name}/nfe_{nfe}" for name in details for nfe in (2, 4)}
    for tag in expected:
        assert [step for step, _ in scalars[tag]] == [8, 16, 24], tag
    results = json.loads((folder / "evaluation" / "results.json").read_text())
    cells = {(cell["sampler"], cell["nfe"]): cell for cell in results["cells"]}
    for metric in METRICS:
        values = [(nfe, cells[sampler, nfe]["metrics"][metric]["value"]) for nfe in (2, 4)]
        curve = scalars[f"{metric}_vs_nfe"]
        assert [nfe for nfe, _ in curve] == [2, 4], "only the newest curve, step = NFE"
        assert [value for _, value in curve] == pytest.approx([value for _, value in values])
        assert scalars[f"{metric}/nfe_4"][-1][1] == pytest.approx(values[1][1])
    assert set(scalars) == expected | {f"{metric}_vs_nfe" for metric in METRICS}

    tags = events(folder / sampler).Tags()
    assert tags["images"] == ["evolution/nfe_4"]
    assert tags["tensors"] == ["samples/nfe_4/text_summary"]
    assert len(events(folder / sampler).Images("evolution/nfe_4")) == 3
    text = events(folder / sampler).Tensors("samples/nfe_4/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert f"{sampler}, NFE 4" in text
    assert all(line.startswith("    ") or not line for line in text.splitlines()), "a block of code: no line is wrapped or joined"


def test_the_main_run_has_the_figure_and_the_cost(watched):
    folder, _ = watched
    main = events(folder)
    assert set(main.Tags()["images"]) == {f"{metric}_vs_nfe" for metric in METRICS}
    assert [event.step for event in main.Images("error_rate_vs_nfe")] == [8, 16, 24]
    scalars = read_scalars(folder)
    assert [step for step, _ in scalars["sampling/evaluation_seconds"]] == [8, 16, 24]
    assert not any(tag.startswith("sampling/error_rate") for tag in scalars), "samplers have runs of their own"


def test_hparams_name_metrics_that_exist(watched):
    from tensorboard.plugins.hparams import plugin_data_pb2

    folder, _ = watched
    main = events(folder)
    contents = {tag: main.SummaryMetadata(tag).plugin_data.content for tag in main.PluginTagToContent("hparams")}
    read = {tag: plugin_data_pb2.HParamsPluginData.FromString(content) for tag, content in contents.items()}
    experiment, session = read["_hparams_/experiment"].experiment, read["_hparams_/session_start_info"].session_start_info
    assert session.hparams["model/network/width"].number_value == 16
    assert session.hparams["task/values"].number_value == 6
    assert {info.name for info in experiment.hparam_infos} == set(session.hparams)
    names = [(info.name.group, info.name.tag) for info in experiment.metric_infos]
    assert names == [("", "val/bound"), ("euler", "error_rate/nfe_4"), ("tr_cie", "error_rate/nfe_4")]
    for group, tag in names:
        assert tag in read_scalars(folder / group if group else folder)


def test_a_sampled_metric_is_the_monitor(watched):
    folder, printed = watched
    points = read_scalars(folder / "tr_cie")["error_rate/nfe_4"]
    step, value = min(points, key=lambda point: (point[1], point[0]))
    assert load_plain(folder / "best.ckpt")["global_step"] == step
    assert f"(sampling/error_rate/tr_cie/nfe_4 {value:.5g} at step {step})" in printed


def test_the_run_ends_with_a_table(watched):
    folder, printed = watched
    assert "error_rate by NFE (lower is better" in printed
    assert f"samplers    {folder}/evaluation" in printed
    row = next(line for line in printed.splitlines() if "tr_cie" in line and "±" in line)
    assert row.count("±") == 2
    assert (folder / "evaluation" / "quality_vs_nfe.png").exists()
    assert "tr_cie, NFE 4: error_rate" in (folder / "evaluation" / "samples.txt").read_text()


def test_the_evaluation_is_that_of_the_checkpoint(watched):
    """The numbers of the last evaluation come again from the checkpoint written after it: averaged weights, seeds and counts agree."""
    folder, _ = watched
    table = tauflow.evaluate(tauflow.load(folder / "last.ckpt"), ["euler", "tr_cie"], [2, 4], 6, batch_size=4)
    logged = Table.read(folder / "evaluation")
    for cell in table.cells:
        for name, found in cell.metrics.items():
            assert logged.measured(name, cell.sampler, cell.nfe).value == pytest.approx(found.value, abs=1e-9)


def test_training_does_not_notice(watched, trained):
    """The same 24 steps without any evaluation: weights, averages, optimizer and logged losses are equal bit for bit."""
    folder, _ = watched
    with_it, without = load_plain(folder / "last.ckpt"), load_plain(trained / "last.ckpt")
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "loops"):
        assert_equal(with_it[part], without[part], part)
    ours, theirs = read_scalars(folder), read_scalars(trained)
    for tag in ("train/loss", "train/gradient_norm", "val/bound"):
        assert ours[tag] == theirs[tag]


@dataclass(frozen=True)
class Broken(Leaping):
    def step(self, *args):
        torch.rand(3)  # a careless sampler: draws from the global generator, then fails
        raise RuntimeError("out of luck")


def in_process(folder, *args):
    cli = TauflowCLI([*WATCH, "--trainer.max_steps=16", f"--trainer.default_root_dir={folder}", *args])
    cli.fit()
    return cli


def test_a_failing_sampler_is_named_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(SAMPLERS, "broken", Broken)
    plain = in_process(tmp_path / "plain", "--evaluation.every_n_validations=0")
    state = torch.get_rng_state()
    with pytest.warns(UserWarning, match="broken at NFE 2 failed: RuntimeError: out of luck"):
        broken = in_process(tmp_path / "broken", "--evaluation.samplers=[broken,euler]")
    assert torch.equal(torch.get_rng_state(), state), "what a sampler draws from the global generator is put back"
    assert_equal(plain.model.state_dict(), broken.model.state_dict())
    folder = tmp_path / "broken" / "version_0"
    assert read_scalars(folder)["train/loss"] == read_scalars(tmp_path / "plain" / "version_0")["train/loss"]
    assert [step for step, _ in read_scalars(folder / "euler")["error_rate/nfe_2"]] == [8, 16]
    assert not (folder / "broken").exists() or "error_rate/nfe_2" not in read_scalars(folder / "broken")
    assert math.isnan(broken.trainer.callback_metrics["sampling/error_rate/broken/nfe_2"])


@pytest.mark.parametrize("part", ["compute", "reference", "save"])
def test_whatever_fails_in_an_evaluation_training_goes_on(tmp_path, monkeypatch, part):
    def fail(*args, **kwargs):
        raise OSError("no space left")

    where = {
        "compute": "tauflow.tasks.countdown.TransitionErrorRate.compute",
        "reference": "tauflow.evaluation.reference",
        "save": "tauflow.tables.Table.save",
    }
    monkeypatch.setattr(where[part], fail)
    if part == "reference":
        cli = in_process(tmp_path)
        assert (
            "there are no numbers of real data: OSError: no space left"
            in (tmp_path / "version_0" / "evaluation" / "results.md").read_text()
        )
    else:
        with pytest.warns(UserWarning, match="failed: OSError: no space left"):
            cli = in_process(tmp_path)
    assert cli.trainer.global_step == 16


def test_the_time_budget_is_kept_and_said(tmp_path):
    with pytest.warns(UserWarning, match="euler at NFE 2 skipped: the 1e-09 seconds of the evaluation were spent"):
        cli = in_process(tmp_path, "--evaluation.max_seconds=1e-9")
    assert cli.trainer.global_step == 16
    assert "skipped: the 1e-09 seconds" in (tmp_path / "version_0" / "evaluation" / "results.md").read_text()


def test_every_n_validations_and_the_last(tmp_path):
    """Validations at 8, 16 and 24, the end at 28: evaluation at the first, the third and the end; monitors find a value at each."""
    stopping = "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping"  # stops at once where its monitor is NaN
    monitor = "--trainer.callbacks.monitor=sampling/error_rate/euler/nfe_2"
    args = ["--trainer.max_steps=28", "--evaluation.every_n_validations=2", "--evaluation.nfes=[2]", stopping, monitor]
    cli = in_process(tmp_path, *args, "--trainer.callbacks.patience=9")
    assert [step for step, _ in read_scalars(tmp_path / "version_0" / "euler")["error_rate/nfe_2"]] == [8, 24, 28]
    assert cli.trainer.global_step == 28


def test_a_resumed_run_goes_on_with_its_curves(watched, tmp_path):
    folder = tmp_path / "version_0"
    shutil.copytree(watched[0], folder)
    args = ["--trainer.max_steps=32", f"--ckpt_path={folder}/last.ckpt", "--checkpoints.monitor=sampling/error_rate/tr_cie/nfe_4"]
    result = run_train(*WATCH, f"--trainer.default_root_dir={tmp_path}", *args, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [step for step, _ in read_scalars(folder / "euler")["error_rate/nfe_2"]] == [8, 16, 24, 32]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--evaluation.samplers=[eulr]"], "unknown sampler 'eulr'"),
        (["--evaluation.samplers=[fhs]", "--model.source=uniform", "--model.network.time=true"], "fhs does not support the uniform source"),
        (["--evaluation.nfes=[0]"], "whole number of at least 1"),
        (["--evaluation.every_n_validations=-1"], "every_n_validations >= 0"),
        (["--checkpoints.monitor=sampling/error_rate/tr_cie/nfe_5"], "logged were: sampling/error_rate/euler/nfe_2"),
    ],
)
def test_bad_settings_are_refused_before_training(args, message, tmp_path):
    from tauflow.errors import TauflowError

    with pytest.raises((TauflowError, ValueError), match=message):
        in_process(tmp_path, *args)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_two_processes_share_the_samples(tmp_path):
    """Seven samples in batches of two: four batches, two for each rank, and exactly seven samples counted."""
    args = ["--trainer.devices=2", "--trainer.strategy=ddp", "--evaluation.num_samples=7", "--evaluation.batch_size=2"]
    result = run_train(*WATCH, *args, "--trainer.max_steps=8", f"--trainer.default_root_dir={tmp_path}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    cells = json.loads((tmp_path / "version_0" / "evaluation" / "results.json").read_text())["cells"]
    assert [cell["samples"] for cell in cells] == [7] * 4
    assert [cell["counted_nfe"] for cell in cells] == [2, 2, 4, 4]
    assert [step for step, _ in read_scalars(tmp_path / "version_0" / "euler")["error_rate/nfe_2"]] == [8]
    assert result.stdout.count("error_rate by NFE") == 2, "a table for each error rate, printed by one process"
