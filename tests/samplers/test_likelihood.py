"""The exact few-step likelihood: teacher forcing through a sampler's own sets.

For one item x, exp(-nll) of independent runs has the mean p(x), the probability with which the sampler makes
x. Laws are compared by that mean over n runs, within five standard errors of it. Seeds are fixed.
"""

import math
import re
from dataclasses import dataclass

import pytest
import torch
from helpers import Small, empirical, mixture

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import PROPAGATED, Propagator
from tauflow import Model
from tauflow.errors import SamplingError
from tauflow.samplers import SAMPLERS, sampler_from
from tauflow.samplers.likelihood import no_likelihood
from tauflow.samplers.random import sample_categorical
from tauflow.samplers.tweedie import Tweedie

PROCESS = mixture("masked", 3, "quadratic")
LAW = EnumerableLaw.random(num_tokens=3, length=4, spread=1.5)
ORDER = torch.tensor([2, 0, 3, 1])
RUNS = 2000

MASKED = [
    name
    for name in SAMPLERS
    if not sampler_from(name).unsupported_reason(Model(Small(4, 3), PROCESS, (4,), ORDER))
    and not sampler_from(name).no_likelihood
]
REFUSED = [name for name in SAMPLERS if sampler_from(name).no_likelihood]


def law_model() -> Model:
    model = LAW.model(PROCESS)
    return Model(model.denoiser, PROCESS, (4,), ORDER)


