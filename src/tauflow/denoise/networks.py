"""Networks and callables as denoisers.

Shapes: B sequences, D coordinates, V data tokens, C columns of the condition, W width. A network or callable
says by attributes what it takes besides states x (B, D) and times t (B,), and gets only that:

    conditions = (10, 3)   a condition (B, C) of so many values in each column, third
    attends = True         attention=, true (B, D) where a coordinate is read and not padding; None: all are
    remembers = True       memory=, what it answered at the last evaluation: hidden states (B, D, W) of a
                           network with hidden() and head(), logits (B, D, V) of a callable; None at first

It is given copies, which it may overwrite, and gradients are never kept. With null_condition(condition) it
says itself what drops a condition.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tauflow.denoise.context import Context
from tauflow.denoise.denoiser import DROPPED, Denoiser
from tauflow.denoise.evaluation import Evaluation, HiddenEvaluation, LogitsEvaluation, drop_mask
from tauflow.errors import BadLogits


class AskingDenoiser(Denoiser):
    """Abstract: asks a network or a callable, which says by attributes what it takes.

    `masked` says that it may give V + 1 logits, the mask last.
    """

    def __init__(self, asked: Any, num_tokens: int | None, masked: bool = False):
        self.num_tokens = num_tokens
        self.masked = masked
        self.conditions = tuple(getattr(asked, "conditions", ()))
        self.attends = bool(getattr(asked, "attends", False))
        self.remembers = bool(getattr(asked, "remembers", False))
        self._asked = asked
        self._context = Context()

    def within(self, context: Context) -> Denoiser:
        if not (self.attends or self.remembers):
            return self
        result = copy.copy(self)
        result._context = context
        return result

    def ask(self, function: Callable[..., Tensor], x: Tensor, t: Tensor, condition: Tensor | None) -> Tensor:
        """Return what a function of the network answers to what it takes."""
        inputs = [x.clone(), t.clone()]
        if self.conditions:
            dropped = torch.full((len(x), len(self.conditions)), DROPPED, device=x.device)
            inputs.append(dropped if condition is None else condition.to(x.device, copy=True))
        more: dict[str, Tensor | None] = {}
        if self.attends:
            attention = self._context.attention
            more["attention"] = None if attention is None else attention.to(x.device, copy=True)
        if self.remembers:
            more["memory"] = _own_memory(self._context.memory, x)
        return function(*inputs, **more)

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        drop = getattr(self._asked, "null_condition", None)
        return drop(condition) if callable(drop) else None

    @property
    def device(self) -> torch.device:
        parameters = getattr(self._asked, "parameters", None)
        parameter = next(iter(parameters()), None) if callable(parameters) else None
        return parameter.device if isinstance(parameter, nn.Parameter | Tensor) else torch.device("cpu")


class SplitDenoiser(AskingDenoiser):
    """A network with hidden(x, t, ...) -> (B, D, W) and head(rows) -> (..., V)."""

    def __init__(self, network: Any, num_tokens: int | None = None, masked: bool = False):
        super().__init__(network, num_tokens, masked)
        self.network = network

    @torch.no_grad()
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        hidden = self.ask(self.network.hidden, x, t, condition)
        return HiddenEvaluation(self.network.head, hidden, self.num_tokens, self.masked)


class CallableDenoiser(AskingDenoiser):
    """Any callable (x (B, D) int64, t (B,) float, ...) -> logits (B, D, V), or (B, D, V + 1) if masked."""

    def __init__(self, function: Callable[..., Tensor], num_tokens: int, masked: bool = False):
        super().__init__(function, num_tokens, masked)
        self.function = function

    @torch.no_grad()
    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        logits = self.ask(self.function, x, t, condition)
        if not isinstance(logits, Tensor) or logits.shape[:2] != x.shape or logits.ndim != 3:
            got = str(tuple(logits.shape)) if isinstance(logits, Tensor) else type(logits).__name__
            raise BadLogits(
                f"the denoiser must return logits of shape {(*x.shape, self.num_tokens)}, got {got}"
            )
        return LogitsEvaluation(drop_mask(logits, self.num_tokens, self.masked))


def denoiser_from(model: Any, num_tokens: int, masked: bool = False) -> Denoiser:
    """Return a Denoiser from itself, a network with hidden() and head(), or any callable (x, t) -> logits.

    `masked` says that the process has a mask, whose column of the logits is dropped.
    """
    if isinstance(model, Denoiser):
        if model.num_tokens not in (None, num_tokens):
            raise BadLogits(
                f"the denoiser is made for {model.num_tokens} data tokens, the process has {num_tokens}; "
                "give the process of its training"
            )
        return model
    if hasattr(model, "hidden") and hasattr(model, "head"):
        return SplitDenoiser(model, num_tokens, masked)
    if callable(model):
        return CallableDenoiser(model, num_tokens, masked)
    known = "a Denoiser, a network with hidden() and head(), or a callable (x, t) -> logits"
    raise TypeError(f"a denoiser is {known}, not {type(model).__name__}")


def _own_memory(memory: Any, x: Tensor) -> Tensor | None:
    """Return a copy of a memory (B, D, ...) of the sequences x (B, D)."""
    if memory is None:
        return None
    return memory.clone()
