"""Logits processors: temperature, top-k and top-p, allowed tokens.

A processor is a function (logits (R, V), index, query) -> logits (R, V). `ProcessedDenoiser` applies one to
the rows that are read. A plain model crosses none of it.

On a source with noise over data tokens (uniform, marginal), a posterior row also holds what the coordinate's
own token says about it. With pi the distribution of the source,

    p(s | x_t) ~ l(s) c(s),    c(s) = kappa 1{s = x} + (1 - kappa) pi(x),

and l(s) = p(x_1^d = s | x_t without coordinate d) is the leave-one-out row: p with its own entry divided by
o = 1 + kappa / ((1 - kappa) pi(x)), normalized (Gourevitch et al. 2026 for uniform noise).

A temperature belongs on l. Dividing the logits of p by it sharpens c as well, which says "keep what you
have": a noise token then stays, the more surely the lower the temperature. With ln p = ln l + ln c up to a
constant, the row of a model whose l is tempered has the logits

    ln p(s) / T + (1 - 1 / T) ln o 1{s = x},

which at T = 1 are the network's. Truncation cuts l for the same reason: the own token would else be the most
likely and freeze. A mask says nothing about its token, so its row is l already.

Shapes: B sequences, D coordinates, V data tokens, R rows, K sets of tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.posterior import Posterior, Query, WrappedPosterior, at_least_float32, take
from tauflow.errors import SamplingError
from tauflow.numerics import precise
from tauflow.process import Mixture, Process

Index: TypeAlias = Tensor | slice
Processor: TypeAlias = Callable[[Tensor, Index, Query], Tensor]

MAX_TEMPERATURE = 1e6  # beyond it, or below its inverse, float32 overflows
MIN_SURVIVAL = 1e-12  # of 1 - kappa


class ProcessedDenoiser(Wrapper):
    """A denoiser whose logits pass through a processor.

    Args:
        denoiser: whose logits.
        processor: a function (logits (R, V), index, query) -> logits (R, V).
        samples: B, if the processor knows something about each sequence of a batch.
    """

    def __init__(self, denoiser: Denoiser, processor: Processor, samples: int | None = None):
        super().__init__(denoiser)
        self.processor = processor
        self.samples = samples or denoiser.samples

    def posterior(self, query: Query) -> Posterior:
        return ProcessedPosterior(self.denoiser.posterior(query), self.processor, query)


class ProcessedPosterior(WrappedPosterior):
    """A posterior whose logits pass through a processor."""

    def __init__(self, posterior: Posterior, processor: Processor, query: Query):
        super().__init__(posterior)
        self._processor = processor
        self._query = query

    def logits(self, index: Index) -> Tensor:
        return self._processor(self.posteriors[0].logits(index), index, self._query)


# Temperature


def tempered(denoiser: Denoiser, temperature: float, process: Process) -> Denoiser:
    """Return a denoiser with a temperature, on leave-one-out rows where the source is noise over tokens."""
    temperature = check_temperature(temperature)
    mixture = noise_over_tokens(process)
    if mixture is None:
        return ProcessedDenoiser(denoiser, partial(temper, temperature=temperature))
    return ProcessedDenoiser(denoiser, partial(temper_context, temperature=temperature, process=mixture))


def temper(logits: Tensor, index: Index, query: Query, temperature: float) -> Tensor:
    """Divide logits by a temperature: below 1 is more confident than the network."""
    return at_least_float32(logits) / temperature


def temper_context(
    logits: Tensor, index: Index, query: Query, temperature: float, process: Mixture
) -> Tensor:
    """Divide the logits of leave-one-out rows by a temperature: the context gets more confident."""
    logits = temper(logits, index, query, temperature)
    token, log_odds = own_tokens(process, index, query)
    return logits.scatter_add(1, token, ((1 - 1 / temperature) * log_odds).to(logits))


def noise_over_tokens(process: Process) -> Mixture | None:
    """Return the process if its source is noise over data tokens, whose own token says something."""
    return process if isinstance(process, Mixture) and not process.absorbing else None


def own_tokens(process: Mixture, index: Index, query: Query) -> tuple[Tensor, Tensor]:
    """Return the own tokens (R, 1) of the coordinates index (R,), and ln o (R, 1)."""
    token = take(query.x.flatten(), index)[:, None]
    log_odds = query.cache.get(id(process))  # (B D,), computed once for all chunks of rows
    if log_odds is None:
        t = query.t.to(precise(query.t.device))[:, None]
        odds = process.schedule.kappa(t) / process.schedule.survival(t).clamp(min=MIN_SURVIVAL)
        log_odds = torch.log1p(odds * process.source.inverse_probability(query.x))
        log_odds = query.cache[id(process)] = log_odds.expand_as(query.x).flatten()
    return token, take(log_odds, index)[:, None]


def leave_one_out(probs: Tensor, tokens: Tensor, odds: Tensor | float) -> Tensor:
    """Return rows (R, V) without what their own tokens (R,) say, whose odds o are (R, 1); overwrites them."""
    own = tokens[:, None]
    probs.scatter_(1, own, probs.gather(1, own) / odds)
    return probs.div_(probs.sum(-1, keepdim=True))


def check_temperature(temperature: float) -> float:
    """Return a temperature; raise an error if it isn't a finite number above 0."""
    if not isinstance(temperature, Real) or not 1 / MAX_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise SamplingError(
            f"temperature must be above 0, from {1 / MAX_TEMPERATURE:g} to {MAX_TEMPERATURE:g}, got "
            f"{temperature!r}; a small one such as 0.1 is nearly greedy"
        )
    return float(temperature)


