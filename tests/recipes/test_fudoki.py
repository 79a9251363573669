"""Pretrained models: a tiny FUDOKI as released; logits by hand, prompts, guidance, pictures, conversion."""

import dataclasses
import json
import math
import os
import re
import shutil
import sys

import fudoki
import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file, save_file
from tiny_models import save_clip
from torch import nn

import tauflow
from benchmarks.geneval import read_folder
from tauflow.denoise import TimedDenoiser
from tauflow.errors import CheckpointError, SettingsError, TauflowError
from tauflow.recipes import RECIPES, convert, pretrained
from tauflow.recipes.__main__ import main
from tauflow.recipes.fudoki import FRAMING, Prompts
from tauflow.tasks.scenes.clip import ClipScore
from tauflow.tasks.scenes.rules import records

SHORT, LONG = "a cat", "a photo of a red cube"
D = fudoki.SIDE**2


@pytest.fixture(scope="module")
def weights():
    return fudoki.weights()


@pytest.fixture(scope="module")
def released(tmp_path_factory, weights):
    return fudoki.write(tmp_path_factory.mktemp("fudoki") / "released", weights)


@pytest.fixture(scope="module")
def converted(released):
    out = released.with_name("converted")
    convert(released, out)
    return out


@pytest.fixture(scope="module")
def trained(released):
    return pretrained(released, rates="mixture")


@pytest.fixture
def copied(released, tmp_path):
    """Return a copy of the released folder, to be damaged."""
    return shutil.copytree(released, tmp_path / "copied")


def network_of(trained):
    return trained.model.denoiser.network


def codes(count, seed=0):
    return torch.randint(fudoki.CODES, (count, D), generator=torch.Generator().manual_seed(seed))


def logits(trained, x, condition=None):
    evaluation = trained.model.denoiser.evaluate(x, torch.full((len(x),), 0.3), condition)
    return evaluation.logits(slice(None)).view(*x.shape, -1)


def turned(rows):
    """Rotate rows (L, E) of a head by their positions."""
    half = rows.shape[1] // 2
    speeds = fudoki.THETA ** -(torch.arange(half) / half)
    angles = torch.arange(len(rows))[:, None] * speeds
    first, second = rows[:, :half], rows[:, half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], 1)


def norm(rows, weight):
    return rows / (rows.square().mean(-1, keepdim=True) + fudoki.EPSILON).sqrt() * weight


def by_hand(weights, prompt, x):
    """Return logits (D, V) of one sequence: every position sees every other, logits one position early."""
    w = weights
    own = fudoki.WIDTH // fudoki.HEADS
    table = w["language_model.model.embed_tokens.weight"]
    image = w["gen_embed.weight"][x] @ w["gen_aligner.layers.0.weight"].T + w["gen_aligner.layers.0.bias"]
    image = nn.functional.gelu(image) @ w["gen_aligner.layers.2.weight"].T + w["gen_aligner.layers.2.bias"]
    end = fudoki.tokenizer().token_to_id("<end_of_image>")
    h = torch.cat([table[prompt], image, table[[end]]])
    for layer in range(fudoki.LAYERS):
        get = lambda name, layer=layer: w[f"language_model.model.layers.{layer}.{name}.weight"]  # noqa: E731
        rows = norm(h, get("input_layernorm"))
        q, k, v = (rows @ get(f"self_attn.{each}_proj").T for each in "qkv")
        heads = []
        for head in range(fudoki.HEADS):
            shared = head * fudoki.KEYS // fudoki.HEADS
            query = turned(q[:, head * own : (head + 1) * own])
            key, value = (each[:, shared * own : (shared + 1) * own] for each in (k, v))
            heads.append((query @ turned(key).T / math.sqrt(own)).softmax(-1) @ value)
        h = h + torch.cat(heads, 1) @ get("self_attn.o_proj").T
        rows = norm(h, get("post_attention_layernorm"))
        gate = nn.functional.silu(rows @ get("mlp.gate_proj").T) * (rows @ get("mlp.up_proj").T)
        h = h + gate @ get("mlp.down_proj").T
    h = norm(h, w["language_model.model.norm.weight"])[len(prompt) - 1 : len(prompt) - 1 + len(x)]
    middle = h @ w["gen_head.output_mlp_projector.weight"].T + w["gen_head.output_mlp_projector.bias"]
    return nn.functional.gelu(middle) @ w["gen_head.vision_head.weight"].T + w["gen_head.vision_head.bias"]


