"""AntiBERTy and Sapiens: weights in the layout of their packages, designs, metrics and the study.

The packages are made on the spot, of tiny models with random weights; the last tests need the real ones.
"""

import argparse
import copy
import math
import random
import re
import sys
from importlib.util import find_spec
from itertools import combinations

import pytest
import torch
from tiny_antibodies import BERT, FAIRSEQ, logits_by_hand, write_sapiens

import tauflow
import tauflow.cli.sample
from benchmarks.studies.antibodies import (
    ADALIMUMAB,
    PERTUZUMAB,
    TRASTUZUMAB,
    Antibodies,
    Design,
    Recovery,
    designed,
)
from benchmarks.studies.command import main
from benchmarks.studies.study import Settings
from tauflow.errors import CheckpointError, SettingsError
from tauflow.evaluation.results import Results
from tauflow.recipes.antibodies import PairwiseIdentity, Sapiens, ValidFramework, antiberty_folder
from tauflow.recipes.folders import find_folder
from tauflow.recipes.loading import RECIPES
from tauflow.samplers import Prompt

INSTALLED = {each: find_spec(each) is not None for each in ("antiberty", "sapiens")}
real = pytest.mark.skipif(not all(INSTALLED.values()), reason="needs the packages antiberty and sapiens")


@pytest.fixture(scope="module")
def trained(written_antibodies):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(written_antibodies.root)
        return tauflow.pretrained("antiberty")


# Weights


def test_antiberty_gives_the_logits_computed_by_hand(antibody_packages, trained):
    """In its frame, over residues alone, without its other heads; nothing of the package is imported."""
    assert trained.model.shape == (119,)
    assert trained.task.num_tokens == 20
    x = torch.randint(21, (2, 119), generator=torch.Generator().manual_seed(0))
    x[1] = 20  # masks alone
    found = trained.model.denoiser.evaluate(x, torch.zeros(2)).logits(slice(None)).view(2, 119, 20)
    for row in range(2):
        ids = [2, *(4 if token == 20 else 5 + token for token in x[row].tolist()), 3]
        wanted = logits_by_hand(antibody_packages.antiberty, BERT, torch.tensor(ids), 0, 1e-12)[1:-1, 5:]
        assert wanted.std() > 0.5
        torch.testing.assert_close(found[row], wanted, atol=2e-5, rtol=1e-4)
    assert not {"antiberty", "sapiens"} & sys.modules.keys()


def test_sapiens_masks_one_residue_at_a_time(antibody_packages):
    chain, places = TRASTUZUMAB.chain[:30], [0, 7, 29]
    nll, count = Sapiens().score([chain, chain[::-1]], places)
    ids = torch.tensor([0, *(4 + "ACDEFGHIKLMNPQRSTVWY".index(each) for each in chain), 2])
    wanted = 0.0
    for place in places:
        masked = ids.clone()
        masked[place + 1] = 24
        rows = logits_by_hand(antibody_packages.sapiens, FAIRSEQ, masked, 2, 1e-5)  # positions count from 2
        wanted -= float(rows[place + 1].log_softmax(-1)[ids[place + 1]])
    assert nll[0].item() == pytest.approx(wanted, rel=1e-5)
    assert nll[1].item() != pytest.approx(wanted, rel=1e-2)
    assert count.tolist() == [3, 3]


def test_residues_are_capital_letters_of_its_tokenizer(trained):
    assert trained.task.tokenizer.tokenize("E V Q") == ["E", "V", "Q"]
    prompt = trained.task.prompt("EVQ")
    assert trained.task.texts(prompt.tokens[None, :3]) == ["EVQ"]
    with pytest.raises(SettingsError, match="no token 'B'"):
        trained.task.prompt("EVB")


# Faults


