"""What the command line accepts and what it says when it does not."""

import re
import shutil
import sys

import pytest
import torch
import yaml
from conftest import ROOT, TINY, load_plain, run_train, train_here

from tauflow.cli.train import TauflowCLI, convert_words, train
from tauflow.evaluation.evaluate import choose_samplers
from tauflow.samplers import sampler_from
from tauflow.train.callbacks import LogLines, Progress
from tauflow.train.checkpoint import CLASSES
from tauflow.train.module import describe
from tauflow.untrusted import build

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
HUB = re.compile(
    "gpt2|palette|images|sequences|molecules"
)  # these ask for data when they are made: see other tests
LOCAL = [path for path in CONFIGS if not HUB.search(path.stem)]
OVERLAYS = ["smoke"]


@pytest.mark.parametrize("config", LOCAL, ids=lambda path: path.stem)
def test_every_config_instantiates(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = ["-c", str(ROOT / "configs" / "countdown.yaml")] if config.stem in OVERLAYS else []
    monkeypatch.setattr("sys.argv", ["train.py", *base, "-c", str(config)])
    cli = TauflowCLI()
    assert cli.model.facts == cli.datamodule.task.facts
    assert describe(build(describe(cli.model), CLASSES)) == describe(cli.model)
    model = cli.model.model()
    chosen, _ = choose_samplers(cli.config.evaluation.samplers, model)
    assert {"euler", "tr_cie", str(sampler_from("auto", model))} <= set(chosen), (
        "what the docs recommend is evaluated"
    )
    if config.stem in ("countdown", "countdown_uniform"):  # the paper's setting
        assert (cli.model.facts.shape, cli.model.facts.num_tokens) == ((256,), 32)
        assert cli.model.schedule.exponent == 2


def test_every_config_evaluates_auto_and_is_of_this_version():
    for config in CONFIGS:
        if config.stem not in OVERLAYS:
            assert "auto" in yaml.safe_load(config.read_text())["evaluation"]["samplers"], config
        assert convert_words(["-c", str(config)]) == ["-c", str(config)]


@pytest.mark.parametrize(("fast", "expected"), [(True, "bf16-mixed"), (False, "32-true")])
def test_precision_auto_is_the_fast_one_of_the_machine(tmp_path, monkeypatch, fast, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": fast})
    monkeypatch.chdir(tmp_path)
    cli = TauflowCLI([*TINY, "--trainer.precision=auto"])
    assert cli.trainer.precision == expected


def test_the_run_folder_holds_what_was_said(trained):
    names = sorted(path.name.split(".")[0] for path in trained.iterdir() if path.name != ".lock")
    assert names == ["best", "config", "events", "hparams", "last"]
    hparams = yaml.safe_load((trained / "hparams.yaml").read_text())
    assert hparams["task"]["values"] == 6
    config = yaml.safe_load((trained / "config.yaml").read_text())
    assert config["data"]["init_args"]["values"] == 6
    assert config["model"]["network"]["init_args"]["width"] == 16


OLD = """
model:
  source: masked
  schedule: quadratic
  network:
    width: 16
    blocks: 1
    heads: 2
    time: false
  learning_rate: 0.003
  warmup_steps: 2
  weight_decay: 0.02
  betas: [0.8, 0.9]
  ema_decay: 0.9
  compile_network: false
data:
  class_path: tauflow.tasks.Countdown
  init_args:
    length: 16
    values: 6
trainer:
  enable_model_summary: null
"""


@pytest.mark.parametrize("flag", ["-c", "--config", "--config="])
def test_a_config_of_an_earlier_version_still_works(tmp_path, monkeypatch, flag):
    """Settings of the optimizer stood in the model itself, and a network had no class."""
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    given = [f"{flag}{path}"] if flag.endswith("=") else [flag, str(path)]
    monkeypatch.chdir(tmp_path)
    cli = TauflowCLI(convert_words(given))
    optimizer = cli.model.optimizer_config
    assert (optimizer.learning_rate, optimizer.warmup_steps, optimizer.weight_decay) == (0.003, 2, 0.02)
    assert (optimizer.betas, optimizer.ema_decay) == ((0.8, 0.9), 0.9)
    assert cli.model.network_config.width == 16
    assert path.read_text() == OLD, "the file is not changed"


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
        (["--model.learning_rat=1"], ["learning_rat", "Did you mean --model.optimizer.learning_rate?"]),
        (["--model.network.widht=32"], ["TransformerConfig has no setting widht. Did you mean width?"]),
        (["--data.valus=3"], ["Countdown has no setting valus. Did you mean values?"]),
        (["--data.values=many"], ["--data.values must be a whole number, got many"]),
        (["--model.loss_on=some"], ["--model.loss_on must be one of corrupted, all, got some"]),
        (["--model.schedule=tauflow.process.schedules.Polynomial"], ["arguments are required: exponent"]),
        (["--data=NoSuchTask"], ["NoSuchTask", "Known classes: tauflow.tasks.Countdown"]),
        (["--trainer.callbacks+=builtins.print"], ["subclass of Callback, got builtins.print"]),
        (["--model.optimizer=null"], ["--model.optimizer must be a YAML file with its settings, got null"]),
        (["--model.schedule=quadrat"], ["unknown schedule 'quadrat'", "cosine_squared"]),
        (
            ["--model.schedule=tauflow.process.schedules.Polynomial", "--model.schedule.exponent=-1"],
            ["exponent m > 0", "got -1.0; use 1 (linear), 2 (quadratic) or 3 (cubic) if unsure"],
        ),
        (["--data.batch_size=8", "--trainer.accumulate_grad_batches=3"], ["multiple of 3"]),
        (["--data.epoch_items=4"], ["up to the 4 items of an epoch"]),
    ],
    ids=lambda value: value[0].removeprefix("--") if value[0].startswith("--") else "",
)
def test_bad_input_gets_a_sentence(tmp_path, refused, args, expected):
    message = refused(*TINY, f"--trainer.default_root_dir={tmp_path}/runs", *args)
    for text in expected:
        assert text in message
    assert "<class" not in message
    assert not list(tmp_path.rglob("*.ckpt")), "nothing was trained"


