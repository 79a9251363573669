"""Metrics of generated strings, and the statistics of training strings that they are measured against.

Shapes: B samples of an update, N samples in all or validation strings, M training strings, D tokens, V tokens
of the vocabulary, C columns of labels.
"""

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tauflow import files
from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError, first_line
from tauflow.tasks.metrics import SampleMean, SampleMetric, UnigramTotalVariation, joined, standard_error
from tauflow.tasks.sequences.sources import CHUNK, hash_string
from tauflow.untrusted import read_arrays

Texts = Callable[[Tensor], list[str]]  # samples (B, D) as strings
OWN = ("unigrams", "lengths", "validation", "conditions")
GAPS = "gaps"  # between the digests, in a file: small numbers, which compress well
STRINGS = "strings"  # the digest of all of them
DROPPED_BITS = np.uint64(32)  # of 64: a new string passes for known with probability M / 2**32


def lengths_of(tokens: Tensor) -> Tensor:
    """Return how many tokens samples (B, D) have before the first padding, (B,)."""
    return (tokens == 0).cumsum(1).eq(0).sum(1)


class LengthTotalVariation(UnigramTotalVariation):
    """Total variation between the lengths of samples and a distribution (D + 1,)."""

    def update(self, tokens: Tensor) -> None:
        super().update(lengths_of(tokens)[:, None])


class MeanLength(SampleMean):
    """Tokens of a sample, mean over samples."""

    higher_is_better = None
    logarithmic = False

    def of(self, tokens: Tensor) -> Tensor:
        return lengths_of(tokens)


class BrokenPadding(SampleMean):
    """Share of the samples with a token after padding."""

    def of(self, tokens: Tensor) -> Tensor:
        return (tokens != 0).sum(1) > lengths_of(tokens)


