"""tauflow.sample: checks a request, then runs a sampler on it."""

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tauflow.denoise import DROPPED, Model
from tauflow.samplers.base import Observer, Result, Sampler, require
from tauflow.samplers.run import Request, run
from tauflow.samplers.spec import sampler_from


class Prompt(NamedTuple):
    """What is known of samples: tokens (D,) or (B, D), and true where they are known."""

    tokens: Tensor
    known: Tensor


def sample(
    model: Model,
    sampler: Sampler | str = "auto",
    nfe: int = 32,
    *,
    count: int = 1,
    condition: Tensor | None = None,
    prompt: Prompt | tuple[Tensor, Tensor] | None = None,
    seed: int | torch.Generator = 0,
    observer: Observer | None = None,
    progress: bool = False,
    batch_size: int | None = None,
) -> Result:
    """Draw `count` samples of a model with at most `nfe` evaluations of its denoiser.

    Args:
        model: what is sampled, from `tauflow.load(path).model`, or `tauflow.Model(network, process, shape)`.
        sampler: a spec such as "tr_cie(grid=tau)", a Sampler, or "auto", the recommended one of the model.
        nfe: budget of evaluations, the finishing draw included. It is a cap for samplers that adapt, such as
            "threshold": `Result.evaluations` says what each sample took.
        count: how many samples, B.
        condition: what the samples are asked to be, integers (B, C) or (C,) for all of them; -1 is not given.
        prompt: tokens that are known, with true where they are: a pair of tensors (B, D) or (D,). They never
            change and cost no evaluation.
        seed: of all randomness, 0 to 2**32 - 1, or a torch.Generator. The global generators are neither read
            nor moved.
        observer: called with (StepInfo, State) after every step.
        progress: show a progress bar.
        batch_size: how many samples the denoiser is given at once, where the logits of all of them do not fit
            into memory; None is all of them. The samples are the same.
    """
    check_model(model)
    sampler = sampler_from(sampler, model)
    nfe = whole(nfe, "nfe")
    shape = (whole(count, "count"), model.length)
    batch_size = None if batch_size is None else whole(batch_size, "batch_size")
    generator = seeded(seed)
    number = None if isinstance(seed, torch.Generator) else operator.index(seed)
    device = model.denoiser.device
    x_0 = model.process.start(shape, generator).to(device)
    frozen = None
    if prompt is not None:
        tokens, known = checked_prompt(prompt, shape, model)
        frozen = known.to(device)
        x_0 = torch.where(frozen, tokens.to(device), x_0)
    request = Request(
        model,
        nfe,
        x_0,
        generator,
        frozen=frozen,
        condition=checked_condition(condition, shape[0], model),
        progress=progress,
        observer=observer,
        batch_size=batch_size,
        settings={"sampler": str(sampler), "process": str(model.process), "nfe": nfe, "seed": number},
    )
    return run(sampler, request)


def check_model(model: Any) -> None:
    """Raise an error if this is not a Model, such as a Trained, which holds one."""
    require(
        isinstance(model, Model),
        f"model must be a tauflow.Model, got {type(model).__name__}. Pass trained.model of a loaded "
        "checkpoint, or tauflow.Model(network, process, shape).",
    )


def seeded(seed: Any) -> torch.Generator:
    """Return a generator from itself or from a seed; refuse anything else."""
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(checked_seed(seed))


def checked_seed(seed: Any) -> int:
    """Return a seed as an int; raise an error if it is out of range.

    torch's CPU generator reads the lowest 32 bits alone: any other seed has the samples of one of these.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    require(0 <= number < 2**32, f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}")
    return number


def whole(number: Any, name: str) -> int:
    """Return a whole number of at least 1 as an int; refuse anything else."""
    try:
        value = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        value = 0
    require(value >= 1, f"{name} must be a whole number of at least 1, got {number!r}")
    return value


def checked_condition(condition: Any, count: int, model: Model) -> Tensor | None:
    """Return a condition (B, C), on the model's device; refuse one that the model cannot take."""
    if condition is None:
        return None
    columns = len(model.conditions)
    require(
        columns > 0, "this network takes no condition; drop the condition, or train a network with conditions"
    )
    require(
        isinstance(condition, Tensor),
        f"condition must be a tensor of integers, got {type(condition).__name__}",
    )
    whole_numbers = not (condition.is_floating_point() or condition.dtype == torch.bool)
    require(whole_numbers, f"condition must hold integers, got {condition.dtype}")
    if condition.ndim == 1 and len(condition) == columns:
        condition = condition.expand(count, columns)
    require(
        tuple(condition.shape) == (count, columns),
        f"condition must have the shape {(count, columns)} or {(columns,)}, got {tuple(condition.shape)}",
    )
    for column, size in enumerate(model.conditions):
        values = condition[:, column]
        require(
            bool(((values >= DROPPED) & (values < size)).all()),
            f"column {column} of a condition holds 0 .. {size - 1}, or -1 for not given; got "
            f"{values.tolist()[:8]}",
        )
    return condition.long().to(model.denoiser.device)


def checked_prompt(prompt: Any, shape: tuple[int, int], model: Model) -> Prompt:
    """Return a prompt with tensors (B, D); refuse one that does not fit."""
    pair = isinstance(prompt, tuple | list) and len(prompt) == 2
    require(pair, "prompt must be a pair of tensors: tokens (B, D) or (D,), and true where they are known")
    for name, value in zip(("tokens", "known"), prompt, strict=True):
        require(
            isinstance(value, Tensor), f"the {name} of a prompt must be a tensor, got {type(value).__name__}"
        )
        require(
            tuple(value.shape) in (shape, shape[1:]),
            f"the {name} of a prompt must have the shape {shape} of the samples or {shape[1:]}, got "
            f"{tuple(value.shape)}",
        )
    tokens, known = (value.expand(shape) for value in prompt)
    require(known.dtype == torch.bool, f"the known part of a prompt must be boolean, got {known.dtype}")
    whole_numbers = not (tokens.is_floating_point() or tokens.dtype == torch.bool)
    require(whole_numbers, f"a prompt must hold integer tokens, got {tokens.dtype}")
    given = tokens[known]
    last = model.process.num_tokens - 1
    require(
        not len(given) or (int(given.min()) >= 0 and int(given.max()) <= last),
        f"the prompt holds tokens outside 0 .. {last}; say false where a coordinate is not known",
    )
    return Prompt(tokens.long(), known)
