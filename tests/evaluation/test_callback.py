"""Samplers evaluated during training: what TensorBoard gets, what training does not notice."""

import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import lightning
import pytest
import torch
import yaml
from conftest import TINY, assert_equal, load_plain, read_scalars, run_train, train_here
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

import tauflow
from tauflow.cli.sample import sample as sample_cli
from tauflow.cli.train import TauflowCLI
from tauflow.evaluation.results import REAL, Results
from tauflow.evaluation.tables import Frame
from tauflow.networks import TransformerConfig
from tauflow.samplers import SAMPLERS
from tauflow.samplers.leaping import Leaping
from tauflow.tasks.data import TaskData
from tauflow.tasks.text import Text

WATCH = [
    *TINY,
    *("--evaluation.samplers=[euler,tr_cie]", "--evaluation.nfes=[2,4]", "--evaluation.num_samples=6"),
    *("--evaluation.batch_size=4", "--evaluation.every_n_validations=1"),
]
METRICS = ["error_rate", "sequence_error_rate", "unigram_tv", "nll"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run of 24 steps with three validations, monitored by a sampled metric; (folder, what it printed)."""
    folder = tmp_path_factory.mktemp("watched")
    monitor = "--checkpoints.monitor=sampling/error_rate/tr_cie/nfe_4"
    place = f"--trainer.default_root_dir={folder}"
    return folder / "version_0", train_here(*WATCH, monitor, "--trainer.max_steps=24", place, cwd=folder)


def cells_of(folder) -> dict:
    """Return {(sampler, nfe): {metric: value}} of the newest evaluation of a run."""
    found = [cell for cell in Results.read(folder / "evaluation").cells if cell.factors["sampler"] != REAL]
    return {
        (cell.factors["sampler"], cell.factors["nfe"]): {
            each.metric: each.measured.value for each in cell.records
        }
        for cell in found
    }


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
    details += ["time/ms_per_sample", "time/sampler_ms_per_sample", "time/network_share"]
    details += ["steps/samples", "steps/counted_nfe", "steps/forwards", "steps/discarded"]
    expected |= {f"{name}/nfe_{nfe}" for name in details for nfe in (2, 4)}
    for tag in expected:
        assert [step for step, _ in scalars[tag]] == [8, 16, 24], tag
    cells = cells_of(folder)
    for metric in METRICS:
        values = [cells[sampler, nfe][metric] for nfe in (2, 4)]
        curve = scalars[f"{metric}_vs_nfe"]
        assert [nfe for nfe, _ in curve] == [2, 4], "only the newest curve, step = NFE"
        assert [value for _, value in curve] == pytest.approx(values)
        assert scalars[f"{metric}/nfe_4"][-1][1] == pytest.approx(values[1])
    assert set(scalars) == expected | {f"{metric}_vs_nfe" for metric in METRICS}

    tags = events(folder / sampler).Tags()
    assert {"2_quality/nll/nfe_4", "3_curves/nll_vs_nfe", "6_details/time/network_share/nfe_4"} <= {
        *tags["scalars"]
    }
    assert tags["images"] == ["4_samples/evolution/nfe_4"]
    assert tags["tensors"] == ["4_samples/nfe_4/text_summary"]
    assert len(events(folder / sampler).Images("4_samples/evolution/nfe_4")) == 3
    text = text_of(folder / sampler, "4_samples/nfe_4")
    assert f"{sampler}, NFE 4" in text
    code = all(line.startswith("    ") or not line for line in text.splitlines())
    assert code, "a block of code: no line is wrapped or joined"


def text_of(folder, tag) -> str:
    return events(folder).Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()


def test_the_first_group_of_charts_is_what_everybody_looks_for(watched):
    """TensorBoard sorts charts by name: loss, bound, quality against NFE, and samples come first."""
    main = events(watched[0])
    tags = sorted(main.Tags()["scalars"] + main.Tags()["images"])
    first = ["error_rate_vs_nfe", "samples", "train/loss", "val/bound"]
    assert tags[:4] == [f"1_overview/{name}" for name in first]
    assert "5_training/train/learning_rate" in tags
    image = main.Images("1_overview/samples")[-1]
    assert (image.width, image.height) == (640, 400), "a thumbnail that can be read"


def test_the_layout_of_custom_scalars_fits_the_tags(watched):
    from tensorboard.plugins.custom_scalar import layout_pb2

    main = events(watched[0])
    layout = layout_pb2.Layout.FromString(
        main.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    )
    tags = {tag for place in ("", "euler") for tag in events(watched[0] / place).Tags()["scalars"]}
    charts = {chart.title: chart for category in layout.category for chart in category.chart}
    assert {"train/loss", "val/bound", "error_rate by training step", "nll by training step"} <= set(charts)
    for title, chart in charts.items():
        assert any(re.search(chart.multiline.tag[0], tag) for tag in tags), title


def test_a_text_says_what_the_run_is(watched):
    text = text_of(watched[0], "1_overview/about_this_run")
    for word in ("| command |", "Transformer, 3.53 k parameters", "Countdown", "torch ", "width: 16"):
        assert word in text


def test_the_main_run_has_the_figure_and_the_cost(watched):
    folder, _ = watched
    main = events(folder)
    curves = {f"3_curves/{metric}_vs_nfe" for metric in METRICS[1:]}
    assert set(main.Tags()["images"]) == curves | {"1_overview/error_rate_vs_nfe", "1_overview/samples"}
    assert [event.step for event in main.Images("1_overview/error_rate_vs_nfe")] == [8, 16, 24]
    scalars = read_scalars(folder)
    assert [step for step, _ in scalars["sampling/evaluation_seconds"]] == [8, 16, 24]
    assert not any(tag.startswith("sampling/error_rate") for tag in scalars), (
        "samplers have runs of their own"
    )


def test_hparams_name_metrics_that_exist(watched):
    from tensorboard.plugins.hparams import plugin_data_pb2

    folder, _ = watched
    main = events(folder)
    contents = {
        tag: main.SummaryMetadata(tag).plugin_data.content for tag in main.PluginTagToContent("hparams")
    }
    read = {tag: plugin_data_pb2.HParamsPluginData.FromString(content) for tag, content in contents.items()}
    experiment = read["_hparams_/experiment"].experiment
    session = read["_hparams_/session_start_info"].session_start_info
    found = {name: session.hparams[name].string_value for name in ("task", "source", "schedule", "network")}
    assert found == {
        "task": "Countdown",
        "source": "masked",
        "schedule": "quadratic",
        "network": "Transformer, 3.53 k",
    }
    assert session.hparams["width"].number_value == 16
    assert session.hparams["learning_rate"].number_value == 0.003
    assert session.hparams["batch_size"].number_value == 8
    assert {info.name for info in experiment.hparam_infos} == set(session.hparams)
    first = [info.name for info in experiment.hparam_infos if info.differs]
    assert first == ["task", "source", "schedule", "network", "optimizer"]
    names = [(info.name.group, info.name.tag) for info in experiment.metric_infos]
    quality = "2_quality/error_rate/nfe_4"
    assert names == [("", "1_overview/val/bound"), ("euler", quality), ("tr_cie", quality)]
    for group, tag in names:
        assert tag in events(folder / group).Tags()["scalars"]


def test_runs_of_one_number_have_rows_of_their_own_in_hparams(tmp_path, monkeypatch):
    """TensorBoard averages the rows of one name, and cuts off the end of a long one."""
    from tauflow.evaluation.tensorboard import name_of_run

    monkeypatch.chdir(tmp_path)
    assert name_of_run(Path("checkpoints/text/version_1")) == "text/version_1 in checkpoints"
    assert name_of_run(tmp_path / "checkpoints/smoke/version_1") == "smoke/version_1 in checkpoints"
    assert name_of_run(Path("runs/smoke/version_1")) == "smoke/version_1 in runs"
    assert name_of_run(Path("/data/a/version_1")) == "a/version_1 in /data"


def test_what_is_long_is_not_shown(tmp_path):
    """A tokenizer, and a probability per token; and other loggers get the names of the HParams tab."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"the {number} of spades is a card" for number in range(400)))
    task = Text(files=str(corpus), tokenizer="characters", length=8, cache=str(tmp_path / "cache"))
    network = TransformerConfig(width=16, blocks=1, heads=2, time=True)
    module = tauflow.DFMModule(task.facts, source="marginal", network=network)
    place = {"save_dir": tmp_path, "name": "", "version": "run"}
    loggers = [TensorBoardLogger(**place), CSVLogger(**place | {"version": "csv"})]
    evaluation = tauflow.SamplerEvaluation(every_n_validations=0)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=1, callbacks=[evaluation], logger=loggers, limit_val_batches=0
    )
    trainer.fit(module, TaskData(task))
    said = text_of(tmp_path / "run", "1_overview/about_this_run")
    assert "Text: corpus.txt" in said
    assert "tokenizer_json" in said
    assert len(said) < 4000
    found = yaml.safe_load((tmp_path / "csv" / "hparams.yaml").read_text())
    assert (found["task"], found["source"], found["width"]) == ("Text", "marginal", 16)
    assert found["settings"]["task"]["length"] == 8


