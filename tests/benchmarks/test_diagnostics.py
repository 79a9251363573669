"""Diagnostics against numbers made by hand, dense recomputation, closed forms, and the rates that the theory
gives.

Laws are enumerable with an exact posterior in float64; times reach a denoiser in float32, so a quantity that
is divided by h^2 carries noise of about 1e-7 / h^2.
"""

import math

import pytest
import torch
from helpers import SOURCES, mixture

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.local_error import LocalErrors, local_error
from benchmarks.theory.observers import Events, HammingDrift, Positivity, Proxies
from benchmarks.theory.path_kl import TargetPaths, kl_decomposition, terminal_kl
from benchmarks.theory.propagator import Propagator, slope
from tauflow import Model
from tauflow.errors import SamplingError
from tauflow.samplers import SAMPLERS, Problem, State, StepInfo, sampler_from
from tauflow.samplers.grids import Grid

LAW = EnumerableLaw.random(num_tokens=3, length=3, spread=1.5)
SMALL = EnumerableLaw.random(num_tokens=2, length=3, spread=1.5)


def exact(law, kind, schedule="quadratic") -> Model:
    return law.model(mixture(kind, law.num_tokens, schedule))


class Recorder:
    """What an observer is given, kept."""

    def __init__(self, *others):
        self.others = others
        self.seen = []

    def __call__(self, info, state):
        self.seen.append((info, state))
        for other in self.others:
            other(info, state)


def replay(observer, model, times, states):
    """Shows an observer hand-made states x_0, x_1, ... at the times t_0, t_1, ..., the last one reached and
    not evaluated."""
    problem = Problem(model)
    for n in range(len(states) - 1):
        posterior = problem.evaluate(states[n], times[n])
        observer(StepInfo(n, times[n], times[n + 1], 0.0), State(states[n + 1], posterior))


# Proxies


@pytest.mark.parametrize("times", [[0.1, 0.2, 0.3], [0.1, 0.25, 0.3]])
def test_curvature_is_the_second_derivative_of_a_quadratic(times):
    """p is quadratic in tau for tokens 0 and 1, lam p in t in the second case; token 2, where all coordinates
    are, takes the rest and is no channel. Noise: 1e-7 / 0.05^2 = 4e-5."""
    x = torch.full((2, 3), 2)

    def posterior(x, t, in_tau):
        t = t.double()[:, None, None].expand(*x.shape, 1)
        tau = -torch.log1p(-t)
        two = [(1 - t) * (0.2 + 0.15 * t**2), (1 - t) * (0.3 - 0.1 * t**2)]
        if in_tau:
            two = [0.2 + 0.05 * tau**2, 0.5 - 0.08 * tau**2]
        return torch.cat([*two, 1 - sum(two)], 2).log()

    for in_tau, name, value in ((True, "curv_tau", 0.16), (False, "curv_t", 0.3)):
        model = Model(lambda x, t, in_tau=in_tau: posterior(x, t, in_tau), mixture("uniform", 3), (3,))
        proxies = Proxies(model)
        replay(proxies, model, times, [x, x, x])
        (row,) = proxies.records()
        assert row["n"] == 1
        assert row["t"] == times[1]
        assert row[name] == pytest.approx(value, abs=2e-4)
        assert row["drift_tau"] == row["drift_t"] == 0
        time = [-math.log1p(-t) for t in times] if in_tau else times
        before, h = time[1] - time[0], time[2] - time[1]
        assert row["integration" + name[4:]] == pytest.approx(
            (1 / 6 + before / h / 4) * h**3 * value, rel=2e-3
        )


def test_an_exact_masked_posterior_has_no_curvature_in_tau():
    """It does not depend on t at all; in t the rate lam(t) does."""
    model = exact(LAW, "masked")
    proxies = Proxies(model)
    tauflow.sample(model, "tr_cie", 8, count=64, observer=proxies)
    rows = proxies.records()
    assert len(rows) == 6
    assert max(row["curv_tau"] for row in rows) < 1e-10
    assert min(row["curv_t"] for row in rows) > 0.1
    assert max(row["drift_tau"] for row in rows) > 0.1


