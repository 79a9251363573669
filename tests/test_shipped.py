"""The shipped countdown models: whole, small, safe to load; and samplers on models that are really trained."""

import hashlib
import shutil

import pytest
import torch
import yaml
from conftest import load_plain

import tauflow
from tauflow.cli import sampling
from tauflow.evaluation import choose_samplers, evaluate
from tauflow.runs import SHIPPED

SOURCES = ["masked", "uniform"]


@pytest.fixture(scope="module", params=SOURCES)
def run(request):
    return tauflow.load(SHIPPED / f"countdown_{request.param}.ckpt")


@pytest.mark.parametrize("source", SOURCES)
def test_the_files_are_what_they_say(source):
    path = SHIPPED / f"countdown_{source}.ckpt"
    sums = dict(reversed(line.split()) for line in (SHIPPED / "SHA256SUMS").read_text().splitlines())
    for file in SHIPPED.glob(f"{path.stem}.*"):
        assert hashlib.sha256(file.read_bytes()).hexdigest() == sums[file.name]
    assert path.stat().st_size <= 8e6
    contents = load_plain(path)  # weights_only=True
    assert all(name.startswith("ema.") for name in contents["state_dict"])
    config = yaml.safe_load(path.with_suffix(".yaml").read_text())
    assert config["model"]["source"] == source
    assert config["model"]["schedule"] == "quadratic"
    assert (config["data"]["init_args"]["length"], config["data"]["init_args"]["values"]) == (256, 32)
    assert config["trainer"]["max_steps"] == contents["global_step"]


def test_export_keeps_the_denoiser_and_drops_the_rest(trained, tmp_path):
    tauflow.export(trained / "best.ckpt", tmp_path / "small.ckpt")
    whole, small = tauflow.load(trained / "best.ckpt"), tauflow.load(tmp_path / "small.ckpt")
    x, t = torch.full((1, 16), 6), torch.tensor([0.5])
    assert torch.equal(whole.denoiser.evaluate(x, t).dense(), small.denoiser.evaluate(x, t).dense())
    assert (tmp_path / "small.ckpt").stat().st_size < (trained / "best.ckpt").stat().st_size / 3
    assert small.step == whole.step


def test_sample_without_a_run_takes_the_shipped_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sampling, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as stop:
        sampling.sample(["--num_samples", "2", "--accelerator", "cpu", "--no_progress"])
    printed = capsys.readouterr().out
    assert stop.value.code == 0
    assert "countdown_masked.ckpt" in printed
    assert f"{sampling.RECOMMENDED['masked']}, NFE 32: error_rate 0.0" in printed, "a trained model: under a tenth of the transitions"


def test_a_run_of_your_own_comes_first(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "checkpoints" / "countdown" / "version_0")
    assert sampling.newest_checkpoint() == (tmp_path / "checkpoints/countdown/version_0/best.ckpt").relative_to(tmp_path)


def test_tr_cie_beats_euler_on_the_uniform_model():
    """At NFE 8, by more than three standard errors of the difference; 16 samples hold 4080 transitions."""
    table = evaluate(tauflow.load(SHIPPED / "countdown_uniform.ckpt"), "euler,tr_cie", [8], 16, batch_size=16, show=0, real={})
    euler, ours = (table.measured("error_rate", name, 8) for name in ("euler", "tr_cie"))
    assert euler.value - ours.value > 3 * (euler.standard_error**2 + ours.standard_error**2) ** 0.5


def test_the_recommended_sampler_beats_tr_cie_on_the_masked_model():
    """At NFE 16, by more than three standard errors of the difference: 6.5 % against 0.3 % in docs/results/countdown."""
    ours = sampling.RECOMMENDED["masked"]
    table = evaluate(tauflow.load(SHIPPED / "countdown_masked.ckpt"), f"tr_cie,{ours}", [16], 16, batch_size=16, show=0, real={})
    theirs, ours = (table.measured("error_rate", name, 16) for name in ("tr_cie", ours))
    assert theirs.value - ours.value > 3 * (theirs.standard_error**2 + ours.standard_error**2) ** 0.5


def test_errors_fall_with_the_budget(run):
    """From NFE 8 to 64, for every sampler."""
    names = list(choose_samplers("all", run)[0])
    table = evaluate(run, names, [8, 64], 2, batch_size=2, show=0, real={})
    for name in names:
        few, many = (table.measured("error_rate", name, nfe).value for nfe in (8, 64))
        assert many < few, name
