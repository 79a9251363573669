"""Independent reveals: exact with one token an evaluation, sets with little influence inside, copies at any
distance, no geometry; the learned influence and its file."""

import json

import pytest
import torch
from conftest import sample_here
from helpers import allowed, distance, draw, empirical, mixture, near
from torch import Tensor

import tauflow
from benchmarks.studies.laws import CopyTask, exact, laws
from benchmarks.theory.laws import EnumerableLaw
from tauflow import Masked, Mixture, Model, Uniform
from tauflow.errors import SamplingError
from tauflow.samplers import learned, sampler_from
from tauflow.samplers.independent import correlations, independent_ranks
from tauflow.tasks.countdown import violations

D, V = 32, 8
LAW = EnumerableLaw.random(num_tokens=3, length=4, spread=1.5)


def with_influence(model: Model, found: Tensor) -> Model:
    return Model(model.denoiser, model.process, model.shape, influence=found)


@pytest.fixture(scope="module")
def copies() -> Model:
    """Uniform tokens and their copies half a sequence later, with an exact denoiser and learned influence."""
    model = exact(CopyTask(D, V), "masked").model
    return with_influence(model, tauflow.learn_influence(model, contexts=2))


def wrong(tokens: Tensor) -> float:
    """Share of copies that are another token."""
    first, second = tokens.chunk(2, dim=1)
    return (first != second).double().mean().item()


def steps_of(model: Model, sampler: str, nfe: int, count: int) -> Tensor:
    """When each coordinate is revealed (B, D)."""
    steps = torch.zeros(count, model.length, dtype=torch.long)

    def observe(info, state):
        steps.add_(model.process.masks(state.x).long())

    tauflow.sample(model, sampler, nfe, count=count, observer=observe)
    return steps


def test_one_token_an_evaluation_is_exact():
    """The likelihood is that of the law, and samples follow it; with two tokens an evaluation they do not."""
    model = with_influence(LAW.model(mixture("masked", 3)), near(4))
    nats = tauflow.nll(model, "independent", 4, LAW.sequences)
    assert torch.allclose(nats, -LAW.probabilities.log(), atol=1e-5)
    shares = [
        empirical(tauflow.sample(model, "independent", nfe, count=20_000).tokens, 3) for nfe in (4, 2, 1)
    ]
    errors = [distance(each, LAW.probabilities) for each in shares]
    assert errors[0] < allowed(81, 20_000) < errors[1] < errors[2]


def flat() -> Model:
    """A chain's influence, and nothing to draw by."""
    process = Mixture(Masked(3), "linear")
    return Model(lambda x, t: torch.zeros(*x.shape, 3), process, (D,), influence=near(D))


@pytest.mark.parametrize("counts", ["power", "equal", "arccos"])
def test_those_revealed_together_influence_each_other_less_than_random_ones(counts):
    """Coordinates whose neighbours are known influence each other little as well, so sets are no better."""

    def inside(name: str) -> float:
        steps = steps_of(flat(), f"{name}(counts={counts})", 6, 32)
        together = steps[:, None] == steps[:, :, None]
        return (near(D).fill_diagonal_(0) * together).sum().item()

    assert inside("independent") < 0.85 * inside("fhs")


