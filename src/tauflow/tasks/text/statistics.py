"""What samples of text are measured against, made from the training split; with a model of n-grams.

The n-gram model is interpolated Kneser-Ney with absolute discounts, vectorized in numpy:

    P(w | h) = max(c(h w) - d, 0) / c(h) + d T(h) / c(h) P(w | h')

h' = h without its first token; T(h) = distinct w after h. At the top order c counts occurrences, below it the
number of distinct tokens that precede (continuation counts). At the bottom is the uniform distribution, so no
token has probability 0. d = n_1 / (n_1 + 2 n_2) per order, n_k the number of n-grams with count k.

An n-gram is the number with its tokens as digits in base V: sorted arrays of such numbers make up the
model. Order 4 fits into 64 bits up to V = 65536.

Shapes: N blocks, B samples, D tokens, M n-grams, V tokens of the vocabulary.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tauflow import files
from tauflow.errors import SettingsError, first_line
from tauflow.untrusted import read_arrays

GRAM = 8  # tokens of the n-grams that count as memorized


@dataclass(frozen=True)
class NgramCounts:
    """Counts of the n-grams of one order."""

    codes: np.ndarray  # (M,) n-grams, sorted
    counts: np.ndarray  # (M,)
    contexts: np.ndarray  # (C,) their first n - 1 tokens, sorted
    totals: np.ndarray  # (C,) sum of counts after the context
    types: np.ndarray  # (C,) distinct tokens after the context
    discount: float


class KneserNey:
    """An n-gram model: `fit` makes it; `arrays` and `from_arrays` save it."""

    def __init__(self, num_tokens: int, levels: list[NgramCounts]):
        self.num_tokens = num_tokens
        self.levels = levels  # of order 1, 2, ...

    @classmethod
    def fit(cls, blocks: np.ndarray, num_tokens: int, order: int = 3) -> "KneserNey":
        """Count blocks (N, D) of tokens; n-grams do not reach over the edge of a block."""
        levels: list[NgramCounts] = []
        codes, counts = np.unique(_codes(blocks, order, num_tokens), return_counts=True)
        for n in range(order, 0, -1):
            levels.insert(0, _count(codes, counts, num_tokens))
            if n > 1:  # continuation counts: how many distinct tokens precede
                codes, counts = np.unique(codes % np.uint64(num_tokens ** (n - 1)), return_counts=True)
        return cls(num_tokens, levels)

    def log_probabilities(self, blocks: np.ndarray) -> np.ndarray:
        """Return ln P of each token of blocks (N, D) given those before it in its row, float64 (N, D)."""
        blocks = np.asarray(blocks)
        result = np.empty(blocks.shape)
        for place in range(blocks.shape[1]):
            context = blocks[:, max(0, place - len(self.levels) + 1) : place]
            result[:, place] = np.log(self.probabilities(context, blocks[:, place]))
        return result

    def probabilities(self, contexts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return P(token | context) (N,) for contexts (N, k) with k below the order."""
        result = np.full(len(tokens), 1 / self.num_tokens)
        tokens = tokens.astype(np.uint64)
        code = np.zeros(len(tokens), dtype=np.uint64)  # the context so far, from its end
        for n, level in enumerate(self.levels[: contexts.shape[1] + 1]):
            if n:
                code = code + contexts[:, -n].astype(np.uint64) * np.uint64(self.num_tokens ** (n - 1))
            place, known = _find(level.contexts, code)
            seen_at, seen = _find(level.codes, code * np.uint64(self.num_tokens) + tokens)
            count = np.where(seen, level.counts[seen_at], 0)
            total = np.where(known, level.totals[place], 1)
            left = level.discount * level.types[place] / total
            result = np.where(known, np.maximum(count - level.discount, 0) / total + left * result, result)
        return result

    def arrays(self) -> dict[str, np.ndarray]:
        named = {
            f"{name}_{n}": np.asarray(getattr(level, name))
            for n, level in enumerate(self.levels)
            for name in NgramCounts.__annotations__
        }
        return {"num_tokens": np.asarray(self.num_tokens), "order": np.asarray(len(self.levels)), **named}

    @classmethod
    def from_arrays(cls, saved: Mapping[str, np.ndarray]) -> "KneserNey":
        levels = []
        for n in range(int(saved["order"])):
            parts: dict[str, Any] = {name: saved[f"{name}_{n}"] for name in NgramCounts.__annotations__}
            levels.append(NgramCounts(**(parts | {"discount": float(parts["discount"])})))
        return cls(int(saved["num_tokens"]), levels)


