"""Allowed tokens: rows, laws and samples of a model that may use certain tokens only at each coordinate."""

import pytest
import torch
from helpers import Small, allowed, distance, empirical, metric, mixtures, process_named

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from tauflow import Model
from tauflow.errors import SamplingError
from tauflow.samplers import sampler_from

V, B, D = 5, 3, 12
ORDER = (7 * torch.arange(D)) % D
PROCESSES = [*mixtures(V), metric(V)]


def some(seed=0) -> torch.Tensor:
    """Allowed tokens (D, V): one of a coordinate, all of another, random ones of the rest."""
    found = torch.rand(D, V, generator=torch.Generator().manual_seed(seed)) < 0.5
    found[:, 2] |= ~found.any(1)
    found[3] = torch.arange(V) == 1
    found[4] = True
    return found


def model(process) -> Model:
    return Model(Small(process.num_states, V), process, (D,), ORDER)


CASES = [
    *[("tr_cie", "masked"), ("tr_cie", "metric"), ("euler", "uniform"), ("theta_trapezoidal", "marginal")],
    *[("tweedie", "metric"), ("tweedie_d3pm", "uniform"), ("fudoki", "masked"), ("shs", "uniform")],
    *[("spaced_sharp", "masked"), ("klass", "masked"), ("bridge", "marginal"), ("renoise", "uniform")],
    *[("gibbs", "uniform"), ("remdm_cap", "masked"), ("psi", "uniform")],
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_samples_hold_allowed_tokens_at_the_same_cost(name, kind):
    process = process_named(kind, V)
    free = model(process)
    sampler = sampler_from(name, free)
    may = some()
    for nfe in (4, 9):
        found = tauflow.sample(free.allowing(may), sampler, nfe, count=B)
        assert found.nfe == tauflow.sample(free, sampler, nfe, count=B).nfe
        assert may[torch.arange(D), found.tokens].all()


def test_all_tokens_allowed_change_no_sample():
    free = model(PROCESSES[1])
    for each in (torch.ones(D, V, dtype=torch.bool), torch.ones(V, dtype=torch.bool)):
        samples = [tauflow.sample(one, "tr_cie", 6, count=B).tokens for one in (free, free.allowing(each))]
        assert torch.equal(*samples)


@pytest.mark.parametrize("kind", ["masked", "uniform", "marginal", "metric"])
def test_the_law_of_samples_is_conditioned_factor_by_factor(kind):
    """Coordinates are independent, where the kernel of a frozen posterior is exact; noise is any token."""
    process = process_named(kind, 3)
    generator = torch.Generator().manual_seed(1)
    factors = torch.rand(2, 3, generator=generator, dtype=torch.float64) + 0.2
    law = EnumerableLaw((factors[0, :, None] * factors[1]).flatten() / factors.sum(1).prod(), 3, 2)
    may = torch.tensor([[True, True, False], [False, True, True]])
    count = 20_000
    found = tauflow.sample(law.model(process).allowing(may), "tweedie", 8, count=count).tokens
    kept = factors * may
    exact = (kept[0, :, None] * kept[1]).flatten() / kept.sum(1).prod()
    assert distance(empirical(found, 3), exact) < allowed(4, count)


def test_every_kind_of_evaluation_agrees():
    """Rows of some places, of kept ones, and below or above guidance and temperature."""
    process = PROCESSES[0]
    free, may = model(process), some()
    x = process.start((B, D))
    t = torch.full((B,), 0.3)
    other = Model(Small(process.num_states, V).requires_grad_(False), process, (D,))
    with torch.no_grad():
        other.denoiser.network.output.neg_()
    whole = free.denoiser.evaluate(x, t).dense() * may
    whole = whole / whole.sum(-1, keepdim=True)
    evaluation = free.allowing(may).denoiser.evaluate(x, t)
    places = torch.tensor([0, 3, D + 4, 2 * D + 11])
    for each in (evaluation.rows(places), evaluation.kept(places).rows(places), evaluation.rows(slice(None))):
        expected = whole.flatten(0, 1)[places if len(each) == len(places) else slice(None)]
        assert torch.allclose(each, expected, atol=1e-6)
    guided = free.guided(2.5, other).tempered(0.7).allowing(may).denoiser.evaluate(x, t).dense()
    below = free.allowing(may).guided(2.5, other.allowing(may)).tempered(0.7).denoiser.evaluate(x, t).dense()
    assert torch.allclose(guided, below, atol=1e-6)
    assert torch.equal(guided > 0, may.expand_as(guided))


def test_a_batch_in_parts_is_the_same():
    found = [
        tauflow.sample(model(PROCESSES[1]).allowing(some()), "bridge", 6, count=8, batch_size=size).tokens
        for size in (None, 3)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_samples_may_be_allowed_different_tokens(batch_size):
    """Tokens of each sample (B, D, V); the same as sets and their numbers; rows are those of each alone."""
    free = model(PROCESSES[1])
    may = torch.stack([some(seed) for seed in range(B)])
    sets, numbers = may.flatten(0, 1).unique(dim=0, return_inverse=True)
    kinds = free.allowing(may), free.allowing(numbers.view(B, D), sets=sets)
    found = [tauflow.sample(each, "bridge", 6, count=B, batch_size=batch_size).tokens for each in kinds]
    assert torch.equal(*found)
    assert may.gather(2, found[0][..., None]).all()
    x, t = PROCESSES[1].start((B, D)), torch.full((B,), 0.3)
    together = kinds[1].denoiser.evaluate(x, t).dense()
    for number in range(B):
        alone = free.allowing(may[number]).denoiser.evaluate(x, t).dense()
        assert torch.equal(together[number], alone[number])


def test_sets_of_coordinates_are_rows_of_all():
    free, may = model(PROCESSES[0]), some()
    sets = torch.stack([torch.arange(V) < 2, torch.arange(V) >= 2])
    numbers = torch.arange(D) % 2
    found = [
        tauflow.sample(each, "spaced", 6, count=B).tokens
        for each in (free.allowing(numbers, sets=sets), free.allowing(sets[numbers]))
    ]
    assert torch.equal(*found)
    for bad in (numbers + 1, numbers[1:], numbers.float(), may):
        with pytest.raises(SamplingError, match=r"their numbers 0 to 1, \(12,\) or \(B, 12\)"):
            free.allowing(bad, sets=sets)
    with pytest.raises(SamplingError, match=r"sets must be a boolean tensor \(K, 5\)"):
        free.allowing(numbers, sets=sets[:, 1:])
    none = may.expand(B, D, V).clone()
    none[2, 7] = False
    with pytest.raises(SamplingError, match="coordinate 7 of sample 2 is allowed no token"):
        free.allowing(none)
    with pytest.raises(SamplingError, match="give count=3"):
        tauflow.sample(free.allowing(may.expand(B, D, V)), nfe=4, count=2)


def test_what_cannot_be_allowed_is_refused():
    free = model(PROCESSES[0])
    for bad in (torch.ones(D, V), torch.ones(V, D, dtype=torch.bool), [True] * V):
        with pytest.raises(SamplingError, match=r"boolean tensor of the shape \(12, 5\) or \(5,\)"):
            free.allowing(bad)
    none = some()
    none[7] = False
    with pytest.raises(SamplingError, match="coordinate 7 is allowed no token"):
        free.allowing(none)