def ids_of(text):
    """Return the framed prompt by hand."""
    made = fudoki.tokenizer()
    inner = made.encode(f"User: {text}\n\nAssistant:").ids
    return [
        made.token_to_id("<｜begin▁of▁sentence｜>"),
        *inner,
        made.token_to_id("<begin_of_image>"),
    ]


# The network


@pytest.mark.parametrize("text", [SHORT, LONG])
def test_logits_are_those_computed_by_hand(trained, weights, text):
    x = codes(1)
    found = logits(trained, x, trained.task.condition(text)[None])[0]
    wanted = by_hand(weights, ids_of(text), x[0])
    assert wanted.std() > 0.1
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-3)


def test_prompts_of_a_batch_may_differ_in_length(trained, weights):
    x = codes(3)
    texts = (LONG, SHORT, "")
    condition = torch.stack([trained.task.condition(text) for text in texts[:2]] + [torch.full((500,), -1)])
    found = logits(trained, x, condition)
    for row in range(3):
        alone = logits(trained, x[row : row + 1], condition[row : row + 1])[0]
        torch.testing.assert_close(found[row], alone, atol=2e-5, rtol=1e-4)
        if texts[row]:
            wanted = by_hand(weights, ids_of(texts[row]), x[row])
            torch.testing.assert_close(found[row], wanted, atol=2e-4, rtol=1e-3)


def test_the_first_logits_see_the_last_token(trained):
    condition = trained.task.condition(SHORT)[None]
    x = codes(1)
    changed = x.clone()
    changed[0, -1] = (x[0, -1] + 1) % fudoki.CODES
    before, after = logits(trained, x, condition), logits(trained, changed, condition)
    assert (before[0, 0] - after[0, 0]).abs().max() > 1e-3


def test_the_time_is_not_told(trained):
    x, condition = codes(2), trained.task.condition(SHORT).expand(2, -1)
    first, second = (
        trained.model.denoiser.evaluate(x, torch.full((2,), t), condition).dense() for t in (0.1, 0.9)
    )
    assert torch.equal(first, second)


def test_the_head_runs_on_the_rows_that_are_read(trained, monkeypatch):
    network, seen = network_of(trained), []
    run = network.generation_head.forward
    monkeypatch.setattr(network.generation_head, "forward", lambda rows: seen.append(len(rows)) or run(rows))
    evaluation = trained.model.denoiser.evaluate(codes(2), torch.zeros(2), None)
    evaluation.probs(torch.tensor([3, 20]))
    assert seen == [2]


