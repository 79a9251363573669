"""Molecules: what RDKit says of samples, properties in bins, judges; training and sampling by commands."""

import csv
import importlib.util
import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from conftest import ROOT, sample_here, train_here

import tauflow
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import measured, reference
from tauflow.evaluation.figures import numbers_of, properties_figure, sample_files, samples_csv
from tauflow.evaluation.results import Cell, Results, join_tables
from tauflow.tasks import Molecules
from tauflow.tasks.molecules.bins import Bins, property_names
from tauflow.tasks.molecules.chemistry import canonical, properties
from tauflow.tasks.molecules.moses import Reference, moses_metrics
from tauflow.tasks.molecules.task import from_smiles, to_smiles
from tauflow.train.module import describe

FILE = ROOT / "tests" / "data" / "molecules.smi"  # 60 short molecules of the test set of MOSES
SMILES = FILE.read_text().split()
ETHANOL, BENZENE, BROKEN = "CCO", "c1ccccc1", "c1ccc("
SMALL = {"length": 40, "val_share": 0.2, "val_items": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("molecules")


@pytest.fixture(scope="module")
def data(folder):
    """Settings of a task with 60 molecules."""
    return {"files": str(FILE), "cache": str(folder / "cache"), **SMALL}


@pytest.fixture(scope="module")
def task(data):
    made = Molecules(**data)
    made.setup()
    return made


@pytest.fixture(scope="module")
def asked(data):
    """The same with two properties that can be asked for, in two bins."""
    made = Molecules(**data, properties="logp,qed", bins=2)
    made.setup()
    return made


def rows(task, *texts):
    """Return samples (B, D) that are these strings."""
    tokens = torch.zeros(len(texts), task.length, dtype=torch.long)
    for row, text in zip(tokens, texts, strict=True):
        numbers = task.vocabulary.encode(text)
        row[: len(numbers)] = torch.tensor(numbers)
    return tokens


def values(task, tokens, condition=None):
    metrics = task.sample_metrics()
    metrics.update(tokens, **({} if condition is None else {"condition": condition}))
    return {name: (each.value, each.standard_error) for name, each in measured(metrics).items()}


# Data


def test_strings_of_files_become_canonical(tmp_path):
    twisted = [f"C(O)C name{number}" if number == 0 else text for number, text in enumerate(SMILES)]
    (tmp_path / "mine.smi").write_text("\n".join(twisted))
    task = Molecules(files=str(tmp_path / "mine.smi"), cache=str(tmp_path), **SMALL)
    strings = {*task.strings("train"), *task.strings("val")}
    assert strings == {ETHANOL, *SMILES[1:]}
    assert all(canonical(text) == text for text in strings)
    assert task.token_names[0] == "<pad>"
    assert {"Br", "Cl", "[nH]", "c", "1"} <= set(task.token_names)
    assert not {"B", "[", "l"} & set(task.token_names)


def test_a_share_of_the_molecules(data, task):
    some = Molecules(**data, share=0.5)
    assert set(some.strings("train")) < set(task.strings("train"))
    for split in ("train", "val"):
        assert 0.25 < len(some.strings(split)) / len(task.strings(split)) < 0.75, split


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("CCO\nc1ccc(\nCC\n", {}, r"line 2 of .*: RDKit can't read the molecule 'c1ccc\('; fix or remove it"),
        ("CCO\nCC\n", {"share": 1e-9}, "need strings, got 0 and 0"),
        ("CCO\nCC\n", {"judges": "fid"}, "no judge 'fid' of molecules; choose from fcd, diversity, moses"),
        ("CCO\nCC\n", {"properties": "logp,colour"}, "some of logp, qed, sa, weight, .*got 'logp,colour'"),
    ],
)
def test_data_and_settings_that_cannot_be(tmp_path, text, settings, message):
    (tmp_path / "mine.smi").write_text(text)
    with pytest.raises(SettingsError, match=message):
        Molecules(
            **{"files": str(tmp_path / "mine.smi"), "cache": str(tmp_path), "val_share": 0.5, **settings}
        )


