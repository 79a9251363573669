"""AntiBERTy and Sapiens: weights in the layout of their packages, designs, metrics and the study.

The packages are made on the spot, of tiny models with random weights; the last tests need the real ones.
"""

import argparse
import copy
import json
import math
import random
import sys
from importlib.util import find_spec
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
from language_models import drawn
from torch.nn.functional import gelu, layer_norm

import tauflow
from benchmarks.studies.antibodies import Antibodies
from benchmarks.studies.base import Settings
from benchmarks.studies.command import main
from tauflow.errors import CheckpointError, SettingsError
from tauflow.evaluation.results import Results
from tauflow.recipes.antibodies import (
    ADALIMUMAB,
    PERTUZUMAB,
    TRASTUZUMAB,
    Antibody,
    Design,
    Sapiens,
    antiberty_folder,
)
from tauflow.recipes.antibodies.metrics import PairwiseIdentity, Recovery, ValidFramework
from tauflow.recipes.antibodies.task import designed
from tauflow.recipes.folders import folder_of
from tauflow.recipes.loading import RECIPES

WIDTH, INNER, HEADS, LAYERS, IDS = 16, 24, 2, 2, 25
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ACDEFGHIKLMNPQRSTVWY"]
BERT = {
    **{"words": "bert.embeddings.word_embeddings", "places": "bert.embeddings.position_embeddings"},
    **{"first": "bert.embeddings.LayerNorm", "layer": "bert.encoder.layer.{}."},
    **{each[0]: f"attention.self.{each}" for each in ("query", "key", "value")},
    **{"o": "attention.output.dense", "between": "attention.output.LayerNorm"},
    **{"up": "intermediate.dense", "down": "output.dense", "after": "output.LayerNorm"},
    **{"dense": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm"},
    "bias": "cls.predictions.bias",
}
FAIRSEQ = {
    **{
        "words": "decoder.sentence_encoder.embed_tokens",
        "places": "decoder.sentence_encoder.embed_positions",
    },
    **{"first": "decoder.sentence_encoder.emb_layer_norm", "layer": "decoder.sentence_encoder.layers.{}."},
    **{each: f"self_attn.{each}_proj" for each in "qkv"},
    **{"o": "self_attn.out_proj", "between": "self_attn_layer_norm"},
    **{"up": "fc1", "down": "fc2", "after": "final_layer_norm"},
    **{
        "dense": "decoder.lm_head.dense",
        "norm": "decoder.lm_head.layer_norm",
        "bias": "decoder.lm_head.bias",
    },
}
INSTALLED = {each: find_spec(each) is not None for each in ("antiberty", "sapiens")}
real = pytest.mark.skipif(not all(INSTALLED.values()), reason="needs the packages antiberty and sapiens")


def weights_of(names, positions, seed):
    """Draw the weights of an encoder with a head, under the names of a package."""
    square, shapes = (WIDTH, WIDTH), {}
    linears = {names["dense"]: square}
    norms = [names["first"], names["norm"]]
    for layer in map(names["layer"].format, range(LAYERS)):
        linears |= {layer + names[each]: square for each in "qkvo"}
        linears |= {layer + names["up"]: (INNER, WIDTH), layer + names["down"]: (WIDTH, INNER)}
        norms += [layer + names["between"], layer + names["after"]]
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes |= {f"{name}.{part}": (WIDTH,) for name in norms for part in ("weight", "bias")}
    shapes |= {f"{names['words']}.weight": (IDS, WIDTH), f"{names['places']}.weight": (positions, WIDTH)}
    return drawn(shapes | {names["bias"]: (IDS,)}, seed)


def logits_by_hand(weights, names, ids, first_place, epsilon):
    """Return logits (L, N) of ids (L,): norms stand after the sums, as in BERT."""

    def linear(rows, name):
        return rows @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(rows, name):
        return layer_norm(rows, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon)

    table = weights[f"{names['words']}.weight"]
    places = weights[f"{names['places']}.weight"][first_place : first_place + len(ids)]
    kinds = weights.get("bert.embeddings.token_type_embeddings.weight", torch.zeros(1, WIDTH))
    h = norm(table[ids] + places + kinds[0], names["first"])
    for layer in map(names["layer"].format, range(LAYERS)):
        q, k, v = (linear(h, layer + names[each]).unflatten(1, (HEADS, -1)).transpose(0, 1) for each in "qkv")
        taken = (q @ k.mT / math.sqrt(WIDTH // HEADS)).softmax(-1) @ v
        h = norm(h + linear(taken.transpose(0, 1).flatten(1), layer + names["o"]), layer + names["between"])
        inner = gelu(linear(h, layer + names["up"]))
        h = norm(h + linear(inner, layer + names["down"]), layer + names["after"])
    return norm(gelu(linear(h, names["dense"])), names["norm"]) @ table.T + weights[names["bias"]]


def write_antiberty(root):
    """Write the package as it is published; importing it is an error."""
    folder = root / "antiberty" / "trained_models" / "AntiBERTy_md_smooth"
    folder.mkdir(parents=True)
    (root / "antiberty" / "__init__.py").write_text("raise RuntimeError('it was imported')")
    (folder.parent / "vocab.txt").write_text("\n".join(VOCABULARY))
    config = {
        **{"_name_or_path": "/home/x/checkpoint-1160000/", "architectures": ["AntiBERTy"]},
        **{"model_type": "bert", "position_embedding_type": "absolute", "gradient_checkpointing": False},
        **{"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": HEADS},
        **{"num_hidden_layers": LAYERS, "max_position_embeddings": 130, "vocab_size": IDS},
        **{"layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0, "use_cache": True},
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = weights_of(BERT, 130, seed=0)
    heads = {"bert.pooler.dense": WIDTH, "cls.species": 6, "cls.chain": 2, "cls.graft": 2}
    more = {f"{name}.weight": (size, WIDTH) for name, size in heads.items()}
    more |= {f"{name}.bias": (size,) for name, size in heads.items()}
    weights |= drawn(more | {"bert.embeddings.token_type_embeddings.weight": (2, WIDTH)}, seed=1)
    weights["bert.embeddings.position_ids"] = torch.arange(130)[None]
    weights["cls.predictions.decoder.weight"] = weights[f"{BERT['words']}.weight"].clone()
    weights["cls.predictions.decoder.bias"] = weights[BERT["bias"]].clone()
    torch.save(weights, folder / "pytorch_model.bin")
    return weights


def write_sapiens(root):
    folder = root / "sapiens" / "models" / "v1"
    folder.mkdir(parents=True)
    (root / "sapiens" / "__init__.py").write_text("raise RuntimeError('it was imported')")
    weights = weights_of(FAIRSEQ, 146, seed=2)
    weights["decoder.lm_head.weight"] = weights[f"{FAIRSEQ['words']}.weight"].clone()
    args = argparse.Namespace(arch="roberta_small", encoder_attention_heads=HEADS)
    torch.save({"args": args, "model": weights, "extra_state": {"epoch": 3}}, folder / "checkpoint_vh.pt")
    return weights


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Tiny packages with their weights."""
    root = tmp_path_factory.mktemp("packages")
    return SimpleNamespace(root=root, antiberty=write_antiberty(root), sapiens=write_sapiens(root))


@pytest.fixture
def packages(written, monkeypatch):
    """The tiny packages in place of the real ones."""
    monkeypatch.syspath_prepend(written.root)
    return written


@pytest.fixture(scope="module")
def trained(written):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(written.root)
        return tauflow.pretrained("antiberty")


# Weights


def test_antiberty_gives_the_logits_computed_by_hand(packages, trained):
    """In its frame, over residues alone, without its other heads; nothing of the package is imported."""
    assert trained.model.shape == (119,)
    assert trained.task.num_tokens == 20
    x = torch.randint(21, (2, 119), generator=torch.Generator().manual_seed(0))
    x[1] = 20  # masks alone
    found = trained.model.denoiser.evaluate(x, torch.zeros(2)).logits(slice(None)).view(2, 119, 20)
    for row in range(2):
        ids = [2, *(4 if token == 20 else 5 + token for token in x[row].tolist()), 3]
        wanted = logits_by_hand(packages.antiberty, BERT, torch.tensor(ids), 0, 1e-12)[1:-1, 5:]
        assert wanted.std() > 0.5
        torch.testing.assert_close(found[row], wanted, atol=2e-5, rtol=1e-4)
    assert not {"antiberty", "sapiens"} & sys.modules.keys()


def test_sapiens_masks_one_residue_at_a_time(packages):
    chain, places = TRASTUZUMAB.chain[:30], [0, 7, 29]
    nll, count = Sapiens().score([chain, chain[::-1]], places)
    ids = torch.tensor([0, *(4 + "ACDEFGHIKLMNPQRSTVWY".index(each) for each in chain), 2])
    wanted = 0.0
    for place in places:
        masked = ids.clone()
        masked[place + 1] = 24
        rows = logits_by_hand(packages.sapiens, FAIRSEQ, masked, 2, 1e-5)  # positions count from 2
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
def test_a_missing_package_is_named_with_its_command(name, packages, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    version = {"antiberty": "0.1.3", "sapiens": "1.0.4"}[name]
    with pytest.raises(SettingsError, match=f"pip install --no-deps {name}=={version}$"):
        antiberty_folder() if name == "antiberty" else Sapiens()


def test_a_judge_that_lacks_a_weight_or_runs_code_is_refused(packages, tmp_path, monkeypatch):
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


def test_chains_that_sapiens_cannot_read_and_other_judges_are_refused(packages, trained):
    judge = Sapiens()
    with pytest.raises(SettingsError, match="at most 142 residues, got 143"):
        judge.score(["A" * 143], [0])
    with pytest.raises(SettingsError, match="judge of heavy chains is sapiens"):
        trained.task.use_judges("gpt2")


def test_chains_that_the_judge_cannot_read_are_refused_before_they_are_drawn(packages, trained):
    judged = copy.copy(trained.task)
    judged.use_judges("sapiens")
    judged.context = 150
    with pytest.raises(SettingsError, match="at most 142 residues, got 150"):
        judged.sized(150).sample_metrics()


def test_a_package_is_named_in_any_case_and_other_names_get_the_list(packages):
    assert folder_of("AntiBERTy", RECIPES) == antiberty_folder()
    with pytest.raises(CheckpointError, match=r"no folder antibertyy.*recipes: .*inside packages: antiberty"):
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


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Design.loops(Antibody("x", "EVQL", ("EV", "QL", "AA"))), "CDR3 of x is to be 'AA'"),
        (lambda: Design.loops(Antibody("x", "EVQL", ("QL", "EV", "E"))), "CDR2 of x is to be 'EV'"),
        (lambda: Design.beginning(TRASTUZUMAB, "EVQQQ"), "from residue 4 on it is 'QQ_"),
        (lambda: Design("d", "EVQ", "EV__"), "from residue 4 on"),
    ],
)
def test_designs_that_do_not_fit_their_chain_are_refused(made, said):
    with pytest.raises(SettingsError, match=said):
        made()


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


def test_what_is_known_of_a_design_is_given_to_the_samplers(packages):
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


def test_the_study_measures_each_design_to_its_ceiling(packages, tmp_path, capsys):
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