def test_the_published_sizes():
    """In millions of parameters, as counted in the modules of Janus 1.3B; nothing takes memory."""
    text = {"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24}
    config = {
        "language_config": text | {"num_attention_heads": 16, "num_key_value_heads": 16},
        "gen_vision_config": {"cls": "VQ-16", "params": {"image_token_size": 16384, "n_embed": 8}},
        "gen_aligner_config": {"params": {"depth": 2, "input_dim": 8, "n_embed": 2048}},
        "gen_head_config": {
            "params": {"n_embed": 2048, "image_token_embed": 2048, "image_token_size": 16384}
        },
    }
    recipe = RECIPES[1]
    with torch.device("meta"):
        host = recipe.host(recipe.config(config, {"processor_config.json": {"num_image_tokens": 576}}))
    millions = {
        name: round(sum(each.numel() for each in part.parameters()) / 1e6, 1)
        for name, part in host.named_children()
    }
    assert millions == {
        "language_model": 1442.9,
        "generation_embeddings": 0.1,
        "generation_aligner": 4.2,
        "generation_head": 37.8,
        "vqmodel": 42.6,
    }


# Prompts and guidance


def test_a_prompt_is_framed_and_read_back(trained):
    task = trained.task
    for text in (SHORT, "Ein grüner Würfel, 緑", "{prompt} <begin_of_image>", " spaces around "):
        row = task.condition(text)
        assert row.shape == (500,)
        kept = row[row >= 0].tolist()
        assert task.caption(row) == text.strip()
        assert kept[-1] == fudoki.tokenizer().token_to_id("<begin_of_image>")
        assert kept.count(kept[-1]) == 1, "a tag in a prompt is text"
    assert task.condition(LONG)[: len(ids_of(LONG))].tolist() == ids_of(LONG)
    assert task.caption(torch.full((500,), -1)) == ""
    assert task.caption(network_of(trained).null_condition(task.condition(SHORT))) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  ", "must not be empty"),
        ("x" * 600, "at most 500 tokens with its frame, got 620"),
    ],
)
def test_prompts_that_are_refused(trained, text, said):
    with pytest.raises(SettingsError, match=said):
        trained.task.condition(text)


def test_the_null_prompt_keeps_the_length(trained):
    pad = fudoki.tokenizer().token_to_id("<｜▁pad▁｜>")
    condition = torch.stack([trained.task.condition(text) for text in (SHORT, LONG)])
    null = trained.model.denoiser.null_condition(condition)
    for row, text in zip(null, (SHORT, LONG), strict=True):
        ids = ids_of(text)
        assert row[row >= 0].tolist() == [ids[0], *[pad] * (len(ids) - 2), ids[-1]]
    nothing = logits(trained, codes(2), None)
    empty = [ids_of("")[0], *[pad] * (len(ids_of("")) - 2), ids_of("")[-1]]
    row = torch.tensor(empty + [-1] * (500 - len(empty)))
    assert torch.equal(nothing, logits(trained, codes(2), row.expand(2, -1)))


@pytest.mark.parametrize("wrap", [lambda denoiser: denoiser, TimedDenoiser])
def test_guidance_is_away_from_the_null_prompt(trained, weights, wrap):
    """FUDOKI's (1 + w) c - w u with w = 5 is the weight 6; an evaluation takes two forwards."""
    x, w = codes(2), 5.0
    pad = fudoki.tokenizer().token_to_id("<｜▁pad▁｜>")
    condition = torch.stack([trained.task.condition(text) for text in (SHORT, LONG)])
    model = dataclasses.replace(trained.model, denoiser=wrap(trained.model.denoiser)).guided(1 + w)
    found = model.denoiser.evaluate(x, torch.zeros(2), condition).dense()
    for row, text in enumerate((SHORT, LONG)):
        ids = ids_of(text)
        null = [ids[0], *[pad] * (len(ids) - 2), ids[-1]]
        mixed = (1 + w) * by_hand(weights, ids, x[row]) - w * by_hand(weights, null, x[row])
        torch.testing.assert_close(found[row], mixed.softmax(-1), atol=1e-3, rtol=1e-2)
    assert model.denoiser.forwards == 2


def test_any_network_may_say_how_a_condition_is_dropped():
    class Labelled:
        conditions = (4,)

        def __call__(self, x, t, condition):
            return nn.functional.one_hot(condition, 4).float().expand(-1, x.shape[1], -1) * 5

        def null_condition(self, condition):
            return torch.full_like(condition, 3)

    model = tauflow.Model(Labelled(), tauflow.Mixture(tauflow.Uniform(4), "linear"), (2,)).guided(2)
    logits = model.denoiser.evaluate(torch.zeros(1, 2).long(), torch.zeros(1), torch.tensor([[1]])).dense()
    wanted = torch.tensor([0.0, 10.0, 0.0, -5.0]).softmax(0)
    torch.testing.assert_close(logits[0, 0], wanted)


# Pictures


