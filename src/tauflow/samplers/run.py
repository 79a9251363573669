"""tauflow.sample and the only loop: steps of a plan, counted evaluations, then the finishing policy.

Shapes: B sequences, D coordinates, V data tokens, C columns of a condition.
"""

import dataclasses
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tauflow.denoise import DROPPED, Evaluator, Model
from tauflow.errors import BadLogits, SamplingError
from tauflow.process import Process
from tauflow.samplers.random import DRAWN, Drawing, index_of
from tauflow.samplers.registry import sampler_from
from tauflow.samplers.sampler import Info, Observer, Problem, Result, Sampler, State, StepInfo, check

if TYPE_CHECKING:
    from tauflow.train import Trained


class Prompt(NamedTuple):
    """Tokens that are known in advance, and where.

    Pass it, or a plain pair of tensors, as `prompt` of `tauflow.sample` or `tauflow.evaluate`. Known tokens
    never change, so a prompt can be a beginning, an end, or anything between.

    Args:
        tokens: (D,) for all samples, or (B, D).
        known: true (D,) or (B, D) where they're known.

    Examples:
        >>> import torch
        >>> from tauflow import Prompt
        >>> prompt = Prompt(torch.tensor([7, 6, 0, 0]), torch.tensor([True, True, False, False]))
        >>> prompt.tokens[prompt.known]
        tensor([7, 6])
    """

    tokens: Tensor
    known: Tensor


def sample(
    model: "Model | Trained",
    sampler: Sampler | str = "auto",
    nfe: int = 32,
    *,
    count: int = 1,
    condition: Tensor | None = None,
    prompt: Prompt | tuple[Tensor, Tensor] | None = None,
    movable: Tensor | None = None,
    guidance: float = 1.0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | torch.Generator = 0,
    observer: Observer | None = None,
    progress: bool = False,
    batch_size: int | None = None,
) -> Result:
    """Draw `count` samples of a model with at most `nfe` evaluations of its denoiser.

    This is the one way to sample: any network, any sampler, with or without a condition or a prompt. To
    measure the samples as well, use `tauflow.evaluate`.

    Args:
        model: what `tauflow.load(path)` returns, or `tauflow.Model(network, process, shape)`.
        sampler: a spec such as "tr_cie(grid=tau)", a Sampler, or "auto", the one recommended for the model.
        nfe: budget of evaluations, including the finishing draw. It's a cap for samplers that adapt, such as
            "threshold": `Result.evaluations` says what each sample took.
        count: how many samples, B.
        condition: labels or a caption, integers (B, C), or (C,) for all samples; -1 is not given.
        prompt: tokens that are known, with true where they are: a pair of tensors (B, D) or (D,). They never
            change and cost no evaluation.
        movable: true (B, D) or (D,) where tokens are sampled. Elsewhere samples stay as they start: prompt
            or noise. None is everywhere.
        guidance: weight of the guidance by the condition, or by the prompt of a model without conditions; 1
            is none. It takes two forward passes per evaluation.
        temperature: divides the logits, after guidance; below 1 is more confident than the network.
        top_k: draw from this many most likely tokens only, after the temperature.
        top_p: draw from the fewest most likely tokens whose probabilities sum to this.
        seed: of all randomness, 0 to 2**32 - 1, or a torch.Generator. The global generators are neither read
            nor moved.
        observer: called with (StepInfo, State) after every step.
        progress: show a progress bar.
        batch_size: how many samples the denoiser is given together, where the logits of all of them don't fit
            into memory; None is all of them. The samples are the same.

    Returns:
        The tokens (B, D), the evaluations that were made, and a log of the steps.

    Examples:
        >>> import torch, tauflow
        >>> from tauflow import Masked, Mixture, Model
        >>> def network(x, t):  # any callable (x (B, D), t (B,)) -> logits (B, D, V)
        ...     return torch.zeros(*x.shape, 5)
        >>> model = Model(network, Mixture(Masked(5), "linear"), shape=(8,))
        >>> result = tauflow.sample(model, "tr_cie", nfe=4, count=3, temperature=0.9)
        >>> result.tokens.shape, result.nfe
        (torch.Size([3, 8]), 4)
    """
    model = model_from(model)
    shape = (positive_int(count, "count"), model.length)
    known = None
    if prompt is not None:
        tokens, known = check_prompt(prompt, shape, model)
    model = model.adjusted(guidance, temperature, top_k, top_p, known=known)
    sampler = sampler_from(sampler, model)
    nfe = positive_int(nfe, "nfe")
    generator = make_generator(seed)
    number = None if isinstance(seed, torch.Generator) else operator.index(seed)
    device = model.denoiser.device
    x_0 = model.process.start(shape, generator).to(device)
    if known is not None:
        known = known.to(device)
        x_0 = torch.where(known, tokens.to(device), x_0)
    if movable is not None:
        fixed = ~movable.to(device).expand(shape)
        known = fixed if known is None else known | fixed
    request = Request(
        model,
        nfe,
        x_0,
        generator,
        known=known,
        condition=check_condition(condition, shape[0], model),
        progress=progress,
        observer=observer,
        batch_size=None if batch_size is None else positive_int(batch_size, "batch_size"),
        settings={"sampler": str(sampler), "process": str(model.process), "nfe": nfe, "seed": number},
    )
    return run(sampler, request)


