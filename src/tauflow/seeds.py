"""Random numbers that are a pure function of a key, whatever was drawn before, elsewhere or on another rank."""

import hashlib

import torch


def seed_of(*key: int | str) -> int:
    """A 63-bit seed from a tuple such as ("train", seed, step), equal on every machine and in every process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator_for(*key: int | str) -> torch.Generator:
    """A fresh CPU generator for the key. Noise is drawn on the CPU and moved, so that every device sees the same."""
    return torch.Generator().manual_seed(seed_of(*key))
