"""batch_size of tauflow.sample: the denoiser sees so many samples at once, and the samples are the same.

The network is made of small integers, so its logits are exact whatever the size of a batch.
"""

import subprocess
import sys

import pytest
import torch
from conftest import ENV
from helpers import mixture
from torch import Tensor

import tauflow
from benchmarks.theory.observers import Events, Positivity
from tauflow import Model
from tauflow.errors import BadLogits, SamplingError
from tauflow.samplers import sampler_from
from tauflow.samplers.leaping import LeapingOptions

V, B, D = 6, 7, 10
NFE = 6
LABELS = torch.arange(B)[:, None] % 3
PROMPT = (torch.arange(B * D).view(B, D) * 5 % V, torch.arange(B * D).view(B, D) % 7 < 2)


class Counted:
    """A split network of token, neighbours, place, time and label; it notes the size of each batch."""

    conditions = (3,)

    def __init__(self) -> None:
        self.batches: list[int] = []

    def hidden(self, x, t, condition):
        self.batches.append(len(x))
        place = torch.arange(x.shape[1])
        context = 3 * x + 7 * x.roll(1, 1) + 13 * x.roll(-1, 1) + 5 * place + condition
        context = context + (8 * t.double()).floor().long()[:, None]
        return ((context[..., None] + 11 * torch.arange(V)) % 17).float() / 4

    def head(self, rows):
        return rows


def model_of(kind: str, split: bool = True) -> tuple[Model, Counted]:
    network = Counted()

    def dense(x, t, condition):
        return network.head(network.hidden(x, t, condition))

    dense.conditions = network.conditions
    model = Model(network if split else dense, mixture(kind, V), (D,), 3 * torch.arange(D) % D)
    return model, network


CASES = [
    *[("tr_cie", "uniform"), ("cie", "masked"), ("tr_cie_exact", "uniform"), ("euler", "marginal")],
    *[("theta_rk2", "masked"), ("theta_trapezoidal", "uniform"), ("tweedie", "uniform"), ("shs", "masked")],
    *[("spaced_sharp", "masked"), ("klass", "masked"), ("bridge", "marginal"), ("gibbs", "uniform")],
    *[("remdm_cap", "masked"), ("psi", "uniform")],
]
"""One sampler per way of reading evaluations."""


@pytest.fixture(params=["kept", "evaluated again"])
def memory(request, monkeypatch):
    """Whether the parts of an evaluation fit into the memory that is meant for them."""
    if request.param != "kept":
        monkeypatch.setattr("tauflow.denoise.denoiser.MAX_BYTES", 0)
    return request.param


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_samples_are_those_of_one_batch(name, kind, memory):
    """Plain, with a prompt, guided and tempered, finished from the last evaluation, and the literal leap."""
    specs = [name]
    if hasattr(sampler_from(name), "finish"):
        specs.append(f"{name}(finish=reuse)")
    if isinstance(sampler_from(name), LeapingOptions):
        specs.append(f"{name}(dense=true)")
    for split, spec in [(split, spec) for split in (True, False) for spec in specs]:
        for size, prompt, guided in ((1, None, False), (3, PROMPT, True), (B - 1, None, True)):
            model, network = model_of(kind, split)
            model = model.guided(2.0).tempered(0.8) if guided else model
            request = {"count": B, "condition": LABELS, "prompt": prompt, "seed": 3}
            wanted = tauflow.sample(model, spec, NFE, **request)
            network.batches.clear()
            found = tauflow.sample(model, spec, NFE, **request, batch_size=size)
            assert torch.equal(wanted.tokens, found.tokens), (spec, size)
            assert (wanted.nfe, wanted.info.steps) == (found.nfe, found.info.steps)
            assert max(network.batches) == size
            assert found.info.forwards == len(network.batches)


