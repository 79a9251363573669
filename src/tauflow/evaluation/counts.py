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

    def plus(self, samples: int, seconds: float, network_seconds: float, result: Result) -> "Counts":
        steps: list[StepInfo] = result.info.steps
        names = ("moved", "clamped", "several", "discarded")
        shares = [sum(getattr(step, name) for step in steps) / max(1, len(steps)) for name in names]
        sums = (*shares, result.info.leftover_masks, result.nfe, result.info.forwards)
        new = (samples, seconds, network_seconds, *(samples * each for each in sums))
        return Counts(*(old + more for old, more in zip(dataclasses.astuple(self), new, strict=True)))

    def details(self) -> dict[str, Measured]:
        """Return the means over the samples of all ranks."""
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
        return {name: Measured(value) for name, value in values.items()}
