"""Model: what it refuses; conditions, guidance and temperature.

Statistics: shares of 20 000 draws have standard errors below 0.0036, and tests allow 0.015. Seeds are fixed.
"""

import math

import pytest
import torch
from helpers import Small, equal_counts, mixture, near

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from tauflow import Masked, Mixture, Model, Uniform
from tauflow.denoise import TimedDenoiser
from tauflow.errors import SamplingError
from tauflow.samplers import SAMPLERS

V, B, D = 5, 3, 12
PROCESS = Mixture(Masked(V), "linear")


def network() -> Small:
    return Small(V + 1, V)


def test_guidance_with_impossible_tokens():
    """-inf on either side: weight 1 is the conditional law, 0 the other, more keeps what the condition
    allows."""
    conditional, unconditional = torch.zeros(3), torch.zeros(3)
    conditional[0], unconditional[1] = -torch.inf, -torch.inf

    def law(weight):
        def model(logits):
            return lambda x, t: logits.expand(*x.shape, 3)

        guided = Model(model(conditional), Mixture(Masked(3), "linear"), (4,)).guided(
            weight, model(unconditional)
        )
        return set(tauflow.sample(guided, "tweedie", 2, count=500).tokens.unique().tolist())

    assert law(1.0) == {1, 2}
    assert law(0.0) == {0, 2}
    assert law(2.0) == {1, 2}
    assert law(0.5) == {2}


def test_temperature_and_guidance():
    logits, other = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([0.0, 0.5, -1.0])
    model = Model(lambda x, t: logits.expand(*x.shape, 3), Mixture(Masked(3), "linear"), (10,))

    def unconditional(x, t):
        return other.expand(*x.shape, 3)

    def share(model):
        result = tauflow.sample(model, "tweedie", 2, count=2000)
        return torch.bincount(result.tokens.flatten(), minlength=3) / 20_000, result

    plain, result = share(model)
    assert (result.nfe, result.info.forwards) == (2, 2)
    torch.testing.assert_close(plain, logits.softmax(0), atol=0.015, rtol=0)
    cold, _ = share(model.tempered(0.5))
    torch.testing.assert_close(cold, (2 * logits).softmax(0), atol=0.015, rtol=0)
    guided, result = share(model.guided(2.0, unconditional))
    expected = (2 * logits.log_softmax(0) - other.log_softmax(0)).softmax(0)
    torch.testing.assert_close(guided, expected, atol=0.015, rtol=0)
    assert (result.nfe, result.info.forwards) == (2, 4)
    same, _ = share(model.guided(1.0, Model(unconditional, model.process, (10,))))
    torch.testing.assert_close(same, plain, atol=0.015, rtol=0)
    both, _ = share(model.guided(2.0, unconditional).tempered(0.5))
    torch.testing.assert_close(both, expected.log().mul(2).softmax(0), atol=0.015, rtol=0)


class Labelled:
    """A callable with two labels; the first makes its own token likelier by label + 1."""

    conditions = (3, 2)

    def __init__(self):
        self.seen = []

    def __call__(self, x, t, condition):
        self.seen.append(condition)
        bonus = torch.arange(V) == condition[:, :1]
        return (bonus * (condition[:, :1] + 1.0))[:, None].expand(*x.shape, V)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ([1, 0], "condition must be a tensor of integers, got list"),
        (torch.zeros(B, 2), "condition must hold integers, got torch.float32"),
        (torch.zeros(B, 1).long(), r"condition must have the shape \(3, 2\) or \(2,\), got \(3, 1\)"),
        (torch.zeros(B).long(), r"condition must have the shape \(3, 2\) or \(2,\), got \(3,\)"),
        (torch.tensor([3, 0]), r"column 0 of a condition holds 0 .. 2, or -1 for not given; got \[3, 3, 3\]"),
    ],
)
def test_bad_conditions_get_a_sentence(condition, message):
    model = Model(Labelled(), PROCESS, (D,))
    with pytest.raises(SamplingError, match=message):
        tauflow.sample(model, nfe=4, count=B, condition=condition)


def test_conditions_reach_the_network():
    """(C,) is for all samples, -1 and none are dropped columns."""
    for given, expected in [
        (torch.tensor([[0, 1], [2, -1], [1, 0]]), [[0, 1], [2, -1], [1, 0]]),
        (torch.tensor([2, 1], dtype=torch.int32), [[2, 1]] * B),
        (None, [[-1, -1]] * B),
    ]:
        network = Labelled()
        tauflow.sample(Model(network, PROCESS, (D,)), nfe=2, count=B, condition=given)
        assert [condition.tolist() for condition in network.seen] == [expected] * 2
        assert network.seen[0].dtype == torch.int64


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"process": Masked(V)}, "process must be a Process, such as Mixture"),
        ({"shape": 4}, r"shape must be the sizes of a sample such as \(256,\) or \(28, 28\), got 4"),
        ({"shape": (4, 0)}, "shape must be the sizes of a sample"),
        ({"order": torch.zeros(D)}, "an order must hold each number from 0 to 11 once"),
    ],
)
def test_bad_models_get_a_sentence(facts, message):
    good = {"denoiser": network(), "process": PROCESS, "shape": (D,)}
    assert Model(**good).order is None
    with pytest.raises(SamplingError, match=message):
        Model(**(good | facts))


