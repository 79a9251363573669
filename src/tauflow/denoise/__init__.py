"""What a network answers: Denoiser, Posterior, and Model, which is what you sample.

Guidance, temperature, truncation, allowed tokens, and padding are denoisers around a denoiser.
"""

from tauflow.denoise.adapters import from_masked_lm, from_probabilities
from tauflow.denoise.denoiser import (
    DROPPED,
    AttendingDenoiser,
    CallableDenoiser,
    Denoiser,
    Evaluator,
    SplitDenoiser,
    TimedDenoiser,
    denoiser_from,
)
from tauflow.denoise.guidance import GuidedDenoiser
from tauflow.denoise.model import LearnedCounts, Model
from tauflow.denoise.posterior import HiddenPosterior, LogitsPosterior, Memory, Posterior, Query
from tauflow.denoise.processors import ProcessedDenoiser

__all__ = [
    "DROPPED",
    "AttendingDenoiser",
    "CallableDenoiser",
    "Denoiser",
    "Evaluator",
    "GuidedDenoiser",
    "HiddenPosterior",
    "LearnedCounts",
    "LogitsPosterior",
    "Memory",
    "Model",
    "Posterior",
    "ProcessedDenoiser",
    "Query",
    "SplitDenoiser",
    "TimedDenoiser",
    "denoiser_from",
    "from_masked_lm",
    "from_probabilities",
]