def test_pictures_are_those_of_the_class_of_transformers(trained, weights):
    vq = fudoki.vq_model()
    vq.load_state_dict({name: weights[old] for name, old in fudoki.vq_names().items()})
    x = codes(11)
    with torch.no_grad():
        wanted = ((vq.decode(x) + 1) / 2).clamp(0, 1).permute(0, 2, 3, 1)
    shown = trained.task.show(x)
    assert shown.dtype == np.uint8
    assert shown.shape == (11, 8, 8, 3)
    assert np.abs(shown / 255 - wanted.numpy()).max() <= 0.5 / 255 + 1e-5
    assert np.array_equal(trained.task.show(x[[4, 4, 2]]), shown[[4, 4, 2]]), "kept pictures are the same"
    x[0, :2] = torch.tensor([fudoki.CODES, -1])
    covered = trained.task.show(x)[0]
    assert (covered[:2, :4] == 127).all(), "what is no code is grey"
    assert not (covered[2:] == 127).all()


def test_metrics_need_no_real_data(trained):
    results = tauflow.evaluate(trained, "euler", [2], 6, batch_size=4)
    found = {record.metric: record.measured.value for record in results.cells[0].records}
    assert {"quiet_luma", "quiet_chroma", "brightness_sd"} <= set(found)
    assert found["quiet_luma"] > 0
    prompts = [trained.task.caption(torch.tensor(row)) for row in results.cells[0].shown.condition]
    assert len(set(prompts)) == 4
    assert all(prompt.startswith("a photo of") for prompt in prompts), "those of GenEval"
    assert trained.task.facts.conditions == (fudoki.IDS,) * 500
    with pytest.raises(SettingsError, match="without data"):
        trained.task.setup("fit")


def test_clip_judges_pictures_by_their_prompts(released, tmp_path):
    name = save_clip(tmp_path / "tiny", seed=1)  # whose score is above 0, where the mean would be cut
    trained = pretrained(released, rates="mixture")
    trained.task.use_judges(name)
    results = tauflow.evaluate(trained, "euler", 2, 3, condition=trained.task.condition(SHORT))
    (cell,) = results.cells
    pictures = torch.from_numpy(trained.task.show(torch.tensor(cell.shown.tokens)))
    wanted = ClipScore(name)(pictures, [SHORT] * 3).mean()
    assert wanted > 1
    found = {record.metric: record.measured.value for record in cell.records}
    assert found[trained.task.primary_metric] == pytest.approx(float(wanted), abs=1e-4)
    assert trained.task.primary_metric == "clip_score_tiny"


def test_clip_runs_where_it_is_asked_to(released, tmp_path, monkeypatch):
    """The GPU of the process stands for a place where nothing can be computed."""
    monkeypatch.setattr("tauflow.tasks.scenes.clip.default_device", lambda: torch.device("meta"))
    task = pretrained(released, rates="mixture").task
    task.use_judges(save_clip(tmp_path / "tiny"), torch.device("cpu"))
    metrics = task.sample_metrics()
    metrics.update(codes(1), condition=task.condition(SHORT)[None])
    assert math.isfinite(metrics.compute()["clip_score_tiny"][0])


def test_clip_models_of_the_same_name_are_refused(trained, tmp_path):
    names = [save_clip(tmp_path / folder / "clip") for folder in ("a", "b")]
    with pytest.raises(TauflowError, match="are both called clip; use one, or rename its folder"):
        trained.task.use_judges(",".join(names))
    assert not trained.task.scores


# Folders