def test_what_cannot_be_guided_or_tempered():
    model = Model(network(), PROCESS, (D,))
    with pytest.raises(SamplingError, match="takes no condition, so there is nothing to guide by"):
        model.guided(2.0)
    for weight in (math.nan, 1e300, "2"):
        with pytest.raises(SamplingError, match="guidance weight must be a finite number"):
            model.guided(weight, network())
    with pytest.raises(TypeError, match="a denoiser is"):
        model.guided(2.0, 3)
    larger = Model(Small(V + 2, V + 1), Mixture(Masked(V + 1), "linear"), (D,))
    grid = Model(network(), PROCESS, (3, 4))
    uniform = Model(Small(V, V), Mixture(Uniform(V), "linear"), (D,))
    for other in (larger, grid, uniform):
        with pytest.raises(SamplingError, match="has another vocabulary, shape or source than this one"):
            model.guided(2.0, other)
    assert model.guided(2.0, Model(network(), Mixture(Masked(V), "cosine"), (D,))).denoiser.forwards == 2
    for temperature in (0.0, math.nan, 1e300, 1e-300, "2"):
        with pytest.raises(SamplingError, match="temperature must be above 0"):
            model.tempered(temperature)


# Classifier-free guidance: one network with its condition dropped


def dropped(x, t):
    return Labelled()(x, t, torch.full((len(x), 2), -1))


def test_guidance_by_dropping_the_condition():
    """One evaluation, two forwards, both counted; the law is that of guidance with a separate unconditional
    denoiser."""
    condition = torch.tensor([1, 0])
    network = Labelled()
    model = Model(network, PROCESS, (D,))
    guided = model.guided(2.5)
    assert guided.conditions == (3, 2)
    result = tauflow.sample(guided, "tr_cie", 6, count=B, condition=condition, seed=4)
    assert (result.nfe, result.info.forwards) == (6, 12)
    assert [given.tolist() for given in network.seen] == [[[1, 0]] * B, [[-1, -1]] * B] * 6
    separate = tauflow.sample(model.guided(2.5, dropped), "tr_cie", 6, count=B, condition=condition, seed=4)
    assert torch.equal(separate.tokens, result.tokens)
    assert (separate.nfe, separate.info.forwards) == (6, 12)


def test_guidance_sharpens_the_condition():
    """ln p is 2 for token 1 and 0 for the others given the label 1, flat without: the weight multiplies the
    2."""
    model = Model(Labelled(), PROCESS, (10,))
    for guided, logit in (
        (model, 2.0),
        (model.guided(1.0), 2.0),
        (model.guided(2.5), 5.0),
        (model.guided(0.0), 0.0),
    ):
        tokens = tauflow.sample(guided, "tweedie", 2, count=2000, condition=torch.tensor([1, 0])).tokens
        expected = torch.tensor([0, logit, 0, 0, 0]).softmax(0)
        torch.testing.assert_close(
            torch.bincount(tokens.flatten(), minlength=V) / 20_000, expected, atol=0.015, rtol=0
        )


def test_each_sample_has_a_condition_of_its_own():
    condition = torch.tensor([[0, 0], [2, 1], [-1, -1]]).repeat_interleave(1000, 0)
    tokens = tauflow.sample(
        Model(Labelled(), PROCESS, (20,)), "tweedie", 2, count=3000, condition=condition
    ).tokens
    for rows, bonus in zip(tokens.chunk(3), ([1.0, 0, 0, 0, 0], [0, 0, 3.0, 0, 0], [0.0] * V), strict=True):
        shares = torch.bincount(rows.flatten(), minlength=V) / rows.numel()
        torch.testing.assert_close(shares, torch.tensor(bonus).softmax(0), atol=0.015, rtol=0)


@pytest.mark.parametrize(
    "name", [name for name in SAMPLERS if not name.startswith(("bridge", "tweedie_d3pm", "gibbs", "renoise"))]
)
def test_every_sampler_hands_the_condition_to_every_evaluation(name):
    network = Labelled()
    model = Model(network, PROCESS, (D,), torch.arange(D), counts=equal_counts(D), influence=near(D))
    condition = torch.tensor([[0, 0], [2, 1], [1, -1]])
    result = tauflow.sample(model, name, 7, count=B, condition=condition)
    assert len(network.seen) == result.nfe
    assert all(torch.equal(given, condition) for given in network.seen)


def test_forwards_of_guidance_within_guidance_add_up():
    model = Model(Labelled(), PROCESS, (D,)).guided(2.0).guided(3.0, dropped)
    assert model.denoiser.forwards == 3
    counter = TimedDenoiser(model.denoiser)
    assert (counter.forwards, counter.conditions, counter.num_tokens) == (3, (3, 2), V)


@pytest.mark.parametrize("kind", ["masked", "uniform", "marginal"])
def test_a_model_under_another_schedule_is_the_exact_one_of_that_schedule(kind):
    """The exact posterior of a law under linear kappa, asked under cubic, against that under cubic itself."""
    law = EnumerableLaw.random(num_tokens=3, length=3, spread=1.5)
    linear, cubic = (mixture(kind, 3, schedule) for schedule in ("linear", "cubic"))
    t = torch.tensor([0.1, 0.5, 0.9, 0.97])
    x = cubic.start((4, 3), torch.Generator().manual_seed(0))
    x[:, 0] = torch.tensor([0, 1, 2, 0])
    moved = law.model(linear).with_schedule("cubic")
    assert moved.process == cubic
    found, expected = (model.denoiser.evaluate(x, t).dense() for model in (moved, law.model(cubic)))
    assert torch.allclose(found, expected, atol=1e-5)
    if kind != "masked":
        assert not torch.allclose(found, law.model(linear).denoiser.evaluate(x, t).dense(), atol=1e-2)
