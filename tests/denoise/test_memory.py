"""Memory from one evaluation to the next (self-conditioning): which evaluation feeds which, and at what cost.

The network is made of small integers, so its answers are exact whatever the size of a batch. It answers in
the same memory every time and writes over what it is given, as compiled networks do.
"""

import dataclasses
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from helpers import mixture
from torch import Tensor

import tauflow
from tauflow import Model
from tauflow.denoise import Evaluator, Query, SplitDenoiser, TimedDenoiser

V, B, D, NFE = 6, 7, 10, 6
LABELS = torch.arange(B)[:, None] % 3
DROPPED = -1


class Call(NamedTuple):
    """One call of the network: what it was given, and what it answered."""

    t: float
    conditional: bool
    x: Tensor
    memory: Tensor | None
    answer: Tensor


class Recalling:
    """A split network of token, neighbours, time, label and what it answered last; it notes its calls."""

    conditions = (3,)
    remembers = True

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.memory: dict[tuple[int, ...], Tensor] = {}

    def hidden(self, x, t, condition, memory):
        context = 3 * x + 7 * x.roll(1, 1) + 5 * torch.arange(x.shape[1]) + 2 * condition
        context = context + (8 * t.double()).floor().long()[:, None]
        if memory is not None:
            context = context + (4 * memory.cumsum(1).sum(-1)).long()
        new = ((context[..., None] + 11 * torch.arange(V)) % 17).float() / 4
        given = None if memory is None else memory.clone()
        self.calls.append(Call(t[0].item(), bool(condition[0, 0] != DROPPED), x.clone(), given, new.clone()))
        if memory is not None:
            memory.fill_(torch.nan)
        return self.memory.setdefault(tuple(new.shape), torch.empty_like(new)).copy_(new)

    def head(self, rows):
        return rows


def model_of(kind: str = "uniform") -> tuple[Model, Recalling]:
    network = Recalling()
    return Model(network, mixture(kind, V), (D,), 3 * torch.arange(D) % D), network


def sampled(model: Model, spec: str, **options) -> tauflow.samplers.Result:
    return tauflow.sample(model, spec, NFE, count=B, condition=LABELS, seed=3, **options)


def same(first: Tensor | None, second: Tensor | None) -> bool:
    return first is second if first is None or second is None else torch.equal(first, second)


def chained(calls: list[Call]) -> bool:
    """Whether each call of one stream was given what the one before left, and looks back what that was."""
    given = left = None
    time = 0.0
    for call in calls:
        if call.t >= time:
            given, left, time = left, call.answer, call.t
        if not same(call.memory, given):
            return False
    return True


