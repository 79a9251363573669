"""TextStatistics: what samples of text are measured against, made from the training split."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tauflow import files
from tauflow.errors import SettingsError, first_line
from tauflow.tasks.text.ngrams import KneserNey
from tauflow.untrusted import read_arrays

GRAM = 8


@dataclass(frozen=True)
class TextStatistics:
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

    def memorised(self, tokens: np.ndarray) -> np.ndarray:
        """Return the share of the 8-grams of each sample (B, D) that the training text has, (B,)."""
        hashes = _hashes(tokens)
        place = np.minimum(np.searchsorted(self.grams, hashes), len(self.grams) - 1)
        return (self.grams[place] == hashes).mean(1) if hashes.shape[1] else np.zeros(len(tokens))

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
            found._refuse_unfit(num_tokens, length)
        except Exception as error:  # zipfile and numpy raise many kinds
            raise SettingsError(
                f"{path} is damaged or of another model ({first_line(error)}); remove it: it is made again "
                "from the corpus"
            ) from None
        return found

    def _refuse_unfit(self, num_tokens: int, length: int) -> None:
        if self.ngrams.num_tokens != num_tokens:
            raise ValueError(f"made with {self.ngrams.num_tokens} tokens, the model has {num_tokens}")
        unigrams, grams, validation = self.unigrams, self.grams, self.validation
        if unigrams.shape != (num_tokens,) or unigrams.dtype != np.float64 or not (unigrams >= 0).all():
            raise ValueError("unigrams is no law of the tokens")
        if grams.ndim != 1 or grams.dtype != np.uint64 or (length >= GRAM and not len(grams)):
            raise ValueError("grams holds no hashes")
        if validation.dtype.kind != "i" or validation.shape[1:] != (length,) or not len(validation):
            raise ValueError(f"validation holds no blocks of {length} tokens")
        if validation.min() < 0 or validation.max() >= num_tokens:
            raise ValueError(f"validation holds tokens that are not in 0 to {num_tokens - 1}")


def _hashes(tokens: np.ndarray) -> np.ndarray:
    """Return 64-bit hashes of all 8-grams of each row (B, D - 7)."""
    tokens = np.asarray(tokens).astype(np.uint64)
    width = max(0, tokens.shape[1] - GRAM + 1)
    result = np.zeros((len(tokens), width), dtype=np.uint64)
    for k in range(GRAM):
        result = (result ^ (tokens[:, k : k + width] + np.uint64(1))) * np.uint64(0x9E3779B97F4A7C15)
        result ^= result >> np.uint64(29)
    return result
