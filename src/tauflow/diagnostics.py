"""What the paper's theory speaks of, measured: observers of a run, and the KL decomposition on enumerable laws.

An observer is given to `tauflow.sample(observer=...)`, to one call or to several: step 0 begins a new batch. It draws nothing, and makes
the evaluations that it needs besides the sampler's through its own denoiser, so neither the samples nor their NFE change.

Symbols: u_tau(s; x)^d = p(s | x)^d, the rate of the channel (d, s) in tau, and lam(t) p(s | x)^d in t. A channel is open at x if the
coordinate may move and s is not its token; the intensity of a closed one is 0. h_n is the step from n to n + 1, r = h_n / h_{n-1}, and
d_H counts the coordinates that differ. Shapes: B trajectories, D coordinates, V data tokens, R rows.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tauflow.denoisers import CountingDenoiser, Evaluation, denoiser_from
from tauflow.errors import SamplingError
from tauflow.oracles import EnumerableLaw, Propagator
from tauflow.samplers.base import Problem, State, StepInfo
from tauflow.samplers.grids import Grid
from tauflow.samplers.leap import CHUNK, Clamp, Term, draw, intensities
from tauflow.samplers.leaping import Leaping
from tauflow.schedules import Schedule, schedule_from
from tauflow.sources import Masked, Source

UNCLAMPED = Clamp(-math.inf, math.inf)
EPS_DEN = 1e-8  # epsilon_den of the drift proxy
DOMAINS = ("tau", "t")


@dataclass(frozen=True)
class Step:
    """One step as an observer sees it: from x = x_n to x_next = x_{n+1}, with the evaluation at (t_n, x_n), and the step before."""

    info: StepInfo
    x: Tensor  # (B, D)
    x_next: Tensor  # (B, D)
    evaluation: Evaluation
    before: "Step | None"

    def grid(self, schedule: Schedule) -> tuple[Grid, int]:
        """The times t_{n-1}, t_n, t_{n+1} (the first step has no t_{n-1}), and the number of this step among them."""
        before = [self.before.info.t] if self.before else []
        t = torch.tensor([*before, self.info.t, self.info.t_next], dtype=torch.float64)
        return Grid(t, schedule.tau(t)), len(before)

    def state(self) -> State:
        """What the sampler had when it began the step."""
        return State(self.x, self.before.evaluation, self.before.x) if self.before else State(self.x)


class Diagnostic(ABC):
    """An observer that keeps a few named numbers of every trajectory at every step; NaN means that the trajectory does not count there."""

    names: ClassVar[tuple[str, ...]]

    def __init__(self):
        self._batch, self._before, self._found = -1, None, {}

    @abstractmethod
    def measure(self, step: Step) -> Tensor | None:
        """(B, len(names)), or None where the step has none."""

    def __call__(self, info: StepInfo, state: State) -> None:
        first = info.n == 0
        self._batch, before = self._batch + first, None if first else self._before
        step = Step(info, before.x_next if before else state.evaluated_at, state.x, state.evaluation, before)
        values = self.measure(step)
        if values is not None:
            self._found[self._batch, info.n] = info, values.double().cpu()
        self._before = dataclasses.replace(step, before=None)

    def values(self, n: int, batch: int | None = None) -> Tensor:
        """What was measured at step n, (all trajectories, len(names))."""
        return torch.cat([found for (b, m), (_, found) in self._found.items() if m == n and batch in (None, b)])

    def records(self) -> list[dict[str, float]]:
        """One row a step: n, t_n, t_{n+1}, and the mean of each number over the trajectories that count."""
        infos = {n: info for (_, n), (info, _) in sorted(self._found.items(), reverse=True)}
        rows = []
        for n in sorted(infos):
            means = dict(zip(self.names, self.values(n).nanmean(0).tolist(), strict=True))
            rows.append({"n": n, "t": infos[n].t, "t_next": infos[n].t_next, **means})
        return rows


class Events(Diagnostic):
    """What the steps report of themselves: the shares that moved, were clamped, had several events, are still masked."""

    names = ("moved", "clamped", "several", "masks")

    def measure(self, step):
        return torch.tensor([[getattr(step.info, name) for name in self.names]]).expand(len(step.x), -1)

    def leftover_masks(self) -> float:
        """Share of coordinates that are still masked after the last step, before finishing."""
        last = {batch: found for (batch, _), (_, found) in sorted(self._found.items())}
        return torch.cat(list(last.values()))[:, self.names.index("masks")].mean().item()


class HammingDrift(Diagnostic):
    """R = max_n E[d_H(x_{n+1}, x_n)] / h_n over the transitions made, without the finishing draw (hamming:drift, tab:drift_scaling).

    For samplers that evaluate the denoiser at x_n: all but theta_trapezoidal, whose first step would be counted from its middle.
    """

    names = ("hamming",)

    def __init__(self, schedule: Schedule | str):
        super().__init__()
        self.schedule = schedule_from(schedule)

    def measure(self, step):
        return (step.x_next != step.x).sum(1, keepdim=True)

    def records(self):
        """Adds h and E[d_H] / h in both domains, and the standard deviation of d_H over trajectories."""
        rows = []
        for row in super().records():
            h = {"tau": self.schedule.tau(row["t_next"]) - self.schedule.tau(row["t"]), "t": row["t_next"] - row["t"]}
            ratios = {f"ratio_{domain}": row["hamming"] / h[domain] for domain in DOMAINS}
            std = self.values(row["n"]).std(correction=0).item()
            rows.append(row | {"std": std, "h_tau": h["tau"], "h_t": h["t"]} | ratios)
        return rows

    def ratio(self, domain: str = "tau") -> "Ratio":
        """R with h in `tau` (the domain of Corollary cie_expected) or in `t`."""
        rows = self.records()
        top = max(rows, key=lambda row: row[f"ratio_{domain}"])
        batches = [
            max(self.values(row["n"], batch).mean().item() / row[f"h_{domain}"] for row in rows if (batch, row["n"]) in self._found)
            for batch in range(self._batch + 1)
        ]
        return Ratio(top[f"ratio_{domain}"], top["std"] / top[f"h_{domain}"], float(np.std(batches)), top["n"])


@dataclass(frozen=True)
class Ratio:
    """R, and two spreads of it: of d_H / h over trajectories at the step n of the maximum, and of each batch's own R over batches."""

    value: float
    trajectory_std: float
    batch_std: float
    n: int


