"""A Markov chain fitted to a real corpus, and whether samples have its transitions.

The idea is that of Tang et al. (arXiv 2602.19619): the posterior of a chain is exact, so that all error is
the sampler's, and transitions show errors that perplexity does not.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from benchmarks.studies.beyond import OnLaws
from benchmarks.studies.laws import ChainTask, exact
from benchmarks.studies.models import OnModels
from benchmarks.studies.subjects import CONTEXTS, DISTINCT, ENTROPY, ITEMS, with_learned
from benchmarks.studies.transitions import SupportViolations, TransitionDivergence, TransitionTotalVariation
from benchmarks.theory.laws import Chain, transition_counts
from tauflow.evaluation.results import Factors
from tauflow.tasks.text.corpus import BuiltIn
from tauflow.tasks.text.metrics import Distinct, Entropy
from tauflow.train import Trained

END = "¶"  # of a document
SMOOTHING = 1e-4  # share of transitions that are any token, by the law of tokens
LENGTH = 64


class BigramTask(ChainTask):
    """The chain of the characters of a corpus: what followed what."""

    primary_metric = "transition_kl"

    def __init__(self, text: str, length: int = LENGTH, smoothing: float = SMOOTHING):
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        characters, tokens = np.unique(codes, return_inverse=True)
        self.characters = [chr(code) for code in characters]
        counts = transition_counts(torch.from_numpy(tokens).view(1, -1), len(characters))
        super().__init__(Chain.fitted(counts, smoothing), length, ITEMS)
        self.support = counts > 0

    @classmethod
    def built_in(cls) -> "BigramTask":
        """Return the chain of the corpus that every Python has: CPython's language reference."""
        return cls(END.join(["", *BuiltIn().documents(), ""]))

    def sample_metrics(self) -> MetricCollection:
        found: dict[str, Any] = {
            "transition_kl": TransitionDivergence(self.chain.transition),
            "transition_tv": TransitionTotalVariation(self.chain.transition),
            "support_violations": SupportViolations(self.support),
            ENTROPY: Entropy(),
            DISTINCT: Distinct(2),
        }
        return MetricCollection(found | dict(super().sample_metrics().items()), compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        return ["".join(self.characters[token] for token in row) for row in tokens.tolist()]


class Bigrams(OnLaws):
    """Whether samples have the right transitions: a Markov chain fitted to the characters of the built-in
    corpus, with its exact denoiser. KL divergence and total variation of the transitions, the share that the
    corpus never has, and perplexity, which does not tell. As many draws from the chain itself are the row
    (real data): below it nothing can be seen."""

    nfes = (8, 16, 32, 64)
    samples = 256
    samplers = ("every",)
    smoke: ClassVar[dict[str, Any]] = OnModels.smoke | {"samplers": ("euler",), "nfes": (3,)}
    shown = ("transition_kl", "transition_tv", "support_violations", "perplexity", ENTROPY, DISTINCT)
    drawn = ("transition_kl", "transition_tv", "support_violations", "perplexity")

    def named_models(self) -> list[tuple[Factors, Trained]]:
        task = BigramTask.built_in()
        possible = task.support.double().mean().item()
        self.notes.append(
            f"{len(task.characters)} characters; the corpus has {possible:.1%} of their transitions"
        )
        masked = with_learned(exact(task, "masked"), self.settings.samplers, CONTEXTS)
        named: dict[str, Trained] = {"masked": masked, "uniform": exact(task, "uniform")}
        return [({"law": "characters", "source": source}, trained) for source, trained in named.items()]
