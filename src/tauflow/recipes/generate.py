"""generate: texts that follow prompts, one block of new tokens after another.

Each block is one call of `tauflow.sample`, with the prompt and the earlier blocks known. What follows the
block while it's sampled depends on the process. With a masked source it's masks, as many as there are tokens
to come. With any other source it's nothing, since noise there would belong to no time the network is asked
about. A model that reads its prompt as a condition (DiffusionGemma) gets the earlier blocks in the condition.

Shapes: B prompts, A of them whose texts haven't ended, P tokens of the longest prompt, N new tokens, K tokens
of a block, D coordinates, V data tokens, C columns of a condition.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise import Model, ProcessedDenoiser
from tauflow.denoise.processors import split_truncation
from tauflow.errors import SettingsError, shorten
from tauflow.recipes.language import Language
from tauflow.samplers import Prompt, Sampler, State, StepInfo, sample, sampler_from
from tauflow.samplers.run import make_generator, positive_int, unprompted
from tauflow.train import Trained

Text = str | Sequence[Mapping[str, str]]
"""A prompt: a text to continue, or the messages of a conversation to answer."""


@dataclass(frozen=True)
class Step:
    """What an observer sees after each step, and after each block.

    Args:
        tokens: the new tokens of all samples (B, N) so far; V where there is none yet.
        block: number of the block, from 0 on.
        blocks: how many blocks there are.
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
        tokens: the same as tokens (n,), per prompt.
        evaluations: of the denoiser, in all blocks.
        forwards: network calls. Guidance takes two per evaluation.
        taken: evaluations per sample, without those after its block was finished and those of blocks after
            its end.
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
        """Return new tokens per evaluation and sample."""
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
    """Continue texts, or answer conversations, with a pretrained language model.

    Use it for models from `tauflow.pretrained`. It takes prompts as text and stops where a text ends. To
    fill in tokens anywhere in a sequence, use `tauflow.sample` with a prompt.

    Prompts of a batch may differ in length: each gets the logits it would get alone. A text ends at the
    model's first end token. A sample that has ended isn't sampled in later blocks, and evaluations stop when
    all have ended.

    Args:
        trained: a language model from `tauflow.pretrained`.
        prompts: one or several texts, or conversations. A conversation is a list of messages such as
            {"role": "user", "content": "Hi"}, which the model's chat template turns into text.
        max_new_tokens: N. None is one block of the model, or 128, or as many as the model can still read.
            For antibodies, it's the rest of a chain.
        sampler: a spec such as "tr_cie(grid=tau)", a Sampler, or "auto", as in `tauflow.sample`.
        nfe: budget of evaluations of all blocks together, shared evenly. The first blocks get one more if
            it doesn't divide. What an adaptive sampler saves in a block is saved.
        block: K, new tokens sampled together; must divide N. None is the model's block size, or N.
        guidance: weight of guidance away from the model without its prompt; 1 is none. The prompt is
            replaced by masks, or hidden from the network if the source isn't masked.
        temperature: as in `Model.tempered`. Top-k and top-p belong to the model (`Model.truncated`) and
            apply after guidance and temperature.
        seed: seed of all randomness, or a torch.Generator.
        observer: called with a `Step` after each step.

    Returns:
        The texts and their tokens, with the number of evaluations they took.

    Example (downloads a model):
        >>> trained = tauflow.pretrained("answerdotai/ModernBERT-base")  # doctest: +SKIP
        >>> tauflow.generate(trained, "The capital of France is", 8, nfe=8).texts  # doctest: +SKIP
        [' Paris, and the capital of Italy is Rome']
    """
    task = getattr(trained, "task", trained)
    if not isinstance(task, Language):
        raise SettingsError(
            f"generate needs a language model from tauflow.pretrained, got {type(task).__name__}. Use "
            "tauflow.sample for other models."
        )
    encoded = [task.text.add_begin(task.text.encode(text)) for text in _list_texts(prompts, task)]
    length, size = _choose_sizes(task, encoded, max_new_tokens, block)
    check_blocks(length, size, nfe)
    chosen = sampler_from(sampler, trained.model)
    generator = make_generator(seed)
    requests = BlockRequests(trained.model, task, encoded, guidance, temperature)

    tokens = torch.full((len(encoded), length), task.num_tokens)  # (B, N), V where there is none yet
    going = torch.arange(len(encoded))  # (A,) samples that haven't ended
    taken = torch.zeros(len(encoded), dtype=torch.long)
    evaluations = 0
    forwards = 0
    blocks = length // size
    for number in range(blocks):
        budget = nfe // blocks + (number < nfe % blocks)
        begin = number * size
        asked = requests.after(tokens[going], going, begin, size)
        write = partial(_write_block, tokens, going, begin, asked)
        result = sample(
            asked.model,
            chosen,
            budget,
            count=len(going),
            condition=asked.condition,
            prompt=asked.prompt,
            movable=asked.movable,
            seed=generator,
            observer=observer and partial(_show, observer, write, number, blocks),
        )
        tokens = write(result.tokens)
        taken[going] += result.nfe if result.evaluations is None else result.evaluations
        evaluations += result.nfe
        forwards += result.info.forwards
        if observer:
            observer(Step(tokens, number, blocks))
        going = going[task.lengths(tokens[going]) == length]
        if not len(going):
            break

    ends = task.lengths(tokens).tolist()
    rows = [row[:end] for row, end in zip(tokens, ends, strict=True)]
    texts = [task.text.decode(row.tolist()) for row in rows]
    return Generated(texts, rows, evaluations, forwards, taken.tolist())


