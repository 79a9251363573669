"""Rows changed before they are drawn from: allowed tokens, temperature, top-k and top-p."""

import pytest
import torch
from conftest import ROOT
from helpers import Small, allowed, distance, empirical, metric, mixture, mixtures, process_named

import tauflow
import tauflow.cli.sample
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import Propagator
from tauflow import Model
from tauflow.denoise.processors import tempered
from tauflow.errors import SamplingError
from tauflow.evaluation.results import Results
from tauflow.samplers import sampler_from
from tauflow.samplers.sampler import Problem

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
        found = tauflow.sample(free.with_allowed_tokens(may), sampler, nfe, count=B)
        assert found.nfe == tauflow.sample(free, sampler, nfe, count=B).nfe
        assert may[torch.arange(D), found.tokens].all()


def test_all_tokens_allowed_change_no_sample():
    free = model(PROCESSES[1])
    for each in (torch.ones(D, V, dtype=torch.bool), torch.ones(V, dtype=torch.bool)):
        samples = [
            tauflow.sample(one, "tr_cie", 6, count=B).tokens for one in (free, free.with_allowed_tokens(each))
        ]
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
    found = tauflow.sample(law.model(process).with_allowed_tokens(may), "tweedie", 8, count=count).tokens
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
    evaluation = free.with_allowed_tokens(may).denoiser.evaluate(x, t)
    places = torch.tensor([0, 3, D + 4, 2 * D + 11])
    for each in (
        evaluation.probs(places),
        evaluation.clone(places).probs(places),
        evaluation.probs(slice(None)),
    ):
        expected = whole.flatten(0, 1)[places if len(each) == len(places) else slice(None)]
        assert torch.allclose(each, expected, atol=1e-6)
    guided = free.guided(2.5, other).tempered(0.7).with_allowed_tokens(may).denoiser.evaluate(x, t).dense()
    below = (
        free.with_allowed_tokens(may)
        .guided(2.5, other.with_allowed_tokens(may))
        .tempered(0.7)
        .denoiser.evaluate(x, t)
        .dense()
    )
    assert torch.allclose(guided, below, atol=1e-6)
    assert torch.equal(guided > 0, may.expand_as(guided))


