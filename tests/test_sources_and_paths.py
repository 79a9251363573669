import pytest
import torch

from tauflow import Masked, MixturePath, Uniform, schedule_from
from tauflow.paths import spread_kappas, stratified_times


def test_sources():
    masked, uniform = Masked(5), Uniform(5)
    assert (masked.num_states, masked.mask_id, uniform.num_states) == (6, 5, 5)
    assert (masked.sample((2, 3)) == 5).all()
    x = torch.tensor([[5, 0, 4]])
    assert masked.movable(x).tolist() == [[True, False, False]]
    assert uniform.movable(x).all()
    counts = torch.bincount(uniform.sample((100, 500), torch.Generator().manual_seed(0)).flatten())
    assert ((counts - 10_000).abs() < 5 * (50_000 * 0.2 * 0.8) ** 0.5).all()  # five standard deviations


@pytest.mark.parametrize("source", [Masked, Uniform])
def test_fewer_than_two_tokens(source):
    with pytest.raises(ValueError, match="at least 2"):
        source(1)


@pytest.mark.parametrize("source", [Masked(4), Uniform(4)])
def test_corrupt_follows_the_mixture(source):
    """Shares of kept and of each redrawn token at t = 0.6, kappa = 0.36, over 400 000 coordinates: within five standard deviations."""
    path, count = MixturePath(source, schedule_from("quadratic")), 400_000
    x_1 = torch.full((count // 100, 100), 2)
    x_t, corrupted = path.corrupt(x_1, torch.full((len(x_1),), 0.6), torch.Generator().manual_seed(1))
    expected = torch.zeros(source.num_states)
    expected[2] = 0.36
    expected += 0.64 * (torch.eye(5)[4] if isinstance(source, Masked) else torch.full((4,), 0.25))
    seen = torch.bincount(x_t.flatten(), minlength=source.num_states) / count
    assert (seen - expected).abs().max() < 5 * (0.25 / count) ** 0.5
    assert abs(corrupted.double().mean() - 0.64) < 5 * (0.25 / count) ** 0.5
    assert torch.equal(x_t[~corrupted], x_1[~corrupted])


def test_ends_of_the_path():
    path, x_1 = MixturePath(Masked(4), schedule_from("linear")), torch.randint(4, (8, 50))
    assert (path.corrupt(x_1, torch.zeros(8))[0] == 4).all()
    assert torch.equal(path.corrupt(x_1, torch.ones(8))[0], x_1)


def test_stratified_times_cover_every_stratum():
    for seed in range(20):
        t = stratified_times(64, torch.Generator().manual_seed(seed))
        assert torch.equal((t * 64).long(), torch.arange(64))
        assert t.max() < 1


def test_spread_kappas_are_stratified_on_every_leading_part_and_fixed():
    kappa = spread_kappas(torch.arange(512))
    for k in (8, 64, 512):
        assert torch.equal((kappa[:k] * k).long().sort().values, torch.arange(k))
    index = torch.tensor([300, 7, 41])
    assert torch.equal(spread_kappas(index), kappa[index])
    assert abs(kappa.mean() - 0.5) < 1 / 512  # not all at the left ends of their strata
