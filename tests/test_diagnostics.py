"""Diagnostics against numbers made by hand, dense recomputation, closed forms, and the rates that the theory gives.

Laws are enumerable with an exact posterior in float64; times reach a denoiser in float32, so a quantity that is divided by h^2 carries
noise of about 1e-7 / h^2.
"""

import math

import pytest
import torch

import tauflow
from tauflow import Masked, Uniform, schedule_from
from tauflow.denoisers import CallableDenoiser
from tauflow.diagnostics import (
    Events,
    HammingDrift,
    LocalErrors,
    Positivity,
    Proxies,
    TargetPaths,
    kl_decomposition,
    local_error,
    terminal_kl,
)
from tauflow.errors import SamplingError
from tauflow.oracles import EnumerableLaw, Propagator, slope
from tauflow.samplers import SAMPLERS
from tauflow.samplers.base import State, StepInfo
from tauflow.samplers.grids import Grid

LAW = EnumerableLaw.random(num_tokens=3, length=3, spread=1.5)
SMALL = EnumerableLaw.random(num_tokens=2, length=3, spread=1.5)
LINEAR, QUADRATIC = schedule_from("linear"), schedule_from("quadratic")


def exact(law, source, schedule):
    return CallableDenoiser(lambda x, t: law.posterior(x, t, source, schedule).log(), law.num_tokens)


class Recorder:
    """What an observer is given, kept."""

    def __init__(self, *others):
        self.others, self.seen = others, []

    def __call__(self, info, state):
        self.seen.append((info, state))
        for other in self.others:
            other(info, state)


def replay(observer, denoiser, times, states):
    """Shows an observer hand-made states x_0, x_1, ... at the times t_0, t_1, ..., the last one reached and not evaluated."""
    for n in range(len(states) - 1):
        evaluation = denoiser.evaluate(states[n], torch.full((len(states[n]),), times[n], dtype=torch.float32))
        observer(StepInfo(n, times[n], times[n + 1], 0.0), State(states[n + 1], evaluation, states[n]))


# --- proxies ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [[0.1, 0.2, 0.3], [0.1, 0.25, 0.3]])
def test_curvature_is_the_second_derivative_of_a_quadratic(times):
    """p is quadratic in tau for tokens 0 and 1, lam p in t in the second case; token 2, where all coordinates are, takes the rest and is no
    channel. Noise: 1e-7 / 0.05^2 = 4e-5."""
    x = torch.full((2, 3), 2)

    def posterior(x, t, in_tau):
        t = t.double()[:, None, None].expand(*x.shape, 1)
        tau = -torch.log1p(-t)
        two = [0.2 + 0.05 * tau**2, 0.5 - 0.08 * tau**2] if in_tau else [(1 - t) * (0.2 + 0.15 * t**2), (1 - t) * (0.3 - 0.1 * t**2)]
        return torch.cat([*two, 1 - sum(two)], 2).log()

    for in_tau, name, value in ((True, "curv_tau", 0.16), (False, "curv_t", 0.3)):
        denoiser = CallableDenoiser(lambda x, t, in_tau=in_tau: posterior(x, t, in_tau), 3)
        proxies = Proxies(denoiser, Uniform(3), "linear")
        replay(proxies, denoiser, times, [x, x, x])
        (row,) = proxies.records()
        assert row["n"] == 1
        assert row["t"] == times[1]
        assert row[name] == pytest.approx(value, abs=2e-4)
        assert row["drift_tau"] == row["drift_t"] == 0
        time = [-math.log1p(-t) for t in times] if in_tau else times
        before, h = time[1] - time[0], time[2] - time[1]
        assert row["integration" + name[4:]] == pytest.approx((1 / 6 + before / h / 4) * h**3 * value, rel=2e-3)


def test_an_exact_masked_posterior_has_no_curvature_in_tau():
    """It does not depend on t at all; in t the rate lam(t) does."""
    source = Masked(3)
    denoiser = exact(LAW, source, QUADRATIC)
    proxies = Proxies(denoiser, source, QUADRATIC)
    tauflow.sample(denoiser, source, QUADRATIC, (64, 3), "tr_cie", 8, observer=proxies)
    rows = proxies.records()
    assert len(rows) == 6
    assert max(row["curv_tau"] for row in rows) < 1e-10
    assert min(row["curv_t"] for row in rows) > 0.1
    assert max(row["drift_tau"] for row in rows) > 0.1


