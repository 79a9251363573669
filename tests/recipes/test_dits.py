"""MDLM, Duo, SEDD and flow_matching: tiny models, compared with the originals (tests/tiny_dits.py)."""

import itertools
import json
import math

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_dits import CONFIGS, FLOW, MASKED, STORED, WORDS, D, T, V, W, save_tokenizer, weights, write

import tauflow
from tauflow.errors import CheckpointError, TauflowError
from tauflow.networks.dit import NOISIEST, DiT, DiTSizes
from tauflow.recipes import pretrained
from tauflow.recipes.flow_matching import from_run
from tauflow.samplers import SAMPLERS


class Harm:
    def __reduce__(self):
        return print, ("harm",)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    root = tmp_path_factory.mktemp("dits")
    return {kind: pretrained(write(root / kind, kind)) for kind in CONFIGS}


def states(kind):
    return torch.from_numpy(STORED["x_masked" if kind in MASKED else "x_uniform"])


def logits(trained, x, t):
    return trained.model.denoiser.evaluate(x, t).logits(slice(None)).view(*x.shape, -1)


# Logits


@pytest.mark.parametrize("kind", ["mdlm", "duo", "fm_uniform", "fm_masked"])
def test_logits_are_those_of_the_original(loaded, kind):
    found = logits(loaded[kind], states(kind), T)
    torch.testing.assert_close(found, torch.from_numpy(STORED[kind])[..., :V], atol=1e-5, rtol=0)


def test_logits_of_sedd_are_its_log_scores_without_what_depends_on_the_time(loaded):
    x = states("sedd")
    of_time = torch.expm1(-T.log()).log()[:, None, None] + math.log(V)
    found = logits(loaded["sedd"], x, T) - of_time
    wanted = torch.from_numpy(STORED["sedd"])[..., :V]
    torch.testing.assert_close(found[x == V], wanted[x == V], atol=1e-5, rtol=0)


def test_what_a_model_is(loaded):
    said = {kind: str(trained.model.process) for kind, trained in loaded.items()}
    assert said == {
        "mdlm": "masked source, linear",
        "duo": "uniform source, linear",
        "sedd": "masked source, linear",
        "fm_uniform": "uniform source, quadratic",
        "fm_masked": "masked source, quadratic",
    }
    assert all(trained.model.shape == trained.task.shape == (D,) for trained in loaded.values())
    assert all(trained.task.num_tokens == V for trained in loaded.values())
    for kind, trained in loaded.items():
        assert trained.model.denoiser.network(states(kind), T).shape == (3, D, V)


# The time


def test_mdlm_is_not_told_the_time(loaded):
    x = states("mdlm")
    assert torch.equal(logits(loaded["mdlm"], x, T), logits(loaded["mdlm"], x, T.flip(0)))


def test_duo_is_told_sigma_no_larger_than_in_its_training(loaded):
    x = states("duo")
    assert (logits(loaded["duo"], x, T) - logits(loaded["duo"], x, T.flip(0))).abs().max() > 0.01
    least, none = torch.full((3,), NOISIEST), torch.zeros(3)
    assert torch.equal(logits(loaded["duo"], x, least), logits(loaded["duo"], x, none))


@pytest.mark.parametrize("kind", ["duo", "sedd"])
def test_under_another_schedule_sigma_is_that_of_kappa(loaded, kind):
    trained, x = loaded[kind], states(kind)
    other = trained.model.with_schedule("quadratic").denoiser.evaluate(x, T.sqrt()).logits(slice(None))
    torch.testing.assert_close(other.view(*x.shape, -1), logits(trained, x, T), atol=1e-5, rtol=1e-5)


