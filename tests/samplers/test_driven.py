"""Samplers that are handed their logits make the samples that they make in the loop of tauflow."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

import tauflow
from tauflow.errors import BadLogits, SamplingError
from tauflow.samplers import Sampler, State, sampler_from
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


CASES = [
    *[("tr_cie", "masked"), ("tr_cie_exact", "uniform"), ("theta_rk2", "masked"), ("tweedie", "uniform")],
    *[("spaced", "masked"), ("ho_fhs", "masked"), ("klass", "masked"), ("bridge", "uniform")],
    *[("remdm_loop", "masked"), ("gibbs", "uniform"), ("shs", "masked")],
]


def test_a_source_that_the_sampler_does_not_support():
    with pytest.raises(SamplingError):
        driven("spaced", PROCESSES["uniform"], 4)


@pytest.mark.parametrize(("name", "source"), CASES)
def test_samples_are_those_of_the_loop(name, source):
    model = tauflow.Model(network, PROCESSES[source], (D,))
    for nfe in (1, 2, 7):
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


@dataclass(frozen=True)
class Drawing(Sampler):
    """Draws a number before and one after each of two evaluations a step, and notes those of whole steps."""

    numbers: list = field(default_factory=list)

    def plan(self, process, free, nfe):
        return SimpleNamespace(steps=nfe // 2, end=1.0)

    def init(self, problem, x_0, plan, generator):
        return State(x_0)

    def step(self, problem, state, plan, n, generator):
        numbers = [torch.rand((), generator=generator).item()]
        for _ in range(2):
            problem.evaluate(state.x, n / plan.steps)
            numbers.append(torch.rand((), generator=generator).item())
        self.numbers.extend(numbers)
        return state, None


def stream(count):
    """The numbers of the generator below."""
    generator = torch.Generator().manual_seed(0)
    return [torch.rand((), generator=generator).item() for _ in range(count)]


def test_no_random_number_comes_twice():
    """Others draw from the generator between the evaluations; each number is that of one of them alone."""
    sampler, generator, others = Drawing(), torch.Generator().manual_seed(0), []
    driven = Driven(sampler, PROCESSES["uniform"], torch.zeros(1, D, dtype=torch.long), 4, generator)
    while not driven.done:
        others.append(torch.rand((), generator=generator).item())
        driven.answer(network(driven.x, driven.t))
    assert others == [stream(10)[place] for place in (1, 3, 6, 8)]
    assert sampler.numbers == [stream(10)[place] for place in (0, 2, 4, 5, 7, 9)]


def test_a_step_starts_again_from_changed_states():
    """With fresh numbers, since it may take more of them."""
    sampler, generator, x = Drawing(), torch.Generator().manual_seed(0), torch.zeros(1, D, dtype=torch.long)
    driven = Driven(sampler, PROCESSES["uniform"], x, 2, generator)
    driven.answer(network(x + 1, driven.t), x + 1)
    driven.answer(network(x + 1, driven.t), x + 1)
    assert sampler.numbers == stream(4)[1:]
    assert torch.equal(driven.x, x + 1)