def test_the_learned_influence_is_the_move_of_a_posterior(copies):
    """A copy is known once its original is: 1 - 1 / V. All else is independent."""
    expected = torch.zeros(D, D)
    expected.diagonal(D // 2).fill_(1 - 1 / V)
    torch.testing.assert_close(copies.influence, expected + expected.T, atol=0.004, rtol=0)


@pytest.mark.parametrize("nfe", [4, 8])
def test_copies_are_never_drawn_together_where_spacing_draws_them_so(copies, nfe):
    assert wrong(tauflow.sample(copies, "independent", nfe, count=64).tokens) == 0
    assert wrong(tauflow.sample(copies, "spaced", nfe, count=64).tokens) > 0.5


def test_a_copy_of_a_prompt_is_known(copies):
    """Two evaluations can reveal 24 coordinates, of which 8 are copies of the prompt, without any pair in one
    of them; the prompt stays."""
    tokens = torch.arange(D).expand(64, D) % V
    known = (torch.arange(D) < 8).expand(64, D)
    result = tauflow.sample(copies, "independent(counts=equal)", 2, count=64, prompt=(tokens, known))
    assert result.nfe == 2
    assert torch.equal(result.tokens[:, :8], tokens[:, :8])
    assert wrong(result.tokens) == 0


def test_it_knows_no_geometry():
    """Coordinates in another order are revealed in the same sets, prompts included."""
    generator = torch.Generator().manual_seed(0)
    shuffle = torch.randperm(D, generator=generator)
    apart = torch.rand(D, generator=generator)
    field = correlations(torch.exp(-8 * (apart - apart[:, None]).abs()))
    movable = torch.rand(5, D, generator=generator) < 0.8
    order = torch.rand(5, D, generator=generator).argsort(1)
    share = torch.linspace(0, 1, 6).square()
    ends = (movable.sum(1, keepdim=True) * share).round().long()
    ranks = independent_ranks(field, movable, order, ends)
    other = independent_ranks(field[shuffle][:, shuffle], movable[:, shuffle], order[:, shuffle], ends)
    assert torch.equal(other[movable[:, shuffle]], ranks[:, shuffle][movable[:, shuffle]])


def test_what_is_revealed_screens_off_what_lies_behind():
    """On a chain the first set is spread, and in the last one, of 14 coordinates, few are neighbours."""
    steps, random = (steps_of(flat(), name, 4, 32) for name in ("independent", "fhs(counts=power)"))
    assert all((row == 0).nonzero().squeeze(1).diff().item() > 6 for row in steps)
    last, other = steps == 3, random == 3
    assert (last[:, 1:] & last[:, :-1]).sum() < 0.6 * (other[:, 1:] & other[:, :-1]).sum()


def test_a_prompt_screens_off():
    """0 and 1 depend on each other through 2, which is known; 3 depends on both beside it."""
    field = torch.tensor([[1, 0.81, 0.9, 0.4], [0.81, 1, 0.9, 0.4], [0.9, 0.9, 1, 0.2], [0.4, 0.4, 0.2, 1]])
    movable, order, ends = torch.tensor([[True, True, False, True]]), torch.arange(4)[None], [[0, 2, 3]]
    ranks = independent_ranks(correlations(field), movable, order, torch.tensor(ends))
    assert ranks[0, :2].tolist() == [0, 1]
    unknown = independent_ranks(
        correlations(field), torch.ones_like(movable), order, torch.tensor([[0, 2, 4]])
    )
    assert unknown[0, 1] > 1


def test_on_a_chain_it_is_better_than_what_knows_the_geometry():
    """Countdown with its exact denoiser, 8 evaluations of 64 coordinates: 0.05 % of the transitions are wrong
    against 0.41 %, measured on 384 samples."""
    trained = exact(laws()["countdown"], "masked")
    model = with_influence(trained.model, tauflow.learn_influence(trained.model))
    shares = [
        violations(tauflow.sample(model, name, 8, count=128, seed=1).tokens, 32).double().mean().item()
        for name in ("independent", "spaced_even")
    ]
    assert shares[0] < 0.5 * shares[1]


def test_refusals():
    masked = LAW.model(mixture("masked", 3))
    with pytest.raises(SamplingError, match=r"tauflow\.learn_influence\(model\)"):
        tauflow.sample(masked, "independent", 2)
    with pytest.raises(SamplingError, match="need a masked source"):
        draw(lambda x, t: torch.zeros(*x.shape, 3), Uniform(3), (2, 4), "independent", 2)
    with pytest.raises(SamplingError, match="this model has a uniform one"):
        tauflow.learn_influence(LAW.model(mixture("uniform", 3)))
    with pytest.raises(SamplingError, match="such as counts=power"):
        sampler_from("independent(counts=entropy)")
    with pytest.raises(SamplingError, match="has no option 'order'"):
        sampler_from("independent(order=spaced)")


@pytest.mark.parametrize(
    "bad", [torch.ones(3, 4), -torch.ones(4, 4), torch.full((4, 4), torch.nan), torch.ones(4, 4).tril()]
)
def test_what_is_no_influence_is_refused(bad):
    with pytest.raises(SamplingError, match="all pairs of 4 coordinates"):
        with_influence(LAW.model(mixture("masked", 3)), bad)


def test_the_file_beside_a_checkpoint(tmp_path):
    """A byte for each pair, near enough; only with the weights it was learned from."""
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    assert learned.read_influence(checkpoint, D) is None
    path = learned.save_influence(checkpoint, near(D).fill_diagonal_(0))
    assert path.name == "best.influence.json"
    assert path.stat().st_size < D * (D - 1) / 2 * 4 / 3 + 300
    found = learned.read_influence(checkpoint, D)
    torch.testing.assert_close(found, near(D).fill_diagonal_(0), atol=0.004, rtol=0)
    learned.save_influence(checkpoint, found)
    assert torch.equal(learned.read_influence(checkpoint, D), found)
    with pytest.warns(UserWarning, match="doesn't contain the influence of 31 coordinates"):
        assert learned.read_influence(checkpoint, D - 1) is None
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": None, "pairs": "*"}))
    with pytest.warns(UserWarning, match="doesn't contain"):
        assert learned.read_influence(checkpoint, D) is None
    learned.save_influence(checkpoint, found)
    checkpoint.write_bytes(b"others")
    with pytest.warns(UserWarning, match="other weights"):
        assert learned.read_influence(checkpoint, D) is None


def test_sample_learns_influence_and_keeps_it(trained, tmp_path, capfd):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes((trained / "best.ckpt").read_bytes())
    words = ("--num_samples", 2, "--batch_size", 2, "--show", 0)
    code, printed = sample_here(checkpoint, capfd, "--learn_influence", *words)
    assert code == 0
    assert f"influence   {tmp_path / 'best.influence.json'}" in printed
    assert "independent" in printed
    model = tauflow.load(checkpoint).model
    assert torch.equal(model.influence, tauflow.learn_influence(model)), "the seed decides"


def test_steps_without_a_free_coordinate_reveal_nothing():
    """A sequence with fewer free coordinates than evaluations, alone in its part of a batch."""
    movable = torch.tensor([[True, True, False, False]])
    ends = torch.tensor([[0, 0, 1, 1, 2]])
    ranks = independent_ranks(correlations(torch.full((4, 4), 0.2)), movable, torch.arange(4)[None], ends)
    assert sorted(ranks[0, :2].tolist()) == [0, 1]
