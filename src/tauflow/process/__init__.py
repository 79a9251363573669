"""What noise is: schedules, sources, and the process that leads from noise to data.

Schedule    kappa(t), how much of the data is there at time t
Source      where the path starts: masks, uniform noise, the unigram distribution of the data
Process     all that depends on the kind of noise; `Mixture(source, schedule)` is discrete flow matching,
            `Metric(codebook, schedule)` goes through codes that are ever closer to those of the data
"""

from tauflow.process.metric import Metric
from tauflow.process.process import Mixture, Noise, Process, spread_kappas, stratified_times
from tauflow.process.schedules import (
    SCHEDULES,
    Beta,
    Cosine,
    CosineSquared,
    Polynomial,
    Schedule,
    schedule_from,
)
from tauflow.process.sources import SOURCES, Codebook, Marginal, Masked, Source, Uniform, source_from

__all__ = [
    "SCHEDULES",
    "SOURCES",
    "Beta",
    "Codebook",
    "Cosine",
    "CosineSquared",
    "Marginal",
    "Masked",
    "Metric",
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
