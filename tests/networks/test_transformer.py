import hashlib
import math

import pytest
import torch
import torch.nn.functional as F
from tiny_training import Plain

from tauflow.denoise import DROPPED, SplitDenoiser
from tauflow.errors import SettingsError
from tauflow.networks import Transformer, TransformerConfig, network_from
from tauflow.networks.transformer import attend


def network(conditions=(), **sizes) -> Transformer:
    torch.manual_seed(0)
    net = Transformer(TransformerConfig(**({"width": 32, "blocks": 2, "heads": 4} | sizes)), 7, 6, conditions)
    for parameter in net.parameters():  # leave the special initialisation
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return net


X, T = torch.randint(7, (3, 10), generator=torch.Generator().manual_seed(0)), torch.tensor([0.1, 0.5, 0.9])


def test_first_logits_are_zero():
    net = Transformer(TransformerConfig(width=32, blocks=2), 7, 6)
    logits = net(X, T)
    assert logits.shape == (3, 10, 6)
    assert (logits == 0).all()
    assert F.cross_entropy(logits.flatten(0, 1), X.flatten() % 6).item() == pytest.approx(
        math.log(6), rel=1e-6
    )


def test_every_part_learns():
    net = network()
    net(X, T).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_bidirectional_and_position_aware():
    net, other = network(), X.clone()
    other[:, -1] = (other[:, -1] + 1) % 7
    assert not torch.allclose(net(X, T)[:, 0], net(other, T)[:, 0])
    assert not torch.allclose(net(X, T).flip(1), net(X.flip(1), T))


def test_rotary_attention_depends_on_relative_positions_only():
    """Rotated q and k of equal content give the same product wherever the pair stands, and another one at
    another distance.
    """
    from tauflow.networks.transformer import Rotate, rotation_tables

    qkv = (
        torch.randn(1, 1, 3, 1, 16, generator=torch.Generator().manual_seed(0))
        .expand(1, 12, 3, 1, 16)
        .clone()
    )
    q, k, v = Rotate.apply(qkv.clone(), *rotation_tables((12,), 16, qkv.device, qkv.dtype)).unbind(2)
    scores = torch.einsum("bihk,bjhk->ij", q, k)
    torch.testing.assert_close(scores.diagonal(3), scores[0, 3].expand(9))
    assert (scores[0, 3] - scores[0, 5]).abs() > 0.01
    assert torch.equal(v, qkv[:, :, 2])


def test_rotation_gradient():
    from tauflow.networks.transformer import Rotate, rotation_tables

    qkv = torch.randn(2, 5, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    cos, sin = rotation_tables((5,), 4, qkv.device, qkv.dtype)
    assert torch.autograd.gradcheck(lambda x: Rotate.apply(x.clone(), cos, sin), qkv)


def test_time_conditioning_is_switchable():
    with_time, without = network(time=True), network(time=False)
    assert not torch.allclose(with_time(X, T), with_time(X, T.flip(0)))
    assert torch.equal(without(X, T), without(X, T.flip(0)))
    assert without.time is None


def test_padding_mask_hides_padding():
    """A padded batch gives the real coordinates what the unpadded one gives them."""
    net = network()
    padded = torch.cat([X, torch.full((3, 4), 5)], dim=1)
    mask = torch.arange(14).expand(3, 14) < 10
    torch.testing.assert_close(net(padded, T, attention=mask)[:, :10], net(X, T), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(net(padded, T)[:, :10], net(X, T), atol=1e-3)


def test_head_on_rows_equals_forward():
    net, rows = network(), torch.tensor([0, 7, 29])
    torch.testing.assert_close(net.head(net.hidden(X, T).flatten(0, 1)[rows]), net(X, T).flatten(0, 1)[rows])


@pytest.mark.slow
def test_compiled_blocks_agree(monkeypatch):
    """Traced and differentiated as for any backend, without the minute that code generation takes;
    test_bf16_and_compile trains with generated code."""
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda module: compile_module(module, backend="aot_eager")
    )
    net = network()
    expected = net(X, T)
    expected.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    names = list(net.state_dict())
    net.zero_grad()
    net.compile_parts()
    output = net(X, T)
    output.square().sum().backward()
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-3)
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-2, rtol=1e-3)
    assert list(net.state_dict()) == names