def test_drift_by_hand():
    """The posterior of a coordinate depends on the other one only. In the first trajectory (0, 0) becomes (0, 1): the differences of the
    intensities are (closed, -0.3, 0.4) and (0.3, closed: -0.5, 0). In the second nothing moves."""
    q = torch.tensor([[0.3, 0.5, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]], dtype=torch.float64)
    denoiser = CallableDenoiser(lambda x, t: q[x.flip(1)].log(), 3)
    x_0, x_1 = torch.tensor([[0, 0], [2, 1]]), torch.tensor([[0, 1], [2, 1]])
    proxies = Proxies(denoiser, Uniform(3), "linear")
    replay(proxies, denoiser, [0.2, 0.3, 0.4], [x_0, x_1, x_1])
    (row,) = proxies.records()
    assert row["drift_tau"] == pytest.approx(0.4 / 2)
    assert row["drift_all_tau"] == pytest.approx(0.5 / 2)
    assert row["drift_t"] == pytest.approx(0.4 / 2 / 0.8)  # lam(0.2) = 1 / (1 - 0.2)
    tau = [-math.log1p(-t) for t in (0.2, 0.3, 0.4)]
    assert row["mismatch_tau"] == pytest.approx((tau[2] - tau[1]) ** 2 / (tau[1] - tau[0]) / 2 * 0.2)
    assert row["ratio_tau"] == pytest.approx(0, abs=1e-6)


def test_drift_of_a_masked_source_by_hand():
    """A coordinate that was revealed closes: it counts in drift_all only. A trajectory with nothing left to move does not count."""
    q = torch.tensor([[0.1, 0.9], [0.6, 0.4], [0.5, 0.5]], dtype=torch.float64)  # by the other coordinate: 0, 1, mask
    denoiser = CallableDenoiser(lambda x, t: q[x.flip(1)].log(), 2)
    x_0, x_1 = torch.tensor([[2, 2], [1, 2]]), torch.tensor([[2, 0], [1, 1]])
    proxies = Proxies(denoiser, Masked(2), "linear")
    replay(proxies, denoiser, [0.2, 0.3, 0.4], [x_0, x_1, x_1])
    (row,) = proxies.records()
    assert row["drift_tau"] == pytest.approx(0.4)  # (0.1, 0.9) - (0.5, 0.5)
    assert row["drift_all_tau"] == pytest.approx(0.5)  # (0, 0) - (0.5, 0.5)


# --- what happened ---------------------------------------------------------------------------------------------------------------------


def test_hamming_drift_by_hand():
    """Batch one moves 4 and 2 of its coordinates in the first step and 1 and 1 in the second, batch two 1 and 0, then 0 and 0."""
    drift = HammingDrift("linear")
    denoiser = CallableDenoiser(lambda x, t: torch.zeros(*x.shape, 3), 3)
    x = torch.zeros(2, 4, dtype=torch.int64)
    first, second = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]), torch.tensor([[2, 1, 1, 1], [1, 1, 0, 2]])
    replay(drift, denoiser, [0.0, 0.5, 0.6], [x, first, second])
    assert drift.ratio("t").value == pytest.approx(10)  # 1 / 0.1, not 3 / 0.5
    single = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]])
    replay(drift, denoiser, [0.0, 0.5, 0.6], [x, single, single])
    ratio = drift.ratio("t")
    assert (ratio.value, ratio.n) == (pytest.approx(5), 1)  # the mean of 1, 1, 0, 0 over h = 0.1
    assert ratio.trajectory_std == pytest.approx(5)
    assert ratio.batch_std == pytest.approx((10 - 1) / 2)  # the batches alone have 10 and 0.5 / 0.5
    in_tau = drift.ratio()
    assert (in_tau.value, in_tau.n) == (pytest.approx(7 / 4 / math.log(2)), 0)  # 2.52, above 0.5 / ln(5 / 4) = 2.24
    assert [row["hamming"] for row in drift.records()] == [7 / 4, 1 / 2]