def test_a_bad_key_in_a_yaml_is_named(tmp_path, refused):
    (tmp_path / "typo.yaml").write_text("model:\n  learning_rat: 1.0e-3\n")
    message = refused(*TINY, "-c", str(tmp_path / "typo.yaml"))
    assert "learning_rat" in message
    assert "learning_rate" in message  # the accepted keys


OWN = """
from dataclasses import dataclass
from tauflow.networks import NetworkConfig
from tauflow.tasks import Countdown

class Remainder(Countdown):
    def __init__(self, items: int = 5, batch_size: int = 8, epoch_items: int = 16):
        super().__init__(length=8, batch_size=batch_size, epoch_items=epoch_items)
        self.items = items

@dataclass(frozen=True)
class ConvConfig(NetworkConfig):
    channels: int = 8
    layers: int = 1

    def build(self, shape, num_states, num_tokens, conditions=()): ...
"""
TASK = [word for word in TINY if not word.startswith("--data")]
NETWORK = [word for word in TINY if not word.startswith("--model.network")]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file of the user's own, own_classes.py, in the folder that train.py is run in."""
    (tmp_path / "own_classes.py").write_text(OWN)
    monkeypatch.setattr("sys.path", [*sys.path])
    yield
    sys.modules.pop("own_classes", None)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            [*NETWORK, "--model.network.class_path=own_classes.ConvConfig", "--model.network.chanels=16"],
            "ConvConfig has no setting chanels. Did you mean channels? ConvConfig takes: channels, layers",
        ),
        (
            [*TASK, "--data=own_classes.Remainder", "--data.itms=5"],
            "Remainder has no setting itms. Did you mean items? Remainder takes: batch_size, epoch_items, "
            "items",
        ),
        (
            [*TASK, "--data.class_path=own_classes.Remainer"],
            "--data: cannot import own_classes.Remainer: own_classes has no class Remainer; did you mean "
            "Remainder?",
        ),
    ],
    ids=lambda value: value[-1].removeprefix("--") if isinstance(value, list) else "",
)
def test_a_mistake_with_a_class_of_ones_own_gets_a_sentence(own, refused, args, expected):
    assert refused(*args).startswith(f"error: {expected}")


