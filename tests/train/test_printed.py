"""What a run prints: its summary, and a line at every validation where there is no terminal."""

import re
import sys

from lightning.pytorch import Trainer
from tiny_training import TRAINER, module

from tauflow.process import SCHEDULES, Polynomial, schedule_from
from tauflow.tasks import LabelledCountdown
from tauflow.tasks.data import TaskData
from tauflow.train.callbacks import LogLines, RunSummary, duration, in_words


def printed(capsys, *callbacks) -> list[str]:
    task = LabelledCountdown(length=16, values=6, batch_size=8, epoch_items=32, val_items=4)
    trainer = Trainer(max_steps=8, callbacks=list(callbacks), **TRAINER)
    trainer.fit(module(task.facts), TaskData(task))
    return capsys.readouterr().out.splitlines()


def test_a_line_at_every_validation_where_there_is_no_terminal(capsys):
    lines = printed(capsys, LogLines())
    number = r"\d+\.\d+"
    for line, step, left in zip(lines, (4, 8), (r"\d+ s", "0 s"), strict=True):
        found = rf"step {step} of 8  train/loss {number}  val/bound {number}  \S+ steps/s  {left} left"
        assert re.fullmatch(found, line), line


def test_a_terminal_has_a_progress_bar_instead(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert printed(capsys, LogLines()) == []
    assert len(printed(capsys, LogLines(always=True))) == 2


def test_the_summary_counts_the_network_once(capsys):
    lines = printed(capsys, RunSummary())
    parameters = sum(
        parameter.numel()
        for parameter in module(LabelledCountdown(length=16, values=6).facts).network.parameters()
    )
    assert lines == [
        f"network     Transformer, {in_words(parameters)} parameters, plus an averaged copy",
        "data        LabelledCountdown, shape (16,) of 6 tokens, conditions (3,)",
        "process     masked source, quadratic schedule",
        "training    8 steps x 8 items, on cpu x 1",
    ]


def test_a_schedule_is_called_what_users_call_it():
    for name in SCHEDULES.keys() - {"polynomial"}:
        assert schedule_from(name).name == name
    assert Polynomial(1).name == "linear"
    assert Polynomial(1.5).name == "Polynomial(exponent=1.5)"


def test_numbers_in_words():
    assert [in_words(number) for number in (999, 1500, 2_340_000, 7 * 10**9)] == [
        "999",
        "1.5 k",
        "2.34 M",
        "7 B",
    ]
    assert [duration(seconds) for seconds in (0.4, 59.6, 61, 7505)] == [
        "0 s",
        "1 min 00 s",
        "1 min 01 s",
        "2 h 05 min",
    ]