def test_a_batch_in_parts_is_the_same():
    found = [
        tauflow.sample(
            model(PROCESSES[1]).with_allowed_tokens(some()), "bridge", 6, count=8, batch_size=size
        ).tokens
        for size in (None, 3)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_samples_may_be_allowed_different_tokens(batch_size):
    """Tokens of each sample (B, D, V); the same as sets and their numbers; rows are those of each alone."""
    free = model(PROCESSES[1])
    may = torch.stack([some(seed) for seed in range(B)])
    sets, numbers = may.flatten(0, 1).unique(dim=0, return_inverse=True)
    kinds = free.with_allowed_tokens(may), free.with_allowed_tokens(numbers.view(B, D), sets=sets)
    found = [tauflow.sample(each, "bridge", 6, count=B, batch_size=batch_size).tokens for each in kinds]
    assert torch.equal(*found)
    assert may.gather(2, found[0][..., None]).all()
    x, t = PROCESSES[1].start((B, D)), torch.full((B,), 0.3)
    together = kinds[1].denoiser.evaluate(x, t).dense()
    for number in range(B):
        alone = free.with_allowed_tokens(may[number]).denoiser.evaluate(x, t).dense()
        assert torch.equal(together[number], alone[number])


def test_sets_of_coordinates_are_rows_of_all():
    free, may = model(PROCESSES[0]), some()
    sets = torch.stack([torch.arange(V) < 2, torch.arange(V) >= 2])
    numbers = torch.arange(D) % 2
    found = [
        tauflow.sample(each, "spaced", 6, count=B).tokens
        for each in (free.with_allowed_tokens(numbers, sets=sets), free.with_allowed_tokens(sets[numbers]))
    ]
    assert torch.equal(*found)
    for bad in (numbers + 1, numbers[1:], numbers.float(), may):
        with pytest.raises(SamplingError, match=r"their numbers 0 to 1, \(12,\) or \(B, 12\)"):
            free.with_allowed_tokens(bad, sets=sets)
    with pytest.raises(SamplingError, match=r"sets must be a boolean tensor \(K, 5\)"):
        free.with_allowed_tokens(numbers, sets=sets[:, 1:])
    none = may.expand(B, D, V).clone()
    none[2, 7] = False
    with pytest.raises(SamplingError, match="coordinate 7 of sample 2 is allowed no token"):
        free.with_allowed_tokens(none)
    with pytest.raises(SamplingError, match="give count=3"):
        tauflow.sample(free.with_allowed_tokens(may.expand(B, D, V)), nfe=4, count=2)


def test_what_cannot_be_allowed_is_refused():
    free = model(PROCESSES[0])
    for bad in (torch.ones(D, V), torch.ones(V, D, dtype=torch.bool), [True] * V):
        with pytest.raises(SamplingError, match=r"boolean tensor of the shape \(12, 5\) or \(5,\)"):
            free.with_allowed_tokens(bad)
    none = some()
    none[7] = False
    with pytest.raises(SamplingError, match="coordinate 7 is allowed no token"):
        free.with_allowed_tokens(none)


NOISE = ["uniform", "marginal"]


COLD = 0.5


def cooled(rows, temperature=COLD):
    weights = rows ** (1 / temperature)
    return weights / weights.sum(-1, keepdim=True)


def final_law(law, kind, temper, nfe=32):
    """The law that `tweedie` reaches with a tempered model."""
    propagator = Propagator(law, mixture(kind, law.num_tokens))
    propagator.model = temper(propagator.model)
    propagator.problem = Problem(propagator.model)
    found = propagator.tweedie_law("t", nfe)
    return found[(propagator.states < law.num_tokens).all(1)]


def plainly(model):
    """Divide the logits of the posterior itself."""
    return Model(tempered(model.denoiser, COLD, mixture("masked", 2)), model.process, model.shape)


def properly(model):
    return model.tempered(COLD)


@pytest.mark.parametrize("kind", [*NOISE, "masked"])
def test_a_temperature_of_1_changes_no_bit(kind):
    process = mixture(kind, 4, "quadratic")
    model = Model(Small(process.num_states, 4), process, (6,))
    x, t = process.start((3, 6), torch.Generator().manual_seed(0)), torch.tensor([0.0, 0.3, 1.0])
    places = torch.tensor([0, 5, 17])
    plain, same = (each.denoiser.evaluate(x, t).logits(places) for each in (model, model.tempered(1.0)))
    assert torch.equal(plain, same)


@pytest.mark.parametrize("kind", NOISE)
def test_what_the_others_say_is_tempered(kind):
    """A row is what the others say times what the own token says, and only the first is tempered."""
    law = EnumerableLaw.random(3, 2, spread=1.5)
    process = mixture(kind, 3, "quadratic")
    x, t = torch.cartesian_prod(torch.arange(3), torch.arange(3)), torch.full((9,), 0.6)
    evidence = process.evidence(x, t)
    others = law.posterior(x, t, process) / evidence
    expected = cooled(others / others.sum(-1, keepdim=True)) * evidence
    found = law.model(process).tempered(COLD).denoiser.evaluate(x, t)
    torch.testing.assert_close(found.dense(), expected / expected.sum(-1, keepdim=True))
    some = torch.tensor([1, 4, 16])
    torch.testing.assert_close(found.probs(some), found.dense().flatten(0, 1)[some])
    torch.testing.assert_close(found.clone(some).probs(some), found.dense().flatten(0, 1)[some])


@pytest.mark.parametrize("kind", NOISE)
def test_one_coordinate_has_the_tempered_law(kind):
    """At D = 1 the tempered model is the exact one of the tempered law, so few steps reach it; divided
    logits keep noise in place."""
    law = EnumerableLaw.random(4, 1, spread=1.0)
    wanted = cooled(law.probabilities)
    for nfe in (3, 24):
        assert distance(final_law(law, kind, properly, nfe), wanted) < 1e-6
    assert distance(final_law(law, kind, plainly, 24), wanted) > 0.02


@pytest.mark.parametrize("kind", NOISE)
def test_cold_noise_samples_as_cold_masks_do(kind):
    law = EnumerableLaw.random(3, 3, spread=1.0)
    masked = final_law(law, "masked", properly)
    right, wrong = (distance(final_law(law, kind, temper), masked) for temper in (properly, plainly))
    assert distance(masked, law.probabilities) > 0.1
    assert right < wrong / 2


MASKED = mixture("masked", 3)


LAW = EnumerableLaw.random(num_tokens=3, length=3, spread=1.5)


COUNT = 10_000


def test_rows_are_cut_to_their_likeliest_tokens():
    rows = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.6, 0.2, 0.1]])
    model = Model(lambda x, t: rows.log().expand(len(x), -1, -1), mixture("masked", 4), (2,))
    cut = [
        ({"top_k": 1}, [[1.0, 0, 0, 0], [0, 1, 0, 0]]),
        (
            {"top_k": 3},
            [[10 / 19, 6 / 19, 3 / 19, 0], [0.1, 0.6, 0.2, 0.1]],
        ),  # two are as likely as the third
        ({"top_k": 9}, rows.tolist()),
        ({"top_p": 0.8}, [[0.625, 0.375, 0, 0], [0, 0.75, 0.25, 0]]),
        ({"top_p": 1e-9}, [[1.0, 0, 0, 0], [0, 1, 0, 0]]),
        ({"top_p": 1}, rows.tolist()),
        ({"top_k": 2, "top_p": 0.6}, [[1.0, 0, 0, 0], [0, 1, 0, 0]]),  # 0.625 and 0.75 of what is left
    ]
    x, t, second = torch.full((1, 2), 4), torch.zeros(1), torch.tensor([1])
    for options, expected in cut:
        found = model.truncated(**options).denoiser.evaluate(x, t)
        assert torch.allclose(found.dense()[0], torch.tensor(expected), atol=1e-6), options
        assert torch.allclose(found.clone(second).probs(second)[0], torch.tensor(expected)[1]), options