# One block as a call of `sample`


@dataclass(frozen=True)
class BlockRequest:
    """What `sample` is asked for: D coordinates, of which the K of the block may change.

    Args:
        model: of samples of D coordinates.
        start: of the block.
        size: K.
        prompt: what is known before the block, or None.
        condition: (A, C), or None.
    """

    model: Model
    start: int
    size: int
    prompt: Prompt | None = None
    condition: Tensor | None = None

    @property
    def movable(self) -> Tensor:
        """Return true (D,) in the block."""
        columns = torch.arange(self.model.length)
        return (columns >= self.start) & (columns < self.start + self.size)


@dataclass(frozen=True)
class BlockRequests:
    """What `sample` is asked for, block by block.

    Prompts are before the new tokens in one sequence and end in the same column. What's before shorter ones
    is padding, which the network doesn't read. If the model takes prompts as conditions, new tokens become a
    part of them when the next block is sampled.
    """

    model: Model
    task: Any  # with `row` if it has conditions
    prompts: list[list[int]]
    guidance: float
    temperature: float

    def after(self, new: Tensor, samples: Tensor, begin: int, size: int) -> BlockRequest:
        """Return what is sampled after the first `begin` new tokens (A, N) of the samples (A,)."""
        before = [self.prompts[row] for row in samples.tolist()]
        if self.task.conditions:
            rows = zip(before, new[:, :begin].tolist(), strict=True)
            condition = torch.stack([self.task.row(prompt + more) for prompt, more in rows])
            model = self._adjust(dataclasses.replace(self.model, shape=(size,)), None)
            return BlockRequest(model, 0, size, condition=condition)
        width = max(map(len, self.prompts))
        padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in before]).long()  # (A, P)
        lengths = torch.tensor([len(prompt) for prompt in before])
        real = torch.arange(-width, 0) >= -lengths[:, None]
        seen = new if self.model.process.absorbing else new[:, : begin + size]
        tokens = torch.cat([padded, seen], 1)
        columns = torch.arange(tokens.shape[1])
        model = dataclasses.replace(self.model, shape=tokens.shape[1:])
        model = self._adjust(model, Prompt(tokens, columns < width))
        if not real.all():
            model = model.with_attention_mask(torch.cat([real, torch.ones_like(seen, dtype=torch.bool)], 1))
        start = width + begin
        return BlockRequest(model, start, size, prompt=Prompt(tokens, columns < start))

    def _adjust(self, model: Model, prompt: Prompt | None) -> Model:
        """Apply guidance and temperature, which come before the model's own top-k and top-p; 1 is none."""
        denoiser, truncation = split_truncation(model.denoiser)
        model = dataclasses.replace(model, denoiser=denoiser)
        if self.guidance != 1:
            model = model.guided(self.guidance, prompt and unprompted(model, prompt))
        if self.temperature != 1:
            model = model.tempered(self.temperature)
        if truncation is not None:
            model = dataclasses.replace(model, denoiser=ProcessedDenoiser(model.denoiser, truncation))
        return model


