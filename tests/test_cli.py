"""What the command line accepts and what it says when it does not."""

import shutil

import pytest
import torch
import yaml
from conftest import ROOT, TINY, load_plain, run_train

from tauflow.checkpoints import build, describe
from tauflow.cli.training import TauflowCLI, train
from tauflow.runs import CLASSES

CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.yaml") if "gpt2" not in path.stem)  # these need the hub: see test_text.py
OVERLAYS = ["smoke"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_instantiates(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = ["-c", str(ROOT / "configs" / "countdown.yaml")] if config.stem in OVERLAYS else []
    monkeypatch.setattr("sys.argv", ["train.py", *base, "-c", str(config)])
    cli = TauflowCLI()
    assert cli.model.num_tokens == cli.datamodule.num_tokens
    assert cli.model.seq_len == cli.datamodule.seq_len
    assert describe(build(describe(cli.model), CLASSES)) == describe(cli.model)
    if config.stem.startswith("countdown"):  # the paper's setting
        assert (cli.model.seq_len, cli.model.num_tokens, cli.model.path.schedule.exponent) == (256, 32, 2)


def test_the_run_folder_holds_what_was_said(trained):
    assert sorted(path.name.split(".")[0] for path in trained.iterdir()) == ["best", "config", "events", "hparams", "last"]
    config = yaml.safe_load((trained / "config.yaml").read_text())
    assert config["data"]["init_args"]["values"] == 6
    assert config["model"]["network"]["width"] == 16


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs train.py's entry point in this process, expecting it to refuse; returns what it says."""

    def run(*args: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["train.py", *args])
        with pytest.raises(SystemExit) as stop:
            train()
        assert isinstance(stop.value.code, str), "a message, which makes the exit code 1"
        assert len(stop.value.code.splitlines()) < 25, "one screen"
        return stop.value.code

    return run


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--model.learning_rat=1"], ["learning_rat", "Did you mean model.learning_rate?"]),
        (["--model.network.widht=32"], ["widht"]),
        (["--data.valus=3"], ["valus", "data.values"]),
        (["--data=NoSuchTask"], ["NoSuchTask", "Known tasks: tauflow.tasks.Countdown"]),
        (["--data=os.system"], ["os.system"]),
        (["--model.schedule=quadrat"], ["unknown schedule 'quadrat'", "cosine_squared"]),
        (["--model.schedule=tauflow.schedules.Polynomial", "--model.schedule.exponent=-1"], ["exponent m > 0", "-1"]),
        (["--model.source=mask"], ["masked"]),
        (["--data.values=1"], ["values >= 2"]),
        (["--data.batch_size=8", "--trainer.accumulate_grad_batches=3"], ["multiple of 3"]),
        (["--data.epoch_items=4"], ["lower --data.batch_size"]),
        (["--model.network.width=33"], ["multiple of 2 * heads"]),
        (["--model.ema_decay=1.5"], ["EMA decay"]),
        (["--trainer.logger=false"], ["leave --trainer.logger out"]),
        (["--trainer.accelerator=warp"], ["warp"]),
        (["--checkpoints.monitor=val/nothing"], ["val/nothing", "val/bound"]),
        (["--ckpt_path=nowhere.ckpt"], ["no checkpoint at nowhere.ckpt"]),
        (["--ckpt_path=last"], ["no run to continue"]),
    ],
    ids=lambda value: value[0].removeprefix("--") if value[0].startswith("--") else "",
)
def test_bad_input_gets_a_sentence(tmp_path, refused, args, expected):
    message = refused(*TINY, f"--trainer.default_root_dir={tmp_path}/runs", *args)
    for text in expected:
        assert text in message
    assert not list(tmp_path.rglob("*.ckpt")), "nothing was trained"


def test_a_bad_key_in_a_yaml_is_named(tmp_path, refused):
    (tmp_path / "typo.yaml").write_text("model:\n  learning_rat: 1.0e-3\n")
    message = refused(*TINY, "-c", str(tmp_path / "typo.yaml"))
    assert "learning_rat" in message
    assert "learning_rate" in message  # the accepted keys


def test_an_unwritable_folder(tmp_path, refused):
    (tmp_path / "file").write_text("in the way")
    message = refused(*TINY, f"--trainer.default_root_dir={tmp_path}/file/runs")
    assert "cannot write to" in message
    assert "--trainer.default_root_dir" in message


def test_resuming_what_cannot_be_resumed(trained, tmp_path, refused):
    """Each refusal leaves the run exactly as it was."""
    shutil.copytree(trained, tmp_path / "run")
    checkpoint = tmp_path / "run" / "last.ckpt"
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    resume = [*TINY, f"--trainer.default_root_dir={tmp_path}", f"--ckpt_path={checkpoint}"]

    message = refused(*resume, "--trainer.max_steps=24")
    assert "finished: step 24 of 24" in message
    assert "raise --trainer.max_steps" in message

    message = refused(*resume, "--trainer.max_steps=40", "--data.values=7")
    assert "num_tokens: 6 there, 7 here" in message
    assert "run/config.yaml" in message

    message = refused(*resume, "--trainer.max_steps=40", "--model.source=uniform")
    assert "source: masked there, uniform here" in message

    for change in ("--trainer.accumulate_grad_batches=2", "--data.batch_size=4", "--data.epoch_items=32"):
        message = refused(*resume, "--trainer.max_steps=40", change)
        assert change.removeprefix("--").split("=")[0].split(".")[1] in message

    message = refused(*resume, "--trainer.max_steps=-1", "--trainer.max_epochs=3")
    assert "finished: epoch 3 of 3" in message

    bad = load_plain(checkpoint)
    bad["hyper_parameters"] = {"_instantiator": "os.system"}
    torch.save(bad, tmp_path / "bad.ckpt")
    message = refused(*TINY, "--trainer.max_steps=40", f"--ckpt_path={tmp_path}/bad.ckpt")
    assert "names os.system" in message

    (tmp_path / "cut.ckpt").write_bytes(checkpoint.read_bytes()[:5000])
    message = refused(*TINY, f"--ckpt_path={tmp_path}/cut.ckpt")
    assert "truncated" in message
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("flag", ["--trainer.fast_dev_run=true", "--trainer.log_every_n_steps=0", "--trainer.limit_val_batches=0"])
def test_flags_of_lightning_work(tmp_path, monkeypatch, capsys, flag):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", *TINY, "--trainer.max_steps=2", "--trainer.default_root_dir=runs", flag])
    with pytest.raises(SystemExit) as stop:
        train()
    assert stop.value.code == 0
    names = {path.name for path in tmp_path.rglob("*.ckpt")}
    if "fast_dev_run" in flag:
        assert not names
        assert "run folder" not in capsys.readouterr().out
    else:
        assert "last.ckpt" in names


def test_the_exit_code_is_not_0(tmp_path):
    result = run_train(*TINY, "--ckpt_path=nowhere.ckpt", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: no checkpoint at nowhere.ckpt")
    assert "Traceback" not in result.stderr


def test_help_and_print_config(tmp_path):
    shown = run_train("--help", cwd=tmp_path)
    assert shown.returncode == 0
    for text in ("--model.learning_rate", "--ckpt_path", "peak of the schedule", "configs/smoke.yaml"):
        assert text in shown.stdout
    config = yaml.safe_load(run_train("--print_config", cwd=tmp_path).stdout)
    assert config["model"]["schedule"] == "quadratic"
    assert config["data"]["init_args"]["length"] == 256
