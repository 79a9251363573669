"""Model: what is sampled, with everything that a sampler must know of it."""

import dataclasses
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tauflow.denoise.allowed import AllowedDenoiser, checked_allowed
from tauflow.denoise.attention import AttendingDenoiser, checked_attention
from tauflow.denoise.counts import LearnedCounts, checked_counts
from tauflow.denoise.denoiser import (
    Denoiser,
    GuidedDenoiser,
    RetimedDenoiser,
    checked_weight,
)
from tauflow.denoise.influence import checked_influence
from tauflow.denoise.leave_one_out import tempered
from tauflow.denoise.networks import denoiser_from
from tauflow.denoise.truncated import TruncatedDenoiser
from tauflow.devices import precise
from tauflow.errors import SamplingError
from tauflow.process import Metric, Mixture, Process, Schedule, Uniform, schedule_from

ChannelsName = Literal["together", "apart"]
RatesName = Literal["mixture", "metric"]


@dataclass(frozen=True, init=False)
class Model:
    """A denoiser, the process of its training, and the shape of a sample.

    Args:
        denoiser: a Denoiser, a network with hidden() and head(), or any callable (x, t) -> logits (B, D, V).
        process: what noise is, as in training: `Mixture(Masked(V), "quadratic")`.
        shape: of one sample: (D,) for a sequence, (H, W) or (H, W, C) for a picture, the last axis fastest.
        order: when each of the D coordinates is revealed, 0 first, for the sampler learned_order; made by
            `tauflow.learn_order`.
        channels: that the last axis of the shape holds channels of a pixel, best revealed together (they
            depend little on each other) or apart (they are much alike); None: it is an axis of space.
        counts: how many coordinates an evaluation reveals, for samplers with counts=learned: one for each
            order, made by `tauflow.learn_counts`.
        influence: how much each two of the D coordinates depend on each other, (D, D), for the sampler
            independent; made by `tauflow.learn_influence`.
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
        sizes = checked_shape(shape)
        object.__setattr__(self, "denoiser", denoiser_for(denoiser, process))
        object.__setattr__(self, "process", process)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "order", checked_order(order, math.prod(sizes)))
        object.__setattr__(self, "channels", checked_channels(channels, sizes))
        object.__setattr__(self, "counts", checked_counts(counts, math.prod(sizes)))
        object.__setattr__(self, "influence", checked_influence(influence, math.prod(sizes)))

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
        weight = checked_weight(weight)
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

    def under(self, schedule: Schedule | str) -> "Model":
        """Return the model under another schedule than that of its training.

        The posterior depends on x_t and kappa only, whatever the source, so the network is told the time at
        which kappa had the value of now in its training.
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
        """Return the model with its logits divided by a temperature: below 1 is surer than the network.

        Where the source is noise over tokens, it is what the other coordinates say that becomes surer; the
        own token, which may be noise, keeps its weight (leave_one_out.py).
        """
        return dataclasses.replace(self, denoiser=tempered(self.denoiser, temperature, self.process))

    def truncated(self, top_k: int | None = None, top_p: float | None = None) -> "Model":
        """Return the model with the likeliest tokens of its rows alone: `top_k` of them, or mass `top_p`.

        Truncate last, after guidance and temperature. As a temperature does, it cuts what the other
        coordinates say where the source is noise over tokens.
        """
        return dataclasses.replace(
            self, denoiser=TruncatedDenoiser(self.denoiser, self.process, top_k, top_p)
        )

    def allowing(self, allowed: Tensor, sets: Tensor | None = None) -> "Model":
        """Return the model with certain tokens only: true (V,), (D, V) or (B, D, V) where allowed.

        Where V is large, give `sets` of tokens, true (K, V), and in `allowed` the number of its set for each
        coordinate, (D,) or (B, D). With a B the model is for so many samples.

        What is drawn from a posterior is an allowed token; what is no draw from one is not: noise that a
        sampler leaves in place (finish=none or reuse without masks) and jumps of a floor (eps_0 above 0).
        """
        found = checked_allowed(allowed, self.length, self.process.num_tokens, sets)
        return dataclasses.replace(self, denoiser=AllowedDenoiser(self.denoiser, found))

    def attending(self, attention: Tensor) -> "Model":
        """Return the model for B sequences of different lengths (B,), or true (B, D) where one is read.

        The other coordinates are padding: the network does not read them, no sampler moves them, and they
        hold token 0, or that of a prompt. Of two networks that guide, both must take attention.
        """
        read = checked_attention(attention, self.length)
        return dataclasses.replace(self, denoiser=AttendingDenoiser(self.denoiser, read))


def surrogate(num_tokens: int) -> Mixture:
    """Return the mixture that a metric path is taken for: from uniform noise, with kappa = t."""
    return Mixture(Uniform(num_tokens), "linear")


def denoiser_for(model: Any, process: Process) -> Denoiser:
    """Return a denoiser for a process; a mask has a column of logits only where there is one."""
    return denoiser_from(model, process.num_tokens, process.num_states > process.num_tokens)


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of a sample as whole numbers; refuse anything else."""
    sizes = shape if isinstance(shape, tuple | list | torch.Size) else ()
    try:
        numbers = tuple(operator.index(size) for size in sizes)
    except TypeError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise SamplingError(f"shape must be the sizes of a sample such as (256,) or (28, 28), got {shape!r}")
    return numbers


def checked_channels(channels: Any, shape: tuple[int, ...]) -> ChannelsName | None:
    """Return how channels are revealed; refuse another word, or channels of a sample that has no pixels."""
    if channels is None:
        return None
    names = get_args(ChannelsName)
    if channels not in names or len(shape) < 2:
        raise SamplingError(
            f"channels must be {' or '.join(names)} for a shape of pixels and channels such as (32, 32, 3), "
            f"else None; got {channels!r} for {shape}"
        )
    return channels


def checked_order(order: Any, length: int) -> Tensor | None:
    """Return a learned order (D,) on the CPU; refuse what is no permutation."""
    if order is None:
        return None
    order = torch.as_tensor(order).cpu()
    if order.shape != (length,) or not torch.equal(order.sort().values, torch.arange(length)):
        raise SamplingError(
            f"an order must hold each number from 0 to {length - 1} once, one for each coordinate; make it "
            "with tauflow.learn_order"
        )
    return order