def _write_block(tokens: Tensor, samples: Tensor, begin: int, asked: BlockRequest, x: Tensor) -> Tensor:
    """Return the new tokens (B, N) with the block of the states x (A, D)."""
    block = x[:, asked.start : asked.start + asked.size]
    tokens = tokens.clone()
    tokens[samples, begin : begin + asked.size] = block.cpu()
    return tokens


def _show(
    observer: Observer,
    write: Callable[[Tensor], Tensor],
    block: int,
    blocks: int,
    info: StepInfo,
    state: State,
) -> None:
    observer(Step(write(state.x), block, blocks))


# Arguments


def _list_texts(prompts: Any, task: Language) -> list[str]:
    """Return each prompt as the text that the model continues."""
    one = isinstance(prompts, str) or _is_conversation(prompts)
    given = [prompts] if one else prompts
    right = isinstance(given, Sequence) and not isinstance(given, bytes) and len(given) > 0
    if not right or not all(isinstance(prompt, str) or _is_conversation(prompt) for prompt in given):
        raise SettingsError(
            'prompts must be texts, or conversations of messages such as {"role": "user", "content": "Hi"}, '
            f"got {shorten(repr(prompts))}."
        )
    return [prompt if isinstance(prompt, str) else task.chat(list(map(dict, prompt))) for prompt in given]


def _is_conversation(prompt: Any) -> bool:
    if not isinstance(prompt, Sequence) or not len(prompt):
        return False
    return all(isinstance(message, Mapping) for message in prompt)


def _choose_sizes(
    task: Language, encoded: list[list[int]], max_new_tokens: int | None, block: int | None
) -> tuple[int, int]:
    """Return N and K; raise an error if a prompt is too long for the new tokens."""
    longest = max(range(len(encoded)), key=lambda number: len(encoded[number]))
    taken = len(encoded[longest])
    new = task.new_tokens(taken) if max_new_tokens is None else positive_int(max_new_tokens, "max_new_tokens")
    size = (task.block or new) if block is None else positive_int(block, "block")
    context = len(task.sized(size).conditions) + size if task.conditions else task.context
    if context is not None and taken + new > context:
        more = "" if max_new_tokens is None else ", or ask for fewer new tokens"
        raise SettingsError(
            f"Prompt {longest + 1} ({taken} tokens) and {new} new tokens must fit into the {context} tokens "
            f"the model can read. Shorten the prompt{more}."
        )
    return new, size


def check_blocks(new: int, size: int, nfe: int) -> None:
    """Raise an error unless blocks of `size` divide the new tokens and get an evaluation each."""
    if new % size:
        raise SettingsError(
            f"The block size must divide the number of new tokens, got {size} and {new}. Ask for "
            f"{-(-new // size) * size} new tokens, or choose another block size."
        )
    if positive_int(nfe, "nfe") < new // size:
        raise SettingsError(
            f"nfe must be at least 1 per block, got {nfe} for {new // size} blocks. Increase nfe, or choose "
            "larger blocks."
        )
