"""A denoiser cannot spoil the samples: not one that answers in the same memory every time (CUDA graphs,
torch.compile(mode="reduce-overhead")), nor one that writes into what it is given, nor one of another process.

Every sampler is run with a clean network and with a faulty one of the same weights; the samples are equal.
"""

import itertools
import math

import pytest
import torch
from helpers import Small, mixture
from torch import Tensor

import tauflow
from benchmarks.theory.local_error import LocalErrors
from benchmarks.theory.observers import Positivity, Proxies
from tauflow import Model
from tauflow.denoise import CallableDenoiser, SplitDenoiser
from tauflow.errors import BadLogits, SamplingError
from tauflow.samplers import SAMPLERS, Sampler, State, StepInfo, sampler_from
from tauflow.samplers.grids import Grid, make_grid
from tauflow.samplers.random import sample_categorical
from tauflow.samplers.registry import PRESETS

V, B, D = 5, 3, 12
NFE = 7
FAULTS = ("reuses", "writes")


class Labelled(Small):
    """A split network that takes a label."""

    conditions = (3,)

    def hidden(self, x, t, condition):
        return super().hidden(x, t + 0.3 * condition[:, 0])


class Faulty(Labelled):
    """The same, which answers in the memory of its last answer, or writes into its inputs."""

    def __init__(self, num_states: int, num_tokens: int, fault: str):
        super().__init__(num_states, num_tokens)
        self.fault = fault
        self.memory: dict[str, Tensor] = {}

    def answer(self, name: str, result: Tensor, *inputs: Tensor) -> Tensor:
        if self.fault == "writes":
            for each in inputs:
                each.fill_(1)
            return result
        memory = self.memory.setdefault(name, torch.empty(10**5))[: result.numel()].view_as(result)
        return memory.copy_(result)

    def hidden(self, x, t, condition):
        return self.answer("hidden", super().hidden(x, t, condition), x, t, condition)

    def head(self, rows):
        return self.answer("head", super().head(rows), rows)


class Dense:
    """A split network as a callable that gives all logits."""

    def __init__(self, network: Labelled):
        self.network = network
        self.conditions = network.conditions

    def __call__(self, x, t, condition):
        return self.network.head(self.network.hidden(x, t, condition))


def models(kind: str, fault: str, split: bool) -> tuple[Model, Model]:
    """A clean model and one with a fault."""
    process = mixture(kind, V)
    sizes = process.num_states, V
    networks = [Labelled(*sizes), Faulty(*sizes, fault)]
    order = 5 * torch.arange(D) % D
    clean, faulty = (Model(each if split else Dense(each), process, (D,), order) for each in networks)
    return clean, faulty


def supported(name: str, kind: str) -> bool:
    return not sampler_from(name).unsupported_reason(models(kind, "reuses", True)[0])


CASES = [
    (name, kind) for name in [*SAMPLERS, *PRESETS] for kind in ("masked", "uniform") if supported(name, kind)
]
READING = [
    *[("tr_cie", "uniform"), ("cie", "masked"), ("tr_cie_exact", "uniform"), ("euler", "marginal")],
    *[("theta_rk2", "masked"), ("theta_trapezoidal", "uniform"), ("tweedie", "uniform"), ("shs", "masked")],
    *[("fhs_pairs", "masked"), ("ho_fhs", "masked"), ("spaced_sharp", "masked"), ("klass", "masked")],
    *[("confidence", "masked"), ("bridge", "marginal"), ("renoise", "uniform"), ("gibbs", "uniform")],
    *[("remdm_cap", "masked"), ("psi", "uniform")],
]
"""One sampler per way of reading evaluations."""
LABELS = torch.arange(B)[:, None] % 3
PROMPT = (torch.arange(B * D).view(B, D) % V, torch.arange(B * D).view(B, D) % 4 == 0)


@pytest.mark.parametrize(("name", "kind"), READING)
def test_samples_are_those_of_a_clean_denoiser(name, kind):
    """Plain; then with a prompt, guided, tempered, in batches; also with options that read more."""
    labels = LABELS.clone()
    prompt = tuple(each.clone() for each in PROMPT)
    fields = sampler_from(name).__dataclass_fields__
    reading = {"finish": "reuse", "dense": "true", "weight": "0.3"}
    if name == "ho_fhs":
        del reading["weight"]  # it has weights of its own
    specs = [name, *(f"{name}({key}={value})" for key, value in reading.items() if key in fields)]
    for spec, fault, split in itertools.product(specs, FAULTS, (True, False)):
        pair = models(kind, fault, split)
        changed = tuple(model.guided(2.0).tempered(0.8) for model in pair)
        for both, request in ((pair, {}), (changed, {"prompt": prompt, "batch_size": 2})):
            wanted, found = (
                tauflow.sample(model, spec, NFE, count=B, condition=labels, seed=1, **request)
                for model in both
            )
            assert torch.equal(wanted.tokens, found.tokens), (spec, fault, split)
            assert wanted.info.steps == found.info.steps
            assert torch.equal(labels, LABELS)
            assert all(torch.equal(*pair) for pair in zip(prompt, PROMPT, strict=True))


