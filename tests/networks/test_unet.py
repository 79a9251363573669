"""The U-Net and its heads: what a row's logits are, what training pays for, what pictures it takes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tauflow import Masked, Mixture, Model, sample
from tauflow.networks import UNetConfig
from tauflow.networks.network import Network
from tauflow.networks.unet import BOXES, CHUNK, Anchors, LogisticHead, UNetLevel
from tauflow.train import OptimizerConfig

V = 16
CONFIGS = {
    "linear": UNetConfig(8, (1, 2), 1, head="linear", time=True),
    "embedding": UNetConfig(8, (1, 2), 1, input="embedding", head="linear", time=False),
    "logistic": UNetConfig(8, (1, 2), 1, mixtures=3, time=True),
    "anchored": UNetConfig(8, (1, 2), 1, mixtures=3, anchors=True, time=False),
}


def trained_like(network: Network) -> Network:
    """Return the network with weights that are not those it starts from, many of which are 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


def inputs(shape: tuple[int, ...], batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    length = torch.Size(shape).numel()
    x = torch.randint(0, V + 1, (batch, length), generator=generator)
    condition = torch.randint(-1, 4, (batch, 1), generator=generator)
    return x, torch.rand(batch, generator=generator), condition


@pytest.mark.parametrize(
    ("name", "shape"),
    [("linear", (4, 6)), ("embedding", (1, 4, 2)), ("logistic", (4, 6)), ("anchored", (5, 7, 3))],
)
def test_the_head_of_rows_is_the_dense_forward(name: str, shape: tuple[int, ...]) -> None:
    network = trained_like(CONFIGS[name].build(shape, V + 1, V, (4,)))
    x, t, condition = inputs(shape)
    with torch.no_grad():
        dense = network(x, t, condition)
        hidden = network.hidden(x, t, condition).flatten(0, 1)
        few = torch.tensor([0, 5, len(hidden) - 1])
        rows = network.head(hidden[few])
    assert dense.shape == (*x.shape, V)
    torch.testing.assert_close(rows, dense.flatten(0, 1)[few])
    assert rows.std(0).min() > 0  # coordinates have rows of their own


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_of_rows_is_the_cross_entropy_of_their_logits(name: str) -> None:
    network = trained_like(CONFIGS[name].build((5, 7, 3), V + 1, V))
    x, t, _ = inputs((5, 7, 3))
    rows = network.hidden(x, t).flatten(0, 1).detach()
    x_1 = torch.arange(len(rows)) % V  # both ends and all between
    torch.testing.assert_close(
        network.nll(rows, x_1), F.cross_entropy(network.head(rows), x_1, reduction="none")
    )


@pytest.mark.parametrize("anchors", [0, 2])
def test_probabilities_of_logistics_sum_to_one_however_narrow_or_far_they_are(anchors: int) -> None:
    head = LogisticHead(4, 256, 3, anchors)
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 10.0, 1000.0):
        logits = head(scale * torch.randn(CHUNK + 7, 4 + anchors, generator=generator))
        assert logits.isfinite().all()
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(CHUNK + 7))


def test_a_logistic_lies_where_its_anchor_is() -> None:
    head = LogisticHead(4, 256, 1, 1)
    torch.nn.init.zeros_(head.output.weight)
    rows = torch.zeros(2, 5)
    rows[:, -1] = torch.tensor([-0.5, 0.5])
    law = head(rows).exp()
    median = (law.cumsum(-1) < 0.5).sum(-1)
    assert (median / 127.5 - 1 - rows[:, -1]).abs().max() < 0.01


