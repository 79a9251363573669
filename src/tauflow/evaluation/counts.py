"""Counts: what is known of the samples of a cell besides their quality, summed over batches and ranks."""

import dataclasses
from dataclasses import dataclass

from tauflow.evaluation.store import Measured
from tauflow.ranks import over_ranks
from tauflow.samplers import Result, StepInfo


@dataclass(frozen=True)
class Counts:
    """Sums over the samples of a cell."""

    samples: float = 0.0
    seconds: float = 0.0
    network_seconds: float = 0.0
    jumped: float = 0.0
    clamped: float = 0.0
    several: float = 0.0
    discarded: float = 0.0
    leftover: float = 0.0
    counted_nfe: float = 0.0
    forwards: float = 0.0
    evaluations: float = 0.0  # that a sample took part in
    evaluations_squared: float = 0.0
    tokens: float = 0.0  # that could move

    def plus(self, samples: int, seconds: float, network_seconds: float, result: Result) -> "Counts":
        steps: list[StepInfo] = result.info.steps
        names = ("moved", "clamped", "several", "discarded")
        shares = [sum(getattr(step, name) for step in steps) / max(1, len(steps)) for name in names]
        sums = (*shares, result.info.leftover_masks, result.nfe, result.info.forwards)
        taken = [result.nfe] * samples if result.evaluations is None else result.evaluations.tolist()
        own = (sum(taken), sum(each**2 for each in taken), result.info.free)
        new = (samples, seconds, network_seconds, *(samples * each for each in sums), *own)
        return Counts(*(old + more for old, more in zip(dataclasses.astuple(self), new, strict=True)))

    def details(self, adapts: bool) -> dict[str, Measured]:
        """Return the means over the samples of all ranks; how many evaluations each took if they adapt."""
        total = Counts(*over_ranks(dataclasses.astuple(self), "SUM"))
        n = max(1.0, total.samples)
        values = {
            "jumped": total.jumped / n,
            "clamped": total.clamped / n,
            "several_events": total.several / n,
            "discarded": total.discarded / n,
            "leftover_masks": total.leftover / n,
            "ms_per_sample": 1e3 * total.seconds / n,
            "sampler_ms_per_sample": 1e3 * (total.seconds - total.network_seconds) / n,
            "network_share": total.network_seconds / total.seconds if total.seconds else 0.0,
            "samples": total.samples,
            "counted_nfe": total.counted_nfe / n,
            "forwards": total.forwards / n,
        }
        found = {name: Measured(value) for name, value in values.items()}
        return found | total.adapted() if adapts else found

    def adapted(self) -> dict[str, Measured]:
        """Return evaluations of a sample, and how many tokens one of them drew."""
        n, mean = max(1.0, self.samples), self.evaluations / max(1.0, self.samples)
        error = (max(0.0, self.evaluations_squared / n - mean**2) / n) ** 0.5
        tokens = self.tokens / self.evaluations if self.evaluations else 0.0
        return {"evaluations": Measured(mean, error), "tokens_per_evaluation": Measured(tokens)}