def test_too_few_values_for_bins(tmp_path):
    (tmp_path / "mine.smi").write_text("\n".join(["CCO", "CC"] * 10))
    with pytest.raises(SettingsError, match="logp of the training molecules takes too few values for 4 bins"):
        Molecules(str(tmp_path / "mine.smi"), cache=str(tmp_path), val_share=0.4, properties="logp")


def test_the_data_of_moses_is_found_in_its_package_or_asked_for(monkeypatch, tmp_path):
    """Without the package nothing needs it until the data is read: the vocabulary is known."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "tauflow.tasks.molecules.chemistry.find_spec", lambda name: None if name == "moses" else real(name)
    )
    task = Molecules(cache=str(tmp_path))
    assert (task.num_tokens, task.shape, task.moses) == (25, (56,), True)
    with pytest.raises(SettingsError, match=r"pip install --no-deps molsets==0\.3\.1"):
        task.setup()
    with pytest.raises(SettingsError, match=r"pip install --no-deps molsets==0\.3\.1"):
        task.use_judges("moses")


def test_the_data_of_moses_is_taken_as_it_is(monkeypatch, tmp_path):
    """Its training set, with its test set for validation; here both are the same file."""
    (tmp_path / "data.smi").write_text("\n".join(["OCC", *SMILES]))
    monkeypatch.setattr("tauflow.tasks.molecules.task.dataset", lambda split: tmp_path / "data.smi")
    task = Molecules(cache=str(tmp_path))
    task.setup()
    assert list(task.strings("train")) == list(task.strings("val")) == ["OCC", *SMILES]
    assert task.alone == ""
    assert {"novel", "unigram_tv", "length_tv"} <= set(task.sample_metrics())


def test_a_checkpoint_of_moses_alone_reads_and_writes_nothing(monkeypatch, tmp_path):
    (tmp_path / "data.smi").write_text("\n".join(["OCC", *SMILES]))
    monkeypatch.setattr("tauflow.tasks.molecules.task.dataset", lambda split: tmp_path / "data.smi")
    described = describe(Molecules(cache=str(tmp_path)))["init_args"]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    task = Molecules.rebuilt(described, {})
    assert "novel" not in task.sample_metrics()
    assert "novel and real data are skipped" in task.alone
    assert not list((tmp_path / "empty").iterdir())
    asked = Molecules.rebuilt(described, {"moses": True, "cache": str(tmp_path)})
    assert "novel" in asked.sample_metrics()


def test_without_rdkit_one_line_says_how_to_install_it(monkeypatch, data):
    monkeypatch.setitem(__import__("sys").modules, "rdkit.Chem", None)
    with pytest.raises(SettingsError, match=r"pip install -c constraints.txt -e '.\[molecules\]'"):
        Molecules(**data)


# Samples


def test_metrics_of_samples_by_hand(task):
    """Five valid of eight, four distinct among them, of which one is a training molecule."""
    known = task.strings("train")[0]
    texts = [ETHANOL, "OCC", BENZENE, known, "CCN", BROKEN, "", "CCO)"]
    found = values(task, rows(task, *texts))
    assert found["valid"][0] == 5 / 8
    assert found["valid"][1] == pytest.approx(math.sqrt(5 / 8 * 3 / 8 / 7))
    assert found["unique"][0] == 4 / 5
    assert found["novel"][0] == 4 / 5
    assert found["broken_padding"][0] == 0
    assert {"length_tv", "unigram_tv", "mean_length"} <= found.keys()
    assert task.primary_metric == "valid"


def test_samples_without_a_molecule(task):
    masks = torch.full((3, task.length), task.num_tokens)
    found = values(task, torch.cat([masks, rows(task, BROKEN, "")]))
    assert found["valid"][0] == 0
    assert math.isnan(found["unique"][0])
    assert math.isnan(found["novel"][0])


def test_metrics_of_several_ranks(task):
    """After a reduction over ranks a list of digests is one tensor."""
    metric = task.sample_metrics()["unique"]
    metric.update(rows(task, ETHANOL, "OCC"))
    metric.digests = torch.cat(metric.digests)
    assert float(metric.compute()[0]) == 0.5


def test_real_molecules_are_valid(task):
    found = reference(task, 10)
    assert found["valid"].value == found["unique"].value == found["novel"].value == 1


def test_rdkit_is_asked_once_for_a_batch(task, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "tauflow.tasks.molecules.metrics.canonical", lambda text: asked.append(text) or canonical(text)
    )
    tokens = rows(task, ETHANOL, BROKEN, "CCCCO")
    values(task, tokens)
    task.table(tokens)
    task.show(tokens)
    assert asked == [ETHANOL, BROKEN, "CCCCO"]


def test_what_is_shown_of_samples(task):
    tokens = rows(task, "OCC", BROKEN, "")
    assert task.show(tokens) == ["[1] OCC", "[2] c1ccc(  ✗", "[3]   ✗"]
    pictures = task.draw(tokens)
    assert (pictures.dtype, pictures.shape) == (np.uint8, (3, 128, 160, 3))
    table = task.table(tokens)
    assert table["smiles"] == [ETHANOL, BROKEN, ""]
    assert table["valid"] == [True, False, False]
    wanted = properties([ETHANOL])
    for name in ("logp", "qed", "sa", "weight"):
        assert table[name][0] == pytest.approx(wanted[name][0], abs=1e-4)
        assert math.isnan(table[name][1])
    assert "condition" not in table


def test_selfies_are_molecules_whatever_they_say(data):
    pytest.importorskip("selfies")
    task = Molecules(**data, representation="selfies")
    strings = list(task.strings("train"))
    assert all(text.startswith("[") for text in strings)
    assert {canonical(to_smiles(text, "selfies")) for text in strings} <= set(SMILES)
    generator = torch.Generator().manual_seed(0)
    found = values(task, torch.randint(1, task.num_tokens, (8, task.length), generator=generator))
    assert found["valid"][0] == 1
    task.setup()
    real = torch.stack([task.train_data[number]["tokens"] for number in range(4)])
    assert values(task, real)["novel"][0] == 0
    assert task.show(real)[0] == f"[1] {task.texts(real)[0]}"
    masked = torch.full((1, task.length), task.num_tokens)
    assert values(task, masked)["valid"][0] == 0
    assert from_smiles(ETHANOL, "selfies") == "[C][C][O]"


def test_hydrogen_is_its_own_selfies(tmp_path):
    pytest.importorskip("selfies")
    (tmp_path / "mine.smi").write_text("\n".join(["[H][H]", *SMILES[:20]]))
    files = {"files": str(tmp_path / "mine.smi"), "cache": str(tmp_path), "val_share": 0.2}
    task = Molecules(**files, representation="selfies")
    assert "[H][H]" in {*task.strings("train"), *task.strings("val")}
    (tmp_path / "mine.smi").write_text("\n".join(["CCO", "C[Fe]$C"]))
    with pytest.raises(SettingsError, match=r"line 2 of .* SELFIES can't express"):
        Molecules(**files, representation="selfies")


# Properties in bins

BINS = Bins(("logp", "qed"), ((1.0, 2.0), (0.5,)))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("logp=low qed=high", [0, 1]),
        ("QED=0.8, logP=1.5", [1, 1]),
        ("logp=1 qed=0.5", [1, 1]),
        ("logp=-7 qed=0.49", [0, 0]),
    ],
)
def test_conditions_in_words(text, wanted):
    assert BINS.read(text) == wanted


@pytest.mark.parametrize("text", ["logp=high", "size=3 qed=1", "logp=x qed=1"])
def test_conditions_that_cannot_be_read(text):
    with pytest.raises(
        SettingsError, match="each of logp, qed once, as low, high or a value, such as 'logp=hi"
    ):
        BINS.read(text)


def test_bins_and_their_captions():
    found = {"logp": np.array([0.9, 1.0, 2.5, np.nan]), "qed": np.array([0.2, 0.5, 0.9, np.nan])}
    assert BINS.of(found).tolist() == [[0, 0], [1, 1], [2, 1], [-1, -1]]
    assert BINS.caption([1, 1]) == "logp 1 to 2, qed above 0.5"
    assert BINS.caption([0, -1]) == "logp below 1, qed any"
    fitted = Bins.fitted(["logp"], {"logp": np.arange(100.0)}, 4)
    assert np.bincount(fitted.of({"logp": np.arange(100.0)})[:, 0]).tolist() == [25] * 4
    assert property_names("QED, logp") == ("qed", "logp")
    for edges in ([[2.0, 1.0], [0.5, 0.6]], [[1.0, 2.0]], "low", [[1.0, math.inf], [1.0, 2.0]]):
        with pytest.raises(SettingsError, match="edges must be 2 ascending numbers for each of logp, qed"):
            Bins.given(["logp", "qed"], edges, 3)


def test_items_have_the_bins_of_their_molecules(asked):
    assert asked.conditions == (2, 2)
    items = [asked.train_data[number] for number in range(5)]
    (logp,), (qed,) = asked.edges
    for item in items:
        found = properties(asked.texts(item["tokens"][None]))
        assert item["condition"].tolist() == [int(found["logp"][0] >= logp), int(found["qed"][0] >= qed)]
    assert asked.condition("logp=high qed=low").tolist() == asked.condition("1 0").tolist() == [1, 0]
    assert asked.caption(torch.tensor([1, 0])) == f"logp above {logp:g}, qed below {qed:g}"
    with pytest.raises(SettingsError, match="a condition of Molecules is whole numbers"):
        asked.condition("2 0")


def test_hits_are_counted_among_valid_samples(asked):
    tokens = rows(asked, *SMILES[:4], BROKEN)
    there = asked._bins.of(properties(SMILES[:4]))
    condition = torch.cat([torch.from_numpy(there), torch.zeros(1, 2, dtype=torch.long)])
    assert values(asked, tokens, condition)["hit"][0] == 1
    condition[0, 0] = 1 - condition[0, 0]  # the logP of another bin
    condition[1] = -1  # nothing was asked for
    found = values(asked, tokens, condition)
    assert found["hit"][0] == pytest.approx(2 / 3)
    assert found["hit_logp"][0] == pytest.approx(2 / 3)
    assert found["hit_qed"][0] == 1
    assert reference(asked, 10)["hit"].value == 1


# Judges


def test_the_judge_of_moses_says_what_moses_says(data):
    task = Molecules(**data)
    task.setup()
    task.use_judges("moses")
    generated = [*SMILES[10:30], SMILES[10], BROKEN]
    tokens = rows(task, *generated)
    found = values(task, tokens)
    real = Reference.of(
        [canonical(text) for text in task.texts(torch.from_numpy(task.statistics.validation).long())]
    )
    with pytest.warns(UserWarning, match="unique@"):
        wanted = moses_metrics(generated, set(task.strings("train")), real)
    names = {"fcd_test": "FCD/Test", "snn_test": "SNN/Test", "frag_test": "Frag/Test", "intdiv": "IntDiv"}
    names |= {"unique_1000": "unique@1000", "logp": "logP", "novelty": "Novelty", "valid": "valid"}
    for ours, theirs in names.items():
        assert found[ours][0] == pytest.approx(wanted[theirs], rel=1e-6), ours
    assert all(found[name][1] > 0 for name in ("fcd_test", "snn_test", "intdiv", "logp"))
    task.use_judges("fcd,diversity")
    again = values(task, tokens)
    assert again["fcd_test"][0] == pytest.approx(wanted["FCD/Test"], rel=1e-6)
    assert again["intdiv2"][0] == pytest.approx(wanted["IntDiv2"], rel=1e-6)
    assert "snn_test" not in again
    scales = task.sample_metrics()
    assert (scales["fcd_test"].higher_is_better, scales["intdiv"].higher_is_better) == (False, True)


@pytest.mark.parametrize("judge", ["fcd", "diversity", "moses"])
def test_samples_without_a_molecule_are_not_judged(data, judge):
    task = Molecules(**data)
    task.use_judges(judge)
    with pytest.warns(UserWarning, match=f"no sample is valid: {judge} cannot be measured"):
        found = values(task, rows(task, BROKEN, ""))
    assert math.isnan(found["fcd_test" if judge == "fcd" else "intdiv"][0])


def test_novelty_of_moses_is_against_all_of_its_molecules(monkeypatch, tmp_path):
    (tmp_path / "data.smi").write_text("\n".join(SMILES))
    monkeypatch.setattr("tauflow.tasks.molecules.task.dataset", lambda split: tmp_path / "data.smi")
    monkeypatch.setattr(Reference, "shipped", lambda split: None)
    for share, there in ((1.0, True), (0.5, False)):
        task = Molecules(cache=str(tmp_path), share=share)
        with warnings.catch_warnings(record=True) as said:
            task.use_judges("moses")
        assert ("novelty" in task.sample_metrics()) is there
        assert any("novelty is skipped" in str(each.message) for each in said) is not there
        assert "novel" in task.sample_metrics()


# What other programs and people see


def test_tables_are_kept_with_the_results(tmp_path):
    table = {"smiles": ["C", "x,y"], "valid": [True, False], "logp": [0.5, math.nan]}
    results = Results(cells=[Cell({"sampler": "auto", "nfe": 8}, table=table)])
    results.save(tmp_path)
    (cell,) = Results.read(tmp_path).cells
    assert cell.table["smiles"] == ["C", "x,y"]
    assert cell.table["valid"] == [True, False]
    assert numbers_of(cell.table)["logp"].tolist() == [0.5]
    assert samples_csv(results).splitlines() == [
        "sampler,nfe,smiles,valid,logp",
        "auto,8,C,true,0.5",
        'auto,8,"x,y",false,',
    ]
    assert samples_csv(Results()) == ""


def test_tables_of_batches_are_joined_in_their_order():
    assert join_tables({2: {"n": [3.0]}, 0: {"n": [1.0, 2.0]}}) == {"n": [1.0, 2.0, 3.0]}
    assert join_tables({}) == join_tables({0: {}, 1: {}}) == {}


def test_properties_are_drawn_against_real_ones(task):
    texts = {4: (ETHANOL, BROKEN, *SMILES[:4]), 2: (BROKEN,)}
    cells = [
        Cell({"sampler": name, "nfe": nfe}, table=task.table(rows(task, *texts[nfe])))
        for name in ("euler", "tr_cie")
        for nfe in (4, 2)
    ]
    figure = properties_figure(Results(cells=cells), task)
    assert [axes.get_xlabel() for axes in figure.axes] == ["logp", "qed", "sa", "weight"]
    _, labels = figure.axes[0].get_legend_handles_labels()
    assert sorted(labels) == ["(real data)", "euler", "tr_cie"]
    assert list(sample_files(Results(cells=cells), task)) == ["properties.png", "samples.csv"]
    assert properties_figure(Results(cells=[Cell({"sampler": "euler", "nfe": 4})]), task) is None
    assert properties_figure(Results(cells=cells), tauflow.tasks.Countdown()) is not None


# Commands


@pytest.fixture(scope="module")
def checkpoint(folder, data):
    """A model of two steps, trained by the configuration of molecules that can be asked for."""
    configs = ("molecules_properties", "smoke")
    flags = [part for name in configs for part in ("-c", f"{ROOT}/configs/{name}.yaml")]
    flags += [f"--data.{name}={value}" for name, value in data.items()]
    flags += ["--data.share=1", "--data.merges=null", "--data.bins=2", "--data.edges=null"]
    flags += ["--trainer.max_steps=2"]
    flags += ["--evaluation.samplers=auto", "--evaluation.nfes=[2]", "--evaluation.nll_items=0"]
    train_here(*flags, "--trainer.accelerator=cpu", cwd=folder)
    (path,) = folder.rglob("last.ckpt")
    return path


def test_a_run_shows_molecules(checkpoint):
    evaluation = checkpoint.parent / "evaluation"
    assert {"samples.png", "samples.csv", "samples.txt"} <= {path.name for path in evaluation.iterdir()}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(checkpoint.parent / "spaced_even, guidance 1"))
    events.Reload()
    assert "4_samples/drawings/nfe_2" in events.Tags()["images"]
    assert "4_samples/nfe_2/text_summary" in events.Tags()["tensors"]


@pytest.fixture
def call(checkpoint, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    return partial(sample_here, checkpoint, capfd)


def test_sample_writes_molecules_with_their_properties(call, tmp_path, checkpoint):
    """Without the data: what the run kept beside the checkpoint is enough."""
    words = ("--condition", "logp=high qed=low", "--guidance", 1, 2, "--num_samples", 6, "--batch_size", 4)
    code, printed = call(*words, "--judge", "diversity", "--show", 3)
    assert code == 0
    assert "written to  samples  (samples.png, " in printed
    with open(tmp_path / "samples" / "samples.csv") as file:
        lines = list(csv.DictReader(file))
    assert [line["guidance"] for line in lines] == ["1.0"] * 6 + ["2.0"] * 6
    task = tauflow.load(checkpoint).task
    assert {line["condition"] for line in lines} == {task.caption(torch.tensor([1, 0]))}
    for line in lines:
        assert line["valid"] == ("true" if canonical(line["smiles"]) else "false")
        assert bool(line["weight"]) == (line["valid"] == "true")
    assert "hit" in printed


def test_a_scaffold_is_kept(call):
    code, _ = call("--infill", "________c1ccccc1", "--num_samples", 4, "--out", "out")
    assert code == 0
    (cell,) = [cell for cell in Results.read("out").cells if cell.shown]
    assert all(text.find(BENZENE) >= 8 for text in cell.table["smiles"] if not canonical(text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--condition", "logp=high"), "error: a condition gives each of logp, qed once"),
        (("--judge", "ngram"), "error: there is no judge 'ngram' of molecules"),
        (("--infill", "____c1cc[Si]cc1"), "error: no token covers '[', character 5 of 'c1cc[Si]cc1'"),
    ],
)
def test_what_cannot_be_sampled(call, words, message):
    code, _ = call(*words)
    assert str(code).startswith(message)


def test_a_checkpoint_without_its_data_and_statistics(checkpoint, call, tmp_path):
    """It draws bins, each equally often; judges that compare say what they need, the other one works."""
    lonely = tmp_path / "lonely.ckpt"
    lonely.write_bytes(checkpoint.read_bytes())
    code, printed = call("--ckpt", lonely, "--num_samples", 4, "--judge", "diversity")
    assert code == 0
    assert "bins are drawn uniformly unless --condition names some" in " ".join(printed.split())
    task = tauflow.load(lonely).task
    conditions = task.sample_conditions(400)
    assert torch.equal(task.sample_conditions(100, first=300), conditions[300:])
    counts = (2 * conditions[:, 0] + conditions[:, 1]).bincount(minlength=4)
    assert (counts - 100).abs().max() < 4 * math.sqrt(400 * 3 / 16)  # four standard deviations
    code, _ = call("--ckpt", lonely, "--judge", "fcd")
    assert str(code).startswith("error: --judge fcd needs real molecules. Pass --data files=")


def test_a_checkpoint_knows_its_bins(checkpoint, asked):
    task = tauflow.load(checkpoint).task
    assert (task.edges, task.moses) == (asked.edges, False)
    assert task.alone == ""
    assert task.statistics.known(asked.strings("train")[:3]).all()
    with pytest.warns(UserWarning, match="pass --data moses=true to compare"):
        task.use_judges("fcd")
