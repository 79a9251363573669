"""Training: the module, its checkpoints, and trained models read back."""

from tauflow.train.checkpoint import SHIPPED, Trained, export, load
from tauflow.train.module import DFMModule, OptimizerConfig

__all__ = ["SHIPPED", "DFMModule", "OptimizerConfig", "Trained", "export", "load"]
