"""Learned orders: dependence measured with the network, the greedy order, its file next to a checkpoint."""

import dataclasses
import itertools
import json

import pytest
import torch
from helpers import mixture

import tauflow
from tauflow import Masked, Mixture, Model
from tauflow.errors import SamplingError
from tauflow.samplers import learned
from tauflow.tasks.countdown import posterior, violations

RANKS = torch.tensor([2, 0, 3, 1])


SHUFFLE = torch.randperm(32, generator=torch.Generator().manual_seed(1))


def shuffled(x, t):
    """The exact denoiser of a countdown whose coordinates were shuffled: chain position SHUFFLE[d] stands at
    d."""
    chain = torch.empty_like(x)
    chain[:, SHUFFLE] = x
    return posterior(chain, t, mixture("masked", 6), leak=1e-3).log()[:, SHUFFLE]


SHUFFLED = Model(shuffled, mixture("masked", 6), (32,))


def test_an_order_is_learned_where_positions_say_nothing():
    matrix = learned.dependence(SHUFFLED, contexts=16)
    torch.testing.assert_close(matrix, matrix.T)
    apart = (SHUFFLE[:, None] - SHUFFLE).abs()
    assert matrix[apart == 1].mean() > 3 * matrix[apart > 6].mean(), (
        "neighbours of the chain depend most on each other"
    )
    ranks = tauflow.learn_order(SHUFFLED, contexts=16)
    assert torch.equal(ranks, tauflow.learn_order(SHUFFLED, contexts=16)), "the seed decides"
    assert torch.equal(ranks.sort().values, torch.arange(32))
    order = SHUFFLE[ranks.argsort()]
    together = torch.stack([(order[i : i + 4, None] - order[i : i + 4]).abs() for i in range(0, 32, 4)])
    assert (together == 1).double().mean() < 0.03, "a random order has 6 %"
    errors = {}
    for name in ("learned_order", "spaced"):
        tokens = tauflow.sample(dataclasses.replace(SHUFFLED, order=ranks), name, 8, count=256).tokens
        chain = torch.empty_like(tokens)
        chain[:, SHUFFLE] = tokens
        errors[name] = violations(chain, 6).double().mean().item()
    assert errors["learned_order"] < 0.7 * errors["spaced"]


def test_given_data_are_the_contexts():
    data = tauflow.sample(SHUFFLED, "fhs", 32, count=8).tokens
    matrix = learned.dependence(SHUFFLED, data=data)
    apart = (SHUFFLE[:, None] - SHUFFLE).abs()
    assert matrix[apart == 1].mean() > 3 * matrix[apart > 6].mean()


def test_greedy_takes_what_depends_least():
    """Two groups of coordinates that depend on each other only inside: they alternate."""
    matrix = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)).double().fill_diagonal_(0)
    groups = (learned.greedy(matrix).argsort() >= 4).tolist()
    assert all(a != b for a, b in itertools.pairwise(groups))


def test_an_order_lies_beside_its_checkpoint(tmp_path):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    assert learned.read_order(checkpoint, 4) is None
    path = learned.save_order(checkpoint, RANKS)
    assert path == tmp_path / "best.order.json"
    assert torch.equal(learned.read_order(checkpoint, 4), RANKS)
    saved = json.loads(path.read_text())
    del saved["sha256"]  # as in files of version 0.2
    others = [saved | {"ranks": ranks} for ranks in ([0, 1, 2, 2], 3, [0, "1", 2, 3])]
    for text in (*map(json.dumps, others), '{"ranks": [0, 1, 2, 3]}', "[]", "no json"):
        path.write_text(text)
        message = r"doesn't contain an order of 4 coordinates .*, so it isn't used\. Learn it again"
        with pytest.warns(UserWarning, match=message):
            assert learned.read_order(checkpoint, 4) is None
    learned.save_order(checkpoint, RANKS)
    with pytest.warns(UserWarning, match="an order of 5 coordinates"):
        assert learned.read_order(checkpoint, 5) is None
    checkpoint.write_bytes(b"trained further")
    for length in (4, 5):
        message = r"was learned from other weights than .*best\.ckpt has now, so it isn't used"
        with pytest.warns(UserWarning, match=message):
            assert learned.read_order(checkpoint, length) is None


def test_a_loaded_model_has_its_order(trained, tmp_path):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes((trained / "best.ckpt").read_bytes())
    assert tauflow.load(checkpoint).model.order is None
    learned.save_order(checkpoint, torch.arange(16).flip(0))
    model = tauflow.load(checkpoint).model
    assert torch.equal(model.order, torch.arange(16).flip(0))
    assert model.shape == (16,)


def test_an_order_is_learned_from_a_masked_source_only():
    with pytest.raises(SamplingError, match="needs a masked source; this model has a uniform one"):
        tauflow.learn_order(Model(lambda x, t: torch.zeros(*x.shape, 5), mixture("uniform", 5), (4,)))
    model = Model(lambda x, t: torch.zeros(*x.shape, 5), mixture("masked", 5), (4,))
    with pytest.raises(SamplingError, match=r"data must be a tensor of the shape \(C, 4\)"):
        tauflow.learn_order(model, data=torch.zeros(2, 3).long())


@pytest.mark.parametrize("length", [1, 4])
def test_short_sequences_have_an_order_too(length):
    """A context of a short sequence often hides nothing: it is skipped, and never reaches the network."""

    def model(x, t):
        assert len(x), "an empty batch reached the network"
        return torch.zeros(*x.shape, 3)

    for seed in range(5):
        order = tauflow.learn_order(
            Model(model, Mixture(Masked(3), "linear"), (length,)), contexts=4, nfe=2, seed=seed
        )
        assert sorted(order.tolist()) == list(range(length))
