"""Samplers that choose which coordinates move together: reveal orders, counts and weights; bridge, systematic
coins; learned orders.

Statistics: a share p of n independent draws has the standard error sqrt(p (1 - p) / n), and tests allow five;
total variations are allowed what helpers.allowed says. Seeds are fixed.
"""

import dataclasses
import itertools
import json
import math

import pytest
import torch
from helpers import SOURCES, allowed, distance, draw, empirical, mixture
from test_sampler_contract import Rows

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import Propagator, slope
from tauflow import Masked, Mixture, Model, Uniform, schedule_from
from tauflow.denoise import CallableDenoiser
from tauflow.errors import SamplingError
from tauflow.samplers import SAMPLERS, Problem, State, Visit, learned
from tauflow.samplers.bridge import Bridge
from tauflow.samplers.geometry import RASTER, farthest_ranks, hilbert, shifted, spaced_ranks, walk_of
from tauflow.samplers.leaping import Rule, Term, leap
from tauflow.samplers.random import toss
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
    *(
        {"order": order, "counts": counts}
        for order in ("random", "spaced", "learned")
        for counts in ("equal", "power", "entropy")
    ),
    {"order": "even", "counts": "equal"},
    {"order": "even", "counts": "power", "weight": 1.0},
    {"order": "spaced", "counts": "power", "shape": (2, 2)},
    {"order": "spaced", "counts": "entropy", "shape": (2, 2), "power": 3.0},
    {"order": "spaced", "counts": "power", "weight": 1.0},
    {"order": "random", "counts": "equal", "weight": 0.15},
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
    problem = Problem.of(Model(lambda x, t: torch.zeros(*x.shape, 2), process, (free,)))
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


WITHOUT_ROWS = [
    *("fhs", "ho_fhs", "fhs_pairs", "spaced", "spaced_even", "spaced_sharp", "learned_order"),
    "independent",
]


@pytest.mark.parametrize("name", WITHOUT_ROWS)
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


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.0])
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


def positions(geometry):
    """Cells in the order of their ranks (D, A), and cyclic distances between them (D, D)."""
    cells = torch.tensor(list(itertools.product(*(range(size) for size in geometry))))[
        spaced_ranks(geometry).argsort()
    ]
    apart = (cells[:, None] - cells).abs()
    return cells, torch.minimum(apart, torch.tensor(geometry) - apart).double().square().sum(-1).sqrt()


@pytest.mark.parametrize("geometry", [(64,), (256,), (8, 8), (16, 16), (32, 32), (8, 32)])
def test_near_ranks_lie_far_apart(geometry):
    """Blocks of k = 2^i ranks are lattices: no two of their cells are nearer than the spacing (D / k)^(1/A)
    of k cells spread evenly.

    So any k successive ranks, which lie in two such blocks, are two sets each of which is spaced. (In a long
    strip this begins where k is the ratio of its sides.)
    """
    _, apart = positions(geometry)
    size = len(apart)
    apart.fill_diagonal_(math.inf)
    for k in (2**i for i in range(1, size.bit_length() - 1)):
        if k < max(geometry) / min(geometry):
            continue
        nearest = min(apart[i : i + k, i : i + k].min().item() for i in range(0, size, k))
        assert nearest >= (size / k) ** (1 / len(geometry)) - 1e-9, k
    assert apart[:4, :4].min() > 3, "row by row it would be 1"