@pytest.mark.parametrize("name", ["antiberty", "sapiens"])
def test_a_missing_package_is_named_with_its_command(name, antibody_packages, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    version = {"antiberty": "0.1.3", "sapiens": "1.0.4"}[name]
    with pytest.raises(SettingsError, match=f"pip install --no-deps {name}=={version}$"):
        antiberty_folder() if name == "antiberty" else Sapiens()


def test_a_judge_that_lacks_a_weight_or_runs_code_is_refused(antibody_packages, tmp_path, monkeypatch):
    write_sapiens(tmp_path)
    path = tmp_path / "sapiens" / "models" / "v1" / "checkpoint_vh.pt"
    monkeypatch.syspath_prepend(tmp_path)
    with torch.serialization.safe_globals([argparse.Namespace]):
        found = torch.load(path, weights_only=True)
    torch.save(found | {"extra_state": print}, path)
    with pytest.raises(CheckpointError, match=r"Weights only load failed.*--force-reinstall$"):
        Sapiens()
    del found["model"]["decoder.sentence_encoder.layers.1.fc2.bias"]
    torch.save(found, path)
    with pytest.raises(CheckpointError, match=r"layer\.1\.output\.dense\.bias.*--force-reinstall$"):
        Sapiens()


def test_chains_too_long_for_sapiens_and_other_judges_raise_an_error(antibody_packages, trained):
    task = copy.copy(trained.task)
    with pytest.raises(SettingsError, match="judge of heavy chains is sapiens"):
        task.use_judges("gpt2")
    task.use_judges("sapiens")
    task.context = 150
    with pytest.raises(SettingsError, match="at most 142 residues, got 150"):
        task.sized(150).sample_metrics()


def test_a_package_is_named_in_any_case_and_other_names_get_the_list(antibody_packages):
    assert find_folder("AntiBERTy", RECIPES) == antiberty_folder()
    with pytest.raises(CheckpointError, match=r"not found: antibertyy.*Recipes: .*in packages: antiberty"):
        tauflow.pretrained("antibertyy")


# Designs and metrics


@pytest.mark.parametrize("antibody", [TRASTUZUMAB, ADALIMUMAB])
def test_loops_are_open_and_the_framework_is_kept(antibody, trained):
    own = designed(trained, Design.loops(antibody))
    assert len(own.task.design.open) == sum(map(len, antibody.loops))
    result = tauflow.sample(own.model, "spaced_even", nfe=4, count=3, prompt=own.task.known, seed=0)
    for text in own.task.texts(result.tokens):
        kept = [letter for place, letter in enumerate(text) if place not in own.task.design.open]
        assert kept == [
            letter for place, letter in enumerate(antibody.chain) if place not in own.task.design.open
        ]
        assert text[slice(96, 96 + len(antibody.loops[2]))] != antibody.loops[2]


def test_recovery_counts_the_true_residues_of_open_places(trained):
    own = designed(trained, Design.loops(TRASTUZUMAB))
    tokens = own.task.val_data[0]["tokens"].repeat(2, 1)
    tokens[0, 25:29] = 0  # the first half of CDR1, whose residues are no alanine
    metrics = own.task.sample_metrics()
    metrics.update(tokens)
    found = {name: value[0].item() for name, value in metrics.compute().items()}
    assert found["recovery"] == pytest.approx((25 / 29 + 1) / 2)
    assert found["recovery_cdr1"] == pytest.approx(0.75)
    assert found["recovery_cdr2"] == 1
    assert "valid" not in found  # it is given


def test_the_primary_metric_is_one_of_the_metrics(trained):
    loops = designed(trained, Design.loops(TRASTUZUMAB))
    starts = designed(loops, Design.beginning(PERTUZUMAB))
    assert [each.task.primary_metric for each in (trained, loops, starts)] == ["valid", "recovery", "valid"]
    for each in (trained, loops, starts):
        assert each.task.primary_metric in each.task.sample_metrics()


def test_a_blank_may_be_one_residue(trained):
    known = trained.task.infill("EVQL_ESGG").known
    assert known.nonzero().flatten().tolist() == [0, 1, 2, 3, 5, 6, 7, 8]


def test_identity_is_the_mean_over_pairs():
    tokens = torch.randint(3, (6, 10), generator=torch.Generator().manual_seed(0))
    places = torch.tensor([1, 2, 3, 7])
    metric = PairwiseIdentity(places)
    metric.update(tokens[:4])
    metric.update(tokens[4:])
    pairs = [(a[places] == b[places]).double().mean() for a, b in combinations(tokens, 2)]
    assert metric.compute()[0].item() == pytest.approx(float(sum(pairs) / len(pairs)))


def test_a_framework_has_its_conserved_residues(trained):
    chain = PERTUZUMAB.chain
    broken = [chain[:place] + "S" + chain[place + 1 :] for place in (21, 35, 95, 108)]  # C23, W41, C104, W118
    metric = ValidFramework(lambda tokens: [chain, ADALIMUMAB.chain, *broken])
    metric.update(torch.zeros(6, 1))
    assert metric.compute()[0].item() == pytest.approx(2 / 6)


def test_a_standard_error_of_recovery_is_over_samples():
    metric = Recovery(torch.tensor([1, 2]), torch.tensor([0, 1]))
    metric.update(torch.tensor([[1, 2], [1, 0], [0, 0]]))
    value, error = metric.compute()
    assert (value.item(), error.item()) == pytest.approx((0.5, 0.5 / math.sqrt(3)))


# The study


DESIGNS = {"chains from EVQLVESGG": 110, "loops of trastuzumab": 29, "loops of adalimumab": 30}


def test_what_is_known_of_a_design_is_given_to_the_samplers(antibody_packages):
    study = Antibodies(Settings(samples=2, seeds=(0,), nfes=(8, 32), samplers=("euler",)))
    cells = study.cells()
    given = {str(cell["design"]): study.sampling(cell).prompt.known.logical_not().sum() for cell in cells}
    assert given == DESIGNS
    assert [cell["nfe"] for cell in cells if cell["sampler"] == "euler"] == [
        8,
        32,
        8,
        8,
    ]  # fewer than residues


def test_samples_are_measured_by_the_residues_that_are_drawn(antibody_packages, trained, tmp_path, capsys):
    """A prompt of the command line, and a design in Python."""

    def call(*args):
        with pytest.raises(SystemExit) as stop:
            tauflow.cli.sample.sample([*map(str, args), "--accelerator=cpu"])
        assert stop.value.code == 0
        return capsys.readouterr().out

    def measured(cell):
        return {record.metric: record.measured.value for record in cell.records}

    args = ["--pretrained", "antiberty", "--nfe", 2, "--num_samples", 2, "--sampler", "tweedie", "--out"]
    loops, start = Design.loops(TRASTUZUMAB), Design.beginning(PERTUZUMAB)
    call(*args, tmp_path / "loops", "--infill", loops.text, "--judge", "sapiens")
    call(*args, tmp_path / "start", "--prompt", "EVQLVESGG")
    for name, design, metrics in (
        ("loops", loops, ["ppl_sapiens", "identity"]),
        ("start", start, ["identity"]),
    ):
        own = designed(trained, design)
        if len(metrics) == 2:
            own.task.use_judges("sapiens")
        wanted = tauflow.evaluate(own, "tweedie", 2, 2, batch_size=16, prompt=own.task.known, nll_items=0)
        pair = [measured(cells[-1]) for cells in (Results.read(tmp_path / name).cells, wanted.cells)]
        for metric in metrics:
            assert pair[0][metric] == pytest.approx(pair[1][metric]), (name, metric)
    printed = call("--pretrained", "antiberty", "--prompt", "EVQLVESGG", "--nfe", 2)
    assert re.search(r"^EVQLVESGG[A-Z]{110}$", printed, re.M), "a chain of 119 residues"
    with pytest.raises(SettingsError, match="drawn at the same places"):
        own.task.knowing(Prompt(torch.zeros(2, 119).long(), torch.eye(2, 119).bool()))


def test_the_study_measures_each_design_to_its_ceiling(antibody_packages, tmp_path, capsys):
    with pytest.raises(SystemExit, match="of one model; give --ckpt one name"):
        main(["antibodies", "--out", str(tmp_path / "a"), "--ckpt", "antiberty", "other"])
    words = ["--smoke", "--samplers", "spaced_even", "--nfes", "8", "--ckpt", "antiberty"]
    main(["antibodies", "--out", str(tmp_path / "b"), *words, "--no_progress"])
    cells = {
        (cell.factors["design"], cell.factors["sampler"], cell.factors.get("nfe")): {
            record.metric: record.measured.value for record in cell.records
        }
        for cell in Results.read(tmp_path / "b").cells
    }
    for name, residues in DESIGNS.items():
        assert cells[name, "fhs", residues]["counted_nfe"] == residues
        assert cells[name, "spaced_even", 8]["counted_nfe"] == 8
        assert cells[name, "(real data)", None]["ppl_sapiens"] > 1
        assert cells[name, "spaced_even", 8]["identity"] < 0.9
    assert cells["loops of trastuzumab", "(real data)", None]["recovery"] == 1
    assert cells["chains from EVQLVESGG", "(real data)", None]["valid"] == 1
    assert "At 8 evaluations: loops of adalimumab" in capsys.readouterr().out


# Real weights


@real
def test_real_weights_know_real_antibodies():
    """The numbers are those of docs/antibodies.md."""
    judge = Sapiens()

    def perplexity(chain):
        nll, count = judge.score([chain], range(len(chain)))
        return float((nll / count).exp())

    found = {each.name: perplexity(each.chain) for each in (TRASTUZUMAB, ADALIMUMAB, PERTUZUMAB)}
    assert found == pytest.approx({"trastuzumab": 2.746, "adalimumab": 1.758, "pertuzumab": 2.695}, abs=2e-3)
    letters = list(TRASTUZUMAB.chain)
    random.Random(0).shuffle(letters)
    assert perplexity("".join(letters)) > 20


@real
def test_real_antiberty_fills_in_a_germline_loop():
    """CDR1 of adalimumab is that of a human germline gene, which the model knows."""
    own = designed(tauflow.pretrained("antiberty"), Design.loops(ADALIMUMAB))
    result = tauflow.sample(own.model, "spaced_even", nfe=4, count=4, prompt=own.task.known, seed=0)
    metrics = own.task.sample_metrics()
    metrics.update(result.tokens)
    assert metrics.compute()["recovery_cdr1"][0] > 0.7
