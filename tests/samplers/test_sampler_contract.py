"""What every sampler of the registry keeps: shape, range, NFE, determinism, prompts, RNG hygiene, dtypes.

Also how bad requests are refused, and faults that were once found.
"""

import dataclasses
import itertools
import math
import weakref

import numpy as np
import pytest
import torch
from helpers import Rows, Small, draw, equal_counts, metric, mixtures, near
from torch import nn

import tauflow
from tauflow import Marginal, Masked, Mixture, Model, Uniform
from tauflow.denoise import CallableDenoiser, SplitDenoiser
from tauflow.errors import BadLogits, SamplingError
from tauflow.numerics import precise
from tauflow.samplers import SAMPLERS, sampler_from
from tauflow.samplers.leaping import Leaping, LeapingOptions
from tauflow.samplers.remask import Remask
from tauflow.samplers.reveal import Reveal
from tauflow.samplers.sampler import State, StepInfo

V, B, D = 5, 3, 12
ORDER = (7 * torch.arange(D)) % D


def network(process) -> Small:
    return Small(process.num_states, V)


def supported(name, process) -> bool:
    model = Model(network(process), process, (D,), ORDER, counts=equal_counts(D), influence=near(D))
    return not sampler_from(name).unsupported_reason(model)


PROCESSES = {process.name: process for process in (*mixtures(V), metric(V))}
REPRESENTATIVES = {
    **{"euler": "uniform", "cie": "marginal", "tr_cie": "masked", "tr_cie_exact": "metric"},
    **{
        "theta_rk2": "masked",
        "theta_trapezoidal": "uniform",
        "tweedie": "metric",
        "tweedie_d3pm": "marginal",
    },
    **{"fudoki": "metric", "shs": "masked", "bridge": "marginal", "renoise": "uniform", "gibbs": "uniform"},
    **dict.fromkeys(("fhs", "ho_fhs", "spaced_sharp", "entropy_budget", "best_learned"), "masked"),
    **dict.fromkeys(("independent", "confidence", "klass", "remdm_cap", "remdm_loop"), "masked"),
    **{"psi": "marginal", "remask_spaced": "masked"},
}
"""One sampler per way through the code, with one of the sources it supports."""
CASES = [(name, PROCESSES[source]) for name, source in REPRESENTATIVES.items()]


def sample(denoiser, process, name, nfe, **options):
    """B samples of the length D, with an order of the coordinates and counts for samplers that need them."""
    return draw(denoiser, process, (B, D), name, nfe, order=ORDER, **options)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].name}")
def case(request):
    return request.param


class Recorder:
    """A callable denoiser that remembers what it was called with."""

    def __init__(self, process, dtype=torch.float32):
        self.network = network(process)
        self.dtype = dtype
        self.calls = []

    def __call__(self, x, t):
        self.calls.append((x.clone(), t.clone()))
        return self.network(x, t).to(self.dtype)


@pytest.mark.parametrize("name", SAMPLERS)
def test_shape_range_and_honest_nfe(name):
    """The sources take turns, so that every sampler meets all that it supports."""
    processes = [process for process in PROCESSES.values() if supported(name, process)]
    for number, nfe in enumerate((1, 2, 7, 16)):
        check_shape_range_and_nfe(name, processes[number % len(processes)], nfe)