@pytest.mark.parametrize("geometry", [(100,), (63,), (12, 20), (7, 9), (28, 28)])
def test_other_sizes_are_spaced_too(geometry):
    """The first k ranks, at sizes that are no powers of two: never nearer than 0.35 of the spacing of k cells
    spread evenly."""
    _, apart = positions(geometry)
    size = len(apart)
    apart.fill_diagonal_(math.inf)
    assert torch.equal(spaced_ranks(geometry).sort().values, torch.arange(size))
    for k in range(2, size // 2):
        assert apart[:k, :k].min() >= 0.35 * (size / k) ** (1 / len(geometry)) - 1e-9, k


def test_shifts_go_round_every_axis():
    ranks = spaced_ranks((3, 4))
    shift = torch.tensor([[0, 0], [1, 0], [2, 3]])
    for row, (down, right) in zip(shifted(ranks, (3, 4), shift), shift.tolist(), strict=True):
        assert torch.equal(row.view(3, 4), ranks.view(3, 4).roll((-down, -right), (0, 1)))


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


SHUFFLED = Model(shuffled, mixture("masked", 6), (32,))


def test_an_order_is_learned_where_positions_say_nothing():
    matrix = learned.dependence(SHUFFLED, contexts=16)
    torch.testing.assert_close(matrix, matrix.T)
    apart = (SHUFFLE[:, None] - SHUFFLE).abs()
    assert matrix[apart == 1].mean() > 3 * matrix[apart > 6].mean(), (
        "neighbours of the chain depend most on each other"
    )
    ranks = tauflow.learn_order(SHUFFLED, contexts=16)
    assert torch.equal(ranks, tauflow.learn_order(SHUFFLED, contexts=16)), "the seed decides"
    assert torch.equal(ranks.sort().values, torch.arange(32))
    order = SHUFFLE[ranks.argsort()]
    together = torch.stack([(order[i : i + 4, None] - order[i : i + 4]).abs() for i in range(0, 32, 4)])
    assert (together == 1).double().mean() < 0.03, "a random order has 6 %"
    errors = {}
    for name in ("learned_order", "spaced"):
        tokens = tauflow.sample(dataclasses.replace(SHUFFLED, order=ranks), name, 8, count=256).tokens
        chain = torch.empty_like(tokens)
        chain[:, SHUFFLE] = tokens
        errors[name] = violations(chain, 6).double().mean().item()
    assert errors["learned_order"] < 0.7 * errors["spaced"]


def test_given_data_are_the_contexts():
    data = tauflow.sample(SHUFFLED, "fhs", 32, count=8).tokens
    matrix = learned.dependence(SHUFFLED, data=data)
    apart = (SHUFFLE[:, None] - SHUFFLE).abs()
    assert matrix[apart == 1].mean() > 3 * matrix[apart > 6].mean()


def test_greedy_takes_what_depends_least():
    """Two groups of coordinates that depend on each other only inside: they alternate."""
    matrix = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)).double().fill_diagonal_(0)
    groups = (learned.greedy(matrix).argsort() >= 4).tolist()
    assert all(a != b for a, b in itertools.pairwise(groups))


def test_an_order_lies_beside_its_checkpoint(tmp_path):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    assert learned.read_order(checkpoint, 4) is None
    path = learned.save_order(checkpoint, RANKS)
    assert path == tmp_path / "best.order.json"
    assert torch.equal(learned.read_order(checkpoint, 4), RANKS)
    saved = json.loads(path.read_text())
    del saved["sha256"]  # as in files of version 0.2
    others = [saved | {"ranks": ranks} for ranks in ([0, 1, 2, 2], 3, [0, "1", 2, 3])]
    for text in (*map(json.dumps, others), '{"ranks": [0, 1, 2, 3]}', "[]", "no json"):
        path.write_text(text)
        message = r"doesn't contain an order of 4 coordinates .*, so it isn't used\. Learn it again"
        with pytest.warns(UserWarning, match=message):
            assert learned.read_order(checkpoint, 4) is None
    learned.save_order(checkpoint, RANKS)
    with pytest.warns(UserWarning, match="an order of 5 coordinates"):
        assert learned.read_order(checkpoint, 5) is None
    checkpoint.write_bytes(b"trained further")
    for length in (4, 5):
        message = r"was learned from other weights than .*best\.ckpt has now, so it isn't used"
        with pytest.warns(UserWarning, match=message):
            assert learned.read_order(checkpoint, length) is None


