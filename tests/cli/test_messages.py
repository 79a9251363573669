"""Bad inputs of the command lines: each ends at once, in a few lines that name what is wrong.

Each input is given to the entry point in this process.
"""

import contextlib
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY

import benchmarks.studies.command
import tauflow.cli.sample
import tauflow.cli.train

SHIPPED = ROOT / "checkpoints" / "shipped" / "countdown_masked.ckpt"
UNIFORM = SHIPPED.with_name("countdown_uniform.ckpt")
SECONDS = 30  # a bad input that is taken for a good one would run for long
LINES = 10
HUGE = 10**18


def sample(*words):
    tauflow.cli.sample.sample([*map(str, words)])


def train(*words):
    sys.argv = ["train.py", *map(str, words)]
    tauflow.cli.train.train()


def study(*words):
    benchmarks.studies.command.main([*map(str, words)])


@dataclass(frozen=True)
class Bad:
    """A command, and what its message must name."""

    words: tuple
    named: str


def flags(*pairs):
    """Make bad inputs of (flag, value): the message names the flag, without its dashes and its group."""
    return [Bad(pair, pair[0].lstrip("-").rpartition(".")[2]) for pair in pairs]


def settings(*texts):
    """Make bad inputs of settings such as --data.values=1: the message names the setting."""
    return [Bad((text,), text.partition("=")[0].lstrip("-").rpartition(".")[2]) for text in texts]


SAMPLE_FLAGS = flags(
    ("--sampler", ""),
    ("--nfe", "x"),
    ("--nfe", 10**9, "--sampler", "euler"),
    ("--num_samples", 0),
    ("--seed", 2**32),
    ("--temperature", "nan"),
    ("--guidance", "strong"),
    ("--judge", "gpt2"),
    ("--condition", "2"),
    ("--prompt", "99"),
    ("--infill", "1 _ 3"),
    ("--complete", "picture.png"),
    ("--task", "fashion"),
    ("--data", "files=corpus.txt"),
)

SAMPLE_SPECS = [
    Bad(("--sampler", "eulr"), "eulr"),
    Bad(("--sampler", "euler("), "euler("),
    Bad(("--sampler", "euler(grid=up)"), "grid"),
    Bad(("--sampler", "tr_cie(cutoff=2)"), "cutoff"),
    Bad(("--sampler", "mine.py:Own"), "mine.py:Own"),
    Bad(("--sampler", "\udcff"), "sampler"),
]

SAMPLE_DEVICES = flags(
    ("--devices", 0),
    ("--accelerator", "warp"),
    ("--precision", "16-mixed"),
)

SAMPLE_PRETRAINED = [
    Bad(("--pretrained", "nowhere"), "nowhere"),
    Bad(("--pretrained", "folder"), "config.json"),
    Bad(("--pretrained", "cut"), "cut/config.json"),
    Bad(("--pretrained", "foreign"), "gpt2"),
]

SAMPLE_FILES = [
    Bad(("--classes", "no.such.Class"), "no.such.Class"),
    Bad(("--classes", "broken.py:Class"), "broken.py:Class"),
    Bad(("--ckpt", ""), "--ckpt"),
    Bad(("--ckpt", "missing.ckpt"), "missing.ckpt"),
    Bad(("--ckpt", "cut.ckpt"), "cut.ckpt"),
    Bad(("--ckpt", "foreign.ckpt"), "foreign.ckpt"),
    Bad(("--unconditional", UNIFORM, "--guidance", 2), "another vocabulary, shape or source"),
    Bad(("--pretrained", "folder", "--ckpt", "best.ckpt"), "--ckpt"),
    Bad(("--keep", "left"), "--complete"),
    Bad(("--dtype", "bfloat16"), "--dtype"),
    Bad(("--out", "file"), "--out"),
    Bad(("--out", "damaged"), "damaged/results.json"),
    Bad(("--tensorboard",), "--out"),
    Bad(("--prompt", "1", "--infill", "1 _"), "--infill"),
    Bad(("euler",), "euler"),
]

TRAIN_FILES = [
    Bad(("-c", "missing.yaml"), "missing.yaml"),
    Bad(("-c", "broken.yaml"), "broken.yaml"),
    Bad(("-c", "typo.yaml"), "learning_rat"),
    Bad(("--ckpt_path=",), "ckpt_path"),
    Bad(("--ckpt_path=missing.ckpt",), "missing.ckpt"),
    Bad(("--ckpt_path=cut.ckpt",), "cut.ckpt"),
    Bad((f"--ckpt_path={SHIPPED}",), "countdown_masked.ckpt"),
    Bad(("--ckpt_path=last",), "no run to resume"),
    Bad(("--trainer.default_root_dir=file",), "default_root_dir"),
]

TRAIN_OPTIMIZER = [
    *settings(
        "--model.optimizer.learning_rate=nan",
        "--model.optimizer.betas=[0.9, 1.5]",
        "--trainer.max_steps=-7",
        "--trainer.accumulate_grad_batches=0",
        "--trainer.val_check_interval=1000",
        "--trainer.accelerator=warp",
        "--trainer.max_step=2",
        "--checkpoints.every_n_steps=0",
        "--seed_everything=4294967296",
    ),
    Bad(("--trainer.logger=false",), "--trainer.logger"),
    Bad(("--checkpoints.monitor=val/nothing",), "val/nothing"),
]