def estimated_law(
    model: Model, spec: str, nfe: int, items: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard error of exp(-nll) of each item, over RUNS runs."""
    nats = tauflow.nll(model, spec, nfe, items.repeat_interleave(RUNS, 0), seed=1).view(len(items), RUNS)
    weights = (-nats).exp()
    return weights.mean(1), weights.std(1) / math.sqrt(RUNS)


@pytest.mark.parametrize("name", [name for name in MASKED if isinstance(sampler_from(name), PROPAGATED)])
def test_a_time_grid_sampler_has_the_likelihood_of_its_exact_law(name):
    """The terminal law comes from the propagator, without Monte Carlo; 5 evaluations of 4 coordinates, two
    steps of a method with two stages."""
    items = LAW.sequences[::9]
    states = Propagator(LAW, PROCESS)
    exact = states.terminal_law(sampler_from(name), 5)
    place = (items * 4 ** torch.arange(3, -1, -1)).sum(1)  # among all states, the mask is one of them
    found, error = estimated_law(law_model(), name, 5, items)
    assert ((found - exact[place]).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("spec", ["tweedie", "fhs", "spaced", "learned_order", "entropy_budget"])
def test_the_likelihood_is_that_of_the_samples(spec):
    """Two evaluations for four coordinates, so that coordinates are drawn together: frequencies of all 81
    sequences among 40 000 samples, each within five standard errors of both sides."""
    model = law_model()
    shares = empirical(tauflow.sample(model, spec, 2, count=40_000, seed=3).tokens, 3)
    items = LAW.sequences
    nats = tauflow.nll(model, spec, 2, items.repeat(500, 1), seed=1).view(500, -1)
    found, error = (-nats).exp().mean(0), (-nats).exp().std(0) / math.sqrt(500)
    assert ((found - shares).abs() <= 5 * (error + (shares / 40_000).sqrt()) + 1e-4).all()
    assert found.sum().item() == pytest.approx(1, abs=5 * error.square().sum().sqrt().item() + 1e-9)


def test_one_coordinate_an_evaluation_gives_the_law_itself():
    """With an exact denoiser and N = D the likelihood is that of the data, whatever the order."""
    for spec in ("fhs", "spaced", "spaced_even", "learned_order", "entropy_budget"):
        nats = tauflow.nll(law_model(), spec, 4, LAW.sequences)
        assert torch.allclose(nats, -LAW.probabilities.log(), atol=1e-5)


def test_one_coordinate_an_evaluation_is_the_any_order_likelihood():
    """Of an inexact network too: the sum over the order of -ln p(x^d | those before), by hand."""
    network, data = Small(4, 3).eval(), LAW.sequences
    model = Model(network, PROCESS, (4,), ORDER)
    x, nats = torch.full_like(data, 3), torch.zeros(len(data), dtype=torch.float64)
    for k in range(4):
        place = int(ORDER.argsort()[k])
        t = PROCESS.t_from_share(torch.tensor(k / 5, dtype=torch.float64)).float()
        rows = network(x, t.expand(len(x)))[:, place].log_softmax(-1).double()
        nats -= rows.gather(1, data[:, place, None]).squeeze(1)
        x[:, place] = data[:, place]
    assert torch.allclose(tauflow.nll(model, "learned_order", 4, data), nats.detach(), atol=1e-5)


@pytest.mark.parametrize("spec", [*MASKED, "euler(coins=systematic)"])
def test_every_masked_sampler_has_a_likelihood_that_bounds_its_law(spec):
    """The mean nll over data is at least the entropy, whatever the sampler: no law codes data in less, within
    five standard errors over runs. It is finite, but where rows that must be revealed are extrapolated."""
    model = law_model()
    assert no_likelihood(sampler_from(spec), model) == ""
    nats = tauflow.nll(model, spec, 4, LAW.sequences.repeat_interleave(50, 0), seed=2).view(-1, 50)
    assert (nats >= 0).all()
    if spec in ("ho_fhs", "fhs_pairs", "spaced_sharp"):
        nats = nats.clamp(max=1e3)
    mean = (LAW.probabilities * nats.mean(1)).sum().item()
    error = (LAW.probabilities.square() * nats.var(1)).sum().sqrt().item() / math.sqrt(50)
    assert 4 * LAW.entropy - 5 * error - 1e-6 <= mean < math.inf


def test_a_sampler_that_does_not_keep_all_it_draws_says_why_it_has_no_likelihood():
    for spec in REFUSED:
        with pytest.raises(SamplingError, match=re.escape(sampler_from(spec).no_likelihood)):
            tauflow.nll(law_model(), spec, 4, LAW.sequences[:2])


def test_a_token_without_weight_costs_a_coin_that_stays_or_everything():
    """The extrapolated row of token 1 is clamped to 0 in the second step: tr_cie waits, fhs_pairs cannot."""

    def denoiser(x, t):
        revealed = (x != 2).any(1)[:, None, None]
        return torch.where(revealed, torch.tensor([0.0, -9.0]), torch.zeros(2)).expand(*x.shape, 2)

    model = Model(denoiser, mixture("masked", 2), (8,))
    ones = torch.ones(64, 8, dtype=torch.long)
    assert tauflow.nll(model, "fhs_pairs", 3, ones).isinf().all()
    assert tauflow.nll(model, "fhs_pairs", 3, 0 * ones).isfinite().all()
    assert tauflow.nll(model, "tr_cie", 8, ones).isfinite().all()


def test_a_coordinate_that_must_move_to_a_token_without_weight_costs_everything():
    """Rows that are sure of another token: a candidate of euler moves for certain, so there is no way."""
    model = Model(lambda x, t: torch.tensor([0.0, -200.0]).expand(*x.shape, 2), mixture("masked", 2), (8,))
    ones = torch.ones(64, 8, dtype=torch.long)
    assert tauflow.nll(model, "euler", 8, ones).isinf().all()
    assert (tauflow.nll(model, "euler", 8, 0 * ones) < 1e-5).all()


def test_what_is_known_costs_nothing():
    model, data = law_model(), LAW.sequences
    known = torch.tensor([True, False, True, False])
    given = tauflow.nll(model, "spaced", 2, data, known=known)
    pairs = torch.zeros(3, 3, dtype=torch.float64).index_put_(
        (data[:, 0], data[:, 2]), LAW.probabilities, accumulate=True
    )
    assert torch.allclose(given, -(LAW.probabilities / pairs[data[:, 0], data[:, 2]]).log(), atol=1e-5)


def test_runs_repeat_and_batches_do_not_matter():
    model, data = Model(Small(4, 3), PROCESS, (4,)), LAW.sequences
    first = tauflow.nll(model, "tr_cie", 3, data, seed=5)
    assert torch.equal(first, tauflow.nll(model, "tr_cie", 3, data, seed=5))
    assert torch.allclose(first, tauflow.nll(model, "tr_cie", 3, data, seed=5, batch_size=7), atol=1e-6)
    assert not torch.equal(first, tauflow.nll(model, "tr_cie", 3, data, seed=6))


def test_items_may_have_the_shape_of_a_sample():
    model, data = Model(Small(4, 3), PROCESS, (2, 2)), LAW.sequences
    flat = tauflow.nll(model, "spaced_even", 2, data)
    assert torch.equal(flat, tauflow.nll(model, "spaced_even", 2, data.view(-1, 2, 2)))


@dataclass(frozen=True)
class Own(Tweedie):
    """Draws with a function of its own."""

    def step(self, problem, state, plan, n, generator):
        state, info = super().step(problem, state, plan, n, generator)
        drawn = sample_categorical(torch.ones(state.x.numel(), 3), generator).view_as(state.x)
        return type(state)(torch.where(state.x < 3, drawn, state.x), state.posterior), info


@pytest.mark.parametrize(
    ("kind", "spec", "data", "message"),
    [
        ("uniform", "tr_cie", LAW.sequences, "needs a masked source, this model has a uniform one"),
        ("masked", "tr_cie(dense=true)", LAW.sequences, "Remove dense"),
        ("masked", "tr_cie(finish=none)", LAW.sequences, "use finish=draw or reuse"),
        ("masked", Own(), LAW.sequences, r"problem\.draw"),
        ("masked", "fhs", LAW.sequences[:, :3], r"must have the shape \(B, 4\)"),
        ("masked", "fhs", LAW.sequences + 1, r"tokens outside 0 \.\. 2"),
        ("masked", "fhs", LAW.sequences.float(), "integer tokens"),
    ],
)
def test_what_has_no_likelihood_is_refused_with_the_reason(kind, spec, data, message):
    states = 4 if kind == "masked" else 3
    model = Model(Small(states, 3), mixture(kind, 3), (4,))
    with pytest.raises(SamplingError, match=message):
        tauflow.nll(model, spec, 3, data)