def test_drift_by_hand():
    """The posterior of a coordinate depends on the other one only. In the first trajectory (0, 0) becomes (0,
    1): the differences of the intensities are (closed, -0.3, 0.4) and (0.3, closed: -0.5, 0). In the second
    nothing moves."""
    q = torch.tensor([[0.3, 0.5, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]], dtype=torch.float64)
    model = Model(lambda x, t: q[x.flip(1)].log(), mixture("uniform", 3), (2,))
    x_0, x_1 = torch.tensor([[0, 0], [2, 1]]), torch.tensor([[0, 1], [2, 1]])
    proxies = Proxies(model)
    replay(proxies, model, [0.2, 0.3, 0.4], [x_0, x_1, x_1])
    (row,) = proxies.records()
    assert row["drift_tau"] == pytest.approx(0.4 / 2)
    assert row["drift_all_tau"] == pytest.approx(0.5 / 2)
    assert row["drift_t"] == pytest.approx(0.4 / 2 / 0.8)  # lam(0.2) = 1 / (1 - 0.2)
    tau = [-math.log1p(-t) for t in (0.2, 0.3, 0.4)]
    assert row["mismatch_tau"] == pytest.approx((tau[2] - tau[1]) ** 2 / (tau[1] - tau[0]) / 2 * 0.2)
    assert row["ratio_tau"] == pytest.approx(0, abs=1e-6)


def test_drift_of_a_masked_source_by_hand():
    """A coordinate that was revealed closes: it counts in drift_all only. A trajectory with nothing left to
    move does not count."""
    # by the other coordinate: 0, 1, mask
    q = torch.tensor([[0.1, 0.9], [0.6, 0.4], [0.5, 0.5]], dtype=torch.float64)
    model = Model(lambda x, t: q[x.flip(1)].log(), mixture("masked", 2), (2,))
    x_0, x_1 = torch.tensor([[2, 2], [1, 2]]), torch.tensor([[2, 0], [1, 1]])
    proxies = Proxies(model)
    replay(proxies, model, [0.2, 0.3, 0.4], [x_0, x_1, x_1])
    (row,) = proxies.records()
    assert row["drift_tau"] == pytest.approx(0.4)  # (0.1, 0.9) - (0.5, 0.5)
    assert row["drift_all_tau"] == pytest.approx(0.5)  # (0, 0) - (0.5, 0.5)


# What happened


def test_hamming_drift_by_hand():
    """Batch one moves 4 and 2 of its coordinates in the first step and 1 and 1 in the second, batch two 1 and
    0, then 0 and 0."""
    model = Model(lambda x, t: torch.zeros(*x.shape, 3), mixture("uniform", 3), (4,))
    drift = HammingDrift(model.process)
    x = torch.zeros(2, 4, dtype=torch.int64)
    first, second = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]), torch.tensor([[2, 1, 1, 1], [1, 1, 0, 2]])
    replay(drift, model, [0.0, 0.5, 0.6], [x, first, second])
    assert drift.ratio("t").value == pytest.approx(10)  # 1 / 0.1, not 3 / 0.5
    single = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]])
    replay(drift, model, [0.0, 0.5, 0.6], [x, single, single])
    ratio = drift.ratio("t")
    assert (ratio.value, ratio.n) == (pytest.approx(5), 1)  # the mean of 1, 1, 0, 0 over h = 0.1
    assert ratio.trajectory_std == pytest.approx(5)
    assert ratio.batch_std == pytest.approx((10 - 1) / 2)  # the batches alone have 10 and 0.5 / 0.5
    in_tau = drift.ratio()
    assert in_tau.value == pytest.approx(7 / 4 / math.log(2))  # 2.52, above 0.5 / ln(5 / 4) = 2.24
    assert in_tau.n == 0
    assert [row["hamming"] for row in drift.records()] == [7 / 4, 1 / 2]


def test_events_are_those_of_the_result():
    model, events = exact(LAW, "masked"), Events()
    sampler = "tr_cie(finish=none, cutoff=0.3)"
    results = [tauflow.sample(model, sampler, 6, count=size, seed=size, observer=events) for size in (16, 48)]
    for name in ("several", "masks"):
        mean = sum(len(result.tokens) * getattr(result.info.steps[2], name) for result in results) / 64
        assert events.records()[2][name] == pytest.approx(mean, rel=1e-5)
    left = sum(len(result.tokens) * result.info.leftover_masks for result in results) / 64
    assert left > 0.1
    assert events.leftover_masks() == pytest.approx(left, rel=1e-5)


