"""Data laws with an exact denoiser that are too long to enumerate: chains, and one whose dependence does not fall with distance.

Each is a Task, so that everything that is measured on a trained model is measured on them by the same code; nothing is trained.
Shapes: B sequences, D coordinates, V data tokens, H hidden states.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.denoisers import CallableDenoiser
from tauflow.oracles import EnumerableLaw, countdown_posterior, evidence
from tauflow.runs import Run
from tauflow.schedules import Schedule, schedule_from
from tauflow.seeds import generator_for
from tauflow.sources import SOURCES, Source
from tauflow.tasks.base import SampleMean, Task, UnigramTotalVariation
from tauflow.tasks.countdown import Countdown

LEAK = 1e-4  # every transition of countdown is possible a little, so that the posterior exists at wrong states too


@dataclass(frozen=True)
class Chain:
    """A hidden Markov law; a Markov chain is one whose emission is the identity."""

    transition: Tensor  # (H, H) float64
    emission: Tensor  # (H, V) float64

    @classmethod
    def markov(cls, values: int, spread: float, seed: int = 0) -> "Chain":
        rows = (spread * torch.randn(values, values, generator=generator_for("chain", seed), dtype=torch.float64)).softmax(-1)
        return cls(rows, torch.eye(values, dtype=torch.float64))

    @classmethod
    def hidden(cls, states: int, values: int, stay: float, spread: float, seed: int = 0) -> "Chain":
        """Hidden states that last 1 / (1 - stay) tokens each: a longer range."""
        transition = stay * torch.eye(states, dtype=torch.float64) + (1 - stay) / states
        rows = spread * torch.randn(states, values, generator=generator_for("hidden chain", seed), dtype=torch.float64)
        return cls(transition, rows.softmax(-1))

    @property
    def start(self) -> Tensor:
        """The law of hidden states that the chain leaves unchanged, (H,)."""
        return torch.linalg.matrix_power(self.transition, 2**12)[0]

    def sample(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        state = torch.multinomial(self.start, count, replacement=True, generator=generator)
        tokens = []
        for _ in range(length):
            tokens.append(torch.multinomial(self.emission[state], 1, generator=generator).squeeze(1))
            state = torch.multinomial(self.transition[state], 1, generator=generator).squeeze(1)
        return torch.stack(tokens, 1)

    def filter(self, likelihood: Tensor) -> tuple[Tensor, Tensor]:
        """Forward messages (B, D, H), and the log-likelihood (B,), of evidence (B, D, H) on the hidden states."""
        forward, total = likelihood.clone(), torch.zeros(len(likelihood), dtype=torch.float64)
        for d in range(likelihood.shape[1]):
            forward[:, d] *= forward[:, d - 1] @ self.transition if d else self.start
            norm = forward[:, d].sum(-1, keepdim=True)
            forward[:, d] /= norm
            total += norm.squeeze(1).log()
        return forward, total

    def posterior(self, x: Tensor, t: Tensor, source: Source, schedule: Schedule) -> Tensor:
        """p(x_1^d = s | x), float64 (B, D, V)."""
        seen = evidence(x, t, source, schedule)  # (B, D, V)
        likelihood = seen @ self.emission.T  # (B, D, H)
        forward, _ = self.filter(likelihood)
        backward = torch.ones_like(likelihood)
        for d in reversed(range(x.shape[1] - 1)):
            backward[:, d] = (backward[:, d + 1] * likelihood[:, d + 1]) @ self.transition.T
            backward[:, d] /= backward[:, d].sum(-1, keepdim=True)
        others = forward * backward / likelihood.clamp(min=1e-300)  # of all but the own token
        weights = (others @ self.emission) * seen
        return weights / weights.sum(-1, keepdim=True)

    def nll(self, tokens: Tensor) -> Tensor:
        """Nats a token (B,)."""
        _, total = self.filter(self.emission.T[tokens])
        return -total / tokens.shape[1]


class Perplexity(SampleMean):
    """exp of the mean negative log-likelihood a token under the law itself."""

    def __init__(self, chain: Chain, **kwargs):
        super().__init__(**kwargs)
        self.chain = chain

    def of(self, tokens):
        return self.chain.nll(tokens)

    def compute(self):
        mean, error = super().compute()
        return mean.exp(), mean.exp() * error


class Items(list):
    def __getitems__(self, items):
        return [self[i] for i in items]


class LawTask(Task):
    """What laws share: validation items drawn from the law itself."""

    headline = "perplexity"

    def __init__(self, length: int, num_tokens: int):
        super().__init__(batch_size=1, epoch_items=1, num_workers=0)
        self.seq_len, self.num_tokens = length, num_tokens

    def setup(self, stage=None):
        self.val_data = Items({"tokens": row} for row in self.draw(20_000, generator_for("law")))

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Sequences (count, D) of the law."""

    def show(self, tokens):
        return "\n\n".join(" ".join(map(str, row)) for row in tokens.tolist())


