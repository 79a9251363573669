"""Reveal samplers: what is exact, orders and counts, hitting times, prompts, channels, and rows read.

Statistics: a share p of n independent draws has the standard error sqrt(p (1 - p) / n), and tests allow five;
total variations are allowed what helpers.allowed says. Seeds are fixed.
"""

import dataclasses
import itertools
import math

import pytest
import torch
from helpers import (
    Rows,
    Small,
    allowed,
    distance,
    draw,
    empirical,
    mixture,
)

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from tauflow import Masked, Mixture, Model, Uniform
from tauflow.errors import SamplingError
from tauflow.samplers import Problem
from tauflow.samplers.geometry import shifted, spaced_ranks
from tauflow.samplers.reveal import Reveal
from tauflow.tasks.countdown import posterior, violations

STRONG = EnumerableLaw.random(num_tokens=2, length=4, spread=1.5)
RANKS = torch.tensor([2, 0, 3, 1])


def states_of(sampler, denoiser, source, shape, nfe, **options) -> torch.Tensor:
    """The states that the denoiser is called with, and the end (N + 1, B, D)."""
    states = []

    def model(x, t):
        states.append(x.clone())
        return denoiser(x, t)

    result = draw(model, source, shape, sampler, nfe, **options)
    return torch.stack([*states, result.tokens])


def flat(x, t):
    """Logits of three tokens that are equally likely."""
    return torch.zeros(*x.shape, 3)


def reveal_step(states: torch.Tensor, mask_id: int) -> torch.Tensor:
    """After which evaluation each coordinate is revealed, (B, D)."""
    return (states == mask_id).sum(0)


# Masked: what is exact


EXACT = [
    {"order": "random", "counts": "equal", "weight": 0.15},
    {"order": "learned", "counts": "entropy"},
    {"order": "even", "counts": "power", "weight": 1.0},
    {"order": "spaced", "counts": "power"},
    {"order": "spaced", "counts": "entropy", "shape": (2, 2), "power": 3.0},
]


@pytest.mark.parametrize(
    "options", EXACT, ids=lambda options: "-".join(str(value) for value in options.values())
)
def test_one_token_an_evaluation_is_exact_in_every_order(options):
    """16 sequences of strongly dependent coordinates; two tokens an evaluation are far from exact."""
    count, options = 30_000, dict(options)
    exact = STRONG.model(mixture("masked", 2))
    model = dataclasses.replace(exact, shape=options.pop("shape", (4,)), order=RANKS)
    result = tauflow.sample(model, Reveal(**options), 4, count=count)
    assert result.nfe == 4
    assert distance(empirical(result.tokens, 2), STRONG.probabilities) < allowed(16, count)
    if not options.get("weight"):
        fewer = tauflow.sample(model, Reveal(**options), 2, count=count)
        assert distance(empirical(fewer.tokens, 2), STRONG.probabilities) > 2 * allowed(16, count)


def test_pairs_make_up_for_tokens_drawn_together():
    """Random order, two tokens an evaluation, coordinates that depend on each other in pairs: the weighted
    rows undo most of the error."""
    count = 60_000
    spins = 2.0 * torch.tensor(list(itertools.product(range(2), repeat=4))) - 1
    coupling = 0.15 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    law = EnumerableLaw(torch.einsum("nd,de,ne->n", spins, coupling, spins).double().softmax(0), 2, 4)
    errors = {}
    for name in ("fhs", "fhs_pairs"):
        tokens = tauflow.sample(law.model(mixture("masked", 2)), name, 2, count=count).tokens
        errors[name] = distance(empirical(tokens, 2), law.probabilities)
    assert errors["fhs"] > 3 * allowed(16, count)
    assert errors["fhs_pairs"] < 0.5 * errors["fhs"]


