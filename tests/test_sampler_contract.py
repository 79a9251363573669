"""What every sampler of the registry keeps: shape, range, NFE, determinism, prompts, RNG hygiene, dtypes; how bad requests are refused."""

import gc
import itertools
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import tauflow
from tauflow import Masked, Uniform
from tauflow.denoisers import BadLogits, CallableDenoiser, SplitDenoiser
from tauflow.errors import SamplingError
from tauflow.networks import Transformer, TransformerConfig
from tauflow.samplers import SAMPLERS
from tauflow.samplers.leap import precise
from tauflow.samplers.leaping import Leaping
from tauflow.samplers.reveal import Reveal

V, B, D = 5, 3, 12
CASES = [(name, source) for name in SAMPLERS for source in (Masked(V), Uniform(V)) if isinstance(source, SAMPLERS[name]().sources)]


def sample(denoiser, source, schedule, shape, name, nfe, **options):
    """tauflow.sample, with an order of the coordinates for the sampler that needs one."""
    ranks = (7 * torch.arange(D)) % D if SAMPLERS[name]().needs_ranks else None
    return tauflow.sample(denoiser, source, schedule, shape, name, nfe, ranks=ranks, **options)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{type(case[1]).__name__.lower()}")
def case(request):
    return request.param


def network(source) -> Transformer:
    torch.manual_seed(0)
    net = Transformer(TransformerConfig(width=16, blocks=1, heads=2), source.num_states, V)
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return net


class Recorder:
    """A callable denoiser that remembers what it was called with."""

    def __init__(self, source, dtype=torch.float32):
        self.network, self.dtype, self.calls = network(source), dtype, []

    def __call__(self, x, t):
        self.calls.append((x.clone(), t.clone()))
        return self.network(x, t).to(self.dtype)


