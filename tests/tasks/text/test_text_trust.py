"""Text that touches only what the user named, and files of it that are damaged or hostile."""

import json
import os
import resource
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import tauflow
from tauflow.errors import CheckpointError, SettingsError, TauflowError, WriteError
from tauflow.networks import TransformerConfig
from tauflow.tasks import Text
from tauflow.tasks.text.corpus import HubCorpus, TextFiles, split_patterns
from tauflow.tasks.text.statistics import TextStatistics
from tauflow.tasks.text.vocabulary import train_bpe, vocabulary_from
from tauflow.train.module import FORMAT, KEY, DFMModule, describe

WORDS = ["the", "people", "of", "this", "nation", "and", "its", "government", "hold", "peace", "war", "law"]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")
OUTSIDE = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "pickle.")
seen: list[tuple] | None = None  # what happens, while somebody watches


def hear(event: str, arguments: tuple) -> None:
    if seen is None:
        return
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        writing = isinstance(arguments[2], int) and bool(arguments[2] & WRITES)
        seen.append(("write" if writing else "read", os.fsdecode(arguments[0])))
    elif event in CHANGES or event.startswith(OUTSIDE):
        seen.append((event, *map(str, arguments)))


sys.addaudithook(hear)  # there is no way to take it off; `watched` tells when it listens


@contextmanager
def watched():
    global seen
    seen = found = []
    try:
        yield found
    finally:
        seen = None


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    generator = np.random.default_rng(0)
    documents = [f"Document {n}: " + " ".join(generator.choice(WORDS, size=60)) + "." for n in range(120)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(documents))
    return path


def text(corpus_file, folder, **options):
    settings = {"vocabulary": 300, "length": 16, "batch_size": 4, "val_share": 0.1, "val_items": 20} | options
    return Text(files=str(corpus_file), cache=str(folder / "cache"), **settings)


def save(task, path, **changed):
    """Write a checkpoint of an untrained model, with other settings of the task than its own."""
    network = TransformerConfig(width=16, blocks=1, heads=1)
    torch.manual_seed(0)
    module = DFMModule(task.facts, network=network)
    described = describe(task)
    described["init_args"] |= changed
    described["init_args"] = {name: value for name, value in described["init_args"].items() if value != "-"}
    weights = {name: value for name, value in module.state_dict().items() if name.startswith("ema.")}
    entry = {"format": FORMAT, "model": describe(module), "task": described}
    torch.save({"state_dict": weights, "global_step": 0, KEY: entry}, path)
    return path


@pytest.fixture
def run(corpus_file, tmp_path):
    """The folder of a run, with a checkpoint and statistics, and the task that it was made with."""
    folder = tmp_path / "run"
    folder.mkdir()
    task = text(corpus_file, tmp_path)
    task.begin_run(folder)
    save(task, folder / "last.ckpt")
    return folder, task


# A checkpoint touches nothing but itself

HOSTILE = {
    "files": "/etc/pass*",
    "hub": "pandas",
    "cache": "made_by_the_file",
    "judges": "ngram,somebody/model,https://example.com/x",
    "tokenizer": "somebody/tokenizer",
    "hub_config": "x",
    "document": "file",
    "built_in": True,
    "num_workers": 10**9,
}


@pytest.mark.parametrize("statistics", [True, False])
def test_a_checkpoint_names_no_corpus_cache_hub_or_judge(run, tmp_path, monkeypatch, statistics):
    folder, task = run
    save(task, folder / "last.ckpt", **HOSTILE)
    if not statistics:
        (folder / "statistics.npz").unlink()
    here = tmp_path / "here"
    here.mkdir()
    (here / "train.pkl").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    monkeypatch.chdir(here)
    tauflow.load(folder / "last.ckpt")  # what is imported once is read now
    with watched() as found:
        rebuilt = tauflow.load(folder / "last.ckpt").task
        metrics = rebuilt.sample_metrics()
        metrics.update(torch.zeros(2, 16, dtype=torch.long))
        metrics.compute()
        assert rebuilt.show(rebuilt.prompt("the people").tokens[None])
        rebuilt.primary_metric  # noqa: B018
        alone = rebuilt.alone
    touched = [each for each in found if each[0] != "read"]
    assert not touched
    read = {each[1] for each in found}
    assert not [name for name in read if "passwd" in name or name.endswith((".pkl", ".txt", "topics.py"))]
    assert [path.name for path in here.iterdir()] == ["train.pkl"]
    assert bool(alone) == (not statistics)
    assert ("ppl_corpus_ngram" in metrics) == statistics


def test_what_cannot_be_measured_says_how_to_name_the_corpus(run):
    folder, _ = run
    (folder / "statistics.npz").unlink()
    task = tauflow.load(folder / "last.ckpt").task
    assert "there is no statistics.npz next to the checkpoint" in task.alone
    for missing in (lambda: task.setup("validate"), lambda: task.statistics, lambda: task.unigrams()):
        with pytest.raises(
            SettingsError, match=r"pass it: `sample\.py --data files=\.\.\.` or `tauflow\.load"
        ):
            missing()
    with pytest.raises(SettingsError, match="there is no statistics"):
        task.use_judges("ngram")