def test_a_loaded_model_has_its_order(trained, tmp_path):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes((trained / "best.ckpt").read_bytes())
    assert tauflow.load(checkpoint).model.order is None
    learned.save_order(checkpoint, torch.arange(16).flip(0))
    model = tauflow.load(checkpoint).model
    assert torch.equal(model.order, torch.arange(16).flip(0))
    assert model.shape == (16,)


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


# Without masks: bridge


WEAK = EnumerableLaw.random(num_tokens=2, length=3, spread=0.2)
FAINT = EnumerableLaw.random(num_tokens=2, length=3, spread=0.02)


@pytest.mark.parametrize(("kind", "law"), [("uniform", WEAK), ("uniform", FAINT), ("marginal", FAINT)])
@pytest.mark.parametrize("schedule", ["linear", "quadratic", "cosine"])
def test_bridge_is_second_order_up_to_the_data(schedule, kind, law):
    """The final draw included, while coordinates depend little on each other; without extrapolation it is
    first order."""
    propagator, counts = Propagator(law, mixture(kind, 2, schedule)), [32, 64, 128]
    assert slope([propagator.error(Bridge(), n) for n in counts], counts) == pytest.approx(2.0, abs=0.1)
    assert slope([propagator.error(Bridge(gain=0.0), n) for n in counts], counts) == pytest.approx(
        1.0, abs=0.1
    )


def test_a_power_of_rows_leaves_a_small_first_order_error():
    """q is a power of p_n / h. What is of second degree in a change of rows does not cancel in the mean, and
    a jump of another coordinate changes rows by much, with a probability of the order of the step. From a
    source with rare tokens, whose jumps say more, this shows at 256 evaluations: 3 % of the error without
    extrapolation is left."""
    propagator, counts = Propagator(WEAK, mixture("marginal", 2)), [128, 256, 512]
    errors, plain = ([propagator.error(Bridge(gain=gain), n) for n in counts] for gain in (None, 0.0))
    assert slope(errors, counts) < 1.3
    assert max(error / other for error, other in zip(errors, plain, strict=True)) < 0.05


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
@pytest.mark.parametrize("nfe", [1, 2, 3, 4, 5, 8, 16])
def test_bridge_is_exact_in_one_dimension(nfe, kind):
    """For any number of evaluations. The network gets float32 times, which hold these kappa = t exactly where
    nfe is a power of two."""
    propagator = Propagator(EnumerableLaw.random(num_tokens=4, length=1, spread=1.0), mixture(kind, 4))
    assert propagator.error(Bridge(), nfe) < (1e-10 if nfe & (nfe - 1) == 0 else 1e-7)


def test_the_early_grid():
    """kappa = u^2 (2 - u^2) whatever the schedule: to the draw at u = (N - 1) / N, to the cutoff, or for
    bridge to 1."""
    for schedule in map(schedule_from, ("linear", "quadratic", "cosine")):
        u = torch.arange(9, dtype=torch.float64) / 8
        process = Mixture(Uniform(2), schedule)
        grid = Bridge().plan(process, 4, 8)
        assert grid.steps == 8
        torch.testing.assert_close(schedule.kappa(grid.t), u**2 * (2 - u**2))
        grid = SAMPLERS["tr_cie"](grid="early").plan(process, 4, 8)
        assert grid.steps == 7
        torch.testing.assert_close(schedule.kappa(grid.t), (u**2 * (2 - u**2))[:8])
        grid = SAMPLERS["tr_cie"](grid="early", finish="none", cutoff=0.01).plan(process, 4, 8)
        assert schedule.kappa(grid.t[-1].item()) == pytest.approx(0.99)
        torch.testing.assert_close(schedule.tau(grid.t), grid.tau)


