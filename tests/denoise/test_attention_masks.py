"""Ragged batches: sequences of different lengths side by side are each as if they were alone."""

import pytest
import torch
from helpers import mixture
from torch import nn

import tauflow
from tauflow import Model
from tauflow.errors import SamplingError
from tauflow.networks import TransformerConfig

V, B, D, NFE = 6, 5, 10, 6
LENGTHS = torch.tensor([10, 3, 7, 1, 10])
READ = torch.arange(D) < LENGTHS[:, None]
LABELS = torch.arange(B)[:, None] % 3


class Exact:
    """A split network of small integers: token, the sum of all that are read, the place and the label."""

    conditions = (3,)
    attends = True

    def hidden(self, x, t, condition, attention):
        read = torch.ones_like(x) if attention is None else attention.long()
        context = 3 * x + 7 * (x * read).sum(1, keepdim=True) + 5 * (read.cumsum(1) - 1) + condition
        return ((context[..., None] + 11 * torch.arange(V)) % 17).float() / 4

    def head(self, rows):
        return rows


class Bidirectional(nn.Module):
    """A Llama of transformers with full attention; positions count what is read."""

    attends = True

    def __init__(self):
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": V + 1}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
        self.body = LlamaModel(LlamaConfig(**sizes, **heads, is_causal=False, use_cache=False))
        self.output = nn.Linear(16, V)

    def hidden(self, x, t, attention):
        read = torch.ones_like(x, dtype=torch.bool) if attention is None else attention
        places = (read.cumsum(1) - 1).clamp(min=0)
        return self.body(input_ids=x, attention_mask=read, position_ids=places).last_hidden_state

    def head(self, rows):
        return self.output(rows)


def padded_transformer():
    network = TransformerConfig(16, 2, 2).build((D,), V + 1, V)
    nn.init.normal_(network.output.weight)
    return network


def exact(kind: str = "masked") -> Model:
    return Model(Exact(), mixture(kind, V), (D,), 3 * torch.arange(D) % D)


@pytest.mark.parametrize(
    ("build", "left"), [(padded_transformer, False), (Bidirectional, False), (Bidirectional, True)]
)
def test_a_sequence_has_the_logits_that_it_has_alone(build, left):
    """Padded on the right; on the left too where positions count what is read."""
    torch.manual_seed(0)
    model = Model(build().eval().requires_grad_(False), mixture("masked", V), (D,))
    read = READ.flip(1) if left else READ
    x, t = torch.randint(V + 1, (B, D)), torch.rand(B)
    together = model.with_attention_mask(read if left else LENGTHS).denoiser.evaluate(x, t).dense()
    for number in range(B):
        own = read[number]
        alone = model.denoiser.evaluate(x[number : number + 1, own], t[number : number + 1]).dense()[0]
        torch.testing.assert_close(together[number, own], alone, atol=1e-5, rtol=1e-4)
    unmasked = model.denoiser.evaluate(x, t).dense()
    assert not torch.allclose(together[1, read[1]], unmasked[1, read[1]], atol=1e-3)


CASES = [
    *[("tr_cie", "masked"), ("theta_trapezoidal", "uniform"), ("tweedie", "uniform"), ("spaced", "masked")],
    *[("learned_order", "masked"), ("klass", "masked"), ("bridge", "uniform"), ("remdm_cap", "masked")],
    *[("gibbs", "uniform"), ("shs", "masked")],
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_samples_of_a_ragged_batch(name, kind):
    """Padding is neither moved nor read, prompts of each sample stay, and parts of a batch are the same."""
    known = torch.arange(D) < torch.tensor([2, 1, 4, 0, 9])[:, None]
    request = {"count": B, "condition": LABELS, "prompt": (torch.arange(D).expand(B, D) % V, known)}
    model = exact(kind).guided(2.0).with_attention_mask(LENGTHS)
    whole = tauflow.sample(model, name, NFE, **request)
    assert (whole.tokens[~READ & ~known] == 0).all()
    assert (whole.tokens < V).all()
    assert torch.equal(whole.tokens[known], request["prompt"][0][known])
    assert whole.nfe <= NFE
    parts = tauflow.sample(model, name, NFE, **request, batch_size=2)
    assert torch.equal(whole.tokens, parts.tokens)


def test_what_stands_in_the_padding_changes_nothing():
    model = exact("uniform").with_attention_mask(LENGTHS)
    drawn = []
    for filling in (0, 3):
        prompt = (torch.full((B, D), filling), ~READ)
        found = tauflow.sample(model, "tr_cie", NFE, count=B, condition=LABELS, prompt=prompt).tokens
        assert (found[~READ] == filling).all()
        drawn.append(found[READ])
    assert torch.equal(*drawn)


@pytest.mark.parametrize(("spec", "nfe"), [("tweedie", 1), ("learned_order", D)])
def test_the_likelihood_of_ragged_data(spec, nfe):
    """What stands in the padding costs nothing; each item costs what it costs alone."""

    def model(length):
        return Model(Exact(), mixture("masked", V), (length,), torch.arange(length))

    data = torch.randint(V, (B, D), generator=torch.Generator().manual_seed(1))
    nats = tauflow.nll(model(D).with_attention_mask(LENGTHS), spec, nfe, data, condition=LABELS)
    for row, length in enumerate(LENGTHS.tolist()):
        own = slice(row, row + 1)
        alone = tauflow.nll(model(length), spec, nfe, data[own, :length], condition=LABELS[own])
        assert nats[row] == alone[0]
    first = torch.arange(D) < 1
    given = tauflow.nll(model(D).with_attention_mask(LENGTHS), spec, nfe, data, condition=LABELS, known=first)
    assert given[3] == 0 < given[1]


def test_all_coordinates_read_change_no_sample():
    model = exact("uniform")
    options = {"count": B, "condition": LABELS}
    every = model.with_attention_mask(torch.full((B,), D))
    found = [tauflow.sample(each, "tr_cie", NFE, **options).tokens for each in (model, every)]
    assert torch.equal(*found)


def test_what_cannot_be_attended_to_is_refused():
    model = exact()
    for bad in (torch.tensor([0, 3]), torch.tensor([11]), torch.ones(2, 9, dtype=torch.bool)):
        with pytest.raises(SamplingError, match=r"lengths \(B,\) from 1 to 10"):
            model.with_attention_mask(bad)
    with pytest.raises(SamplingError, match=r"lengths \(B,\) from 1 to 10"):
        model.with_attention_mask(torch.zeros(2, D, dtype=torch.bool))
    with pytest.raises(SamplingError, match="reads every coordinate"):
        Model(lambda x, t: torch.zeros(*x.shape, V), mixture("masked", V), (D,)).with_attention_mask(LENGTHS)
    with pytest.raises(SamplingError, match="give count=5"):
        tauflow.sample(model.with_attention_mask(LENGTHS), nfe=NFE, count=4)
    with pytest.raises(SamplingError, match="guide first"):
        model.with_attention_mask(LENGTHS).guided(2.0, model)
    with pytest.raises(SamplingError, match="read different coordinates; guide first"):
        model.with_attention_mask(LENGTHS).guided(2.0, model.with_attention_mask(LENGTHS.flip(0).roll(1)))
    same = model.with_attention_mask(LENGTHS).guided(2.0, model.with_attention_mask(LENGTHS))
    assert torch.equal(same.denoiser.attention, READ)
