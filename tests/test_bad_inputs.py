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

import tauflow.cli.sample
import tauflow.cli.train
import tauflow.studies.__main__

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
    tauflow.studies.__main__.main([*map(str, words)])


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
    ("--sampler", ","),
    ("--nfe", "x"),
    ("--nfe", 0),
    ("--nfe", 10**9, "--sampler", "euler"),
    ("--num_samples", 0),
    ("--num_samples", "1e9"),
    ("--batch_size", 0),
    ("--show", -1),
    ("--seed", "1.5"),
    ("--seed", 2**32),
    ("--temperature", "nan"),
    ("--guidance", ","),
    ("--guidance", "strong"),
    ("--unconditional", ""),
    ("--judge", "gpt2"),
    ("--condition", "2"),
    ("--condition", "\udcff"),
    ("--prompt", "99"),
    ("--prompt", "1 " * 300),
    ("--infill", "1 _ 3"),
    ("--complete", "picture.png"),
    ("--complete", "picture.png", "--keep", "left"),
    ("--keep", "left"),
    ("--task", "fashion"),
    ("--nll_items", -1),
    ("--data", "files"),
    ("--data", "files=corpus.txt"),
    ("--data", "values=3"),
    ("--data", "files=[a"),
    ("--classes", "nonsense"),
    ("--classes", "no.such.Class"),
    ("--classes", "missing.py:Class"),
    ("--classes", "mine.py:Missing"),
    ("--classes", "broken.py:Class"),
)

SAMPLE_SPECS = [
    Bad(("--sampler", "eulr"), "eulr"),
    Bad(("--sampler", "euler("), "euler("),
    Bad(("--sampler", "()"), "()"),
    Bad(("--sampler", "euler(grid=up)"), "grid"),
    Bad(("--sampler", "euler(=t)"), "euler"),
    Bad(("--sampler", "euler(power=3)"), "power"),
    Bad(("--sampler", "spaced_even(power=nan)"), "power"),
    Bad(("--sampler", "tr_cie(cutoff=2)"), "cutoff"),
    Bad(("--sampler", "mine.py:Own"), "mine.py:Own"),
    Bad(("--sampler", "no/such.py:Own"), "no/such.py"),
    Bad(("--sampler", "\udcff"), "sampler"),
    Bad(("--ckpt", UNIFORM, "--sampler", "fhs"), "fhs"),
]

SAMPLE_DEVICES = flags(
    ("--devices", 0),
    ("--devices", 99),
    ("--accelerator", "warp"),
    ("--strategy", "foo"),
    ("--precision", "foo"),
    ("--precision", "16-mixed"),
    ("--device", "tpu:0"),
    ("--device", "cpu:x"),
    ("--device", "cuda:99"),
)

SAMPLE_PRETRAINED = [
    Bad(("--pretrained", "nowhere"), "nowhere"),
    Bad(("--pretrained", "file"), "file"),
    Bad(("--pretrained", "folder"), "config.json"),
    Bad(("--pretrained", "owner/unknown"), "recipes: fudoki"),
    Bad(("--pretrained", "cut"), "cut/config.json"),
    Bad(("--pretrained", "foreign"), "gpt2"),
    Bad(("--pretrained", "folder", "--ckpt", "best.ckpt"), "--ckpt"),
    Bad(("--rates", "mixture"), "--rates"),
]

