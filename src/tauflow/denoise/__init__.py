"""What a network answers: Denoiser, Evaluation, and Model, which is what samplers sample.

Guidance and temperature are denoisers around a denoiser. `adapters` holds other people's models.
"""

from tauflow.denoise.adapters import from_masked_lm, from_probabilities
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