def test_events_are_those_of_the_result():
    source = Masked(3)
    denoiser, events = exact(LAW, source, QUADRATIC), Events()
    results = [
        tauflow.sample(denoiser, source, QUADRATIC, (size, 3), "tr_cie", 6, finish="none", cutoff=0.3, seed=size, observer=events)
        for size in (16, 48)
    ]
    for name in ("several", "masks"):
        mean = sum(len(result.tokens) * getattr(result.info.steps[2], name) for result in results) / 64
        assert events.records()[2][name] == pytest.approx(mean, rel=1e-5)
    left = sum(len(result.tokens) * result.info.leftover_masks for result in results) / 64
    assert left > 0.1
    assert events.leftover_masks() == pytest.approx(left, rel=1e-5)


@pytest.mark.parametrize("name", ["tr_cie", "cie", "tr_cie_exact"])
@pytest.mark.parametrize("source", [Masked(3), Uniform(3)])
def test_positivity_is_that_of_a_dense_computation(source, name):
    """With a prompt and a temperature, over two batches; every number of the dense computation is written out here again."""
    denoiser, sampler = exact(LAW, source, LINEAR), SAMPLERS[name]()
    frozen = torch.tensor([False, True, False]).expand(64, 3)
    positivity = Positivity(denoiser, source, LINEAR, sampler, frozen=frozen[0])
    recorder = Recorder(positivity)
    for seed in range(2):
        options = {"prompt": torch.ones(64, 3, dtype=torch.int64), "prompt_mask": frozen, "temperature": 0.7, "seed": seed}
        tauflow.sample(denoiser, source, LINEAR, (64, 3), sampler, 9, observer=recorder, **options)
    negative, channels, entries = torch.zeros(128), torch.zeros(128), 0
    batch = -1
    for (before, old), (info, new) in zip(recorder.seen, recorder.seen[1:], strict=False):
        batch += before.n == 0
        if info.n == 0:
            continue
        x_old, x = old.evaluated_at, new.evaluated_at
        h, h_old = info.t_next - info.t, info.t - before.t
        lam, lam_old = (1, 1) if name != "cie" else (1 / (1 - info.t), 1 / (1 - before.t))
        if name != "cie":
            h, h_old = (math.log((1 - a) / (1 - b)) for a, b in ((info.t, info.t_next), (before.t, info.t)))
        where, t_old = (x, before.t) if name == "tr_cie_exact" else (x_old, before.t)
        u, u_old = ((denoiser.evaluate(y, torch.full((64,), t)).dense().log() / 0.7).softmax(-1) for y, t in ((x, info.t), (where, t_old)))
        tokens = torch.arange(3)
        u_old = u_old * (tokens != where[:, :, None]) * source.movable(where)[:, :, None]
        extrapolated = (1 + h / h_old / 2) * lam * u - h / h_old / 2 * lam_old * u_old
        is_open = (source.movable(x) & ~frozen)[:, :, None] & (tokens != x[:, :, None])
        rows = slice(64 * batch, 64 * batch + 64)
        negative[rows] += ((extrapolated < 0) & is_open).sum((1, 2))
        channels[rows] += is_open.sum((1, 2))
        entries += is_open.numel()
    shares = positivity.shares()
    if name == "tr_cie":
        assert negative.sum() > 10
    assert shares["movable"] == pytest.approx(1 - negative.sum().item() / channels.sum().item())
    assert shares["all"] == pytest.approx(1 - negative.sum().item() / entries)
    assert shares["movable_std"] == pytest.approx((negative / channels)[channels > 0].std(correction=0).item(), abs=1e-6)
    assert len(positivity.records()) == len({info.n for info, _ in recorder.seen}) - 1