class Matching(SampleMean):
    """Share of the samples that a regular expression matches as a whole."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, texts: Texts, pattern: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.texts = texts
        self.pattern = re.compile(pattern)

    def of(self, tokens: Tensor) -> Tensor:
        found = [self.pattern.fullmatch(text) is not None for text in self.texts(tokens)]
        return torch.tensor(found, device=tokens.device)


class Novel(SampleMean):
    """Share of the samples that are no training string."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, texts: Texts, known: Callable[[Sequence[str]], np.ndarray], **kwargs: Any):
        super().__init__(**kwargs)
        self.texts = texts
        self.known = known

    def of(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(~self.known(self.texts(tokens))).to(tokens.device)


class Unique(SampleMetric):
    """Distinct strings among all samples, as a share of them.

    The standard error is the jackknife's: without a sample there is one string fewer if it was the only one.
    """

    higher_is_better = True
    logarithmic = False
    digests: list[Tensor]

    def __init__(self, texts: Texts, **kwargs: Any):
        super().__init__(**kwargs)
        self.texts = texts
        self.add_state("digests", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        found = np.array([hash_string(text) for text in self.texts(tokens)], dtype=np.uint64)
        self.digests.append(torch.from_numpy(found.view(np.int64)).to(tokens.device))

    def compute(self) -> tuple[Tensor, Tensor]:
        _, counts = joined(self.digests).unique(return_counts=True)
        single = torch.repeat_interleave((counts == 1).double(), counts)
        return torch.tensor(len(counts) / len(single), dtype=torch.float64), standard_error(single)


@dataclass(frozen=True)
class SequenceStatistics:
    """Distributions of the training strings, their digests, and the validation strings as tokens."""

    unigrams: np.ndarray  # (V,) shares of the training tokens, float64
    lengths: np.ndarray  # (D + 1,) shares of the lengths of training strings, float64
    validation: np.ndarray  # (N, D) validation strings, the reference of every table
    conditions: np.ndarray  # (N, C) and their conditions
    digests: np.ndarray  # (M,) sorted, 32 bits of each training string, uint32
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)  # of a task that has more to say
    strings: str = ""  # digest of all strings; files of earlier versions have none

    @classmethod
    def of(
        cls,
        train: np.ndarray,
        digests: np.ndarray,
        validation: Mapping[str, np.ndarray],
        num_tokens: int,
        extra: Mapping[str, np.ndarray],
        strings: str,
    ) -> "SequenceStatistics":
        """Count training rows (M, D); `validation` has the columns of the validation items."""
        unigrams = np.zeros(num_tokens, dtype=np.int64)
        lengths = np.zeros(train.shape[1] + 1, dtype=np.int64)
        for begin in range(0, len(train), CHUNK):
            rows = np.asarray(train[begin : begin + CHUNK])
            unigrams += np.bincount(rows.ravel(), minlength=num_tokens)
            lengths += np.bincount((rows != 0).sum(1), minlength=len(lengths))
        tokens = validation["tokens"]
        conditions = validation.get("condition", np.zeros((len(tokens), 0), dtype=np.int32))
        return cls(
            unigrams / unigrams.sum(),
            lengths / lengths.sum(),
            tokens,
            conditions,
            np.unique(_shorten(np.asarray(digests))),
            extra,
            strings,
        )

    def columns(self) -> dict[str, np.ndarray]:
        conditions = {"condition": self.conditions} if self.conditions.shape[1] else {}
        return {"tokens": self.validation, **conditions}

    def known(self, texts: Sequence[str]) -> np.ndarray:
        found = _shorten(np.array([hash_string(text) for text in texts], dtype=np.uint64))
        place = np.searchsorted(self.digests, found).clip(max=len(self.digests) - 1)
        return self.digests[place] == found

    def save(self, path: Path) -> None:
        buffer = io.BytesIO()
        arrays = {name: getattr(self, name) for name in OWN} | dict(self.extra)
        arrays[GAPS] = np.diff(self.digests, prepend=np.uint32(0))
        arrays[STRINGS] = np.array(self.strings)
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # of numpy's stub
        with files.atomic(path) as file:
            file.write(buffer.getvalue())

    @classmethod
    def load(
        cls, path: Path, num_tokens: int, length: int, conditions: tuple[int, ...]
    ) -> "SequenceStatistics":
        """Read a file that is not trusted; raise SettingsError if it is damaged, or of another model."""
        try:
            saved = read_arrays(path)
            own = {name: saved.pop(name) for name in OWN}
            digests = saved.pop(GAPS).cumsum(dtype=np.uint64)
            strings = str(saved.pop(STRINGS, ""))
            found = cls(**own, digests=digests.astype(np.uint32), extra=saved, strings=strings)
            reason = "" if found._fits(num_tokens, length, conditions) else "its sizes don't fit"
        except Exception as error:  # zipfile and numpy raise many kinds
            reason = first_line(error)
        if reason:
            raise SettingsError(
                f"{path} is damaged or of another model ({reason}); remove it: it is made again from the data"
            )
        return found

    def _fits(self, num_tokens: int, length: int, conditions: tuple[int, ...]) -> bool:
        for shares, size in ((self.unigrams, num_tokens), (self.lengths, length + 1)):
            if shares.shape != (size,) or not (shares >= 0).all():
                return False
        count = len(self.validation)
        if not count or self.validation.shape != (count, length):
            return False
        if self.conditions.shape != (count, len(conditions)) or not len(self.digests):
            return False
        tokens_fit = ((self.validation >= 0) & (self.validation < num_tokens)).all()
        conditions_fit = ((self.conditions >= DROPPED) & (self.conditions < np.array(conditions))).all()
        return bool(tokens_fit and conditions_fit)


def digest_of_rows(*tables: np.ndarray) -> str:
    found = hashlib.blake2b(digest_size=12)
    for rows in tables:
        found.update(repr(rows.shape).encode())
        for begin in range(0, len(rows), CHUNK):
            found.update(rows[begin : begin + CHUNK].tobytes())
    return found.hexdigest()


def _shorten(digests: np.ndarray) -> np.ndarray:
    return (digests >> DROPPED_BITS).astype(np.uint32)
