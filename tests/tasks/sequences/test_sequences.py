"""Sequences: sources, tokens, the table of rows, statistics, samples, lengths and blanks."""

import gzip
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, train_here

import tauflow
from tauflow.errors import CheckpointError, SettingsError
from tauflow.evaluation.evaluate import scales
from tauflow.evaluation.results import REAL, Results, Scale
from tauflow.tasks import Sequences
from tauflow.tasks.sequences.metrics import BrokenPadding, LengthTotalVariation, MeanLength, Unique
from tauflow.tasks.sequences.sources import StringFiles, hash_string
from tauflow.tasks.sequences.tokens import PAD, Tokens, find_pattern
from tauflow.train.module import describe


def words(count=200):
    """Different strings of 2 to 8 characters of an alphabet of six."""
    generator = np.random.default_rng(0)
    found = {"".join(generator.choice([*"abcdef"], size=generator.integers(2, 9))) for _ in range(3 * count)}
    return sorted(found)[:count]


@pytest.fixture
def strings(tmp_path):
    path = tmp_path / "strings.txt"
    path.write_text("\n".join(words()) + "\n")
    return path


def made(path, tmp_path, **options):
    settings = {"val_share": 0.2, "val_items": 16, "batch_size": 4, "cache": str(tmp_path / "cache")}
    return Sequences(files=str(path), **settings | options)


def texts_of(path, **options):
    return [(entry.number, entry.text) for entry in StringFiles(str(path), **options).entries()]


# Sources


def test_files_are_read_by_what_their_names_end_with(tmp_path):
    contents = {
        "a.txt": (b"one two\r\n\n  three \n", [(1, "one two"), (3, "three")]),
        "a.smi": (b"CCO ethanol\nC methane\n", [(1, "CCO"), (2, "C")]),
        "a.csv": (b'name\n"C,C"\n\nO\n', [(2, "C,C"), (4, "O")]),
        "a.fasta": (b">first\nMKV\nLL\n\n>second one\nAC\n", [(1, "MKVLL"), (5, "AC")]),
    }
    for name, (data, expected) in contents.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
        assert texts_of(tmp_path / name) == texts_of(tmp_path / f"{name}.gz") == expected
    (tmp_path / "b.tsv").write_text("id\tsequence\n1\tAB\n2\t\n3\tCD\n")
    assert texts_of(tmp_path / "b.tsv", column="sequence") == [(2, "AB"), (4, "CD")]


@pytest.mark.parametrize(
    ("name", "contents", "options", "message"),
    [
        ("a.txt", b" \n\n", {}, "need strings, got 0 and 0"),
        ("a.txt", b"ab\n", {}, "need strings, got 1 and 0"),
        ("a.txt", b"ab\nc\xff\n", {}, "is not text in UTF-8"),
        ("a.csv", b"id,smiles\n1,C\n", {}, r"column must be a column of .*a.csv \(id, smiles\), got None"),
        ("a.csv", b"id,smiles\n1,C\n", {"column": "x"}, "column must be a column of .* got x"),
        (
            "a.csv",
            b"id,smiles\n1,C\n2\n",
            {"column": "smiles"},
            "line 3 of .* has 1 columns, the first line 2",
        ),
        ("a.csv", b"", {}, "a.csv .it is empty"),
        ("a.fa", b"MKV\n>x\nA\n", {}, "line 1 of .* isn't FASTA: a record starts with >"),
        ("a.txt", b"ab\nabcd\n", {"length": 3}, "line 2 of .* has 4 tokens, --data.length is 3; raise it"),
        (
            "a.txt",
            b"abcd\n",
            {"length": 3, "too_long": "skip"},
            "need strings of at most 3 tokens, got 0",
        ),
        (
            "a.smi",
            b"CC\nCXC\n",
            {"tokens": "smiles"},
            "line 2 of .*: no token covers 'X', character 2 of 'CXC'",
        ),
        ("a.txt", b"ab\n", {"tokens": "a*"}, "no token covers 'b'"),
        ("a.txt", b"ba\nbb\nab\nabb\nbba\n", {"tokens": "(?=a)|."}, "matches nothing at all in some string"),
        ("a.txt", b"a<pad>\nb\n", {"tokens": "<[a-z]+>|."}, "a token '<pad>', which is the name of the pad"),
        ("a.txt", b"ab\nb\n", {"token_names": ["a", "b"]}, "a vocabulary begins with <pad>"),
        ("a.txt", b"ab\nb\n", {"token_names": [PAD, "a", "b", "a"]}, "two tokens .* have one name"),
        ("a.txt", b"ab\n", {"tokens": "(a"}, "must be characters, smiles, amino_acids, or a regular"),
        (
            "a.txt",
            b"ab\ncd\n",
            {"val_share": 1e-9},
            "need strings, got 2 and 0.* change --data.val_share",
        ),
    ],
)
def test_bad_data_is_refused_in_one_line(tmp_path, name, contents, options, message):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(SettingsError, match=message) as error:
        made(tmp_path / name, tmp_path, **options)
    assert "\n" not in str(error.value)
    assert not [path for path in tmp_path.glob("cache/*") if path.is_dir()], "nothing half-built is left"