def test_anchors_are_means_of_what_is_known_and_guesses_by_other_channels() -> None:
    x = torch.full((1, 9, 9, 2), V)  # all masked
    anchors = Anchors((9, 9, 2), V + 1, V)
    assert not anchors(x).any()
    x[0, 4, 4, 0] = 15  # the value 1
    x[0, 4, 5, 0] = 0  # the value -1
    x[0, 4, 4, 1] = 15
    found = anchors(x).view(9, 9, 2, anchors.count)
    assert anchors.count == len(BOXES) + 2
    # channel 0: the mean of all, boxes of 15, 7 and 3, and the guess by channel 1; a box without a known
    # value takes that of the next larger one
    torch.testing.assert_close(found[4, 3, 0, :4], torch.tensor([0.0, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(found[0, 0, 0, :4], torch.zeros(4))
    # at (4, 4), the value of channel 1 plus the difference of the means nearby: 1 + 0 - 1
    torch.testing.assert_close(found[4, 4, 0, 4], torch.tensor(0.0))
    torch.testing.assert_close(found[4, 5, 1, 4], torch.tensor(-1.0 + 1.0 - 0.0))


def test_a_hidden_token_changes_nothing_of_its_own_row_but_what_is_known_does() -> None:
    network = trained_like(CONFIGS["anchored"].build((4, 6), V + 1, V))
    x = torch.full((1, 24), V)
    seen = x.clone()
    seen[0, 3] = 2
    t = torch.zeros(1)
    assert not torch.equal(network(x, t)[0, 4], network(seen, t)[0, 4])


def test_a_dropped_condition_is_one_of_its_own() -> None:
    network = trained_like(CONFIGS["logistic"].build((4, 6), V + 1, V, (4,)))
    x, t, _ = inputs((4, 6))
    none = network(x, t)
    torch.testing.assert_close(network(x, t, torch.full((3, 1), -1)), none)
    assert not torch.allclose(network(x, t, torch.zeros(3, 1, dtype=torch.long)), none)


def test_the_first_loss_of_a_linear_head_is_ln_v() -> None:
    network = CONFIGS["linear"].build((4, 6), V + 1, V)
    x, t, _ = inputs((4, 6))
    torch.testing.assert_close(network(x, t).log_softmax(-1).exp(), torch.full((3, 24, V), 1 / V))


def test_every_parameter_learns() -> None:
    network = trained_like(
        UNetConfig(8, (1, 2), 2, mixtures=2, anchors=True).build((6, 6, 3), V + 1, V, (4,))
    )
    x, t, condition = inputs((6, 6, 3))
    network.nll(network.hidden(x, t, condition).flatten(0, 1), (x.flatten() % V)).sum().backward()
    idle = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert idle == []


def test_samplers_read_rows_of_a_unet() -> None:
    network = trained_like(CONFIGS["anchored"].build((4, 6), V + 1, V))
    result = sample(Model(network, Mixture(Masked(V), "linear"), (4, 6)), "spaced", nfe=4, count=2)
    assert result.tokens.max() < V


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 12}, "multiple of 8"),
        ({"width": 0}, "from 1 to"),
        ({"multipliers": ()}, "1 to 10 multipliers"),
        ({"input": "embedding"}, "input to value"),
        ({"head": "linear", "anchors": True}, "anchors need"),
    ],
)
def test_settings_that_cannot_be(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        UNetConfig(**settings)


def test_a_unet_is_for_images_and_anchors_for_masks() -> None:
    with pytest.raises(ValueError, match="for images of shape"):
        UNetConfig(8).build((24,), V + 1, V)
    with pytest.raises(ValueError, match="masked source"):
        UNetConfig(8, anchors=True).build((4, 6), V, V)


def test_skips_carry_what_the_lower_levels_lose():
    """Without the way through the lower level, a pixel still reaches its own logits: by the skip."""
    network = trained_like(CONFIGS["linear"].build((4, 6), V + 1, V, ()))
    x, t, _ = inputs((4, 6), batch=1)
    other = x.clone()
    other[0, 0] = (x[0, 0] + 1) % V
    for part in network.up:
        if not isinstance(part, UNetLevel):  # the way up from the level below
            torch.nn.init.zeros_(part.weight)
            torch.nn.init.zeros_(part.bias)
    assert not torch.equal(network.hidden(x, t), network.hidden(other, t))


def test_muon_steps_convolutions_as_matrices():
    """A step moves the kernels by a matrix that Newton-Schulz made nearly orthogonal: its singular values are
    the learning rate times .7 to 1.2."""
    network = trained_like(CONFIGS["linear"].build((4, 4), V, V))
    kernels = network.stem.weight
    before = kernels.detach().clone()
    optimizer = OptimizerConfig("muon", muon_learning_rate=0.1).build(network)
    network(torch.arange(16)[None], torch.tensor([0.5])).square().sum().backward()
    optimizer.step()
    assert kernels.shape == kernels.grad.shape == before.shape
    update = (kernels - before).detach().flatten(1)
    singular = torch.linalg.svdvals(update) / (0.1 * max(1, len(update) / update[0].numel()) ** 0.5)
    assert 0.6 < singular.median() < 1.3
