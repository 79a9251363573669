"""Training: the module, its checkpoints, and trained models read back."""

from tauflow.train.checkpoints import export
from tauflow.train.module import DFMModule
from tauflow.train.optimizer import OptimizerConfig
from tauflow.train.trained import SHIPPED, Trained, load

__all__ = ["SHIPPED", "DFMModule", "OptimizerConfig", "Trained", "export", "load"]
