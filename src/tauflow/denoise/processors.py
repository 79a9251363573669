"""Leave-one-out rows: what the other coordinates say of one, for sources with a law over data tokens.

A posterior row of noise holds what the coordinate's own token says of it too. With pi the law of the source,

    p(s | x_t) ~ l(s) c(s),    c(s) = kappa 1{s = x} + (1 - kappa) pi(x),

and l(s) = p(x_1^d = s | x_t without coordinate d) is the row without it: p with its own entry divided by
o = 1 + kappa / ((1 - kappa) pi(x)), normalised (Gourevitch et al. 2026 for uniform noise).

A temperature belongs on l. Dividing the logits of p by it sharpens c as well, which says "keep what you
have": a token of noise then stays, the surer the lower the temperature. With ln p = ln l + ln c up to a
constant, the row of a model whose l is tempered has the logits

    ln p(s) / T + (1 - 1 / T) ln o 1{s = x},

which at T = 1 are those of the network. Masks say nothing of their token, so their rows are l already.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise.denoiser import (
    Context,
    Denoiser,
    Evaluation,
    TemperedDenoiser,
    TemperedEvaluation,
    Wrapped,
    Wrapper,
    single,
    take,
)
from tauflow.errors import SamplingError
from tauflow.numerics import precise
from tauflow.process import Mixture, Process

SMALLEST = 1e-12  # 1 - kappa


def leave_one_out(rows: Tensor, tokens: Tensor, odds: Tensor | float) -> Tensor:
    """Return rows (R, V) without what their own tokens (R,) say, whose odds o are (R, 1); overwrites rows."""
    own = tokens[:, None]
    rows.scatter_(1, own, rows.gather(1, own) / odds)
    return rows.div_(rows.sum(-1, keepdim=True))


def tempered(denoiser: Denoiser, temperature: float, process: Process) -> Denoiser:
    """Return a denoiser with a temperature, on leave-one-out rows where the source has a law over tokens."""
    if isinstance(process, Mixture) and not process.absorbing:
        return TemperedContextDenoiser(denoiser, temperature, process)
    return TemperedDenoiser(denoiser, temperature)


class TemperedContextDenoiser(TemperedDenoiser):
    """Divides the logits of leave-one-out rows by a temperature: what is surer is what the context says."""

    def __init__(self, denoiser: Denoiser, temperature: float, process: Mixture):
        super().__init__(denoiser, temperature)
        self.process = process

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        evaluation = self.denoiser.evaluate(x, t, condition)
        return TemperedContextEvaluation(evaluation, self.temperature, x, self.log_odds(x, t))

    def log_odds(self, x: Tensor, t: Tensor) -> Tensor:
        """Return ln o (B, D) of tokens x (B, D) at times t (B,)."""
        schedule, t = self.process.schedule, t.to(precise(t.device))[:, None]
        odds = schedule.kappa(t) / schedule.survival(t).clamp(min=SMALLEST)
        return torch.log1p(odds * self.process.source.inverse_law(x)).expand_as(x)


class TemperedContextEvaluation(TemperedEvaluation):
    """Logits divided by a temperature, but for what the own tokens x (B, D) say, which is ln o (B, D)."""

    def __init__(self, evaluation: Evaluation, temperature: float, x: Tensor, log_odds: Tensor):
        super().__init__(evaluation, temperature)
        self._x = x.flatten()
        self._share = (1 - 1 / temperature) * log_odds.flatten()

    def logits(self, index: Tensor | slice) -> Tensor:
        logits = super().logits(index)
        share = take(self._share, index).to(logits)[:, None]
        return logits.scatter_add(1, take(self._x, index)[:, None], share)


# TruncatedDenoiser: top-k and top-p, rows of their likeliest tokens alone.
#
# Where the source is noise over tokens, the row that is cut is the leave-one-out row (leave_one_out.py): what
# the other coordinates say. The own token, which may be noise, would else be the likeliest and freeze.
#
# Shapes: B sequences, D coordinates, V data tokens, R rows.


class TruncatedDenoiser(Wrapper):
    """Gives all but the likeliest tokens of a row the probability 0.

    `top_k` keeps so many; then `top_p` keeps the fewest that have this probability together (nucleus
    sampling, Holtzman et al. 2020). Tokens as likely as the last one of top_k are kept too.
    """

    def __init__(
        self, denoiser: Denoiser, process: Process, top_k: int | None = None, top_p: float | None = None
    ):
        super().__init__(denoiser)
        if top_k is not None and top_k < 1:
            raise SamplingError(f"top_k must be at least 1, got {top_k!r}; 50 is usual")
        if top_p is not None and not 0 < top_p <= 1:
            raise SamplingError(f"top_p must be above 0 and at most 1, got {top_p!r}; 0.9 is usual")
        self.top_k = top_k
        self.top_p = top_p
        self._own: TemperedContextDenoiser | None = None
        if isinstance(process, Mixture) and not process.absorbing:
            self._own = TemperedContextDenoiser(denoiser, 1.0, process)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        evaluation = self.denoiser.evaluate(x, t, condition)
        log_odds = None if self._own is None else self._own.log_odds(x, t)
        return TruncatedEvaluation(evaluation, self.top_k, self.top_p, x, log_odds)


class TruncatedEvaluation(Wrapped):
    """Logits that are -inf for all but the likeliest tokens, apart from what own tokens say, ln o (B, D)."""

    def __init__(
        self,
        evaluation: Evaluation,
        top_k: int | None,
        top_p: float | None,
        x: Tensor,
        log_odds: Tensor | None,
    ):
        super().__init__(evaluation)
        self._top_k = top_k
        self._top_p = top_p
        self._x = x.flatten()
        self._log_odds = None if log_odds is None else log_odds.flatten()

    def logits(self, index: Tensor | slice) -> Tensor:
        logits = single(self._evaluations[0].logits(index))
        context = logits
        if self._log_odds is not None:
            said = take(self._log_odds, index).to(logits)[:, None]
            context = logits.scatter_add(1, take(self._x, index)[:, None], -said)
        return logits.masked_fill(cut(context, self._top_k, self._top_p), -torch.inf)


def cut(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Return true (R, V) on all but the likeliest tokens of rows."""
    gone = torch.zeros_like(logits, dtype=torch.bool)
    if top_k is not None and top_k < logits.shape[-1]:
        gone = logits < logits.topk(top_k, dim=-1).values[..., -1:]
    if top_p is None or top_p == 1:
        return gone
    ordered, tokens = logits.masked_fill(gone, -torch.inf).sort(dim=-1, descending=True, stable=True)
    rows = ordered.softmax(-1)
    likelier = rows.cumsum(-1) - rows  # 0 at the first, which is always kept
    return gone | torch.zeros_like(gone).scatter(-1, tokens, likelier >= top_p)