# Top-k and top-p


def truncated(
    denoiser: Denoiser, process: Process, top_k: int | None = None, top_p: float | None = None
) -> Denoiser:
    """Return a denoiser that gives all but the most likely tokens of a row the probability 0.

    `top_k` keeps that many; then `top_p` keeps the fewest that have this probability together (nucleus
    sampling, Holtzman et al. 2020). Tokens as likely as the last one of top_k are kept too.
    """
    if top_k is not None and top_k < 1:
        raise SamplingError(f"top_k must be at least 1, got {top_k!r}; 50 is usual")
    if top_p is not None and not 0 < top_p <= 1:
        raise SamplingError(f"top_p must be above 0 and at most 1, got {top_p!r}; 0.9 is usual")
    mixture = noise_over_tokens(process)
    return ProcessedDenoiser(denoiser, partial(truncate, top_k=top_k, top_p=top_p, process=mixture))


def truncate(
    logits: Tensor,
    index: Index,
    query: Query,
    top_k: int | None,
    top_p: float | None,
    process: Mixture | None = None,
) -> Tensor:
    """Set the logits of all but the most likely tokens to -inf; with a process, of leave-one-out rows."""
    logits = context = at_least_float32(logits)
    if process is not None:
        token, log_odds = own_tokens(process, index, query)
        context = logits.scatter_add(1, token, -log_odds.to(logits))
    return logits.masked_fill(is_unlikely(context, top_k, top_p), -torch.inf)


