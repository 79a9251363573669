"""What a network answers: Denoiser, Evaluation, and Model, which is what samplers sample.

Guidance, temperature, allowed tokens, padding and memory are denoisers around a denoiser.
`adapters` holds models of others.
"""

from tauflow.denoise.adapters import from_masked_lm, from_probabilities
from tauflow.denoise.allowed import AllowedDenoiser
from tauflow.denoise.attention import AttendingDenoiser
from tauflow.denoise.batches import BatchedDenoiser
from tauflow.denoise.context import Context, Memory
from tauflow.denoise.counts import LearnedCounts
from tauflow.denoise.denoiser import (
    DROPPED,
    CountingDenoiser,
    Denoiser,
    GuidedDenoiser,
    TemperedDenoiser,
    TimedDenoiser,
)
from tauflow.denoise.evaluation import Evaluation, HiddenEvaluation, LogitsEvaluation
from tauflow.denoise.memory import RememberingDenoiser
from tauflow.denoise.model import Model
from tauflow.denoise.networks import CallableDenoiser, SplitDenoiser, denoiser_from
from tauflow.denoise.truncated import TruncatedDenoiser

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