# --- local error -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "x_old", "order"),
    [
        *(("tr_cie_exact", [0, 1, 0], 3), ("tr_cie", [0, 1, 0], 3), ("cie", [0, 1, 0], 3), ("tr", [0, 1, 0], 2), ("euler", [0, 1, 0], 2)),
        *(("tr_cie", [1, 1, 0], 1), ("tr_cie_exact", [1, 1, 0], 3)),
    ],
)
def test_order_of_the_local_error(name, x_old, order):
    """Theorem exact_error: O(h^3) if the history is that of the frozen state; Theorem cie_error: O(h d_H) if it is not. One-term rules
    have O(h^2). The leading term is off by O(h) relative, at most 0.15 in the slope over these steps."""
    problem = Propagator(SMALL, Uniform(2), QUADRATIC).problem
    x, x_old, sampler = torch.tensor([[0, 1, 0]]), torch.tensor([x_old]), SAMPLERS[name]()
    errors, steps = [], [0.08, 0.04, 0.02, 0.01]
    for h in steps:
        tau = torch.tensor([0.5 - h, 0.5, 0.5 + h], dtype=torch.float64)
        grid = Grid(QUADRATIC.t_from_tau(tau), tau)
        errors.append(local_error(problem, sampler, State(x, problem.evaluate(x_old, grid.t[0]), x_old), grid, 1))
    for field in ("largest", "total"):
        assert slope([getattr(error, field) for error in errors], [1 / h for h in steps]) == pytest.approx(order, abs=0.15)
    assert errors[0].largest < errors[0].total < 6 * errors[0].largest


@pytest.mark.parametrize("source", [Masked(3), Uniform(3)])
def test_local_errors_along_a_run(source):
    """The observer rebuilds each step from what it is shown: the same numbers as from the sampler's own grid and history."""
    denoiser, sampler = exact(LAW, source, QUADRATIC), SAMPLERS["tr_cie"]()
    errors = LocalErrors(denoiser, source, QUADRATIC, sampler)
    recorder = Recorder(errors)
    tauflow.sample(denoiser, source, QUADRATIC, (32, 3), sampler, 6, observer=recorder)
    grid, _ = sampler.plan(6, QUADRATIC, 3)
    problem = Propagator(LAW, source, QUADRATIC).problem
    state = State(recorder.seen[0][1].evaluated_at)
    for row, (info, after) in zip(errors.records(), recorder.seen, strict=True):
        expected = local_error(problem, sampler, state, grid, info.n)
        assert row["largest"] == pytest.approx(expected.largest, rel=1e-6)
        assert row["total"] == pytest.approx(expected.total, rel=1e-6)
        moved = (state.x != state.evaluated_at).sum(1).double() if info.n else torch.zeros(32)
        assert row["hamming"] == pytest.approx(moved.mean().item())
        state = after


# --- KL decomposition ------------------------------------------------------------------------------------------------------------------


def leaping(name, **options):
    return SAMPLERS[name](**({"grid": "tau", "finish": "none", "cutoff": 0.2, "eps_0": 1e-6} | options))


@pytest.mark.parametrize("source", [Masked(2), Uniform(2)])
def test_target_paths_follow_the_mixture_path(source):
    """The exact chain has the marginals of the mixture path. The largest deviation of 27 or 8 frequencies of 20000 paths stays below 4.5
    standard errors, sqrt(p (1 - p) / 20000) <= 0.0036, except once in 5000 seeds."""
    propagator = Propagator(SMALL, source, QUADRATIC)
    generator = torch.Generator().manual_seed(0)
    paths = TargetPaths(propagator.problem, source.sample((20000, 3), generator), generator)
    for kappa in (0.4, 0.8):
        x = paths.until(-math.log(1 - kappa))
        index = (x * source.num_states ** torch.arange(2, -1, -1)).sum(1)
        found, p = torch.bincount(index, minlength=len(propagator.states)) / 20000, propagator.marginal(kappa)
        assert ((found - p).abs() / (p * (1 - p) / 20000).sqrt().clamp(min=1e-9)).max() < 4.5