def is_unlikely(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Return true (R, V) on all but the most likely tokens of rows."""
    gone = torch.zeros_like(logits, dtype=torch.bool)
    if top_k is not None and top_k < logits.shape[-1]:
        gone = logits < logits.topk(top_k, dim=-1).values[..., -1:]
    if top_p is None or top_p == 1:
        return gone
    ordered, tokens = logits.masked_fill(gone, -torch.inf).sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(-1)
    mass_before = probs.cumsum(-1) - probs  # 0 at the first, which is always kept
    return gone | torch.zeros_like(gone).scatter(-1, tokens, mass_before >= top_p)


def split_truncation(denoiser: Denoiser) -> tuple[Denoiser, Processor | None]:
    """Return a denoiser without its outermost truncation, and that: guidance and temperature come first."""
    if isinstance(denoiser, ProcessedDenoiser) and getattr(denoiser.processor, "func", None) is truncate:
        return denoiser.denoiser, denoiser.processor
    return denoiser, None


# Allowed tokens
#
# The network is asked as always; tokens that aren't allowed at their coordinate get the probability 0, so
# that a row is the network's own, conditioned on the allowed tokens. The noise stays that of the training: a
# state may hold any token of the source, and only draws from a posterior are restricted. That is the process
# of data whose coordinates are each conditioned this way, whatever the source: given x_1, noise doesn't
# depend on what x_1 was allowed to be. So the distribution of samples is exact where coordinates are
# independent; else each token is conditioned on its own set and on the tokens before it, not on the sets of
# those to come.


@dataclass(frozen=True)
class Allowed:
    """Sets of tokens (K, V), and the number of its set for each coordinate (D,), or of each sample (B, D).

    Few sets take little memory where V is large: image and text tokens of one vocabulary are two.
    """

    sets: Tensor
    numbers: Tensor

    @property
    def samples(self) -> int | None:
        """Return B, where samples differ."""
        return len(self.numbers) if self.numbers.ndim == 2 else None


def with_allowed(denoiser: Denoiser, allowed: Allowed) -> Denoiser:
    """Return a denoiser that gives tokens that aren't allowed at their coordinate the probability 0."""
    device = denoiser.device
    own = Allowed(allowed.sets.to(device), allowed.numbers.to(device))
    return ProcessedDenoiser(denoiser, partial(allow, allowed=own), allowed.samples)


def allow(logits: Tensor, index: Index, query: Query, allowed: Allowed) -> Tensor:
    """Set the logits of tokens that aren't in the set of their coordinate to -inf."""
    sets = allowed.sets.to(logits.device)
    if len(sets) > 1:
        batch, length = query.x.shape
        if isinstance(index, slice):
            index = torch.arange(batch * length, device=logits.device)[index]
        numbers = allowed.numbers.to(logits.device)
        own = query.own(numbers).flatten()[index] if numbers.ndim == 2 else numbers[index % length]
        sets = sets[own]  # (R, V)
    return logits.masked_fill(~sets, -torch.inf)


def check_allowed(allowed: Any, length: int, num_tokens: int, sets: Any = None) -> Allowed:
    """Return allowed tokens from true (V,), (D, V) or (B, D, V), or from numbers of sets."""
    if sets is not None:
        return _check_sets(allowed, length, num_tokens, sets)
    shapes = f"({length}, {num_tokens}) or ({num_tokens},)"
    tail = tuple(allowed.shape)[-2:] if isinstance(allowed, Tensor) else ()
    fits = tail == (num_tokens,) or tail == (length, num_tokens)
    if not fits or allowed.dtype != torch.bool or allowed.ndim > 3 or not len(allowed):
        raise SamplingError(
            f"allowed must be a boolean tensor of the shape {shapes}, or one (B, {length}, {num_tokens}) of "
            f"each sample, true where a token may stand; got {_kind(allowed)}"
        )
    sets = allowed.reshape(-1, num_tokens)
    numbers = torch.arange(len(sets), device=sets.device).reshape(allowed.shape[:-1])
    return _check_not_empty(Allowed(sets, numbers.expand(length) if allowed.ndim == 1 else numbers))


def _check_sets(numbers: Any, length: int, num_tokens: int, sets: Any) -> Allowed:
    good = isinstance(sets, Tensor) and sets.dtype == torch.bool and sets.ndim == 2 and len(sets)
    if not good or sets.shape[1] != num_tokens:
        raise SamplingError(
            f"sets must be a boolean tensor (K, {num_tokens}), true on the tokens of each; got {_kind(sets)}"
        )
    whole = isinstance(numbers, Tensor) and not (numbers.is_floating_point() or numbers.dtype == torch.bool)
    fits = whole and numbers.ndim in (1, 2) and numbers.shape[-1] == length and numbers.numel()
    if not fits or int(numbers.min()) < 0 or int(numbers.max()) >= len(sets):
        raise SamplingError(
            f"with {len(sets)} sets, allowed must be their numbers 0 to {len(sets) - 1}, ({length},) or "
            f"(B, {length}); got {_kind(numbers)}"
        )
    return _check_not_empty(Allowed(sets, numbers.long()))


def _check_not_empty(allowed: Allowed) -> Allowed:
    empty = (~allowed.sets.any(1))[allowed.numbers].nonzero()
    if len(empty):
        place = empty[0].tolist()
        sample = f" of sample {place[0]}" if len(place) == 2 else ""
        raise SamplingError(f"coordinate {place[-1]}{sample} is allowed no token at all; allow at least one")
    return allowed


def _kind(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


# Attention


def check_attention(attention: Tensor, length: int) -> Tensor:
    """Return true (B, D) where coordinates are read, from itself or from lengths (B,)."""
    read = attention
    if attention.ndim == 1 and int(attention.max()) <= length:
        read = torch.arange(length, device=attention.device) < attention[:, None]
    if read.dtype != torch.bool or tuple(read.shape[1:]) != (length,) or not bool(read.any(1).all()):
        raise SamplingError(
            f"attention must be lengths (B,) from 1 to {length}, or a boolean tensor (B, {length}) with a "
            f"true one for each sequence; got {attention.dtype} {tuple(attention.shape)}"
        )
    return read
