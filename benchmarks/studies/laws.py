"""Data laws with an exact denoiser, as tasks that are measured like trained models; none trains.

Shapes: B sequences, D coordinates, V data tokens.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from benchmarks.theory.laws import Chain, EnumerableLaw
from tauflow.denoise import CallableDenoiser, Model
from tauflow.numerics import generator_for
from tauflow.process import Mixture, Process, schedule_from, source_from
from tauflow.tasks import Countdown, SampleMean, SampleMetric, Task, UnigramTotalVariation, countdown
from tauflow.train import Trained

LEAK = 1e-4  # makes every transition of countdown possible, so that the posterior exists at wrong states
ITEMS = 20_000  # validation items


class LawTask(Task):
    """Abstract: a law whose validation items are drawn from itself."""

    primary_metric = "perplexity"
    batch_size = 1
    epoch_items = 1

    def __init__(self, length: int, num_tokens: int, items: int = ITEMS):
        self.shape = (length,)
        self.num_tokens = num_tokens
        self.items = items

    def setup(self, stage: str | None = None) -> None:
        self.val_data = [{"tokens": row} for row in self.draw(self.items, generator_for("law"))]

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw sequences (count, D) of the law."""

    @abstractmethod
    def posterior(self, x: Tensor, t: Tensor, process: Process) -> Tensor:
        """Return p(x_1^d = s | x_t = x), float64 (B, D, V)."""

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        return [" ".join(map(str, row)) for row in tokens.tolist()]


class ChainPerplexity(SampleMean):
    """exp of the mean negative log-likelihood per token under the law itself."""

    def __init__(self, chain: Chain, **kwargs: Any):
        super().__init__(**kwargs)
        self.chain = chain

    def of(self, tokens: Tensor) -> Tensor:
        return self.chain.nll(tokens)

    def compute(self) -> tuple[Tensor, Tensor]:
        mean, error = super().compute()
        return mean.exp(), mean.exp() * error


class ChainTask(LawTask):
    """A Markov chain, hidden or not."""

    def __init__(self, chain: Chain, length: int, items: int = ITEMS):
        super().__init__(length, chain.emission.shape[1], items)
        self.chain = chain

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return self.chain.sample(count, self.length, generator)

    def posterior(self, x: Tensor, t: Tensor, process: Process) -> Tensor:
        return self.chain.posterior(x, t, process)

    def sample_metrics(self) -> MetricCollection:
        unigrams = UnigramTotalVariation(self.chain.start @ self.chain.emission)
        return MetricCollection(
            {"perplexity": ChainPerplexity(self.chain), "unigram_tv": unigrams}, compute_groups=False
        )


class JointTotalVariation(SampleMetric):
    """Total variation between the samples and an enumerable law; above 0 even for draws from that law."""

    counts: Tensor

    def __init__(self, law: EnumerableLaw, **kwargs: Any):
        super().__init__(**kwargs)
        self.law = law
        self.add_state(
            "counts", torch.zeros(len(law.probabilities), dtype=torch.float64), dist_reduce_fx="sum"
        )

    def update(self, tokens: Tensor) -> None:
        powers = self.law.num_tokens ** torch.arange(self.law.length - 1, -1, -1)
        self.counts += torch.bincount((tokens * powers).sum(1), minlength=len(self.counts))

    def compute(self) -> tuple[Tensor, Tensor]:
        shares = self.counts / self.counts.sum()
        deviations = (shares * (1 - shares) / self.counts.sum()).sqrt()
        return (shares - self.law.probabilities).abs().sum() / 2, deviations.square().sum().sqrt() / 2


class JointTask(LawTask):
    """A small law without any structure."""

    primary_metric = "total_variation"

    def __init__(self, law: EnumerableLaw):
        super().__init__(law.length, law.num_tokens)
        self.law = law

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return self.law.sample(count, generator)

    def posterior(self, x: Tensor, t: Tensor, process: Process) -> Tensor:
        return self.law.posterior(x, t, process)

    def sample_metrics(self) -> MetricCollection:
        return MetricCollection({"total_variation": JointTotalVariation(self.law)}, compute_groups=False)


class CopyErrorRate(SampleMean):
    """Share of the coordinates of the first half whose copy in the second half is another token."""

    def of(self, tokens: Tensor) -> Tensor:
        first, second = tokens.chunk(2, dim=1)
        return (first != second).double().mean(1)


class CopyTask(LawTask):
    """Uniform tokens, and their copy half a sequence later: they depend where spacing pairs them."""

    primary_metric = "error_rate"

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        half = torch.randint(self.num_tokens, (count, self.length // 2), generator=generator)
        return torch.cat([half, half], dim=1)

    def posterior(self, x: Tensor, t: Tensor, process: Process) -> Tensor:
        first, second = (process.evidence(x, t) + 1e-12).chunk(2, dim=1)
        both = first * second
        return torch.cat([both, both], dim=1) / both.sum(-1, keepdim=True).repeat(1, 2, 1)

    def sample_metrics(self) -> MetricCollection:
        unigrams = UnigramTotalVariation(torch.full((self.num_tokens,), 1 / self.num_tokens))
        return MetricCollection({"error_rate": CopyErrorRate(), "unigram_tv": unigrams}, compute_groups=False)


class ExactCountdown(Countdown):
    """Countdown with its exact denoiser."""

    def posterior(self, x: Tensor, t: Tensor, process: Process) -> Tensor:
        return countdown.posterior(x, t, process, leak=LEAK)


def laws(length: int = 64, items: int = ITEMS) -> dict[str, LawTask | ExactCountdown]:
    """Return the laws of the studies by name."""
    return {
        "markov": ChainTask(Chain.markov(32, 2.0), length, items),
        "hidden markov": ChainTask(Chain.hidden(12, 32, 0.92, 2.0), length, items),
        "countdown": ExactCountdown(length=length, values=32),
        "copy": CopyTask(length, 16, items),
    }


def exact(
    task: LawTask | ExactCountdown,
    source: str,
    schedule: str = "quadratic",
    wrong: Callable[[Tensor], Tensor] | None = None,
) -> Trained:
    """Return a law with its exact denoiser, as if it had been trained.

    With `wrong` it has an error: the share, at times t (B,), of what the other coordinates say that is any
    token alike. What a coordinate says itself stays as it is.
    """
    process = Mixture(source_from(source, task.num_tokens), schedule_from(schedule))

    def logits(x: Tensor, t: Tensor) -> Tensor:
        rows = task.posterior(x, t, process)
        if wrong is not None:
            share, own = wrong(t.double())[:, None, None], process.evidence(x, t)
            others = rows / own.clamp(min=1e-300)
            mixed = own * ((1 - share) * others / others.sum(-1, keepdim=True) + share / task.num_tokens)
            rows = mixed / mixed.sum(-1, keepdim=True)
        return rows.log()

    denoiser = CallableDenoiser(logits, task.num_tokens)
    return Trained(Model(denoiser, process, task.shape), task)
