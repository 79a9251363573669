"""Other people's models as denoisers."""

from tauflow.denoise.adapters.flow_matching import from_probabilities
from tauflow.denoise.adapters.transformers import from_masked_lm

__all__ = ["from_masked_lm", "from_probabilities"]
