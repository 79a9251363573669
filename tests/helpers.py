"""What several tests of samplers share: the sources, one call that samples, and laws compared."""

import math
from itertools import pairwise
from typing import get_args

import torch
from torch import Tensor, nn

import tauflow
from tauflow import Marginal, Masked, Metric, Mixture, Model, Process, Result, Source, Uniform
from tauflow.denoise import LearnedCounts
from tauflow.samplers import Sampler, sampler_from
from tauflow.samplers.reveal import OrderName

REQUEST = ("seed", "condition", "prompt", "observer", "progress")


def skewed(num_tokens: int) -> Marginal:
    """A marginal source whose token s has a probability in proportion to s + 1."""
    return Marginal(torch.arange(1.0, num_tokens + 1))


SOURCES = {"masked": Masked, "uniform": Uniform, "marginal": skewed}


def mixture(kind: str, num_tokens: int, schedule="linear") -> Mixture:
    return Mixture(SOURCES[kind](num_tokens), schedule)


def mixtures(num_tokens: int, schedule="linear") -> list[Mixture]:
    return [mixture(kind, num_tokens, schedule) for kind in SOURCES]


def metric(num_tokens: int, schedule="beta", **options) -> Metric:
    """The metric path of codes in random directions."""
    generator = torch.Generator().manual_seed(0)
    return Metric(torch.randn(num_tokens, 3, generator=generator), schedule, **options)


def process_named(kind: str, num_tokens: int) -> Process:
    """The metric path, or a mixture with the linear schedule."""
    return metric(num_tokens) if kind == "metric" else mixture(kind, num_tokens)


def process_of(source: Source | Process) -> Process:
    """A source with the linear schedule, unless it is a process already."""
    return source if isinstance(source, Process) else Mixture(source, "linear")


def equal_counts(length: int) -> list[LearnedCounts]:
    """Counts as if learned, for every order: equal ones."""
    ends = [[n * length // steps for n in range(steps + 1)] for steps in range(1, min(length, 16) + 1)]
    table = tuple(tuple(b - a for a, b in pairwise(each)) for each in ends)
    return [LearnedCounts(order, table, (0.0,) * length) for order in get_args(OrderName)]


def near(length: int) -> Tensor:
    """Influence as if learned: it falls with distance."""
    places = torch.arange(length)
    return 0.9 * 0.7 ** (places - places[:, None]).abs()


def draw(
    denoiser,
    source: Source | Process,
    shape: tuple,
    sampler: Sampler | str = "tr_cie",
    nfe: int = 32,
    order=None,
    **options,
) -> Result:
    """Samples of the shape (B, ...); `options` are those of `tauflow.sample` and of the sampler."""
    length = math.prod(shape[1:])
    learned = {"order": order, "counts": equal_counts(length), "influence": near(length)}
    model = Model(denoiser, process_of(source), shape[1:], **learned)
    request = {name: options.pop(name) for name in REQUEST if name in options}
    return tauflow.sample(model, sampler_from(sampler, model, **options), nfe, count=shape[0], **request)


class Small(nn.Module):
    """A split network with random weights, in which neighbours and the time matter."""

    def __init__(self, num_states: int, num_tokens: int):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.states = nn.Parameter(torch.randn(num_states, 16, generator=generator))
        self.mix = nn.Parameter(torch.randn(16, 16, generator=generator) / 4)
        self.output = nn.Parameter(torch.randn(16, num_tokens, generator=generator) / 2)

    def hidden(self, x, t):
        here = self.states[x]
        around = (here.roll(1, 1) + here.roll(-1, 1)) @ self.mix
        return torch.tanh(here / 2 + around + t.to(here)[:, None, None])

    def head(self, rows):
        return rows @ self.output

    def forward(self, x, t):
        return self.head(self.hidden(x, t))


class Rows(nn.Module):
    """A split network that counts the rows its head is applied to."""

    def __init__(self, num_tokens):
        super().__init__()
        self.output = nn.Linear(4, num_tokens)
        self.rows = 0
        self.largest = 0

    def hidden(self, x, t):
        return torch.randn(*x.shape, 4, generator=torch.Generator().manual_seed(int(t[0] * 1e6)))

    def head(self, rows):
        self.rows += rows.shape[:-1].numel()
        self.largest = max(self.largest, rows.shape[:-1].numel())
        return self.output(rows)


def empirical(tokens: Tensor, base: int) -> Tensor:
    """Frequencies of all base^D sequences."""
    code = (tokens * base ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(1)
    return torch.bincount(code, minlength=base ** tokens.shape[1]).double() / len(tokens)


def distance(a: Tensor, b: Tensor) -> float:
    """Total variation."""
    return (a - b).abs().sum().item() / 2


def allowed(cells: int, samples: int) -> float:
    """Twice the total variation of an empirical law to its own: at the sizes of our tests over five standard
    deviations."""
    return 2 * math.sqrt(cells / (2 * math.pi * samples))


def values(results, metric, *factors):
    """Return the values of a metric by the words of these factors."""
    return {
        tuple(record.factors.get(name) for name in factors): record.measured.value
        for record in results.records
        if record.metric == metric
    }