def test_a_run_without_evaluations_has_a_row_too(trained):
    tags = events(trained).PluginTagToContent("hparams")
    assert set(tags) == {"_hparams_/experiment", "_hparams_/session_start_info"}


def test_a_sampled_metric_is_the_monitor(watched):
    folder, printed = watched
    points = read_scalars(folder / "tr_cie")["error_rate/nfe_4"]
    step, value = min(points, key=lambda point: (point[1], point[0]))
    assert load_plain(folder / "best.ckpt")["global_step"] == step
    assert f"(sampling/error_rate/tr_cie/nfe_4 {value:.5g} at step {step})" in printed


def test_the_run_ends_with_a_table(watched):
    folder, printed = watched
    assert printed.count("┏") == 1, "one table"
    lines = printed.splitlines()
    sections = [line for line in lines if "is better)" in line]
    assert [line.split()[1] for line in sections] == ["error_rate", "nll"]
    rows = [line for line in lines if "│   tr_cie " in line]
    assert [row.count("±") for row in rows] == [2, 2]
    assert any("(real data)" in line for line in lines)
    assert f"results     {folder}/evaluation" in printed
    assert "note        trained for 24 steps only" in printed
    assert "python sample.py --task countdown" in printed
    assert (folder / "evaluation" / "quality_vs_nfe.png").exists()
    assert "tr_cie, NFE 4: error_rate" in (folder / "evaluation" / "samples.txt").read_text()


