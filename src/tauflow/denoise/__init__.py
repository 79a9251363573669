"""What a network answers: Denoiser, Evaluation, and Model, which is what samplers sample.

Guidance, temperature and allowed tokens are denoisers around a denoiser. `adapters` holds models of others.
"""

from tauflow.denoise.adapters import from_masked_lm, from_probabilities
from tauflow.denoise.allowed import AllowedDenoiser
from tauflow.denoise.batches import BatchedDenoiser
from tauflow.denoise.denoiser import (
    DROPPED,
    CallableDenoiser,
    CountingDenoiser,
    Denoiser,
    GuidedDenoiser,
    SplitDenoiser,
    TemperedDenoiser,
    TimedDenoiser,
    denoiser_from,
)
from tauflow.denoise.evaluation import Evaluation, HiddenEvaluation, LogitsEvaluation
from tauflow.denoise.model import Model

__all__ = [
    "DROPPED",
    "AllowedDenoiser",
    "BatchedDenoiser",
    "CallableDenoiser",
    "CountingDenoiser",
    "Denoiser",
    "Evaluation",
    "GuidedDenoiser",
    "HiddenEvaluation",
    "LogitsEvaluation",
    "Model",
    "SplitDenoiser",
    "TemperedDenoiser",
    "TimedDenoiser",
    "denoiser_from",
    "from_masked_lm",
    "from_probabilities",
]
