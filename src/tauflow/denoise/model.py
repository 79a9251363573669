"""Model: a denoiser, the process of its training, and the shape of a sample. It's what you sample."""

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tauflow.denoise.denoiser import AttendingDenoiser, Denoiser, RetimedDenoiser, denoiser_from
from tauflow.denoise.guidance import GuidedDenoiser, UnpromptedDenoiser, check_weight
from tauflow.denoise.processors import check_allowed, check_attention, tempered, truncated, with_allowed
from tauflow.errors import SamplingError
from tauflow.numerics import precise
from tauflow.process import Metric, Mixture, Process, Schedule, Uniform, schedule_from

ChannelsName = Literal["together", "apart"]
RatesName = Literal["mixture", "metric"]


@dataclass(frozen=True)
class LearnedCounts:
    """The best counts of reveals along an order, and what they are forecast to cost; `tauflow.learn_counts`.

    Args:
        order: the order that they are for.
        counts: N counts for each of some budgets N, which rise from 1; their sum is D.
        excess: forecast of the excess KL in nats of a sequence, with the best counts of N = 1 .. D
            evaluations and without extrapolation; the last is 0, one coordinate each.
        weights: of the extrapolation in each of the N steps, from 0 to 1, for the same budgets; empty: 0.
    """

    order: str
    counts: tuple[tuple[int, ...], ...]
    excess: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            none = tuple((0.0,) * len(counts) for counts in self.counts)
            object.__setattr__(self, "weights", none)
        budgets = [len(counts) for counts in self.counts]
        numbers = all(type(count) is int and count > 0 for counts in self.counts for count in counts)
        rising = budgets[:1] == [1] and all(a < b for a, b in pairwise(budgets))
        fit = numbers and {sum(counts) for counts in self.counts} == {len(self.excess)}
        forecast = all(each >= 0 and math.isfinite(each) for each in self.excess)
        weights = [len(each) for each in self.weights] == budgets and all(
            0 <= weight <= 1 for each in self.weights for weight in each
        )
        if not (rising and fit and forecast and weights):
            raise SamplingError(
                "learned counts must be positive, for budgets that rise from 1, all with the sum D, have a "
                "forecast of at least 0 for each of D budgets, and a weight from 0 to 1 for each count; make "
                "them with tauflow.learn_counts"
            )

    @property
    def length(self) -> int:
        """Return D, the number of coordinates that are revealed."""
        return len(self.excess)

    def share(self, n: int, steps: int) -> float:
        """Return the share of the coordinates that is revealed after n of so many evaluations.

        Between the budgets that have counts of their own it is interpolated from the next smaller one.
        """
        counts = self.counts[self._nearest(steps)]
        number, part = divmod(n * len(counts), steps)
        return (sum(counts[:number]) + (part / steps * counts[number] if part else 0)) / self.length

    def weight(self, n: int, steps: int) -> float:
        """Return the weight of the extrapolation in step n of so many."""
        weights = self.weights[self._nearest(steps)]
        return weights[n * len(weights) // steps]

    def forecast(self, nfe: int) -> float:
        """Return the forecast excess of so many evaluations, in nats of a sequence."""
        return self.excess[min(nfe, self.length) - 1]

    def _nearest(self, steps: int) -> int:
        """Return which of the budgets is the largest that is not above so many steps."""
        return max(number for number, each in enumerate(self.counts) if len(each) <= steps)

    def evaluations(self, nats: float) -> int:
        """Return how many evaluations keep the forecast excess at or below so many nats of a sequence."""
        return next((n for n, each in enumerate(self.excess, 1) if each <= nats), self.length)


@dataclass(frozen=True, init=False)
class Model:
    """A denoiser, the process it was trained with, and the shape of a sample.

    It's what you sample. `tauflow.load` and `DFMModule.model` make one for you. Make one yourself for a
    network from elsewhere.

    Args:
        denoiser: any callable (x, t) -> logits (B, D, V), a `tauflow.Network`, or a `Denoiser`.
        process: the path, as in training, such as `Mixture(Masked(V), "quadratic")`.
        shape: of one sample: (D,) for a sequence, (H, W) or (H, W, C) for an image. The last axis is fastest.
        order: rank of each of the D coordinates, 0 first, for the sampler learned_order; from
            `tauflow.learn_order`.
        channels: set it if the last axis of the shape holds the channels of a pixel: "together" if channels
            depend little on each other and can be revealed together, "apart" if they are much alike. None
            is an axis of space.
        counts: how many coordinates each evaluation reveals, for samplers with counts=learned, one per order;
            from `tauflow.learn_counts`.
        influence: how much coordinates depend on each other (D, D), for the sampler independent; from
            `tauflow.learn_influence`.

    Returns:
        A model. `guided`, `tempered`, `truncated`, and the `with_` methods return a changed copy.

    Examples:
        >>> import tauflow, torch
        >>> def network(x, t):
        ...     return torch.zeros(*x.shape, 5)
        >>> model = tauflow.Model(network, tauflow.Mixture(tauflow.Masked(5), "linear"), shape=(8,))
        >>> tauflow.sample(model.tempered(0.8), nfe=4, count=2).tokens.shape
        torch.Size([2, 8])
    """

    denoiser: Denoiser
    process: Process
    shape: tuple[int, ...]
    order: Tensor | None = None
    channels: ChannelsName | None = None
    counts: tuple[LearnedCounts, ...] = ()
    influence: Tensor | None = None

    def __init__(
        self,
        denoiser: Any,
        process: Process,
        shape: Sequence[int],
        order: Tensor | Sequence[int] | None = None,
        channels: ChannelsName | None = None,
        counts: LearnedCounts | Sequence[LearnedCounts] = (),
        influence: Tensor | None = None,
    ):
        if not isinstance(process, Process):
            raise SamplingError(
                f"process must be a Process, such as Mixture(Masked(V), 'linear'), got {process!r}"
            )
        sizes = check_shape(shape)
        object.__setattr__(self, "denoiser", denoiser_for(denoiser, process))
        object.__setattr__(self, "process", process)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "order", check_order(order, math.prod(sizes)))
        object.__setattr__(self, "channels", check_channels(channels, sizes))
        object.__setattr__(self, "counts", check_counts(counts, math.prod(sizes)))
        object.__setattr__(self, "influence", check_influence(influence, math.prod(sizes)))

    @property
    def length(self) -> int:
        """Return D, the number of coordinates of a sample."""
        return math.prod(self.shape)

    @property
    def grid(self) -> tuple[int, ...]:
        """Return the shape without its axis of channels."""
        return self.shape if self.channels is None else self.shape[:-1]

    @property
    def conditions(self) -> tuple[int, ...]:
        """Return how many values each column of a condition has; empty if the model takes none."""
        return self.denoiser.conditions

    @property
    def kind(self) -> str:
        """Return what two models must share to be mixed: tokens, shape and source."""
        return f"{self.process.num_tokens} tokens, shape {self.shape}, {self.process.name} source"

    def guided(self, weight: float, unconditional: Any = None) -> "Model":
        """Return the model with guidance, ln p = ln p_u + weight (ln p_c - ln p_u); weight 1 is none.

        `unconditional` is a Model or denoiser trained without the condition. None takes the same network with
        its condition dropped: classifier-free guidance, for a network trained with `condition_dropout`. An
        evaluation takes two forwards either way.
        """
        weight = check_weight(weight)
        other = unconditional
        if isinstance(unconditional, Model):
            if unconditional.kind != self.kind:
                raise SamplingError(
                    f"the unconditional model ({unconditional.kind}) has another vocabulary, shape or source "
                    f"than this one ({self.kind}); guide with one of the same task"
                )
            other = unconditional.denoiser
        if other is not None:
            other = denoiser_for(other, self.process)
        elif not self.conditions:
            raise SamplingError(
                "this network takes no condition, so there is nothing to guide by; train one with "
                "conditions, or give the unconditional model (sample.py --unconditional PATH)"
            )
        return dataclasses.replace(self, denoiser=GuidedDenoiser(self.denoiser, other, weight))

    def with_schedule(self, schedule: Schedule | str) -> "Model":
        """Return the model under a different schedule than it was trained with.

        The posterior depends on x_t and kappa only, whatever the source, so the network is told the time at
        which kappa had its current value in training.
        """
        trained = self.process
        if not isinstance(trained, Mixture | Metric):
            raise SamplingError(f"{trained} has no schedule to change; it needs a Mixture or a Metric")
        process = dataclasses.replace(trained, schedule=schedule_from(schedule))

        def own_time(t: Tensor) -> Tensor:
            return trained.schedule.t_from_kappa(process.schedule.kappa(t.to(precise(t.device))))

        return dataclasses.replace(self, process=process, denoiser=RetimedDenoiser(self.denoiser, own_time))

    def with_rates(self, rates: RatesName) -> "Model":
        """Return the model with jumps of one path and the posterior, at the same t, of its training.

        `metric` are those of a metric path itself. `mixture` takes it for a mixture from uniform noise with
        kappa = t, a surrogate that is not the path of its training: the simplest reading of how a paper on
        mixtures samples such a model.
        """
        if rates not in get_args(RatesName):
            raise SamplingError(f"rates must be {' or '.join(get_args(RatesName))}, got {rates!r}")
        if isinstance(self.process, Metric) and rates == "mixture":
            return dataclasses.replace(self, process=surrogate(self.process.num_tokens))
        if rates == "metric" and not isinstance(self.process, Metric):
            raise SamplingError(
                f"metric rates need a codebook, which this model ({self.process}) has not; use its own, "
                "rates=mixture, or train with --model.source metric"
            )
        return self

    def tempered(self, temperature: float) -> "Model":
        """Return the model with its logits divided by a temperature: below 1 is more confident.

        Where the source is noise over tokens, only what the other coordinates say gets more confident; the
        own token, which may be noise, keeps its weight (processors.py).
        """
        return dataclasses.replace(self, denoiser=tempered(self.denoiser, temperature, self.process))

    def truncated(self, top_k: int | None = None, top_p: float | None = None) -> "Model":
        """Return the model with only the most likely tokens of each row: `top_k` of them, or mass `top_p`.

        Truncate last, after guidance and temperature. Like a temperature, it cuts what the other coordinates
        say where the source is noise over tokens.
        """
        return dataclasses.replace(self, denoiser=truncated(self.denoiser, self.process, top_k, top_p))

    def with_allowed_tokens(self, allowed: Tensor, sets: Tensor | None = None) -> "Model":
        """Return the model restricted to certain tokens: true (V,), (D, V) or (B, D, V) where allowed.

        Where V is large, give `sets` of tokens, true (K, V), and in `allowed` the number of its set for each
        coordinate, (D,) or (B, D). With a B the model is for that many samples.

        Draws from a posterior are allowed tokens. What isn't drawn from one may not be: noise that a sampler
        leaves in place (finish=none, or reuse without masks) and jumps of a floor (eps_0 above 0).
        """
        found = check_allowed(allowed, self.length, self.process.num_tokens, sets)
        return dataclasses.replace(self, denoiser=with_allowed(self.denoiser, found))

    def with_attention_mask(self, attention: Tensor) -> "Model":
        """Return the model for B sequences of different lengths (B,), or true (B, D) where one is read.

        The other coordinates are padding: the network doesn't read them, no sampler moves them, and they
        hold token 0, or the prompt's. With guidance, both networks must take attention.
        """
        read = check_attention(attention, self.length)
        return dataclasses.replace(self, denoiser=AttendingDenoiser(self.denoiser, read))

    def without_prompt(self, known: Tensor) -> "Model":
        """Return a model that doesn't see its prompt, true (D,) or (B, D) where it is known, for `guided`.

        A masked source masks the prompt. LLaDA's u + (w + 1) (c - u), with the logits u of that, is the
        weight w + 1. Other noise has no token that says nothing, so the network doesn't read the prompt.
        """
        mask = self.process.num_tokens if self.process.absorbing else None
        if mask is None and not self.denoiser.attends:
            raise SamplingError(
                f"a prompt cannot be hidden from this model ({self.process}): it has no masks, and its "
                "network reads every coordinate; drop the guidance"
            )
        return dataclasses.replace(self, denoiser=UnpromptedDenoiser(self.denoiser, known, mask))

    def adjusted(
        self,
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        *,
        known: Tensor | None = None,
        unconditional: Any = None,
    ) -> "Model":
        """Return the model with guidance, then a temperature, then truncation; 1 and None change nothing.

        Without an unconditional model, a network without conditions is guided by its prompt, true (D,) or
        (B, D) where it is `known`.
        """
        model = self
        if guidance != 1:
            other = unconditional
            if other is None and known is not None and not self.conditions:
                other = self.without_prompt(known)
            model = model.guided(guidance, other)
        if temperature != 1:
            model = model.tempered(temperature)
        if top_k is not None or top_p is not None:
            model = model.truncated(top_k, top_p)
        return model

    under = with_schedule  # older names
    allowing = with_allowed_tokens
    attending = with_attention_mask


