"""Pretrained language models: LLaDA, Dream, ESM and masked language models, by logits, texts and faults."""

import dataclasses
import json
import re
import shutil
import sys

import language_models as tiny
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils.tensorboard import SummaryWriter

import tauflow
from benchmarks.studies.models import TextStudy
from benchmarks.studies.study import Settings
from tauflow.errors import CheckpointError, SettingsError, TauflowError
from tauflow.evaluation.tensorboard import write_cells
from tauflow.recipes import RECIPES, pretrained
from tauflow.recipes.language import IdNetwork, Ids
from tauflow.samplers import SAMPLERS, Prompt, sampler_from
from tauflow.samplers.run import unprompted

D = 10
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "dog", "##s", "sat", "on"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a LLaDA, a Dream and an ESM, with their weights."""
    return tiny.write_all(tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="module")
def loaded(folders):
    return {name: pretrained(folder, length=D) for name, (folder, _) in folders.items()}


@pytest.fixture
def copied(folders, tmp_path):
    """Return a function that copies a folder, to be damaged."""
    return lambda name: shutil.copytree(folders[name][0], tmp_path / name)


def states(trained, count=2, seed=0):
    size = (count, trained.model.length)
    return torch.randint(trained.task.num_tokens + 1, size, generator=torch.Generator().manual_seed(seed))


def logits(model, x):
    return model.denoiser.evaluate(x, torch.full((len(x),), 0.3)).logits(slice(None)).view(*x.shape, -1)


def by_hand(name, weights, trained, x):
    """Return logits (D, V) of one sequence x, by the published definition."""
    ids = trained.task.text.ids
    if name == "esm":
        framed = torch.tensor([0, *ids.table[x].tolist(), 2])
        return tiny.esm_logits(weights, framed)[1:-1, ids.kept]
    names = tiny.LLADA_NAMES if name == "llada" else tiny.DREAM_NAMES
    found = tiny.llama_logits(weights, names, ids.table[x])[:, ids.kept]
    return found if name == "llada" else torch.cat([found[:1], found[:-1]])  # as Dream shifts them


# Networks


@pytest.mark.parametrize("name", ["llada", "dream", "esm"])
def test_logits_are_those_computed_by_hand(name, folders, loaded):
    trained = loaded[name]
    x = states(trained, 3)
    x[2] = trained.task.num_tokens  # masks alone
    found = logits(trained.model, x)
    for row in range(3):
        wanted = by_hand(name, folders[name][1], trained, x[row])
        assert wanted.std() > 0.5
        torch.testing.assert_close(found[row], wanted, atol=2e-5, rtol=1e-4)


def test_a_shifted_model_that_is_loaded_unshifted_is_another(folders, loaded):
    (dream,) = [recipe for recipe in RECIPES if recipe.name == "dream"]
    unshifted = pretrained(folders["dream"][0], length=D, recipes=[dataclasses.replace(dream, shift=0)])
    x = states(unshifted, 1)
    wanted = by_hand("dream", folders["dream"][1], unshifted, x[0])
    assert (logits(unshifted.model, x)[0] - wanted).abs().max() > 0.5
    assert (logits(loaded["dream"].model, x)[0] - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["llada", "dream", "esm"])
def test_sequences_of_a_ragged_batch_are_as_alone(name, folders, loaded):
    """Padding may stand on either side, and in between."""
    trained = loaded[name]
    x = states(trained, 4)
    read = torch.ones(4, D, dtype=torch.bool)
    read[1, 6:] = False
    read[2, :3] = False
    read[3, [1, 4, 9]] = False
    network = trained.model.denoiser.network
    with torch.no_grad():
        found = network.head(network.hidden(x, torch.zeros(4), attention=read))
    for row in range(4):
        wanted = by_hand(name, folders[name][1], trained, x[row][read[row]])
        torch.testing.assert_close(found[row][read[row]], wanted, atol=2e-5, rtol=1e-4)


def test_the_head_runs_on_the_rows_that_are_read(loaded, monkeypatch):
    head, seen = loaded["llada"].model.denoiser.network.host.model.lm_head, []
    run = head.forward
    monkeypatch.setattr(head, "forward", lambda rows: seen.append(rows.numel() // tiny.WIDTH) or run(rows))
    evaluation = loaded["llada"].model.denoiser.evaluate(states(loaded["llada"]), torch.zeros(2))
    evaluation.probs(torch.tensor([3, 17]))
    assert seen == [2]


def test_logits_without_the_mask_are_no_second_tensor(loaded, monkeypatch):
    """The mask stands before other ids: these are moved, and the rest is not copied."""
    network, made = loaded["llada"].model.denoiser.network, []
    head = network.host.head
    monkeypatch.setattr(network.host, "head", lambda rows: made.append(head(rows)) or made[-1])
    found = network.head(torch.randn(5, tiny.WIDTH))
    assert len(network.ids.runs) == 2
    assert found.untyped_storage().data_ptr() == made[0].untyped_storage().data_ptr()


@pytest.mark.parametrize("name", ["llada", "dream", "esm"])
def test_every_masked_sampler_keeps_a_prompt(name, loaded):
    """Of sequences of two lengths in one batch; LLaDA is guided besides."""
    trained = loaded[name]
    task, model = trained.task, dataclasses.replace(trained.model, order=torch.arange(D))
    prompt = task.prompt("EVQ" if name == "esm" else "ab ")
    if name == "llada":
        model = model.guided(1.5, unprompted(model, prompt))
    lengths = torch.tensor([D, 6])
    model = model.with_attention_mask(lengths)
    read = torch.arange(D) < lengths[:, None]
    tried = 0
    for spec in SAMPLERS:
        sampler = sampler_from(spec, model)
        if sampler.unsupported_reason(model):
            continue
        result = tauflow.sample(model, sampler, 4, count=2, prompt=prompt, seed=1)
        assert result.tokens[read].max() < task.num_tokens, spec
        assert torch.equal(result.tokens[:, :3], prompt.tokens[:3].expand(2, -1)), spec
        assert result.nfe <= 4, spec
        tried += 1
    assert tried > 8


@pytest.mark.parametrize("rows", [False, True])
def test_guidance_is_away_from_the_masked_prompt(rows, folders, loaded):
    """LLaDA's u + (w + 1) (c - u) with w = 0.5; an evaluation takes two forwards."""
    trained, w = loaded["llada"], 0.5
    prompt = trained.task.prompt("abc")
    known = torch.stack([prompt.known, ~prompt.known]) if rows else prompt.known
    x = states(trained)
    without = torch.where(known, trained.task.num_tokens, x)
    model = trained.model.guided(1 + w, unprompted(trained.model, prompt._replace(known=known)))
    found = model.denoiser.evaluate(x, torch.zeros(2)).dense()
    for row in range(2):
        c, u = (by_hand("llada", folders["llada"][1], trained, each[row]) for each in (x, without))
        torch.testing.assert_close(found[row], (u + (1 + w) * (c - u)).softmax(-1), atol=1e-4, rtol=1e-3)
    assert model.denoiser.forwards == 2
    size = {"count": 2, "prompt": Prompt(x % 260, known), "seed": 2}
    whole, parts = (tauflow.sample(model, "tweedie", 3, **size, batch_size=each).tokens for each in (None, 1))
    assert torch.equal(whole, parts)


