"""Samplers that choose which coordinates move together: reveal orders, counts and weights; bridge, systematic coins; learned orders.

Statistics: a share p of n independent draws has the standard error sqrt(p (1 - p) / n), and tests allow five; total variations are
allowed what test_sampler_law says. Seeds are fixed.
"""

import itertools
import json
import math

import pytest
import torch
from test_sampler_contract import Rows
from test_sampler_law import allowed, distance, empirical

import tauflow
from tauflow import Masked, Uniform, orders, schedule_from
from tauflow.denoisers import CallableDenoiser
from tauflow.errors import SamplingError
from tauflow.oracles import EnumerableLaw, Propagator, countdown_posterior, slope
from tauflow.samplers import SAMPLERS
from tauflow.samplers.base import Problem, State
from tauflow.samplers.bridge import Bridge
from tauflow.samplers.leap import Clamp, Term, leap, toss
from tauflow.samplers.reveal import Reveal
from tauflow.samplers.spacing import shifted, spaced_ranks
from tauflow.tasks.countdown import violations

LINEAR = schedule_from("linear")
STRONG = EnumerableLaw.random(num_tokens=2, length=4, spread=1.5)
RANKS = torch.tensor([2, 0, 3, 1])


def states_of(sampler, denoiser, source, shape, nfe, **options) -> torch.Tensor:
    """The states that the denoiser is called with, and the end (N + 1, B, D)."""
    states = []

    def model(x, t):
        states.append(x.clone())
        return denoiser(x, t)

    result = tauflow.sample(model, source, "linear", shape, sampler, nfe, **options)
    return torch.stack([*states, result.tokens])


def reveal_step(states: torch.Tensor, mask_id: int) -> torch.Tensor:
    """After which evaluation each coordinate is revealed, (B, D)."""
    return (states == mask_id).sum(0)


# Masked: what is exact


EXACT = [
    *({"order": order, "counts": counts} for order in ("random", "spaced", "learned") for counts in ("equal", "power", "entropy")),
    {"order": "even", "counts": "equal"},
    {"order": "even", "counts": "power", "weight": 1.0},
    {"order": "spaced", "counts": "power", "geometry": (2, 2)},
    {"order": "spaced", "counts": "entropy", "geometry": (2, 2), "power": 3.0},
    {"order": "spaced", "counts": "power", "weight": 1.0},
    {"order": "random", "counts": "equal", "weight": 0.15},
]


@pytest.mark.parametrize("options", EXACT, ids=lambda options: "-".join(str(value) for value in options.values()))
def test_one_token_an_evaluation_is_exact_in_every_order(options):
    """16 sequences of strongly dependent coordinates; two tokens an evaluation are far from exact."""
    count, source, options = 30_000, Masked(2), options | {"ranks": RANKS}

    def exact(x, t):
        return STRONG.posterior(x, t, source, LINEAR).log()

    result = tauflow.sample(exact, source, "linear", (count, 4), Reveal(), 4, **options)
    assert result.nfe == 4
    assert distance(empirical(result.tokens, 2), STRONG.probabilities) < allowed(16, count)
    if not options.get("weight"):
        fewer = tauflow.sample(exact, source, "linear", (count, 4), Reveal(), 2, **options)
        assert distance(empirical(fewer.tokens, 2), STRONG.probabilities) > 2 * allowed(16, count)


def test_pairs_make_up_for_tokens_drawn_together():
    """Random order, two tokens an evaluation, coordinates that depend on each other in pairs: the weighted rows undo most of the error."""
    source, count = Masked(2), 60_000
    spins = 2.0 * torch.tensor(list(itertools.product(range(2), repeat=4))) - 1
    coupling = 0.15 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    law = EnumerableLaw(torch.einsum("nd,de,ne->n", spins, coupling, spins).double().softmax(0), 2, 4)
    errors = {}
    for name in ("fhs", "fhs_pairs"):
        tokens = tauflow.sample(lambda x, t: law.posterior(x, t, source, LINEAR).log(), source, "linear", (count, 4), name, 2).tokens
        errors[name] = distance(empirical(tokens, 2), law.probabilities)
    assert errors["fhs"] > 3 * allowed(16, count)
    assert errors["fhs_pairs"] < 0.5 * errors["fhs"]