@dataclass(frozen=True)
class Request:
    """Everything `run` needs besides the sampler; made and checked by `tauflow.sample`."""

    model: Model
    nfe: int
    x_0: Tensor  # (B, D)
    generator: torch.Generator
    known: Tensor | None = None  # (B, D) bool, true on the prompt
    condition: Tensor | None = None  # (B, C)
    progress: bool = False
    observer: Observer | None = None
    batch_size: int | None = None  # sequences that the denoiser is given together; None: all
    settings: dict[str, Any] = field(default_factory=dict)
    drawing: Drawing = DRAWN


@torch.no_grad()
def run(sampler: Sampler, request: Request) -> Result:
    """Sample a model: the same loop for all samplers."""
    request = _with_padding(request)
    model = request.model
    evaluator = Evaluator(model.denoiser, request.batch_size)
    problem = problem_of(sampler, request, evaluator)
    counts = problem.movable(request.x_0).sum(1)
    free = int(counts.max())
    if not free:  # the prompt is everything
        return Result(request.x_0, 0, Info([], 0.0, 0, request.settings))
    infos: list[StepInfo] = []
    taken = torch.zeros(len(request.x_0), dtype=torch.long)  # evaluations of each sample
    try:
        plan = sampler.plan(model.process, free, request.nfe)
        state = sampler.init(problem, request.x_0, plan, request.generator)
        for n in _bar(range(plan.steps), request.progress):
            going, before = problem.movable(state.x).any(1).cpu(), evaluator.evaluations
            if n and not going.any():
                break  # every token is revealed: more evaluations would change nothing
            state, info = sampler.step(problem, state, plan, n, request.generator)
            taken += going * (evaluator.evaluations - before)
            info = dataclasses.replace(info, masks=_masks(state.x, model.process))
            infos.append(info)
            if state.posterior and (request.observer or not sampler.clones_history):
                state = dataclasses.replace(state, posterior=state.posterior.clone())
            if request.observer:
                request.observer(info, state)
        leftover = _masks(state.x, model.process)
        going, before = problem.movable(state.x).any(1).cpu(), evaluator.evaluations
        state = finish(sampler.finishing, problem, state, plan.end, request.generator)
        taken += going * (evaluator.evaluations - before)
        if evaluator.evaluations > request.nfe:
            raise SamplingError(
                f"{sampler} made {evaluator.evaluations} evaluations, the budget is {request.nfe}. Plan "
                "fewer steps in its plan()."
            )
    except BadLogits as error:
        if error.t is None:
            raise
        when = f"step {len(infos)}, t = {error.t:.4f}"
        raise BadLogits(f"{error} ({when}); check the model and its precision at that time") from None
    about = Info(infos, leftover, evaluator.forwards, request.settings, int(counts.sum()))
    differ = bool((taken != evaluator.evaluations).any())
    return Result(state.x, evaluator.evaluations, about, taken if differ else None)


def _with_padding(request: Request) -> Request:
    """Return the request with padding that no sampler moves; check the number of samples."""
    denoiser, count = request.model.denoiser, len(request.x_0)
    if denoiser.samples not in (None, count):
        raise SamplingError(
            f"the model is made for {denoiser.samples} samples (with_attention_mask or "
            f"with_allowed_tokens), {count} are asked for; give count={denoiser.samples}"
        )
    if denoiser.attention is None:
        return request
    padding = ~denoiser.attention.to(request.x_0.device)
    known = torch.zeros_like(padding) if request.known is None else request.known
    x_0 = request.x_0.masked_fill(padding & ~known, 0)
    return dataclasses.replace(request, x_0=x_0, known=padding | known)


def unprompted(model: Model, prompt: Prompt) -> Model:
    """Return a model that doesn't see its prompt, for `Model.guided`."""
    return model.without_prompt(prompt.known)


def problem_of(sampler: Sampler, request: Request, evaluator: Evaluator | None = None) -> Problem:
    """Return what is sampled; raise an error if the sampler can't do it."""
    if reason := sampler.unsupported_reason(request.model):
        raise SamplingError(reason)
    return Problem(request.model, request.known, request.condition, request.drawing, evaluator)