def test_the_user_names_the_corpus(run, corpus_file, tmp_path):
    folder, task = run
    (folder / "statistics.npz").unlink()
    data = {"files": str(corpus_file), "cache": str(tmp_path / "other")}
    rebuilt = tauflow.load(folder / "last.ckpt", data=data).task
    assert rebuilt.alone == ""
    np.testing.assert_array_equal(rebuilt.statistics.grams, task.statistics.grams)
    np.testing.assert_array_equal(rebuilt.statistics.validation, task.statistics.validation)
    assert list((tmp_path / "other").iterdir())
    built_in = tauflow.load(folder / "last.ckpt", data={"built_in": True}).task
    assert next(built_in.corpus.documents())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"length": 8}, "may say files, built_in"),
        ({"files": 3}, "files of the data is of type"),
    ],
)
def test_data_that_is_not_the_users_to_decide(run, data, message):
    with pytest.raises(TauflowError, match=message):
        tauflow.load(run[0] / "last.ckpt", data=data)


@pytest.mark.parametrize("tokenizer", ["-", 3, "{}", "[" * 10**5])
def test_a_checkpoint_without_its_tokenizer(run, tokenizer):
    """The one that it names, which lies there, is not taken instead."""
    folder, task = run
    (folder / "own.json").write_text(task.tokenizer_json)
    save(task, folder / "last.ckpt", tokenizer_json=tokenizer, tokenizer=str(folder / "own.json"))
    with pytest.raises(CheckpointError) as caught:
        tauflow.load(folder / "last.ckpt")
    assert "\n" not in str(caught.value)


# Damaged files


def rewritten(path, change):
    """Write the arrays of an .npz again, after `change` of their dictionary."""
    with np.load(path) as saved:
        arrays = dict(saved)
    change(arrays)
    np.savez_compressed(path, **arrays)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def folder_instead(path):
    path.unlink()
    path.mkdir()


def sets(name, value):
    return lambda path: rewritten(path, lambda arrays: arrays.update({name: np.asarray(value)}))


def turns(name, function):
    return lambda path: rewritten(path, lambda arrays: arrays.update({name: function(arrays[name])}))


DAMAGE = {
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped bit": flip,
    "folder": folder_instead,
}
UNFIT = {
    "missing key": lambda path: rewritten(path, lambda arrays: arrays.pop("grams")),
    "huge order": sets("order", 10**9),
    "pickle": lambda path: rewritten(path, lambda arrays: arrays.update(grams=np.array([{}], dtype=object))),
    "NaN": turns("unigrams", lambda old: old * np.nan),
    "foreign token": turns("validation", lambda old: old + 1000),
}


@pytest.mark.parametrize("damage", DAMAGE | UNFIT)
def test_damaged_statistics_name_the_file_to_remove(run, damage):
    folder, _ = run
    (DAMAGE | UNFIT)[damage](folder / "statistics.npz")
    task = tauflow.load(folder / "last.ckpt").task
    with pytest.raises(SettingsError) as caught:
        task.sample_metrics()
    message = str(caught.value)
    assert "statistics.npz is damaged or of another model" in message
    assert "; remove it: it is made again from the corpus" in message
    assert "\n" not in message


def test_statistics_are_read_as_they_were_written(run):
    folder, task = run
    read = TextStatistics.load(folder / "statistics.npz", task.num_tokens, 16)
    blocks = task.statistics.validation
    np.testing.assert_array_equal(
        read.ngrams.log_probabilities(blocks), task.statistics.ngrams.log_probabilities(blocks)
    )
    np.testing.assert_array_equal(read.memorized(blocks), task.statistics.memorized(blocks))
    np.testing.assert_array_equal(read.unigrams, task.statistics.unigrams)


# A full disk


