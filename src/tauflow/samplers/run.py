"""run: the only loop. Steps of a plan, evaluations counted at the denoiser, then the finishing policy."""

import dataclasses
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tauflow.denoise import (
    DROPPED,
    BatchedDenoiser,
    CountingDenoiser,
    Denoiser,
    Evaluation,
    Model,
    RememberingDenoiser,
)
from tauflow.denoise.denoiser import Context, Wrapper
from tauflow.errors import BadLogits, SamplingError
from tauflow.process import Process
from tauflow.samplers.random import DRAWN, Drawing, draw
from tauflow.samplers.registry import sampler_from
from tauflow.samplers.sampler import (
    FinishName,
    Info,
    Observer,
    Problem,
    Result,
    Sampler,
    State,
    StepInfo,
    require,
)


@dataclass(frozen=True)
class Request:
    """Everything `run` needs besides the sampler; made and checked by `tauflow.sample`."""

    model: Model
    nfe: int
    x_0: Tensor  # (B, D)
    generator: torch.Generator
    frozen: Tensor | None = None  # (B, D) bool, true on the prompt
    condition: Tensor | None = None  # (B, C)
    progress: bool = False
    observer: Observer | None = None
    batch_size: int | None = None  # sequences that the denoiser is given at once; None: all
    settings: dict[str, Any] = field(default_factory=dict)
    drawing: Drawing = DRAWN


@torch.no_grad()
def run(sampler: Sampler, request: Request) -> Result:
    """Sample a model: the same loop for all samplers."""
    model, request = request.model, _padded(request)
    network = counter = CountingDenoiser(model.denoiser)
    if request.batch_size is not None and request.batch_size < len(request.x_0):
        counter = CountingDenoiser(BatchedDenoiser(network, request.batch_size))
    problem = problem_of(sampler, request, RememberingDenoiser(counter))
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
            going, before = problem.movable(state.x).any(1).cpu(), counter.evaluations
            if n and not going.any():
                break  # every token is revealed: more evaluations would change nothing
            state, info = sampler.step(problem, state, plan, n, request.generator)
            taken += going * (counter.evaluations - before)
            info = dataclasses.replace(info, masks=_masks(state.x, model.process))
            infos.append(info)
            if state.visit and (request.observer or not sampler.keeps):
                state = dataclasses.replace(state, visit=state.visit.kept())
            if request.observer:
                request.observer(info, state)
        leftover = _masks(state.x, model.process)
        going, before = problem.movable(state.x).any(1).cpu(), counter.evaluations
        state = finish(sampler.finishing, problem, state, plan.end, request.generator)
        taken += going * (counter.evaluations - before)
    except BadLogits as error:
        if error.t is None:
            raise
        when = f"step {len(infos)}, t = {float(error.t.mean()):.4f}"
        raise BadLogits(f"{error} ({when}); check the model and its precision at that time") from None
    forwards = network.evaluations * model.denoiser.forwards
    about = Info(infos, leftover, forwards, request.settings, int(counts.sum()))
    differ = bool((taken != counter.evaluations).any())
    return Result(state.x, counter.evaluations, about, taken if differ else None)


def _padded(request: Request) -> Request:
    """Return the request with padding that no sampler moves; refuse another number of samples than known."""
    denoiser, count = request.model.denoiser, len(request.x_0)
    if denoiser.samples not in (None, count):
        raise SamplingError(
            f"the model is made for {denoiser.samples} samples (attending or allowing), {count} are asked "
            f"for; give count={denoiser.samples}"
        )
    if denoiser.attention is None:
        return request
    padding = ~denoiser.attention.to(request.x_0.device)
    known = torch.zeros_like(padding) if request.frozen is None else request.frozen
    x_0 = request.x_0.masked_fill(padding & ~known, 0)
    return dataclasses.replace(request, x_0=x_0, frozen=padding | known)


def problem_of(sampler: Sampler, request: Request, denoiser: Denoiser) -> Problem:
    """Return what is sampled, with this denoiser; refuse a sampler that cannot do it."""
    if reason := sampler.refuses(request.model):
        raise SamplingError(reason)
    problem = Problem.of(request.model, request.frozen, request.condition)
    return dataclasses.replace(problem, denoiser=denoiser, drawing=request.drawing)


