"""Judging: the judges of a task by name, each loaded once, and what they say of samples."""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tauflow import ranks
from tauflow.errors import SettingsError
from tauflow.tasks.metrics import SampleMetric
from tauflow.tasks.text.judges import DEFINITIONS, ON_IDS, Judge, NgramJudge, causal_judge
from tauflow.tasks.text.metrics import Perplexity
from tauflow.tasks.text.ngrams import KneserNey
from tauflow.tasks.text.vocabulary import Vocabulary


class Judging:
    """Judges by name; `ngrams` makes the model of the judge `ngram` when it is first asked.

    Args:
        names: ngram, smollm2, or causal models of transformers.
        vocabulary: of the samples.
        ngrams: gives the n-gram model of the training text.
        device: of the causal judges; by default that of the process.
    """

    def __init__(
        self,
        names: list[str],
        vocabulary: Vocabulary,
        ngrams: Callable[[], KneserNey],
        device: torch.device | None = None,
    ):
        self.names = names
        self._vocabulary = vocabulary
        self._ngrams = ngrams
        self._device = device
        self._loaded: dict[str, Judge] = {}
        self._scored: dict[tuple[str, bool], tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def reading(self, vocabulary: Vocabulary) -> "Judging":
        """Return the same judges for samples of another vocabulary."""
        result = copy.copy(self)
        result._vocabulary, result._scored = vocabulary, {}
        return result

    def judge(self, name: str) -> Judge:
        """Return the judge of a name, loaded once."""
        if name not in self._loaded:
            self._loaded[name] = NgramJudge(self._ngrams()) if name == "ngram" else self._causal(name)
        return self._loaded[name]

    def _causal(self, name: str) -> Judge:
        own = torch.device("cpu")
        if torch.cuda.is_available():
            own = torch.device("cuda", torch.cuda.current_device())
        vocabulary = self._vocabulary.tokenizer.get_vocab()
        return causal_judge(name, self._device or own, vocabulary=vocabulary, progress=ranks.rank() == 0)

    def labels(self) -> dict[str, str]:
        """Return what the judges are called in tags, with their names; load them all."""
        labels: dict[str, str] = {}
        for name in self.names:
            label = self.judge(name).name
            if labels.setdefault(label, name) != name:
                raise SettingsError(
                    f"the judges {labels[label]} and {name} are both called {label}; use one of them, or "
                    "rename its folder"
                )
        return labels

    def metrics(self) -> dict[str, SampleMetric]:
        """Return perplexity under each judge by both definitions."""
        return {
            f"{definition}_{label}": Perplexity(function, partial(self._score, name, definition))
            for label, name in self.labels().items()
            for definition, function in DEFINITIONS.items()
        }

    def _score(self, name: str, definition: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Ask a judge, once for the same samples where both definitions of perplexity have the same input."""
        tokens = tokens.cpu()
        if (tokens >= self._vocabulary.size).any():
            raise SettingsError("samples hold masks, which no judge can read; finish them with draw or reuse")
        judge = self.judge(name)
        on_ids = judge.reads_ids and (definition in ON_IDS or not judge.reads_text)
        last = self._scored.get((name, on_ids))
        if last is None or not torch.equal(last[0], tokens):
            last = (tokens, judge.score(tokens, self._vocabulary.texts(tokens.tolist()), on_ids))
            self._scored[name, on_ids] = last
        return last[1]