@pytest.mark.parametrize("nfe", [1, 2, 3, 7, 16])
def test_shape_range_and_honest_nfe(case, nfe):
    name, source = case
    recorder = Recorder(source)
    result = sample(recorder, source, "quadratic", (B, D), name, nfe)
    assert result.tokens.shape == (B, D)
    assert result.tokens.dtype == torch.int64
    assert result.tokens.min() >= 0
    assert result.tokens.max() < V, "a mask was left"
    assert result.nfe == len(recorder.calls) == result.info.forwards
    two_stage = {"theta_rk2": 2 * ((nfe - 1) // 2) + 1, "theta_trapezoidal": 2 * ((nfe - 1) // 2) + 1, "tr_cie_exact": max(1, nfe // 2 * 2)}
    one_each = min(nfe, D)  # one token an evaluation is exact already
    expected = one_each if isinstance(SAMPLERS[name](), Reveal) else two_stage.get(name, nfe)
    ended_early = isinstance(source, Masked) and result.info.leftover_masks == 0  # nothing left to evaluate for
    assert result.nfe == expected or (ended_early and result.nfe < expected)
    for x, t in recorder.calls:
        assert x.shape == (B, D)
        assert x.dtype == torch.int64
        assert t.shape == (B,)
        assert (t >= 0).all()
        assert (t < 1).all()
    times = torch.stack([t.mean() for _, t in recorder.calls])
    assert times[0] == 0
    if name != "tr_cie_exact":  # which looks back in time
        assert (times.diff() > 0).all()


def test_the_times_of_the_default_grid():
    """Evaluations stand at n / N: the network is never told tau, and the last one draws."""
    recorder = Recorder(Masked(V))
    tauflow.sample(recorder, Masked(V), "cubic", (B, D), "tr_cie", 8)
    torch.testing.assert_close(torch.stack([t[0] for _, t in recorder.calls]), torch.arange(8) / 8)
    recorder = Recorder(Uniform(V))
    tauflow.sample(recorder, Uniform(V), "linear", (B, D), "tr", 4, grid="tau", finish="none", cutoff=1e-2)
    expected = 1 - 1e-2 ** (torch.arange(4, dtype=torch.float64) / 4)
    torch.testing.assert_close(torch.stack([t[0] for _, t in recorder.calls]).double(), expected, atol=1e-6, rtol=1e-5)


def test_seeds_and_global_rng(case):
    name, source = case
    torch.manual_seed(7)
    before = torch.get_rng_state()
    model = network(source)
    torch.set_rng_state(before)
    first = sample(model, source, "linear", (B, D), name, 9, seed=1).tokens
    torch.randn(5)
    torch.set_rng_state(before)
    second = sample(model, source, "linear", (B, D), name, 9, seed=1).tokens
    assert torch.equal(torch.get_rng_state(), before), "the global generator was moved"
    assert torch.equal(first, second)
    assert not torch.equal(first, sample(model, source, "linear", (B, D), name, 9, seed=2).tokens)
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(first, sample(model, source, "linear", (B, D), name, 9, generator=generator).tokens)


def test_threads_do_not_matter(case):
    name, source = case
    model, threads = network(source), torch.get_num_threads()
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(sample(model, source, "linear", (B, D), name, 6).tokens)
    torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_of_logits(case, dtype):
    name, source = case
    tokens = sample(Recorder(source, dtype), source, "linear", (B, D), name, 5).tokens
    assert tokens.dtype == torch.int64
    assert tokens.max() < V


def test_split_network_and_callable_agree(case):
    """Lazy rows of a split network, full logits of a callable, a Denoiser, and V + 1 columns with the mask last: the same tokens."""
    name, source = case
    model = network(source)

    def with_mask_column(x, t):
        return torch.cat([model(x, t), torch.full((*x.shape, 1), 50.0)], dim=-1)

    tokens = [
        sample(denoiser, source, "linear", (B, D), name, 9).tokens
        for denoiser in (model, lambda x, t: model(x, t), SplitDenoiser(model, V), CallableDenoiser(model, V), with_mask_column)
    ]
    assert all(torch.equal(tokens[0], other) for other in tokens[1:])


def test_prompts_hold_in_every_stage(case):
    name, source = case
    generator = torch.Generator().manual_seed(0)
    prompt, mask = torch.randint(V, (B, D), generator=generator), torch.rand(B, D, generator=generator) < 0.4
    for dense in (False, True)[: 1 + SAMPLERS[name]().leaps]:
        recorder = Recorder(source)
        result = sample(recorder, source, "linear", (B, D), name, 6, prompt=prompt, prompt_mask=mask, dense=dense)
        for x in [result.tokens, *(x for x, _ in recorder.calls)]:
            assert torch.equal(x[mask], prompt[mask])
        assert result.nfe <= 6
        assert result.tokens.max() < V


def test_a_full_prompt_returns_at_once(case):
    name, source = case
    prompt = torch.randint(V, (B, D))
    recorder = Recorder(source)
    result = sample(recorder, source, "linear", (B, D), name, 6, prompt=prompt, prompt_mask=torch.ones(B, D, dtype=torch.bool))
    assert torch.equal(result.tokens, prompt)
    assert result.nfe == 0
    assert not recorder.calls


def test_fhs_splits_only_the_free_coordinates():
    mask = torch.zeros(2, D, dtype=torch.bool)
    mask[0, :8] = True  # four free
    recorder = Recorder(Masked(V))
    tauflow.sample(recorder, Masked(V), "linear", (2, D), "fhs", 4, prompt=torch.zeros(2, D, dtype=torch.long), prompt_mask=mask)
    assert [(x == V).sum(1).tolist() for x, _ in recorder.calls] == [[4, 12], [3, 9], [2, 6], [1, 3]]


def test_carry_over(case):
    """From a masked source a revealed coordinate never moves again."""
    name, source = case
    if isinstance(source, Uniform):
        return
    recorder = Recorder(source)
    result = sample(recorder, source, "linear", (B, D), name, 12)
    states = [x for x, _ in recorder.calls] + [result.tokens]
    if name == "theta_rk2":  # its second evaluation is at a trial state, from which it goes back
        states = [*states[0::2], result.tokens]
    for x, after in itertools.pairwise(states):
        assert torch.equal(after[x != V], x[x != V])


def test_info_says_what_happened(case):
    name, source = case
    seen = []
    result = sample(network(source), source, "linear", (64, D), name, 8, observer=lambda info, state: seen.append((info, state.x.clone())))
    infos = result.info.steps
    assert [info for info, _ in seen] == infos
    assert [info.n for info in infos] == list(range(len(infos)))
    assert all(0 <= value <= 1 for info in infos for value in (info.moved, info.clamped, info.several, info.masks))
    assert sum(info.moved for info in infos) > 0
    if isinstance(source, Masked):
        assert [info.masks for info in infos] == [(x == V).double().mean().item() for _, x in seen]
        assert result.info.leftover_masks == infos[-1].masks
    assert result.info.settings["nfe"] == 8


def test_temperature_and_guidance():
    logits, other = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([0.0, 0.5, -1.0])

    def share(**options):
        result = tauflow.sample(lambda x, t: logits.expand(*x.shape, 3), Masked(3), "linear", (2000, 10), "tweedie", 2, **options)
        return torch.bincount(result.tokens.flatten(), minlength=3) / 20_000, result

    plain, result = share()
    torch.testing.assert_close(plain, logits.softmax(0), atol=0.015, rtol=0)
    cold, _ = share(temperature=0.5)
    torch.testing.assert_close(cold, (2 * logits).softmax(0), atol=0.015, rtol=0)
    guided, result = share(guidance=(lambda x, t: other.expand(*x.shape, 3), 2.0))
    torch.testing.assert_close(guided, (2 * logits.log_softmax(0) - other.log_softmax(0)).softmax(0), atol=0.015, rtol=0)
    assert (result.nfe, result.info.forwards) == (2, 4)
    same, _ = share(guidance=(lambda x, t: other.expand(*x.shape, 3), 1.0))
    torch.testing.assert_close(same, plain, atol=0.015, rtol=0)


def test_progress_bar(capfd):
    tauflow.sample(network(Masked(V)), Masked(V), "linear", (B, D), nfe=5, progress=True)
    assert "4/4" in capfd.readouterr().err


class Rows(nn.Module):
    """A split network that counts the rows its head is applied to, and watches hidden states."""

    def __init__(self, num_tokens):
        super().__init__()
        self.output, self.rows, self.largest = nn.Linear(4, num_tokens), 0, 0
        self.alive = weakref.WeakSet()

    def hidden(self, x, t):
        return torch.randn(*x.shape, 4, generator=torch.Generator().manual_seed(int(t[0] * 1e6)))

    def head(self, rows):
        self.rows += rows.shape[:-1].numel()
        self.largest = max(self.largest, rows.shape[:-1].numel())
        return self.output(rows)


def test_the_head_runs_on_few_rows_and_nothing_dense_is_kept():
    """tr_cie at 64 evaluations: a masked coordinate is read about once to be drawn, with its history twice, plus thinning and the draw."""
    model = Rows(V)
    result = tauflow.sample(model, Masked(V), "linear", (8, 256), "tr_cie", 64)
    assert result.nfe == 64
    assert model.rows < 3.5 * 8 * 256 < 64 * 8 * 256 / 15
    assert model.largest < 8 * 256 / 8, "no pass over all rows"


def test_one_logits_tensor_between_steps_with_a_callable():
    alive, peak = weakref.WeakSet(), []

    def model(x, t):
        gc.collect()
        peak.append(len(alive))
        logits = torch.randn(*x.shape, V, generator=torch.Generator().manual_seed(0))
        alive.add(logits)
        return logits

    tauflow.sample(model, Uniform(V), "linear", (B, D), "tr_cie", 12)
    assert max(peak) <= 1


def test_float32_where_float64_is_missing(case, monkeypatch):
    name, source = case
    assert precise(torch.device("mps")) == torch.float32
    for module in ("leap", "tweedie", "bridge"):
        monkeypatch.setattr(f"tauflow.samplers.{module}.precise", lambda device: torch.float32)
    assert sample(network(source), source, "linear", (B, D), name, 5).tokens.max() < V


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "tr-cy"}, "unknown sampler 'tr-cy'; known samplers: euler, euler_tau_grid, tr, cie, tr_cie"),
        ({"sampler": 3}, "a name or a Sampler"),
        ({"nfe": 0}, "nfe must be a whole number of at least 1"),
        ({"nfe": 2.5}, "nfe must be a whole number"),
        ({"sampler": "theta_trapezoidal", "theta": 1.0}, r"theta must be in \(0, 1\) for theta_trapezoidal"),
        ({"sampler": "theta_rk2", "theta": 0.0}, r"theta must be in \(0, 1\] for theta_rk2"),
        ({"cutoff": 0.0}, r"cutoff .* must be in \(0, 1\)"),
        ({"cutoff": 1.0}, r"cutoff .* must be in \(0, 1\)"),
        ({"theta": 0.5}, "sampler tr_cie has no option 'theta'; it has: grid, cutoff, finish, jump, eps_0, ceiling"),
        ({"grid": "sigma"}, "grid must be one of t, tau"),
        ({"jump": "poisson"}, "jump must be one of exponential, one_event"),
        ({"finish": "stop"}, "finish must be one of draw, reuse, none"),
        ({"eps_0": -1.0}, "0 <= eps_0"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"shape": (3,)}, r"shape must be \(B, D\)"),
        ({"prompt": torch.zeros(B, D, dtype=torch.long)}, "give prompt and prompt_mask together"),
        ({"prompt": torch.zeros(B, 4, dtype=torch.long), "prompt_mask": torch.zeros(B, D, dtype=torch.bool)}, "prompt must have the shape"),
        ({"prompt": torch.full((B, D), V), "prompt_mask": torch.ones(B, D, dtype=torch.bool)}, "the mask or tokens outside 0 .. 4"),
        ({"prompt": torch.zeros(B, D), "prompt_mask": torch.ones(B, D, dtype=torch.bool)}, "prompt must hold integer tokens"),
        ({"prompt": torch.zeros(B, D, dtype=torch.long), "prompt_mask": torch.ones(B, D)}, "prompt_mask must be boolean"),
        ({"nfe": 1, "finish": "none", "sampler": "theta_rk2"}, "not enough for one step without a finishing draw"),
    ],
)
def test_bad_requests_get_a_sentence(options, message):
    call = {"shape": (B, D), "nfe": 4} | options
    with pytest.raises(SamplingError, match=message):
        tauflow.sample(network(Masked(V)), Masked(V), "linear", **call)