CASES = [
    *[("tr_cie", "masked"), ("euler", "uniform"), ("tr_cie_exact", "uniform"), ("theta_rk2", "masked")],
    *[("tweedie", "uniform"), ("spaced", "masked"), ("ho_fhs", "masked"), ("klass", "masked")],
    *[("bridge", "uniform"), ("remdm_loop", "masked"), ("gibbs", "uniform"), ("shs", "masked")],
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_evaluation_is_given_what_the_one_before_left(name, kind):
    model, network = model_of(kind)
    result = sampled(model, name)
    assert len(network.calls) == result.nfe == result.info.forwards
    assert chained(network.calls)
    assert network.calls[0].memory is None
    assert all(call.memory is not None for call in network.calls[1:])


def test_two_stages_of_a_step_follow_one_another():
    model, network = model_of()
    sampled(model, "theta_trapezoidal(theta=0.5)")
    times = [call.t for call in network.calls]
    assert times == sorted(times)
    assert len(times) == 5  # two steps of two, and the draw
    for before, after in pairwise(network.calls):
        assert same(after.memory, before.answer)


def test_a_look_back_differs_in_time_alone():
    """tr_cie_exact evaluates the new state at the new and at the old time, both with the same memory."""
    model, network = model_of()
    sampled(model, "tr_cie_exact")
    first, now, back, later = network.calls[:4]
    assert (now.t, back.t, later.t > now.t) == (pytest.approx(now.t), pytest.approx(first.t), True)
    assert torch.equal(now.x, back.x)
    assert same(now.memory, first.answer)
    assert same(back.memory, first.answer)
    assert same(later.memory, now.answer)  # not that of the look back


@pytest.mark.parametrize("spec", ["tr_cie", "theta_rk2", "tr_cie_exact", "bridge"])
def test_each_network_of_guidance_has_its_own_memory(spec):
    model, network = model_of()
    result = sampled(model.guided(2.0).tempered(0.8), spec)
    assert len(network.calls) == 2 * result.nfe == result.info.forwards
    for conditional in (True, False):
        calls = [call for call in network.calls if call.conditional == conditional]
        assert len(calls) == result.nfe
        assert chained(calls)


def test_guidance_by_a_network_without_memory():
    model, network = model_of()
    result = sampled(model.guided(2.0, lambda x, t: torch.zeros(*x.shape, V)), "tr_cie")
    assert len(network.calls) == result.nfe
    assert chained(network.calls)


@pytest.fixture(params=["kept", "evaluated again"])
def parts(request, monkeypatch):
    """Whether the parts of an evaluation fit into the memory that is meant for them."""
    if request.param != "kept":
        monkeypatch.setattr("tauflow.denoise.denoiser.MAX_BYTES", 0)
    return request.param


@pytest.mark.parametrize("spec", ["tr_cie", "theta_trapezoidal", "tr_cie_exact", "tweedie(finish=reuse)"])
def test_each_part_of_a_batch_has_its_own_memory(spec, parts):
    """Also where the network writes over its answers, and where a part is evaluated a second time."""
    model, network = model_of()
    model = model.guided(2.0).tempered(0.8)
    wanted = sampled(model, spec)
    network.calls.clear()
    found = sampled(model, spec, batch_size=3)
    assert torch.equal(wanted.tokens, found.tokens)
    assert wanted.nfe == found.nfe
    assert found.info.forwards == len(network.calls)
    if parts == "kept":
        assert len(network.calls) in range(6 * (found.nfe - 1), 6 * found.nfe + 1)


def test_a_part_that_nobody_reads_is_evaluated_for_its_memory():
    """One token of each sample is free, so most steps read no row of a part; the last draw reads all."""
    model, network = model_of()
    prompt = (torch.zeros(B, D, dtype=torch.long), torch.arange(D).expand(B, D) != 4)
    for seed in range(4):
        request = {"count": B, "condition": LABELS, "prompt": prompt, "seed": seed}
        wanted = tauflow.sample(model, "tr", NFE, **request)
        network.calls.clear()
        found = tauflow.sample(model, "tr", NFE, **request, batch_size=3)
        assert torch.equal(wanted.tokens, found.tokens)
        assert len(network.calls) == 3 * found.nfe == found.info.forwards


def test_a_run_begins_without_memory():
    model, network = model_of()
    first = sampled(model, "tr_cie")
    network.calls.clear()
    assert torch.equal(first.tokens, sampled(model, "tr_cie").tokens)
    assert network.calls[0].memory is None


def test_an_evaluation_that_fails_can_be_made_again():
    class Failing(Recalling):
        fails = False

        def hidden(self, x, t, condition, memory):
            if self.fails:
                self.fails = False
                raise MemoryError
            return super().hidden(x, t, condition, memory)

    network = Failing()
    evaluate = Evaluator(SplitDenoiser(network, V))
    x = torch.randint(V, (B, D), generator=torch.Generator().manual_seed(0))
    for number, fails in enumerate((False, True, False, True)):
        network.fails = fails
        t = torch.full((B,), number / 8)
        if fails:
            with pytest.raises(MemoryError):
                evaluate(Query(x, t, LABELS))
        evaluate(Query(x, t, LABELS))
    assert len(network.calls) == 4
    assert chained(network.calls)


def test_a_callable_remembers_its_logits():
    seen: list[Tensor | None] = []

    def logits(x, t, memory):
        seen.append(memory)
        return torch.full((*x.shape, V + 1), float(len(seen)))

    logits.remembers = True
    result = tauflow.sample(Model(logits, mixture("masked", V), (D,)), "tr_cie", NFE, count=B)
    assert seen[0] is None
    assert len(seen) == result.nfe
    for number, memory in enumerate(seen[1:], start=1):
        assert torch.equal(memory, torch.full((B, D, V), float(number)))


def test_allowed_tokens_and_other_times_hand_the_memory_on():
    model, network = model_of("masked")
    timed = TimedDenoiser(model.denoiser)
    changed = (
        dataclasses.replace(model, denoiser=timed)
        .with_schedule("cubic")
        .with_allowed_tokens(torch.arange(V) < 4)
    )
    assert int(sampled(changed, "tr_cie").tokens.max()) < 4
    assert chained(network.calls)
    assert timed.seconds > 0
