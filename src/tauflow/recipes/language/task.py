"""Language: the texts, or proteins, of a pretrained language model, which comes without its data.

Shapes: B samples, D tokens of a sample, V data tokens.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn, Self, cast

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError, shorten
from tauflow.recipes.language.tokens import TextTokens
from tauflow.samplers import Prompt
from tauflow.tasks import Task, prompts
from tauflow.tasks.metrics import SampleMean
from tauflow.tasks.sequences.metrics import Unique
from tauflow.tasks.text.metrics import Distinct, Entropy, Judging
from tauflow.tasks.text.task import PICTURES
from tauflow.tasks.text.vocabulary import Vocabulary
from tauflow.train import Trained

LENGTH = 128  # tokens of a sample, unless more or fewer are asked for


class MeanLength(SampleMean):
    """Tokens of a sample before its end, mean over samples."""

    higher_is_better = None
    logarithmic = False

    def __init__(self, task: "Language", **kwargs: Any):
        super().__init__(**kwargs)
        self.task = task

    def of(self, tokens: Tensor) -> Tensor:
        return self.task.lengths(tokens)


class UpToEnd(SampleMean):
    """How diverse the tokens of a sample are up to its end, mean over samples.

    `diversity` says it of samples (B, D). Those of fewer tokens than `least` have no such number, and do not
    count.
    """

    higher_is_better = True
    logarithmic = False

    def __init__(self, task: "Language", diversity: Callable[[Tensor], Tensor], least: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.task = task
        self.diversity = diversity
        self.least = least

    def of(self, tokens: Tensor) -> Tensor:
        rows = zip(tokens, self.task.lengths(tokens).tolist(), strict=True)
        found = [self.diversity(row[None, :end]) for row, end in rows if end >= self.least]
        return torch.cat(found) if found else torch.zeros(0)


class Language(Task):
    """Texts of a language model by its own tokenizer.

    `begin` is where what is known of its samples ends (`knowing`): an end token before it ends no text.

    Args:
        text: texts to tokens and back.
        length: tokens of a sample, D.
        ends: tokens that end a text.
        context: tokens that a sample may have at most.
        block: tokens that are sampled together, where the model was trained so.
    """

    primary_metric = "entropy_bits"
    alone = "no numbers of real data: a pretrained model comes without its data"

    def __init__(
        self,
        text: TextTokens,
        length: int = LENGTH,
        ends: tuple[int, ...] = (),
        context: int | None = None,
        block: int | None = None,
    ):
        self.text = text
        self.ends = ends
        self.context = context
        self.block = block
        self.num_tokens = text.size
        self.shape = (length,)
        self.begin = 0
        self._judging: Judging | None = None

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of transformers."""
        return self.text.tokenizer

    def sized(self, length: int) -> Self:
        """Return the task of samples of another length."""
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise SettingsError(f"length must be a whole number of at least 1, got {length!r}")
        if self.context is not None and length > self.context:
            raise SettingsError(
                f"{length} tokens are more than the {self.context} that the model can read; ask for fewer"
            )
        result = copy.copy(self)
        result.shape = (length,)
        result.begin = 0
        return result

    def knowing(self, prompt: Prompt) -> Self:
        """Return the task of samples that begin with a prompt, or have one in them."""
        rows = torch.atleast_2d(prompt.known).cpu()
        begins = (rows * torch.arange(1, rows.shape[1] + 1)).amax(1)
        if self.ends and begins.min() != begins.max():
            raise SettingsError(
                "prompts that are measured together end at the same place; evaluate those of other lengths "
                "by themselves"
            )
        result = copy.copy(self)
        result.begin = int(begins.max())
        return result

    def new_tokens(self, taken: int) -> int:
        """Return how many tokens follow a prompt of `taken` unless the user says it."""
        return self.block or max(1, min(LENGTH, (self.context or taken + LENGTH) - taken))

    def setup(self, stage: str | None = None) -> NoReturn:
        raise SettingsError("a pretrained language model comes without data to train or validate on")

    # Texts

    def lengths(self, tokens: Tensor, begin: int = 0) -> Tensor:
        """Return how many tokens (B,) samples have before their end.

        That is the first end token after all that is known, at or after the place `begin`.
        """
        if not self.ends:
            return torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        ended = torch.isin(tokens, torch.tensor(self.ends, device=tokens.device))
        ended[:, : max(begin, self.begin)] = False
        return ended.cumsum(1).eq(0).sum(1)

    def texts(self, tokens: Tensor, begin: int = 0) -> list[str]:
        """Return samples (B, D) from a place on as text, each up to its end."""
        ends = self.lengths(tokens, begin).tolist()
        return [self.text.decode(row[begin:end]) for row, end in zip(tokens.tolist(), ends, strict=True)]

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return numbered texts, each up to its end; `_` is a mask, control characters are pictures."""
        texts = (text.translate(PICTURES) for text in self.texts(tokens))
        return [f"[{number}] {text}" for number, text in enumerate(texts, start=1)]

    def prompt(self, text: str) -> Prompt:
        """Return the text that every sample begins with."""
        return prompts.beginning(text, self.text.encode, self.shape[0])

    def infill(self, text: str) -> Prompt:
        """Return text with blanks: n >= 2 underscores (n >= 1 where `_` is no token) stand for n tokens."""
        return prompts.with_blanks(text, self.text.encode, self.shape[0], self.text.has_space)

    def chat(self, messages: str | list[dict[str, str]]) -> str:
        """Return the text that asks for an answer to a conversation, or to one message of a user."""
        for message in [] if isinstance(messages, str) else messages:
            if not {"role", "content"} <= message.keys():
                raise SettingsError(
                    'a message has a role and a content, such as {"role": "user", "content": "Hi"}; got '
                    f"{shorten(repr(message))}"
                )
        return self.text.chat(messages)

    def row(self, tokens: list[int]) -> Tensor:
        """Return the tokens of a prompt as a condition (C,), where `conditions` say that it is one."""
        raise SettingsError("prompts of this model stand before new tokens; they are no conditions")

    # Measures

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {"entropy_bits": UpToEnd(self, Entropy().of, 0)}
        sizes = [n for n in (1, 2, 3) if n <= self.shape[0]]
        metrics |= {f"distinct_{n}": UpToEnd(self, Distinct(n).of, n) for n in sizes}
        metrics["unique"] = Unique(self.texts)
        if self.ends:
            metrics["mean_length"] = MeanLength(self)
        judged = {} if self._judging is None else self._judging.reading(_judged(self)).metrics()
        return MetricCollection({**judged, **metrics}, compute_groups=False)

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        """Measure the perplexity under causal models of transformers."""
        asked = list(dict.fromkeys(name.strip() for name in names.split(",")))
        if "ngram" in asked:
            raise SettingsError("the judge ngram needs training text, which a pretrained model has not")
        judging = Judging(asked, _judged(self), self._no_ngrams, device)
        self.primary_metric = f"ppl_corpus_{next(iter(judging.labels()))}"
        self._judging = judging

    def _no_ngrams(self) -> NoReturn:
        raise SettingsError(self.alone)


class _Judged:
    """What judges read of samples: their texts up to the end."""

    def __init__(self, task: Language):
        self.size = task.num_tokens
        self.tokenizer = self
        self._task = task

    def texts(self, rows: list[list[int]]) -> list[str]:
        """Return the texts of samples."""
        return self._task.texts(torch.tensor(rows)) if rows else []

    def get_vocab(self) -> dict[str, int]:
        """Return the tokens that judges may read as they are: none, where some stand after an end."""
        return {} if self._task.ends else self._task.text.get_vocab()


def _judged(task: Language) -> Vocabulary:
    return cast(Vocabulary, _Judged(task))


def resized(trained: Trained, length: int) -> Trained:
    """Return a language model whose samples have another length."""
    if not isinstance(trained.task, Language):
        raise SettingsError(
            f"samples of this model have the shape {trained.model.shape}; length is for language models"
        )
    task = trained.task.sized(length)
    return dataclasses.replace(trained, model=dataclasses.replace(trained.model, shape=task.shape), task=task)