def test_exact_scores_give_the_exact_posterior():
    """A law of two tokens of three, all of it enumerated: p_t by its definition, scores as its ratios."""
    tokens, kappa = 3, 0.3
    law = torch.tensor([[0.2, 0.05, 0.1], [0.02, 0.3, 0.03], [0.1, 0.15, 0.05]], dtype=torch.float64)

    def shown(state, token):
        return 1 - kappa if state == tokens else kappa * (state == token)

    def p_t(x):
        pairs = itertools.product(range(tokens), repeat=2)
        return sum(float(law[pair]) * shown(x[0], pair[0]) * shown(x[1], pair[1]) for pair in pairs)

    class Exact(DiT):
        def hidden(self, x, t, condition=None, attention=None):
            rows = torch.zeros(*x.shape, tokens + 1, dtype=torch.float64)
            for number, own in enumerate(x.tolist()):
                for place, y in itertools.product(range(2), range(tokens)):
                    other = [*own[:place], y, *own[place + 1 :]]
                    rows[number, place, y] = math.log(max(p_t(other), 1e-300) / p_t(own))
            sigma = -t.double().log()
            return rows + torch.expm1(sigma).log()[:, None, None] + math.log(tokens)  # before scale_by_sigma

    network = Exact(DiTSizes(tokens + 1, 1, 1, 1, tokens + 1, tokens)).double()
    with torch.no_grad():
        network.output.weight.copy_(torch.eye(tokens + 1))
        network.output.bias.zero_()
    model = tauflow.Model(network, tauflow.Mixture(tauflow.Masked(tokens), "linear"), (2,))
    x = torch.tensor([[3, 3], [3, 1], [2, 3]])
    found = model.denoiser.evaluate(x, torch.full((3,), kappa, dtype=torch.float64)).logits(slice(None))
    found = found.softmax(-1).view(3, 2, tokens)
    wanted = [(0, 0, law.sum(1)), (0, 1, law.sum(0)), (1, 0, law[:, 1]), (2, 1, law[2])]
    for row, place, posterior in wanted:
        torch.testing.assert_close(found[row, place], posterior / posterior.sum(), atol=1e-12, rtol=0)


# Sampling


@pytest.mark.parametrize("kind", ["mdlm", "duo"])
def test_all_samplers_of_the_source_run_and_keep_a_prompt(loaded, kind):
    trained = loaded[kind]
    prompt = trained.task.prompt("c a")
    names = [name for name in SAMPLERS if not SAMPLERS[name]().unsupported_reason(trained.model)]
    assert len(names) >= 10
    for name in names:
        tokens = tauflow.sample(trained.model, name, 3, count=2, prompt=prompt).tokens
        assert tokens.shape == (2, D)
        assert int(tokens.max()) < V
        assert tokens[:, :3].tolist() == [[3, 10, 1]] * 2
        assert trained.task.show(tokens)[0].startswith("[1] c a")


@pytest.mark.parametrize("kind", CONFIGS)
def test_sequences_of_a_batch_may_differ_in_length(loaded, kind):
    trained, x, lengths = loaded[kind], states(kind), torch.tensor([5, 3, 4])
    model = trained.model.with_attention_mask(lengths)
    found = model.denoiser.evaluate(x, T).logits(slice(None)).view(3, D, V)
    for row, length in enumerate(lengths.tolist()):
        alone = logits(trained, x[row : row + 1, :length], T[row : row + 1])
        torch.testing.assert_close(found[row, :length], alone[0], atol=1e-5, rtol=1e-5)
    assert int(tauflow.sample(model, "auto", 3, count=3).tokens.max()) < V


def test_half_precision_is_close(tmp_path, loaded):
    trained, x = pretrained(write(tmp_path / "duo", "duo"), dtype="bfloat16"), states("duo")
    found = logits(trained, x, T)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), logits(loaded["duo"], x, T), atol=0.1, rtol=0.1)


# Files


def test_weights_that_do_not_fit_are_named(tmp_path):
    folder = write(tmp_path / "mdlm", "mdlm")
    held = load_file(folder / "model.safetensors")
    held["backbone.blocks.1.mlp.7.weight"] = held.pop("backbone.blocks.1.mlp.2.weight")
    held["backbone.vocab_embed.embedding"] = held["backbone.vocab_embed.embedding"][:-1].clone()
    save_file(held, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: blocks\.1\.mlp_out\.weight") as error:
        pretrained(folder)
    assert "unknown: blocks.1.mlp.7.weight" in str(error.value)
    assert f"embedding.weight ({V}, {W}) instead of ({V + 1}, {W})" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("mdlm", {"time_conditioning": True}, "time_conditioning must be false"),
        ("mdlm", {"n_heads": 3}, "multiple of 2 . heads"),
        ("mdlm", {"n_blocks": 10**9}, "n_blocks in .* must be at most 4096"),
        ("mdlm", {"n_blocks": "2"}, "Sizes of a DiT"),
        ("duo", {"causal": True}, "causal must be false"),
        ("sedd", {"graph": {"type": "uniform"}}, "must be absorb and loglinear, got"),
        ("mdlm", {"model_type": None}, "must have a model_type, unless the model is SEDD"),
        ("sedd", {"model": {}}, "doesn't describe a sedd model: KeyError"),
        ("fm_masked", {"flow": {**FLOW, "scheduler_type": "cosine"}}, "cosine"),
        ("fm_masked", {"flow": {**FLOW, "exponent": -1}}, "exponent"),
    ],
)
def test_settings_that_the_recipe_does_not_know_are_refused(tmp_path, kind, changes, said):
    with pytest.raises(TauflowError, match=said):
        pretrained(write(tmp_path / kind, kind, **changes))