def test_sources_that_are_not_supported():
    with pytest.raises(SamplingError, match="masked source only; the model was trained from a uniform source - try sampler='tr_cie'"):
        tauflow.sample(network(Uniform(V)), Uniform(V), "linear", (B, D), "fhs")
    with pytest.raises(SamplingError, match="uniform source only"):
        tauflow.sample(network(Masked(V)), Masked(V), "linear", (B, D), "tweedie_d3pm")


@pytest.mark.parametrize("split", [True, False])
def test_bad_logits_are_named_with_step_and_time(split):
    good = network(Masked(V))

    class Breaks(nn.Module):
        def hidden(self, x, t):
            return good.hidden(x, t) * (float("nan") if t[0] > 0.4 else 1.0)

        head = staticmethod(good.head)

    model = Breaks() if split else lambda x, t: Breaks().head(Breaks().hidden(x, t))
    with pytest.raises(BadLogits, match=r"NaN.*step 5, t = 0\.5000"):
        tauflow.sample(model, Masked(V), "linear", (B, D), "tweedie", 10)
    with pytest.raises(BadLogits, match="only -inf"):
        tauflow.sample(lambda x, t: torch.full((*x.shape, V), -torch.inf), Masked(V), "linear", (B, D), nfe=2)
    with pytest.raises(BadLogits, match="returned 9 logits a coordinate, the source has 5"):
        tauflow.sample(lambda x, t: torch.zeros(*x.shape, 9), Masked(V), "linear", (B, D), nfe=2)
    with pytest.raises(BadLogits, match=r"must return logits of shape \(3, 12, 5\), got \(3, 5\)"):
        tauflow.sample(lambda x, t: torch.zeros(3, 5), Masked(V), "linear", (B, D), nfe=2)
    with pytest.raises(TypeError, match="a denoiser is"):
        tauflow.sample(3, Masked(V), "linear", (B, D))


