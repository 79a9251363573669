"""Seeds that are a pure function of a key, whatever was drawn before or on another rank; and precision."""

import hashlib

import torch


def seed_of(*key: int | str) -> int:
    """Return a 63-bit seed from a key such as ("train", seed, step), the same on every machine."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator_for(*key: int | str) -> torch.Generator:
    """Return a CPU generator for a key; noise is drawn there and moved: every device sees the same."""
    return torch.Generator().manual_seed(seed_of(*key))


def precise(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices that do not have it."""
    return torch.float32 if device.type == "mps" else torch.float64
