"""Diagnostic: an observer of a run that measures what the paper's theory speaks of.

An observer is given to `tauflow.sample(observer=...)`, to one call or to several: step 0 begins a new batch.
It draws nothing, and makes the evaluations that it needs besides the sampler's through a model of its own, so
neither the samples nor their NFE change. Shapes: B trajectories, D coordinates.
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tauflow.denoise import Model, Posterior
from tauflow.errors import SamplingError
from tauflow.process import Process
from tauflow.samplers.grids import Grid
from tauflow.samplers.leaping import Leaping
from tauflow.samplers.registry import sampler_from
from tauflow.samplers.run import check_condition
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo


@dataclass(frozen=True)
class ObservedStep:
    """One step as an observer sees it, from x = x_n to x_next = x_{n+1}; `before` is the step before."""

    info: StepInfo
    x: Tensor  # (B, D)
    x_next: Tensor  # (B, D)
    posterior: Posterior  # the evaluation at (t_n, x_n)
    before: "ObservedStep | None"

    def grid(self, process: Process) -> tuple[Grid, int]:
        """Return the times t_{n-1} (not in the first step), t_n, t_{n+1}, and which of them is t_n."""
        before = [self.before.info.t] if self.before else []
        t = torch.tensor([*before, self.info.t, self.info.t_next], dtype=torch.float64)
        return Grid(t, process.clock(t)), len(before)

    def state(self) -> State:
        """Return what the sampler had when it began the step."""
        return State(self.x, self.before.posterior if self.before else None)


class Diagnostic(ABC):
    """Abstract: an observer that keeps a few named numbers of every trajectory at every step.

    NaN means that the trajectory does not count there.
    """

    names: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._batch = -1
        self._before: ObservedStep | None = None
        self._found: dict[tuple[int, int], tuple[StepInfo, Tensor]] = {}

    @abstractmethod
    def measure(self, step: ObservedStep) -> Tensor | None:
        """Return the numbers (B, len(names)), or None where the step has none."""

    def __call__(self, info: StepInfo, state: State) -> None:
        if state.posterior is None:
            raise self.missing()
        first = info.n == 0
        self._batch += first
        before = None if first else self._before
        step = ObservedStep(
            info, before.x_next if before else state.posterior.x, state.x, state.posterior, before
        )
        values = self.measure(step)
        if values is not None:
            self._found[self._batch, info.n] = info, values.double().cpu()
        self._before = dataclasses.replace(step, before=None)

    def missing(self) -> SamplingError:
        """Return the error for a sampler that does not keep what is measured here."""
        return SamplingError(
            f"{type(self).__name__} needs the evaluation at (t_n, x_n), which this sampler does not keep; "
            "use tr_cie, tr or euler"
        )

    def values(self, n: int, batch: int | None = None) -> Tensor:
        """Return what was measured at step n, (all trajectories, len(names))."""
        found = self._found.items()
        return torch.cat([values for (b, m), (_, values) in found if m == n and batch in (None, b)])

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each step: n, t_n, t_{n+1}, and the means over the trajectories that count."""
        infos = {n: info for (_, n), (info, _) in sorted(self._found.items(), reverse=True)}
        rows = []
        for n in sorted(infos):
            means = dict(zip(self.names, self.values(n).nanmean(0).tolist(), strict=True))
            rows.append({"n": n, "t": infos[n].t, "t_next": infos[n].t_next, **means})
        return rows


class Reevaluating(Diagnostic):
    """Abstract: a diagnostic that evaluates the denoiser itself.

    Args:
        model: the one that is sampled, guided and tempered alike.
        frozen: true on the prompt, (D,) or (B, D).
        condition: that of the samples, (C,) or (B, C).
    """

    def __init__(self, model: Model, frozen: Tensor | None = None, condition: Tensor | None = None):
        super().__init__()
        self.model = model
        self.condition = condition
        self.problem = Problem(model, frozen)

    def __call__(self, info: StepInfo, state: State) -> None:
        t = state.posterior.times if state.posterior else None
        if t is not None and (t.double() - info.t).abs().max() > 1e-5:
            raise self.missing()
        condition = check_condition(self.condition, len(state.x), self.model)
        self.problem = dataclasses.replace(self.problem, condition=condition)
        super().__call__(info, state)


def leaping_from(sampler: Sampler | str) -> Leaping:
    """Return a sampler whose intensities are known here; refuse another."""
    found = sampler_from(sampler)
    if not isinstance(found, Leaping):
        raise SamplingError(
            f"this diagnostic knows euler, tr, cie, tr_cie and tr_cie_exact, not {type(found).__name__}"
        )
    return found
