"""What a network answers: Denoiser, Evaluation, and Model, which is what samplers sample.

Guidance, temperature, allowed tokens, padding and memory are denoisers around a denoiser.
`adapters` holds models of others.
"""

from tauflow.denoise.adapters import from_masked_lm, from_probabilities
from tauflow.denoise.denoiser import (
    DROPPED,
    BatchedDenoiser,
    CallableDenoiser,
    Context,
    CountingDenoiser,
    Denoiser,
    Evaluation,
    GuidedDenoiser,
    HiddenEvaluation,
    LogitsEvaluation,
    Memory,
    RememberingDenoiser,
    SplitDenoiser,
    TemperedDenoiser,
    TimedDenoiser,
    denoiser_from,
)
from tauflow.denoise.model import LearnedCounts, Model
from tauflow.denoise.processors import AllowedDenoiser, AttendingDenoiser, TruncatedDenoiser

__all__ = [
    "DROPPED",
    "AllowedDenoiser",
    "AttendingDenoiser",
    "BatchedDenoiser",
    "CallableDenoiser",
    "Context",
    "CountingDenoiser",
    "Denoiser",
    "Evaluation",
    "GuidedDenoiser",
    "HiddenEvaluation",
    "LearnedCounts",
    "LogitsEvaluation",
    "Memory",
    "Model",
    "RememberingDenoiser",
    "SplitDenoiser",
    "TemperedDenoiser",
    "TimedDenoiser",
    "TruncatedDenoiser",
    "denoiser_from",
    "from_masked_lm",
    "from_probabilities",
]