TRAIN_TASK = [
    *settings(
        "--data.values=1",
        "--data.batch_size=0",
        "--model.network.width=33",
        "--model.condition_dropout=1",
        "--model.source=mask",
    ),
    Bad(("--model.network.class_path=my.Network",), "my.Network"),
    Bad(("--nonsense=1",), "nonsense"),
]

EVALUATION = ("--evaluation.every_n_validations=1",)
TRAIN_EVALUATION = [
    Bad((*EVALUATION, text), text.partition("=")[0].rpartition(".")[2])
    for text in (
        "--evaluation.every_n_validations=-1",
        "--evaluation.nfes=[]",
        "--evaluation.max_seconds=0",
    )
] + [
    Bad((*EVALUATION, "--evaluation.samplers=eulr"), "eulr"),
    Bad((*EVALUATION, f"--evaluation.nfes=[{HUGE}]"), "nfe"),
    Bad((*EVALUATION, "--evaluation.guidance=[2]"), "guide"),
]

STUDIES = [
    Bad((), "NAME"),
    Bad(("nonsense", "--out", "out"), "nonsense"),
    Bad(("countdown",), "--out"),
    Bad(("countdown", "--out", "file"), "--out"),
    *(
        Bad(("countdown", "--out", "out", "--smoke", *words), words[0].lstrip("-"))
        for words in (
            ("--samples", 0),
            ("--nfes", HUGE),
        )
    ),
    Bad(("countdown", "--out", "out", "--ckpt", "missing.ckpt"), "missing.ckpt"),
]

SMALL = ("--nfe", 2, "--num_samples", 2, "--accelerator", "cpu", "--no_progress", "--ckpt", SHIPPED)
LITTLE = (*TINY, "--trainer.max_steps=1", "--trainer.default_root_dir=runs")
GROUPS = {
    "`sample.py`: values of flags": (sample, SMALL, SAMPLE_FLAGS),
    "`sample.py`: samplers": (sample, SMALL, SAMPLE_SPECS),
    "`sample.py`: devices": (sample, SMALL[:4] + SMALL[6:], SAMPLE_DEVICES),
    "`sample.py`: files, folders, unknown flags": (sample, SMALL, SAMPLE_FILES),
    "`sample.py`: pretrained models": (sample, ("--accelerator", "cpu"), SAMPLE_PRETRAINED),
    "`train.py`: configurations, checkpoints, folders": (train, LITTLE, TRAIN_FILES),
    "`train.py`: optimizer, trainer, checkpoints": (train, LITTLE, TRAIN_OPTIMIZER),
    "`train.py`: task and network": (train, LITTLE, TRAIN_TASK),
    "`train.py`: evaluation": (train, LITTLE, TRAIN_EVALUATION),
    "`python -m benchmarks`": (study, (), STUDIES),
}
"""{group: (entry point, words before the bad ones, bad inputs)}"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with broken files of every kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "cut.ckpt").write_bytes(SHIPPED.read_bytes()[:100_000])
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    (tmp_path / "mine.py").write_text("class Own:\n    pass\n")
    (tmp_path / "broken.py").write_text("class Class(:\n")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "results.json").write_text("{")
    for name, text in (("cut", "{"), ("foreign", '{"model_type": "gpt2"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    for name, data in (
        ("broken", b"model: [\n"),
        ("typo", b"model:\n  learning_rat: 1\n"),
    ):
        (tmp_path / f"{name}.yaml").write_bytes(data)
    return tmp_path


@contextlib.contextmanager
def limited():
    """Fail if what runs takes too long."""

    def stop(number, frame):
        pytest.fail(f"still running after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def listing(folder: Path) -> set[str]:
    """Return the paths below a folder, without what an import of Python and a lock leave."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in names if "__pycache__" not in name and not name.endswith(".lock")}


def name_of(value) -> str:
    words = " ".join(str(word).removeprefix(f"{ROOT}/") for word in value.words)
    return ascii(words if len(words) < 60 else f"{words[:40]}...{len(words)}")[1:-1] or "nothing"


CASES = [
    pytest.param(group, bad, id=f"{re.sub(r'[^a-z]+', '-', group).strip('-')}: {name_of(bad)}")
    for group, (_, _, inputs) in GROUPS.items()
    for bad in inputs
]


@pytest.mark.parametrize(("group", "bad"), CASES)
def test_a_bad_input_is_named_in_a_few_lines(group, bad, folder, monkeypatch, capfd):
    entry, before, _ = GROUPS[group]
    monkeypatch.setattr("sys.argv", [*sys.argv])
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "120")
    there = listing(folder)
    with limited(), pytest.raises(SystemExit) as stop:
        entry(*before, *bad.words)
    printed = capfd.readouterr()
    said = printed.out + printed.err
    if isinstance(stop.value.code, str):
        said += stop.value.code
    assert stop.value.code not in (0, None), said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= LINES, said
    assert bad.named in said
    assert listing(folder) == there, "nothing is left behind"