def test_how_often_the_network_is_called(memory):
    """Seven samples in parts of three: three calls for each evaluation that is read.

    Where parts are not kept, those of the evaluation before are called again: in each of the five steps but
    the first.
    """
    model, network = model_of("uniform")
    for name, again in (("euler", 0), ("tr", 0), ("tweedie", 0), ("tr_cie", 3 * (NFE - 2))):
        network.batches.clear()
        result = tauflow.sample(model, f"{name}(grid=tau)", NFE, count=B, seed=2, batch_size=3)
        calls = 3 * result.nfe + (again if memory != "kept" else 0)
        assert calls - 3 <= len(network.batches) <= calls, name  # rows of a part may be needed by nobody
        assert result.info.forwards == len(network.batches)


def test_a_batch_of_all_samples_is_no_batch():
    model, network = model_of("masked")
    result = tauflow.sample(model, "tr_cie", NFE, count=B, batch_size=B + 1)
    assert network.batches == [B] * result.nfe


def test_observers_and_progress(memory, capsys):
    """What they see of the steps and of the posterior is that of one batch."""
    seen: dict[int | None, list] = {}
    for size in (None, 2):
        model, _ = model_of("uniform")
        events, positivity = Events(), Positivity(model, "tr_cie", condition=LABELS)
        rows: list[Tensor] = []

        def observer(info, state, events=events, positivity=positivity, rows=rows):
            events(info, state)
            positivity(info, state)
            rows.append(state.posterior.dense())

        tauflow.sample(
            model,
            "tr_cie",
            NFE,
            count=B,
            condition=LABELS,
            observer=observer,
            progress=True,
            batch_size=size,
        )
        seen[size] = [events.records(), positivity.records(), torch.stack(rows).tolist()]
    assert seen[None] == seen[2]
    assert "sampling" in capsys.readouterr().err


def test_places_in_any_order(memory):
    """An evaluation in parts is read as any other: single places, repeated, backwards, none at all."""
    from tauflow.denoise import Evaluator, Query

    model, _ = model_of("masked")
    x, t = torch.randint(V, (B, D), generator=torch.Generator().manual_seed(0)), torch.rand(B)
    plain = model.denoiser.evaluate(x, t, LABELS)
    parts = Evaluator(model.denoiser, 2)(Query(x, t, LABELS))
    backwards = torch.arange(B * D).flip(0)
    for index in (backwards, torch.tensor([69, 0, 0, 33]), torch.tensor([5]), backwards[:0], slice(3, 50)):
        assert torch.equal(plain.probs(index), parts.probs(index))
    assert torch.equal(plain.dense(), parts.dense())


def test_bad_logits_in_a_part_are_named_with_step_and_time():
    def breaks(x, t):
        return torch.zeros(*x.shape, V) + (torch.nan if t[0] > 0.4 else 0)

    with pytest.raises(BadLogits, match=r"NaN.*step 3, t = 0\.5000"):
        tauflow.sample(Model(breaks, mixture("masked", V), (D,)), "tweedie", 6, count=5, batch_size=2)


def test_a_batch_size_that_is_none():
    for size in (0, 1.5):
        with pytest.raises(SamplingError, match="batch_size must be a whole number of at least 1"):
            tauflow.sample(model_of("masked")[0], nfe=2, batch_size=size)


MEASURE = """
import resource, sys
import torch, tauflow
import tauflow.denoise.denoiser

tauflow.denoise.denoiser.MAX_BYTES = 2**25

def logits(x, t):
    return torch.zeros(*x.shape, 4096)

model = tauflow.Model(logits, tauflow.Mixture(tauflow.Masked(4096), "linear"), (64,))
tauflow.sample(model, "tr_cie", 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tauflow.sample(model, "tr_cie", 3, count=256, batch_size=int(sys.argv[1]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_is_that_of_a_part():
    """All logits would take 256 MiB, and a method that looks back holds them twice.

    A part of 16 takes 16 MiB; there are at most three at once (an answer, its copy, that of the evaluation
    before), and a work space of chunks of rows, 4 MiB each.
    """
    command = [sys.executable, "-c", MEASURE, "16"]
    found = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=240, check=True)
    assert float(found.stdout) < 160