def check_shape_range_and_nfe(name, process, nfe):
    recorder = Recorder(process)
    result = sample(recorder, dataclasses.replace(process, schedule="quadratic"), name, nfe)
    assert result.tokens.shape == (B, D)
    assert result.tokens.dtype == torch.int64
    assert result.tokens.min() >= 0
    assert result.tokens.max() < V, "a mask was left"
    assert result.nfe == len(recorder.calls) == result.info.forwards
    pairs = 2 * ((nfe - 1) // 2) + 1
    two_stage = {"theta_rk2": pairs, "theta_trapezoidal": pairs, "tr_cie_exact": max(1, nfe // 2 * 2)}
    one_each = min(nfe, D)  # one token an evaluation is exact already
    expected = one_each if isinstance(sampler_from(name), Reveal) else two_stage.get(name, nfe)
    ended_early = process.absorbing and result.info.leftover_masks == 0  # nothing left to evaluate for
    assert result.nfe == expected or (ended_early and result.nfe < expected)
    for x, t in recorder.calls:
        assert x.shape == (B, D)
        assert x.dtype == torch.int64
        assert t.shape == (B,)
        assert (t >= 0).all()
        assert (t < 1).all()
    times = torch.stack([t.mean() for _, t in recorder.calls])
    assert (times[0] > 0) == (name == "ho_fhs"), "whose evaluations belong to a hitting time"
    stands = name.startswith("gibbs") or name == "remdm_loop"  # evaluations again at the same time
    if name != "tr_cie_exact":  # which looks back in time
        assert (times.diff() >= 0).all() if stands else (times.diff() > 0).all()


def test_the_times_of_the_default_grid():
    """Evaluations stand at n / N: the network is never told tau, and the last one draws."""
    recorder = Recorder(Masked(V))
    draw(recorder, Mixture(Masked(V), "cubic"), (B, D), "tr_cie", 8)
    torch.testing.assert_close(torch.stack([t[0] for _, t in recorder.calls]), torch.arange(8) / 8)
    recorder = Recorder(Uniform(V))
    draw(recorder, Uniform(V), (B, D), "tr", 4, grid="tau", finish="none", cutoff=1e-2)
    expected = 1 - 1e-2 ** (torch.arange(4, dtype=torch.float64) / 4)
    times = torch.stack([t[0] for _, t in recorder.calls]).double()
    torch.testing.assert_close(times, expected, atol=1e-6, rtol=1e-5)


def test_a_tau_grid_without_cutoff_ends_where_the_t_grid_does():
    recorder = Recorder(Uniform(V))
    draw(recorder, Mixture(Uniform(V), "quadratic"), (B, D), "tr", 8, grid="tau", cutoff=None)
    times = torch.stack([t[0] for _, t in recorder.calls]).double()
    steps = -torch.log(1 - times**2)  # tau
    torch.testing.assert_close(steps, steps[-1] * torch.arange(8) / 7, atol=1e-5, rtol=1e-4)
    assert times[-1].item() == pytest.approx(7 / 8)
    with pytest.raises(SamplingError, match="cutoff=none ends where the t grid draws"):
        sampler_from("tr(grid=tau, cutoff=none, finish=reuse)")


def test_seeds_and_global_rng(case):
    name, process = case
    torch.manual_seed(7)
    before = torch.get_rng_state()
    model = network(process)
    torch.set_rng_state(before)
    first = sample(model, process, name, 9, seed=1).tokens
    torch.randn(5)
    torch.set_rng_state(before)
    second = sample(model, process, name, 9, seed=1).tokens
    assert torch.equal(torch.get_rng_state(), before), "the global generator was moved"
    assert torch.equal(first, second)
    assert not torch.equal(first, sample(model, process, name, 9, seed=2).tokens)
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(first, sample(model, process, name, 9, seed=generator).tokens)


def test_threads_do_not_matter():
    threads = torch.get_num_threads()
    for name, source in (("tr_cie", "masked"), ("spaced_sharp", "masked"), ("renoise", "uniform")):
        process = PROCESSES[source]
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(sample(network(process), process, name, 6).tokens)
        torch.set_num_threads(threads)
        assert torch.equal(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_of_logits(dtype):
    for name, source in (("tr_cie", "masked"), ("tweedie", "metric"), ("bridge", "uniform")):
        tokens = sample(Recorder(PROCESSES[source], dtype), PROCESSES[source], name, 5).tokens
        assert tokens.dtype == torch.int64
        assert tokens.max() < V


def test_split_network_and_callable_agree(case):
    """Lazy rows of a split network, all logits, a Denoiser, V + 1 columns with the mask last: the same."""
    name, process = case
    model = network(process)

    def with_mask_column(x, t):
        return torch.cat([model(x, t), torch.full((*x.shape, 1), 50.0)], dim=-1)

    denoisers = [model, lambda x, t: model(x, t), SplitDenoiser(model, V), CallableDenoiser(model, V)]
    if process.absorbing:
        denoisers += [with_mask_column, CallableDenoiser(with_mask_column, V, masked=True)]
    tokens = [sample(denoiser, process, name, 9).tokens for denoiser in denoisers]
    assert all(torch.equal(tokens[0], other) for other in tokens[1:])


def test_prompts_hold_in_every_stage(case):
    name, process = case
    generator = torch.Generator().manual_seed(0)
    prompt, mask = torch.randint(V, (B, D), generator=generator), torch.rand(B, D, generator=generator) < 0.4
    leaps = isinstance(sampler_from(name), LeapingOptions)
    for options in ({}, {"dense": True})[: 1 + leaps]:
        recorder = Recorder(process)
        result = sample(recorder, process, name, 6, prompt=(prompt, mask), **options)
        for x in [result.tokens, *(x for x, _ in recorder.calls)]:
            assert torch.equal(x[mask], prompt[mask])
        assert result.nfe <= 6
        assert result.tokens.max() < V
    recorder = Recorder(process)
    result = sample(recorder, process, name, 6, prompt=(prompt, torch.ones(B, D, dtype=torch.bool)))
    assert torch.equal(result.tokens, prompt)
    assert result.nfe == len(recorder.calls) == 0, "nothing to do"


CARRYING = [
    name
    for name, process in CASES
    if process.absorbing and not isinstance(sampler_from(name), Remask)  # which takes tokens back
]


@pytest.mark.parametrize("name", CARRYING)
def test_carry_over(name):
    """With masks, a revealed coordinate never moves again."""
    recorder = Recorder(Masked(V))
    result = sample(recorder, Masked(V), name, 12)
    states = [x for x, _ in recorder.calls] + [result.tokens]
    if name == "theta_rk2":  # its second evaluation is at a trial state, from which it goes back
        states = [*states[0::2], result.tokens]
    for x, after in itertools.pairwise(states):
        assert torch.equal(after[x != V], x[x != V])


def test_info_says_what_happened(case):
    name, process = case
    seen = []

    def observer(info, state):
        seen.append((info, state.x.clone()))

    result = draw(network(process), process, (64, D), name, 8, order=ORDER, observer=observer)
    infos = result.info.steps
    assert [info for info, _ in seen] == infos
    assert [info.n for info in infos] == list(range(len(infos)))
    shares = ("moved", "clamped", "several", "masks", "discarded")
    assert all(0 <= getattr(info, share) <= 1 for info in infos for share in shares)
    assert sum(info.moved for info in infos) > 0
    if process.absorbing:
        assert [info.masks for info in infos] == [(x == V).double().mean().item() for _, x in seen]
        assert result.info.leftover_masks == infos[-1].masks
    assert result.info.settings == {"sampler": name, "process": str(process), "nfe": 8, "seed": 0}


def test_progress_bar(capfd):
    draw(network(Masked(V)), Masked(V), (B, D), nfe=5, progress=True)
    assert "4/4" in capfd.readouterr().err


def test_the_head_runs_on_few_rows_and_nothing_dense_is_kept():
    """tr_cie at 64 evaluations: a masked coordinate is read about once to be drawn, with its history twice,
    plus thinning and the draw."""
    model = Rows(V)
    result = draw(model, Masked(V), (8, 256), "tr_cie", 64)
    assert result.nfe == 64
    assert model.rows < 3.5 * 8 * 256 < 64 * 8 * 256 / 15
    assert model.largest < 8 * 256 / 8, "no pass over all rows"


def test_one_logits_tensor_between_steps_with_a_callable():
    alive, peak = weakref.WeakSet(), []

    def model(x, t):
        peak.append(len(alive))
        logits = torch.randn(*x.shape, V, generator=torch.Generator().manual_seed(0))
        alive.add(logits)
        return logits

    draw(model, Uniform(V), (B, D), "tr_cie", 12)
    assert max(peak) <= 1


def test_float32_where_float64_is_missing(case, monkeypatch):
    name, process = case
    assert precise(torch.device("mps")) == torch.float32
    samplers = [f"samplers.{module}" for module in ("leaping", "random", "tweedie", "bridge")]
    processes = [f"process.{module}" for module in ("sources", "process", "metric")]
    for module in (*samplers, *processes):
        monkeypatch.setattr(f"tauflow.{module}.precise", lambda device: torch.float32)
    assert sample(network(process), process, name, 5).tokens.max() < V


KNOWN = torch.ones(B, D, dtype=torch.bool)
ZEROS = torch.zeros(B, D, dtype=torch.long)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "tr-cy"}, r"unknown sampler 'tr-cy'; .*did you mean tr_cie\?"),
        ({"sampler": 3}, "a spec such as .* or a Sampler, got 3"),
        ({"nfe": 0}, "nfe must be a whole number of at least 1"),
        ({"nfe": 2.5}, "nfe must be a whole number"),
        ({"nfe": 10**9}, "nfe must be at most 1000000 for a sampler on a time grid, got 1000000000"),
        ({"sampler": "tr_cie(eps_0=1e20, dense=true)"}, "intensity is not finite or far too large"),
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"sampler": "theta_trapezoidal(theta=1)"}, r"theta must be in \(0, 1\) for theta_trapezoidal"),
        ({"sampler": "theta_rk2(theta=0)"}, "theta must be above 0 and at most 1"),
        ({"sampler": "tr_cie(cutoff=1)"}, "cutoff must be above 0 and below 1, got 1.0"),
        ({"sampler": "tr_cie(finish=stop)"}, "finish must be one of draw, reuse, none"),
        ({"sampler": "tr_cie(eps_0=-1)"}, "eps_0 must be at least 0"),
        ({"sampler": "theta_rk2(finish=none)", "nfe": 1}, "not enough for one step without a finishing draw"),
        ({"prompt": ZEROS}, "prompt must be a pair of tensors"),
        (
            {"prompt": (ZEROS[:, :4], KNOWN)},
            r"tokens .* must have the shape \(3, 12\) .* or \(12,\), got \(3, 4\)",
        ),
        ({"prompt": (ZEROS, KNOWN[:2])}, r"known .* must have the shape \(3, 12\) .*, got \(2, 12\)"),
        ({"prompt": (ZEROS + V, KNOWN)}, "tokens outside 0 .. 4; say false where a coordinate is not known"),
        ({"prompt": (ZEROS.float(), KNOWN)}, "prompt must hold integer tokens"),
        ({"prompt": (ZEROS, KNOWN.float())}, "known part of a prompt must be boolean"),
        ({"prompt": ([1], [True])}, "tokens of a prompt must be a tensor, got list"),
        ({"seed": "x"}, r"seed must be a whole number from 0 to 2\*\*32 - 1, got 'x'"),
        ({"seed": 2**32}, "seed must be a whole number"),  # would have the samples of seed 0
        ({"condition": torch.zeros(B, 1).long()}, "this network takes no condition; drop the condition"),
    ],
)
def test_bad_requests_get_a_sentence(options, message):
    model = Model(network(Masked(V)), Mixture(Masked(V), "linear"), (D,))
    with pytest.raises(SamplingError, match=message):
        tauflow.sample(model, **({"sampler": "tr_cie", "nfe": 4, "count": B} | options))