class Reevaluating(Diagnostic):
    """A diagnostic with a denoiser of its own. `frozen` (D,) or (B, D) is true on the prompt; the temperature is that of the run."""

    def __init__(self, denoiser, source: Source, schedule: Schedule | str, frozen: Tensor | None = None):
        super().__init__()
        self.denoiser = CountingDenoiser(denoiser_from(denoiser, source))
        self.problem = Problem(self.denoiser, source, schedule_from(schedule), frozen, dense=False)

    def __call__(self, info, state):
        at = state.evaluation.t
        if at is not None and not torch.allclose(at.double(), torch.full_like(at.double(), info.t), atol=1e-6):
            raise SamplingError(
                f"{type(self).__name__} needs the evaluation at (t_n, x_n), which this sampler does not keep; use tr_cie, tr or euler"
            )
        self.denoiser.temperature = state.evaluation.temperature
        super().__call__(info, state)


class Proxies(Reevaluating):
    """Curv(n) and Drift(n) of App. drift_analysis (fig:stiffness_analysis), in tau and in t, from the second step on.

    Curv is the largest |second derivative| of u(s; x_n) by divided differences at t_{n-1}, t_n, t_{n+1}, on a uniform grid the paper's;
    Drift the largest |u_{n-1}(s; x_n) - u_{n-1}(s; x_{n-1})| d_H / (d_H + eps_den). Both over the channels that are open at x_n, whose
    intensities the step needs; `drift_all` also over those that have closed since x_{n-1}. `integration` and `mismatch` are the two terms
    of the bound that the proxies stand for (Eq. app_lite_local), (1/6 + 1/(4 r)) h^3 Curv and (r/2) h Drift. A record is the mean, over the
    trajectories with an open channel, of the maximum over channels.
    """

    names = tuple(f"{name}_{domain}" for domain in DOMAINS for name in ("curv", "drift", "drift_all", "integration", "mismatch"))

    def measure(self, step):
        if not step.before:
            return None
        problem, x, before = self.problem, step.x, step.before
        (grid, _), now = step.grid(problem.schedule), problem.movable(x)
        at_x = [problem.evaluate(x, before.info.t), step.evaluation, problem.evaluate(x, step.info.t_next)]
        jumps = (x != before.x).sum(1)
        share = jumps / (jumps + EPS_DEN)
        columns = []
        for domain in DOMAINS:
            rate = [1.0] * 3 if domain == "tau" else problem.schedule.rate_factor(grid.t).tolist()
            time = grid.tau if domain == "tau" else grid.t
            earlier, h = time.diff().tolist()
            weights = [2 / (earlier * (earlier + h)), -2 / (earlier * h), 2 / (h * (earlier + h))]
            bend = [problem.term(weights[i] * rate[i], at_x[i], x) for i in range(3)]
            shift = [problem.term(rate[0], at_x[0], x), problem.term(-rate[0], before.evaluation, before.x)]
            curv, drift = largest(bend, now, x), share * largest(shift, now, x)
            drift_all = share * largest(shift, problem.movable(before.x) & now.any(1, keepdim=True))
            r = h / earlier
            columns += [curv, drift, drift_all, (1 / 6 + 1 / (4 * r)) * h**3 * curv, r / 2 * h * drift]
        return torch.stack(columns, 1)

    def records(self):
        """Adds ratio = Curv / Drift, the paper's, and bound_ratio = integration / mismatch, both of means, in each domain."""
        rows = super().records()
        for row in rows:
            for domain in DOMAINS:
                row[f"ratio_{domain}"] = _ratio(row[f"curv_{domain}"], row[f"drift_{domain}"])
                row[f"bound_ratio_{domain}"] = _ratio(row[f"integration_{domain}"], row[f"mismatch_{domain}"])
        return rows


