"""The documented commands are the tested commands."""

import re
import shlex
import shutil
import time

import pytest
import torch
from conftest import ENV, ROOT, run_train
from forked import run_script
from PIL import Image

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.strip()
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", README, re.S)
    for line in block.splitlines()
    if line.strip()
]
SHRUNK = [
    *("--data.batch_size=2", "--data.epoch_items=8", "--data.val_items=4", "--trainer.max_steps=4"),
    *("--model.network.width=16", "--model.network.blocks=1"),
    *("--evaluation.nfes=[2]", "--evaluation.num_samples=2"),
]


def arguments_of(command: str, script: str) -> list[str]:
    return shlex.split(command.split(f"python {script}", 1)[1], comments=True)


def test_the_two_commands_are_there_and_ci_runs_the_second():
    assert "pip install -c constraints.txt -e . && python train.py" in COMMANDS
    test_command = "pip install -c constraints.txt -e '.[dev]' && pytest"
    assert test_command in COMMANDS
    assert f"\n{test_command} || exit 1\n" in (ROOT / ".ci" / "run").read_text()


def write_data(folder):
    """Write what the commands read: a text, a table with a column of strings, and a folder of images."""
    (folder / "data").mkdir()
    (folder / "data" / "README.md").write_text((ROOT / "README.md").read_text())
    parts = [f"DIO-{number:04d}-{number % 10}{'AB'[number % 2]}" for number in range(200)]
    (folder / "parts.csv").write_text("\n".join(["part", *parts]))
    (folder / "FOLDER").mkdir()
    for number in range(20):
        image = Image.new("L", (8, 8), color=number)
        image.save(folder / "FOLDER" / f"{number}.png")


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if re.search(r"python train\.py -", c)])
def test_train_commands_of_the_readme(command, tmp_path):
    """Every train.py command of the README runs as it is, shrunk by flags; the smoke run is not shrunk."""
    args = arguments_of(command, "train.py")
    write_data(tmp_path)
    begin = time.monotonic()
    if "smoke" not in args and "--help" not in args:
        args += SHRUNK
    if "--init_from" in args:  # which decides the network
        args = [arg for arg in args if "network" not in arg]
    if "--ckpt_path" in args:
        first = args.index("--ckpt_path")
        run_train(*args[:first], *SHRUNK, cwd=tmp_path)
        args += ["--trainer.max_steps=8"]
    result = run_train(*args, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - begin < 90
    if "--help" not in args:
        assert "tensorboard --logdir checkpoints/" in result.stdout
        assert re.search(r"best\s+checkpoints/\S+/version_0/best\.ckpt", result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if re.search(r"python sample\.py\b", c)])
def test_sample_commands_of_the_readme(command, tmp_path, trained):
    """As they are, with fewer samples; the checkpoint is a tiny one with values 0 to 5."""
    run = tmp_path / "checkpoints" / "countdown" / "version_0"
    shutil.copytree(trained, run)
    args = [arg.replace("31 30 _ 28", "5 4 _ 2") for arg in arguments_of(command, "sample.py")]
    shrunk = ["--num_samples", "2", "--nll_items", "2"]
    if "--nfe" not in args:
        shrunk += ["--nfe", "4"]
    if "--help" in args:
        shrunk = []
    result = run_script(ROOT / "sample.py", *args, *shrunk, cwd=tmp_path, env=ENV)
    assert result.returncode == 0, result.stderr
    if "--out" in args:
        assert (tmp_path / args[args.index("--out") + 1] / "quality_vs_nfe.png").exists()
    if "--tensorboard" in args:
        assert (run / "sampled").is_dir()


def test_metric_of_the_docs():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "monitoring.md").read_text(), re.S)
    names = {}
    exec(compile(example, "monitoring.md", "exec"), names)
    metric = names["Zeros"]()
    metric.update(torch.tensor([[0, 1], [0, 0]]))
    assert [number.item() for number in metric.compute()] == pytest.approx([0.75, 0.25])


@pytest.mark.slow
def test_python_examples_of_the_readme(monkeypatch, capsys):
    """As they are, one after the other, from the folder of the project, with fewer samples."""
    example = "".join(re.findall(r"```python\n(.*?)```", README, re.S))
    assert "num_samples=32" in example
    example = example.replace("num_samples=32", "num_samples=2, nll_items=2")
    monkeypatch.chdir(ROOT)
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["tokens"].shape == (2, 8)
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) >= 5
    assert "error_rate" in shown
    assert "tr_cie" in shown