def test_a_bridge_has_a_largest_budget():
    model = Model(Small(V, V), Mixture(Uniform(V), "linear"), (D,))
    with pytest.raises(SamplingError, match="nfe must be at most 1000000 for a sampler on a time grid"):
        tauflow.sample(model, "bridge", nfe=10**18)


def test_a_reveal_takes_no_more_evaluations_than_coordinates():
    model = Model(network(Masked(V)), Mixture(Masked(V), "linear"), (D,))
    assert tauflow.sample(model, "fhs", nfe=10**18).nfe == D


def test_a_model_is_needed():
    with pytest.raises(SamplingError, match=r"model must be a tauflow\.Model, got Small"):
        tauflow.sample(network(Masked(V)), nfe=4)


def test_sources_that_are_not_supported():
    for source in (Uniform(V), Marginal([0.1, 0.2, 0.3, 0.2, 0.2])):
        kind = type(source).__name__.lower()
        message = f"need a masked source, this model has a {kind} one; try renoise or tr_cie"
        with pytest.raises(SamplingError, match=message):
            draw(network(source), source, (B, D), "fhs")
    for name in ("tweedie_d3pm", "bridge", "bridge_systematic"):
        message = "needs a uniform or marginal source, this model has a masked one; try tr_cie"
        with pytest.raises(SamplingError, match=message):
            draw(network(Masked(V)), Masked(V), (B, D), name)
        with pytest.raises(SamplingError, match="this model has a metric one; try tr_cie"):
            draw(network(metric(V)), metric(V), (B, D), name)
    with pytest.raises(SamplingError, match="need a masked source, this model has a metric one; try tr_cie"):
        draw(network(metric(V)), metric(V), (B, D), "fhs")