def test_the_evaluation_is_that_of_the_checkpoint(watched):
    """The numbers of the last evaluation come again from the checkpoint written after it: averaged weights,
    seeds and counts agree."""
    folder, _ = watched
    results = tauflow.evaluate(
        tauflow.load(folder / "last.ckpt"), ["euler", "tr_cie"], [2, 4], 6, batch_size=4, nll_items=4
    )
    again, logged = Frame(results), Frame(Results.read(folder / "evaluation"))
    for metric in METRICS:
        for row in ("euler", "tr_cie", *([REAL] if metric != "nll" else [])):
            for nfe in (2, 4):
                found = again.measured("", row, nfe, metric)
                assert logged.measured("", row, nfe, metric).value == pytest.approx(found.value, abs=1e-9)


def test_a_line_at_every_validation_without_a_terminal(watched):
    """Step, loss, bound, speed and time left, for a file or the log of a cluster."""
    _, printed = watched
    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == ["step 8 of 24", "step 16 of 24", "step 24 of 24"]
    for line in lines:
        for word in ("train/loss ", "val/bound ", " steps/s", " left"):
            assert word in line


def test_the_summary_says_what_is_trained(watched):
    _, printed = watched
    assert "network     Transformer, 3.53 k parameters" in printed
    assert "process     masked source" in printed
    assert "FLOPs" not in printed


def test_training_does_not_notice(watched, trained):
    """The same 24 steps without any evaluation: weights, averages, optimizer and logged losses are equal bit
    for bit."""
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
    with pytest.warns(UserWarning, match="broken, NFE 2: failed: RuntimeError: out of luck"):
        broken = in_process(tmp_path / "broken", "--evaluation.samplers=[broken,euler]")
    assert torch.equal(torch.get_rng_state(), state), (
        "what a sampler draws from the global generator is restored"
    )
    assert_equal(plain.model.state_dict(), broken.model.state_dict())
    folder = tmp_path / "broken" / "version_0"
    assert read_scalars(folder)["train/loss"] == read_scalars(tmp_path / "plain" / "version_0")["train/loss"]
    assert [step for step, _ in read_scalars(folder / "euler")["error_rate/nfe_2"]] == [8, 16]
    assert not (folder / "broken").exists() or "error_rate/nfe_2" not in read_scalars(folder / "broken")
    assert math.isnan(broken.trainer.callback_metrics["sampling/error_rate/broken/nfe_2"])