@pytest.mark.parametrize("name", ["tr_cie", "cie", "tr_cie_exact"])
@pytest.mark.parametrize("kind", SOURCES)
def test_positivity_is_that_of_a_dense_computation(kind, name):
    """With a prompt and a temperature, over two batches; every number of the dense computation is written out
    here again."""
    model, sampler = exact(LAW, kind, "linear").tempered(0.7), sampler_from(name)
    process = model.process
    frozen = torch.tensor([False, True, False]).expand(64, 3)
    positivity = Positivity(model, sampler, frozen=frozen[0])
    recorder = Recorder(positivity)
    for seed in range(2):
        prompt = (torch.ones(64, 3, dtype=torch.int64), frozen)
        tauflow.sample(model, sampler, 9, count=64, prompt=prompt, seed=seed, observer=recorder)
    negative, channels, entries = torch.zeros(128), torch.zeros(128), 0
    batch = -1
    for (before, old), (info, new) in zip(recorder.seen, recorder.seen[1:], strict=False):
        batch += before.n == 0
        if info.n == 0:
            continue
        x_old, x = old.posterior.x, new.posterior.x
        h, h_old = info.t_next - info.t, info.t - before.t
        lam, lam_old = (1, 1) if name != "cie" else (1 / (1 - info.t), 1 / (1 - before.t))
        if name != "cie":
            ends = ((info.t, info.t_next), (before.t, info.t))
            h, h_old = (math.log((1 - a) / (1 - b)) for a, b in ends)
        where, t_old = (x, before.t) if name == "tr_cie_exact" else (x_old, before.t)
        u, u_old = (
            model.denoiser.evaluate(y, torch.full((64,), t)).dense() for y, t in ((x, info.t), (where, t_old))
        )
        tokens = torch.arange(3)
        u_old = u_old * (tokens != where[:, :, None]) * process.movable(where)[:, :, None]
        extrapolated = (1 + h / h_old / 2) * lam * u - h / h_old / 2 * lam_old * u_old
        is_open = (process.movable(x) & ~frozen)[:, :, None] & (tokens != x[:, :, None])
        rows = slice(64 * batch, 64 * batch + 64)
        negative[rows] += ((extrapolated < 0) & is_open).sum((1, 2))
        channels[rows] += is_open.sum((1, 2))
        entries += is_open.numel()
    shares = positivity.shares()
    if name == "tr_cie":
        assert negative.sum() > 10
    assert shares["movable"] == pytest.approx(1 - negative.sum().item() / channels.sum().item())
    assert shares["all"] == pytest.approx(1 - negative.sum().item() / entries)
    spread = (negative / channels)[channels > 0].std(correction=0).item()
    assert shares["movable_std"] == pytest.approx(spread, abs=1e-6)
    assert len(positivity.records()) == len({info.n for info, _ in recorder.seen}) - 1


# Local error


@pytest.mark.parametrize(
    ("name", "x_old", "order"),
    [
        ("tr_cie_exact", [0, 1, 0], 3),
        ("tr_cie", [0, 1, 0], 3),
        ("cie", [0, 1, 0], 3),
        ("tr", [0, 1, 0], 2),
        ("euler", [0, 1, 0], 2),
        ("tr_cie", [1, 1, 0], 1),
        ("tr_cie_exact", [1, 1, 0], 3),
    ],
)
def test_order_of_the_local_error(name, x_old, order):
    """Theorem exact_error: O(h^3) if the history is that of the frozen state; Theorem cie_error: O(h d_H) if
    it is not. One-term rules have O(h^2). The leading term is off by O(h) relative, at most 0.15 in the slope
    over these steps."""
    problem = Problem(exact(SMALL, "uniform"))
    x, x_old = torch.tensor([[0, 1, 0]]), torch.tensor([x_old])
    errors, steps = [], [0.08, 0.04, 0.02, 0.01]
    for h in steps:
        tau = torch.tensor([0.5 - h, 0.5, 0.5 + h], dtype=torch.float64)
        grid = Grid(problem.process.t_from_clock(tau), tau)
        errors.append(local_error(problem, name, State(x, problem.evaluate(x_old, grid.t[0])), grid, 1))
    for field in ("largest", "total"):
        values = [getattr(error, field) for error in errors]
        assert slope(values, [1 / h for h in steps]) == pytest.approx(order, abs=0.15)
    assert errors[0].largest < errors[0].total < 6 * errors[0].largest