@contextmanager
def largest_file(size):
    """Let no file of this process become larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_while_blocks_are_written(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    with (
        largest_file(20_000),
        pytest.raises(WriteError, match=r"choose another folder with --data\.cache") as caught,
    ):
        task.setup("fit")
    assert caught.value.errno
    assert "\n" not in str(caught.value)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"], "the tokenizer alone"
    task.setup("fit")
    assert len(task.train_data.data) > 100


def test_a_disk_that_is_full_before_the_tokenizer_or_the_statistics(corpus_file, tmp_path):
    with largest_file(1000), pytest.raises(WriteError, match=r"cannot write .*tokenizer-"):
        text(corpus_file, tmp_path)
    assert not list((tmp_path / "cache").iterdir())
    task = text(corpus_file, tmp_path)
    task.statistics  # noqa: B018
    with largest_file(1000), pytest.raises(WriteError, match=r"cannot write .*statistics\.npz"):
        task.begin_run(tmp_path)
    assert not list(tmp_path.glob("*statistics*"))


def test_a_cache_that_cannot_be_a_folder(corpus_file, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(WriteError, match="cannot write"):
        text(corpus_file, tmp_path)
    with pytest.raises(WriteError, match=r"--data\.cache"):
        text(corpus_file, tmp_path, tokenizer_json=train_bpe(["some text"], 300)).setup("fit")


def test_a_disk_that_fills_while_a_data_set_is_downloaded(tmp_path, monkeypatch):
    def load_dataset(*args, **options):
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RuntimeError("An error occurred while generating the dataset") from error

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(WriteError, match="No space left on device; free space, set HF_HOME"):
        Text(hub="some/set", cache=str(tmp_path))


def test_a_data_set_that_breaks_while_it_is_read():
    def rows():
        yield {"text": "one"}
        raise ConnectionError("the network is gone\nand more")

    hub = HubCorpus("some/set", None, "train", "text", streaming=True)
    found = hub.texts(rows())
    assert next(found) == "one"
    with pytest.raises(
        SettingsError, match=r"cannot read the data set 'some/set'.*the network is gone; check"
    ):
        next(found)
    with pytest.raises(SettingsError, match="must be a column of text"):
        list(hub.texts([{"text": 3}]))


# Tokenizers


def tokenizer_json(vocabulary, **parts):
    """Return a tokenizer of words with this vocabulary."""
    empty = dict.fromkeys(
        ["truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"]
    )
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    return json.dumps({"version": "1.0", "added_tokens": [], **empty, "model": model} | parts)


def chain(kind, **settings):
    return {"type": "Sequence", "normalizers": [{"type": kind, **settings}] * 40}


BAD_TOKENIZERS = {
    "gap": tokenizer_json({"a": 0, "b": 5}),
    "2^32": tokenizer_json({"a": 0, "b": 2**32}),
    "no ids": tokenizer_json({}),
    "half": tokenizer_json({"a": 0, "b": 1})[:100],
    "bad regular expression": tokenizer_json(
        {"a": 0},
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
    ),
    "panic": tokenizer_json({"a": 0}, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "bomb": tokenizer_json(
        {"a": 0, "b": 1}, normalizer=chain("Replace", pattern={"String": "a"}, content="aaaaaaaaaa")
    ),
}


@pytest.mark.parametrize("kind", BAD_TOKENIZERS)
def test_tokenizers_that_no_model_can_have(kind, run):
    folder, task = run
    with pytest.raises(SettingsError, match="tokenizer") as caught:
        vocabulary_from(BAD_TOKENIZERS[kind])
    assert "\n" not in str(caught.value)
    save(task, folder / "last.ckpt", tokenizer_json=BAD_TOKENIZERS[kind])
    with pytest.raises(CheckpointError, match="tokenizer"):
        tauflow.load(folder / "last.ckpt")


def test_a_tokenizer_that_fails_when_it_is_used():
    slow = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    vocabulary = vocabulary_from(tokenizer_json({"a": 0, "<unk>": 1}, pre_tokenizer=slow))
    for use in (vocabulary.encode_strictly, lambda words: vocabulary.encode([words])):
        with pytest.raises(SettingsError, match="cannot encode"):
            use("a" * 40 + "!")
    unknown = vocabulary_from(tokenizer_json({"a": 0, "b": 1}))
    with pytest.raises(SettingsError, match=r"cannot encode the text: .*Missing \[UNK\]"):
        unknown.encode_strictly("c")


def test_broken_files_of_a_tokenizer(corpus_file, tmp_path):
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(SettingsError, match="aren't a readable BPE"):
        text(corpus_file, tmp_path, tokenizer=str(tmp_path))


# Prompts and samples


def test_prompts_with_broken_unicode(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    with pytest.raises(SettingsError, match="cannot encode the text"):
        task.prompt("the \udcff people")


def test_samples_do_not_control_the_terminal(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    tokens = task.prompt("a\x1b[2J\x07\tb\nc\x9b").tokens[None]
    assert "a␛[2J␇\tb\nc\ufffd" in task.show(tokens)[0]
    assert "\x1b" in task.texts(tokens)[0], "judges read it as it is"


# Names of files


@pytest.mark.parametrize("name", ["*.txt", "a, b [c], d?.txt", "a,b/c,d.txt"])
def test_names_that_exist_are_taken_literally(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("right")
    (tmp_path / "plain.txt").write_text("plain")
    assert list(TextFiles(split_patterns(name)).documents()) == ["right"]
    for names in (f"{name},plain.txt", f"{name}, plain.txt"):
        assert list(TextFiles(split_patterns(names)).documents()) == ["right", "plain"]
    assert list(TextFiles(split_patterns(f"pl*.txt, {name}")).documents()) == ["plain", "right"]


def test_an_empty_name_is_no_other_corpus():
    """A variable of the shell that is not set must not train on the built-in corpus instead."""
    with pytest.raises(SettingsError, match="files"):
        Text(files="")