@pytest.mark.parametrize("sizes", [{"width": 30}, {"blocks": 0}, {"width": 32, "heads": 32}])
def test_impossible_sizes(sizes):
    with pytest.raises(ValueError, match="must be"):
        TransformerConfig(**({"width": 32, "blocks": 2, "heads": 4} | sizes))


def test_denoiser_reads_rows_lazily():
    net = network()
    evaluation = SplitDenoiser(net).evaluate(X, T)
    dense = evaluation.dense()
    assert dense.shape == (3, 10, 6)  # no column for the mask, so no mass on it
    torch.testing.assert_close(dense.sum(-1), torch.ones(3, 10))
    rows = torch.tensor([3, 17])
    torch.testing.assert_close(evaluation.probs(rows), dense.flatten(0, 1)[rows])
    assert not dense.requires_grad


# Conditions


def test_a_network_without_conditions_starts_from_the_same_weights_as_ever():
    """Names, order and drawn values of the parameters: old checkpoints load, and runs repeat exactly."""
    torch.manual_seed(0)
    net = Transformer(TransformerConfig(width=16, blocks=1, heads=2), 7, 6)
    digest = hashlib.sha256()
    for name, value in net.state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    assert digest.hexdigest()[:16] == "00fb78b37d3eb196"


def test_a_condition_that_is_added_gives_what_it_gave_before_there_were_others():
    """Names, weights and outputs on a grid, recorded when conditions were added only."""
    torch.manual_seed(0)
    net = Transformer(TransformerConfig(width=16, blocks=1, heads=2), 7, 6, (3, 2), (2, 5))
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    digest = hashlib.sha256()
    for name, value in net.state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    assert digest.hexdigest()[:16] == "202e4a72f3a2caff"
    out = net(X, T, torch.tensor([[0, 1], [2, 0], [1, DROPPED]]))
    first = [0.2479634, 0.1154861, -0.5154380, -0.6475786, 0.0605357, 0.3507813]
    torch.testing.assert_close(out[0, 0], torch.tensor(first), atol=1e-5, rtol=0)
    assert out.square().sum().item() == pytest.approx(46.873551, rel=1e-5)


def test_each_column_of_a_condition_matters_and_not_given_is_a_value_of_its_own():
    net = network(conditions=(3, 2))
    first = torch.tensor([[0, 1], [2, 0], [1, 1]])
    out = net(X, T, first)
    for column, value in ((0, 1), (1, 0), (0, DROPPED), (1, DROPPED)):
        other = first.clone()
        other[0, column] = value
        changed = (net(X, T, other) != out).flatten(1).any(1)
        assert changed.tolist() == [True, False, False], (column, value)
    assert torch.equal(net(X, T), net(X, T, torch.full((3, 2), DROPPED))), "none at all is none given"


def test_every_part_of_a_condition_learns():
    net = network(conditions=(3, 2))
    net(X, T, torch.tensor([[0, 1], [DROPPED, 0], [1, DROPPED]])).square().sum().backward()
    for column, rows in ((0, [True, True, False, True]), (1, [True, True, True])):
        gradient = net.condition.tables[column].weight.grad
        assert gradient.abs().amax(1).bool().tolist() == rows


def test_conditions_are_given_by_the_denoiser():
    net = network(conditions=(3,))
    denoiser = SplitDenoiser(net, 6)
    assert denoiser.conditions == (3,)
    label = torch.tensor([[2], [0], [1]])
    torch.testing.assert_close(denoiser.evaluate(X, T, label).dense(), net(X, T, label).softmax(-1))
    torch.testing.assert_close(denoiser.evaluate(X, T).dense(), net(X, T).softmax(-1))


# Conditions as tokens


def captioned(**sizes):
    return network(conditions=(5, 5, 5), condition="tokens", **sizes)


WORDS = torch.tensor([[0, 1, 2], [3, 4, 0], [1, 1, 2]])


