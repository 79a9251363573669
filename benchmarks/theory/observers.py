"""What the paper's theory speaks of, measured by an observer given to `tauflow.sample(observer=...)`.

Symbols: u_tau(s; x)^d = p(s | x)^d, the rate of the channel (d, s) in tau, and lam(t) p(s | x)^d in t. A
channel is open at x if the coordinate may move and s is not its token; the intensity of a closed one is 0.
h_n is the step from n to n + 1, r = h_n / h_{n-1}, and d_H counts the coordinates that differ. Shapes: B
trajectories, D coordinates, V data tokens.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.theory.diagnostic import Diagnostic, ObservedStep, Reevaluating, leaping_from
from tauflow.denoise import Model
from tauflow.process import Process
from tauflow.samplers.leaping import Clamp, Term, intensities
from tauflow.samplers.random import chunks, index_of
from tauflow.samplers.sampler import Sampler

UNCLAMPED = Clamp(-math.inf, math.inf)
EPS_DEN = 1e-8  # epsilon_den of the drift proxy
DOMAINS = ("tau", "t")


class Events(Diagnostic):
    """What the steps report: shares that moved, were clamped, had several events, are masked, were cut."""

    names = ("moved", "clamped", "several", "masks", "discarded")

    def measure(self, step: ObservedStep) -> Tensor:
        return torch.tensor([[getattr(step.info, name) for name in self.names]]).expand(len(step.x), -1)

    def leftover_masks(self) -> float:
        """Return the share of coordinates that are still masked after the last step, before finishing."""
        last = {batch: found for (batch, _), (_, found) in sorted(self._found.items())}
        return torch.cat(list(last.values()))[:, self.names.index("masks")].mean().item()


@dataclass(frozen=True)
class Ratio:
    """R, with the spread of d_H / h over trajectories at the step n of the maximum, and of R over batches."""

    value: float
    trajectory_std: float
    batch_std: float
    n: int


class HammingDrift(Diagnostic):
    """R = max_n E[d_H(x_{n+1}, x_n)] / h_n over the transitions made, without the finishing draw.

    The paper's hamming:drift and tab:drift_scaling. For samplers that evaluate the denoiser at x_n: all but
    theta_trapezoidal, whose first step would be counted from its middle.
    """

    names = ("hamming",)

    def __init__(self, process: Process):
        super().__init__()
        self.process = process

    def measure(self, step: ObservedStep) -> Tensor:
        return (step.x_next != step.x).sum(1, keepdim=True)

    def records(self) -> list[dict[str, Any]]:
        """Add h and E[d_H] / h in both domains, and the standard deviation of d_H over trajectories."""
        rows = []
        for row in super().records():
            t = torch.tensor([row["t"], row["t_next"]], dtype=torch.float64)
            h = {"tau": self.process.clock(t).diff().item(), "t": t.diff().item()}
            ratios = {f"ratio_{domain}": row["hamming"] / h[domain] for domain in DOMAINS}
            std = self.values(row["n"]).std(correction=0).item()
            rows.append(row | {"std": std, "h_tau": h["tau"], "h_t": h["t"]} | ratios)
        return rows

    def ratio(self, domain: str = "tau") -> Ratio:
        """Return R with h in `tau` (the domain of Corollary cie_expected) or in `t`."""
        rows = self.records()
        top = max(rows, key=lambda row: row[f"ratio_{domain}"])
        batches = [self._ratio_of(batch, rows, domain) for batch in range(self._batch + 1)]
        spread = top["std"] / top[f"h_{domain}"]
        return Ratio(top[f"ratio_{domain}"], spread, float(np.std(batches)), top["n"])

    def _ratio_of(self, batch: int, rows: list[dict[str, Any]], domain: str) -> float:
        seen = [row for row in rows if (batch, row["n"]) in self._found]
        return max(self.values(row["n"], batch).mean().item() / row[f"h_{domain}"] for row in seen)


class Proxies(Reevaluating):
    """Curv(n) and Drift(n) of App. drift_analysis (fig:stiffness_analysis), in tau and in t.

    From the second step on. Curv is the largest |second derivative| of u(s; x_n) by divided differences at
    t_{n-1}, t_n, t_{n+1}, on a uniform grid the paper's; Drift the largest
    |u_{n-1}(s; x_n) - u_{n-1}(s; x_{n-1})| d_H / (d_H + eps_den). Both over the channels that are open at
    x_n, whose intensities the step needs; `drift_all` also over those that have closed since x_{n-1}.
    `integration` and `mismatch` are the two terms of the bound that the proxies stand for
    (Eq. app_lite_local), (1/6 + 1/(4 r)) h^3 Curv and (r/2) h Drift. A record is the mean, over the
    trajectories with an open channel, of the maximum over channels.
    """

    names = tuple(
        f"{name}_{domain}"
        for domain in DOMAINS
        for name in ("curv", "drift", "drift_all", "integration", "mismatch")
    )

    def measure(self, step: ObservedStep) -> Tensor | None:
        if not step.before:
            return None
        problem, x, before = self.problem, step.x, step.before
        process = problem.process
        grid, _ = step.grid(process)
        now = problem.movable(x)
        at_x = [
            problem.evaluate(x, before.info.t).clone(),
            step.posterior,
            problem.evaluate(x, step.info.t_next),
        ]
        jumps = (x != before.x).sum(1)
        share = jumps / (jumps + EPS_DEN)
        columns = []
        for domain in DOMAINS:
            rate = [1.0] * 3 if domain == "tau" else [process.rate_factor(t) for t in grid.t.tolist()]
            earlier, h = (grid.tau if domain == "tau" else grid.t).diff().tolist()
            weights = [2 / (earlier * (earlier + h)), -2 / (earlier * h), 2 / (h * (earlier + h))]
            bend = [Term(weights[i] * rate[i], at_x[i]) for i in range(3)]
            shift = [Term(rate[0], at_x[0]), Term(-rate[0], before.posterior)]
            curv = largest(process, bend, now, x)
            drift = share * largest(process, shift, now, x)
            drift_all = share * largest(process, shift, problem.movable(before.x) & now.any(1, keepdim=True))
            r = h / earlier
            columns += [curv, drift, drift_all, (1 / 6 + 1 / (4 * r)) * h**3 * curv, r / 2 * h * drift]
        return torch.stack(columns, 1)

    def records(self) -> list[dict[str, Any]]:
        """Add the paper's ratio = Curv / Drift, and bound_ratio = integration / mismatch, both of means."""
        rows = super().records()
        for row in rows:
            for domain in DOMAINS:
                row[f"ratio_{domain}"] = _ratio(row[f"curv_{domain}"], row[f"drift_{domain}"])
                row[f"bound_ratio_{domain}"] = _ratio(row[f"integration_{domain}"], row[f"mismatch_{domain}"])
        return rows


