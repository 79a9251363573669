"""generate and `sample.py --pretrained --prompt`: the law, ragged prompts, blocks, ends, the live view."""

import copy
import dataclasses
import io
import os
import re

import language_models as tiny
import pytest
import tiny_dits as dits
import torch
from conftest import ROOT
from rich.console import Console

import tauflow
import tauflow.cli.sample
from tauflow.cli.sample_text import HIDDEN, render
from tauflow.errors import SamplingError, SettingsError
from tauflow.evaluation.evaluate import Sampling
from tauflow.evaluation.results import Results
from tauflow.recipes import pretrained
from tauflow.recipes.generate import Step
from tauflow.recipes.language import resized
from tauflow.samplers import SAMPLERS, Prompt, sampler_from
from tauflow.samplers.run import unprompted
from tauflow.train import Trained

N, K, GREEDY = 8, 4, 1e-6
PROMPTS = {"llada": ["ab ", "hello, you"], "dream": ["ab ", "hello, you"], "esm": ["EVQ", "EVQLVESG"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: folder for name, (folder, _) in tiny.write_all(tmp_path_factory.mktemp("language")).items()}


@pytest.fixture(scope="module")
def loaded(folders):
    return {name: pretrained(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def gemma(saved_gemma):
    return pretrained(saved_gemma[1])


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """MDLM, Duo and SEDD that read 16 tokens."""
    root = tmp_path_factory.mktemp("dits")
    longer = {"mdlm": {"model_length": 16}, "duo": {"model_length": 16}}
    longer["sedd"] = {"model": dits.PARTS | {"length": 16}}
    return {kind: pretrained(dits.write(root / kind, kind, **more)) for kind, more in longer.items()}


def spelled(loaded, source=tauflow.Masked):
    """A language model that is a Spelling, and the Spelling."""
    task = loaded["llada"].task
    network = tiny.Spelling(task)
    process = tauflow.Mixture(source(task.num_tokens), "linear")
    return Trained(tauflow.Model(network, process, task.shape), task), network


def same_up_to_the_end(generated, tokens, task):
    """Whether new tokens are these (B, N), cut where a text ends."""
    ends = task.lengths(tokens).tolist()
    return [row.tolist() for row in generated.tokens] == [
        row[:end].tolist() for row, end in zip(tokens, ends, strict=True)
    ]


# The law


@pytest.mark.parametrize("sampler", ["spaced_even", "tr_cie", "tweedie"])
@pytest.mark.parametrize("name", ["llada", "esm"])
def test_one_block_is_a_sample_with_the_prompt_frozen(name, sampler, loaded):
    trained = loaded[name]
    text = PROMPTS[name][0]
    found = tauflow.generate(trained, [text] * 3, N, sampler, 5, seed=7, temperature=0.9)
    whole = resized(trained, 3 + N)
    model = whole.model.tempered(0.9)
    wanted = tauflow.sample(model, sampler, 5, count=3, prompt=whole.task.prompt(text), seed=7)
    assert same_up_to_the_end(found, wanted.tokens[:, 3:], trained.task)
    assert found.texts == trained.task.texts(wanted.tokens, begin=3)
    assert (found.evaluations, found.forwards) == (wanted.nfe, wanted.info.forwards)


def test_one_block_with_guidance_is_away_from_the_masked_prompt(loaded):
    trained = loaded["llada"]
    found = tauflow.generate(trained, "ab ", N, "tweedie", 4, guidance=1.5, seed=3)
    whole = resized(trained, 3 + N)
    prompt = whole.task.prompt("ab ")
    model = whole.model.guided(1.5, unprompted(whole.model, prompt))
    wanted = tauflow.sample(model, "tweedie", 4, prompt=prompt, seed=3)
    assert same_up_to_the_end(found, wanted.tokens[:, 3:], trained.task)
    assert (found.evaluations, found.forwards) == (4, 8)


def test_one_canvas_is_a_sample_with_a_condition(gemma):
    size = gemma.task.block
    texts = ["w1 w2 w3", "w9"]
    found = tauflow.generate(gemma, texts, size, "tr_cie", 3, seed=5, guidance=2.0)
    condition = torch.stack([gemma.task.condition(text) for text in texts])
    wanted = tauflow.sample(gemma.model.guided(2.0), "tr_cie", 3, count=2, condition=condition, seed=5)
    assert same_up_to_the_end(found, wanted.tokens, gemma.task)
    assert (found.evaluations, found.forwards) == (3, 6)


def test_noise_without_masks_and_a_frozen_prompt(loaded):
    trained, _ = spelled(loaded, tauflow.Uniform)
    found = tauflow.generate(trained, ["ab "] * 2, N, "euler", 3, seed=2)
    whole = resized(trained, 3 + N)
    wanted = tauflow.sample(whole.model, "euler", 3, count=2, prompt=whole.task.prompt("ab "), seed=2)
    assert same_up_to_the_end(found, wanted.tokens[:, 3:], trained.task)


# Ragged prompts


@pytest.mark.parametrize(("name", "guidance"), [("llada", 1.0), ("llada", 1.5), ("dream", 1.0), ("esm", 1.0)])
def test_prompts_of_a_batch_are_continued_as_alone(name, guidance, loaded):
    """One token after the other, each the likeliest: all that is left to differ are the logits."""
    trained, texts = loaded[name], PROMPTS[name]
    options = {"nfe": 4, "block": 1, "temperature": GREEDY, "guidance": guidance}
    together = tauflow.generate(trained, [*texts, ""], 4, **options)
    alone = [tauflow.generate(trained, text, 4, **options).texts[0] for text in (*texts, "")]
    assert together.texts == alone
    assert len(set(alone)) > 1


def test_blocks_are_sampled_before_masks(loaded):
    """One token after the other by hand: the likeliest, before as many masks as there are tokens to come."""
    trained = loaded["dream"]
    found = tauflow.generate(trained, "ab ", 6, nfe=6, block=1, temperature=GREEDY)
    task, model = trained.task, resized(trained, 9).model
    x = torch.tensor([*task.text.encode("ab "), *[task.num_tokens] * 6])[None]
    for place in range(3, 9):
        x[0, place] = model.denoiser.evaluate(x, torch.zeros(1)).logits(slice(None))[place].argmax()
    assert same_up_to_the_end(found, x[:, 3:], task)


# Guidance


@pytest.mark.parametrize("kind", ["mdlm", "duo"])
def test_every_sampler_with_guidance_and_ragged_prompts_in_blocks(kind, others):
    trained, tried = others[kind], 0
    for spec in SAMPLERS:
        sampler = sampler_from(spec, trained.model)
        if sampler.unsupported_reason(trained.model):
            continue
        found = tauflow.generate(trained, ["a", "bcd"], 4, sampler, 4, block=2, guidance=1.5, seed=1)
        assert found.lengths == [4, 4], spec
        assert found.evaluations <= 4, spec
        assert found.forwards == 2 * found.evaluations, spec
        tried += 1
    assert tried > 8


def test_a_prompt_among_noise_without_masks_is_hidden_by_not_reading_it(others):
    """The model without its prompt is the model of what follows it, in ragged batches too."""
    model = dataclasses.replace(others["duo"].model, shape=(7,))
    x, t = torch.randint(dits.V, (2, 7), generator=torch.Generator().manual_seed(0)), torch.tensor([0.2, 0.6])
    known = torch.arange(7) < 3
    hidden = unprompted(model, Prompt(x, known))
    alone = model.denoiser.evaluate(x[:, 3:], t).logits(slice(None))
    ragged = hidden.with_attention_mask(torch.tensor([[True] * 7, [False] + [True] * 6]))
    for each in (hidden, ragged):
        found = each.denoiser.evaluate(x, t).logits(slice(None)).view(2, 7, -1)[:, 3:]
        torch.testing.assert_close(found.flatten(0, 1), alone, atol=1e-4, rtol=1e-4)
    with pytest.raises(SamplingError, match=r"cannot be hidden .*reads every coordinate; drop the guidance"):
        unprompted(tauflow.Model(lambda x, t: x, model.process, (7,)), Prompt(x, known))


@pytest.mark.parametrize("rows", [False, True])
def test_guidance_by_a_prompt_in_tables(rows, loaded):
    trained = resized(loaded["llada"], 3 + N)
    task, sampling = trained.task, Sampling(num_samples=3, batch_size=2)
    prompt = task.prompt("ab ")
    given = Prompt(*(each.expand(3, -1) for each in prompt)) if rows else prompt
    results = tauflow.evaluate(
        trained, "tweedie", 2, 3, batch_size=2, prompt=given, guidance=[1, 1.5], nll_items=0
    )
    model = trained.model.guided(1.5, unprompted(trained.model, prompt))
    for cell, each, forwards in zip(results.cells, (trained.model, model), (2, 4), strict=True):
        wanted = tauflow.sample(each, "tweedie", 2, count=2, prompt=prompt, seed=sampling.generator_for(0))
        assert cell.shown.tokens[:2] == wanted.tokens.tolist()
        assert measured_of(cell)["forwards"] == forwards
    assert results.cells[0].shown.tokens != results.cells[1].shown.tokens


def measured_of(cell):
    return {record.metric: record.measured.value for record in cell.records}


# Blocks


def test_every_sampler_reveals_a_block_after_the_other(loaded):
    trained, tried = loaded["llada"], 0
    sizes = {"max_new_tokens": N, "nfe": 4, "block": K}
    for spec in SAMPLERS:
        sampler = sampler_from(spec, trained.model)
        if sampler.unsupported_reason(trained.model):
            continue
        steps = []
        found = tauflow.generate(trained, PROMPTS["llada"], sampler=sampler, observer=steps.append, **sizes)
        for step in steps:
            masks, begin = step.tokens == trained.task.num_tokens, step.block * K
            assert masks[:, begin + K :].all(), spec
            assert not masks[:, :begin].any(), spec
        first = next(step.tokens for step in reversed(steps) if step.block == 0)
        assert all(torch.equal(step.tokens[:, :K], first[:, :K]) for step in steps if step.block == 1), spec
        assert same_up_to_the_end(found, steps[-1].tokens, trained.task), spec
        assert found.evaluations <= 4, spec
        tried += 1
    assert tried > 8


def test_masks_stand_after_a_block(loaded):
    trained, network = spelled(loaded)
    assert tauflow.generate(trained, "ab ", 12, "spaced_even", 6, block=4).texts == ["x" * 12]
    shown = [[token == trained.task.num_tokens for token in x[0].tolist()] for x in network.seen]
    assert [len(each) for each in shown] == [15] * 6
    for number, masks in enumerate(shown):
        begin = 3 + 4 * (number // 2)
        assert not any(masks[:begin])
        assert any(masks[begin : begin + 4])
        assert all(masks[begin + 4 :])


def test_noise_without_masks_does_not_stand_after_a_block(loaded):
    trained, network = spelled(loaded, tauflow.Uniform)
    found = tauflow.generate(trained, "ab ", 12, "euler", 7, block=4)
    assert [x.shape[1] for x in network.seen] == [7] * 3 + [11] * 2 + [15] * 2, "7 evaluations of 3 blocks"
    assert found.texts == ["x" * 12]


def test_a_canvas_becomes_a_part_of_the_prompt(gemma, monkeypatch):
    """Of prompts of different lengths; the encoder reads what is new, and no sample that has ended."""
    network, seen = gemma.model.denoiser.network, []
    hidden, encoded = network.hidden, network.prompts.encoded

    def spy(x, t, condition, **more):
        seen.append(condition)
        return hidden(x, t, condition, **more)

    monkeypatch.setattr(network, "hidden", spy)
    monkeypatch.setattr(gemma.task, "ends", ())
    size, prompts = gemma.task.block, {"w4 w5 w6": [8, 9, 10], "w2": [6]}
    request = {"max_new_tokens": 2 * size, "sampler": "bridge_systematic", "nfe": 4, "seed": 1}
    found = tauflow.generate(gemma, list(prompts), **request)
    first = [row[:size].tolist() for row in found.tokens]
    for number, words in enumerate(prompts.values()):
        rows = [row[number][row[number] >= 0].tolist() for row in seen]
        assert rows == [words] * 2 + [words + first[number]] * 2
    assert network.prompts.encoded - encoded == 3 + size
    end = next(token for token in first[0] if token not in first[1])
    monkeypatch.setattr(gemma.task, "ends", (end,))
    seen.clear()
    again = tauflow.generate(gemma, list(prompts), **request)
    assert (again.taken, again.lengths[0]) == ([2, 4], first[0].index(end))
    assert [len(rows) for rows in seen] == [2, 2, 1, 1]
    assert seen[-1][0, : 1 + size].tolist() == [6, *first[1]]


# Ends


def test_a_sample_that_has_ended_is_not_sampled_any_more(loaded):
    trained, network = spelled(loaded)
    found = tauflow.generate(trained, ["ear", "abc", "abceno"], 12, nfe=6, block=4)
    assert found.texts == ["", "x" * 12, "x" * 12]
    assert found.lengths == [0, 12, 12]
    assert (found.taken, found.evaluations) == ([2, 6, 6], 6)
    assert [len(x) for x in network.seen] == [3] * 2 + [2] * 4
    assert found.tokens_per_evaluation == 24 / 14


def test_evaluations_stop_when_all_have_ended(loaded):
    trained, _ = spelled(loaded)
    found = tauflow.generate(trained, ["early", "else"], 12, nfe=6, block=4)
    assert (found.texts, found.evaluations, found.forwards) == (["", ""], 2, 2)
    whole = tauflow.generate(trained, ["early"], 12, nfe=6)
    assert (whole.texts, whole.evaluations) == ([""], 6), "an end stops later blocks, not its own"


def entropy_of(row):
    shares = torch.tensor(row).unique(return_counts=True)[1] / len(row)
    return -float((shares * shares.log2()).sum())


@pytest.mark.parametrize("word", ["hi", "e"])
def test_an_end_of_the_prompt_ends_no_sample(word, loaded):
    """Of a conversation, whose messages end; where the answer ends, what follows it does not count."""
    trained, network = spelled(loaded)
    start = trained.task.text.encode("<|start|>")[0]
    network.stop = start if word == "e" else -1  # all samples begin with it
    asked = trained.task.text.encode(trained.task.chat(word))
    trained = resized(trained, len(asked) + N)
    prompt = trained.task.prompt(trained.task.chat(word))
    results = tauflow.evaluate(trained, "spaced_even", 2, 4, prompt=prompt, nll_items=0)
    found = measured_of(results.cells[0])
    sample = asked if word == "e" else [*asked, *[network.x] * N]
    assert found["mean_length"] == len(sample)
    assert found["entropy_bits"] == pytest.approx(entropy_of(sample), rel=1e-6)
    assert found["distinct_1"] == pytest.approx(len(set(sample)) / len(sample))
    tokens = torch.tensor(results.cells[0].shown.tokens)
    knowing = trained.task.knowing(prompt)
    said = "" if word == "e" else "x" * N
    assert knowing.texts(tokens) == [trained.task.chat(word) + said] * 4
    assert knowing.texts(tokens, len(asked)) == [said] * 4
    assert knowing.show(tokens)[3] == f"[4] {trained.task.chat(word)}{said}"
    assert trained.task.lengths(tokens)[0] < len(asked), "it knows of no prompt"


def test_a_sample_without_text_has_no_ngrams(loaded):
    task = loaded["llada"].task.sized(4)
    end, a, b = (task.text.encode(each)[0] for each in (tiny.SPECIAL[0], "a", "b"))
    metrics = task.sample_metrics()
    metrics.update(torch.tensor([[end, a, a, a], [a, b, a, b], [a, a, end, b]]))
    found = {name: value[0].item() for name, value in metrics.compute().items()}
    assert found["entropy_bits"] == pytest.approx((0 + 1 + 0) / 3)
    assert found["distinct_1"] == pytest.approx((0.5 + 0.5) / 2)
    assert found["distinct_2"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["distinct_3"] == 1


def test_what_is_known_within_a_sample(loaded):
    """An end before the last known token is none: what is known follows it."""
    task = loaded["llada"].task.sized(6)
    knowing = task.knowing(task.infill("a__b"))
    end, a, b = (task.text.encode(each)[0] for each in (tiny.SPECIAL[0], "a", "b"))
    assert knowing.lengths(torch.tensor([[a, end, end, b, a, end], [a, b, b, b, end, b]])).tolist() == [5, 4]
    assert knowing.sized(6).lengths(torch.tensor([[a, end, end, b, a, end]])).tolist() == [1]
    tokens = torch.zeros(2, 6, dtype=torch.long)
    with pytest.raises(SettingsError, match="measured together must end at the same place"):
        task.knowing(Prompt(tokens, torch.arange(6) < torch.tensor([[2], [3]])))


def test_judges_read_what_a_prompt_and_its_answer_say(loaded):
    """Not its ids, which cannot be cut, where an end may stand among them."""
    trained, _ = spelled(loaded)
    read = []

    class Judge:
        name, reads_text = "own", True

        def __init__(self, vocabulary):
            self.reads_ids = vocabulary == trained.task.text.get_vocab()

        def score(self, tokens, texts, on_ids):
            assert not on_ids
            read.extend(texts)
            return torch.ones(len(texts)), torch.ones(len(texts))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tauflow.tasks.text.metrics.causal_judge", lambda name, device, vocabulary, **_: Judge(vocabulary)
        )
        trained = resized(trained, 12)
        trained.task.use_judges("own")
    asked = trained.task.chat("hi")
    tauflow.evaluate(trained, "spaced_even", 2, 2, prompt=trained.task.prompt(asked), nll_items=0)
    assert set(read) == {asked + "x" * (12 - len(trained.task.text.encode(asked)))}


# What is asked for


def test_conversations_are_written_by_the_chat_template(loaded):
    trained = loaded["llada"]
    messages = [{"role": "user", "content": "hi"}]
    asked = [tauflow.generate(trained, prompts, N, nfe=2).texts for prompts in (messages, [messages])]
    assert asked[0] == asked[1] == tauflow.generate(trained, trained.task.chat("hi"), N, nfe=2).texts
    with pytest.raises(SettingsError, match="has no chat template"):
        tauflow.generate(loaded["esm"], [messages], N)


def test_lengths_by_default(loaded, gemma):
    assert tauflow.generate(spelled(loaded)[0], "ab ", nfe=1).lengths == [61], (
        "64 are what the model can read"
    )
    steps = []
    tauflow.generate(gemma, "w1", nfe=2, observer=steps.append)
    assert steps[0].tokens.shape == (1, gemma.task.block)
    with pytest.raises(
        SettingsError, match=r"must fit into the 64 tokens the model can read\. Shorten the prompt\.$"
    ):
        tauflow.generate(spelled(loaded)[0], "b" * 64)


BAD = {
    "must divide the number of new tokens, got 3 and 8. Ask for 9 new": {"block": 3},
    "nfe must be at least 1 per block, got 3 for 4 blocks": {"block": 2, "nfe": 3},
    "Prompt 2 (60 tokens) and 8 new tokens must fit into the 64 tokens": {"prompts": ["a", "b" * 60]},
    "max_new_tokens must be a whole number of at least 1": {"max_new_tokens": 0},
    "block must be a whole number of at least 1": {"block": 0},
    "prompts must be texts": {"prompts": []},
    'such as {"role": "user", "content": "Hi"}, got b\'ab\'': {"prompts": b"ab"},
    "prompts must be texts, or conversations of messages": {"prompts": [3]},
    "A message must have a role and a content": {"prompts": [{"role": "user"}]},
    "the guidance weight must be a finite number": {"guidance": float("nan")},
    "temperature must be above 0": {"temperature": 0.0},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_requests(message, loaded):
    with pytest.raises((SettingsError, SamplingError), match=re.escape(message)) as error:
        tauflow.generate(loaded["llada"], **{"prompts": "ab", "max_new_tokens": N} | BAD[message])
    assert "\n" not in str(error.value)


def test_bad_models_and_canvases(loaded, gemma):
    with pytest.raises(
        SettingsError, match=r"needs a language model from tauflow\.pretrained, got Countdown"
    ):
        tauflow.generate(dataclasses.replace(loaded["llada"], task=tauflow.Countdown()), "ab", N)
    with pytest.raises(SettingsError, match="length must be at most 6, which is what the model can read"):
        tauflow.generate(gemma, "w1", 12, block=12)
    with pytest.raises(SettingsError, match="Prompt 1 \(30 tokens\) and 12 new tokens must fit"):
        tauflow.generate(gemma, "w1 " * 30, 12)
    with pytest.raises(SettingsError, match="must divide the number of new tokens, got 6 and 8\. Ask for 12"):
        tauflow.generate(gemma, "w1", 8)


def test_examples_of_the_guide(loaded, monkeypatch, capsys):
    """On tiny models in place of those that they name."""
    kinds = {"LLaDA": "llada", "ModernBERT": "dream", "esm2": "esm"}

    def small(name, dtype=None, device_map=None):
        trained = loaded[next(kind for word, kind in kinds.items() if word in name)]
        task = copy.copy(trained.task)
        task.context = None
        return dataclasses.replace(trained, task=task)

    monkeypatch.setattr(tauflow, "pretrained", small, raising=False)
    codes = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "generate.md").read_text(), re.S)
    assert len(codes) == 3
    printed = []
    for code in codes:
        exec(compile(code, "generate.md", "exec"), {})
        printed.append(capsys.readouterr().out)
    assert re.search(r"\n\d+ \d+ [\d.]+\n\Z", printed[0])
    assert printed[1].count("The capital of France is") == 3
    assert printed[2].endswith("[64, 64]\n")


# sample.py


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs sample.py's entry point in this process; returns (exit code or message, what it printed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")

    def run(*args, stream=io.TextIOWrapper):
        printed = stream(io.BytesIO(), "utf-8")
        monkeypatch.setattr("sys.stdout", printed)
        with pytest.raises(SystemExit) as stop:
            tauflow.cli.sample.sample([*map(str, args), "--accelerator=cpu"])
        printed.flush()
        return stop.value.code, printed.buffer.getvalue().decode()

    return run


def test_a_text_in_the_terminal(call, folders, loaded):
    args = ["--pretrained", folders["llada"], "--prompt", "hi", "--chat", "--nfe", 4, "--sampler", "tweedie"]
    args += ["--max_new_tokens", N, "--block", K, "--num_samples", 2, "--temperature", 0.8, "--seed", 3]
    code, plain = call(*args)
    chat = loaded["llada"].task.chat("hi")
    wanted = tauflow.generate(loaded["llada"], [chat] * 2, N, "tweedie", 4, block=K, temperature=0.8, seed=3)
    assert code == 0
    assert "(Language, masked source)\nsampler     tweedie\n" in plain
    assert all(f"[{number}] {text[:1]}" in plain for number, text in enumerate(wanted.texts, 1))
    assert f"evaluations {wanted.evaluations}  ({wanted.forwards} forward passes)" in plain
    per = f"{wanted.tokens_per_evaluation:.2f} per sample and evaluation"
    assert plain.endswith(f"new tokens  {wanted.lengths[0]}, {wanted.lengths[1]}  ({per})\n")
    assert HIDDEN not in plain
    assert "\x1b" not in plain, "a text is no command of a terminal"
    code, live = call(*args, stream=Terminal)
    assert code == 0
    assert chat in live
    assert HIDDEN * K in live, "the second block while the first is sampled"
    assert "block 1 of 2" in live
    assert "block 2 of 2" in live
    assert HIDDEN not in call(*args, "--no_progress", stream=Terminal)[1]


def test_prompts_and_blanks_in_tables(call, folders, tmp_path):
    out = tmp_path / "out"
    args = ["--pretrained", folders["esm"], "--num_samples", 2, "--nll_items", 0]
    code, printed = call(*args, "--prompt", "EVQ", "--nfe", 2, 3, "--length", 12, "--out", out)
    assert code == 0
    texts = re.findall(r"^\[\d\] (\w+)$", (out / "samples.txt").read_text(), re.M)
    assert len(texts) == 4
    assert all(re.fullmatch("EVQ[A-Z]{9}", text) for text in texts)
    code, printed = call(*args, "--infill", "EVQ___SGG__", "--nfe", 3)
    assert code == 0
    assert len(re.findall(r"^\[\d\] EVQ[A-Z]{3}SGG[A-Z]{2}$", printed, re.M)) == 2, "as long as the text"


def test_more_texts_than_a_batch(call, folders, loaded):
    args = ["--pretrained", folders["esm"], "--prompt", "EVQ", "--max_new_tokens", 4, "--nfe", 2, "--seed", 5]
    code, printed = call(*args, "--num_samples", 5, "--batch_size", 2)
    assert code == 0
    texts = re.findall(r"^\[\d\] EVQ([A-Z]{4})$", printed, re.M)
    generator = torch.Generator().manual_seed(5)
    parts = [
        tauflow.generate(loaded["esm"], ["EVQ"] * size, 4, nfe=2, seed=generator).texts for size in (2, 2, 1)
    ]
    assert texts == [text for part in parts for text in part]
    assert "evaluations 6  (6 forward passes)" in printed
    live = call(*args, "--num_samples", 3, "--batch_size", 2, stream=Terminal)[1]
    assert "samples 1 to 2 of 3, block 1 of 1" in live


@pytest.mark.parametrize("samples", [1, 3, 40])
def test_the_live_view_fits_and_shows_the_block_that_is_sampled(samples, loaded):
    task, console = loaded["llada"].task, Console(width=40, height=12, file=io.StringIO())
    tokens = torch.full((samples, 1600), task.text.encode("x")[0])
    tokens[:, 800:] = task.num_tokens
    tokens[:, 798:800] = torch.tensor(task.text.encode("yz"))
    shown = render(Step(tokens, 4, 8), "", "a prompt\n" * 50, task, console).plain.split("\n")
    assert len(shown) < 12
    assert all(len(line) <= 40 for line in shown)
    assert shown[0].startswith("block 5 of 8")
    if samples == 1:
        assert shown[-2] == HIDDEN * 40, "the block that is sampled"
        few = render(Step(tokens[:, 790:830], 0, 1), "", "a prompt\n" * 50, task, console).plain
        assert few == f"block 1 of 1\na prompt\na prompt\n{'x' * 8}yz{HIDDEN * 30}\n"
    tokens[:, 3] = task.ends[0]
    assert "xxx\n" in render(Step(tokens, 4, 8), "", "", task, console).plain, "nothing after the end"


def test_a_prompt_of_a_canvas_is_its_condition_in_tables_too(call, gemma, saved_gemma, tmp_path):
    folder, out = saved_gemma[1], tmp_path / "out"
    args = ["--pretrained", folder, "--num_samples", 2, "--prompt", "w1 w2", "--nfe", 2, 3]
    assert call(*args, "--out", out)[0] == 0
    condition = gemma.task.condition("w1 w2")
    wanted = tauflow.evaluate(gemma, nfes=[2, 3], num_samples=2, batch_size=16, condition=condition)
    found = Results.read(out)
    assert [cell.shown.tokens for cell in found.cells] == [cell.shown.tokens for cell in wanted.cells]
    assert "condition of all samples: w1 w2" in found.notes


def test_a_model_of_no_language_is_loaded_once(call, folders, monkeypatch):
    task, loads = tauflow.Countdown(), []
    model = tauflow.Model(
        lambda x, t: torch.zeros(*x.shape, task.num_tokens),
        tauflow.Mixture(tauflow.Masked(task.num_tokens), "linear"),
        task.shape,
    )
    monkeypatch.setattr("tauflow.recipes.pretrained", lambda *_: loads.append(1) or Trained(model, task))
    args = ["--pretrained", folders["llada"], "--prompt", "31 30", "--nfe", 1, "--num_samples", 2]
    assert call(*args, "--nll_items", 0)[0] == 0
    assert call(*args)[0] == 0
    assert len(loads) == 2


def test_a_reader_that_has_read_enough(folders, monkeypatch, capfd):
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as printed:
        monkeypatch.setattr("sys.stdout", printed)
        with pytest.raises(SystemExit) as stop:
            tauflow.cli.sample.sample(["--pretrained", str(folders["esm"]), "--prompt", "EVQ", "--nfe", "1"])
    assert stop.value.code == 141
    assert "Broken pipe" not in capfd.readouterr().err


EARLY = {
    "nfe must be a whole number of at least 1": ["--nfe", 0],
    "must divide the number of new tokens, got 3 and 8": ["--max_new_tokens", 8, "--block", 3],
    "nfe must be at least 1 per block, got 3 for 4 blocks": ["--max_new_tokens", 8, "--block", 2, "--nfe", 3],
    "--num_samples must be a whole number of at least 1": ["--num_samples", 0],
    "--block must be a whole number of at least 1": ["--block", 0],
    "unknown sampler 'eulr'": ["--sampler", "eulr"],
    "temperature must be above 0": ["--temperature", 0],
}


@pytest.mark.parametrize("message", EARLY)
def test_what_no_model_can_do_is_refused_before_one_is_loaded(message, call):
    code, printed = call("--pretrained", "nowhere", "--prompt", "hi", *EARLY[message])
    assert message in code
    assert not printed


def test_flags_that_do_not_fit_the_model(call, folders):
    args = ["--pretrained", folders["llada"], "--prompt", "hi"]
    for more, message in (
        (["--dtype", "float12"], "dtype must be a floating-point type"),
        (["--max_new_tokens", 80], "80 new tokens must fit into the 64 tokens"),
    ):
        code, _ = call(*args, *more)
        assert str(code).startswith("error: "), more
        assert message in code
    assert call(*args, "--dtype", "bfloat16", "--nfe", 1)[0] == 0
