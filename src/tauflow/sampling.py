"""tauflow.sample: checks a request, then runs a sampler on it."""

import dataclasses
import math
import operator
from typing import Any

import torch
from torch import Tensor

from tauflow.denoisers import GuidedDenoiser, denoiser_from
from tauflow.errors import SamplingError
from tauflow.samplers import SAMPLERS, Result, Sampler
from tauflow.samplers.base import Observer, Request, run
from tauflow.schedules import Schedule, schedule_from
from tauflow.sources import Masked, Source

OPTIONS = (
    *("grid", "jump", "cutoff", "finish", "eps_0", "ceiling", "theta"),
    *("coins", "gain", "order", "counts", "power", "extrapolation", "weight"),
)
"""Options of `sample` that belong to a sampler."""


def sample(
    denoiser,
    source: Source,
    schedule: Schedule | str,
    shape: tuple[int, int],
    sampler: str | Sampler = "tr_cie",
    nfe: int = 32,
    *,
    grid: str | None = None,
    jump: str | None = None,
    cutoff: float | None = None,
    finish: str | None = None,
    eps_0: float | None = None,
    ceiling: float | None = None,
    theta: float | None = None,
    coins: str | None = None,
    gain: float | None = None,
    order: str | None = None,
    counts: str | None = None,
    power: float | None = None,
    extrapolation: str | None = None,
    weight: float | None = None,
    geometry: tuple[int, ...] | None = None,
    ranks: Tensor | None = None,
    prompt: Tensor | None = None,
    prompt_mask: Tensor | None = None,
    temperature: float = 1.0,
    guidance: tuple[Any, float] | None = None,
    seed: int = 0,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
    progress: bool = False,
    dense: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Samples of shape (B, D) with at most `nfe` evaluations of the denoiser.

    Args:
        denoiser: a Denoiser, a network with hidden() and head(), or any callable (x (B, D) int64, t (B,) float) -> logits (B, D, V).
        source: tauflow.Masked(V) or tauflow.Uniform(V), as in training.
        schedule: a Schedule or its name, as in training.
        shape: (B, D).
        sampler: a name from tauflow.SAMPLERS (hyphens and underscores alike) or a Sampler.
        nfe: budget of evaluations, the finishing draw included.
        grid, jump, cutoff, finish, eps_0, ceiling, theta, coins, gain, order, counts, power, extrapolation, weight: options of the sampler;
            None keeps its own default.
        geometry: sizes of the grid that the D coordinates are, the last axis fastest, for order="spaced"; by default one sequence.
        ranks: (D,) when each coordinate is revealed, 0 first, for order="learned": from `tauflow.learn_order`.
        prompt: tokens (B, D) that are known where `prompt_mask` (B, D) is true; they never change and cost no evaluation.
        temperature: divides the logits.
        guidance: (unconditional denoiser, weight): ln p = ln p_u + weight (ln p_c - ln p_u); weight 1 is no guidance.
        seed: of all randomness, unless a generator is given. The global generators are neither read nor moved.
        device: where to sample; by default where the denoiser's parameters are.
        progress: show a progress bar.
        dense: the literal algorithm of samplers that leap, with B * D * V Poisson counts, slow, for comparison; the law is the same.
        observer: called with (StepInfo, State) after every step.
    """
    leaping = {"grid": grid, "jump": jump, "cutoff": cutoff, "finish": finish, "eps_0": eps_0, "ceiling": ceiling, "theta": theta}
    spacing = {"coins": coins, "order": order, "counts": counts, "power": power}
    sampler = sampler_from(sampler, **leaping, **spacing, gain=gain, extrapolation=extrapolation, weight=weight)
    nfe = budget(nfe)
    check_dense(dense, sampler)
    check_temperature(temperature)
    _require(isinstance(source, Source), f"source must be tauflow.Masked(V) or tauflow.Uniform(V), got {source!r}")
    whole = isinstance(shape, tuple | list | torch.Size) and len(shape) == 2 and all(isinstance(size, int) and size >= 1 for size in shape)
    _require(whole, f"shape must be (B, D), two whole numbers of at least 1, got {shape!r}")
    geometry, ranks = _checked_geometry(geometry, shape[1]), _checked_ranks(ranks, shape[1])
    model = denoiser_from(denoiser, source)
    device = torch.device(device) if device else model.device
    if guidance is not None:
        pair = isinstance(guidance, tuple | list) and len(guidance) == 2
        _require(pair, "guidance must be a pair: (unconditional denoiser, weight)")
        unconditional, weight = guidance
        model = GuidedDenoiser(model, denoiser_from(unconditional, source), weight)
    given = generator is not None
    generator = generator if given else torch.Generator().manual_seed(seed)
    x_0 = source.sample(tuple(shape), generator).to(device)
    frozen = None
    if prompt is not None or prompt_mask is not None:
        prompt, frozen = _checked_prompt(prompt, prompt_mask, tuple(shape), source)
        frozen = frozen.to(device)
        x_0 = torch.where(frozen, prompt.to(device), x_0)
    request = Request(
        denoiser=model,
        source=source,
        schedule=schedule_from(schedule),
        x_0=x_0,
        frozen=frozen,
        nfe=nfe,
        temperature=temperature,
        generator=generator,
        geometry=geometry,
        ranks=ranks,
        dense=dense,
        progress=progress,
        observer=observer,
        settings={
            "sampler": type(sampler).__name__,
            **dataclasses.asdict(sampler),
            "schedule": schedule if isinstance(schedule, str) else repr(schedule),
            "nfe": nfe,
            "temperature": temperature,
            "guidance_weight": guidance[1] if guidance is not None else None,
            "seed": None if given else seed,
            "dense": dense,
        },
    )
    return run(sampler, request)


def budget(nfe: int) -> int:
    """A budget of evaluations as an int; refuses what is none."""
    try:
        number = operator.index(nfe)
    except TypeError:
        number = 0
    _require(number >= 1, f"nfe must be a whole number of at least 1, got {nfe!r}")
    return number


def check_dense(dense: bool, *samplers: Sampler) -> None:
    others = dict.fromkeys(type(sampler).__name__ for sampler in samplers if not sampler.leaps)
    _require(not (dense and others), f"dense is the literal algorithm of samplers that leap, not of {', '.join(others)}; leave it out")


def check_temperature(temperature: float) -> None:
    _require(temperature > 0, f"temperature must be above 0, got {temperature}; a small one such as 0.1 is nearly greedy")


def sampler_from(sampler: str | Sampler, **options) -> Sampler:
    """A sampler from its name or itself, with the options that are not None; refuses an option that the sampler does not have."""
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(sampler, str):
        name = sampler.lower().replace("-", "_")
        _require(name in SAMPLERS, f"unknown sampler {sampler!r}; known samplers: {', '.join(SAMPLERS)}")
        sampler, label = SAMPLERS[name](), name
    else:
        _require(isinstance(sampler, Sampler), f"sampler must be a name or a Sampler, got {type(sampler).__name__}")
        label = type(sampler).__name__
    known = [field.name for field in dataclasses.fields(sampler) if field.name in OPTIONS]
    for name in given:
        _require(name in known, f"sampler {label} has no option {name!r}; it has: {', '.join(known) or 'none'}")
    return dataclasses.replace(sampler, **given)


def _checked_geometry(geometry, length: int) -> tuple[int, ...] | None:
    if geometry is None:
        return None
    whole = isinstance(geometry, tuple | list) and len(geometry) > 0 and all(isinstance(size, int) and size >= 1 for size in geometry)
    _require(whole and math.prod(geometry) == length, f"geometry must be whole numbers whose product is {length}, got {geometry!r}")
    return tuple(geometry)


def _checked_ranks(ranks, length: int) -> Tensor | None:
    if ranks is None:
        return None
    ranks = torch.as_tensor(ranks).cpu()
    _require(
        ranks.shape == (length,) and torch.equal(ranks.sort().values, torch.arange(length)),
        f"ranks must hold each number from 0 to {length - 1} once, one for each coordinate; make them with tauflow.learn_order",
    )
    return ranks


def _checked_prompt(prompt, mask, shape: tuple[int, int], source: Source) -> tuple[Tensor, Tensor]:
    _require(prompt is not None and mask is not None, "give prompt and prompt_mask together: tokens (B, D), and true where they are known")
    for name, value in (("prompt", prompt), ("prompt_mask", mask)):
        _require(isinstance(value, Tensor), f"{name} must be a tensor of the shape {shape} of the samples, got {type(value).__name__}")
        _require(tuple(value.shape) == shape, f"{name} must have the shape {shape} of the samples, got {tuple(value.shape)}")
    _require(mask.dtype == torch.bool, f"prompt_mask must be boolean, got {mask.dtype}")
    _require(not prompt.is_floating_point() and prompt.dtype != torch.bool, f"prompt must hold integer tokens, got {prompt.dtype}")
    known = prompt[mask]
    if len(known):
        what = "the mask or " if isinstance(source, Masked) else ""
        _require(
            int(known.min()) >= 0 and int(known.max()) < source.num_tokens,
            f"the prompt holds {what}tokens outside 0 .. {source.num_tokens - 1}; leave unknown coordinates out with prompt_mask=False",
        )
    return prompt.long(), mask


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SamplingError(message)