def largest(terms: list[Term], coordinates: Tensor, x: Tensor | None = None) -> Tensor:
    """max |sum of the terms| over the channels of the coordinates (B, D), or only those open at x; NaN where there is none, (B,)."""
    peak = torch.full((coordinates.numel(),), -math.inf, dtype=torch.float64, device=coordinates.device)
    for index in _chunks(coordinates, terms[0].source.num_tokens):
        total = sum(term.rates(index) for term in terms) if x is None else intensities(terms, index, x, UNCLAMPED)[0]
        peak[index] = total.abs().amax(1).double()
    peak = peak.view_as(coordinates).amax(1)
    return peak.where(peak >= 0, math.nan)


class Positivity(Reevaluating):
    """Share of the extrapolated intensities that are nonnegative before clamping (tab:positive_pct_tasks), from the second step on.

    Unlike StepInfo.clamped, over all rows and not only those that the sampler reads. `movable` is over the open channels; `all` over all
    D V entries of a sequence, where those that are no open channel count as nonnegative: the paper does not say which it means.
    """

    names = ("negative", "open", "entries")

    def __init__(self, denoiser, source, schedule, sampler: Leaping, frozen: Tensor | None = None):
        super().__init__(denoiser, source, schedule, frozen)
        self.sampler = _leaping(sampler)

    def measure(self, step):
        if not step.before:
            return None
        x, source = step.x, self.problem.source
        movable = self.problem.movable(x)
        terms, _ = self.sampler.terms(self.problem, step.state(), *step.grid(self.problem.schedule))
        negative = torch.zeros(x.numel(), dtype=torch.float64, device=x.device)
        for index in _chunks(movable, source.num_tokens):
            negative[index] = (intensities(terms, index, x, UNCLAMPED)[0] < 0).sum(1).double()
        channels = source.num_tokens - (not isinstance(source, Masked))  # of a movable coordinate
        entries = torch.full((len(x),), float(x.shape[1] * source.num_tokens), device=x.device)
        return torch.stack([negative.view_as(x).sum(1), movable.sum(1) * channels, entries], 1)

    def records(self):
        return [
            {"n": row["n"], "t": row["t"], "t_next": row["t_next"]} | dict(zip(("movable", "all"), self._shares(values), strict=True))
            for row, values in ((row, self.values(row["n"]).sum(0)) for row in super().records())
        ]

    def shares(self) -> dict[str, float]:
        """Over all steps: `movable` and `all`, with the standard deviations of a trajectory's own share."""
        by_batch = {}
        for (batch, _), (_, found) in self._found.items():
            by_batch[batch] = by_batch.get(batch, 0) + found
        counts = torch.cat(list(by_batch.values()))  # (trajectories, 3)
        movable, everything = self._shares(counts.sum(0))
        counts = counts[counts[:, 1] > 0]  # a trajectory without an open channel has no share
        spread = (counts[:, :1] / counts[:, 1:]).std(0, correction=0).tolist()
        return {"movable": movable, "movable_std": spread[0], "all": everything, "all_std": spread[1]}

    @staticmethod
    def _shares(counts: Tensor) -> tuple[float, float]:
        negative, channels, entries = counts.tolist()
        return 1 - negative / channels if channels else 1.0, 1 - negative / entries