@pytest.mark.parametrize("split", [True, False])
def test_bad_logits_are_named_with_step_and_time(split):
    good = network(Masked(V))

    class Breaks(nn.Module):
        def hidden(self, x, t):
            return good.hidden(x, t) * (float("nan") if t[0] > 0.4 else 1.0)

        head = staticmethod(good.head)

    model = Breaks() if split else lambda x, t: Breaks().head(Breaks().hidden(x, t))
    with pytest.raises(BadLogits, match=r"NaN.*step 5, t = 0\.5000"):
        draw(model, Masked(V), (B, D), "tweedie", 10)
    with pytest.raises(BadLogits, match="only -inf"):
        draw(lambda x, t: torch.full((*x.shape, V), -torch.inf), Masked(V), (B, D), nfe=2)
    with pytest.raises(BadLogits, match="returned 9 logits for a coordinate, the process has 5"):
        draw(lambda x, t: torch.zeros(*x.shape, 9), Masked(V), (B, D), nfe=2)
    with pytest.raises(BadLogits, match=r"must return logits of shape \(3, 12, 5\), got \(3, 5\)"):
        draw(lambda x, t: torch.zeros(3, 5), Masked(V), (B, D), nfe=2)
    with pytest.raises(BadLogits, match=r"torch\.int64 for logits; return floating-point numbers"):
        draw(lambda x, t: torch.zeros(*x.shape, V, dtype=torch.long), Masked(V), (B, D), nfe=2)
    with pytest.raises(TypeError, match="a denoiser is"):
        draw(3, Masked(V), (B, D))


