"""What a run prints: its summary, and a line at every validation where there is no terminal."""

import re
import sys

from lightning.pytorch import Trainer
from PIL import Image
from tiny_training import TRAINER, module

from tauflow.process import SCHEDULES, Polynomial, schedule_from
from tauflow.tasks import Images, LabelledCountdown, Sequences, Text
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
        "data        LabelledCountdown",
        "            train on fresh items, validation 4 items, shape (16,) of 6 tokens, conditions (3,)",
        "process     masked source, quadratic schedule",
        "training    8 steps x 8 items, on cpu x 1",
    ]


def summary_of(task, capsys):
    """Return the lines about the data and the length of a run of 8 steps."""
    trainer = Trainer(max_steps=8, callbacks=[RunSummary()], **TRAINER)
    trainer.fit(module(task.facts), TaskData(task))
    lines = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("data", " ", "training"))
    ]
    assert max(map(len, lines)) <= 100, "a terminal's width"
    return lines


def test_the_summary_says_what_was_read(tmp_path, capsys, monkeypatch):
    """The second time, the caches are there."""
    monkeypatch.chdir(tmp_path)
    options = {"cache": "cache", "batch_size": 8, "epoch_items": 64}
    rows = "".join(f"{number},part-{number:03d}{'x' * (number % 10 == 0)}\n" for number in range(100))
    (tmp_path / "parts.csv").write_text(f"id,name\n{rows}")
    (tmp_path / "notes.txt").write_text("\n\n".join(f"Note {n} says {n * n}." for n in range(99)))
    (tmp_path / "diary.txt").write_text("\n\n".join(f"Day {n} was {n % 7}." for n in range(99)))
    for number in range(20):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9 + number, 12), number).save(path)
    for _ in range(2):
        task = Sequences(files="parts.csv", column="name", length=8, too_long="skip", **options)
        task.setup("fit")
        train = task.train_items
        assert summary_of(task, capsys) == [
            "data        Sequences: parts.csv (1.21 kB), column name, 90 strings, 10 longer ones skipped",
            f"            train {train} items, validation {90 - train} items, shape (8,) of 16 tokens",
            f"training    8 steps x 8 items = {64 / train:.3g} passes over the training data, on cpu x 1",
        ]
        text = Text(files="notes.txt,diary.txt", tokenizer="characters", length=16, val_share=0.2, **options)
        lines = summary_of(text, capsys)
        tokens = 16 * (text.train_items + len(text.val_data))
        size = sum((tmp_path / name).stat().st_size for name in ("notes.txt", "diary.txt")) / 1000
        files = f"notes.txt, diary.txt ({size:.3g} kB)"
        assert lines[0] == f"data        Text: {files}, {tokens:,} tokens in blocks of 16"
        assert f" = {64 / text.train_items:.3g} passes over the training data" in lines[2]
        images = Images(pictures="images", **options)
        lines = summary_of(images, capsys)
        assert lines[0] == (
            "data        Images: images, 20 images of 12 x 9 to 12 x 28 pixels, made 9 x 9, classes a, b"
        )
        total = images.train_items + len(images.val_data)
        assert total == 20
        assert "shape (9, 9) of 256 tokens, conditions (2,)" in lines[1]


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