def test_a_converted_folder_holds_the_same_numbers(released, converted, weights, trained):
    again = pretrained(converted, rates="mixture")
    first, second = (network_of(each).state_dict() for each in (trained, again))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    x = codes(3)
    assert np.array_equal(trained.task.show(x), again.task.show(x))
    assert trained.tokenizer is trained.task.prompts.tokenizer
    condition = trained.task.condition(SHORT)
    samples = [
        tauflow.sample(each.model, "tr_cie", 4, count=2, condition=condition, seed=3).tokens
        for each in (trained, again)
    ]
    assert torch.equal(*samples)
    saved = load_file(converted / "model.safetensors")
    assert sorted(path.name for path in converted.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    unused = ("language_model.lm_head.", "vision_model.", "aligner.", "gen_vision_model.encoder.")
    unused += ("gen_vision_model.quant_conv.",)
    needed = [
        name
        for name in weights
        if not name.startswith(unused) and not name.endswith(("codebook_used", "inv_freq"))
    ]
    assert len(saved) == len(needed) + 1
    assert torch.equal(saved["codebook"], codebook(released))


def codebook(folder):
    with torch.serialization.safe_globals([nn.Embedding]):
        return torch.load(folder / "image_embedding.pt", weights_only=True).weight.detach()


def test_half_precision_weights_are_converted_as_they_are(tmp_path, weights):
    half = {name: value.half() for name, value in weights.items()}
    convert(fudoki.write(tmp_path / "half", half), tmp_path / "out")
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert saved["generation_embeddings.weight"].dtype == torch.float16
    assert torch.equal(saved["generation_embeddings.weight"], half["gen_embed.weight"])
    trained = pretrained(tmp_path / "out", dtype="bfloat16", rates="mixture")
    assert {each.dtype for each in network_of(trained).parameters()} == {torch.bfloat16}
    assert {each.dtype for each in trained.task.decoder.parameters()} == {torch.float32}
    result = tauflow.sample(trained.model, "euler", 2, condition=trained.task.condition(SHORT))
    assert result.tokens.shape == (1, D)


def test_metric_rates_are_the_default(released):
    trained = pretrained(released)
    process = trained.model.process
    assert isinstance(process, tauflow.Metric)
    assert process.num_tokens == fudoki.CODES
    result = tauflow.sample(trained.model, "auto", 4, count=2, condition=trained.task.condition(SHORT))
    assert result.tokens.max() < fudoki.CODES


def test_vectors_of_codes_may_have_another_width_than_the_embedding(copied, tmp_path):
    vectors = nn.Embedding(fudoki.CODES, 5)
    torch.save(vectors, copied / "image_embedding.pt")
    convert(copied, tmp_path / "out")
    for folder in (copied, tmp_path / "out"):
        assert pretrained(folder).model.process == tauflow.Metric(vectors.weight.detach())


@pytest.mark.parametrize("package", ["transformers", "safetensors"])
def test_packages_that_are_missing(package, copied, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    install = re.escape("more packages") + r".*: pip install -c constraints\.txt -e '\.\[pretrained\]'"
    with pytest.raises(SettingsError, match=install):
        pretrained(copied)
    with pytest.raises(SystemExit, match=f"^error: .*{install}"):
        main(["convert", str(copied), str(tmp_path / "out")])


def test_the_command_converts_and_says_where(released, tmp_path, capsys):
    main(["list"])
    assert "fudoki: model_type fudoki" in capsys.readouterr().out
    main(["convert", str(released), str(tmp_path / "new" / "out")])
    assert "written to" in capsys.readouterr().out
    for source, out, said in (
        (released, tmp_path / "new" / "out", "exists already"),
        (tmp_path / "new" / "out", tmp_path / "other", "needs no conversion"),
        (tmp_path / "nowhere", tmp_path / "other", "Folder not found"),
    ):
        with pytest.raises(SystemExit, match=said):
            main(["convert", str(source), str(out)])
    assert os.listdir(tmp_path) == ["new"]
    assert os.listdir(tmp_path / "new") == ["out"], "nothing unfinished is left"


def test_a_failed_conversion_leaves_nothing(copied, tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(TauflowError, match=r"Can't write .*No space left"):
        convert(copied, tmp_path / "out")
    assert os.listdir(tmp_path) == ["copied"]


def test_a_name_of_the_hub_is_looked_up(released, monkeypatch):
    asked = []

    def snapshot(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(released)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert pretrained("LucasJinWang/FUDOKI", rates="mixture").task.shape == (4, 4)
    ((name, files),) = asked
    assert name == "LucasJinWang/FUDOKI"
    assert {"config.json", "tokenizer.json", "image_embedding.pt", "processor_config.json"} <= set(files)


def test_a_name_that_is_not_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="isn't in the hub's cache and can't be downloaded") as stop:
        pretrained("LucasJinWang/FUDOKI")
    assert "\n" not in str(stop.value)


def test_a_recipe_of_the_user(released, tmp_path):
    """What a folder is called in config.json is the recipe's to say."""
    folder = shutil.copytree(released, tmp_path / "own")
    config = fudoki.CONFIG | {"model_type": "mine"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"type mine, which no recipe loads\. Recipes: fudoki"):
        pretrained(folder)
    own = dataclasses.replace(RECIPES[1], name="mine", model_type="mine")
    assert pretrained(folder, rates="mixture", recipes=[own]).task.shape == (4, 4)


def test_the_example_of_geneval(released, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "geneval.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "write_folder(" in block]
    code = code.replace("LucasJinWang/FUDOKI", str(released)).replace('"cuda"', '"cpu"')
    exec(code.replace("records()", "records()[:2]"), {})
    found = read_folder(tmp_path / "images")
    assert [len(each.images) for each in found] == [4, 4]
    assert [each.record for each in found] == records()[:2]


def test_the_examples_of_the_guide(released, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pretrained.md").read_text(), re.S)
    (loading,) = (block for block in blocks if "FUDOKI" in block)
    (writing,) = (block for block in blocks if "Recipe(" in block)
    found = {}
    exec(loading.replace("LucasJinWang/FUDOKI", str(released)).replace('"cuda"', '"cpu"'), found)
    assert found["pictures"].shape == (2, 8, 8, 3)

    class MyModules(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layers = nn.Embedding(5, width)

    class MyNetwork(nn.Module):
        def __init__(self, host):
            super().__init__()
            self.layers = host.layers

        def hidden(self, x, t):
            return self.layers(x)

        def head(self, rows):
            return rows

    (tmp_path / "config.json").write_text('{"model_type": "my_model", "hidden_size": 4, "vocab_size": 4}')
    weight = torch.randn(5, 4)
    save_file(
        {"model.transformer.weight": weight, "x.inv_freq": torch.zeros(2)}, tmp_path / "model.safetensors"
    )
    found = {"MyModules": MyModules, "MyNetwork": MyNetwork}
    exec(writing.replace('"folder"', f'"{tmp_path}"'), found)
    result = tauflow.sample(found["trained"].model, "tweedie", 4)
    assert result.tokens.shape == (1, 256)
    assert torch.equal(found["trained"].model.denoiser.network.layers.weight, weight)


def test_the_example_of_a_network_of_ones_own():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pretrained.md").read_text(), re.S)
    (own,) = (block for block in blocks if "remembers = True" in block)
    torch.manual_seed(0)
    found = {}
    exec(own, found)
    tokens, nfe = found["result"].tokens, found["result"].nfe
    assert tokens.shape == (3, 64)
    assert 0 < int(tokens.max()) < 4
    assert not tokens[1, 40:].any()
    assert not tokens[2, 12:].any()
    assert found["result"].info.forwards == nfe == 8


def changed_weights(folder, change):
    found = load_file(folder / "model.safetensors")
    change(found)
    save_file(found, folder / "model.safetensors")


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def changed_config(folder, **more):
    (folder / "config.json").write_text(json.dumps(fudoki.CONFIG | more))


def language(**more):
    return {"language_config": fudoki.CONFIG["language_config"] | more}


def index(folder):
    names = {"gen_embed.weight": "model.safetensors", "other": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


FAULTS = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "not found: .*config.json"),
    "damaged config": (lambda folder: (folder / "config.json").write_text("{"), "config.json can't be read"),
    "no dictionary": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "doesn't contain a dictionary",
    ),
    "Janus": (
        lambda folder: (folder / "processor_config.json").write_text('{"sft_format": "deepseek"}'),
        "processor_config.json with sft_format 'fudoki'",
    ),
    "a part of the config": (
        lambda folder: changed_config(folder, gen_head_config={}),
        "doesn't describe a fudoki as released model: KeyError 'params'",
    ),
    "sizes that mean nothing": (
        lambda folder: changed_config(folder, **language(num_attention_heads=5)),
        "config.json doesn't describe a fudoki as released model: .*attention heads",
    ),
    "other sizes": (
        lambda folder: changed_config(folder, **language(intermediate_size=40)),
        r"of another shape: language_model.layers.0.mlp.down_proj.weight \(32, 48\) instead of \(32, 40\)",
    ),
    "a weight is missing": (
        lambda folder: changed_weights(folder, lambda found: found.pop("gen_embed.weight")),
        "missing: generation_embeddings.weight",
    ),
    "a weight too many": (
        lambda folder: changed_weights(folder, lambda found: found.update(time_embed=torch.zeros(2))),
        "unknown: time_embed",
    ),
    "a weight twice": (
        lambda folder: save_file({"gen_embed.weight": torch.zeros(32, 8)}, folder / "more.safetensors"),
        "has generation_embeddings.weight twice",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "no weights as .*pytorch_model.bin are pickles",
    ),
    "cut weights": (
        lambda folder: os.truncate(folder / "model.safetensors", 1000),
        "model.safetensors is damaged",
    ),
    "a shard is missing": (index, "lacks files of its index: model-00002-of-00002.safetensors"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json can't be read"),
    "damaged tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        "tokenizer.json can't be read",
    ),
    "a tokenizer without tags": (
        lambda folder: (folder / "tokenizer.json").write_text(
            (folder / "tokenizer.json").read_text().replace("<begin_of_image>", "<start>")
        ),
        "has no token <begin_of_image>",
    ),
    "another pickle": (
        lambda folder: torch.save([1], folder / "image_embedding.pt"),
        "must contain an nn.Embedding, got list",
    ),
    "a codebook of another size": (
        lambda folder: torch.save(nn.Embedding(5, 8), folder / "image_embedding.pt"),
        r"codebook \(5, 8\) instead of \(32, 8\)",
    ),
    "no codebook": (
        lambda folder: (folder / "image_embedding.pt").unlink(),
        "has no image_embedding.pt, the code vectors that metric rates need",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_folder_are_named(fault, copied, monkeypatch):
    monkeypatch.chdir(copied)
    damage, said = FAULTS[fault]
    damage(copied)
    with pytest.raises(CheckpointError, match=said) as stop:
        pretrained(copied)
    assert "\n" not in str(stop.value)
    assert not (copied / "evil").exists()


def test_a_folder_without_code_vectors_has_mixture_rates(copied, capsys):
    (copied / "image_embedding.pt").unlink()
    assert pretrained(copied, rates="mixture").model.process.num_tokens == fudoki.CODES
    main(["convert", str(copied), str(copied.with_name("out"))])
    assert "without     codebook" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="code vectors that metric rates need"):
        pretrained(copied.with_name("out"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rates": "euler"}, "rates must be metric or mixture"),
        ({"dtype": "int8"}, "dtype must be a floating-point type"),
        ({"device_map": "auto"}, "device_map must be one device"),
    ],
)
def test_options_that_are_refused(released, options, said):
    with pytest.raises(SettingsError, match=said):
        pretrained(released, **options)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "Folder not found: nowhere"),
        (
            "google/gemma",
            "no recipe loads a hub model of that name. Recipes: fudoki .*to write a recipe",
        ),
        (__file__, "must be a folder, got the file"),
        ("", "must be a folder or a hub name such as owner/model, got ''"),
    ],
)
def test_names_that_are_refused(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TauflowError, match=said):
        pretrained(name)


def test_the_null_token_must_be_that_of_the_model(released):
    with pytest.raises(CheckpointError, match=r"has the id 258 for .* the model has 100"):
        Prompts.read(released / "tokenizer.json", dataclasses.replace(FRAMING, null_id=100), fudoki.IDS)