def test_path_kl_in_closed_form():
    """One masked coordinate: u = p while it is masked and Euler's mu-hat is c_n p, c_n = h lam(t_n) / dtau. The path KL is the sum over
    steps of d_Breg(1, c_n) times the chance to leave the mask in the step, the integration term has h P(masked at tau_n) for it. The chance
    is counted on 4000 paths: a standard error below 3 % (it is reported)."""
    law, sampler = EnumerableLaw(torch.tensor([0.3, 0.7], dtype=torch.float64), 2, 1), leaping("euler")
    grid, steps = sampler.plan(6, LINEAR, 1)
    path = integration = 0.0
    for n in range(steps):
        c = grid.dt(n) / (1 - grid.t[n].item()) / grid.dtau(n)
        price = c - 1 - math.log(c)
        path += price * (math.exp(-grid.tau[n]) - math.exp(-grid.tau[n + 1]))
        integration += price * grid.dtau(n) * math.exp(-grid.tau[n])
    terms = kl_decomposition(law, Masked(2), LINEAR, sampler, 6, paths=4000)
    assert terms.path == pytest.approx(path, abs=4 * terms.path_error)
    assert terms.path_error < 0.03 * path
    assert terms.integration == pytest.approx(integration, rel=0.05)
    assert terms.freeze == pytest.approx(0, abs=1e-9)
    assert terms.variation == pytest.approx(0, abs=1e-9)


def test_integration_term_by_enumeration():
    """Two steps of tr_cie on one uniform coordinate with 3 tokens: x_0 is uniform, x_1 has the chain's kernel, from its master equation by
    the midpoint rule; the history has no rate to x_0, where it was made. With 20000 paths three seeds are within 2 % of each other; a
    history that is closed at x_1 instead gives 40 % less."""
    law, source, sampler = (
        EnumerableLaw(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), 3, 1),
        Uniform(3),
        leaping("tr_cie", cutoff=0.5),
    )
    h, states = math.log(2) / 2, torch.arange(3)[:, None]

    def rates(tau):
        """p(s | x) at tau by (x, s), without the diagonal."""
        t = LINEAR.t_from_tau(torch.full((3,), tau, dtype=torch.float64))
        return law.posterior(states, t, source, LINEAR)[:, 0] * (1 - torch.eye(3))

    def price(average, mu, x):
        return sum((a * math.log(a / b) - a + b) for s, (a, b) in enumerate(zip(average.tolist(), mu.tolist(), strict=True)) if s != x)

    fine = [[rates(h * (n + (k + 0.5) / 200)) for k in range(200)] for n in range(2)]
    means = [sum(step) / 200 for step in fine]
    kernel = torch.eye(3, dtype=torch.float64)
    for u in fine[0]:
        kernel = kernel @ torch.linalg.matrix_exp(h / 200 * (u - torch.diag(u.sum(1))))
    first, second = rates(0.0), rates(h)
    expected = 0.0
    for x in range(3):
        expected += h / 3 * price(means[0][x], first[x].clamp(min=1e-6), x)
        for y in range(3):
            mu = (1.5 * second[y] - 0.5 * first[x]).clamp(min=1e-6)
            expected += h / 3 * kernel[x, y].item() * price(means[1][y], mu, y)
    terms = kl_decomposition(law, source, LINEAR, sampler, 2, paths=20000)
    assert terms.integration == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("source", [Masked(2), Uniform(2)])
@pytest.mark.parametrize("name", ["tr", "tr_cie"])
def test_the_path_kl_is_above_the_terminal_kl_and_below_its_terms(source, name):
    """Theorem app_pathkl at two budgets, with four standard errors to spare; Eq. kl_decomp with the Lipschitz constant that was seen, where
    a channel that is open only after a jump adds at most the floor, eps_0 D tau_N."""
    for nfe in (8, 16):
        terms = kl_decomposition(SMALL, source, QUADRATIC, leaping(name), nfe, paths=500)
        assert terms.path - 4 * terms.path_error > terminal_kl(SMALL, source, QUADRATIC, leaping(name), nfe) > 0
        assert terms.lipschitz < math.log(2 / 1e-6)  # C_Phi = ln(M / eps_0) with rates below 2
        assert terms.path <= terms.integration + terms.lipschitz * (terms.freeze + terms.variation) + 1e-6 * 3 * math.log(5)