def weights_of(sampler, counts: list[int], n: int) -> float:
    """The weight in step n of a sequence that reveals so many coordinates an evaluation."""
    done = sum(counts[:n])
    numbers = [torch.tensor([value]) for value in (sum(counts), done, counts[n - 1], counts[n])]
    free, done, before, count = numbers
    memory = sampler._begin(Problem(None, Masked(2), LINEAR, None, False), torch.full((1, int(free)), 2), len(counts), torch.Generator())
    memory = memory._replace(done=done, count_before=before, t_before=torch.zeros(1))
    weight = sampler._weights(memory, torch.ones(1), memory.order - done, count, torch.tensor([0]))
    return weight.item()


def test_weights_follow_from_the_counts():
    """Between counts: (k_{n-1} - 1) / (2 k_n); in the last step also (k_n - 1) / (2 k_{n-1}); at most `weight`; 0 after one token."""
    assert weights_of(Reveal(weight=1.0), [4, 6, 5], 1) == pytest.approx(3 / 12)
    assert weights_of(Reveal(weight=1.0), [4, 6, 5], 2) == pytest.approx(5 / 10 + 4 / 12)
    assert weights_of(Reveal(weight=1.0), [9, 1, 5], 1) == 1
    assert weights_of(Reveal(weight=0.15), [4, 6, 5], 1) == pytest.approx(0.15)
    assert weights_of(Reveal(weight=0.15), [1, 6, 5], 1) == 0


# Masked: orders and counts


@pytest.mark.parametrize("name", ["fhs", "ho_fhs", "fhs_pairs", "spaced", "spaced_even", "spaced_sharp", "learned_order"])
def test_order_counts_and_shift_do_not_look_at_values(name):
    """Two denoisers that have nothing in common, the same seed: the same coordinates are revealed by the same evaluations."""
    bias = torch.randn(24, 5, generator=torch.Generator().manual_seed(0)) * 4

    def flat(x, t):
        return torch.zeros(*x.shape, 5)

    def sharp(x, t):
        return (bias - bias[:, :1]).expand(*x.shape, 5) + x[..., None] * torch.arange(5)

    options = {"ranks": torch.arange(24).flip(0)}
    first, second = (reveal_step(states_of(name, model, Masked(5), (64, 24), 6, **options), 5) for model in (flat, sharp))
    assert torch.equal(first, second)
    assert first.max() == 6


def test_an_even_step_takes_every_nth_of_what_is_masked():
    """Its coordinates are as far apart as k of M can be, counted in masked coordinates; every one is equally often the first to come."""
    states = states_of("spaced_even", lambda x, t: torch.zeros(*x.shape, 3), Masked(3), (4000, 32), 4)
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
    """Half of the coordinates are known for sure: they are revealed at once, and cost no budget. The others share it, one or more each."""
    logits = torch.zeros(16, 4)
    logits[::2, 0] = 60.0
    step = reveal_step(states_of("entropy_budget", lambda x, t: logits.expand(*x.shape, 4), Masked(4), (50, 16), 4), 4)
    assert (step[:, ::2] == 1).all()
    counts = torch.stack([(step[:, 1::2] == n).sum(1) for n in range(1, 5)])  # (N, B)
    assert counts.sum(0).eq(8).all()
    # budgets, in tokens: 1/16 of 8, 3/15 of 8, 5/12 of 7, and the rest
    assert torch.equal(counts, torch.tensor([[0], [1], [2], [5]]).expand(4, 50))
    sure = reveal_step(states_of("entropy_budget", lambda x, t: 60 * logits[0].expand(*x.shape, 4), Masked(4), (2, 8), 4), 4)
    assert torch.bincount(sure[0], minlength=5).tolist() == [0, 5, 1, 1, 1], "every evaluation has something to reveal"


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.0])
def test_power_counts(power):
    """Each evaluation reveals at least one, all reveal all, and n of them round(F (n / N)^m), unless that leaves one with none."""
    for steps, free in itertools.product(range(1, 20), range(1, 70, 3)):
        if free < steps:
            continue
        found = [int(Reveal(counts="power", power=power).revealed(torch.tensor([free]), n, steps)) for n in range(steps + 1)]
        assert found[0] == 0
        assert found[-1] == free
        assert all(b - a >= 1 for a, b in itertools.pairwise(found))
        wanted = [math.floor(free * (n / steps) ** power + 0.5) for n in range(steps + 1)]
        bounds = [(n, free - (steps - n)) for n in range(steps + 1)]
        assert found == [min(max(value, low), high) for value, (low, high) in zip(wanted, bounds, strict=True)]


