"""Samplers that are handed their logits make the samples that they make in the loop of tauflow."""

import pytest
import torch

import tauflow
from tauflow.errors import BadLogits, SamplingError
from tauflow.samplers import SAMPLERS, sampler_from
from tauflow.samplers.driven import Driven

V, D = 7, 20
PROCESSES = {
    "masked": tauflow.Mixture(tauflow.Masked(V), "quadratic"),
    "uniform": tauflow.Mixture(tauflow.Uniform(V), "quadratic"),
}


def network(x, t):
    """Logits of the token and its neighbours, and of no time, which a driving loop need not know."""
    context = 3 * x + 5 * x.roll(1, 1) + 2 * x.roll(-1, 1)
    return ((context[..., None] + 4 * torch.arange(V)) % 11).float() / 3


def driven(name, process, nfe):
    """The tokens, and how often the network was asked."""
    generator = torch.Generator().manual_seed(nfe)
    x_0 = process.start((3, D), generator)
    sampler, asked = Driven(sampler_from(name), process, x_0, nfe, generator), 0
    while not sampler.done:
        sampler.answer(network(sampler.x, None))
        asked += 1
    return sampler.x, asked


@pytest.mark.parametrize("source", PROCESSES)
@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_are_those_of_the_loop(name, source):
    model = tauflow.Model(network, PROCESSES[source], (D,))
    if sampler_from(name).refuses(model):
        with pytest.raises(SamplingError):
            driven(name, PROCESSES[source], 4)
        return
    for nfe in (1, 2, 7) if name != "tr_cie_paper" else (2, 7):  # which needs a step
        result = tauflow.sample(model, name, nfe, count=3, seed=nfe)
        tokens, asked = driven(name, PROCESSES[source], nfe)
        assert torch.equal(tokens, result.tokens)
        assert asked == result.nfe


def test_refuses_logits_of_another_shape_or_after_the_end():
    process = PROCESSES["uniform"]
    x_0 = process.start((1, D), torch.Generator().manual_seed(0))
    sampler = Driven(sampler_from("bridge"), process, x_0, 1, torch.Generator().manual_seed(0))
    with pytest.raises(BadLogits, match="must return logits of shape"):
        sampler.answer(torch.zeros(1, D - 1, V))
    sampler = Driven(sampler_from("bridge"), process, x_0, 1, torch.Generator().manual_seed(0))
    sampler.answer(torch.zeros(1, D, V))
    with pytest.raises(SamplingError, match="done"):
        sampler.answer(torch.zeros(1, D, V))
