"""tauflow: train discrete-flow-matching denoisers, and sample from them when network evaluations are scarce.

Glossary (symbol - name in the code - shape - where it is defined in the paper):

    t           t             (B,)         physical time in [0, 1], data at 1
    kappa_t     kappa         as t         schedule, share of coordinates that carry their data token
    tau         tau           as t         -ln(1 - kappa), reparameterised time (Eq. tau_def)
    lambda_t    rate_factor   as t         kappa_dot / (1 - kappa) (Eq. rate_factor)
    x_0         x_0           (B, D)       draw from the source, int64
    x_t         x_t           (B, D)       state at time t, int64, in 0 .. S-1
    x_1         x_1           (B, D)       data, int64, in 0 .. V-1
    p_{1|t}     posterior     (B, D, V)    p(x_1^d = s | x_t), what the network predicts

B sequences, D coordinates, V data tokens, S states (V + 1 with a mask, V without).
"""

import importlib
from importlib.metadata import PackageNotFoundError, version

from tauflow.denoisers import Denoiser, from_masked_lm, from_probabilities
from tauflow.errors import TauflowError
from tauflow.orders import learn_order
from tauflow.paths import MixturePath
from tauflow.samplers import SAMPLERS, Result, Sampler
from tauflow.sampling import sample
from tauflow.schedules import SCHEDULES, Cosine, CosineSquared, Polynomial, Schedule, schedule_from
from tauflow.sources import SOURCES, Masked, Source, Uniform

try:
    __version__ = version("tauflow")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

_LAZY = {  # these bring lightning along, so they are imported when they are first asked for
    "evaluate": "tauflow.evaluation",
    "export": "tauflow.checkpoints",
    "load": "tauflow.runs",
    "Run": "tauflow.runs",
    "Countdown": "tauflow.tasks",
    "DFMModule": "tauflow.module",
    "SamplerEvaluation": "tauflow.monitoring",
    "Table": "tauflow.tables",
}

__all__ = [
    "SAMPLERS",
    "SCHEDULES",
    "SOURCES",
    "Cosine",
    "CosineSquared",
    "Denoiser",
    "Masked",
    "MixturePath",
    "Polynomial",
    "Result",
    "Sampler",
    "Schedule",
    "Source",
    "TauflowError",
    "Uniform",
    "from_masked_lm",
    "from_probabilities",
    "learn_order",
    "sample",
    "schedule_from",
    *_LAZY,
]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'tauflow' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