def _codes(blocks: np.ndarray, n: int, base: int) -> np.ndarray:
    """Return all n-grams of blocks (N, D) as numbers (M,)."""
    blocks = np.asarray(blocks).astype(np.uint64)
    width = blocks.shape[1] - n + 1
    code = np.zeros((len(blocks), max(0, width)), dtype=np.uint64)
    for k in range(n):
        code = code * np.uint64(base) + blocks[:, k : k + width]
    return code.ravel()


def _count(codes: np.ndarray, counts: np.ndarray, base: int) -> NgramCounts:
    contexts, first, types = np.unique(codes // np.uint64(base), return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first) if len(first) else counts[:0]
    once, twice = (counts == 1).sum(), (counts == 2).sum()
    discount = once / (once + 2 * twice) if once else 0.5
    return NgramCounts(
        codes, counts.astype(np.int64), contexts, totals.astype(np.int64), types, min(float(discount), 0.95)
    )


def _find(values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where `wanted` is in the sorted values, and whether it's there."""
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return place, values[place] == wanted


@dataclass(frozen=True)
class TextStatistics:
    """Counts of the training text, and the validation blocks; a run keeps them next to its checkpoints."""

    unigrams: np.ndarray  # (V,) shares of the training tokens, float64
    grams: np.ndarray  # (M,) sorted hashes of the training 8-grams
    validation: np.ndarray  # (N, D) validation blocks, the reference of every table
    ngrams: KneserNey

    @classmethod
    def of(cls, train: np.ndarray, validation: np.ndarray, num_tokens: int) -> "TextStatistics":
        """Count blocks (N, D) that follow each other in the text."""
        unigrams = np.bincount(train.ravel(), minlength=num_tokens).astype(np.float64)
        order = 3 if num_tokens**3 <= 2**64 else 2
        grams = np.unique(_hashes(train.reshape(1, -1)))
        return cls(unigrams / unigrams.sum(), grams, validation, KneserNey.fit(train, num_tokens, order))

    def memorized(self, tokens: np.ndarray) -> np.ndarray:
        """Return the share of the 8-grams of each sample (B, D) that the training text has, (B,)."""
        hashes = _hashes(tokens)
        return _find(self.grams, hashes)[1].mean(1) if hashes.shape[1] else np.zeros(len(tokens))

    def save(self, path: Path) -> None:
        buffer = io.BytesIO()
        own = {"unigrams": self.unigrams, "grams": self.grams, "validation": self.validation}
        np.savez_compressed(buffer, **own, **self.ngrams.arrays())  # type: ignore[arg-type]  # of numpy's stub
        with files.atomic(path) as file:
            file.write(buffer.getvalue())

    @classmethod
    def load(cls, path: Path, num_tokens: int, length: int) -> "TextStatistics":
        """Read a file that is not trusted; raise SettingsError if it is damaged, or of another model."""
        try:
            saved = read_arrays(path)
            own = {name: saved[name] for name in ("unigrams", "grams", "validation")}
            found = cls(**own, ngrams=KneserNey.from_arrays(saved))
            reason = "" if found._fits(num_tokens, length) else "its sizes don't fit"
        except Exception as error:  # zipfile and numpy raise many kinds
            reason = first_line(error)
        if reason:
            raise SettingsError(
                f"{path} is damaged or of another model ({reason}); remove it: it is made again from the "
                "corpus"
            )
        return found

    def _fits(self, num_tokens: int, length: int) -> bool:
        rows = self.validation
        if self.ngrams.num_tokens != num_tokens or self.unigrams.shape != (num_tokens,):
            return False
        if not (self.unigrams >= 0).all():
            return False
        if rows.dtype.kind != "i" or rows.shape[1:] != (length,) or not len(rows):
            return False
        return bool(rows.min() >= 0 and rows.max() < num_tokens)


def _hashes(tokens: np.ndarray) -> np.ndarray:
    """Return 64-bit hashes of all 8-grams of each row (B, D - 7)."""
    tokens = np.asarray(tokens).astype(np.uint64)
    width = max(0, tokens.shape[1] - GRAM + 1)
    result = np.zeros((len(tokens), width), dtype=np.uint64)
    for k in range(GRAM):
        result = (result ^ (tokens[:, k : k + width] + np.uint64(1))) * np.uint64(0x9E3779B97F4A7C15)
        result ^= result >> np.uint64(29)
    return result