@pytest.mark.parametrize("kind", SOURCES)
def test_local_errors_along_a_run(kind):
    """The observer rebuilds each step from what it is shown: the same numbers as from the sampler's own grid
    and history."""
    model, sampler = exact(LAW, kind), SAMPLERS["tr_cie"]()
    errors = LocalErrors(model, "tr_cie")
    recorder = Recorder(errors)
    tauflow.sample(model, sampler, 6, count=32, observer=recorder)
    grid = sampler.plan(model.process, 3, 6)
    problem = Problem(model)
    state = State(recorder.seen[0][1].posterior.x)
    for row, (info, after) in zip(errors.records(), recorder.seen, strict=True):
        expected = local_error(problem, sampler, state, grid, info.n)
        assert row["largest"] == pytest.approx(expected.largest, rel=1e-6)
        assert row["total"] == pytest.approx(expected.total, rel=1e-6)
        moved = (state.x != state.posterior.x).sum(1).double() if info.n else torch.zeros(32)
        assert row["hamming"] == pytest.approx(moved.mean().item())
        state = after


# KL decomposition


def leaping(name, **options):
    return SAMPLERS[name](**({"grid": "tau", "finish": "none", "cutoff": 0.2, "eps_0": 1e-6} | options))


@pytest.mark.parametrize("kind", SOURCES)
def test_target_paths_follow_the_mixture_path(kind):
    """The exact chain has the marginals of the mixture path. The largest deviation of 27 or 8 frequencies of
    20000 paths stays below 4.5 standard errors, sqrt(p (1 - p) / 20000) <= 0.0036, except once in 5000
    seeds."""
    process = mixture(kind, 2, "quadratic")
    propagator = Propagator(SMALL, process)
    generator = torch.Generator().manual_seed(0)
    paths = TargetPaths(propagator.problem, process.start((20000, 3), generator), generator)
    for kappa in (0.4, 0.8):
        x = paths.until(-math.log(1 - kappa))
        index = (x * process.num_states ** torch.arange(2, -1, -1)).sum(1)
        found = torch.bincount(index, minlength=len(propagator.states)) / 20000
        p = propagator.marginal(kappa)
        assert ((found - p).abs() / (p * (1 - p) / 20000).sqrt().clamp(min=1e-9)).max() < 4.5


def test_path_kl_in_closed_form():
    """One masked coordinate: u = p while it is masked and Euler's mu-hat is c_n p, c_n = h lam(t_n) / dtau.
    The path KL is the sum over steps of d_Breg(1, c_n) times the chance to leave the mask in the step, the
    integration term has h P(masked at tau_n) for it. The chance is counted on 4000 paths: a standard error
    below 3 % (it is reported)."""
    law, sampler = EnumerableLaw(torch.tensor([0.3, 0.7], dtype=torch.float64), 2, 1), leaping("euler")
    process = mixture("masked", 2)
    grid = sampler.plan(process, 1, 6)
    path = integration = 0.0
    for n in range(grid.steps):
        c = grid.dt(n) / (1 - grid.t[n].item()) / grid.dtau(n)
        price = c - 1 - math.log(c)
        path += price * (math.exp(-grid.tau[n]) - math.exp(-grid.tau[n + 1]))
        integration += price * grid.dtau(n) * math.exp(-grid.tau[n])
    terms = kl_decomposition(law, process, sampler, 6, paths=4000)
    assert terms.path == pytest.approx(path, abs=4 * terms.path_error)
    assert terms.path_error < 0.03 * path
    assert terms.integration == pytest.approx(integration, rel=0.05)
    assert terms.freeze == pytest.approx(0, abs=1e-9)
    assert terms.variation == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_integration_term_by_enumeration(kind):
    """Two steps of tr_cie on one coordinate with 3 tokens: x_0 follows the source, x_1 has the chain's
    kernel, from its master equation by the midpoint rule; the history has no rate to x_0, where it was made.
    With 20000 paths three seeds are within 2 % of each other; a history that is closed at x_1 instead gives
    40 % less."""
    law = EnumerableLaw(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 3, 1)
    process, sampler = mixture(kind, 3), leaping("tr_cie", cutoff=0.5)
    start = process.start_distribution().tolist()
    h, states = math.log(2) / 2, torch.arange(3)[:, None]

    def rates(tau):
        """p(s | x) at tau by (x, s), without the diagonal."""
        t = process.t_from_clock(torch.full((3,), tau, dtype=torch.float64))
        return law.posterior(states, t, process)[:, 0] * (1 - torch.eye(3))

    def price(average, mu, x):
        pairs = zip(average.tolist(), mu.tolist(), strict=True)
        return sum((a * math.log(a / b) - a + b) for s, (a, b) in enumerate(pairs) if s != x)

    fine = [[rates(h * (n + (k + 0.5) / 200)) for k in range(200)] for n in range(2)]
    means = [sum(step) / 200 for step in fine]
    kernel = torch.eye(3, dtype=torch.float64)
    for u in fine[0]:
        kernel = kernel @ torch.linalg.matrix_exp(h / 200 * (u - torch.diag(u.sum(1))))
    first, second = rates(0.0), rates(h)
    expected = 0.0
    for x in range(3):
        expected += h * start[x] * price(means[0][x], first[x].clamp(min=1e-6), x)
        for y in range(3):
            mu = (1.5 * second[y] - 0.5 * first[x]).clamp(min=1e-6)
            expected += h * start[x] * kernel[x, y].item() * price(means[1][y], mu, y)
    terms = kl_decomposition(law, process, sampler, 2, paths=20000)
    assert terms.integration == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("name", ["tr", "tr_cie"])
