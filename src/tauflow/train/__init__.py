"""Training: the module, its checkpoints, and trained models read back."""

from tauflow.train.checkpoint import SHIPPED, Trained, load
from tauflow.train.module import DFMModule, OptimizerConfig
from tauflow.train.sharing import export, push

__all__ = ["SHIPPED", "DFMModule", "OptimizerConfig", "Trained", "export", "load", "push"]