def test_a_pair_of_words_is_more_than_its_words():
    """Nothing at first; then each pair has a direction of its own, and the first word has none before it."""
    net = captioned()
    before = net(X, T, WORDS)
    with torch.no_grad():
        net.condition.pairs.weight[6 * 0 + 1, 0] += 3  # the word 1 after the word 0
    changed = (net(X, T, WORDS) - before).abs().flatten(1).amax(1) > 1e-4
    assert changed.tolist() == [True, False, False]


def test_the_output_may_begin_with_weights():
    weights = Transformer(TransformerConfig(width=32, output_scale=0.06), 7, 6).output.weight
    assert 0.03 < weights.std() < 0.09


def test_states_attend_to_words_whose_order_matters():
    net = captioned()
    out = net(X, T, WORDS)
    assert out.shape == (3, 10, 6)
    other = WORDS.clone()
    other[0] = other[0].flip(0)  # the same words
    changed = (net(X, T, other) - out).abs().flatten(1).amax(1) > 1e-3
    assert changed.tolist() == [True, False, False]
    assert (net(X, T, other)[0] - out[0]).abs().amax(1).gt(1e-4).all(), "every coordinate reads the caption"


def test_a_dropped_caption_is_none_at_all():
    net = captioned()
    dropped = torch.full((3, 3), DROPPED)
    assert torch.equal(net(X, T), net(X, T, dropped))
    assert not torch.allclose(net(X, T), net(X, T, WORDS), atol=1e-3)
    dropped[0, 0] = 1  # of one word
    assert not torch.allclose(net(X, T)[0], net(X, T, dropped)[0], atol=1e-3)


def test_words_are_seen_beside_padding():
    net, more = captioned(), torch.cat([X, torch.full((3, 4), 5)], dim=1)
    mask = torch.arange(14).expand(3, 14) < 10
    torch.testing.assert_close(
        net(more, T, WORDS, attention=mask)[:, :10], net(X, T, WORDS), atol=1e-5, rtol=1e-4
    )


def test_every_part_of_a_caption_learns():
    net = captioned()
    net(X, T, torch.tensor([[0, 1, 2], [3, 4, 0], [DROPPED] * 3])).square().sum().backward()
    for name, parameter in net.named_parameters():
        rows = parameter.grad.abs().flatten(1).amax(1) if parameter.ndim > 1 else parameter.grad.abs().max()
        few = name == "condition.pairs.weight"  # only those of words that follow each other
        assert rows.any() if few else (rows > 0).all(), name


def test_words_do_not_turn_and_the_base_says_how_fast_places_do():
    """Positions are those of x, wherever it stands behind the words; a small base turns places further."""
    from tauflow.networks.transformer import rotation_tables

    cpu, wide = torch.device("cpu"), torch.float64
    plain, behind = rotation_tables((3, 4), 16, cpu, wide), rotation_tables((3, 4), 16, cpu, wide, words=5)
    for table, longer in zip(plain, behind, strict=True):
        assert torch.equal(longer[5:], table)
    assert (behind[0][:5] == 1).all()
    assert (behind[1][:5] == 0).all()
    slow, fast = captioned(), captioned(rotary_base=20.0)
    assert not torch.allclose(slow(X, T, WORDS), fast(X, T, WORDS), atol=1e-3)
    angle = torch.atan2(
        *(table[1].flatten() for table in rotation_tables((4,), 8, cpu, wide, base=16.0)[::-1])
    )
    torch.testing.assert_close(angle, torch.tensor([1.0, 1 / 2, 1 / 4, 1 / 8], dtype=wide))


def test_conditions_that_are_no_tokens_are_refused():
    config = TransformerConfig(width=32, blocks=1, condition="tokens")
    with pytest.raises(SettingsError, match=r"columns of one vocabulary, these have \(3, 2\) values"):
        network_from(config, (10,), 7, 6, (3, 2))
    with pytest.raises(SettingsError, match="condition=tokens needs a task with conditions"):
        network_from(config, (10,), 7, 6)
    with pytest.raises(SettingsError, match="rotary_base above 1"):
        TransformerConfig(rotary_base=1.0)


