"""Prompts of language models: those that stand before new tokens, and those that are conditions.

Shapes: B prompts, A of them whose texts have not ended, P tokens of the longest prompt, N new tokens, K
tokens of a block, D coordinates, C columns of a condition.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from tauflow.denoise import Model, TruncatedDenoiser
from tauflow.errors import SettingsError, shorten
from tauflow.recipes.language import Language
from tauflow.samplers import Prompt, Result, Sampler, sampler_from
from tauflow.samplers.run import Request, run, seeded, unprompted, whole
from tauflow.train import Trained


@dataclass(frozen=True)
class Asked:
    """What is sampled for one block: K coordinates from `place` on.

    Args:
        model: of samples of D coordinates.
        tokens: what stands around the block (A, D).
        place: of the block.
        size: K.
        condition: (A, C), or None.
    """

    model: Model
    tokens: Tensor
    place: int
    size: int
    condition: Tensor | None = None

    @property
    def frozen(self) -> Tensor:
        """Return true (A, D) on all that is no part of the block."""
        columns = torch.arange(self.model.length)
        inside = (columns >= self.place) & (columns < self.place + self.size)
        return (~inside).expand(len(self.tokens), -1)

    def block(self, x: Tensor) -> Tensor:
        """Return the block (A, K) of states (A, D)."""
        return x[:, self.place : self.place + self.size]


class Prompted(Protocol):
    """A model with prompts."""

    def asked(self, new: Tensor, rows: Tensor, begin: int, size: int) -> Asked:
        """Return what is sampled for the new tokens from `begin` on, of the samples rows (A,) so far."""
        ...


class Continued:
    """Prompts that stand before the new tokens in one sequence.

    They end in the same column; what stands before shorter ones is padding, which the network does not read.
    """

    def __init__(self, model: Model, prompts: Sequence[list[int]], adjusted: "Adjusted"):
        self.model = model
        self.adjusted = adjusted
        width = max(map(len, prompts))
        self.prompts = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]).long()
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        self.real = torch.arange(-width, 0) >= -lengths[:, None]  # (B, P)

    def asked(self, new: Tensor, rows: Tensor, begin: int, size: int) -> Asked:
        seen = new if self.model.process.absorbing else new[:, : begin + size]
        tokens = torch.cat([self.prompts[rows], seen], 1)
        real, width = self.real[rows], self.real.shape[1]
        model = dataclasses.replace(self.model, shape=tokens.shape[1:])
        model = self.adjusted.of(model, Prompt(tokens, torch.arange(model.length) < width))
        if not real.all():
            model = model.attending(torch.cat([real, torch.ones_like(seen, dtype=torch.bool)], 1))
        return Asked(model, tokens, width + begin, size)


class Conditioned:
    """Prompts that are conditions, which new tokens become a part of when the next block is sampled."""

    def __init__(self, model: Model, task: Language, prompts: Sequence[list[int]], adjusted: "Adjusted"):
        self.model = model
        self.task = task
        self.prompts = prompts
        self.adjusted = adjusted

    def asked(self, new: Tensor, rows: Tensor, begin: int, size: int) -> Asked:
        before = [self.prompts[row] for row in rows.tolist()]
        known = [prompt + more for prompt, more in zip(before, new[:, :begin].tolist(), strict=True)]
        condition = torch.stack([self.task.row(tokens) for tokens in known])
        model = self.adjusted.of(dataclasses.replace(self.model, shape=(size,)), None)
        return Asked(model, new[:, begin : begin + size], 0, size, condition)


@dataclass(frozen=True)
class Adjusted:
    """Guidance and temperature; 1 is none."""

    guidance: float = 1.0
    temperature: float = 1.0

    def of(self, model: Model, prompt: Prompt | None) -> Model:
        """Return a model with both; it is guided away from what it says without the prompt.

        What is cut from its rows is cut after both.
        """
        truncated = model.denoiser
        if isinstance(truncated, TruncatedDenoiser):
            model = dataclasses.replace(model, denoiser=truncated.denoiser)
        if self.guidance != 1:
            model = model.guided(self.guidance, prompt and unprompted(model, prompt))
        if self.temperature != 1:
            model = model.tempered(self.temperature)
        if isinstance(truncated, TruncatedDenoiser):
            model = model.truncated(truncated.top_k, truncated.top_p)
        return model


def prompted_model(
    model: Model, task: Language, prompts: Sequence[list[int]], adjusted: Adjusted
) -> Prompted:
    """Return a model with prompts as it takes them."""
    if task.conditions:
        return Conditioned(model, task, prompts, adjusted)
    return Continued(model, prompts, adjusted)


# generate: texts that follow prompts, one block of new tokens after the other.
#
# A block is sampled as `tauflow.sample` samples, with the prompt and the blocks before it known; with one
# block
# the two are the same. What stands after a block while it is sampled depends on the process: masks, as many
# as
# there are new tokens to come, where the noise is masks; nothing, where it is other tokens, since these would
# be those of no time at which the network is asked.
#
# Shapes: B prompts, A of them whose texts have not ended, P tokens of the longest prompt, N new tokens, K
# tokens of a block, D coordinates, V data tokens, C columns of a condition.


Text = str | Sequence[Mapping[str, str]]
"""A prompt: text that is continued, or the messages of a conversation that is answered."""


@dataclass(frozen=True)
class Step:
    """What an observer is shown after every step, and after every block.

    Args:
        tokens: new ones of all samples (B, N) as they are now; V where there are none yet.
        block: which one is sampled, from 0 on.
        blocks: how many there are.
    """

    tokens: Tensor
    block: int
    blocks: int


Observer = Callable[[Step], None]


@dataclass(frozen=True)
class Generated:
    """Texts, and what they cost.

    Args:
        texts: what follows each prompt, up to its end.
        tokens: the same as tokens (n,), for each prompt.
        evaluations: of the denoiser, in all blocks.
        forwards: network calls: two for each evaluation with guidance.
        taken: evaluations that each sample took part in: not those after its block was finished, nor those
            of blocks after its end.
    """

    texts: list[str]
    tokens: list[Tensor]
    evaluations: int
    forwards: int
    taken: list[int]

    @property
    def lengths(self) -> list[int]:
        """Return how many new tokens each sample has before its end."""
        return [len(row) for row in self.tokens]

    @property
    def tokens_per_evaluation(self) -> float:
        """Return new tokens of a sample for each evaluation that it took part in, mean over all of these."""
        return sum(self.lengths) / sum(self.taken)


def generate(
    trained: Trained,
    prompts: Text | Sequence[Text],
    max_new_tokens: int | None = None,
    sampler: Sampler | str = "auto",
    nfe: int = 32,
    *,
    block: int | None = None,
    guidance: float = 1.0,
    temperature: float = 1.0,
    seed: int | torch.Generator = 0,
    observer: Observer | None = None,
) -> Generated:
    """Sample texts that continue prompts, or answer conversations, with a pretrained language model.

    Prompts of a batch may differ in length: each has the logits that it has alone. A text ends at the first
    end token of the model; a sample that has ended is not sampled in later blocks, and when all have, no more
    evaluations are made.

    Args:
        trained: from `tauflow.pretrained`.
        prompts: one or several: texts, or conversations, each a list of messages such as {"role": "user",
            "content": "Hi"}, which the chat template of the model writes as a text.
        max_new_tokens: N; None is a block of the model, or else 128, or as many as it can still read; of
            antibodies, what is missing to a chain.
        sampler: as in `tauflow.sample`.
        nfe: budget of evaluations of all blocks together, which share it evenly; the first ones have one more
            where it cannot be shared so. What an adaptive sampler saves in a block is saved.
        block: new tokens that are sampled together, K, a divisor of N; None is what the model was trained
            with, or else all of them.
        guidance: weight; 1 is none. The model is guided away from what it says without its prompt: to masks
            in its place, or where noise is no masks, to the new tokens alone.
        temperature: as `Model.tempered` takes it. Top-k and top-p belong to the model (`Model.truncated`),
            whose rows are cut after guidance and temperature.
        seed: of all randomness, or a torch.Generator.
        observer: called with a `Step` after every step.
    """
    task = _language(trained)
    encoded = [task.text.begun(task.text.encode(_written(prompt, task))) for prompt in _several(prompts)]
    new, size = _sizes(task, encoded, max_new_tokens, block)
    blocks = new // size
    refuse_uneven(new, size, nfe)
    prompted = prompted_model(trained.model, task, encoded, Adjusted(guidance, temperature))
    writing = Writing(task, prompted, torch.full((len(encoded), new), task.num_tokens))
    chosen, generator = sampler_from(sampler, trained.model), seeded(seed)
    for number in range(blocks):
        budget = nfe // blocks + (number < nfe % blocks)
        shown = observer and partial(_show, observer, number, blocks)
        writing.sample_block(number * size, size, partial(_run, chosen, budget, generator), shown)
        if not len(writing.going):
            break
    return writing.generated


class Writing:
    """New tokens (B, N) of all samples as they grow; V where there are none yet."""

    def __init__(self, task: Language, prompted: Prompted, tokens: Tensor):
        self.task = task
        self.prompted = prompted
        self.tokens = tokens
        self.going = torch.arange(len(tokens))  # (A,) the samples that have not ended
        self.taken = torch.zeros(len(tokens), dtype=torch.long)  # evaluations of each
        self.evaluations = self.forwards = 0

    def sample_block(
        self,
        begin: int,
        size: int,
        sample: Callable[[Asked, Callable[[Tensor], None] | None], Result],
        show: Callable[[Tensor], None] | None,
    ) -> None:
        """Sample the new tokens from `begin` on of those that have not ended."""
        asked = self.prompted.asked(self.tokens[self.going], self.going, begin, size)

        def now(x: Tensor) -> Tensor:
            tokens = self.tokens.clone()
            tokens[self.going, begin : begin + size] = asked.block(x).cpu()
            return tokens

        result = sample(asked, show and (lambda x: show(now(x))))
        self.tokens = now(result.tokens)
        self.taken[self.going] += result.nfe if result.evaluations is None else result.evaluations
        self.evaluations += result.nfe
        self.forwards += result.info.forwards
        if show:
            show(self.tokens)
        self.going = self.going[self.task.lengths(self.tokens[self.going]) == self.tokens.shape[1]]

    @property
    def generated(self) -> Generated:
        """Return what there is."""
        ends = self.task.lengths(self.tokens).tolist()
        rows = [row[:end] for row, end in zip(self.tokens, ends, strict=True)]
        texts = [self.task.text.decode(row.tolist()) for row in rows]
        return Generated(texts, rows, self.evaluations, self.forwards, self.taken.tolist())


def _show(observer: Observer, block: int, blocks: int, tokens: Tensor) -> None:
    observer(Step(tokens, block, blocks))


def _run(
    sampler: Sampler,
    nfe: int,
    generator: torch.Generator,
    asked: Asked,
    show: Callable[[Tensor], None] | None,
) -> Result:
    """Sample what is asked; `show` is given the states (A, D) after every step."""
    model, device = asked.model, asked.model.denoiser.device
    x_0 = model.process.start((len(asked.tokens), model.length), generator).to(device)
    frozen = asked.frozen.to(device)
    request = Request(
        model,
        nfe,
        torch.where(frozen, asked.tokens.to(device), x_0),
        generator,
        frozen=frozen,
        condition=None if asked.condition is None else asked.condition.to(device),
        observer=show and (lambda info, state: show(state.x)),
    )
    return run(sampler, request)


# What was asked for


def _language(trained: Trained) -> Language:
    """Return the task of a language model; refuse any other."""
    if not isinstance(trained, Trained) or not isinstance(trained.task, Language):
        task = trained.task if isinstance(trained, Trained) else trained
        raise SettingsError(
            f"generate continues texts of a language model, got {type(task).__name__}; load one with "
            "tauflow.pretrained, or use tauflow.sample"
        )
    return trained.task


def _several(prompts: Any) -> list[Any]:
    """Return prompts as a list; one alone is a list of itself."""
    if isinstance(prompts, str) or _is_conversation(prompts):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes) or not len(prompts):
        raise SettingsError(
            f"prompts must be one or several texts or conversations, got {shorten(repr(prompts))}"
        )
    return list(prompts)


def _is_conversation(prompt: Any) -> bool:
    messages = prompt if isinstance(prompt, Sequence) else ()
    return len(messages) > 0 and all(isinstance(message, Mapping) for message in messages)


def _written(prompt: Any, task: Language) -> str:
    """Return the text of a prompt."""
    if isinstance(prompt, str):
        return prompt
    if _is_conversation(prompt):
        return task.chat([dict(message) for message in prompt])
    raise SettingsError(
        'a prompt is a text, or a list of messages such as {"role": "user", "content": "Hi"}; got '
        f"{shorten(repr(prompt))}"
    )


def _sizes(
    task: Language, encoded: list[list[int]], max_new_tokens: int | None, block: int | None
) -> tuple[int, int]:
    """Return N and K; refuse prompts that leave no place for the new tokens."""
    longest = max(range(len(encoded)), key=lambda number: len(encoded[number]))
    taken = len(encoded[longest])
    new = task.new_tokens(taken) if max_new_tokens is None else whole(max_new_tokens, "max_new_tokens")
    size = (task.block or new) if block is None else whole(block, "block")
    context = len(task.sized(size).conditions) + size if task.conditions else task.context
    if context is not None and taken + new > context:
        more = "" if max_new_tokens is None else ", or ask for fewer"
        raise SettingsError(
            f"prompt {longest + 1} has {taken} tokens and is to have {new} more, the model can read "
            f"{context}; shorten it{more}"
        )
    return new, size


def refuse_uneven(new: int, size: int, nfe: int) -> None:
    """Refuse blocks of `size` that do not divide the new tokens, and fewer evaluations than blocks."""
    if new % size:
        raise SettingsError(
            f"a block of {size} does not divide {new} new tokens; ask for {-(-new // size) * size}, or give "
            "another block"
        )
    if whole(nfe, "nfe") < new // size:
        raise SettingsError(
            f"{new // size} blocks need an evaluation each, nfe is {nfe}; raise it, or take larger blocks"
        )