def finish(policy: str, problem: Problem, state: State, t: float, generator: torch.Generator) -> State:
    """Draw what may still move from one more evaluation (`draw`), or masks from the last (`reuse`)."""
    if policy == "none":
        return state
    movable = problem.movable(state.x)
    if policy == "reuse":
        movable = movable & problem.process.masks(state.x)
    index = index_of(movable)
    if not len(index):
        return state
    posterior = state.posterior
    if policy == "draw" or posterior is None:
        posterior = problem.evaluate(state.x, t)
    x = state.x.clone()
    x.view(-1)[index] = problem.draw_from(posterior, index, generator)
    return State(x, posterior)


def _masks(x: Tensor, process: Process) -> float:
    return process.masks(x).sum().item() / max(1, x.numel()) if process.absorbing else 0.0


def _bar(steps: range, progress: bool) -> Iterable[int]:
    if not progress:
        return steps
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps")
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))

    def tracked() -> Iterable[int]:
        with bar:
            yield from bar.track(steps, description="sampling")

    return tracked()


# Checks of what users pass


def model_from(model: Any) -> Model:
    """Return the model of a loaded checkpoint, or itself; raise an error for anything else."""
    found = model if isinstance(model, Model) else getattr(model, "model", None)
    check(
        isinstance(found, Model),
        f"model must be a tauflow.Model, got {type(model).__name__}. Pass what tauflow.load returns, "
        "tauflow.Model(network, process, shape), or DFMModule.model().",
    )
    assert isinstance(found, Model)
    return found


def make_generator(seed: Any) -> torch.Generator:
    """Return a generator from itself or from a seed."""
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(check_seed(seed))


def check_seed(seed: Any) -> int:
    """Return a seed as an int; raise an error if it is out of range.

    torch's CPU generator reads the lowest 32 bits alone: any other seed has the samples of one of these.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    check(0 <= number < 2**32, f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}")
    return number


def positive_int(number: Any, name: str) -> int:
    """Return a whole number of at least 1 as an int."""
    try:
        value = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        value = 0
    check(value >= 1, f"{name} must be a whole number of at least 1, got {number!r}")
    return value


def check_condition(condition: Any, count: int, model: Model) -> Tensor | None:
    """Return a condition (B, C), on the model's device."""
    if condition is None:
        return None
    columns = len(model.conditions)
    check(
        columns > 0, "this network takes no condition; drop the condition, or train a network with conditions"
    )
    check(
        isinstance(condition, Tensor),
        f"condition must be a tensor of integers, got {type(condition).__name__}",
    )
    whole_numbers = not (condition.is_floating_point() or condition.dtype == torch.bool)
    check(whole_numbers, f"condition must hold integers, got {condition.dtype}")
    if condition.ndim == 1 and len(condition) == columns:
        condition = condition.expand(count, columns)
    check(
        tuple(condition.shape) == (count, columns),
        f"condition must have the shape {(count, columns)} or {(columns,)}, got {tuple(condition.shape)}",
    )
    sizes = torch.tensor(model.conditions, device=condition.device)
    wrong = ((condition < DROPPED) | (condition >= sizes)).any(0)
    if wrong.any():
        column = int(wrong.int().argmax())
        raise SamplingError(
            f"column {column} of a condition holds 0 .. {model.conditions[column] - 1}, or -1 for not given; "
            f"got {condition[:, column].tolist()[:8]}"
        )
    return condition.long().to(model.denoiser.device)


def check_prompt(prompt: Any, shape: tuple[int, int], model: Model) -> Prompt:
    """Return a prompt with tensors (B, D)."""
    pair = isinstance(prompt, tuple | list) and len(prompt) == 2
    check(pair, "prompt must be a pair of tensors: tokens (B, D) or (D,), and true where they are known")
    for name, value in zip(("tokens", "known"), prompt, strict=True):
        check(
            isinstance(value, Tensor), f"the {name} of a prompt must be a tensor, got {type(value).__name__}"
        )
        check(
            tuple(value.shape) in (shape, shape[1:]),
            f"the {name} of a prompt must have the shape {shape} of the samples or {shape[1:]}, got "
            f"{tuple(value.shape)}",
        )
    tokens, known = (value.expand(shape) for value in prompt)
    check(known.dtype == torch.bool, f"the known part of a prompt must be boolean, got {known.dtype}")
    whole_numbers = not (tokens.is_floating_point() or tokens.dtype == torch.bool)
    check(whole_numbers, f"a prompt must hold integer tokens, got {tokens.dtype}")
    given = tokens[known]
    last = model.process.num_tokens - 1
    check(
        not len(given) or (int(given.min()) >= 0 and int(given.max()) <= last),
        f"the prompt holds tokens outside 0 .. {last}; say false where a coordinate is not known",
    )
    return Prompt(tokens.long(), known)
