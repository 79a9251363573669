"""OptimizerConfig: AdamW with warm-up and cosine decay, and the decay of the averaged weights."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from tauflow.errors import SettingsError


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and the averaging of weights.

    Args:
        learning_rate: peak of the schedule.
        warmup_steps: steps of linear warm-up; a cosine decay to a tenth of the peak follows until the last
            step.
        weight_decay: AdamW's, on matrices only.
        betas: AdamW's.
        ema_decay: of the averaged weights that validation, sampling and reloading use; 0 keeps the raw
            weights.
    """

    learning_rate: float = 1e-3
    warmup_steps: int = 200
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    ema_decay: float = 0.999

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        fits = 0 < self.learning_rate < math.inf and self.warmup_steps >= 0 and self.weight_decay >= 0
        if not fits or not all(0 <= decay < 1 for decay in (*self.betas, self.ema_decay)):
            raise SettingsError(
                "The optimizer needs learning_rate > 0, warmup_steps >= 0, weight_decay >= 0, and betas and "
                f"ema_decay in [0, 1), got {self}."
            )

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
        """Return the optimizer of these parameters."""
        parameters = list(parameters)
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas)

    def factor(self, step: int, total: float) -> float:
        """Return the learning rate of a step over its peak, for a training of `total` steps."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))