def largest(process: Process, terms: list[Term], coordinates: Tensor, x: Tensor | None = None) -> Tensor:
    """Return max |sum of the terms| (B,) over the channels of the coordinates (B, D), or those open at x.

    NaN where there is no channel.
    """
    peak = torch.full((coordinates.numel(),), -math.inf, dtype=torch.float64, device=coordinates.device)
    for index in chunks(index_of(coordinates), process.num_tokens):
        if x is None:
            total = torch.stack([term.rates(index, process) for term in terms]).sum(0)
        else:
            total = intensities(process, terms, index, x, UNCLAMPED).total
        peak[index] = total.abs().amax(1).double()
    peak = peak.view_as(coordinates).amax(1)
    return peak.where(peak >= 0, math.nan)


class Positivity(Reevaluating):
    """Share of the extrapolated intensities that are nonnegative before clamping (tab:positive_pct_tasks).

    From the second step on. Unlike StepInfo.clamped, over all rows and not only those that the sampler reads.
    `movable` is over the open channels; `all` over all D V entries of a sequence, where those that are no
    open channel count as nonnegative: the paper does not say which it means.
    """

    names = ("negative", "open", "entries")

    def __init__(
        self,
        model: Model,
        sampler: Sampler | str,
        frozen: Tensor | None = None,
        condition: Tensor | None = None,
    ):
        super().__init__(model, frozen, condition)
        self.sampler = leaping_from(sampler)

    def measure(self, step: ObservedStep) -> Tensor | None:
        if not step.before:
            return None
        x, process = step.x, self.problem.process
        movable = self.problem.movable(x)
        terms = self.sampler.terms(self.problem, step.state(), *step.grid(process))
        negative = torch.zeros(x.numel(), dtype=torch.float64, device=x.device)
        for index in chunks(index_of(movable), process.num_tokens):
            total = intensities(process, terms, index, x, UNCLAMPED).total
            negative[index] = (total < 0).sum(1).double()
        entries = torch.full((len(x),), float(x.shape[1] * process.num_tokens), device=x.device)
        return torch.stack([negative.view_as(x).sum(1), movable.sum(1) * process.channels, entries], 1)

    def records(self) -> list[dict[str, Any]]:
        """Return the shares `movable` and `all` of each step."""
        rows = []
        for row in super().records():
            movable, everything = self._shares(self.values(row["n"]).sum(0))
            when = {"n": row["n"], "t": row["t"], "t_next": row["t_next"]}
            rows.append(when | {"movable": movable, "all": everything})
        return rows

    def shares(self) -> dict[str, float]:
        """Return `movable` and `all` over all steps, with standard deviations over trajectories."""
        by_batch: dict[int, Tensor] = {}
        for (batch, _), (_, found) in self._found.items():
            by_batch[batch] = by_batch[batch] + found if batch in by_batch else found
        counts = torch.cat(list(by_batch.values()))  # (trajectories, 3)
        movable, everything = self._shares(counts.sum(0))
        counts = counts[counts[:, 1] > 0]  # a trajectory without an open channel has no share
        spread = (counts[:, :1] / counts[:, 1:]).std(0, correction=0).tolist()
        return {"movable": movable, "movable_std": spread[0], "all": everything, "all_std": spread[1]}

    @staticmethod
    def _shares(counts: Tensor) -> tuple[float, float]:
        negative, channels, entries = counts.tolist()
        return 1 - negative / channels if channels else 1.0, 1 - negative / entries


def _ratio(above: float, below: float) -> float:
    if below:
        return above / below
    return math.inf if above > 0 else math.nan