class ChainTask(LawTask):
    def __init__(self, chain: Chain, length: int):
        super().__init__(length, chain.emission.shape[1])
        self.chain = chain

    def draw(self, count, generator):
        return self.chain.sample(count, self.seq_len, generator)

    def posterior(self, x, t, source, schedule):
        return self.chain.posterior(x, t, source, schedule)

    def sample_metrics(self):
        unigrams = UnigramTotalVariation(self.chain.start @ self.chain.emission)
        return MetricCollection({"perplexity": Perplexity(self.chain), "unigram_tv": unigrams}, compute_groups=False)


class JointTotalVariation(Metric):
    """Total variation between the samples and an enumerable law. Of n samples it is above 0 even where they follow the law."""

    higher_is_better = False

    def __init__(self, law: EnumerableLaw, **kwargs):
        super().__init__(**kwargs)
        self.law = law
        self.add_state("counts", torch.zeros(law.num_tokens**law.length, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, tokens):
        powers = self.law.num_tokens ** torch.arange(self.law.length - 1, -1, -1)
        self.counts += torch.bincount((tokens * powers).sum(1), minlength=len(self.counts))

    def compute(self):
        shares, exact = self.counts / self.counts.sum(), self.law.probabilities
        deviations = (shares * (1 - shares) / self.counts.sum()).sqrt()
        return (shares - exact).abs().sum() / 2, deviations.square().sum().sqrt() / 2


class JointTask(LawTask):
    headline = "total_variation"

    def __init__(self, law: EnumerableLaw):
        super().__init__(law.length, law.num_tokens)
        self.law = law

    def draw(self, count, generator):
        return self.law.sample(count, generator)

    def posterior(self, x, t, source, schedule):
        return self.law.posterior(x, t, source, schedule)

    def sample_metrics(self):
        return MetricCollection({"total_variation": JointTotalVariation(self.law)}, compute_groups=False)


class CopyErrorRate(SampleMean):
    """Share of the coordinates of the first half whose copy in the second half is another token."""

    def of(self, tokens):
        first, second = tokens.chunk(2, dim=1)
        return (first != second).double().mean(1)


class CopyTask(LawTask):
    """Uniform tokens, and their copy half a sequence later: the dependence is all at one long distance, where spacing puts its pairs."""

    headline = "error_rate"

    def draw(self, count, generator):
        half = torch.randint(self.num_tokens, (count, self.seq_len // 2), generator=generator)
        return torch.cat([half, half], dim=1)

    def posterior(self, x, t, source, schedule):
        first, second = (evidence(x, t, source, schedule) + 1e-12).chunk(2, dim=1)
        both = first * second
        return torch.cat([both, both], dim=1) / both.sum(-1, keepdim=True).repeat(1, 2, 1)

    def sample_metrics(self):
        law = torch.full((self.num_tokens,), 1 / self.num_tokens)
        return MetricCollection({"error_rate": CopyErrorRate(), "unigram_tv": UnigramTotalVariation(law)}, compute_groups=False)


class ExactCountdown(Countdown):
    def posterior(self, x, t, source, schedule):
        return countdown_posterior(x, t, source, schedule, leak=LEAK)


def laws(length: int = 64) -> dict[str, Task]:
    return {
        "markov": ChainTask(Chain.markov(32, 2.0), length),
        "hidden markov": ChainTask(Chain.hidden(12, 32, 0.92, 2.0), length),
        "countdown": ExactCountdown(length=length, values=32),
        "copy": CopyTask(length, 16),
    }


def exact_run(task: Task, source: str, schedule: str = "quadratic") -> Run:
    """A task with its exact denoiser."""
    kind, kappa = SOURCES[source](task.num_tokens), schedule_from(schedule)

    def logits(x: Tensor, t: Tensor) -> Tensor:
        return task.posterior(x, t, kind, kappa).log()

    return Run(task=task, denoiser=CallableDenoiser(logits, task.num_tokens), source=kind, schedule=kappa)