def test_names_with_hyphens_and_instances():
    model = network(Masked(V))
    tokens = [
        draw(model, Masked(V), (B, D), sampler, 6).tokens
        for sampler in ("tr_cie", "tr-cie", "TR-CIE", SAMPLERS["tr_cie"]())
    ]
    assert all(torch.equal(tokens[0], other) for other in tokens)


def test_adapter_for_models_that_return_probabilities():
    """The interface of flow_matching's ModelWrapper: called by keyword, returns probabilities."""
    model = network(Masked(V))

    class Wrapper:
        def __call__(self, *, x, t, **extras):
            return model(x, t).softmax(-1)

    direct = draw(model, Masked(V), (B, D), nfe=6).tokens
    assert torch.equal(direct, draw(tauflow.from_probabilities(Wrapper()), Masked(V), (B, D), nfe=6).tokens)


def test_adapter_for_masked_language_models():
    """A tiny BERT: data tokens are its ids 5 .. 14, its special tokens are never drawn, its mask is 3."""
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 15, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    config = transformers.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    model = transformers.BertForMaskedLM(config).eval()
    ids = torch.arange(5, 15)
    denoiser = tauflow.from_masked_lm(model, ids, mask_token_id=3)
    x = torch.tensor([[10, 0, 9]])  # mask, first data token, last data token
    expected = model(input_ids=torch.tensor([[3, 5, 14]])).logits[..., 5:]
    torch.testing.assert_close(denoiser(x, torch.zeros(1)), expected)
    result = draw(denoiser, Masked(10), (B, D), "tr_cie", 6)
    assert result.tokens.max() < 10


@pytest.mark.parametrize("name", ["euler", "theta_trapezoidal"])
def test_an_infinite_rate_at_the_start_is_refused(name):
    with pytest.raises(SamplingError, match="infinite rate at t = 0"):
        draw(network(Masked(V)), Mixture(Masked(V), tauflow.Polynomial(0.5)), (B, D), name, 6)