SAMPLE_FILES = [
    Bad(("--ckpt", ""), "--ckpt"),
    Bad(("--ckpt", "missing.ckpt"), "missing.ckpt"),
    Bad(("--ckpt", "folder"), "folder"),
    Bad(("--ckpt", "cut.ckpt"), "cut.ckpt"),
    Bad(("--ckpt", "foreign.ckpt"), "foreign.ckpt"),
    Bad(("--ckpt", "loop.ckpt"), "loop.ckpt"),
    Bad(("--ckpt", "n" * 300), "n" * 300),
    Bad(("--unconditional", UNIFORM, "--guidance", 2), "countdown_uniform.ckpt"),
    Bad(("--unconditional", SHIPPED), "--guidance"),
    Bad(("--out", "file"), "--out"),
    Bad(("--out", "/proc/results"), "--out"),
    Bad(("--out", "damaged"), "damaged/results.json"),
    Bad(("--out", "other"), "other/results.json"),
    Bad(("--tensorboard",), "--out"),
    Bad(("--prompt", "1", "--infill", "1 _"), "--infill"),
    Bad(("--prompt", "1", "--complete", "picture.png", "--keep", "left"), "--complete"),
    Bad(("--samplr", "euler"), "--samplr"),
    Bad(("--grid", "tau"), "--sampler"),
    Bad(("euler",), "euler"),
    Bad(("--out",), "--out"),
]

TRAIN_FILES = [
    Bad(("-c", "missing.yaml"), "missing.yaml"),
    Bad(("-c", "folder"), "folder"),
    Bad(("-c", "binary.yaml"), "binary.yaml"),
    Bad(("-c", "list.yaml"), "list.yaml"),
    Bad(("-c", "word.yaml"), "word.yaml"),
    Bad(("-c", "broken.yaml"), "broken.yaml"),
    Bad(("-c", "typo.yaml"), "learning_rat"),
    Bad(("-c", "dangling.yaml"), "dangling.yaml"),
    Bad(("-c",), "-c"),
    Bad(("--config=",), "--config"),
    Bad(("--ckpt_path=",), "ckpt_path"),
    Bad(("--ckpt_path=missing.ckpt",), "missing.ckpt"),
    Bad(("--ckpt_path=folder",), "folder"),
    Bad(("--ckpt_path=empty.ckpt",), "empty.ckpt"),
    Bad(("--ckpt_path=text.ckpt",), "text.ckpt"),
    Bad(("--ckpt_path=cut.ckpt",), "cut.ckpt"),
    Bad(("--ckpt_path=foreign.ckpt",), "foreign.ckpt"),
    Bad(("--ckpt_path=dangling.ckpt",), "dangling.ckpt"),
    Bad((f"--ckpt_path={SHIPPED}",), "countdown_masked.ckpt"),
    Bad(("--ckpt_path=last",), "no run to resume"),
    Bad(("--trainer.default_root_dir=",), "default_root_dir"),
    Bad(("--trainer.default_root_dir=file",), "default_root_dir"),
    Bad(("--trainer.default_root_dir=/proc/runs",), "default_root_dir"),
]

TRAIN_OPTIMIZER = [
    *settings(
        "--model.optimizer.learning_rate=nan",
        "--model.optimizer.learning_rate=fast",
        "--model.optimizer.weight_decay=-1",
        "--model.optimizer.betas=[0.9]",
        "--model.optimizer.betas=[0.9, 1.5]",
        "--model.optimizer.warmup_steps=-1",
        "--trainer.gradient_clip_val=nan",
        "--trainer.max_steps=-7",
        "--trainer.max_steps=0",
        "--trainer.accumulate_grad_batches=0",
        "--trainer.devices=[a",
        "--trainer.devices=1000",
        "--trainer.limit_train_batches=0",
        "--trainer.val_check_interval=0",
        "--trainer.val_check_interval=1000",
        "--trainer.accelerator=warp",
        "--trainer.precision=7",
        "--trainer.max_step=2",
        "--checkpoints.every_n_steps=0",
        "--seed_everything=-1",
        "--seed_everything=4294967296",
    ),
    Bad(("--model.optimizer.ema_decay=1",), "EMA decay"),
    Bad(("--trainer.logger=false",), "--trainer.logger"),
    Bad(("--trainer.strategy=foo",), "foo"),
    Bad(("--checkpoints.monitor=val/nothing",), "val/nothing"),
]