@pytest.mark.parametrize("split", [True, False], ids=["split", "callable"])
@pytest.mark.parametrize(
    ("name", "kind"), [("tr_cie", "masked"), ("theta_rk2", "uniform"), ("fhs", "masked")]
)
def test_an_observer_that_evaluates_disturbs_nothing(name, kind, split):
    """Its own call of the network overwrites the answer that the sampler may still need."""
    clean, faulty = models(kind, "reuses", split)
    spec = f"{name}(finish=reuse)" if hasattr(sampler_from(name), "finish") else name
    seen: list[Tensor] = []

    def observer(info, state):
        faulty.denoiser.evaluate(torch.zeros(B, D, dtype=torch.long), torch.zeros(B), LABELS)
        seen.append(state.posterior.dense())

    wanted = tauflow.sample(clean, spec, NFE, count=B, condition=LABELS)
    rows: list[Tensor] = []
    tauflow.sample(
        clean,
        spec,
        NFE,
        count=B,
        condition=LABELS,
        observer=lambda _, state: rows.append(state.posterior.dense()),
    )
    found = tauflow.sample(faulty, spec, NFE, count=B, condition=LABELS, observer=observer)
    assert torch.equal(wanted.tokens, found.tokens)
    assert len(rows) == len(seen) > 0
    assert all(torch.equal(*pair) for pair in zip(rows, seen, strict=True))


@pytest.mark.parametrize(("fault", "split"), [("reuses", True), ("writes", False)])
def test_diagnostics_are_those_of_a_clean_denoiser(fault, split):
    def records(model: Model) -> list:
        found = [
            Proxies(model, condition=LABELS),
            Positivity(model, "tr_cie", condition=LABELS),
            LocalErrors(model, "tr_cie", nodes=3, condition=LABELS),
        ]
        for each in found:
            tauflow.sample(model, "tr_cie", 6, count=B, condition=LABELS, observer=each)
        return [{k: round(v, 12) for k, v in row.items()} for each in found for row in each.records()]

    clean, faulty = models("uniform", fault, split)
    assert records(clean) == records(faulty)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_learned_order_is_that_of_a_clean_denoiser(fault):
    clean, faulty = models("masked", fault, True)
    assert torch.equal(tauflow.learn_order(clean, contexts=3), tauflow.learn_order(faulty, contexts=3))


def test_all_rows_again_after_a_head_that_writes():
    clean, faulty = models("masked", "writes", True)
    x, t = torch.zeros(B, D, dtype=torch.long), torch.zeros(B)
    evaluation = faulty.denoiser.evaluate(x, t, LABELS)
    first, again = evaluation.dense(), evaluation.dense()
    assert torch.equal(first, again)
    assert torch.equal(first, clean.denoiser.evaluate(x, t, LABELS).dense())
    places = torch.tensor([1, 4, 20])
    few = faulty.denoiser.evaluate(x, t, LABELS).clone(places)
    assert torch.equal(few.probs(places), first.flatten(0, 1)[places])
    assert torch.equal(few.probs(places), first.flatten(0, 1)[places])


@pytest.mark.parametrize("split", [True, False], ids=["split", "callable"])
def test_a_column_of_a_mask_is_refused_where_there_is_no_mask(split):
    """V + 1 logits without a mask would lose their last token silently; so would those of a guide."""
    process = mixture("uniform", V)
    wide, right = Labelled(V, V + 1), Labelled(V, V)
    message = f"returned {V + 1} logits for a coordinate, the process has {V} data tokens and no mask"
    given = [wide if split else Dense(wide)]
    given.append(SplitDenoiser(wide, V) if split else CallableDenoiser(Dense(wide), V))
    for denoiser in given:
        with pytest.raises(BadLogits, match=message):
            tauflow.sample(Model(denoiser, process, (D,)), "tr_cie", 4)
    with pytest.raises(BadLogits, match=message):
        tauflow.sample(Model(right, process, (D,)).guided(2.0, wide if split else Dense(wide)), "tr_cie", 4)


@pytest.mark.parametrize("width", [V - 1, V + 2])
def test_other_numbers_of_logits_are_refused_with_a_mask(width):
    with pytest.raises(BadLogits, match=r"the process has 5 data tokens \(or one more: the mask\)"):
        tauflow.sample(Model(Labelled(V + 1, width), mixture("masked", V), (D,)), "tr_cie", 4)