# Ids


def test_ids_and_tokens():
    ids = Ids([7, 2, 3, 5], 9, mask=4)
    assert ids.table.tolist() == [2, 3, 5, 7, 4]
    assert ids.runs == [(2, 4), (5, 6), (7, 8)]
    assert ids.to_tokens([7, 4, 2, 100, -1]) == [3, -1, 0, -1, -1]
    assert Ids(range(3), 3).table.tolist() == [0, 1, 2]


def test_data_tokens_are_gathered_from_any_ids():
    host = torch.nn.Module()
    host.head = lambda rows: torch.arange(30).repeat(len(rows), 1)
    for seed in range(20):
        kept = torch.randperm(30, generator=torch.Generator().manual_seed(seed))[: seed + 1].tolist()
        assert IdNetwork(host, Ids(kept, 30)).head(torch.zeros(2, 1)).tolist() == [sorted(kept)] * 2


class Positions(torch.nn.Module):
    """Rows that say their place, and logits that say the column."""

    def hidden(self, ids, t, attention=None):
        return torch.stack([torch.arange(ids.shape[1]).expand_as(ids), ids], -1).float()

    def head(self, rows):
        return rows[..., :1] + torch.arange(9) * 100


@pytest.mark.parametrize(
    ("shift", "before", "places"), [(0, [], [0, 1, 2]), (1, [], [0, 0, 1]), (1, [8], [0, 1, 2])]
)
def test_rows_are_shifted_and_logits_are_those_of_data_tokens(shift, before, places):
    network = IdNetwork(Positions(), Ids([7, 2, 3], 9, mask=4), before, [8], shift)
    found = network(torch.tensor([[0, 3, 2]]), torch.zeros(1))
    assert found[0].tolist() == [[place + column for column in (200, 300, 700)] for place in places]


