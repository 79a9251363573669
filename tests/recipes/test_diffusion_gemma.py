"""DiffusionGemma: a tiny random model of the class of transformers, loaded, compared and sampled."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_gemma import D, V
from tokenizers import Tokenizer, processors
from torch import Tensor

import tauflow
from tauflow import Model
from tauflow.errors import CheckpointError, SettingsError
from tauflow.recipes import pretrained
from tauflow.samplers import SAMPLERS
from tauflow.train import Trained

B, NFE = 3, 3
X = torch.randint(V, (B, D), generator=torch.Generator().manual_seed(0))
T = torch.zeros(B)
LENGTHS = (14, 3, 9)  # of prompts; the window of the first layer is 8


@pytest.fixture(scope="module")
def trained(saved_gemma) -> Trained:
    return pretrained(saved_gemma[1])


def prompts(trained: Trained, lengths=LENGTHS) -> Tensor:
    """Random prompts of these lengths as conditions (B, C)."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(4, V, (length,), generator=generator).tolist() for length in lengths]
    return torch.stack([trained.task.row(row) for row in rows])


def reference(model, condition: Tensor, x: Tensor, logits: Tensor | None = None) -> Tensor:
    """The logits of the model of transformers, of one sequence after the other."""
    found = [
        model(
            input_ids=row[row >= 0][None],
            decoder_input_ids=canvas[None],
            self_conditioning_logits=None if logits is None else logits[number : number + 1],
        ).logits
        for number, (row, canvas) in enumerate(zip(condition, x, strict=True))
    ]
    return torch.cat(found)