@pytest.mark.parametrize("name", ["tr_cie", "tweedie", "spaced"])
def test_samplers_that_integrate_the_rate_take_any_schedule(name):
    """kappa = t^0.5, uniform posterior: 4000 tokens, a share of 1/5 has a standard error of 0.0063; 0.035 is
    five of them."""
    process = Mixture(Masked(V), tauflow.Polynomial(0.5))
    tokens = draw(lambda x, t: torch.zeros(*x.shape, V), process, (1000, 4), name, 6).tokens
    shares = torch.bincount(tokens.flatten(), minlength=V) / tokens.numel()
    torch.testing.assert_close(shares, torch.full((V,), 1 / V), atol=0.035, rtol=0)


@pytest.mark.parametrize("name", ["tr_cie", "tweedie", "theta_trapezoidal", "fudoki"])
def test_leftover_masks_are_drawn_from_rows_of_masks(name):
    """The last token is only predicted for coordinates that are revealed: nobody may draw from those rows."""

    def junk(x, t):
        logits = torch.zeros(*x.shape, V)
        logits[..., -1] = -50.0
        logits[x != V] = torch.tensor([-50.0] * (V - 1) + [0.0])
        return logits

    tokens = draw(junk, Masked(V), (200, D), name, 6, finish="reuse").tokens
    assert (tokens != V - 1).all()


def test_a_denoiser_of_another_vocabulary_is_refused():
    with pytest.raises(
        SamplingError, match="made for 5 data tokens, the process has 10; give the process of its training"
    ):
        draw(SplitDenoiser(network(Masked(V)), V), Masked(10), (B, D), nfe=2)


def test_numpy_integers_are_budgets():
    assert draw(network(Masked(V)), Masked(V), (B, D), nfe=np.int64(3)).nfe <= 3


def test_bad_logits_name_their_own_time():
    """fhs has no grid, a second stage is not at the start of its step: the time is that of the evaluation."""
    for name in ("fhs", "theta_rk2"):
        times = []

        def model(x, t, times=times):
            times.append(t.mean().item())
            return torch.full((*x.shape, V), torch.nan if len(times) == 4 else 0.0)

        with pytest.raises(SamplingError) as error:
            draw(model, Masked(V), (B, D), name, 8)
        assert f"t = {times[3]:.4f}" in str(error.value)


def test_samplers_with_wrong_names_of_options_are_refused():
    for options in ({"jump": "poisson"}, {"rule": "foo"}, {"grid": "log"}, {"finish": "never"}):
        with pytest.raises(SamplingError, match="must be one of"):
            SAMPLERS["tr_cie"](**options) if "rule" not in options else Leaping(**options)


def test_the_ceiling_bounds_every_channel():
    """One token has nearly all probability; with a ceiling M its cumulative intensity is M dtau, so few
    coordinates move.

    One step of tr from t = 0 to 1/2 with kappa = t: dtau = ln 2, and without a ceiling half of the
    coordinates move, with M = 0.1 a share of 1 - exp(-0.1 ln 2) = 0.067. 8000 coordinates: standard error
    0.0028; 0.015 is five.
    """
    logits = torch.tensor([30.0] + [0.0] * (V - 1))
    moved = {}
    for ceiling in (math.inf, 0.1):
        infos = []
        options = {"ceiling": ceiling, "observer": lambda info, state, infos=infos: infos.append(info)}
        draw(lambda x, t: logits.expand(*x.shape, V), Masked(V), (1000, 8), "tr", 2, **options)
        moved[ceiling] = infos[0].moved
    assert moved[math.inf] == pytest.approx(0.5, abs=0.03)
    assert moved[0.1] == pytest.approx(-math.expm1(-0.1 * math.log(2)), abs=0.015)


def test_a_custom_sampler_over_its_budget_is_an_error():
    @dataclasses.dataclass(frozen=True)
    class Greedy(tauflow.GridSampler):
        def step(self, problem, state, plan, n, generator):
            for _ in range(3):
                posterior = problem.evaluate(state.x, plan.t[n])
            return State(state.x, posterior), StepInfo(n, 0.0, 1.0, 0.0)

    model = Model(lambda x, t: torch.zeros(*x.shape, 3), Mixture(Masked(3), "linear"), (4,))
    with pytest.raises(SamplingError, match="10 evaluations, the budget is 4"):
        tauflow.sample(model, Greedy(), 4)