def test_a_type_error_in_ones_own_code_keeps_its_traceback(own, tmp_path, monkeypatch):
    """Only what is wrong with the class itself is a sentence; the rest is for a debugger."""
    broken = OWN.replace("conditions=()): ...", "conditions=()): return len(3)")
    (tmp_path / "own_classes.py").write_text(broken)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", *NETWORK, "--model.network=own_classes.ConvConfig"])
    with pytest.raises(TypeError, match="has no len"):
        train()


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--evaluation.samplers=[own_classes.py:Renose]", "cannot import own_classes.py:Renose"),
        ("--evaluation.guidance=[1,2]", "nothing to guide by"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_there_is_a_folder(
    own, tmp_path, refused, capsys, flag, expected
):
    runs = tmp_path / "runs"
    message = refused(*TINY, f"--trainer.default_root_dir={runs}", "--evaluation.every_n_validations=1", flag)
    assert expected in message
    assert "run folder" not in capsys.readouterr().out
    assert not list(runs.rglob("*"))


def test_a_log_file_has_lines_and_no_progress_bar(tmp_path):
    said = train_here(
        *TINY,
        *("--trainer.max_steps=16", "--trainer.enable_progress_bar=null", "--trainer.default_root_dir=runs"),
        *("--evaluation.every_n_validations=1", "--evaluation.nfes=[2]", "--evaluation.num_samples=2"),
        cwd=tmp_path,
    )
    assert re.search(r"^step 16 of 16  train/loss", said, re.MULTILINE)
    assert "Epoch" not in said
    assert re.search(r"^evaluation  \d+ s in total$", said, re.MULTILINE)


def test_a_terminal_has_a_progress_bar(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(
        TauflowCLI([*TINY, "--trainer.enable_progress_bar=null"]).trainer.progress_bar_callback, Progress
    )
    quiet = TauflowCLI(TINY).trainer
    assert quiet.progress_bar_callback is None
    (lines,) = [each for each in quiet.callbacks if isinstance(each, LogLines)]
    assert lines.always, "where the bar is switched off, lines say how far training is"


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
    assert "Raise --trainer.max_steps" in message

    message = refused(*resume, "--trainer.max_steps=40", "--data.values=7")
    assert "num_tokens=6" in message
    assert "num_tokens=7" in message
    assert "run/config.yaml" in message

    message = refused(*resume, "--trainer.max_steps=40", "--model.source=uniform")
    assert "source: Masked(num_tokens=6) there, Uniform(num_tokens=6) here" in message

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


@pytest.mark.parametrize(
    "flag", ["--trainer.fast_dev_run=true", "--trainer.log_every_n_steps=0", "--trainer.limit_val_batches=0"]
)
def test_flags_of_lightning_work(tmp_path, monkeypatch, capsys, flag):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sys.argv", ["train.py", *TINY, "--trainer.max_steps=2", "--trainer.default_root_dir=runs", flag]
    )
    with pytest.raises(SystemExit) as stop:
        train()
    assert stop.value.code == 0
    names = {path.name for path in tmp_path.rglob("*.ckpt")}
    if "fast_dev_run" in flag:
        assert not names
        assert "run folder" not in capsys.readouterr().out
    else:
        assert "last.ckpt" in names


@pytest.mark.slow
def test_the_exit_code_is_not_0(tmp_path):
    result = run_train(*TINY, "--ckpt_path=nowhere.ckpt", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: Checkpoint not found: nowhere.ckpt")
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_print_config(tmp_path):
    config = yaml.safe_load(run_train("--print_config", cwd=tmp_path).stdout)
    assert config["model"]["schedule"] == "quadratic"
    assert config["data"]["init_args"]["length"] == 256


def test_a_run_without_a_validation_is_announced(tmp_path):
    options = ["--trainer.max_steps=2", f"--trainer.default_root_dir={tmp_path}"]
    assert "the run ends before its first validation (step 8)" in train_here(*TINY, *options, cwd=tmp_path)