def weights_of(sampler, counts: list[int], n: int) -> float:
    """The weight in step n of a sequence that reveals so many coordinates an evaluation."""
    free, done = sum(counts), torch.tensor([sum(counts[:n])])
    process = mixture("masked", 2)
    problem = Problem(Model(lambda x, t: torch.zeros(*x.shape, 2), process, (free,)))
    plan = sampler.plan(process, free, len(counts))
    state = sampler.init(problem, torch.full((1, free), 2), plan, torch.Generator())
    before = {"done": done, "count_before": torch.tensor([counts[n - 1]]), "t_before": torch.zeros(1)}
    state = dataclasses.replace(state, **before)
    count = torch.tensor([counts[n]])
    return sampler.weights(state, torch.ones(1), state.order - done, count, torch.tensor([0])).item()


def test_weights_follow_from_the_counts():
    """Between counts: (k_{n-1} - 1) / (2 k_n); in the last step also (k_n - 1) / (2 k_{n-1}); at most
    `weight`; 0 after one token."""
    assert weights_of(Reveal(weight=1.0), [4, 6, 5], 1) == pytest.approx(3 / 12)
    assert weights_of(Reveal(weight=1.0), [4, 6, 5], 2) == pytest.approx(5 / 10 + 4 / 12)
    assert weights_of(Reveal(weight=1.0), [9, 1, 5], 1) == 1
    assert weights_of(Reveal(weight=0.15), [4, 6, 5], 1) == pytest.approx(0.15)
    assert weights_of(Reveal(weight=0.15), [1, 6, 5], 1) == 0


# Masked: orders and counts


@pytest.mark.parametrize("name", ["ho_fhs", "spaced_sharp", "spaced_even", "learned_order", "independent"])
def test_order_counts_and_shift_do_not_look_at_values(name):
    """Two denoisers that have nothing in common, the same seed: the same coordinates are revealed by the same
    evaluations."""
    bias = torch.randn(24, 5, generator=torch.Generator().manual_seed(0)) * 4

    def flat(x, t):
        return torch.zeros(*x.shape, 5)

    def sharp(x, t):
        return (bias - bias[:, :1]).expand(*x.shape, 5) + x[..., None] * torch.arange(5)

    order = torch.arange(24).flip(0)
    first, second = (
        reveal_step(states_of(name, model, Masked(5), (64, 24), 6, order=order), 5) for model in (flat, sharp)
    )
    assert torch.equal(first, second)
    assert first.max() == 6


