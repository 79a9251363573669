"""Temperature: on what the context says, where a source is noise over tokens.

A tempered law is p^(1/T), normalised. Laws are exact: pushed through a sampler without Monte Carlo.
"""

import pytest
import torch
from helpers import Small, distance, mixture

from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import Propagator
from tauflow import Model
from tauflow.denoise.denoiser import TemperedDenoiser
from tauflow.samplers.sampler import Problem

NOISE = ["uniform", "marginal"]
COLD = 0.5


def cooled(rows, temperature=COLD):
    weights = rows ** (1 / temperature)
    return weights / weights.sum(-1, keepdim=True)


def final_law(law, kind, temper, nfe=32):
    """The law that `tweedie` reaches with a tempered model."""
    propagator = Propagator(law, mixture(kind, law.num_tokens))
    propagator.model = temper(propagator.model)
    propagator.problem = Problem.of(propagator.model)
    found = propagator.tweedie_law("t", nfe)
    return found[(propagator.states < law.num_tokens).all(1)]


def plainly(model):
    """Divide the logits of the posterior itself."""
    return Model(TemperedDenoiser(model.denoiser, COLD), model.process, model.shape)


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
    torch.testing.assert_close(found.rows(some), found.dense().flatten(0, 1)[some])
    torch.testing.assert_close(found.kept(some).rows(some), found.dense().flatten(0, 1)[some])


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