# Texts


def test_texts_and_tokens(loaded):
    task = loaded["llada"].task
    assert task.num_tokens == 260, "neither the mask nor ids without a text"
    text = "Grün, 緑 <|eot_id|>"
    tokens = task.text.encode(text)
    assert task.text.decode(tokens) == text
    assert task.text.decode([*tokens[:2], task.num_tokens, *tokens[2:4]]) == "Gr_ü"
    assert task.texts(torch.full((1, 3), task.num_tokens)) == ["___"]
    with pytest.raises(
        SettingsError, match=re.escape("has the token '<|mask|>', which the model can't draw")
    ):
        task.prompt("a <|mask|>")
    with pytest.raises(
        SettingsError, match=f"the text takes {len(tokens)} tokens, the model has {D}; shorten"
    ):
        task.prompt(text)
    with pytest.raises(CheckpointError, match="tokenizer can't encode the text"):
        task.prompt("\udcff")
    filled = task.infill("ab ___c")
    assert filled.known.tolist() == [True, True, False, False, False, True, *[False] * 4]


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_samples_end_at_an_end_token(name, loaded):
    task = loaded[name].task
    other = "<|eot_id|>" if name == "llada" else "<|im_end|>"
    rows = [
        task.text.encode(text)
        for text in (f"abc<|endoftext|>{'x' * 6}", f"{other}b{other}{'x' * 7}", "x" * D)
    ]
    tokens = torch.tensor(rows)
    assert task.lengths(tokens).tolist() == [3, 0, D]
    assert task.texts(tokens) == ["abc", "", "x" * D]
    assert task.texts(tokens, begin=1) == ["bc", "b", "x" * (D - 1)], "a prompt may have end tokens"
    assert task.show(tokens)[0] == "[1] abc"