@pytest.mark.parametrize("part", ["compute", "reference", "save"])
def test_whatever_fails_in_an_evaluation_training_continues(tmp_path, monkeypatch, part):
    def fail(*args, **kwargs):
        raise OSError("no space left")

    where = {
        "compute": "tauflow.tasks.countdown.TransitionErrorRate.compute",
        "reference": "tauflow.evaluation.evaluate.reference_cell",
        "save": "tauflow.evaluation.callback.save_report",
    }
    monkeypatch.setattr(where[part], fail)
    if part == "reference":
        cli = in_process(tmp_path)
        table = (tmp_path / "version_0" / "evaluation" / "results.md").read_text()
        assert "real data: none: OSError: no space left" in table
    else:
        what = "can't be written" if part == "save" else "failed"
        said = rf"{what}: OSError: no space left \(test_callback.py, line \d+, in fail\)"
        with pytest.warns(UserWarning, match=said):
            cli = in_process(tmp_path)
    assert cli.trainer.global_step == 16
    measured = math.isfinite(cli.trainer.callback_metrics["sampling/error_rate/euler/nfe_2"])
    assert measured == (part != "compute"), "monitors are the same on all ranks, of which one writes"


def test_the_time_budget_is_kept_and_said(tmp_path):
    with pytest.warns(
        UserWarning, match="euler, NFE 2: skipped: the 1e-09 seconds of the evaluation were spent"
    ):
        cli = in_process(tmp_path, "--evaluation.max_seconds=1e-9")
    assert cli.trainer.global_step == 16
    assert "skipped: the 1e-09 seconds" in (tmp_path / "version_0" / "evaluation" / "results.md").read_text()


def test_every_n_validations_and_the_last(tmp_path):
    """Validations at 8, 16 and 24, the end at 28: evaluation at the first, the third and the end; monitors
    find a value at each."""
    stopping = "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping"  # stops at once at NaN
    monitor = "--trainer.callbacks.monitor=sampling/error_rate/euler/nfe_2"
    args = ["--trainer.max_steps=28", "--evaluation.every_n_validations=2", "--evaluation.nfes=[2]"]
    cli = in_process(tmp_path, *args, stopping, monitor, "--trainer.callbacks.patience=9")
    scalars = read_scalars(tmp_path / "version_0" / "euler")
    assert [step for step, _ in scalars["error_rate/nfe_2"]] == [8, 24, 28]
    assert cli.trainer.global_step == 28