def test_a_pipe_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match=r"File not found: .*pipe"):
        made(tmp_path / "pipe", tmp_path)


def test_bad_settings(tmp_path, strings):
    for options, message in (
        ({"hub": "x"}, "not both"),
        ({"val_share": 1.0}, "Training and validation need strings, got 0 and 200"),
        ({"val_files": str(tmp_path / "none")}, r"--data\.val_files: File not found"),
    ):
        with pytest.raises(SettingsError, match=message):
            made(strings, tmp_path, **options)
    with pytest.raises(SettingsError, match=r"choose the strings: --data\.files"):
        Sequences()


def test_strings_of_a_data_set(tmp_path):
    import datasets

    rows = words(40)
    datasets.Dataset.from_dict({"smiles": rows}).to_parquet(tmp_path / "data" / "train.parquet")
    task = Sequences(
        hub=str(tmp_path / "data"), hub_column="smiles", cache=str(tmp_path / "cache"), val_share=0.2
    )
    assert sorted([*task.strings("train"), *task.strings("val")]) == rows


# Tokens


def test_rules_split_strings():
    smiles = Tokens((PAD, "Br", "C", "Cl", "[nH]", "c", "1", "%12", "="), find_pattern("smiles"))
    assert smiles.split("BrCCl") == ["Br", "C", "Cl"]
    assert smiles.split("N->[Pt]<-N") == ["N", "-", ">", "[Pt]", "<", "-", "N"], "dative bonds"
    assert smiles.encode("c1[nH]%12=C") == [5, 6, 4, 7, 8, 2]
    assert Tokens((PAD, "ab", "c"), r"(a(b))|c").split("abc") == ["ab", "c"], "groups are no tokens"
    with pytest.raises(SettingsError, match=r"has no token 'F' \(it has Br C Cl"):
        smiles.encode("CF")
    with pytest.raises(SettingsError, match="no token covers '!', character 3 of 'CC!C'"):
        smiles.encode("CC!C")


def test_a_string_ends_at_the_first_padding():
    tokens = Tokens((PAD, "a", "b"), ".")
    assert tokens.text([1, 2, 0, 1, 0]) == "ab"
    assert tokens.text([2, 1]) == "ba"
    assert tokens.text([0, 1]) == ""
    assert tokens.text([1, 3]) == "a\N{REPLACEMENT CHARACTER}", "a mask"
    assert tokens.joined([1, 0, 2], "·") == "a·b"


# The table


def test_rows_hold_the_strings_padded(strings, tmp_path):
    task = made(strings, tmp_path)
    assert task.token_names == [PAD, *"abcdef"]
    assert (task.num_tokens, task.shape) == (7, (8,))
    assert sorted([*task.strings("train"), *task.strings("val")]) == words()
    task.setup("fit")
    item = task.train_data[0]["tokens"]
    assert item.dtype == torch.int64
    assert item.shape == (8,)
    assert task.texts(item[None])[0] in words()
    assert len(task.val_data) == 16
    again = made(strings, tmp_path)
    assert task.strings("val")[:] == again.strings("val")[:]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_copies_are_on_one_side_and_another_seed_is_another_split(tmp_path):
    path = tmp_path / "twice.txt"
    path.write_text("\n".join(words() * 2))
    task, other = made(path, tmp_path), made(path, tmp_path, seed=1)
    assert not set(task.strings("train")) & set(task.strings("val"))
    assert len(task.strings("train")) + len(task.strings("val")) == 2 * len(words())
    assert set(task.strings("val")) != set(other.strings("val"))