def test_the_terms_fall_as_they_should():
    """Freezing and variation are O(h) (App. bounds). d_Breg is quadratic where rates agree, so the integration term is O(h^2) for tr, and
    for tr_cie_exact O(h^3), which is its first step, a tr step; for tr_cie it is O(h), from histories that differ. With 500 paths seeds 0
    to 4 gave slopes from 0.90 to 1.09 for freezing, 0.98 to 1.02 for variation, 1.95 to 2.00 and 3.20 to 3.21 for integration."""
    counts, terms, slopes = [8, 16, 32], {}, {}
    for name in ("tr", "tr_cie_exact", "tr_cie"):
        sampler = leaping(name)
        nfes = [sampler.evaluations(count) for count in counts]
        terms[name] = [kl_decomposition(SMALL, Uniform(2), QUADRATIC, sampler, nfe, paths=500, nodes=4) for nfe in nfes]
        values = {field: [getattr(term, field) for term in terms[name]] for field in ("freeze", "variation", "integration")}
        slopes[name] = {field: slope(numbers, counts) for field, numbers in values.items()}
    assert slopes["tr"]["freeze"] == pytest.approx(1, abs=0.15)
    assert slopes["tr"]["variation"] == pytest.approx(1, abs=0.05)
    assert slopes["tr"]["integration"] == pytest.approx(2, abs=0.1)
    assert slopes["tr_cie_exact"]["integration"] == pytest.approx(3.2, abs=0.1)
    assert slopes["tr_cie"]["integration"] == pytest.approx(1, abs=0.2)
    for tr, tr_cie in zip(terms["tr"], terms["tr_cie"], strict=True):  # on the same paths: the bound is worse, the law better
        assert tr_cie.freeze == tr.freeze
        assert tr_cie.integration > 3 * tr.integration
        assert tr_cie.path > tr.path
    tr, tr_cie = (terminal_kl(SMALL, Uniform(2), QUADRATIC, leaping(name), 16) for name in ("tr", "tr_cie"))
    assert tr_cie < 0.1 * tr


# --- manners ---------------------------------------------------------------------------------------------------------------------------


def observers(denoiser, source, schedule, sampler):
    with_sampler = (Positivity, LocalErrors)
    return [
        *(Events(), HammingDrift(schedule), Proxies(denoiser, source, schedule)),
        *(kind(denoiser, source, schedule, sampler) for kind in with_sampler),
    ]


@pytest.mark.parametrize("source", [Masked(3), Uniform(3)])
def test_observers_change_neither_samples_nor_counts(source):
    denoiser, sampler = exact(LAW, source, QUADRATIC), SAMPLERS["tr_cie"]()
    alone = tauflow.sample(denoiser, source, QUADRATIC, (32, 3), sampler, 8, seed=3)
    for observer in observers(denoiser, source, QUADRATIC, sampler):
        result = tauflow.sample(denoiser, source, QUADRATIC, (32, 3), sampler, 8, seed=3, observer=observer)
        assert torch.equal(result.tokens, alone.tokens)
        assert result.nfe == alone.nfe
        assert result.info.steps == alone.info.steps


@pytest.mark.parametrize("source", [Masked(3), Uniform(3)])
def test_two_batches_are_one_of_both(source):
    """Every number is kept by trajectory, so a record of two batches is the mean of theirs, weighted by the trajectories that count."""
    denoiser, sampler = exact(LAW, source, QUADRATIC), SAMPLERS["tr_cie"]()

    def watched(*seeds):
        group = observers(denoiser, source, QUADRATIC, sampler)
        for seed in seeds:
            tauflow.sample(denoiser, source, QUADRATIC, (8 * (seed + 1), 3), sampler, 8, seed=seed, observer=Recorder(*group))
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


def test_what_cannot_be_measured_is_refused():
    source = Uniform(2)
    denoiser = exact(SMALL, source, QUADRATIC)
    with pytest.raises(SamplingError, match="does not keep"):
        tauflow.sample(denoiser, source, QUADRATIC, (4, 3), "theta_trapezoidal", 9, observer=Proxies(denoiser, source, QUADRATIC))
    with pytest.raises(SamplingError, match="not Theta"):
        Positivity(denoiser, source, QUADRATIC, SAMPLERS["theta_rk2"]())
    with pytest.raises(SamplingError, match="give it eps_0"):
        kl_decomposition(SMALL, source, QUADRATIC, leaping("tr", eps_0=0.0), 8)
    with pytest.raises(SamplingError, match="finish='none'"):
        terminal_kl(SMALL, source, QUADRATIC, leaping("tr", finish="draw"), 8)