def test_a_conversation_by_the_chat_template(loaded, copied):
    for name in ("llada", "dream"):
        task = loaded[name].task
        assert task.chat("hi") == "<|start|>hi<|eot_id|><|start|>"
        assert task.chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == (
            "<|start|>a<|eot_id|><|start|>b<|eot_id|><|start|>"
        )
        assert len(task.text.encode(task.chat("hi"))) == 5, "special tokens of the template are tokens"
    with pytest.raises(SettingsError, match="has no chat template"):
        loaded["esm"].task.chat("hi")
    folder = copied("llada")
    broken = tiny.SETTINGS | {"chat_template": "{{ raise_exception('roles must alternate') }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(broken))
    with pytest.raises(SettingsError, match="can't write the messages: roles must alternate"):
        pretrained(folder).task.chat("hi")


def test_a_trained_model_of_texts_has_a_tokenizer(loaded, tmp_path):
    assert loaded["llada"].tokenizer("ab")["input_ids"] == loaded["llada"].task.text.encode("ab")
    (tmp_path / "corpus.txt").write_text("abcd\n" * 50)
    corpus = str(tmp_path / "corpus.txt")
    text = tauflow.tasks.Text(tokenizer="characters", files=corpus, length=4, cache=str(tmp_path))
    assert tauflow.Trained(loaded["llada"].model, text).tokenizer.encode("ab").tokens == ["a", "b"]
    assert tauflow.Trained(loaded["llada"].model, tauflow.tasks.Countdown()).tokenizer is None


def test_proteins_are_twenty_letters(loaded):
    task = loaded["esm"].task
    assert task.num_tokens == 20
    assert task.texts(task.prompt("EVQLVESGGG").tokens[None]) == ["EVQLVESGGG"]
    filled = task.infill("EV__E")
    assert task.show(torch.where(filled.known, filled.tokens, 20)[None]) == ["[1] EV__E_____"]
    with pytest.raises(SettingsError, match="has no token 'X'"):
        task.prompt("EVX")
    result = tauflow.sample(loaded["esm"].model, "auto", 4, count=3)
    assert all(set(text) <= set("ACDEFGHIKLMNPQRSTVWY") for text in task.texts(result.tokens))


# Masked language models of transformers

SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
MASKED = {
    "Bert": {},
    "Roberta": {},
    "DistilBert": {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2},
    "ModernBert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "Electra": {"embedding_size": 8},
    "DebertaV2": {},
    "MPNet": {},
}


def write_masked(folder, kind):
    """Save a model of transformers as it saves itself, and a tokenizer of words; return the model."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | MASKED[kind])
    model = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", list(MASKED))
def test_any_masked_language_model(kind, tmp_path, monkeypatch):
    model, warned = write_masked(tmp_path, kind), []
    monkeypatch.setattr("transformers.modeling_utils.logger.warning_once", warned.append)
    trained = pretrained(tmp_path, length=6)
    assert not warned
    task = trained.task
    assert task.num_tokens == 7, "neither special tokens nor the mask"
    assert task.text.decode(range(7)) == "a the cat dogs sat on"
    x = states(trained, 2)
    x[1] = 7
    framed = torch.cat([torch.full((2, 1), 2), task.text.ids.table[x], torch.full((2, 1), 3)], 1)
    with torch.no_grad():
        wanted = model(input_ids=framed).logits[:, 1:-1, 5:]
    torch.testing.assert_close(logits(trained.model, x), wanted, atol=1e-5, rtol=1e-4)
    read = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    network = trained.model.denoiser.network
    with torch.no_grad():
        found = network.head(network.hidden(x, torch.zeros(2), attention=read))[1, :4]
        alone = model(input_ids=framed[1:, [0, 1, 2, 3, 4, 7]]).logits[0, 1:-1, 5:]
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)
    result = tauflow.sample(trained.model, "auto", 3, count=2, prompt=task.prompt("the cat"))
    assert all(text.startswith("the cat") for text in task.texts(result.tokens))


def test_positions_that_a_model_has(tmp_path):
    write_masked(tmp_path, "Roberta")
    with pytest.raises(
        SettingsError, match="length must be at most 29, which is what the model can read, got 30"
    ):
        pretrained(tmp_path, length=30)  # 32 positions from 1 on, less the frame
    trained = pretrained(tmp_path)
    assert trained.model.shape == trained.task.shape == (29,)
    tauflow.sample(trained.model, "auto", 2)


def test_files_of_the_first_years(tmp_path):
    """Names of norms as they were, heads of other tasks, and a pickle where there is nothing else."""
    model = write_masked(tmp_path, "Bert")
    weights = load_file(tmp_path / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in weights.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): value for name, value in old.items()}
    old |= {
        "cls.seq_relationship.weight": torch.zeros(2, 16),
        "bert.pooler.dense.weight": torch.zeros(16, 16),
        "bert.embeddings.position_ids": torch.arange(32)[None],
        "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone(),
    }
    (tmp_path / "model.safetensors").unlink()
    torch.save(old, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    ids = torch.tensor([[2, 5, 4, 3]])
    found = logits(pretrained(tmp_path, length=2).model, torch.tensor([[0, 7]]))
    with torch.no_grad():
        torch.testing.assert_close(found, model(input_ids=ids).logits[:, 1:-1, 5:], atol=1e-5, rtol=1e-4)
    old["cls.predictions.decoder.weight"][0] += 1
    torch.save(old, tmp_path / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"decoder.weight and .*word_embeddings.weight in .* must be equal"
    ):
        pretrained(tmp_path)


def test_packages_that_are_missing(tmp_path, folders, monkeypatch):
    write_masked(tmp_path, "Bert")
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.setitem(sys.modules, name, None)
    for folder in (tmp_path, folders["llada"][0]):
        with pytest.raises(SettingsError, match=r"more packages.*pip install .*\[pretrained\]"):
            pretrained(folder)


def test_dplm_is_an_esm(copied, folders, loaded):
    """Its class and names are its own, and its weights lie in a pickle."""
    folder = copied("esm")
    changed(folder, "config.json", architectures=["EsmForDPLM"])
    for path in folder.glob("*safetensors*"):
        path.unlink()
    weights = {f"net.{name}": value for name, value in folders["esm"][1].items() if "contact" not in name}
    torch.save(weights, folder / "pytorch_model.bin")
    x = states(loaded["esm"])
    assert torch.equal(logits(pretrained(folder, length=D).model, x), logits(loaded["esm"].model, x))


def test_a_pickle_may_contain_weights_only(tmp_path):
    write_masked(tmp_path / "bert", "Bert")
    (tmp_path / "bert" / "model.safetensors").unlink()
    torch.save([1], tmp_path / "bert" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin must contain weights by name"):
        pretrained(tmp_path / "bert")


# Evaluation


def test_evaluation_needs_no_data(loaded):
    results = tauflow.evaluate(loaded["dream"], "auto,tweedie", [2, 4], 3, batch_size=2)
    assert len(results.cells) == 4
    found = {record.metric: record.measured.value for record in results.cells[0].records}
    assert {"entropy_bits", "distinct_1", "distinct_2", "distinct_3", "unique", "mean_length"} <= set(found)
    assert 0 <= found["entropy_bits"] <= 4
    assert found["mean_length"] <= D
    assert any("comes without its data" in note for note in results.notes)
    proteins = tauflow.evaluate(loaded["esm"], "auto", 2, 3, prompt=loaded["esm"].task.prompt("EV"))
    assert "mean_length" not in {record.metric for record in proteins.cells[0].records}
    with pytest.raises(SettingsError, match="comes without data"):
        loaded["esm"].task.setup("fit")


def test_studies_and_tensorboard(folders, loaded, tmp_path):
    trained, folder = loaded["llada"], str(folders["llada"][0])
    sizes = {"samples": 2, "seeds": (0,), "nfes": (2,), "samplers": ("auto",), "checkpoints": (folder,)}
    TextStudy(Settings(**sizes)).run(tmp_path / "study")
    assert "entropy_bits" in (tmp_path / "study" / "results.md").read_text()
    results = tauflow.evaluate(trained, "auto", 2, 2)
    with SummaryWriter(str(tmp_path / "board")) as writer:
        write_cells(writer, results.cells, results, trained.task, 0)
    assert list((tmp_path / "board").glob("events.out.tfevents.*"))


def test_texts_are_judged_up_to_their_end(folders, tmp_path):
    """The judge, whose logits are all the same, finds as many tokens equally likely as it has."""
    config = transformers.GPT2Config(n_embd=4, n_layer=1, n_head=1, vocab_size=300, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(tmp_path / "flat")
    tiny.write_json_tokenizer(tmp_path / "flat")
    transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "flat").save_pretrained(tmp_path / "flat")
    task = pretrained(folders["llada"][0], length=D).task
    task.use_judges(str(tmp_path / "flat"))
    assert task.primary_metric == "ppl_corpus_flat"
    metrics = task.sample_metrics()
    rows = ["abcd<|endoftext|>xxxxx", "abcdefghij"]
    metrics.update(torch.tensor([task.text.encode(row) for row in rows]))
    value, *_, judged = metrics.compute()["ppl_corpus_flat"]
    assert float(value) == pytest.approx(300, rel=1e-4)
    assert judged == 3 + 9, "the first token of a text is not judged"
    with pytest.raises(SettingsError, match="ngram needs training text"):
        task.use_judges("ngram")


# Loading


def test_dtype_device_and_length(folders):
    trained = pretrained(folders["llada"][0], dtype="bfloat16", device_map="cpu", length=5)
    network = trained.model.denoiser.network
    assert {each.dtype for each in network.parameters()} == {torch.bfloat16}
    frequencies = network.host.body.inner.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32, "positions are exact in any type"
    assert tauflow.sample(trained.model, "auto", 2).tokens.shape == (1, 5)
    assert not any(each.requires_grad for each in network.parameters())
    for settings, said in (
        ({"dtype": "int8"}, "dtype must be a floating-point type"),
        ({"device_map": "auto"}, "device_map must be one device"),
        ({"length": 65}, "length must be at most 64, which is what the model can read, got 65"),
        ({"length": 0}, "length must be a whole number of at least 1"),
        ({"rates": "metric"}, "rates must be mixture for llada"),
    ):
        with pytest.raises(TauflowError, match=said):
            pretrained(folders["llada"][0], **settings)


def test_names_of_the_hub(folders, monkeypatch):
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        return str(folders["dream" if "Dream" in name or "Diffu" in name else "llada"][0])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    names = ["GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5", "apple/DiffuCoder-7B-Instruct"]
    for name in names:
        assert pretrained(name, length=4).model.length == 4
    assert asked == names
    with pytest.raises(
        CheckpointError, match=r"Recipes: .*llada \(model_type llada\).*GSAI-ML/LLaDA-8B-\*.*to write"
    ):
        pretrained("someone/gpt5")


NAMES = {
    "Dream-org/Dream-v0-Instruct-7B": "dream",
    "Dream-org/Dream-Coder-v0-Instruct-7B": "dream",
    "Dream-org/DreamReasoner-7B": None,
    "google/electra-small-generator": "masked_lm",
    "google/electra-small-discriminator": None,
    "microsoft/mpnet-base": "masked_lm",
    "FacebookAI/xlm-roberta-base": "masked_lm",
}


def test_which_names_on_the_hub_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *asked, **options: str(tmp_path))
    for name, recipe in NAMES.items():
        (own,) = [each for each in RECIPES if each.name == (recipe or "masked_lm")]
        said = "not found: .*config.json" if recipe else "no recipe loads a hub model of that name"
        with pytest.raises(CheckpointError, match=said):
            pretrained(name, recipes=[own])


def test_what_settings_leave_out(copied):
    """The context of Dream's training, and the epsilon of LLaDA, which are not Qwen2's and Llama's."""
    dream, llada = copied("dream"), copied("llada")
    changed(dream, "config.json", max_position_embeddings=131072)
    assert pretrained(dream).task.context == 2048
    changed(llada, "config.json", rms_norm_eps=None)
    assert pretrained(llada).model.denoiser.network.host.model.config.rms_norm_eps == 1e-5


def changed(folder, file, **more):
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | more))