def test_the_path_kl_is_above_the_terminal_kl_and_below_its_terms(kind, name):
    """Theorem app_pathkl at two budgets, with four standard errors to spare; Eq. kl_decomp with the Lipschitz
    constant that was seen, where a channel that is open only after a jump adds at most the floor, eps_0 D
    tau_N."""
    process, floor = mixture(kind, 2, "quadratic"), 1e-6 * 3 * math.log(5)
    for nfe in (8, 16):
        terms = kl_decomposition(SMALL, process, leaping(name), nfe, paths=500)
        assert terms.path - 4 * terms.path_error > terminal_kl(SMALL, process, leaping(name), nfe) > 0
        assert terms.lipschitz < math.log(2 / 1e-6)  # C_Phi = ln(M / eps_0) with rates below 2
        moving = terms.lipschitz * (terms.freeze + terms.variation)
        assert terms.path <= terms.integration + moving + floor


def test_the_terms_fall_as_they_should():
    """Freezing and variation are O(h) (App. bounds). d_Breg is quadratic where rates agree, so the
    integration term is O(h^2) for tr, and for tr_cie_exact O(h^3), which is its first step, a tr step; for
    tr_cie it is O(h), from histories that differ. With 500 paths seeds 0 to 4 gave slopes from 0.90 to 1.09
    for freezing, 0.98 to 1.02 for variation, 1.95 to 2.00 and 3.20 to 3.21 for integration."""
    process = mixture("uniform", 2, "quadratic")
    counts, terms, slopes = [8, 16, 32], {}, {}
    for name in ("tr", "tr_cie_exact", "tr_cie"):
        sampler = leaping(name)
        nfes = [sampler.evaluations(count) for count in counts]
        terms[name] = [kl_decomposition(SMALL, process, sampler, nfe, paths=500, nodes=4) for nfe in nfes]
        slopes[name] = {
            field: slope([getattr(term, field) for term in terms[name]], counts)
            for field in ("freeze", "variation", "integration")
        }
    assert slopes["tr"]["freeze"] == pytest.approx(1, abs=0.15)
    assert slopes["tr"]["variation"] == pytest.approx(1, abs=0.05)
    assert slopes["tr"]["integration"] == pytest.approx(2, abs=0.1)
    assert slopes["tr_cie_exact"]["integration"] == pytest.approx(3.2, abs=0.1)
    assert slopes["tr_cie"]["integration"] == pytest.approx(1, abs=0.2)
    # on the same paths: the bound is worse, the law better
    for tr, tr_cie in zip(terms["tr"], terms["tr_cie"], strict=True):
        assert tr_cie.freeze == tr.freeze
        assert tr_cie.integration > 3 * tr.integration
        assert tr_cie.path > tr.path
    tr, tr_cie = (terminal_kl(SMALL, process, leaping(name), 16) for name in ("tr", "tr_cie"))
    assert tr_cie < 0.1 * tr


# Manners


def observers(model, sampler):
    return [
        Events(),
        HammingDrift(model.process),
        Proxies(model),
        Positivity(model, sampler),
        LocalErrors(model, sampler),
    ]