# AllowedDenoiser: samples of a model that have certain tokens only, coordinate by coordinate.
#
# The network is asked as always; the logits of tokens that are not allowed at their coordinate are -inf, so
# that a posterior row is the network's own, conditioned on the allowed tokens. The noise stays that of the
# training: a state may hold any token of the source, and only what is drawn from a posterior is restricted.
# That is the process of the data whose coordinates are each conditioned so, whatever the source is: given
# x_1, noise does not depend on what x_1 was allowed to be. So the law of samples is exact where coordinates
# are independent; else each token is conditioned on its own set and on the tokens before it, not on the sets
# of those to come.
#
# Shapes: B sequences, D coordinates, V data tokens, R rows, K sets of tokens.


class AllowedDenoiser(Wrapper):
    """Gives tokens that are not allowed at their coordinate the probability 0."""

    def __init__(self, denoiser: Denoiser, allowed: "Allowed"):
        super().__init__(denoiser)
        self.samples = allowed.samples or denoiser.samples
        self.allowed = allowed.to(denoiser.device)
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        return self.copied(denoiser=self.denoiser.within(context), _context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        places = self.allowed.which(len(x), self._context)
        return AllowedEvaluation(self.denoiser.evaluate(x, t, condition), self.allowed.sets, places)


class AllowedEvaluation(Wrapped):
    """Logits that are -inf where a token is not in the set (K, V) of its coordinate, by number (B, D)."""

    def __init__(self, evaluation: Evaluation, sets: Tensor, which: Tensor):
        super().__init__(evaluation)
        self._sets = sets
        self._which = which.flatten()  # (B * D,)

    def logits(self, index: Tensor | slice) -> Tensor:
        logits = self._evaluations[0].logits(index)
        sets = self._sets.to(logits.device)
        if len(sets) > 1:
            sets = sets[self._which.to(logits.device)[index]]  # (R, V)
        return logits.masked_fill(~sets, -torch.inf)


@dataclass(frozen=True)
class Allowed:
    """Sets of tokens (K, V), and the number of its set for each coordinate (D,), or of each sample (B, D).

    So few sets take little memory where V is large: image and text tokens of one vocabulary are two.
    """

    sets: Tensor
    numbers: Tensor

    @property
    def samples(self) -> int | None:
        """Return B, where samples differ."""
        return len(self.numbers) if self.numbers.ndim == 2 else None

    def which(self, count: int, context: Context) -> Tensor:
        """Return the numbers of the sets (count, D) of so many samples in a context."""
        if self.numbers.ndim == 1:
            return self.numbers.expand(count, -1)
        return context.own(self.numbers, count)

    def to(self, device: torch.device) -> "Allowed":
        """Return the same on a device."""
        return Allowed(self.sets.to(device), self.numbers.to(device))


def checked_allowed(allowed: Any, length: int, num_tokens: int, sets: Any = None) -> Allowed:
    """Return allowed tokens from true (V,), (D, V) or (B, D, V), or from numbers of sets; refuse all else."""
    if sets is not None:
        return _checked_sets(allowed, length, num_tokens, sets)
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
    return _refuse_empty(Allowed(sets, numbers.expand(length) if allowed.ndim == 1 else numbers))


def _checked_sets(numbers: Any, length: int, num_tokens: int, sets: Any) -> Allowed:
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
    return _refuse_empty(Allowed(sets, numbers.long()))


def _kind(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _refuse_empty(allowed: Allowed) -> Allowed:
    """Return allowed tokens; raise where a coordinate is allowed none."""
    empty = (~allowed.sets.any(1))[allowed.numbers].nonzero()
    if len(empty):
        place = empty[0].tolist()
        sample = f" of sample {place[0]}" if len(place) == 2 else ""
        raise SamplingError(f"coordinate {place[-1]}{sample} is allowed no token at all; allow at least one")
    return allowed


# AttendingDenoiser: sequences of different lengths in one batch.
#
# Shapes: B sequences, D coordinates. Coordinates that are not attended to are padding: the network does not
# read them, so that each sequence has the logits that it has alone, and a sampler leaves them as they are.


class AttendingDenoiser(Wrapper):
    """Tells the network which coordinates (B, D) are read; the others are padding."""

    def __init__(self, denoiser: Denoiser, attention: Tensor):
        super().__init__(denoiser)
        if not denoiser.attends:
            raise SamplingError(
                "this network reads every coordinate, so sequences of different lengths need batches of "
                "their own; use a network that says attends = True and takes hidden(..., attention=)"
            )
        self.attention = attention
        self.samples = len(attention)
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        return self.copied(_context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        assert self.attention is not None
        attention = self._context.own(self.attention, len(x)).to(x.device)
        inner = self.denoiser.within(dataclasses.replace(self._context, attention=attention))
        return inner.evaluate(x, t, condition)


def checked_attention(attention: Tensor, length: int) -> Tensor:
    """Return true (B, D) where coordinates are read, from itself or from lengths (B,); refuse all else."""
    read = attention
    if attention.ndim == 1 and int(attention.max()) <= length:
        read = torch.arange(length, device=attention.device) < attention[:, None]
    if read.dtype != torch.bool or tuple(read.shape[1:]) != (length,) or not bool(read.any(1).all()):
        raise SamplingError(
            f"attention must be lengths (B,) from 1 to {length}, or a boolean tensor (B, {length}) with a "
            f"true one for each sequence; got {attention.dtype} {tuple(attention.shape)}"
        )
    return read