class LocalErrors(Reevaluating):
    """`local_error` along a run, beside d_H(x_n, x_{n-1}) and h: the two sides of Theorem cie_error and Corollary cie_expected."""

    names = ("largest", "total", "hamming", "h")

    def __init__(self, denoiser, source, schedule, sampler: Leaping, nodes: int = 16, frozen: Tensor | None = None):
        super().__init__(denoiser, source, schedule, frozen)
        self.sampler, self.nodes = _leaping(sampler), nodes

    def measure(self, step):
        grid, n = step.grid(self.problem.schedule)
        errors = _local_errors(self.problem, self.sampler, step.state(), grid, n, self.nodes).cpu()
        hamming = (step.x != step.before.x).sum(1) if step.before else torch.zeros(len(step.x))
        return torch.column_stack([errors, hamming.cpu(), torch.full((len(errors),), grid.dtau(n))])


@dataclass(frozen=True)
class LocalError:
    """|Lambda-hat - Lambda(x_n)|: its largest channel and its sum over channels, each a mean over trajectories."""

    largest: float
    total: float


def local_error(problem: Problem, sampler: Leaping, state: State, grid: Grid, n: int, nodes: int = 16) -> LocalError:
    """Error of the cumulative intensity of step n at the frozen state (Theorems exact_error, cie_error).

    Lambda-hat is the sampler's own from `state` (x_n and, for n > 0, the evaluation and the state of step n - 1), clamped as the sampler
    uses it; Lambda the integral of u_tau(s; x_n) over the step by Gauss-Legendre quadrature in tau.
    """
    return LocalError(*_local_errors(problem, _leaping(sampler), state, grid, n, nodes).nanmean(0).tolist())


@torch.no_grad()
def _local_errors(problem: Problem, sampler: Leaping, state: State, grid: Grid, n: int, nodes: int) -> Tensor:
    """Largest and sum over channels, (B, 2); NaN where nothing may move."""
    x, movable = state.x, problem.movable(state.x)
    terms, clamp = sampler.terms(problem, state, grid, n)
    error = intensities(terms, slice(None), x, clamp)[0].double()  # (B * D, V)
    for tau, weight in _quadrature(grid.tau[n].item(), grid.tau[n + 1].item(), nodes):
        error -= weight * _intensity(problem, x, tau)
    error = (error.abs() * movable.flatten()[:, None]).view(len(x), -1)  # (B, D V)
    return torch.stack([error.amax(1), error.sum(1)], 1).where(movable.any(1, keepdim=True), math.nan)