@pytest.mark.slow
def test_a_resumed_run_continues_its_curves(watched, tmp_path):
    folder = tmp_path / "version_0"
    shutil.copytree(watched[0], folder)
    args = ["--trainer.max_steps=32", f"--ckpt_path={folder}/last.ckpt"]
    args += ["--checkpoints.monitor=sampling/error_rate/tr_cie/nfe_4"]
    result = run_train(*WATCH, f"--trainer.default_root_dir={tmp_path}", *args, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [step for step, _ in read_scalars(folder / "euler")["error_rate/nfe_2"]] == [8, 16, 24, 32]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--evaluation.samplers=[eulr]"], "unknown sampler 'eulr'"),
        (
            ["--evaluation.samplers=[fhs]", "--model.source=uniform", "--model.network.time=true"],
            "fhs: .* need a masked source, this model has a uniform one",
        ),
        (
            ["--checkpoints.monitor=sampling/error_rate/tr_cie/nfe_5"],
            "Logged were: sampling/error_rate/euler/nfe_2",
        ),
    ],
)
def test_bad_settings_are_refused_before_training(args, message, tmp_path):
    from tauflow.errors import TauflowError

    with pytest.raises((TauflowError, ValueError), match=message):
        in_process(tmp_path, *args)
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.slow
def test_two_processes_share_the_samples(tmp_path):
    """Seven samples in batches of two: four batches, two for each rank, and exactly seven samples counted.
    The five items of nll are shared too, and have the numbers that they have in one process."""
    args = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=8"]
    args += [
        "--evaluation.num_samples=7",
        "--evaluation.batch_size=2",
        "--evaluation.nll_items=5",
        f"--trainer.default_root_dir={tmp_path}",
    ]
    result = run_train(*WATCH, *args, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    cells = cells_of(tmp_path / "version_0")
    assert [cell["samples"] for cell in cells.values()] == [7] * 4
    assert [cell["counted_nfe"] for cell in cells.values()] == [2, 2, 4, 4]
    assert [step for step, _ in read_scalars(tmp_path / "version_0" / "euler")["error_rate/nfe_2"]] == [8]
    last = tauflow.load(tmp_path / "version_0" / "last.ckpt")
    alone = tauflow.evaluate(last, ["euler", "tr_cie"], [2, 4], 2, batch_size=2, nll_items=5)
    shared = Results.read(tmp_path / "version_0" / "evaluation")
    for one, two in zip(alone.cells[1:], shared.cells[1:], strict=True):
        assert two.factors == one.factors
        assert two.items["nll"] == pytest.approx(one.items["nll"])
    assert result.stdout.count("error_rate (lower is better)") == 1, "printed by one process"


def test_auto_and_variants_in_training(tmp_path):
    """`auto` is the recommended sampler of the process, as in the library; a variant has a run of its own."""
    specs = "--evaluation.samplers=[auto, tr_cie, 'tr_cie(grid=tau)']"
    cli = in_process(tmp_path, specs, "--evaluation.nfes=[4]", "--evaluation.every_n_validations=9")
    folder = tmp_path / "version_0"
    recommended = cli.model.process.recommended
    assert list(cells_of(folder)) == [(recommended, 4), ("tr_cie", 4), ("tr_cie(grid=tau)", 4)]
    for row in (recommended, "tr_cie", "tr_cie(grid=tau)"):
        assert "error_rate/nfe_4" in read_scalars(folder / row)
    assert "sampling/error_rate/tr_cie(grid=tau)/nfe_4" in cli.trainer.callback_metrics
    monitor = cli.trainer.callback_metrics["sampling/nll/tr_cie/nfe_4"]
    assert monitor.item() == pytest.approx(cells_of(folder)["tr_cie", 4]["nll"])
    alone = tauflow.evaluate(tauflow.load(folder / "last.ckpt"), nfes=4, num_samples=6, batch_size=4)
    found = Frame(alone).measured("", recommended, 4, "error_rate").value
    assert cells_of(folder)[recommended, 4]["error_rate"] == pytest.approx(found, abs=1e-9)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """The folder of a run on countdown with labels, evaluated with two guidance weights."""
    folder = tmp_path_factory.mktemp("labelled")
    task = [
        "--data=tauflow.tasks.LabelledCountdown",
        "--data.length=16",
        "--data.values=6",
        "--data.batch_size=8",
    ]
    task += ["--data.epoch_items=64", "--data.val_items=12"]
    smaller = [word for word in WATCH if not word.startswith("--data.")]
    args = ["--evaluation.guidance=[1, 2]", "--evaluation.samplers=[tr_cie]", "--trainer.max_steps=8"]
    cli = TauflowCLI([*smaller, *task, *args, f"--trainer.default_root_dir={folder}"])
    cli.fit()
    return folder / "version_0"


def test_conditions_and_guidance_in_tables_and_tensorboard(labelled):
    plain, guided = (labelled / f"tr_cie, guidance {weight}" for weight in (1, 2))
    for folder, forwards in ((plain, 4), (guided, 8)):
        scalars = read_scalars(folder)
        assert scalars["steps/forwards/nfe_4"] == [(8, forwards)]
        for label in (1, 2, 3):
            assert f"error_rate_step_{label}/nfe_4" in scalars, "the error rate of each condition"
        shown = text_of(folder, "4_samples/nfe_4")
        assert re.search(r"^ +step [123]$", shown, re.MULTILINE), "a sample says what it was asked to be"
    table = (labelled / "evaluation" / "results.md").read_text()
    assert "| tr_cie, guidance 2 |" in table
    assert "error_rate_step_3 by NFE" in table
    assert re.search(r"^step [123]$", (labelled / "evaluation" / "samples.txt").read_text(), re.MULTILINE)


def test_a_condition_from_the_command_line(labelled, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ask = ["--ckpt", str(labelled / "last.ckpt"), "--nfe", "4", "--num_samples", "6", "--accelerator", "cpu"]
    with pytest.raises(SystemExit) as stop:
        sample_cli(
            [*ask, "--condition", "2", "--guidance", "1", "3", "--out", str(tmp_path), "--tensorboard"]
        )
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "condition of all samples: step 2" in printed
    header = next(line for line in printed.splitlines() if "┃ sampler" in line)
    assert "error_rate_step_2 ↓" in header
    assert "error_rate_step_1" not in header, "nobody was asked for it"
    results = Results.read(tmp_path)
    assert results.settings["condition"] == "2"
    for cell in results.cells:
        assert cell.shown is None or cell.shown.condition == [[1]] * 4
    row = (
        labelled / "sampled" / f"{tauflow.load(labelled / 'last.ckpt').model.process.recommended}, guidance 3"
    )
    assert "error_rate_step_2/nfe_4" in read_scalars(row)
    assert "step 2" in text_of(row, "4_samples/nfe_4")
    with pytest.raises(SystemExit) as stop:
        sample_cli([*ask, "--condition", "4"])
    assert "its step, 1 to 3, got '4'" in str(stop.value.code)