def test_a_split_network_is_cut_row_by_row():
    process = mixture("masked", 6)
    model, x = Model(Small(7, 6), process, (5,)), torch.full((2, 5), 6)
    plain = model.tempered(0.7).denoiser.evaluate(x, torch.zeros(2)).probs(torch.tensor([3, 8]))
    found = model.tempered(0.7).truncated(2).denoiser.evaluate(x, torch.zeros(2)).probs(torch.tensor([3, 8]))
    best = plain.topk(2)
    assert torch.allclose(found.gather(1, best.indices), best.values / best.values.sum(1, keepdim=True))
    assert ((found > 0).sum(1) == 2).all()


def test_noise_over_tokens_is_cut_by_what_the_others_say():
    """One coordinate: its leave-one-out row is the data law, so that samples are those of the cut law,
    whatever they began as; the plain row would keep the noise."""
    law = EnumerableLaw(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 3, 1)
    model = law.model(mixture("uniform", 3)).truncated(top_k=2)
    tokens = tauflow.sample(model, "tweedie", 8, count=COUNT).tokens
    assert distance(empirical(tokens, 3), torch.tensor([0.625, 0.375, 0])) < allowed(3, COUNT)


def test_what_cannot_be_cut_is_refused():
    model = LAW.model(MASKED)
    for top_k, top_p in ((0, None), (5, 1.1)):
        with pytest.raises(SamplingError, match="top_"):
            model.truncated(top_k, top_p)


def test_sample_py_takes_both(tmp_path, monkeypatch, capfd):
    """Rows of the likeliest token alone give no variety; real data then has no nll, and a note says so."""
    monkeypatch.chdir(tmp_path)
    shipped = ROOT / "checkpoints" / "shipped" / "countdown_masked.ckpt"
    words = [
        "--ckpt",
        str(shipped),
        "--sampler",
        "margin",
        "--nfe",
        "2",
        "--num_samples",
        "3",
        "--batch_size",
    ]
    with pytest.raises(SystemExit) as stop:
        tauflow.cli.sample.sample([*words, "3", "--top_k", "1", "--out", "out", "--accelerator=cpu"])
    out = capfd.readouterr().out
    assert stop.value.code == 0
    samples = Results.read(tmp_path / "out").cells[-1].shown.tokens
    assert samples[0] == samples[1] == samples[2]
    assert "top-k and top-p give some tokens of real data no probability" in " ".join(out.split())
    assert "these sharpen" in out
    with pytest.raises(SystemExit) as stop:
        tauflow.cli.sample.sample([*words, "3", "--top_p", "2", "--accelerator=cpu"])
    assert "top_p must be above 0" in str(stop.value.code)