def test_counts_of_the_samplers():
    steps = reveal_step(states_of("spaced", lambda x, t: torch.zeros(*x.shape, 3), Masked(3), (5, 64), 8), 3)
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
    tauflow.sample(model, Masked(2), "quadratic", (2, 20), "spaced", 5, prompt=torch.zeros(2, 20).long(), prompt_mask=known)
    free = torch.tensor([20, 12])
    for t, left in zip(times, masks, strict=True):
        torch.testing.assert_close(t.double() ** 2, (free - left) / (free + 1.0).double(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("order", ["spaced", "learned"])
@pytest.mark.parametrize("geometry", [(24,), (4, 6)])
def test_prompts_keep_the_order_of_what_is_free(order, geometry):
    """One token an evaluation: the free coordinates come in the order that they have without a prompt, which costs nothing."""
    options = {"ranks": (7 * torch.arange(24)) % 24, "geometry": geometry}
    known = torch.rand(40, 24, generator=torch.Generator().manual_seed(3)) < 0.5
    known[0] = False  # one sequence without a prompt: as many steps as coordinates
    prompt = {"prompt": torch.zeros(40, 24).long(), "prompt_mask": known}

    def run(**more):
        sampler = Reveal(order=order)
        return reveal_step(states_of(sampler, lambda x, t: torch.zeros(*x.shape, 3), Masked(3), (40, 24), 24, **options, **more), 3)

    plain, prompted = run(), run(**prompt)
    for row, other, fixed in zip(plain, prompted, known, strict=True):
        assert (other[fixed] == 0).all()
        assert torch.equal(row[~fixed].argsort(), other[~fixed].argsort())
    if order == "spaced":
        assert len({tuple(row.tolist()) for row in plain}) > 10, "every sequence has its own shift"
        shifts = torch.tensor(list(itertools.product(*(range(size) for size in geometry))))
        possible = shifted(spaced_ranks(geometry), geometry, shifts)
        assert all((row - 1 == possible).all(1).any() for row in plain), "and it goes round the axes of the geometry"
    else:
        assert torch.equal(plain, (options["ranks"] + 1).expand(40, 24))


def positions(geometry):
    """Cells in the order of their ranks (D, A), and cyclic distances between them (D, D)."""
    cells = torch.tensor(list(itertools.product(*(range(size) for size in geometry))))[spaced_ranks(geometry).argsort()]
    apart = (cells[:, None] - cells).abs()
    return cells, torch.minimum(apart, torch.tensor(geometry) - apart).double().square().sum(-1).sqrt()


@pytest.mark.parametrize("geometry", [(64,), (256,), (8, 8), (16, 16), (32, 32), (8, 32)])
def test_near_ranks_lie_far_apart(geometry):
    """Blocks of k = 2^i ranks are lattices: no two of their cells are nearer than the spacing (D / k)^(1/A) of k cells spread evenly.

    So any k successive ranks, which lie in two such blocks, are two sets each of which is spaced. (In a long strip this begins where k is
    the ratio of its sides.)
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
    """The first k ranks, at sizes that are no powers of two: never nearer than 0.35 of the spacing of k cells spread evenly."""
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
    """Countdown of length 64 with its exact denoiser, 8 evaluations, the same counts: far fewer wrong transitions."""
    source = Masked(8)

    def model(x, t):
        return countdown_posterior(x, t, source, LINEAR, leak=1e-3).log()

    rates = {}
    for order in ("random", "spaced"):
        tokens = tauflow.sample(model, source, LINEAR, (256, 64), Reveal(order=order, counts="power"), 8).tokens
        rates[order] = violations(tokens, 8).double().mean().item()
    assert rates["spaced"] < 0.4 * rates["random"]


# Learned orders


SHUFFLE = torch.randperm(32, generator=torch.Generator().manual_seed(1))


def shuffled(x, t):
    """The exact denoiser of a countdown whose coordinates were shuffled: chain position SHUFFLE[d] stands at d."""
    source = Masked(6)
    chain = torch.empty_like(x)
    chain[:, SHUFFLE] = x
    return countdown_posterior(chain, t, source, LINEAR, leak=1e-3).log()[:, SHUFFLE]


def test_an_order_is_learned_where_positions_say_nothing():
    matrix = orders.dependence(shuffled, Masked(6), LINEAR, 32, contexts=16)
    torch.testing.assert_close(matrix, matrix.T)
    apart = (SHUFFLE[:, None] - SHUFFLE).abs()
    assert matrix[apart == 1].mean() > 3 * matrix[apart > 6].mean(), "neighbours of the chain depend most on each other"
    ranks = tauflow.learn_order(shuffled, Masked(6), LINEAR, 32, contexts=16)
    assert torch.equal(ranks, tauflow.learn_order(shuffled, Masked(6), LINEAR, 32, contexts=16)), "the seed decides"
    assert torch.equal(ranks.sort().values, torch.arange(32))
    order = SHUFFLE[ranks.argsort()]
    together = torch.stack([(order[i : i + 4, None] - order[i : i + 4]).abs() for i in range(0, 32, 4)])
    assert (together == 1).double().mean() < 0.03, "a random order has 6 %"
    errors = {}
    for name in ("learned_order", "spaced"):
        tokens = tauflow.sample(shuffled, Masked(6), LINEAR, (256, 32), name, 8, ranks=ranks).tokens
        chain = torch.empty_like(tokens)
        chain[:, SHUFFLE] = tokens
        errors[name] = violations(chain, 6).double().mean().item()
    assert errors["learned_order"] < 0.7 * errors["spaced"]


def test_given_data_are_the_contexts():
    data = tauflow.sample(shuffled, Masked(6), LINEAR, (8, 32), "fhs", 32).tokens
    matrix = orders.dependence(shuffled, Masked(6), LINEAR, 32, data=data)
    apart = (SHUFFLE[:, None] - SHUFFLE).abs()
    assert matrix[apart == 1].mean() > 3 * matrix[apart > 6].mean()


def test_greedy_takes_what_depends_least():
    """Two groups of coordinates that depend on each other only inside: they alternate."""
    matrix = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)).double().fill_diagonal_(0)
    groups = (orders.greedy(matrix).argsort() >= 4).tolist()
    assert all(a != b for a, b in itertools.pairwise(groups))


def test_an_order_lies_beside_its_checkpoint(tmp_path):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    assert orders.read(checkpoint, 4) is None
    path = orders.save(checkpoint, RANKS)
    assert path == tmp_path / "best.order.json"
    assert torch.equal(orders.read(checkpoint, 4), RANKS)
    saved = json.loads(path.read_text())
    others = [saved | {"ranks": ranks} for ranks in ([0, 1, 2, 2], 3, [0, "1", 2, 3])]
    for text in (*map(json.dumps, others), '{"ranks": [0, 1, 2, 3]}', "[]", "no json"):
        path.write_text(text)
        with pytest.warns(UserWarning, match="does not hold an order of 4 coordinates .* and is not used; learn it again"):
            assert orders.read(checkpoint, 4) is None
    orders.save(checkpoint, RANKS)
    with pytest.warns(UserWarning, match="an order of 5 coordinates"):
        assert orders.read(checkpoint, 5) is None
    checkpoint.write_bytes(b"trained further")
    for length in (4, 5):
        with pytest.warns(UserWarning, match=r"was learned from other weights than .*best.ckpt holds now and is not used; learn it again"):
            assert orders.read(checkpoint, length) is None


def countdown_run(**facts):
    source, task = Masked(5), tauflow.Countdown(length=12, values=5, val_items=8)
    return tauflow.Run(
        task, CallableDenoiser(lambda x, t: countdown_posterior(x, t, source, LINEAR, leak=1e-3).log(), 5), source, LINEAR, **facts
    )


def test_evaluate_hands_over_the_order_and_the_geometry(monkeypatch):
    seen = []
    begin = Reveal._begin
    monkeypatch.setattr(Reveal, "_begin", lambda self, problem, *rest: seen.append(problem) or begin(self, problem, *rest))
    run = countdown_run(ranks=torch.arange(12).flip(0))
    monkeypatch.setattr(type(run.task), "geometry", (3, 4))
    table = tauflow.evaluate(run, "learned_order,spaced", [4], 4)
    assert not table.problems
    assert all(torch.equal(problem.ranks, run.ranks) and problem.geometry == (3, 4) for problem in seen)
    assert tauflow.Countdown(length=12, values=5).seq_len == 12
    with pytest.raises(SamplingError, match="learned_order needs a learned order, and this run has none: make one with"):
        tauflow.evaluate(countdown_run(), "learned_order", [4], 4)


def test_a_loaded_run_has_its_order(trained, tmp_path):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes((trained / "best.ckpt").read_bytes())
    assert tauflow.load(checkpoint).ranks is None
    orders.save(checkpoint, torch.arange(16).flip(0))
    run = tauflow.load(checkpoint)
    assert torch.equal(run.ranks, torch.arange(16).flip(0))
    assert run.task.geometry == (16,)


# Uniform: bridge


WEAK = EnumerableLaw.random(num_tokens=2, length=3, spread=0.2)


@pytest.mark.parametrize("schedule", ["linear", "quadratic", "cosine"])
def test_bridge_is_second_order_up_to_the_data(schedule):
    """The final draw included; without extrapolation it is first order."""
    propagator, counts = Propagator(WEAK, Uniform(2), schedule_from(schedule)), [32, 64, 128]
    assert slope([propagator.error(Bridge(), n) for n in counts], counts) == pytest.approx(2.0, abs=0.1)
    assert slope([propagator.error(Bridge(gain=0.0), n) for n in counts], counts) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("nfe", [1, 2, 3, 4, 5, 8, 16])
def test_bridge_is_exact_in_one_dimension(nfe):
    """For any number of evaluations. The network gets float32 times, which hold these kappa = t exactly where nfe is a power of two."""
    propagator = Propagator(EnumerableLaw.random(num_tokens=4, length=1, spread=1.0), Uniform(4), LINEAR)
    assert propagator.error(Bridge(), nfe) < (1e-10 if nfe & (nfe - 1) == 0 else 1e-7)


def test_the_early_grid():
    """kappa = u^2 (2 - u^2) whatever the schedule: to the draw at u = (N - 1) / N, to the cutoff, or for bridge to 1."""
    for schedule in map(schedule_from, ("linear", "quadratic", "cosine")):
        u = torch.arange(9, dtype=torch.float64) / 8
        grid, steps = Bridge().plan(8, schedule, 4)
        assert steps == 8
        torch.testing.assert_close(schedule.kappa(grid.t), u**2 * (2 - u**2))
        grid, steps = SAMPLERS["tr_cie"](grid="early").plan(8, schedule, 4)
        assert steps == 7
        torch.testing.assert_close(schedule.kappa(grid.t), (u**2 * (2 - u**2))[:8])
        grid, _ = SAMPLERS["tr_cie"](grid="early", finish="none", cutoff=0.01).plan(8, schedule, 4)
        assert schedule.kappa(grid.t[-1].item()) == pytest.approx(0.99)
        torch.testing.assert_close(schedule.tau(grid.t), grid.tau)


def test_exponents_of_bridge():
    grid, _ = Bridge().plan(4, LINEAR, 4)
    kappa = [u**2 * (2 - u**2) for u in (0.0, 0.25, 0.5, 0.75, 1.0)]
    half = [0.0] + [(kappa[n + 1] - kappa[n]) / (2 * (kappa[n] - kappa[n - 1])) for n in (1, 2, 3)]
    assert [Bridge().exponent(grid, n) for n in range(4)] == pytest.approx(half)
    gains = [1.0, 1 / (1 + kappa[1]) ** 2, 1 / (1 + kappa[2]) ** 2, 1.0]
    derived = [w * g for w, g in zip(half, gains, strict=True)]
    assert [Bridge(coins="systematic").exponent(grid, n) for n in range(4)] == pytest.approx(derived)
    assert [Bridge(coins="systematic", gain=0.5).exponent(grid, n) for n in range(4)] == pytest.approx([w / 2 for w in half])


# Systematic coins


def five_errors(share: torch.Tensor, n: int) -> torch.Tensor:
    return 5 * (share * (1 - share) / n).sqrt() + 1e-9


@pytest.mark.parametrize("chance", [0.07, 0.3, 0.5, 0.83, 1.0])
def test_systematic_coins_have_exact_marginals_and_lie_apart(chance):
    n, length = 20_000, 12
    movable = torch.ones(n, length, dtype=torch.bool)
    movable[: n // 2, 3:6] = False
    chosen = torch.zeros(n * length, dtype=torch.bool)
    chosen[toss(movable, chance, "systematic", torch.Generator().manual_seed(0))] = True
    chosen = chosen.view(n, length)
    assert not chosen[~movable].any()
    for rows, free in ((chosen[: n // 2], 9), (chosen[n // 2 :], 12)):
        share = torch.where(movable[0] if free == 9 else torch.ones(length, dtype=torch.bool), chance, 0.0).double()
        assert ((rows.double().mean(0) - share).abs() <= five_errors(share, n // 2)).all()
        assert set(rows.sum(1).tolist()) <= {math.floor(chance * free + 1e-9), math.ceil(chance * free - 1e-9)}
    gaps = [b - a for row in chosen[n // 2 :][:500] for a, b in itertools.pairwise(row.nonzero().squeeze(1).tolist())]
    assert not gaps or min(gaps) >= math.floor(1 / chance)


def rows_of(n: int, seed: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).expand(n, 6, 4)


@pytest.mark.parametrize("jump", ["exponential", "one_event"])
@pytest.mark.parametrize("source", [Masked(4), Uniform(4)])
def test_a_systematic_leap_moves_each_coordinate_with_its_probability(source, jump):
    """Six coordinates with rows of their own, one of them frozen: each follows the analytic law, as with independent coins."""
    n = 40_000
    x = torch.full((n, 6), 4) if isinstance(source, Masked) else torch.tensor([0, 1, 2, 3, 0, 1]).expand(n, 6)
    movable = torch.ones(n, 6, dtype=torch.bool)
    movable[:, 2] = False
    denoiser = CallableDenoiser(lambda x, t: rows_of(n, 0), 4)
    term = Term(0.9, denoiser.evaluate(x, torch.zeros(n)), x, source)
    jumps = leap([term], x, movable, 4, jump, Clamp(), torch.Generator().manual_seed(1), "systematic")
    rates = 0.9 * rows_of(1, 0)[0].softmax(-1).double()
    if isinstance(source, Uniform):
        rates.scatter_(1, x[0][:, None], 0)
    rates[2] = 0
    total = rates.sum(-1, keepdim=True)
    expected = rates * (-torch.expm1(-total) / total.clamp(min=1e-9) if jump == "exponential" else torch.exp(-total))
    moved = torch.stack([((jumps.x == s) & (jumps.x != x)).double().mean(0) for s in range(4)], -1)
    assert ((moved - expected).abs() <= five_errors(expected, n)).all()
    together = (jumps.x != x)[:, :2].all(1).double().mean().item()
    assert together < 0.7 * expected.sum(-1)[:2].prod().item(), "neighbours move together less often than by chance"


def test_leaping_samplers_take_systematic_coins():
    """From a masked source every candidate of `tr` moves: half of 20 coordinates up to kappa = 1/2, in every sequence."""
    states = states_of("tr", lambda x, t: torch.zeros(*x.shape, 3), Masked(3), (50, 20), 2, coins="systematic")
    assert (states[1] == 3).sum(1).eq(10).all()


def test_a_systematic_bridge_moves_each_coordinate_with_its_probability():
    """One step with history, one coordinate frozen: every coordinate has the law (1 - rho) 1{y = x} + rho q(y)."""
    n, source, sampler = 40_000, Uniform(4), Bridge(coins="systematic")
    frozen = torch.zeros(n, 6, dtype=torch.bool)
    frozen[:, 4] = True
    problem = Problem(CallableDenoiser(lambda x, t: rows_of(n, int(t[0] > 0)), 4), source, LINEAR, frozen, False)
    grid, _ = sampler.plan(5, LINEAR, 6)
    old, x = (torch.tensor(row).expand(n, 6) for row in ([0, 1, 2, 3, 0, 1], [0, 2, 2, 3, 1, 1]))
    state = State(x, problem.evaluate(old, 0.0), old)
    after, _ = sampler.step(problem, state, grid, 1, torch.Generator().manual_seed(2))
    rho = -math.expm1(-grid.dtau(1))
    q = sampler.rows(problem, state, problem.evaluate(x, grid.t[1]), grid, 1, torch.arange(6))
    stay = torch.nn.functional.one_hot(x[0], 4).double()
    expected = (1 - rho) * stay + rho * q
    expected[4] = stay[4]
    found = torch.stack([(after.x == s).double().mean(0) for s in range(4)], -1)
    assert ((found - expected).abs() <= five_errors(expected, n)).all()
    neighbours = ((after.x != x)[:, 0] & (after.x != x)[:, 1]).double().mean().item()
    assert neighbours < 0.1 * (1 - (expected * stay).sum(-1))[:2].prod().item(), "neighbours do not move together"


# Rows, requests


def test_only_the_rows_that_move_are_read():
    """Reveal: each row once, twice with history. Bridge: the candidates' rows of now and before; at 64 evaluations rho sums to below 9."""
    shape, size = (8, 256), 8 * 256
    for name, most in (("spaced", 1), ("spaced_sharp", 2), ("fhs_pairs", 2), ("learned_order", 1)):
        model = Rows(5)
        result = tauflow.sample(model, Masked(5), "linear", shape, name, 64, ranks=torch.arange(256))
        assert result.nfe == 64
        assert size <= model.rows <= most * size
    for name in ("bridge", "bridge_systematic"):
        model = Rows(5)
        result = tauflow.sample(model, Uniform(5), "linear", shape, name, 64)
        assert result.nfe == 64
        assert model.rows < 2 * 9 * size < 2 * 64 * size / 6
    model = Rows(5)
    tauflow.sample(model, Uniform(5), "linear", shape, "tr_cie", 64, coins="systematic", grid="early")
    assert model.rows < 2 * 14 * size


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (Masked(5), {"sampler": "spaced", "order": "sorted"}, "order must be one of random, spaced, even, learned"),
        (Masked(5), {"sampler": "spaced_even", "counts": "entropy"}, "order='spaced' or 'random'"),
        (Masked(5), {"sampler": "spaced", "counts": "some"}, "counts must be one of equal, power, entropy"),
        (Masked(5), {"sampler": "spaced", "extrapolation": "linear"}, "extrapolation must be one of pairs, hitting"),
        (Masked(5), {"sampler": "spaced", "power": 0.0}, "power must be a number above 0"),
        (Masked(5), {"sampler": "spaced", "power": math.nan}, "power must be a number above 0"),
        (Masked(5), {"sampler": "fhs", "power": 3.0}, "power belongs to counts='power' or 'entropy'; equal counts have none"),
        (Masked(5), {"sampler": "spaced", "weight": 1.5}, r"weight must be in \[0, 1\]"),
        (Masked(5), {"sampler": "ho_fhs", "weight": 0.5}, "weight belongs to extrapolation='pairs'"),
        (Masked(5), {"sampler": "spaced", "grid": "t"}, "has no option 'grid'; it has: order, counts, power, extrapolation, weight"),
        (Masked(5), {"sampler": "spaced", "geometry": (3, 5)}, "geometry must be whole numbers whose product is 12"),
        (Masked(5), {"sampler": "spaced", "geometry": 12}, "geometry must be whole numbers"),
        (Masked(5), {"sampler": "learned_order"}, "there is no learned order: make one with tauflow.learn_order"),
        (Masked(5), {"sampler": "learned_order", "ranks": torch.zeros(12)}, "ranks must hold each number from 0 to 11 once"),
        (Masked(5), {"sampler": "learned_order", "ranks": torch.arange(5)}, "ranks must hold each number from 0 to 11 once"),
        (Masked(5), {"sampler": "bridge"}, "uniform source only"),
        (Uniform(5), {"sampler": "spaced"}, "masked source only"),
        (Uniform(5), {"sampler": "bridge", "coins": "biased"}, "coins must be one of independent, systematic"),
        (Uniform(5), {"sampler": "bridge", "gain": -1.0}, "gain must be a number of at least 0"),
        (Uniform(5), {"sampler": "tr_cie", "coins": "biased"}, "coins must be one of independent, systematic"),
        (Uniform(5), {"sampler": "bridge", "dense": True}, "dense is the literal algorithm of samplers that leap, not of Bridge"),
        (Uniform(5), {"sampler": "tr_cie", "coins": "systematic", "dense": True}, "independent Poisson counts, not systematic coins"),
        (Uniform(5), {"sampler": "tweedie", "coins": "systematic"}, "has no option 'coins'"),
    ],
)
def test_bad_requests_get_a_sentence(source, options, message):
    with pytest.raises(SamplingError, match=message):
        tauflow.sample(lambda x, t: torch.zeros(*x.shape, 5), source, "linear", (2, 12), **({"nfe": 4} | options))


def test_an_order_is_learned_from_a_masked_source_only():
    with pytest.raises(SamplingError, match="masked source only"):
        tauflow.learn_order(lambda x, t: torch.zeros(*x.shape, 5), Uniform(5), "linear", 4)
    with pytest.raises(SamplingError, match=r"data must have the shape \(C, 4\)"):
        tauflow.learn_order(lambda x, t: torch.zeros(*x.shape, 5), Masked(5), "linear", 4, data=torch.zeros(2, 3).long())