def finish(policy: FinishName, problem: Problem, state: State, t: float, generator: torch.Generator) -> State:
    """Draw what may still move from one more evaluation (`draw`), or masks from the last (`reuse`)."""
    if policy == "none":
        return state
    movable = problem.movable(state.x)
    if policy == "reuse":
        movable = movable & problem.process.masks(state.x)
    places = movable.flatten().nonzero().squeeze(1)
    if not len(places):
        return state
    visit = state.visit if policy == "reuse" and state.visit else problem.visit(state.x, t)
    x = state.x.clone().flatten()
    num_tokens = problem.process.num_tokens
    x[places] = draw(visit.evaluation, places, num_tokens, generator, problem.drawing)
    return State(x.view_as(state.x), visit)


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


# tauflow.sample: checks a request, then runs a sampler on it.


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
    movable: Tensor | None = None,
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
        movable: true (B, D) or (D,) where tokens are sampled. Elsewhere samples stay as they start: prompt
            or noise. None is everywhere.
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
    if movable is not None:
        fixed = ~movable.to(device).expand(shape)
        frozen = fixed if frozen is None else frozen | fixed
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
    sizes = torch.tensor(model.conditions, device=condition.device)
    wrong = ((condition < DROPPED) | (condition >= sizes)).any(0)
    if wrong.any():
        column = int(wrong.int().argmax())
        raise SamplingError(
            f"column {column} of a condition holds 0 .. {model.conditions[column] - 1}, or -1 for not given; "
            f"got {condition[:, column].tolist()[:8]}"
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


# Guidance by a prompt: away from what the same network says without it.
#
# Where noise is masks the prompt is masked. LLaDA writes u + (w + 1) (c - u) with the logits u of that; it is
# the weight w + 1 of `model.guided(w + 1, unprompted(model, prompt))`. Other noise has no token that says
# nothing, so there the network does not read the prompt: it answers as to the rest of the sequence alone.
#
# Shapes: B sequences, D coordinates.


class UnpromptedDenoiser(Wrapper):
    """Hides what is known, true (D,) for every sequence or (B, D), from the network.

    With a mask it is masked; without one the network is told not to read it.
    """

    def __init__(self, denoiser: Denoiser, known: Tensor, mask: int | None):
        super().__init__(denoiser)
        self.known = known
        self.mask = mask
        self._context = Context()
        if known.ndim == 2:
            self.samples = len(known)

    def within(self, context: Context) -> Denoiser:
        return self.copied(denoiser=self.denoiser.within(context), _context=context)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        known = self.known if self.known.ndim == 1 else self._context.own(self.known, len(x))
        known = known.to(x.device).expand_as(x)
        if self.mask is not None:
            return self.denoiser.evaluate(x.masked_fill(known, self.mask), t, condition)
        read = self._context.attention
        read = ~known if read is None else ~known & read.to(x.device)
        read = read | ~read.any(1, keepdim=True)  # a sequence that is all known has no use for an answer
        return self.denoiser.within(dataclasses.replace(self._context, attention=read)).evaluate(
            x, t, condition
        )


def unprompted(model: Model, prompt: Prompt) -> Model:
    """Return a model that does not see its prompt, for `Model.guided`."""
    mask = model.process.num_tokens if model.process.absorbing else None
    if mask is None and not model.denoiser.attends:
        raise SamplingError(
            f"a prompt cannot be hidden from this model ({model.process}): it has no masks, and its network "
            "reads every coordinate; drop the guidance"
        )
    return dataclasses.replace(model, denoiser=UnpromptedDenoiser(model.denoiser, prompt.known, mask))


# Driven: a sampler inside a loop that is not ours, which evaluates the network and hands the logits in.
#
# `run` asks the network whenever a step wants an evaluation. Here the step is broken off instead, and made
# again from its start, with the same random numbers, when the logits have come. So every sampler can be
# driven, those that evaluate twice a step included, and its samples are those of `run`. What is made again is
# what a step does before its evaluation, which is little.


class Wanted(Exception):
    """An evaluation that has not been made yet, at the states x (B, D) and the times t (B,)."""

    def __init__(self, x: Tensor, t: Tensor):
        super().__init__()
        self.x = x
        self.t = t


class Handed:
    """A network that answers with the logits it was handed, in order, and raises `Wanted` after the last.

    A step that is made again takes, after each evaluation, the generator as it was when the logits came: what
    others have drawn from it while the step waited does not come again.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.read = 0
        self._answers: list[tuple[Tensor, Tensor]] = []  # logits (B, D, V) and the generator's state
        self._before = generator.get_state()

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        if self.read == len(self._answers):
            raise Wanted(x, t)
        logits, state = self._answers[self.read]
        self.generator.set_state(state)
        self.read += 1
        return logits

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, logits: Tensor) -> None:
        """Add the logits of the evaluation that is wanted, and start the step again."""
        self._answers.append((logits, self.generator.get_state()))
        self.generator.set_state(self._before)
        self.read = 0

    def clear(self) -> None:
        """Drop the logits of a step that is made; the next one begins with the generator as it is."""
        self._answers = []
        self._before = self.generator.get_state()
        self.read = 0


class Driven:
    """A sampler that waits for the logits (B, D, V) of its states `x` (B, D) at `t` (B,), until it is `done`.

    Logits are its own once they are handed in: it may look back at them in the next step.

    Args:
        sampler: what makes the steps.
        process: of the model's training.
        x_0: the states at first (B, D).
        nfe: budget of evaluations.
        generator: of all randomness; others may draw from it between evaluations.
        temperature: as `Model.tempered` takes it.
    """

    def __init__(
        self,
        sampler: Sampler,
        process: Process,
        x_0: Tensor,
        nfe: int,
        generator: torch.Generator,
        temperature: float = 1.0,
    ):
        self._handed = Handed(generator)
        model = Model(self._handed, process, tuple(x_0.shape[1:])).tempered(temperature)
        self._sampler = sampler
        self._problem = problem_of(sampler, Request(model, nfe, x_0, generator), model.denoiser)
        self._plan = sampler.plan(process, int(self._problem.movable(x_0).sum(1).max()), nfe)
        self._state = sampler.init(self._problem, x_0.clone(), self._plan, generator)
        self._handed.clear()
        self._step = 0  # the one under way; after the last comes the finish
        self._changes: list[tuple[Tensor, Tensor]] = []  # places (B, D) and tokens, of the step under way
        self.x, self.t = x_0, torch.zeros(len(x_0), device=x_0.device)
        self.done = False
        self._advance()

    def answer(self, logits: Tensor, x: Tensor | None = None) -> None:
        """Give it the logits (B, D, V) of `x`, or of other states where the caller has changed them.

        Before the first evaluation of a step the changed states are those that the step starts from. Tokens
        that are changed between two evaluations of a step stay as they are given until the step is made.
        """
        require(not self.done, "the sampler is done and takes no more logits; start another one")
        if x is not None and not torch.equal(x, self.x):
            self._change(x)
        if not self.done:
            self._handed.add(logits)
            self._advance()

    def _change(self, x: Tensor) -> None:
        require(
            x.shape == self.x.shape,
            f"the sampler has states of shape {tuple(self.x.shape)}, got {tuple(x.shape)}; start another one",
        )
        if len(self._handed):
            places = x != self.x
            self._changes.append((places, x[places]))
        else:
            self._state = dataclasses.replace(self._state, x=x.clone())
            self._handed.clear()  # the step starts again with other random numbers, as many as it takes now
            self._advance()

    def _changed(self, x: Tensor) -> Tensor:
        """Return states with what the caller has changed during the step."""
        for places, tokens in self._changes:
            x = x.masked_scatter(places, tokens)
        return x

    @torch.no_grad()
    def _advance(self) -> None:
        """Make steps as far as the logits reach."""
        try:
            while not self.done:
                state = self._next()
                self._state = dataclasses.replace(state, x=self._changed(state.x))
                self._step += 1
                self._changes = []
                self._handed.clear()
        except Wanted as wanted:
            self.x, self.t = self._changed(wanted.x), wanted.t
        else:
            self.x = self._state.x
            self._state = State(self.x)  # without the logits of the last evaluation

    def _next(self) -> State:
        """Return the state after the step under way, or after the finish."""
        problem, plan, state, generator = self._problem, self._plan, self._state, self._handed.generator
        moving = self._step == 0 or bool(problem.movable(state.x).any())
        if self._step < plan.steps and moving:
            state, _ = self._sampler.step(problem, state, plan, self._step, generator)
            return state
        state = finish(self._sampler.finishing, problem, state, plan.end, generator)
        self.done = True
        return state
