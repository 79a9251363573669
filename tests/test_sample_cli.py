"""sample.py: what it prints, what it writes, what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import ENV, ROOT, load_plain, wait_for

import tauflow.cli.sampling
from tauflow.tables import Table

FILES = ["quality_vs_nfe.png", "results.csv", "results.json", "results.md", "samples.txt"]


def command(*args):
    return [sys.executable, str(ROOT / "sample.py"), *map(str, args)]


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Runs sample.py's entry point in this process; returns (exit code or message, what it printed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*args):
        with pytest.raises(SystemExit) as stop:
            tauflow.cli.sampling.sample([*map(str, args), "--accelerator=cpu"] if "--device" not in args else [*map(str, args)])
        return stop.value.code, capfd.readouterr().out

    return run


def test_no_arguments_take_the_best_of_the_newest_run(call, trained, tmp_path):
    for version, age in ((0, 100), (1, 0)):
        folder = tmp_path / "checkpoints" / "countdown" / f"version_{version}"
        shutil.copytree(trained, folder)
        for path in folder.iterdir():
            os.utime(path, (time.time() - age, time.time() - age))
    result = subprocess.run(command(), cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "checkpoints/countdown/version_1/best.ckpt" in result.stdout
    assert "spaced_even, NFE 32: error_rate" in result.stdout
    assert "error_rate by NFE" in result.stdout
    shown = result.stdout.split("samples\n\n")[1].split("\n\n")
    assert len(shown[0].split()) == 16


def test_a_grid_is_written(call, trained, tmp_path):
    out = tmp_path / "new" / "out"
    grid = ["--ckpt", trained / "best.ckpt", "--sampler", "tr-cie,euler", "--nfe", "4,2", "--batch_size", 4, "--out", out]
    code, printed = call(*grid, "--num_samples", 10)
    assert code == 0
    assert sorted(path.name for path in out.iterdir()) == FILES
    results = json.loads((out / "results.json").read_text())
    assert [(cell["sampler"], cell["nfe"]) for cell in results["cells"]] == [("tr_cie", 2), ("euler", 2), ("tr_cie", 4), ("euler", 4)]
    for cell in results["cells"]:
        assert (cell["samples"], cell["counted_nfe"]) == (10, cell["nfe"])
        assert cell["seconds"] > 0
        assert set(cell["metrics"]["error_rate"]) >= {"value", "standard_error"}
    assert results["settings"]["seed"] == 0
    assert results["versions"]["torch"]
    assert "| tr_cie |" in (out / "results.md").read_text()
    assert (out / "samples.txt").read_text().count("over 10 samples") == 4
    assert printed.count("±") >= 4
    assert f"written to  {out}" in printed

    code, printed = call(*grid, "--num_samples", 10)
    assert code == 0
    assert "which has 4 of 4 cells" in printed
    code, _ = call(*grid, "--num_samples", 11)
    assert "holds results with other settings (num_samples: 10 there, 11 now); choose another --out" in code


def test_an_interrupted_grid_goes_on_where_it_stopped(trained, tmp_path):
    """Ctrl-C in the middle: whole files with the finished cells remain; the same command ends with the numbers of an undisturbed run."""
    args = [
        "--ckpt",
        trained / "best.ckpt",
        "--sampler",
        "euler,tr_cie,tweedie",
        "--nfe",
        "8,16,32,64",
        "--num_samples",
        60,
        "--batch_size",
        30,
    ]
    process = subprocess.Popen(command(*args, "--out", tmp_path / "a"), env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "a" / "results.json", process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command goes on where it stopped" in errors
    finished = [(cell.sampler, cell.nfe) for cell in Table.read(tmp_path / "a").cells]
    assert 1 <= len(finished) < 12

    result = subprocess.run(command(*args, "--out", tmp_path / "a"), env=ENV, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert f"which has {len(finished)} of 12 cells" in result.stdout
    table = Table.read(tmp_path / "a")
    assert len(table.cells) == 12
    run = tauflow.load(trained / "best.ckpt")
    other = next(cell for cell in table.cells if (cell.sampler, cell.nfe) not in finished)
    for name, nfe in (finished[0], (other.sampler, other.nfe)):
        alone = tauflow.evaluate(run, name, [nfe], 60, batch_size=30)
        assert table.cell(name, nfe).metrics == alone.cell(name, nfe).metrics


def test_two_devices_draw_the_same_samples(trained, tmp_path):
    args = [
        "--ckpt",
        trained / "best.ckpt",
        "--sampler",
        "tr_cie,fhs",
        "--nfe",
        "4",
        "--num_samples",
        7,
        "--batch_size",
        2,
        "--accelerator",
        "cpu",
    ]
    for devices in (1, 2):
        out = tmp_path / str(devices)
        result = subprocess.run(command(*args, "--devices", devices, "--out", out), env=ENV, capture_output=True, text=True, timeout=240)
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("written to") == 1
    one, two = Table.read(tmp_path / "1"), Table.read(tmp_path / "2")
    for left, right in zip(one.cells, two.cells, strict=True):
        assert left.samples == right.samples == 7
        assert left.shown == right.shown
        for metric, found in left.metrics.items():
            assert right.metrics[metric].value == pytest.approx(found.value)
            assert right.metrics[metric].standard_error == pytest.approx(found.standard_error)


def test_prompt_temperature_guidance_and_precision(call, trained):
    best = trained / "best.ckpt"
    code, printed = call("--ckpt", best, "--nfe", 4, "--num_samples", 3, "--show", 3, "--prompt", "5 4 _ 2", "--temperature", 0.7)
    assert code == 0
    for sample in printed.split("over 3 samples\n\n")[1].split("\n\n")[:3]:
        words = [word.strip("!") for word in sample.split()]
        assert (words[0], words[1], words[3]) == ("5", "4", "2")
    assert call("--ckpt", best, "--nfe", 4, "--num_samples", 2, "--guidance", best, "--guidance_weight", 1.5)[0] == 0
    assert call("--ckpt", best, "--nfe", 4, "--num_samples", 2, "--precision", "bf16-mixed", "--device", "cpu")[0] == 0


def test_finished_cells_are_never_lost(call, trained, tmp_path, monkeypatch):
    """A failed cell is made again; an interruption right then leaves the finished ones that come after it."""
    from tauflow.samplers import SAMPLERS

    args = ["--ckpt", trained / "best.ckpt", "--sampler", "euler,tr_cie", "--nfe", "2,3", "--num_samples", 2, "--out", tmp_path / "out"]
    good = SAMPLERS["euler"]
    with monkeypatch.context() as patch:
        patch.setattr(type(good()), "step", _fail_for_euler(RuntimeError("unlucky")))
        assert call(*args)[0] == 1
    assert [cell.sampler for cell in Table.read(tmp_path / "out").cells if not cell.problem] == ["tr_cie", "tr_cie"]
    with monkeypatch.context() as patch:
        patch.setattr(type(good()), "step", _fail_for_euler(KeyboardInterrupt()))
        assert call(*args)[0] == 130
    assert [cell.sampler for cell in Table.read(tmp_path / "out").cells if not cell.problem] == ["tr_cie", "tr_cie"]
    assert call(*args)[0] == 0
    assert len(Table.read(tmp_path / "out").cells) == 4


def _fail_for_euler(error):
    from tauflow.samplers.leaping import Leaping

    step = Leaping.step

    def failing(self, *args):
        if self.rule == "euler":
            raise error
        return step(self, *args)

    return failing


def test_infinite_options_can_be_resumed(call, trained, tmp_path):
    args = [
        "--ckpt",
        trained / "best.ckpt",
        "--sampler",
        "tr_cie",
        "--nfe",
        2,
        "--num_samples",
        2,
        "--ceiling",
        "inf",
        "--out",
        tmp_path / "out",
    ]
    assert call(*args)[0] == 0
    assert call(*args)[0] == 0


def test_bad_requests(call, trained, tmp_path, monkeypatch):
    best = trained / "best.ckpt"
    (tmp_path / "file").write_text("")
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    for args, expected in [
        (["--ckpt", "missing.ckpt"], "no checkpoint at missing.ckpt"),
        (["--ckpt", tmp_path / "foreign.ckpt"], "was not written by tauflow's train.py"),
        (["--ckpt", best, "--sampler", "eulr"], "unknown sampler 'eulr'"),
        (["--ckpt", best, "--nfe", "0"], "whole number of at least 1"),
        (["--ckpt", best, "--num_samples", "0"], "num_samples >= 1"),
        (["--ckpt", best, "--theta", "0.3"], "none of spaced_even has the option theta"),
        (
            ["--ckpt", best, "--sampler", "tr_cie", "--grid", "tau", "--cutoff", "2"],
            "tr_cie: cutoff = 1 - kappa at the end",
        ),
        (["--ckpt", best, "--prompt", "9"], "values 0 to 5"),
        (["--ckpt", best, "--prompt", "1 " * 17], "leave 1 out"),
        (["--ckpt", best, "--out", tmp_path / "file"], "cannot write to"),
        (["--ckpt", best, "--guidance_weight", "2"], "needs --guidance"),
        (["--ckpt", best, "--device", "tpu:0"], "cannot compute on tpu:0"),
        (["--ckpt", best, "--device", "cpu:x"], "such as cuda:1"),
        (["--ckpt", best, "--precision", "16-mixed"], "needs a GPU"),
        (["--ckpt", best, "--temperature", "nan"], "temperature must be above 0"),
        (["--ckpt", best, "--infill", "1 __ 3"], "leave --infill out"),
        (["--ckpt", best, "--judge", "ngram"], "leave --judge out"),
        (["--ckpt", best, "--device", "cpu", "--devices", "2"], "--device names one device"),
        (["--ckpt", best, "--show", "-1"], "--show"),
        (["--ckpt", best, "--temperature", "0"], "temperature must be above 0"),
    ]:
        code, _ = call(*args)
        assert isinstance(code, str), args
        assert expected in code, args
    monkeypatch.setattr(tauflow.cli.sampling, "ROOT", tmp_path)  # else a run beside sample.py would be found
    monkeypatch.setattr(tauflow.cli.sampling, "SHIPPED", tmp_path)
    assert "there is no checkpoint under checkpoints/" in call()[0]


def test_a_sampler_that_the_source_does_not_support(call, tmp_path, trained):
    from tauflow.checkpoints import KEY

    checkpoint = load_plain(trained / "best.ckpt")
    init = checkpoint[KEY]["model"]["init_args"]
    init["source"] = "uniform"
    key = "ema.network.embedding.weight"
    names = [name for name in checkpoint["state_dict"] if name.startswith("ema.") and checkpoint["state_dict"][name].shape[:1] == (7,)]
    assert names, f"the embedding has a row for the mask ({key})"
    for name in names:
        checkpoint["state_dict"][name] = checkpoint["state_dict"][name][:6]
    torch.save(checkpoint, tmp_path / "uniform.ckpt")
    code, _ = call("--ckpt", tmp_path / "uniform.ckpt", "--sampler", "fhs")
    assert "fhs does not support the uniform source of this model; try one of euler" in code
    code, printed = call("--ckpt", tmp_path / "uniform.ckpt", "--sampler", "paper", "--nfe", "2", "--num_samples", "2")
    assert code == 0
    assert "ho_fhs is left out" in printed


def test_help_reads_like_documentation():
    shown = subprocess.run(command("--help"), env=ENV, capture_output=True, text=True, timeout=60).stdout
    for text in ("python sample.py --sampler tr_cie,euler", "theta_trapezoidal", "ablation =", "--out", "--guidance_weight", "--devices"):
        assert text in shown
