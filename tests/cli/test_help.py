"""--help: what people use most on a screen, all of it real flags, and the rest by topic."""

import re

import pytest

from tauflow.cli.help import NETWORKS, TASKS, TOPICS, TRAINER, describe, settings, show_help
from tauflow.samplers import SAMPLERS
from tauflow.samplers.registry import options_of


@pytest.fixture(scope="module")
def everything():
    return describe("train", "all")


@pytest.mark.parametrize("command", TOPICS)
def test_the_help_fits_on_two_screens(command):
    lines = describe(command).splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 100
    assert "Examples" in lines
    for topic in ("--help samplers", "--help all"):
        assert any(topic in line for line in lines)


def test_flags_of_the_training_help_exist(everything):
    """Names of the help that the parser, or the task and network they belong to, don't have."""
    named = set(re.findall(r"^  (?:-c, )?(--[\w.]+)", describe("train"), re.MULTILINE))
    assert {"--data.files", "--model.optimizer.learning_rate", "--trainer.max_steps"} <= named
    assert {"--ckpt_path", "--init_from"} <= named
    own = {name for name in named if name.startswith(("--data.", "--model.network."))}  # of a class
    assert not {name for name in named - own - {"--help", "--config"} if f"  {name}" not in everything}
    for name in TRAINER:
        assert f"--trainer.{name.split()[0]}" in everything


def test_texts_come_from_docstrings():
    assert dict(settings("Optimizer"))["model.optimizer.learning_rate"] == "peak of AdamW's schedule"


def test_a_topic_shows_its_settings_alone(everything):
    shown = describe("train", "evaluation")
    assert "--evaluation.nll_items" in shown
    assert "--trainer.max_steps" not in shown
    assert len(shown) < len(everything) / 4


def test_known_classes_are_those_of_the_parser(everything):
    flat = " ".join(everything.split())
    for name in (*TASKS, *NETWORKS):
        assert re.search(rf"tauflow\.(tasks\.|networks\.)?{name}\b", flat), name
    assert "FunctionTask" not in flat


def test_an_unknown_topic():
    with pytest.raises(SystemExit, match="--help must be followed by all, samplers, or nothing, got sampler"):
        show_help("sample", ["--help", "sampler"])


def test_help_among_other_flags(capsys):
    assert show_help("train", ["-c", "countdown", "--help", "--trainer.max_steps", "4"])
    assert "Usage: " in capsys.readouterr().out


def test_no_help_asked_for():
    assert not show_help("sample", ["--nfe", "8"])


def test_samplers_and_their_options():
    shown = describe("train", "samplers")
    assert max(map(len, shown.splitlines())) <= 100
    blocks = [" ".join(block.split()) for block in re.split(r"\n  (?=\w)", shown)]
    for name, make in SAMPLERS.items():
        for option in options_of(make()).values():
            begin = f"{option.name} {option.help} ({option.choices}) of "
            owners = [block.removeprefix(begin) for block in blocks if block.startswith(begin)]
            assert len(owners) == 1, option.name
            assert name in re.split(r",? ", owners[0]), (name, option.name)