@dataclass(frozen=True)
class KLTerms:
    """Estimates over target paths (Theorem app_pathkl, Eq. kl_decomp). `freeze` and `variation` are without their factor C_Phi; `lipschitz`
    is the largest quotient that C_Phi has to bound (Eq. app_breg_lip) that was seen. `path_error` is the standard error of `path`."""

    path: float
    freeze: float
    variation: float
    integration: float
    lipschitz: float
    path_error: float


@torch.no_grad()
def kl_decomposition(
    law: EnumerableLaw,
    source: Source,
    schedule: Schedule | str,
    sampler: Leaping,
    nfe: int,
    paths: int = 1000,
    seed: int = 0,
    nodes: int = 8,
) -> KLTerms:
    """KL of the target's paths from the sampler's on [0, tau_N], and the three terms that bound it; the finishing is no part of it.

    Paths X of the exact chain are simulated by thinning; on them the sampler's mu-hat is what it would do from X's own grid states and
    history, clamped to [eps_0, M] (Eq. app_hatmu_def). The floor is needed: without it a jump that the sampler gives no rate makes the KL
    infinite. From a uniform source that is every jump back to the token of x_n within a step, whose mu-hat is eps_0. Integrals over a step
    are Gauss-Legendre sums in tau, of expectations, which are smooth. Closed channels count nowhere, in both processes.
    """
    if not _leaping(sampler).eps_0 > 0:
        raise SamplingError("the path KL of a sampler without a floor is infinite; give it eps_0, for example eps_0=1e-6")
    schedule = schedule_from(schedule)
    problem = Propagator(law, source, schedule).problem
    grid, steps = sampler.plan(nfe, schedule, law.length)
    generator = torch.Generator().manual_seed(seed)
    target = TargetPaths(problem, source.sample((paths, law.length), generator), generator)
    path, freeze, variation, integration = torch.zeros(4, paths, dtype=torch.float64)
    lipschitz, state = 0.0, State(target.x)
    for n in range(steps):
        x_n, h = state.x, grid.dtau(n)
        terms, clamp = sampler.terms(problem, state, grid, n)
        mu = (intensities(terms, slice(None), x_n, clamp)[0] / h).clamp(sampler.eps_0, sampler.ceiling)  # (paths * D, V)
        times = _quadrature(grid.tau[n].item(), grid.tau[n + 1].item(), nodes)
        frozen = [_intensity(problem, x_n, tau) for tau, _ in times]  # u_tau(x_n)
        mean = sum(weight * u for (_, weight), u in zip(times, frozen, strict=True)) / h  # u-bar_n
        start = _open(problem, x_n)
        integration += h * _over_channels(bregman(mean, mu), start, paths)
        for (tau, weight), still in zip(times, frozen, strict=True):
            x = target.until(tau)
            u, now = _intensity(problem, x, tau), _open(problem, x)
            path += weight * _over_channels(bregman(u, mu), now, paths)
            freeze += weight * _over_channels((u - still).abs(), now, paths)
            variation += weight * _over_channels((still - mean).abs(), start, paths)
            lipschitz = max(lipschitz, _quotient(u, still, mu, now), _quotient(still, mean, mu, start))
        state = State(target.until(grid.tau[n + 1].item()), terms[0].evaluation, x_n)
    means = (values.mean().item() for values in (path, freeze, variation, integration))
    return KLTerms(*means, lipschitz, path.std().item() / math.sqrt(paths))


def terminal_kl(law: EnumerableLaw, source: Source, schedule: Schedule | str, sampler: Leaping, nfe: int) -> float:
    """KL(p_{tau_N} || q_{tau_N}), exact: of the mixture path at the cutoff from what the sampler reaches; at most the path KL."""
    if _leaping(sampler).finishing != "none":
        raise SamplingError(f"the terminal KL is that at the cutoff; use finish='none' instead of {sampler.finishing!r}")
    propagator = Propagator(law, source, schedule_from(schedule))
    p, q = propagator.marginal(1 - sampler.cutoff), propagator.terminal_law(sampler, nfe)
    return torch.xlogy(p, p / q).nan_to_num(nan=0.0).sum().item()  # p = q = 0: no mass, no term