def surrogate(num_tokens: int) -> Mixture:
    """Return the mixture that a metric path is taken for: from uniform noise, with kappa = t."""
    return Mixture(Uniform(num_tokens), "linear")


def denoiser_for(model: Any, process: Process) -> Denoiser:
    """Return a denoiser for a process; a mask has a column of logits only where there is one."""
    return denoiser_from(model, process.num_tokens, process.num_states > process.num_tokens)


def check_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of a sample as whole numbers."""
    sizes = shape if isinstance(shape, tuple | list | torch.Size) else ()
    try:
        numbers = tuple(operator.index(size) for size in sizes)
    except TypeError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise SamplingError(f"shape must be the sizes of a sample such as (256,) or (28, 28), got {shape!r}")
    return numbers


def check_channels(channels: Any, shape: tuple[int, ...]) -> ChannelsName | None:
    """Return how channels are revealed; raise unless the sample has pixels and channels."""
    if channels is None:
        return None
    names = get_args(ChannelsName)
    if channels not in names or len(shape) < 2:
        raise SamplingError(
            f"channels must be {' or '.join(names)} for a shape of pixels and channels such as (32, 32, 3), "
            f"else None; got {channels!r} for {shape}"
        )
    return channels


def check_order(order: Any, length: int) -> Tensor | None:
    """Return a learned order (D,) on the CPU; raise unless it is a permutation."""
    if order is None:
        return None
    order = torch.as_tensor(order).cpu()
    if order.shape != (length,) or not torch.equal(order.sort().values, torch.arange(length)):
        raise SamplingError(
            f"an order must hold each number from 0 to {length - 1} once, one for each coordinate; make it "
            "with tauflow.learn_order"
        )
    return order


def check_counts(counts: Any, length: int) -> tuple[LearnedCounts, ...]:
    """Return learned counts of D coordinates, one for each order."""
    several = (counts,) if isinstance(counts, LearnedCounts) else counts
    found = tuple(several) if isinstance(several, Iterable) else (several,)
    fit = all(isinstance(each, LearnedCounts) and each.length == length for each in found)
    if not fit or len({each.order for each in found}) < len(found):
        raise SamplingError(
            f"counts must be learned for {length} coordinates, once for each order; make them with "
            "tauflow.learn_counts"
        )
    return found


def check_influence(influence: Any, length: int) -> Tensor | None:
    """Return influence (D, D) on the CPU, float32 with a diagonal of 0; raise unless it is symmetric."""
    if influence is None:
        return None
    found = torch.as_tensor(influence, device="cpu").float()
    good = found.shape == (length, length) and bool((found >= 0).all() and found.isfinite().all())
    if not good or not torch.equal(found, found.T):
        raise SamplingError(
            f"influence must hold finite numbers of at least 0 for all pairs of {length} coordinates, the "
            "same both ways; make it with tauflow.learn_influence"
        )
    return found.clone().fill_diagonal_(0)