def test_exponents_of_bridge():
    grid = Bridge().plan(mixture("uniform", 4), 4, 4)
    kappa = [u**2 * (2 - u**2) for u in (0.0, 0.25, 0.5, 0.75, 1.0)]
    half = [0.0] + [(kappa[n + 1] - kappa[n]) / (2 * (kappa[n] - kappa[n - 1])) for n in (1, 2, 3)]
    assert [Bridge().exponent(grid, n) for n in range(4)] == pytest.approx(half)
    gains = [1.0, 1 / (1 + kappa[1]) ** 2, 1 / (1 + kappa[2]) ** 2, 1.0]
    derived = [w * g for w, g in zip(half, gains, strict=True)]
    assert [Bridge(coins="systematic").exponent(grid, n) for n in range(4)] == pytest.approx(derived)
    halved = [Bridge(coins="systematic", gain=0.5).exponent(grid, n) for n in range(4)]
    assert halved == pytest.approx([w / 2 for w in half])


# Systematic coins


def five_errors(share: torch.Tensor, n: int) -> torch.Tensor:
    return 5 * (share * (1 - share) / n).sqrt() + 1e-9


@pytest.mark.parametrize("chance", [0.07, 0.3, 0.5, 0.83, 1.0])
def test_systematic_coins_have_exact_marginals_and_lie_apart(chance):
    n, length = 20_000, 12
    movable = torch.ones(n, length, dtype=torch.bool)
    movable[: n // 2, 3:6] = False
    chosen = torch.zeros(n * length, dtype=torch.bool)
    chosen[toss(movable, chance, "systematic", torch.Generator().manual_seed(0), RASTER)] = True
    chosen = chosen.view(n, length)
    assert not chosen[~movable].any()
    for rows, free in ((chosen[: n // 2], 9), (chosen[n // 2 :], 12)):
        share = torch.where(
            movable[0] if free == 9 else torch.ones(length, dtype=torch.bool), chance, 0.0
        ).double()
        assert ((rows.double().mean(0) - share).abs() <= five_errors(share, n // 2)).all()
        assert set(rows.sum(1).tolist()) <= {
            math.floor(chance * free + 1e-9),
            math.ceil(chance * free - 1e-9),
        }
    gaps = [
        b - a
        for row in chosen[n // 2 :][:500]
        for a, b in itertools.pairwise(row.nonzero().squeeze(1).tolist())
    ]
    assert not gaps or min(gaps) >= math.floor(1 / chance)


# Grids and channels


@pytest.mark.parametrize("grid", [(8, 8), (16, 16), (4, 4, 4)])
def test_a_walk_through_a_grid_goes_from_neighbour_to_neighbour(grid):
    walk = hilbert(grid)
    assert torch.equal(walk.sort().values, torch.arange(math.prod(grid)))
    cells = torch.tensor(list(itertools.product(*(range(size) for size in grid))))[walk]
    assert (cells.diff(dim=0).abs().sum(1) == 1).all()


@pytest.mark.parametrize("grid", [(28, 28), (12, 20), (7, 9)])
def test_a_walk_through_a_grid_of_other_sizes_leaves_no_cell_out_and_stays_near(grid):
    """Steps of the curve skip the cells that the grid has not: 1.2 cells on average, row by row it is more
    than 1.9 at the ends of rows alone."""
    walk = hilbert(grid)
    assert torch.equal(walk.sort().values, torch.arange(math.prod(grid)))
    cells = torch.tensor(list(itertools.product(*(range(size) for size in grid))))[walk].double()
    assert cells.diff(dim=0).norm(dim=1).mean() < 1.2
    patches = cells[: len(cells) // 16 * 16].unflatten(0, (-1, 16))
    assert (patches.amax(1) - patches.amin(1)).amax(1).mean() < 7, (
        "16 cells of the walk are a patch, not a row"
    )


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


@pytest.mark.parametrize("grid", [(16, 16), (28, 28), (7, 9), (4, 4, 4)])
def test_greedy_ranks_are_a_permutation_with_every_cell_far_from_those_before(grid):
    """The first k ranks: never nearer than half of the spacing of k cells spread evenly, at any size."""
    ranks = farthest_ranks(grid)
    size = math.prod(grid)
    assert torch.equal(ranks.sort().values, torch.arange(size))
    cells = torch.tensor(list(itertools.product(*(range(side) for side in grid))))[ranks.argsort()]
    apart = (cells[:, None] - cells).abs()
    apart = torch.minimum(apart, torch.tensor(grid) - apart).double().norm(dim=-1).fill_diagonal_(math.inf)
    for k in range(2, size // 2):
        assert apart[:k, :k].min() >= 0.5 * (size / k) ** (1 / len(grid)) - 1e-9, k


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


@pytest.mark.parametrize("channels", [None, "together", "apart"])
def test_systematic_coins_on_a_grid_have_exact_marginals_and_lie_apart(channels):
    n, shape, chance = 4000, (8, 8) if channels is None else (8, 8, 3), 0.125
    size = math.prod(shape)
    movable = torch.ones(n, size, dtype=torch.bool)
    chosen = torch.zeros(n * size, dtype=torch.bool)
    places = toss(movable, chance, "systematic", torch.Generator().manual_seed(0), walk_of(shape, channels))
    chosen[places] = True
    chosen = chosen.view(n, 8, 8, -1)
    share = torch.full(chosen.shape[1:], chance, dtype=torch.float64)
    assert ((chosen.double().mean(0) - share).abs() <= five_errors(share, n)).all()
    if channels == "together":
        assert (chosen.all(-1) == chosen.any(-1)).all()
    apart = [nearest(row[..., 0]) for row in chosen[:100]]
    assert sum(apart) / 100 > 2, "8 of 64 cells: 2.8 if spread evenly, 1.6 at random"


@pytest.mark.parametrize(("channels", "shape"), [("apart", (12,)), ("sideways", (2, 2, 3)), (3, (2, 2, 3))])
def test_channels_that_do_not_fit_are_refused(channels, shape):
    with pytest.raises(SamplingError, match="channels must be together or apart for a shape of pixels"):
        Model(flat, Mixture(Masked(3), "linear"), shape, channels=channels)


def rows_of(n: int, seed: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).expand(n, 6, 4)


@pytest.mark.parametrize("jump", ["exponential", "one_event"])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_systematic_leap_moves_each_coordinate_with_its_probability(kind, jump):
    """Six coordinates with rows of their own, one of them frozen: each follows the analytic law, as with
    independent coins."""
    n = 40_000
    x = torch.full((n, 6), 4) if kind == "masked" else torch.tensor([0, 1, 2, 3, 0, 1]).expand(n, 6)
    movable = torch.ones(n, 6, dtype=torch.bool)
    movable[:, 2] = False
    denoiser = CallableDenoiser(lambda x, t: rows_of(n, 0), 4)
    term = Term(0.9, Visit(denoiser.evaluate(x, torch.zeros(n)), x, 0.0))
    rule = Rule(jump, coins="systematic")
    jumps = leap(mixture(kind, 4), [term], x, movable, rule, torch.Generator().manual_seed(1))
    rates = 0.9 * rows_of(1, 0)[0].softmax(-1).double()
    if kind != "masked":
        rates.scatter_(1, x[0][:, None], 0)
    rates[2] = 0
    total = rates.sum(-1, keepdim=True)
    expected = rates * (
        -torch.expm1(-total) / total.clamp(min=1e-9) if jump == "exponential" else torch.exp(-total)
    )
    moved = torch.stack([((jumps.x == s) & (jumps.x != x)).double().mean(0) for s in range(4)], -1)
    assert ((moved - expected).abs() <= five_errors(expected, n)).all()
    together = (jumps.x != x)[:, :2].all(1).double().mean().item()
    assert together < 0.7 * expected.sum(-1)[:2].prod().item(), (
        "neighbours move together less often than by chance"
    )


def test_leaping_samplers_take_systematic_coins():
    """From a masked source every candidate of `tr` moves: half of 20 coordinates up to kappa = 1/2, in every
    sequence."""
    states = states_of("tr", flat, Masked(3), (50, 20), 2, coins="systematic")
    assert (states[1] == 3).sum(1).eq(10).all()


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_a_systematic_bridge_moves_each_coordinate_with_its_probability(kind):
    """One step with history, one coordinate frozen: every coordinate has the law (1 - rho) 1{y = x} + rho
    q(y)."""
    n, process, sampler = 40_000, mixture(kind, 4), Bridge(coins="systematic")
    frozen = torch.zeros(n, 6, dtype=torch.bool)
    frozen[:, 4] = True
    problem = Problem.of(Model(lambda x, t: rows_of(n, int(t[0] > 0)), process, (6,)), frozen)
    grid = sampler.plan(process, 6, 5)
    old, x = (torch.tensor(row).expand(n, 6) for row in ([0, 1, 2, 3, 0, 1], [0, 2, 2, 3, 1, 1]))
    state = State(x, problem.visit(old, 0.0))
    after, _ = sampler.step(problem, state, grid, 1, torch.Generator().manual_seed(2))
    rho = -math.expm1(-grid.dtau(1))
    q = sampler.rows(problem, state, problem.visit(x, grid.t[1]), grid, 1, torch.arange(6))
    stay = torch.nn.functional.one_hot(x[0], 4).double()
    expected = (1 - rho) * stay + rho * q
    expected[4] = stay[4]
    found = torch.stack([(after.x == s).double().mean(0) for s in range(4)], -1)
    assert ((found - expected).abs() <= five_errors(expected, n)).all()
    neighbours = ((after.x != x)[:, 0] & (after.x != x)[:, 1]).double().mean().item()
    assert neighbours < 0.1 * (1 - (expected * stay).sum(-1))[:2].prod().item(), (
        "neighbours do not move together"
    )


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
        (Masked(5), "spaced(power=0)", "power must be a number above 0"),
        (Masked(5), "fhs(power=3)", "power belongs to counts=power or entropy, equal counts have none"),
        (Masked(5), "spaced(weight=1.5)", r"weight must be in \[0, 1\]"),
        (Masked(5), "ho_fhs(weight=0.5)", "weight belongs to extrapolation=pairs"),
        (
            Masked(5),
            "learned_order",
            r"there is no learned order: make one with tauflow.learn_order\(model\)",
        ),
        (Masked(5), "bridge", "needs a uniform or marginal source, this model has a masked one"),
        (Uniform(5), "spaced", "need a masked source, this model has a uniform one"),
        (Uniform(5), "bridge(gain=-1)", "gain must be a number of at least 0"),
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


def test_an_order_is_learned_from_a_masked_source_only():
    with pytest.raises(SamplingError, match="needs a masked source; this model has a uniform one"):
        tauflow.learn_order(Model(lambda x, t: torch.zeros(*x.shape, 5), mixture("uniform", 5), (4,)))
    model = Model(lambda x, t: torch.zeros(*x.shape, 5), mixture("masked", 5), (4,))
    with pytest.raises(SamplingError, match=r"data must be a tensor of the shape \(C, 4\)"):
        tauflow.learn_order(model, data=torch.zeros(2, 3).long())


@pytest.mark.parametrize("length", [1, 2, 4, 16])
def test_short_sequences_have_an_order_too(length):
    """A context of a short sequence often hides nothing: it is skipped, and never reaches the network."""

    def model(x, t):
        assert len(x), "an empty batch reached the network"
        return torch.zeros(*x.shape, 3)

    for seed in range(5):
        order = tauflow.learn_order(
            Model(model, Mixture(Masked(3), "linear"), (length,)), contexts=4, nfe=2, seed=seed
        )
        assert sorted(order.tolist()) == list(range(length))
