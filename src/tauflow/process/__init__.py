"""What noise is: schedules, sources, and the process that leads from noise to data.

Schedule    kappa(t), how much of the data is there at time t
Source      where the path starts: masks, uniform noise, the unigram law of the data
Process     all that depends on the kind of noise; `Mixture(source, schedule)` is discrete flow matching
"""

from tauflow.process.mixture import Mixture
from tauflow.process.noise import Noise, Process, spread_kappas, stratified_times
from tauflow.process.schedules import (
    SCHEDULES,
    Cosine,
    CosineSquared,
    Polynomial,
    Schedule,
    schedule_from,
)
from tauflow.process.sources import SOURCES, Marginal, Masked, Source, Uniform, source_from

__all__ = [
    "SCHEDULES",
    "SOURCES",
    "Cosine",
    "CosineSquared",
    "Marginal",
    "Masked",
    "Mixture",
    "Noise",
    "Polynomial",
    "Process",
    "Schedule",
    "Source",
    "Uniform",
    "schedule_from",
    "source_from",
    "spread_kappas",
    "stratified_times",
]