def test_an_even_step_takes_every_nth_of_what_is_masked():
    """Its coordinates are as far apart as k of M can be, counted in masked coordinates; every one is equally
    often the first to come."""
    states = states_of("spaced_even", flat, Masked(3), (4000, 32), 4)
    step = reveal_step(states, 3)
    for n, count in enumerate((2, 6, 10, 14), start=1):
        assert (step == n).sum(1).eq(count).all()
        for row in step[:50]:
            places = (row[row >= n] == n).nonzero().squeeze(1)  # among those masked before the step
            left = int((row >= n).sum())
            assert places.diff().min() >= left // count
            assert places.diff().max() <= -(-left // count)
    share = (step == 1).double().mean(0)  # 2 of 32, from 4000 samples: standard error 0.0038
    assert (share - 2 / 32).abs().max() < 4 * 0.0038


def test_entropy_budget_reveals_what_is_sure_and_never_too_much():
    """Half of the coordinates are known for sure: they are revealed at once, and cost no budget. The others
    share it, one or more each."""
    logits = torch.zeros(16, 4)
    logits[::2, 0] = 60.0
    states = states_of("entropy_budget", lambda x, t: logits.expand(*x.shape, 4), Masked(4), (50, 16), 4)
    step = reveal_step(states, 4)
    assert (step[:, ::2] == 1).all()
    counts = torch.stack([(step[:, 1::2] == n).sum(1) for n in range(1, 5)])  # (N, B)
    assert counts.sum(0).eq(8).all()
    # budgets, in tokens: 1/16 of 8, 3/15 of 8, 5/12 of 7, and the rest
    assert torch.equal(counts, torch.tensor([[0], [1], [2], [5]]).expand(4, 50))
    states = states_of(
        "entropy_budget", lambda x, t: 60 * logits[0].expand(*x.shape, 4), Masked(4), (2, 8), 4
    )
    counts = torch.bincount(reveal_step(states, 4)[0], minlength=5).tolist()
    assert counts == [0, 5, 1, 1, 1], "every evaluation has something to reveal"


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_power_counts(power):
    """Each evaluation reveals at least one, all reveal all, and n of them round(F (n / N)^m), unless that
    leaves one with none."""
    for steps, free in itertools.product(range(1, 20), range(1, 70, 3)):
        if free < steps:
            continue
        sampler = Reveal(counts="power", power=power)
        found = [int(sampler.revealed(torch.tensor([free]), n, steps)) for n in range(steps + 1)]
        assert found[0] == 0
        assert found[-1] == free
        assert all(b - a >= 1 for a, b in itertools.pairwise(found))
        wanted = [math.floor(free * (n / steps) ** power + 0.5) for n in range(steps + 1)]
        bounds = [(n, free - (steps - n)) for n in range(steps + 1)]
        assert found == [
            min(max(value, low), high) for value, (low, high) in zip(wanted, bounds, strict=True)
        ]


def test_counts_of_the_samplers():
    steps = reveal_step(states_of("spaced", flat, Masked(3), (5, 64), 8), 3)
    assert torch.bincount(steps[0], minlength=9).tolist() == [0, 1, 3, 5, 7, 9, 11, 13, 15]


def test_the_network_is_told_the_share_that_is_revealed():
    """kappa(t) = k / (F + 1) after k of F reveals; F counts free coordinates only."""
    times, masks = [], []

    def model(x, t):
        times.append(t)
        masks.append((x == 2).sum(1))
        return torch.zeros(*x.shape, 2)

    known = torch.zeros(2, 20, dtype=torch.bool)
    known[1, :8] = True
    process = Mixture(Masked(2), "quadratic")
    draw(model, process, (2, 20), "spaced", 5, prompt=(torch.zeros(2, 20).long(), known))
    free = torch.tensor([20, 12])
    for t, left in zip(times, masks, strict=True):
        torch.testing.assert_close(
            t.double() ** 2, (free - left) / (free + 1.0).double(), atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("order", ["spaced", "learned"])
@pytest.mark.parametrize("geometry", [(24,), (4, 6)])
def test_prompts_keep_the_order_of_what_is_free(order, geometry):
    """One token an evaluation: the free coordinates come in the order that they have without a prompt, which
    costs nothing."""
    ranks = (7 * torch.arange(24)) % 24
    known = torch.rand(40, 24, generator=torch.Generator().manual_seed(3)) < 0.5
    known[0] = False  # one sequence without a prompt: as many steps as coordinates

    def run(**prompt):
        options = {"order": ranks, "prompt": None} | prompt
        states = states_of(Reveal(order=order), flat, Masked(3), (40, *geometry), 24, **options)
        return reveal_step(states, 3)

    plain, prompted = run(), run(prompt=(torch.zeros(40, 24).long(), known))
    for row, other, fixed in zip(plain, prompted, known, strict=True):
        assert (other[fixed] == 0).all()
        assert torch.equal(row[~fixed].argsort(), other[~fixed].argsort())
    if order == "spaced":
        assert len({tuple(row.tolist()) for row in plain}) > 10, "every sequence has its own shift"
        shifts = torch.tensor(list(itertools.product(*(range(size) for size in geometry))))
        possible = shifted(spaced_ranks(geometry), geometry, shifts)
        assert all((row - 1 == possible).all(1).any() for row in plain), (
            "and it goes round the axes of the geometry"
        )
    else:
        assert torch.equal(plain, (ranks + 1).expand(40, 24))


def test_spacing_beats_a_random_order_on_a_chain():
    """Countdown of length 64 with its exact denoiser, 8 evaluations, the same counts: far fewer wrong
    transitions."""
    process = mixture("masked", 8)
    model = Model(lambda x, t: posterior(x, t, process, leak=1e-3).log(), process, (64,))
    rates = {}
    for order in ("random", "spaced"):
        tokens = tauflow.sample(model, Reveal(order=order, counts="power"), 8, count=256).tokens
        rates[order] = violations(tokens, 8).double().mean().item()
    assert rates["spaced"] < 0.4 * rates["random"]


# Learned orders


SHUFFLE = torch.randperm(32, generator=torch.Generator().manual_seed(1))


def shuffled(x, t):
    """The exact denoiser of a countdown whose coordinates were shuffled: chain position SHUFFLE[d] stands at
    d."""
    chain = torch.empty_like(x)
    chain[:, SHUFFLE] = x
    return posterior(chain, t, mixture("masked", 6), leak=1e-3).log()[:, SHUFFLE]


def test_order_and_shape_of_a_model_reach_the_sampler():
    """One token an evaluation: learned_order follows the model's order, spaced the rows and columns of its
    shape."""
    order = torch.arange(12).flip(0)
    states = states_of("learned_order", flat, Masked(3), (4, 12), 12, order=order)
    assert torch.equal(reveal_step(states, 3), (order + 1).expand(4, 12))
    step = reveal_step(states_of("spaced(counts=equal)", flat, Masked(3), (40, 3, 4), 12), 3)
    shifts = torch.tensor(list(itertools.product(range(3), range(4))))
    possible = shifted(spaced_ranks((3, 4)), (3, 4), shifts)
    assert all((row - 1 == possible).all(1).any() for row in step)


def first_reveals(spec: str, shape: tuple, channels: str | None, nfe: int, count: int = 64) -> torch.Tensor:
    """After which evaluation each coordinate is revealed, (B, *shape)."""
    states = []
    model = Model(lambda x, t: flat(x, t), Mixture(Masked(3), "linear"), shape, channels=channels)
    watch = lambda info, state: states.append(state.x.clone())  # noqa: E731
    tauflow.sample(model, spec, nfe, count=count, observer=watch)
    return 1 + (torch.stack(states) == 3).sum(0).view(-1, *shape)


def nearest(chosen: torch.Tensor) -> float:
    """The mean over chosen cells (H, W) of the distance to the next one, round the edges."""
    cells = chosen.nonzero().double()
    apart = (cells[:, None] - cells).abs()
    apart = torch.minimum(apart, torch.tensor(chosen.shape) - apart).norm(dim=-1).fill_diagonal_(math.inf)
    return apart.min(1).values.mean().item()


def test_an_even_step_on_a_grid_lies_apart_in_two_dimensions():
    """The first steps of 10 x 6 cells, against random sets of the same sizes: at least 1.1 times as far."""
    step = first_reveals("spaced_even", (10, 6), None, 6)
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 3):
        sizes = (step == n).sum((1, 2)).tolist()
        far = sum(nearest(row == n) for row in step) / len(step)
        shuffled = [torch.randperm(60, generator=generator)[:k] for k in sizes]
        random = sum(nearest(torch.zeros(60).index_fill_(0, cells, 1).view(10, 6)) for cells in shuffled)
        assert far > 1.1 * random / len(step)


@pytest.mark.parametrize("spec", ["spaced", "spaced_even"])
def test_channels_are_revealed_together_or_apart(spec):
    """Together: but for a pixel at the edge of a set, all channels of a pixel come in one step. Apart: two
    channels of a pixel come in the same step hardly more often than by chance, and each channel is spaced."""
    shape, sizes = (8, 8, 3), []
    together = first_reveals(spec, shape, "together", 5)
    split = (together.amax(-1) != together.amin(-1)).sum((1, 2))
    assert (split <= 5).all(), "one pixel at the edge of each set"
    apart = first_reveals(spec, shape, "apart", 5)
    sizes = [(apart == n).double().mean().item() for n in range(1, 6)]
    chance = sum(size**2 for size in sizes)
    same = (apart[..., 0] == apart[..., 1]).double().mean().item()
    assert same < chance + 0.1
    for step in (together, apart):
        green = [nearest(row[..., 1] == 2) for row in step]
        assert sum(green) / len(green) > 1.5


def test_a_prompt_may_know_single_channels():
    """Every evaluation has its counts, whatever is left of the groups."""
    known = torch.zeros(4, 4, 3, dtype=torch.bool)
    known[:2, :, 0] = True
    known[3, 3] = True
    model = Model(flat, Mixture(Masked(3), "linear"), (4, 4, 3), channels="together")
    prompt = torch.ones(48, dtype=torch.long), known.flatten()
    result = tauflow.sample(model, "spaced_even", 5, count=8, prompt=prompt)
    assert result.nfe == 5
    assert (result.tokens < 3).all()
    assert (result.tokens[:, known.flatten()] == 1).all()


@pytest.mark.parametrize(("channels", "shape"), [("apart", (12,)), ("sideways", (2, 2, 3)), (3, (2, 2, 3))])
def test_channels_that_do_not_fit_are_refused(channels, shape):
    with pytest.raises(SamplingError, match="channels must be together or apart for a shape of pixels"):
        Model(flat, Mixture(Masked(3), "linear"), shape, channels=channels)


# Rows, requests


def test_only_the_rows_that_move_are_read():
    """Reveal: each row once, twice with history. Bridge: the candidates' rows of now and before; at 64
    evaluations rho sums to below 9."""
    shape, size = (8, 256), 8 * 256
    for name, most in (("spaced", 1), ("spaced_sharp", 2), ("fhs_pairs", 2), ("learned_order", 1)):
        model = Rows(5)
        result = draw(model, Masked(5), shape, name, 64, order=torch.arange(256))
        assert result.nfe == 64
        assert size <= model.rows <= most * size
    for name in ("bridge", "bridge_systematic"):
        model = Rows(5)
        result = draw(model, Uniform(5), shape, name, 64)
        assert result.nfe == 64
        assert model.rows < 2 * 9 * size < 2 * 64 * size / 6
    model = Rows(5)
    draw(model, Uniform(5), shape, "tr_cie", 64, coins="systematic", grid="early")
    assert model.rows < 2 * 14 * size


@pytest.mark.parametrize(
    ("source", "sampler", "message"),
    [
        (Masked(5), "spaced(order=sorted)", "order must be one of random, spaced, even, learned"),
        (Masked(5), "spaced_even(counts=entropy)", "order=spaced or random"),
        (Masked(5), "spaced(power=0)", "power must be above 0"),
        (Masked(5), "fhs(power=3)", "power belongs to counts=power or entropy, equal counts have none"),
        (Masked(5), "spaced(weight=1.5)", "weight must be at least 0 and at most 1, got 1.5"),
        (Masked(5), "ho_fhs(weight=0.5)", "weight belongs to extrapolation=pairs"),
        (
            Masked(5),
            "learned_order",
            r"there is no learned order: make one with tauflow.learn_order\(model\)",
        ),
        (Masked(5), "bridge", "needs a uniform or marginal source, this model has a masked one"),
        (Uniform(5), "spaced", "need a masked source, this model has a uniform one"),
        (Uniform(5), "bridge(gain=-1)", "gain must be at least 0"),
        (
            Uniform(5),
            "tr_cie(coins=systematic, dense=true)",
            "independent Poisson counts, not systematic coins",
        ),
    ],
)
def test_bad_requests_get_a_sentence(source, sampler, message):
    with pytest.raises(SamplingError, match=message):
        draw(lambda x, t: torch.zeros(*x.shape, 5), source, (2, 12), sampler, 4)


def test_fhs_is_exact_at_one_token_an_evaluation():
    law = EnumerableLaw.random(num_tokens=3, length=3, spread=1.5)
    model = law.model(mixture("masked", 3, "quadratic"))
    result = tauflow.sample(model, "fhs", 3, count=40_000)
    assert result.nfe == 3
    assert distance(empirical(result.tokens, 3), law.probabilities) < allowed(27, 40_000)
    higher = tauflow.sample(model, "ho_fhs", 3, count=40_000)
    assert torch.equal(higher.tokens, result.tokens), "the first token of an evaluation is not extrapolated"
    fewer = tauflow.sample(model, "fhs", 2, count=40_000)
    assert distance(empirical(fewer.tokens, 3), law.probabilities) > 3 * allowed(27, 40_000)


@pytest.mark.parametrize(("name", "ahead"), [("fhs", 0), ("ho_fhs", 1)])
def test_fhs_hitting_times_and_equal_counts(name, ahead):
    """Times of reveals are those of independent coordinates with P(T <= t) = kappa(t); each evaluation
    reveals an equal share. One of HO-FHS belongs to the hitting time of its first token."""
    seen, times = [], []

    def model(x, t):
        seen.append((x == 2).sum(1))
        times.append(t)
        return torch.zeros(*x.shape, 2)

    draw(model, Mixture(Masked(2), "quadratic"), (4000, 8), name, 4)
    assert [count.unique().tolist() for count in seen] == [[8], [6], [4], [2]]
    # the k-th of 8 hitting times: kappa is Beta(k, 9 - k), with this mean and a variance below 1/36
    for number, t in enumerate(times):
        mean = (2 * number + ahead) / 9
        assert (t.double() ** 2).mean().item() == pytest.approx(mean, abs=5 / 6 / math.sqrt(4000))


def test_ho_fhs_extrapolates_to_the_hitting_time():
    """A posterior that moves linearly in t is extrapolated exactly, up to the clamp: the tokens follow the
    posterior at their own time."""

    def row(t):
        return torch.stack([0.2 + 0.5 * t, 0.8 - 0.5 * t], -1)

    def model(x, t):
        return row(t).log()[:, None].expand(-1, 8, 2)

    count = {}
    for name in ("fhs", "ho_fhs"):
        tokens = draw(model, Masked(2), (20_000, 8), name, 4).tokens
        count[name] = (tokens == 0).double().mean().item()
    ideal = 0.2 + 0.5 * 0.5  # a hitting time is uniform under kappa = t, its mean is 1/2
    # the second token is drawn at the hitting time of the first, 1 / 9 earlier on average: no history there
    assert count["ho_fhs"] == pytest.approx(ideal - 0.5 * (1 / 9) / 8, abs=0.006)
    assert count["fhs"] < ideal - 0.5 * (1.5 / 9) * 2 / 4


V, B, D = 5, 3, 12


def network(process) -> Small:
    return Small(process.num_states, V)


class Recorder:
    """A callable denoiser that remembers what it was called with."""

    def __init__(self, process, dtype=torch.float32):
        self.network = network(process)
        self.dtype = dtype
        self.calls = []

    def __call__(self, x, t):
        self.calls.append((x.clone(), t.clone()))
        return self.network(x, t).to(self.dtype)


def test_fhs_splits_only_the_free_coordinates():
    mask = torch.zeros(2, D, dtype=torch.bool)
    mask[0, :8] = True  # four free
    recorder = Recorder(Masked(V))
    draw(recorder, Masked(V), (2, D), "fhs", 4, prompt=(torch.zeros(2, D, dtype=torch.long), mask))
    assert [(x == V).sum(1).tolist() for x, _ in recorder.calls] == [[4, 12], [3, 9], [2, 6], [1, 3]]


@pytest.mark.parametrize("name", ["ho_fhs", "spaced", "entropy_budget"])
def test_prompts_of_unequal_length(name):
    """A uniform posterior gives uniform tokens also in sequences with fewer free coordinates than steps.

    12 000 free tokens in the short sequences: a share of 1/5 has a standard error of 0.0037; 0.02 is five.
    """
    known = torch.zeros(6000, D, dtype=torch.bool)
    known[1:, 2:] = True
    prompt = (torch.zeros(6000, D).long(), known)
    tokens = draw(lambda x, t: torch.zeros(*x.shape, V), Masked(V), (6000, D), name, D, prompt=prompt).tokens
    shares = torch.bincount(tokens[1:, :2].flatten(), minlength=V) / tokens[1:, :2].numel()
    torch.testing.assert_close(shares, torch.full((V,), 1 / V), atol=0.02, rtol=0)