def test_names_with_hyphens_and_instances():
    model = network(Masked(V))
    tokens = [
        tauflow.sample(model, Masked(V), "linear", (B, D), sampler, 6).tokens
        for sampler in ("tr_cie", "tr-cie", "TR-CIE", SAMPLERS["tr_cie"]())
    ]
    assert all(torch.equal(tokens[0], other) for other in tokens)


def test_adapter_for_models_that_return_probabilities():
    """The interface of flow_matching's ModelWrapper: called by keyword, returns probabilities."""
    model = network(Masked(V))

    class Wrapper:
        def __call__(self, *, x, t, **extras):
            return model(x, t).softmax(-1)

    direct = tauflow.sample(model, Masked(V), "linear", (B, D), nfe=6).tokens
    assert torch.equal(direct, tauflow.sample(tauflow.from_probabilities(Wrapper()), Masked(V), "linear", (B, D), nfe=6).tokens)


def test_adapter_for_masked_language_models():
    """A tiny BERT built on the spot: data tokens are its ids 5 .. 14, its special tokens are never drawn, its mask is 3."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=15, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=32
    )
    model = transformers.BertForMaskedLM(config).eval()
    ids = torch.arange(5, 15)
    denoiser = tauflow.from_masked_lm(model, ids, mask_token_id=3)
    x = torch.tensor([[10, 0, 9]])  # mask, first data token, last data token
    expected = model(input_ids=torch.tensor([[3, 5, 14]])).logits[..., 5:]
    torch.testing.assert_close(denoiser(x, torch.zeros(1)), expected)
    result = tauflow.sample(denoiser, Masked(10), "linear", (B, D), "tr_cie", 6)
    assert result.tokens.max() < 10


# Faults that were found by others, each once wrong


@pytest.mark.parametrize("name", ["fhs", "ho_fhs", "fhs_pairs", "spaced", "spaced_sharp", "entropy_budget"])
def test_prompts_of_unequal_length(name):
    """A uniform posterior gives uniform tokens also in sequences that have fewer free coordinates than there are steps.

    12 000 free tokens in the short sequences: a share of 1/5 has a standard error of 0.0037; 0.02 is five of them.
    """
    known = torch.zeros(6000, D, dtype=torch.bool)
    known[1:, 2:] = True
    prompt = {"prompt": torch.zeros(6000, D).long(), "prompt_mask": known}
    tokens = tauflow.sample(lambda x, t: torch.zeros(*x.shape, V), Masked(V), "linear", (6000, D), name, D, **prompt).tokens
    shares = torch.bincount(tokens[1:, :2].flatten(), minlength=V) / tokens[1:, :2].numel()
    torch.testing.assert_close(shares, torch.full((V,), 1 / V), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", ["euler", "euler_tau_grid", "cie", "theta_rk2", "theta_trapezoidal"])
def test_an_infinite_rate_at_the_start_is_refused(name):
    with pytest.raises(SamplingError, match="infinite rate at t = 0"):
        tauflow.sample(network(Masked(V)), Masked(V), tauflow.Polynomial(0.5), (B, D), name, 6)


@pytest.mark.parametrize("name", ["tr", "tr_cie", "tweedie", "fhs", "spaced", "entropy_budget"])
def test_samplers_that_integrate_the_rate_take_any_schedule(name):
    """kappa = t^0.5, uniform posterior: 4000 tokens, a share of 1/5 has a standard error of 0.0063; 0.035 is five of them."""
    tokens = tauflow.sample(lambda x, t: torch.zeros(*x.shape, V), Masked(V), tauflow.Polynomial(0.5), (1000, 4), name, 6).tokens
    shares = torch.bincount(tokens.flatten(), minlength=V) / tokens.numel()
    torch.testing.assert_close(shares, torch.full((V,), 1 / V), atol=0.035, rtol=0)


FINISHING = [name for name in SAMPLERS if Masked in SAMPLERS[name]().sources and hasattr(SAMPLERS[name](), "finish")]


@pytest.mark.parametrize("name", FINISHING)
def test_leftover_masks_are_drawn_from_rows_of_masks(name):
    """The last token is only ever predicted for coordinates that are already revealed: nobody may draw from those rows."""

    def junk(x, t):
        logits = torch.zeros(*x.shape, V)
        logits[..., -1] = -50.0
        logits[x != V] = torch.tensor([-50.0] * (V - 1) + [0.0])
        return logits

    tokens = tauflow.sample(junk, Masked(V), "linear", (200, D), name, 6, finish="reuse").tokens
    assert (tokens != V - 1).all()


def test_guidance_with_impossible_tokens():
    """-inf on either side: weight 1 is the conditional law, weight 0 the other, more keeps what the condition allows."""
    conditional, unconditional = torch.zeros(3), torch.zeros(3)
    conditional[0], unconditional[1] = -torch.inf, -torch.inf

    def law(weight):
        def model(logits):
            return lambda x, t: logits.expand(*x.shape, 3)

        guidance = (model(unconditional), weight)
        tokens = tauflow.sample(model(conditional), Masked(3), "linear", (500, 4), "tweedie", 2, guidance=guidance).tokens
        return set(tokens.unique().tolist())

    assert law(1.0) == {1, 2}
    assert law(0.0) == {0, 2}
    assert law(2.0) == {1, 2}
    assert law(0.5) == {2}


def test_a_denoiser_of_another_vocabulary_is_refused():
    with pytest.raises(SamplingError, match="made for 5 data tokens, the source has 10"):
        tauflow.sample(SplitDenoiser(network(Masked(V)), V), Masked(10), "linear", (B, D), nfe=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"source": "masked"}, "source must be tauflow.Masked"),
        ({"shape": 4}, "two whole numbers"),
        ({"shape": (4, 2.5)}, "two whole numbers"),
        ({"nfe": "8"}, "whole number of at least 1"),
        ({"guidance": 3}, "guidance must be a pair"),
        ({"prompt": [1], "prompt_mask": [True]}, "prompt must be a tensor"),
        ({"denoiser": lambda x, t: torch.zeros(*x.shape, V, dtype=torch.long)}, "floating-point"),
    ],
)
def test_mistakes_get_sentences(call, message):
    request = {"denoiser": network(Masked(V)), "source": Masked(V), "schedule": "linear", "shape": (B, D), "nfe": 4} | call
    with pytest.raises(SamplingError, match=message):
        tauflow.sample(**request)


def test_numpy_integers_are_budgets():
    assert tauflow.sample(network(Masked(V)), Masked(V), "linear", (B, D), nfe=np.int64(3)).nfe <= 3


def test_bad_logits_name_their_own_time():
    """fhs has no grid, and a second stage is not at the start of its step: the time is that of the evaluation."""
    for name in ("fhs", "theta_rk2"):
        times = []

        def model(x, t, times=times):
            times.append(t.mean().item())
            return torch.full((*x.shape, V), torch.nan if len(times) == 4 else 0.0)

        with pytest.raises(SamplingError) as error:
            tauflow.sample(model, Masked(V), "linear", (B, D), name, 8)
        assert f"t = {times[3]:.4f}" in str(error.value)


def test_samplers_with_wrong_names_of_options_are_refused():
    for options in ({"jump": "poisson"}, {"rule": "foo"}, {"grid": "log"}, {"finish": "never"}):
        with pytest.raises(SamplingError, match="must be one of"):
            SAMPLERS["tr_cie"](**options) if "rule" not in options else Leaping(**options)


def test_the_ceiling_bounds_every_channel():
    """One token has nearly all probability; with a ceiling M its cumulative intensity is M dtau, so few coordinates move.

    One step of tr from t = 0 to 1/2 with kappa = t: dtau = ln 2, and without a ceiling half of the coordinates move, with M = 0.1 a share
    of 1 - exp(-0.1 ln 2) = 0.067. 8000 coordinates: standard error 0.0028; 0.015 is five.
    """
    logits = torch.tensor([30.0] + [0.0] * (V - 1))
    moved = {}
    for ceiling in (math.inf, 0.1):
        infos = []
        tauflow.sample(
            lambda x, t: logits.expand(*x.shape, V),
            Masked(V),
            "linear",
            (1000, 8),
            "tr",
            2,
            ceiling=ceiling,
            observer=lambda info, state, infos=infos: infos.append(info),
        )
        moved[ceiling] = infos[0].moved
    assert moved[math.inf] == pytest.approx(0.5, abs=0.03)
    assert moved[0.1] == pytest.approx(-math.expm1(-0.1 * math.log(2)), abs=0.015)
