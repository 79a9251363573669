"""What devices can do."""

import torch


def precise(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices that do not have it."""
    return torch.float32 if device.type == "mps" else torch.float64