def test_files_for_validation(strings, tmp_path):
    (tmp_path / "val.txt").write_text("abc\nfed\n")
    task = made(strings, tmp_path, val_files=str(tmp_path / "val.txt"))
    assert task.strings("val")[:] == ["abc", "fed"]
    assert len(task.strings("train")) == len(words())
    (tmp_path / "val.txt").write_text("abc\nfxd\n")
    with pytest.raises(
        SettingsError, match=r"line 2 of .*val\.txt: the vocabulary has no token 'x' \(it has a b"
    ):
        made(strings, tmp_path, val_files=str(tmp_path / "val.txt"))


def test_strings_that_are_too_long_are_skipped_and_counted(strings, tmp_path):
    short = [word for word in words() if len(word) <= 5]
    for _ in range(2):  # built, then from the cache
        with pytest.warns(UserWarning, match=f"{200 - len(short)} of 200 strings have more than 5 tokens"):
            task = made(strings, tmp_path, length=5, too_long="skip")
        assert sorted([*task.strings("train"), *task.strings("val")]) == short


def test_many_tokens_take_two_bytes(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("\n".join(f"t{number}t{number + 1}" for number in range(400)))
    task = made(path, tmp_path, tokens=r"t\d+")
    assert task._table.train.dtype == np.uint16
    assert sorted(task.strings("train")[:] + task.strings("val")[:])[-1] == "t9t10"
    assert task.num_tokens == 402


def test_what_a_killed_build_left_is_removed_by_a_later_one(strings, tmp_path):
    old, running = (tmp_path / "cache" / f".building.{name}" for name in ("old", "running"))
    for folder in (old, running):
        folder.mkdir(parents=True)
        (folder / "train.npy").write_bytes(b"x")
    long_ago = time.time() - 7 * 24 * 3600
    for path in (old / "train.npy", old, running):  # of the running one a file still grows
        os.utime(path, (long_ago, long_ago))
    made(strings, tmp_path)
    assert not old.exists()
    assert running.exists()


class Vowels(Sequences):
    """The number of a's in a string is its condition."""

    conditions = (9,)

    def labels(self, text):
        return [text.count("a")]

    def extra_statistics(self):
        return {"first": np.array([1.5])}


def test_labels_lie_beside_the_tokens(strings, tmp_path):
    task = Vowels(files=str(strings), cache=str(tmp_path / "cache"), val_items=16)
    task.setup("fit")
    items = [task.train_data[number] for number in range(20)] + [task.val_data[number] for number in range(4)]
    for item in items:
        (text,) = task.texts(item["tokens"][None])
        assert item["condition"].tolist() == [text.count("a")]
    task.begin_run(tmp_path)
    task.folder = tmp_path
    again = Vowels(files=str(strings), cache=str(tmp_path / "cache"), val_items=16)
    again.folder = tmp_path
    again.setup("validate")
    assert torch.equal(task.sample_conditions(8), again.sample_conditions(8))
    assert again.statistics.extra["first"] == 1.5


# Metrics


def test_metrics_of_samples():
    tokens = torch.tensor([[1, 2, 0, 0], [1, 0, 2, 0], [1, 2, 0, 0], [2, 2, 2, 2]])
    assert float(MeanLength().forward(tokens)[0]) == (2 + 1 + 2 + 4) / 4
    assert float(BrokenPadding().forward(tokens)[0]) == 1 / 4
    law = torch.tensor([0, 0, 0.5, 0.25, 0.25])
    assert float(LengthTotalVariation(law).forward(tokens)[0]) == pytest.approx(0.25)
    vocabulary = Tokens((PAD, "a", "b"), ".")
    unique = Unique(lambda rows: [vocabulary.text(row) for row in rows.tolist()])
    unique.update(tokens[:1])
    unique.update(tokens[1:])
    assert float(unique.compute()[0]) == 3 / 4


def test_pattern_is_the_share_of_whole_matches(strings, tmp_path):
    task = made(strings, tmp_path, pattern="a+b|c{2}")
    metrics = task.sample_metrics()
    texts = ["aab", "cc", "ab", "xab", "abb", "ccc", "", "b"]  # x isn't a token, so it's a mask
    rows = [
        [task.num_tokens if letter == "x" else " abcdef".index(letter) for letter in text] for text in texts
    ]
    for row in rows:
        metrics.update(torch.tensor([row + [0] * (8 - len(row))]))
    assert float(metrics.compute()["pattern"][0]) == 3 / 8
    assert task.primary_metric == "pattern"
    assert next(iter(scales(task).items())) == ("pattern", Scale(higher_is_better=True, logarithmic=False))
    assert "pattern" not in made(strings, tmp_path).sample_metrics()
    assert "pattern" in Sequences.may_change, "a run may be resumed with another one"
    with pytest.raises(SettingsError, match=r"--data\.pattern must be a regular expression, got '\(a'"):
        made(tmp_path / "not read yet", tmp_path, pattern="(a")


def test_statistics_know_the_training_strings(strings, tmp_path):
    task = made(strings, tmp_path)
    found = task.statistics
    train = task.strings("train")
    assert found.known([train[0], train[1], task.strings("val")[0], "zzz"]).tolist() == [
        True,
        True,
        False,
        False,
    ]
    lengths = np.bincount([len(text) for text in train], minlength=9) / len(train)
    assert np.allclose(found.lengths, lengths)
    assert np.allclose(found.unigrams[1], "".join(train).count("a") / (8 * len(train)))
    found.save(tmp_path / "statistics.npz")
    load = type(found).load
    same = load(tmp_path / "statistics.npz", 7, 8, ())
    assert np.array_equal(same.digests, found.digests)
    for sizes in ((6, 8, ()), (7, 9, ()), (7, 8, (3,))):
        with pytest.raises(SettingsError, match="damaged or of another model"):
            load(tmp_path / "statistics.npz", *sizes)
    assert hash_string("ab") != hash_string("ba")


# What is known of samples


def test_prompts_and_blanks(strings, tmp_path):
    task = made(strings, tmp_path)
    tokens, known = task.infill("ab__f")
    assert known.tolist() == [True, True, False, False, True, False, False, False]
    assert tokens[known].tolist() == task.vocabulary.encode("abf")
    assert task.prompt("cd").known.sum() == 2
    with pytest.raises(SettingsError, match="has no token 'x'"):
        task.prompt("ax")
    with pytest.raises(SettingsError, match="takes 9 tokens, the model has 8"):
        task.prompt("abcabcabc")
    with pytest.raises(SettingsError, match="needs a blank"):
        task.infill("abc")


def test_padding_is_forbidden_before_what_is_known_and_before_a_length(strings, tmp_path):
    task = made(strings, tmp_path)
    assert task.allowed() is None
    before = task.allowed(task.infill("a__b"))
    assert before[:, 0].tolist() == [False] * 4 + [True] * 4
    assert before[:, 1:].all()
    exact = task.allowed(task.infill("a__b"), 6)
    assert exact[:, 0].tolist() == [False] * 6 + [True] * 2
    assert exact[:6, 1:].all()
    assert not exact[6:, 1:].any()
    for length in (0, 9):
        with pytest.raises(SettingsError, match="--length must be from 1 to 8"):
            task.allowed(length=length)
    with pytest.raises(SettingsError, match="--length must be from 4 to 8, got 3"):
        task.allowed(task.infill("a__b"), 3)
    at_the_end = task.infill("ab____")
    assert task.allowed(at_the_end)[:, 0].tolist() == [False] * 6 + [True] * 2
    with pytest.raises(SettingsError, match="--length must be from 6 to 8, got 3"):
        task.allowed(at_the_end, 3)
    known = tauflow.Prompt(*at_the_end)  # made by hand, of tokens alone
    assert task.allowed(known)[:, 0].tolist() == [False] * 2 + [True] * 6


# From data to samples

TINY = [
    *("-c", str(ROOT / "configs" / "sequences.yaml"), "-c", str(ROOT / "configs" / "smoke.yaml")),
    *("--model.network.width=16", "--model.network.blocks=1", "--model.network.heads=2"),
    *("--trainer.max_steps=2", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
    *(
        "--trainer.log_every_n_steps=1",
        "--data.epoch_items=16",
        "--evaluation.nfes=[4]",
        "--evaluation.samplers=[auto]",
    ),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of runs of two steps, from masks and from uniform noise."""
    found = {}
    for source in ("masked", "uniform"):
        folder = tmp_path_factory.mktemp(source)
        (folder / "strings.txt").write_text("\n".join(words()))
        options = [f"--model.source={source}", f"--model.network.time={str(source == 'uniform').lower()}"]
        options += ["--evaluation.every_n_validations=0"] * (source == "uniform")
        train_here(
            *(*TINY, *options, "--data.files=strings.txt"),
            f"--trainer.default_root_dir={folder}",
            cwd=folder,
        )
        found[source] = folder / "version_0"
    return found


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Runs sample.py's entry point in this process; returns (exit code or message, what it printed)."""
    from tauflow.cli.sample import sample

    monkeypatch.chdir(tmp_path)

    def run(*args):
        with pytest.raises(SystemExit) as stop:
            sample([*map(str, args), "--accelerator=cpu", "--num_samples=8", "--batch_size=4", "--show=4"])
        return stop.value.code, capfd.readouterr().out

    return run


def shown(folder, task):
    """Return the samples that a folder of results keeps, as strings."""
    cells = [cell for cell in Results.read(folder).cells if cell.factors["sampler"] != REAL]
    return [text for cell in cells for text in task.texts(torch.tensor(cell.shown.tokens))]


@pytest.mark.parametrize("source", ["masked", "uniform"])
def test_samples_of_a_run_have_the_length_and_the_parts_that_were_asked_for(runs, source, call, tmp_path):
    checkpoint = runs[source] / "last.ckpt"
    task = tauflow.load(checkpoint).task
    assert not task.alone
    code, printed = call("--ckpt", checkpoint, "--sampler", "auto", "--nfe", 4, "--out", "plain")
    assert code == 0
    for name in ("unigram_tv", "length_tv", "mean_length", "broken_padding", "unique", "novel"):
        assert name in printed
    samplers = ["--sampler", "auto", "tr_cie", "tweedie", "--nfe", 4]
    code, _ = call("--ckpt", checkpoint, *samplers, "--length", 5, "--infill", "ab__f", "--out", "asked")
    assert code == 0
    found = shown(tmp_path / "asked", task)
    assert len(found) == 12
    assert all(len(text) == 5 and text[:2] == "ab" and text[4] == "f" for text in found), found
    code, _ = call("--ckpt", checkpoint, *samplers, "--length", 8, "--out", "longest")
    assert code == 0
    assert {len(text) for text in shown(tmp_path / "longest", task)} == {8}


def test_the_default_network_knows_positions(tmp_path, call):
    """Strings that have letters and digits at fixed positions: with all masked, posteriors differ."""
    generator = np.random.default_rng(0)
    draws = zip(generator.choice([*"ab"], 99), generator.integers(100, size=99), strict=True)
    (tmp_path / "strings.txt").write_text("\n".join({f"{letter}-{number:02d}" for letter, number in draws}))
    options = ["--data.files=strings.txt", "--data.pattern=[ab]-\\d\\d", "--evaluation.nfes=[2, 4]"]
    printed = train_here(*TINY, *options, f"--trainer.default_root_dir={tmp_path}", cwd=tmp_path)
    assert "│ pattern (higher is better) " in printed
    trained = tauflow.load(tmp_path / "version_0" / "last.ckpt")
    network = trained.model.denoiser.network
    masks = torch.full((1, 4), trained.task.num_tokens)
    probs = network(masks, torch.zeros(1)).softmax(-1)[0]  # (D, V)
    assert torch.pdist(probs).min() > 1e-4

    assert trained.task.pattern is None, "a regular expression from a file never runs"
    words = ("--ckpt", "version_0/last.ckpt", "--nfe", 4, "--data", "pattern=.*", "--out", "out")
    assert call(*words)[0] == 0
    values = {record.metric: record.measured.value for record in Results.read(Path("out")).cells[-1].records}
    assert values["pattern"] == 1


def test_a_run_is_resumed_on_its_own_strings_only(strings, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    made(strings, tmp_path).begin_run(run)
    before = (run / "statistics.npz").read_bytes()
    moved = strings.rename(tmp_path / "moved.txt")
    made(moved, tmp_path, val_items=8).begin_run(run)
    moved.write_text("\n".join([*words()[1:], words()[0]]))
    changed = made(moved, tmp_path)
    assert changed.token_names == [PAD, *"abcdef"], "so only the strings tell them apart"
    with pytest.raises(SettingsError, match="started with other strings than the data holds now; pass"):
        changed.begin_run(run)
    assert (run / "statistics.npz").read_bytes() == before


def test_a_changed_file_stops_a_resumed_run(runs, tmp_path):
    folder = shutil.copytree(runs["masked"].parent, tmp_path / "copy")
    (folder / "strings.txt").write_text("\n".join(sorted(words(), reverse=True)))
    resumed = ["--trainer.max_steps=3", f"--ckpt_path={folder}/version_0/last.ckpt"]
    options = ["--model.source=masked", "--model.network.time=false", "--data.files=strings.txt"]
    with pytest.raises(AssertionError, match="started with other strings"):
        train_here(*TINY, *options, *resumed, f"--trainer.default_root_dir={folder}", cwd=folder)


def test_what_cannot_be_asked_for_is_refused(runs, call):
    checkpoint = runs["masked"] / "last.ckpt"
    assert "--length must be from 1 to 8, got 9" in call("--ckpt", checkpoint, "--length", 9)[0]
    assert (
        "--length must be from 3 to 8, got 2"
        in call("--ckpt", checkpoint, "--length", 2, "--prompt", "abc")[0]
    )
    shipped = ROOT / "checkpoints" / "shipped" / "countdown_masked.ckpt"
    assert "doesn't support --length" in call("--ckpt", shipped, "--length", 9)[0]


def test_a_checkpoint_alone_samples(runs, call, tmp_path):
    shutil.copy(runs["masked"] / "last.ckpt", tmp_path / "alone.ckpt")
    task = tauflow.load(tmp_path / "alone.ckpt").task
    assert "unigram_tv, length_tv, novel and real data are skipped" in task.alone
    assert task.files is None
    code, printed = call("--ckpt", "alone.ckpt", "--nfe", 8, "--length", 3, "--out", "out")
    assert code == 0
    assert task.alone in " ".join(printed.split())
    measured = {record.metric: record.measured.value for record in Results.read(tmp_path / "out").records}
    assert {"broken_padding", "unique", "mean_length"} <= measured.keys()
    assert not {"unigram_tv", "length_tv", "novel"} & measured.keys()
    assert (measured["mean_length"], measured["counted_nfe"]) == (3, 3), "known padding costs no evaluation"
    found = tauflow.load(tmp_path / "alone.ckpt", data={"files": str(runs["masked"].parent / "strings.txt")})
    assert not found.task.alone
    assert found.task.statistics.unigrams.shape == (7,)
    with pytest.raises(CheckpointError, match="files of the data is of type"):
        tauflow.load(tmp_path / "alone.ckpt", data={"files": 3})


def test_a_pattern_in_a_checkpoint_never_runs(tmp_path):
    """With this one a prompt of 45 letters would take years; the vocabulary splits it at once."""
    path = tmp_path / "strings.txt"
    path.write_text("\n".join(["aa", "ab", "ba", "aab", "aaab", "ab" * 25] * 2))
    task = made(path, tmp_path, tokens=r"b|a|(a+)+$", val_share=0.4)
    described = describe(task)["init_args"]
    assert described["tokens"] == r"b|a|(a+)+$", "so that a resumed run is compared with it"
    again = Sequences.rebuilt(described | {"tokens": "(a+)+$"}, {})
    assert again.prompt("a" * 45 + "b").tokens[:46].tolist() == [1] * 45 + [2]
    with pytest.raises(SettingsError, match=r"no token covers '!', character 46 of .*the vocabulary has a b"):
        again.prompt("a" * 45 + "!")
    mine = Sequences.rebuilt(described, {"tokens": "ab|a|b"})
    assert mine.vocabulary.split("aab") == ["a", "ab"], "the user's own pattern counts"


@pytest.mark.parametrize("names", [None, ["a", PAD], [PAD, 3]])
def test_a_checkpoint_without_a_vocabulary_is_refused(names):
    with pytest.raises(CheckpointError, match="has no vocabulary"):
        Sequences.rebuilt({"token_names": names, "length": 8}, {})


def test_the_cache_says_what_it_holds(strings, tmp_path):
    made(strings, tmp_path)
    (folder,) = (tmp_path / "cache").iterdir()
    facts = json.loads((folder / "facts.json").read_text())
    assert facts == {"names": [PAD, *"abcdef"], "length": 8, "skipped": 0}


# Merges


def test_merges_make_strings_shorter_and_never_cut_a_token(tmp_path):
    """Of "ClCl" and "CC" in every string, longest names first: Cl is one token and stays one."""
    smiles = [
        f"CC{middle}ClCl{end}" for middle in ("O", "N", "CO", "C") for end in ("C", "O", "N", "CCO", "CN")
    ]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(smiles))
    plain = made(path, tmp_path, tokens="smiles")
    merged = made(path, tmp_path, tokens="smiles", merges=8)
    assert set(plain.vocabulary.names) == {PAD, "C", "Cl", "N", "O"}
    assert set(plain.vocabulary.names) < set(merged.vocabulary.names)
    assert merged.num_tokens == 8
    assert {"CC", "ClCl"} < set(merged.vocabulary.names)
    assert merged.length < plain.length
    for text in smiles:
        split = merged.vocabulary.split(text)
        assert "".join(split) == text
        assert len(split) < len(plain.vocabulary.split(text))
    assert merged.vocabulary.split("OCClCC") == ["O", "C", "Cl", "CC"]  # not OCC and a lone l
    assert sorted([*merged.strings("train"), *merged.strings("val")]) == sorted(smiles)
    again = Sequences.rebuilt(
        {"token_names": merged.token_names, "tokens": "smiles", "merges": 8, "length": merged.length}, {}
    )
    assert again.vocabulary.split("CCOClClC") == merged.vocabulary.split("CCOClClC")
    with pytest.raises(SettingsError, match="the vocabulary has no token 'Br'"):
        merged.vocabulary.encode("CCBr")


@pytest.mark.parametrize("merges", [0, 7, 2**16])
def test_merges_must_be_more_than_the_tokens(strings, tmp_path, merges):
    with pytest.raises(SettingsError, match=f"must be from 8 to 65535, got {merges}"):
        made(strings, tmp_path, merges=merges)


def rebuilt(task):
    """Return the task as a checkpoint would describe it."""
    names = ("token_names", "tokens", "merges", "length")
    return Sequences.rebuilt({name: getattr(task, name) for name in names}, {})


@pytest.mark.parametrize(
    ("tokens", "strings", "merges"),
    [
        ("characters", [f"{word}<pad>" for word in words(40)], 30),  # a merge spells the padding
        ("^aa|a|.", ["aab", "baa", "aabaa", "caa", "aacaa", "bbaac"] * 3, 8),  # aa is a token, and a merge
        ("(?<=b)a|b|c", ["ba", "bcba", "cba", "bac", "bacba"] * 3, 6),  # no a is found alone
    ],
)
@pytest.mark.filterwarnings("ignore:--data.merges is")
def test_a_vocabulary_with_merges_can_be_rebuilt(tmp_path, tokens, strings, merges):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(strings))
    task = made(path, tmp_path, tokens=tokens, merges=merges, val_share=0.4)
    again = rebuilt(task)
    for text in strings:
        assert again.vocabulary.text(again.vocabulary.encode(text)) == text
    assert sorted([*task.strings("train"), *task.strings("val")]) == sorted(strings)


def test_fewer_merges_than_asked_for_are_said(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("ab\nabab\nb\na\nba\n" * 5)
    for _ in range(2):  # built, then from the cache
        with pytest.warns(UserWarning, match=r"--data\.merges is 500, but the strings give \d+ tokens only"):
            task = made(path, tmp_path, merges=500, val_share=0.4)
    assert 3 < task.num_tokens < 10
