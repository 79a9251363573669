"""`tauflow ...`: commands by name, configurations by name, and what a wheel contains."""

import runpy
import signal
import subprocess
import sys
import tomllib

import pytest
from conftest import ENV, ROOT

from tauflow.cli.commands import main
from tauflow.cli.configs import CONFIGS, find_config
from tauflow.errors import SettingsError, program


def python(*words, cwd, timeout=120):
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=ENV, capture_output=True, text=True, timeout=timeout)


def tauflow(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["tauflow", *words])
    main()


def test_the_list_of_commands_needs_no_torch(tmp_path):
    code = "import sys; sys.argv = ['tauflow', '--help']; import tauflow.cli.commands as c; c.main(); "
    shown = python("-c", f"{code}print('TORCH', 'torch' in sys.modules)", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for text in ("tauflow train", "tauflow sample", "tauflow configs", "TORCH False"):
        assert text in shown.stdout


def test_an_unknown_command(monkeypatch):
    with pytest.raises(SystemExit, match="Unknown command smaple"):
        tauflow(monkeypatch, "smaple")


@pytest.mark.parametrize("name", ["train", "sample"])
def test_modules_run(name, monkeypatch, capsys):
    """`python -m tauflow.cli.train` isn't silent."""
    monkeypatch.setattr("sys.argv", [name, "--help"])
    runpy.run_module(f"tauflow.cli.{name}", run_name="__main__")
    assert "Examples" in capsys.readouterr().out


def test_train_and_sample_by_name(monkeypatch, tmp_path, capfd):
    """In a folder without the repository, configurations are found by name, and hints name the command."""
    monkeypatch.chdir(tmp_path)
    small = ("--data.length=8", "--data.values=4", "--model.network.width=16", "--trainer.max_steps=2")
    flags = ("--trainer.accelerator=cpu", "--evaluation.every_n_validations=0", "--data.epoch_items=8")
    with pytest.raises(SystemExit) as stop:
        tauflow(monkeypatch, "train", "-c", "countdown", "--config=smoke", *small, *flags)
    assert stop.value.code == 0
    assert (tmp_path / "checkpoints" / "smoke" / "version_0" / "best.ckpt").exists()
    printed = capfd.readouterr()
    assert "Seed set to" not in printed.err + printed.out
    assert "`Trainer.fit` stopped" not in printed.err + printed.out
    with pytest.raises(SystemExit) as stop:
        tauflow(
            monkeypatch, "sample", "--nfe", "2", "--num_samples", "2", "--accelerator=cpu", "--out", "out"
        )
    assert stop.value.code == 0
    assert '"tauflow sample --nfe 2' in (tmp_path / "out" / "results.json").read_text()


def test_a_page_may_be_cut():
    """As by `| head`, which reads a part and closes the pipe."""
    command = [sys.executable, "-u", "-m", "tauflow", "sample", "--help"]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_a_local_file_wins(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert find_config("countdown") == CONFIGS / "countdown.yaml"
    (tmp_path / "countdown").mkdir()  # a folder isn't a configuration
    assert find_config("countdown") == CONFIGS / "countdown.yaml"
    (tmp_path / "smoke").write_text("trainer: {max_steps: 1}")
    assert find_config("smoke").read_text() == "trainer: {max_steps: 1}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("contdown", "Did you mean -c countdown?.*cifar10_cosine, .*text_uniform_gpt2"),
        ("configs/smoke.yaml", "-c smoke is the one that comes with tauflow"),
    ],
)
def test_unknown_configurations(name, expected, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=f"Configuration file not found: {name}.*{expected}"):
        find_config(name)


def test_configs_are_listed(monkeypatch, capsys):
    tauflow(monkeypatch, "configs")
    printed = capsys.readouterr().out
    names = {path.stem for path in CONFIGS.glob("*.yaml")}
    assert names <= set(printed.split())
    assert "countdown             Countdown from a masked source" in printed
    assert "images                Your own images from a folder\n" in printed
    assert "python" not in printed, "what a configuration is, not how to use it"
    assert all(len(line) <= 100 for line in printed.splitlines()[:-1])


def test_a_wheel_has_every_package():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {path.parent.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*.py")}
    assert set(listed) == {".".join(folder.parts) for folder in found} | {"tauflow.configs"}


def test_hints_name_the_program_that_runs(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/train.py"])
    assert program("sample") == "python sample.py"
    for started in ("/somewhere/bin/tauflow", "/somewhere/tauflow/cli/train.py", "/somewhere/mine.py"):
        monkeypatch.setattr("sys.argv", [started, "train"])
        assert program("sample") == "tauflow sample"