def test_logits_are_those_of_transformers(saved_gemma, trained):
    """Of prompts of different lengths in one batch, without and with memory, and of the head apart."""
    model, _ = saved_gemma
    network = trained.model.denoiser.network
    condition = prompts(trained)
    rows = network.hidden(X, T, condition)
    first = reference(model, condition, X)
    torch.testing.assert_close(network.head(rows), first, atol=1e-5, rtol=1e-4)
    second = reference(model, condition, X.flip(1), first)
    own = network.head(network.hidden(X.flip(1), T, condition, memory=rows))
    torch.testing.assert_close(own, second, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(second, reference(model, condition, X.flip(1)), atol=1e-2)
    some = torch.tensor([0, 7, 17])
    torch.testing.assert_close(network.head(rows.flatten(0, 1)[some]), first.flatten(0, 1)[some])


def test_a_canvas_may_be_padded(trained):
    condition, read = prompts(trained), torch.arange(D) < torch.tensor([6, 2, 4])[:, None]
    network = trained.model.denoiser.network
    together = network.hidden(X, T, condition, read)
    for number in range(B):
        own = slice(number, number + 1)
        alone = network.hidden(X[own][:, read[number]], T[own], condition[own])
        torch.testing.assert_close(together[own][:, read[number]], alone, atol=1e-5, rtol=1e-4)


def test_what_is_loaded(saved_gemma, trained):
    _, folder = saved_gemma
    assert (trained.model.shape, trained.model.process.name, trained.model.process.num_tokens) == (
        (D,),
        "uniform",
        V,
    )
    assert (trained.task.block, trained.task.context, trained.task.ends) == (D, D, (1,))
    assert trained.task.caption(trained.task.condition("w1 w2 w3")) == "w1 w2 w3"
    half = pretrained(folder, dtype="bfloat16", length=4)
    assert half.model.shape == (4,)
    found = tauflow.sample(half.model, "tr_cie", 3, count=2, condition=half.task.condition("w1"))
    assert half.model.denoiser.network.decoder.dtype == torch.bfloat16
    assert found.tokens.shape == (2, 4)


CASES = [
    name
    for name in SAMPLERS
    if not SAMPLERS[name]().unsupported_reason(
        Model(lambda x, t: x, tauflow.Mixture(tauflow.Uniform(V), "linear"), (D,))
    )
]


def test_every_sampler_of_a_uniform_source(trained):
    """Prompts of different lengths, a known token of the canvas, guidance; the same in parts of a batch."""
    known = torch.zeros(B, D, dtype=torch.bool)
    known[:, 2] = True
    request = {"count": B, "condition": prompts(trained), "prompt": (torch.full((B, D), 7), known), "seed": 2}
    for name in CASES:
        found = tauflow.sample(trained.model, name, NFE, **request)
        assert (found.tokens[:, 2] == 7).all(), name
        assert found.nfe <= NFE, name
        assert found.info.forwards == found.nfe, name
        guided = tauflow.sample(trained.model.guided(1.5), name, NFE, **request, batch_size=2)
        assert (guided.tokens[:, 2] == 7).all(), name
        # the last forward pass may be unread
        assert guided.info.forwards in range(4 * guided.nfe - 3, 4 * guided.nfe + 1), name


@pytest.mark.parametrize("spec", ["bridge_systematic", "theta_trapezoidal", "tr_cie"])
def test_self_conditioning_is_that_of_a_loop_by_hand(saved_gemma, trained, spec):
    """The model of transformers, which is handed its last logits."""
    model, _ = saved_gemma
    condition = prompts(trained, (5, 5, 5))
    last: list[Tensor | None] = [None]

    def by_hand(x, t):
        last.append(
            model(input_ids=condition[:, :5], decoder_input_ids=x, self_conditioning_logits=last[-1]).logits
        )
        return last[-1]

    plain = Model(by_hand, trained.model.process, (D,))
    wanted = tauflow.sample(plain, spec, NFE, count=B, seed=5)
    found = tauflow.sample(trained.model, spec, NFE, count=B, seed=5, condition=condition)
    assert torch.equal(wanted.tokens, found.tokens)
    assert (wanted.nfe, len(last) - 1) == (found.nfe, found.nfe)


def test_a_prompt_is_encoded_once_and_a_longer_one_where_it_is_new(saved_gemma, trained):
    model, _ = saved_gemma
    encoded = trained.model.denoiser.network.prompts
    condition = prompts(trained, (12, 4, 12))
    before = encoded.encoded
    tauflow.sample(trained.model.guided(1.5), "tr_cie", NFE, count=B, condition=condition)
    assert encoded.encoded - before == 12 + 1  # and the beginning of a text alone
    rows = [row[row >= 0].tolist() + canvas for row, canvas in zip(condition, X.tolist(), strict=True)]
    longer = torch.stack([trained.task.row(row) for row in rows])
    logits = trained.model.denoiser.evaluate(X, T, longer).logits(slice(None)).view(B, D, V)
    assert encoded.encoded - before == 12 + 1 + D
    torch.testing.assert_close(logits, reference(model, longer, X), atol=1e-5, rtol=1e-4)


def test_parts_of_a_batch_are_encoded_once_and_kept_for_their_run(saved_gemma, monkeypatch):
    trained = pretrained(saved_gemma[1])
    encoded = trained.model.denoiser.network.prompts

    def columns(rows) -> int:
        before, condition = encoded.encoded, torch.stack([trained.task.row(row) for row in rows])
        tauflow.sample(trained.model, "tr_cie", NFE, count=len(rows), condition=condition, batch_size=1)
        return encoded.encoded - before

    assert columns([[number, 5, 6] for number in range(10)]) == 30
    assert len(encoded) == 10
    assert columns([[11], [12, 5]]) == 3
    assert len(encoded) == 2, "those of the run before are dropped"
    assert columns([[11], [12, 5]]) == 0
    monkeypatch.setattr("tauflow.recipes.diffusion_gemma.MAX_CACHE", 1)
    assert columns([[13], [14, 5]]) == 3 * NFE
    assert len(encoded) == 1, "what does not fit is encoded again"


def test_a_prompt_begins_as_the_tokenizer_begins_it(saved_gemma, tmp_path):
    """With one BOS, whether a chat template wrote it or not; without one where the tokenizer has none."""
    folder = shutil.copytree(saved_gemma[1], tmp_path / "gemma")
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    words.save(str(folder / "tokenizer.json"))
    trained = pretrained(folder)
    task, ids = trained.task, [2, 5, 6]
    assert trained.tokenizer("w1 w2")["input_ids"] == ids
    for text in ("w1 w2", "<bos> w1 w2"):
        condition = task.condition(text)
        assert condition[:4].tolist() == [*ids, -1]
        assert task.caption(condition) == "w1 w2"
        wanted = tauflow.sample(trained.model, "tr_cie", NFE, condition=task.row(ids), seed=4).tokens[0]
        found = tauflow.generate(trained, text, D, "tr_cie", NFE, seed=4).tokens[0]
        assert torch.equal(found, wanted[: len(found)])
    assert task.condition("")[:2].tolist() == [2, -1]


def test_double_precision_and_no_cap(saved_gemma, trained, tmp_path):
    """Experts run in every type; logits that are not capped are products with the embedding."""
    double, condition = pretrained(saved_gemma[1], dtype="float64"), prompts(trained)
    first, second = (
        each.model.denoiser.evaluate(X, T, condition).logits(slice(None)) for each in (trained, double)
    )
    assert second.dtype == torch.float64
    torch.testing.assert_close(second.float(), first, atol=1e-4, rtol=1e-4)
    changed(saved_gemma[1], tmp_path / "other", text={"final_logit_softcapping": None})
    network = pretrained(tmp_path / "other").model.denoiser.network
    rows = network.hidden(X, T, condition)
    torch.testing.assert_close(network.head(rows), rows @ network.decoder.embed_tokens.weight.T)


def changed(folder, target, drop=None, text=None, **settings) -> None:
    """Copy a folder with other settings, those of its text model too, or without a weight."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    config["text_config"] |= text or {}
    (target / "config.json").write_text(json.dumps(config | settings))
    if drop is not None:
        weights = load_file(target / "model.safetensors")
        del weights[drop]
        save_file(weights, target / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "model.decoder.norm.weight"}, "missing: decoder.norm.weight"),
        ({"drop": "model.encoder.language_model.layers.1.layer_scalar"}, "missing: scales.1"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be true"),
        ({"canvas_length": 40}, "must hold a prompt and a canvas"),
    ],
)
def test_a_folder_that_is_none_is_refused(saved_gemma, tmp_path, change, message):
    changed(saved_gemma[1], tmp_path / "other", **change)
    with pytest.raises(CheckpointError, match=message):
        pretrained(tmp_path / "other")


def test_prompts_that_are_none_are_refused(trained):
    with pytest.raises(SettingsError, match="1 to 34 tokens, got 35"):
        trained.task.condition("w1 " * 35)
    with pytest.raises(SettingsError, match="got 0"):
        trained.task.condition("")
