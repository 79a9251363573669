"""The contract of the house: a source, a sampler with an option, a network, and a task with pictures and
labels, each at most 40 lines outside the package, go through train -> checkpoint -> sample.py -> table ->
TensorBoard."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ENV, ROOT, read_scalars, run_train
from forked import run_script

from tauflow.cli.sample import sample as sample_cli

FILES = sorted((ROOT / "tests" / "extensions").glob("*.py"))
SAMPLER = "my_sampler.py:LeftToRight(stride=2)"
LABEL = "my_sampler.LeftToRight(stride=2)"


CONFIG = f"""
data: my_task.Stripes
model:
  network:
    class_path: my_network.MeanConfig
    init_args:
      width: 8
trainer:
  default_root_dir: runs
  max_steps: 8
  accelerator: cpu
evaluation:
  samplers: [auto, '{SAMPLER}']
  guidance: [1, 2]
  nfes: [4]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of a user with four files of their own, in which a tiny run with all but the source has
    ended."""
    folder = tmp_path_factory.mktemp("user")
    for path in FILES:
        shutil.copy(path, folder)
    (folder / "stripes.yaml").write_text(CONFIG)
    result = run_train("-c", "stripes.yaml", cwd=folder)
    assert result.returncode == 0, result.stderr + result.stdout
    return folder


def run_sample(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return run_script(ROOT / "sample.py", "--no_progress", *arguments, cwd=folder, env=ENV)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_extension_takes_at_most_40_lines(path):
    assert len(path.read_text().splitlines()) <= 40


@pytest.mark.slow
def test_training_evaluates_the_users_sampler_and_shows_pictures(folder):
    run = folder / "runs" / "version_0"
    assert (run / "best.ckpt").exists()
    tags = read_scalars(run / f"{LABEL}, guidance 2")
    assert "wrong/nfe_4" in tags
    assert (run / "evaluation" / "samples.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((run / "evaluation" / "results.json").read_text())
    cells = [cell["factors"] for cell in results["cells"]]
    assert {"sampler": LABEL, "nfe": 4, "guidance": 2.0} in cells
    forwards = {
        cell["factors"]["guidance"]: {name: value for name, value, *_ in cell["records"]}["forwards"]
        for cell in results["cells"]
        if cell["factors"]["sampler"] == LABEL
    }
    assert forwards == {1.0: 4, 2.0: 8}, "one evaluation with guidance is two forwards, both counted"


@pytest.mark.slow
def test_sample_py_takes_them_all(folder):
    checkpoint = "runs/version_0/best.ckpt"
    asked = ("--sampler", SAMPLER, "spaced", "--nfe", "4", "6", "--num_samples", "8")
    arguments = ["--ckpt", checkpoint, *asked]
    refused = run_sample(folder, *arguments)
    assert refused.returncode == 1
    assert "my_task.Stripes" in refused.stderr
    assert "Traceback" not in refused.stderr
    own = ["--classes", "my_task.Stripes", "my_network.py:MeanConfig"]
    done = run_sample(folder, *arguments, *own, "--condition", "1", "--out", "out", "--tensorboard")
    assert done.returncode == 0, done.stderr + done.stdout
    assert LABEL in done.stdout
    assert (folder / "out" / "samples.png").exists()
    assert LABEL in (folder / "out" / "results.md").read_text()
    scalars = read_scalars(folder / "runs" / "version_0" / "sampled" / LABEL)
    assert [step for step, _ in scalars["wrong_vs_nfe"]] == [4, 6]


@pytest.mark.slow
def test_a_source_of_ones_own_trains_resumes_and_samples(folder):
    tiny = [
        *("-c", str(ROOT / "configs" / "countdown.yaml"), "-c", str(ROOT / "configs" / "smoke.yaml")),
        *("--data.length=8", "--data.values=5", "--model.network.width=16", "--model.network.time=true"),
        *(
            "--model.source=my_source.Sloping",
            "--trainer.default_root_dir=sloping",
            "--trainer.accelerator=cpu",
        ),
        *("--evaluation.samplers=[auto, tr_cie, tweedie_d3pm]", "--trainer.enable_progress_bar=false"),
    ]
    first = run_train(*tiny, "--trainer.max_steps=8", cwd=folder)
    assert first.returncode == 0, first.stderr + first.stdout
    resumed = run_train(*tiny, "--trainer.max_steps=12", "--ckpt_path=last", cwd=folder)
    assert resumed.returncode == 0, resumed.stderr + resumed.stdout
    checkpoint = "sloping/version_0/last.ckpt"
    done = run_sample(
        folder, "--ckpt", checkpoint, "--classes", "my_source.Sloping", "--sampler", "auto", "euler"
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "sloping source" in done.stdout
    assert "renoise" in done.stdout


@pytest.mark.slow
def test_bad_names_get_a_sentence(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    checkpoint = str(ROOT / "checkpoints" / "shipped" / "countdown_masked.ckpt")
    for spec, message in (
        ("my_sampler.py:LeftToRight(stide=2)", "has no option 'stide'; did you mean stride?"),
        ("my_sampler.py:LeftToRight(stride=two)", "stride must be a whole number, got 'two'"),
    ):
        with pytest.raises(SystemExit) as stop:
            sample_cli(["--ckpt", checkpoint, "--sampler", spec, "--no_progress"])
        assert message in str(stop.value)
    assert os.getcwd() == str(folder)