def bregman(a: Tensor, b: Tensor) -> Tensor:
    """a ln(a / b) - a + b, the KL of two Poisson rates (Eq. app_breg)."""
    return torch.xlogy(a, a / b) - a + b


class TargetPaths:
    """Exact paths of the target chain in tau, by thinning: a coordinate's posterior sums to 1, so candidates come at rate 1 for each
    coordinate, and a candidate at tau is a draw from the posterior of (tau, X); the own token is no move."""

    def __init__(self, problem: Problem, x_0: Tensor, generator: torch.Generator):
        self.problem, self.x, self.generator = problem, x_0, generator
        self._next = self._gaps(len(x_0))  # tau of the next candidate of each path

    def until(self, tau: float) -> Tensor:
        """The states just before tau (B, D), which may only grow."""
        length, problem = self.x.shape[1], self.problem
        while len(late := (self._next < tau).nonzero().squeeze(1)):
            x = self.x[late]
            place = torch.randint(length, late.shape, generator=self.generator) + length * torch.arange(len(late))
            evaluation = problem.evaluate(x, problem.schedule.t_from_tau(self._next[late]))
            tokens = draw(evaluation, place, problem.source.num_tokens, self.generator)
            moves = problem.movable(x).flatten()[place]
            x.view(-1)[place[moves]] = tokens[moves]
            self.x = self.x.index_copy(0, late, x)
            self._next[late] += self._gaps(len(late))
        return self.x

    def _gaps(self, count: int) -> Tensor:
        return -torch.log1p(-torch.rand(count, generator=self.generator, dtype=torch.float64)) / self.x.shape[1]


def _intensity(problem: Problem, x: Tensor, tau: float) -> Tensor:
    """u_tau(s; x) (B * D, V)."""
    return problem.term(1.0, problem.evaluate(x, problem.schedule.t_from_tau(tau)), x).rates(slice(None)).double()


def _open(problem: Problem, x: Tensor) -> Tensor:
    """Which channels are open at x, (B * D, V)."""
    tokens = torch.arange(problem.source.num_tokens, device=x.device)
    return problem.movable(x).flatten()[:, None] & (tokens != x.flatten()[:, None])


def _over_channels(values: Tensor, channels: Tensor, paths: int) -> Tensor:
    return (values * channels).view(paths, -1).sum(1)


def _quotient(a: Tensor, b: Tensor, mu: Tensor, channels: Tensor) -> float:
    """max |d_Breg(a, mu) - d_Breg(b, mu)| / |a - b| over the channels where a and b differ by more than rounding."""
    gap = (a - b).abs()
    quotient = (bregman(a, mu) - bregman(b, mu)).abs() / gap.clamp(min=1e-6)
    return (quotient * (channels & (gap > 1e-6))).max().item()


def _quadrature(start: float, end: float, nodes: int) -> list[tuple[float, float]]:
    """Gauss-Legendre nodes in (start, end), in order, with their weights."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    half = (end - start) / 2
    return [(start + half * (1 + place), half * weight) for place, weight in zip(places.tolist(), weights.tolist(), strict=True)]


def _chunks(coordinates: Tensor, num_tokens: int):
    """Places of the true coordinates, a few megabytes of rows at a time."""
    places = coordinates.flatten().nonzero().squeeze(1)
    return places.split(max(1, CHUNK // num_tokens)) if len(places) else ()


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.inf if above > 0 else math.nan


def _leaping(sampler) -> Leaping:
    if not isinstance(sampler, Leaping):
        raise SamplingError(f"this diagnostic knows euler, tr, cie, tr_cie and tr_cie_exact, not {type(sampler).__name__}")
    return sampler