def test_a_network_that_takes_no_condition_says_so():
    net = network_from(Plain(), (10,), 7, 6)
    assert net(X, T).shape == (3, 10, 6)
    assert net.conditions == ()
    with pytest.raises(SettingsError, match=r"has conditions \(3,\), but the network of Plain takes none"):
        network_from(Plain(), (10,), 7, 6, (3,))
    with pytest.raises(
        SettingsError, match=r"PlainNetwork has no parts to compile\. Remove --model\.compile_network"
    ):
        net.compile_parts()


def test_rotary_attention_on_a_grid_depends_on_both_differences():
    from tauflow.networks.transformer import Rotate, rotation_tables

    qkv = torch.randn(1, 1, 3, 1, 16, generator=torch.Generator().manual_seed(0)).expand(1, 12, 3, 1, 16)
    q, k, _ = Rotate.apply(qkv.clone(), *rotation_tables((3, 4), 16, qkv.device, qkv.dtype)).unbind(2)
    scores = torch.einsum("bihk,bjhk->ij", q, k)
    torch.testing.assert_close(scores[8, 0], scores[9, 1])  # two rows above
    torch.testing.assert_close(scores[7, 4], scores[11, 8])  # three columns to the left
    assert (scores[4, 3] - scores[5, 4]).abs() > 0.01  # neighbours in a sequence only
    assert (scores[4, 0] - scores[1, 0]).abs() > 0.01  # above and beside
    assert (scores[1, 0] - scores[0, 0]).abs() > 0.01  # a column apart


def test_a_transformer_on_a_grid_has_the_positions_of_the_grid():
    config = TransformerConfig(width=16, blocks=1, heads=1, time=False)
    x = torch.arange(12)[None] % 5
    outputs = []
    for shape in ((3, 4), (4, 3), (12,), (1, 12)):
        network = config.build(shape, 5, 4)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_(generator=torch.Generator().manual_seed(0))
        outputs.append(network.hidden(x, torch.zeros(1)))
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])
    assert torch.equal(outputs[2], outputs[3])  # a grid of one row is a sequence


def test_places_tell_where_on_the_grid_a_token_stands():
    """Rotary positions alone give the same states to a canvas of one token wherever they look from."""
    x = torch.full((1, 12), 2)
    for places in (False, True):
        config = TransformerConfig(width=16, blocks=2, heads=2, time=False, places=places)
        network = config.build((3, 4), 5, 4)
        states = network.hidden(x, torch.zeros(1))[0]  # (D, W)
        assert torch.allclose(states, states[:1].expand_as(states), atol=1e-5) is not places
    rows, columns = network.places.tables
    assert rows.shape == (3, 16)
    assert columns.shape == (4, 16)
    torch.testing.assert_close(network.places()[7], rows[1] + columns[3])  # the last axis is fastest
    assert "places" not in TransformerConfig().init_args  # as in files of earlier versions


@pytest.mark.parametrize("padded", [False, True])
def test_plain_attention_of_training_in_bfloat16_is_that_of_the_kernel(padded):
    """Values and gradients, up to the rounding of bfloat16: 8 bits."""
    generator = torch.Generator().manual_seed(0)
    exact = [torch.randn(2, 3, 7, 8, generator=generator).requires_grad_() for _ in range(3)]
    rounded = [each.detach().bfloat16().requires_grad_() for each in exact]
    attended = (torch.arange(7) < 5).expand(2, 1, 1, 7) if padded else None
    values = F.scaled_dot_product_attention(*exact, attn_mask=attended)
    plain = attend(*rounded, attended)
    torch.testing.assert_close(plain.float(), values, rtol=0, atol=0.03)
    weights = torch.randn(2, 3, 7, 8, generator=generator)
    (values * weights).sum().backward()
    (plain * weights.bfloat16()).sum().backward()
    for one, other in zip(rounded, exact, strict=True):
        torch.testing.assert_close(one.grad.float(), other.grad, rtol=0, atol=0.05)