@pytest.mark.parametrize("kind", SOURCES)
def test_observers_change_neither_samples_nor_counts(kind):
    model, sampler = exact(LAW, kind), SAMPLERS["tr_cie"]()
    alone = tauflow.sample(model, sampler, 8, count=32, seed=3)
    for observer in observers(model, sampler):
        result = tauflow.sample(model, sampler, 8, count=32, seed=3, observer=observer)
        assert torch.equal(result.tokens, alone.tokens)
        assert result.nfe == alone.nfe
        assert result.info.steps == alone.info.steps


@pytest.mark.parametrize("kind", SOURCES)
def test_two_batches_are_one_of_both(kind):
    """Every number is kept by trajectory, so a record of two batches is the mean of theirs, weighted by the
    trajectories that count."""
    model, sampler = exact(LAW, kind), SAMPLERS["tr_cie"]()

    def watched(*seeds):
        group = observers(model, sampler)
        for seed in seeds:
            tauflow.sample(model, sampler, 8, count=8 * (seed + 1), seed=seed, observer=Recorder(*group))
        return group

    for both, *parts in zip(watched(0, 1), watched(0), watched(1), strict=True):
        for row in both.records():
            n = row["n"]
            parted = [part.values(n) for part in parts if n in [other["n"] for other in part.records()]]
            torch.testing.assert_close(both.values(n), torch.cat(parted), equal_nan=True)
            for name in set(both.names) & set(row):
                mean = torch.cat(parted).nanmean(0)[both.names.index(name)].item()
                assert row[name] == pytest.approx(mean, nan_ok=True)
                assert type(row[name]) is float


class Two:
    """Two laws by a label: 0 is LAW, 1 is the same with its tokens turned round; a dropped label is LAW."""

    conditions = (2,)

    def __init__(self, process):
        self.process = process

    def __call__(self, x, t, condition):
        plain = LAW.posterior(x, t, self.process)
        turned = LAW.posterior((2 - x) % 4, t, self.process).flip(-1)  # 2 - 3 is the mask again
        return torch.where(condition[:, :, None] == 1, turned, plain).log()


@pytest.mark.parametrize("kind", ["masked", "uniform"])
@pytest.mark.parametrize("label", [0, 1])
def test_conditions_reach_the_evaluations_of_an_observer(kind, label):
    """Numbers of a labelled model are those of a model of the label's law alone, guided and tempered
    alike."""
    process = mixture(kind, 3)
    both = Model(Two(process), process, (3,))
    condition = torch.tensor([label])
    one = Model(lambda x, t: Two(process)(x, t, condition.expand(len(x), 1)), process, (3,))
    other = Model(lambda x, t: Two(process)(x, t, torch.full((len(x), 1), -1)), process, (3,))
    pairs = [(both, one), (both.guided(1.5), one.guided(1.5, other)), (both.tempered(0.8), one.tempered(0.8))]
    for labelled, alone in pairs:
        for given in (condition, condition.expand(16, 1)):
            kinds = [(Proxies, {}), (Positivity, {"sampler": "tr_cie"}), (LocalErrors, {"sampler": "tr_cie"})]
            for observer, options in kinds:
                first, second = observer(labelled, **options, condition=given), observer(alone, **options)
                tauflow.sample(labelled, "tr_cie", 6, count=16, condition=given, observer=first)
                tauflow.sample(alone, "tr_cie", 6, count=16, observer=second)
                for row, expected in zip(first.records(), second.records(), strict=True):
                    assert row == pytest.approx(expected, nan_ok=True)


def test_what_cannot_be_measured_is_refused():
    model = exact(SMALL, "uniform")
    process = model.process
    with pytest.raises(SamplingError, match="does not keep"):
        tauflow.sample(model, "theta_trapezoidal", 9, count=4, observer=Proxies(model))
    with pytest.raises(SamplingError, match="does not keep"):
        Events()(StepInfo(0, 0.0, 0.5, 0.0), State(torch.zeros(1, 3).long()))
    with pytest.raises(SamplingError, match="not Theta"):
        Positivity(model, "theta_rk2")
    with pytest.raises(SamplingError, match="this network takes no condition"):
        tauflow.sample(model, "tr", 4, observer=Proxies(model, condition=torch.tensor([1])))
    with pytest.raises(SamplingError, match="give it eps_0"):
        kl_decomposition(SMALL, process, leaping("tr", eps_0=0.0), 8)
    with pytest.raises(SamplingError, match="finish='none'"):
        terminal_kl(SMALL, process, leaping("tr", finish="draw"), 8)