def test_duo_in_capitals_is_the_same(tmp_path, loaded):
    trained = pretrained(write(tmp_path / "duo", "duo", model_type="DUO"))
    x = states("duo")
    assert torch.equal(logits(trained, x, T), logits(loaded["duo"], x, T))


def test_a_folder_without_tokenizer_says_which_files_it_needs(tmp_path):
    folder = write(tmp_path / "mdlm", "mdlm")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TauflowError, match=r"tokenizer\.json") as error:
        pretrained(folder)
    assert "vocab.json and merges.txt" in str(error.value)
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(WORDS)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    task = pretrained(folder).task
    assert task.texts(task.prompt("c a").tokens[None, :3]) == ["c a"]


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = write(tmp_path / "mdlm", "mdlm")
    save_tokenizer(folder / "tokenizer.json", [*WORDS, "k", "l", "m"])
    with pytest.raises(CheckpointError, match="must have 11 tokens and the mask 11, got 14"):
        pretrained(folder)


def test_a_mask_that_is_not_the_last_id_is_refused(tmp_path):
    folder = write(tmp_path / "mdlm", "mdlm")
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "d"}))
    with pytest.raises(CheckpointError, match="must have 11 tokens and the mask 11, got 11 and 4"):
        pretrained(folder)


def test_weights_in_a_pickle_are_read_without_code(tmp_path, loaded):
    folder, x = write(tmp_path / "sedd", "sedd"), states("sedd")
    (folder / "model.safetensors").unlink()
    torch.save(weights("sedd"), folder / "pytorch_model.bin")
    assert torch.equal(logits(pretrained(folder), x, T), logits(loaded["sedd"], x, T))


# Runs of flow_matching


def write_run(folder, kind="fm_uniform", prefix="", **more):
    (folder / ".hydra").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    facts = {name: CONFIGS[kind][name] for name in ("model", "flow")}
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump({**facts, "training": {"seed": 42}}))
    held = {prefix + name: value for name, value in weights(kind).items()}
    state = {"model": held, "optimizer": {"state": {0: {"step": torch.ones(())}}}, "step": 7, **more}
    torch.save(state, folder / "checkpoints" / "checkpoint.pth")
    save_tokenizer(folder / "tokenizer.json")
    return folder


@pytest.mark.parametrize(("kind", "prefix"), [("fm_uniform", ""), ("fm_masked", "_orig_mod.module.")])
def test_a_run_of_flow_matching_becomes_a_folder(tmp_path, loaded, kind, prefix):
    from_run(write_run(tmp_path / "run", kind, prefix), tmp_path / "made")
    trained, x = pretrained(tmp_path / "made"), states(kind)
    assert torch.equal(logits(trained, x, T), logits(loaded[kind], x, T))
    assert str(trained.model.process) == str(loaded[kind].model.process)


def test_a_run_that_could_do_harm_is_refused(tmp_path, capsys):
    run = write_run(tmp_path / "run", extra=Harm())
    with pytest.raises(CheckpointError, match=r"checkpoint\.pth contains more than plain data"):
        from_run(run, tmp_path / "made")
    assert "harm" not in capsys.readouterr().out
    assert not (tmp_path / "made").exists()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"not found: .*config\.yaml"):
        from_run(tmp_path, tmp_path / "made")
    run = write_run(tmp_path / "run")
    torch.save({"model": [1]}, run / "checkpoints" / "checkpoint.pth")
    with pytest.raises(CheckpointError, match="must have weights by name under 'model'"):
        from_run(run, tmp_path / "made")
    with pytest.raises(CheckpointError, match="exists already"):
        from_run(run, run)
    (run / "checkpoints" / "checkpoint.pth").unlink()
    with pytest.raises(CheckpointError, match="not found"):
        from_run(run, tmp_path / "made")
    (run / ".hydra" / "config.yaml").write_text("model: 3")
    with pytest.raises(CheckpointError, match="isn't from a run"):
        from_run(run, tmp_path / "made")