def changed_shard(folder, change):
    path = folder / "model-00001-of-00002.safetensors"
    found = load_file(path)
    change(found)
    save_file(found, path)


FAULTS = {
    "a missing weight": (
        "llada",
        lambda folder: changed_shard(folder, lambda found: found.pop("model.transformer.wte.weight")),
        "missing: model.embed_tokens.weight",
    ),
    "a wrong weight": (
        "dream",
        lambda folder: changed_shard(folder, lambda found: found.update(time=torch.zeros(1))),
        "unknown: time",
    ),
    "numbers that are no weights": (
        "llada",
        lambda folder: changed_shard(
            folder,
            lambda found: found.update(
                {"model.transformer.wte.weight": torch.zeros(tiny.IDS, tiny.WIDTH, dtype=torch.int8)}
            ),
        ),
        "has the type torch.int8. Quantized weights aren't supported",
    ),
    "a missing shard": (
        "esm",
        lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(),
        "lacks files of its index: model-00002-of-00002.safetensors",
    ),
    "another block": (
        "llada",
        lambda folder: changed(folder, "config.json", block_type="sequential"),
        "block_type must be 'llama' for LLaDA, got 'sequential'",
    ),
    "quantised weights": (
        "esm",
        lambda folder: changed(folder, "config.json", quantization_config={"quant_method": "fp8"}),
        "The weights must not be quantized",
    ),
    "no tokenizer": (
        "llada",
        lambda folder: (folder / "tokenizer.json").unlink(),
        "can't read the tokenizer in",
    ),
    "no mask": (
        "esm",
        lambda folder: changed(folder, "config.json", mask_token_id=99),
        "must be one of its 33 ids and the mask of its tokenizer (32), got 99",
    ),
    "a mask that is no number": (
        "llada",
        lambda folder: changed(folder, "config.json", mask_token_id="257"),
        "must be one of its 272 ids and the mask of its tokenizer (257), got '257'",
    ),
    "a mask that is a truth": (
        "llada",
        lambda folder: changed(folder, "config.json", mask_token_id=True),
        "must be one of its 272 ids and the mask of its tokenizer (257), got True",
    ),
    "another class of Dream": (
        "dream",
        lambda folder: changed(folder, "config.json", architectures=["DreamForCausalLM"], block_size=32),
        "type Dream, which no recipe loads",
    ),
    "another mask": (
        "dream",
        lambda folder: changed(folder, "config.json", mask_token_id=250),
        "the mask of its tokenizer (257), got 250",
    ),
    "other letters": (
        "esm",
        lambda folder: (folder / "vocab.txt").write_text("\n".join(tiny.PROTEINS).replace("W", "J")),
        "has no token 'W', which esm models need",
    ),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_faults_are_said_in_one_line(name, copied):
    kind, damage, said = FAULTS[name]
    folder = copied(kind)
    damage(folder)
    with pytest.raises(CheckpointError, match=re.escape(said)) as stop:
        pretrained(folder)
    assert "\n" not in str(stop.value)


def test_a_tokenizer_without_a_mask(tmp_path):
    write_masked(tmp_path, "Bert")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS).replace("[MASK]", "mask"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), mask_token=None)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no mask token, and config\.json has no mask_token_id"):
        pretrained(tmp_path)


def test_settings_that_would_fetch_code_are_dropped(copied):
    folder = copied("esm")
    changed(folder, "config.json", _attn_implementation="owner/kernel", attn_implementation="owner/kernel")
    assert (
        pretrained(folder, length=3).model.denoiser.network.host.model.config._attn_implementation == "sdpa"
    )