DATA = torch.zeros(2, D, dtype=torch.long)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DATA + V, "data holds tokens outside 0 .. 4"),
        (DATA.float(), "data must hold integer tokens, got torch.float32"),
        (DATA[:0], r"shape \(C, 12\) with C at least 1, got \(0, 12\)"),
        (DATA.tolist(), r"data must be a tensor of the shape \(C, 12\).*got list"),
    ],
)
def test_data_that_no_order_can_be_learned_from(data, message):
    model = Model(Labelled(V + 1, V), mixture("masked", V), (D,))
    with pytest.raises(SamplingError, match=message):
        tauflow.learn_order(model, data=data)


def test_an_evaluation_knows_its_size():
    """Guidance holds two answers."""
    model = Model(Labelled(V, V), mixture("uniform", V), (D,)).guided(2.0).tempered(0.5)
    evaluation = model.denoiser.evaluate(torch.zeros(B, D, dtype=torch.long), torch.zeros(B), LABELS)
    assert evaluation.nbytes == 2 * 4 * math.prod((B, D, 16))


def test_only_the_rows_that_are_read_again_are_copied(monkeypatch):
    """All of them only by methods that evaluate twice in a step; most methods copy nothing."""
    copied: list[str] = []

    def clone(self, index=None):
        copied.append("all" if index is None else "some")
        return self

    monkeypatch.setattr("tauflow.denoise.posterior.AnswerPosterior.clone", clone)
    found: dict[str, set[str]] = {}
    for name, kind in CASES:
        process = mixture(kind, V)
        model = Model(Dense(Labelled(process.num_states, V)), process, (D,), torch.arange(D))
        copied.clear()
        tauflow.sample(model, name, NFE)
        found.setdefault(" and ".join(sorted(set(copied))), set()).add(name)
    twice = {"tr_cie_exact", "theta_rk2", "theta_trapezoidal"}
    back = {"cie", "tr_cie", "tr_cie_paper", "ho_fhs", "fhs_pairs", "spaced_sharp"}
    back |= {"bridge", "bridge_systematic", "renoise", "klass"}
    assert found == {"all": twice, "some": back, "": {name for name, _ in CASES} - twice - back}


def test_rows_that_were_not_cloned_cannot_be_read():
    model = Model(Dense(Labelled(V, V)), mixture("uniform", V), (D,))
    x = torch.arange(B * D).view(B, D) % V
    evaluation, whole = (model.denoiser.evaluate(x, torch.zeros(B), LABELS) for _ in range(2))
    places = torch.tensor([2, 5, 30])
    evaluation = evaluation.clone(places)
    for index in (places, places[1:], places[:0], places.flip(0)):
        assert torch.equal(evaluation.probs(index), whole.probs(index))
    for index in (torch.tensor([3]), torch.tensor([2, 35]), slice(None)):
        with pytest.raises(IndexError, match="only the cloned rows can be read"):
            evaluation.probs(index)


class Own(Sampler[Grid, State]):
    """A sampler of one's own that looks back and keeps nothing."""

    def plan(self, process, free, nfe):
        return make_grid("t", nfe - 1, process, 1e-3, draws=True)

    def init(self, problem, x_0, plan, generator):
        return State(x_0)

    def step(self, problem, state, plan, n, generator):
        posterior = problem.evaluate(state.x, plan.t[n])
        rows = (state.posterior or posterior).dense().flatten(0, 1)
        x = sample_categorical(rows, generator).view_as(state.x)
        return State(x, posterior), StepInfo(n, plan.t[n].item(), plan.t[n + 1].item(), 1.0)

    def __str__(self):
        return "own"


@pytest.mark.parametrize("split", [True, False], ids=["split", "callable"])
def test_a_sampler_of_ones_own_may_look_back(split):
    clean, faulty = models("uniform", "reuses", split)
    wanted, found = (tauflow.sample(each, Own(), 5, count=B, condition=LABELS) for each in (clean, faulty))
    assert torch.equal(wanted.tokens, found.tokens)


def test_a_head_is_given_more_than_a_few_rows():
    """Most of the time of a head is spent on its weights, which it reads once for all rows of a call."""
    sizes = []
    large = 2**16 + 1

    class Wide:
        def hidden(self, x, t):
            return x[..., None].float()

        def head(self, rows):
            sizes.append(len(rows))
            return torch.zeros(len(rows), large)

    model = tauflow.Model(Wide(), tauflow.Mixture(tauflow.Uniform(large), "linear"), (40,))
    tauflow.sample(model, "tr_cie", 2, count=1)
    assert max(sizes) == 16
    assert sizes[-1] == 40 % 16  # the last step reads all 40 rows
