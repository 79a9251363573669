"""tauflow: train discrete-flow-matching denoisers, and sample from them when network evaluations are scarce.

The names people use most:

    load, pretrained        read a model from a checkpoint, or from a folder or the hub
    sample                  draw samples with a budget of network evaluations
    evaluate                compare samplers and budgets by the task's metrics or your own
    generate                continue a text
    export, push            share a model: as a folder, and on the Hugging Face Hub
    nll                     likelihood of data under a few-step sampler
    Model                   any network that maps (x, t) to logits, ready to sample
    Mixture, Masked         the path from noise to data, and its source
    Process.loss            the training loss, for your own training loop
    DFMModule               the same for a Lightning Trainer
    GridSampler             base for your own sampler; Task and Network for your own data and network

Glossary (symbol - name in the code - shape - meaning, with equations of the TR-CIE paper):

    t           t             (B,)         physical time in [0, 1], data at 1
    kappa_t     kappa         as t         schedule: share of coordinates that carry their data token
    tau         tau           as t         -ln(1 - kappa), reparameterized time (Eq. 10)
    lambda_t    rate_factor   as t         kappa_dot / (1 - kappa) (Eq. 9)
    x_0         x_0           (B, D)       draw from the source, int64
    x_t         x_t           (B, D)       state at time t, int64, in 0 .. S-1
    x_1         x_1           (B, D)       data, int64, in 0 .. V-1
    p_{1|t}     posterior     (B, D, V)    p(x_1^d = s | x_t), what the network predicts

B sequences, D coordinates, V data tokens, S states (V + 1 with a mask, V without).
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tauflow.denoise import Denoiser, Model, from_masked_lm, from_probabilities
    from tauflow.errors import TauflowError
    from tauflow.evaluation.callback import SamplerEvaluation
    from tauflow.evaluation.evaluate import evaluate
    from tauflow.evaluation.results import Results
    from tauflow.networks import Network, NetworkConfig
    from tauflow.process import (
        SCHEDULES,
        SOURCES,
        Beta,
        Codebook,
        Cosine,
        CosineSquared,
        Marginal,
        Masked,
        Metric,
        Mixture,
        Polynomial,
        Process,
        Schedule,
        Source,
        Uniform,
        schedule_from,
    )
    from tauflow.recipes import pretrained
    from tauflow.recipes.generate import generate
    from tauflow.samplers import (
        SAMPLERS,
        GridSampler,
        Prompt,
        Result,
        Sampler,
        fixed,
        nll,
        option,
        sample,
        sampler_from,
    )
    from tauflow.samplers.learned import learn_counts, learn_influence, learn_order
    from tauflow.tasks import Countdown, Task
    from tauflow.train import DFMModule, Trained, export, load, push

try:
    __version__ = version("tauflow")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

_MODULES = {
    "tauflow.denoise": ("Denoiser", "Model", "from_masked_lm", "from_probabilities"),
    "tauflow.errors": ("TauflowError",),
    "tauflow.evaluation.callback": ("SamplerEvaluation",),
    "tauflow.evaluation.evaluate": ("evaluate",),
    "tauflow.evaluation.results": ("Results",),
    "tauflow.networks": ("Network", "NetworkConfig"),
    "tauflow.process": (
        *("SCHEDULES", "SOURCES", "Beta", "Codebook", "Cosine", "CosineSquared", "Marginal", "Masked"),
        *("Metric", "Mixture", "Polynomial", "Process", "Schedule", "Source", "Uniform", "schedule_from"),
    ),
    "tauflow.recipes": ("pretrained",),
    "tauflow.recipes.generate": ("generate",),
    "tauflow.samplers": (
        *("SAMPLERS", "GridSampler", "Prompt", "Result", "Sampler", "fixed", "nll", "option", "sample"),
        "sampler_from",
    ),
    "tauflow.samplers.learned": ("learn_counts", "learn_influence", "learn_order"),
    "tauflow.tasks": ("Countdown", "Task"),
    "tauflow.train": ("DFMModule", "Trained", "export", "load", "push"),
}
"""Where each public name is: imported when it's first asked for, so that `tauflow --help` needs no torch."""
_LAZY = {name: module for module, names in _MODULES.items() for name in names}
_PACKAGES = (
    "denoise",
    "errors",
    "evaluation",
    "networks",
    "process",
    "recipes",
    "samplers",
    "tasks",
    "train",
)

__all__ = [
    "SAMPLERS",
    "SCHEDULES",
    "SOURCES",
    "Beta",
    "Codebook",  # of a metric path
    "Cosine",
    "CosineSquared",
    "Countdown",
    "DFMModule",
    "Denoiser",
    "GridSampler",
    "Marginal",
    "Masked",
    "Metric",
    "Mixture",
    "Model",
    "Network",
    "NetworkConfig",
    "Polynomial",
    "Process",
    "Prompt",
    "Result",
    "Results",
    "Sampler",
    "SamplerEvaluation",
    "Schedule",
    "Source",
    "Task",
    "TauflowError",
    "Trained",
    "Uniform",
    "evaluate",
    "export",
    "fixed",
    "from_masked_lm",
    "from_probabilities",
    "generate",
    "learn_counts",
    "learn_influence",
    "learn_order",
    "load",
    "nll",
    "option",
    "pretrained",
    "push",
    "sample",
    "sampler_from",
    "schedule_from",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"tauflow.{name}")
    raise AttributeError(f"module 'tauflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, "__version__"})