TRAIN_TASK = [
    *settings(
        "--data.values=1",
        "--data.values=many",
        "--data.length=-1",
        "--data.batch_size=0",
        "--data.epoch_items=0",
        "--data.val_items=0",
        "--data.num_workers=-1",
        "--data.valus=3",
        "--model.network.width=-16",
        "--model.network.width=33",
        "--model.network.blocks=-1",
        "--model.network.heads=0",
        "--model.network.widht=16",
        "--model.condition_dropout=1",
        "--model.loss_on=some",
        "--model.schedule=quadrat",
        "--model.source=mask",
    ),
    Bad(("--data=NoSuchTask",), "NoSuchTask"),
    Bad(("--data=os.system",), "os.system"),
    Bad(("--model.network.class_path=my.Network",), "my.Network"),
    Bad(("--nonsense=1",), "nonsense"),
    Bad(("nonsense",), "nonsense"),
]

EVALUATION = ("--evaluation.every_n_validations=1",)
TRAIN_EVALUATION = [
    Bad((*EVALUATION, text), text.partition("=")[0].rpartition(".")[2])
    for text in (
        "--evaluation.every_n_validations=-1",
        "--evaluation.samplers=[]",
        "--evaluation.nfes=[]",
        "--evaluation.nfes=[x]",
        "--evaluation.num_samples=0",
        "--evaluation.batch_size=0",
        "--evaluation.show=-1",
        "--evaluation.guidance=[nan]",
        "--evaluation.max_seconds=0",
    )
] + [
    Bad((*EVALUATION, "--evaluation.samplers=eulr"), "eulr"),
    Bad((*EVALUATION, "--evaluation.nfes=[0]"), "nfe"),
    Bad((*EVALUATION, f"--evaluation.nfes=[{HUGE}]"), "nfe"),
    Bad((*EVALUATION, "--evaluation.guidance=[2]"), "guide"),
]

STUDIES = [
    Bad((), "NAME"),
    Bad(("nonsense", "--out", "out"), "nonsense"),
    Bad(("countdown",), "--out"),
    Bad(("countdown", "--out", "file"), "--out"),
    Bad(("countdown", "--out", "damaged", "--smoke"), "damaged/results.json"),
    *(
        Bad(("countdown", "--out", "out", "--smoke", *words), words[0].lstrip("-"))
        for words in (
            ("--samples", 0),
            ("--batch_size", 0),
            ("--seeds", "a"),
            ("--nfes", "0"),
            ("--nfes", HUGE),
            ("--samplers", ""),
            ("--ckpt", ""),
            ("--data", "x"),
            ("--nonsense", "1"),
        )
    ),
    Bad(("countdown", "--out", "out", "--samplers", "eulr"), "eulr"),
    Bad(("countdown", "--out", "out", "--ckpt", "missing.ckpt"), "missing.ckpt"),
    Bad(("countdown", "--out", "out", "--ckpt", "folder"), "folder"),
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
    "`python -m tauflow.studies`": (study, (), STUDIES),
}
"""{group: (entry point, words before the bad ones, bad inputs)}"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with broken files of every kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("file", "empty.ckpt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "text.ckpt").write_text("no checkpoint\n" * 100)
    (tmp_path / "cut.ckpt").write_bytes(SHIPPED.read_bytes()[:100_000])
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    for suffix in ("ckpt", "yaml"):
        (tmp_path / f"dangling.{suffix}").symlink_to("nowhere")
    (tmp_path / "loop.ckpt").symlink_to("loop.ckpt")
    (tmp_path / "mine.py").write_text("class Own:\n    pass\n")
    (tmp_path / "broken.py").write_text("class Class(:\n")
    for name, text in (("damaged", "{"), ("other", '{"format": 99}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(text)
    for name, text in (("cut", "{"), ("foreign", '{"model_type": "gpt2"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    for name, data in (
        ("binary", bytes(range(256))),
        ("list", b"[1, 2]\n"),
        ("word", b"word\n"),
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
