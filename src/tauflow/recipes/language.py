"""Ids of a model as tokens of tauflow: the one adapter between them.

A model of others numbers its vocabulary in its own way: the mask stands anywhere, some ids are never drawn,
frame tokens stand around a sequence, and the logits of a token may stand at the position before it. tauflow's
tokens are 0 to V - 1, and the mask, where there is one, is V.

Shapes: B sequences, D coordinates, V data tokens, N ids, F tokens of the frame, L = D + F positions, W width.
"""

import copy
import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, cast

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.errors import CheckpointError, SettingsError, shorten
from tauflow.networks import Network
from tauflow.recipes.recipe import INSTALL, Loaded
from tauflow.samplers import Prompt
from tauflow.samplers.run import unprompted as unprompted
from tauflow.tasks.metrics import SampleMean
from tauflow.tasks.sequences.metrics import Unique
from tauflow.tasks.task import CONTROL_PICTURES, TextTask
from tauflow.tasks.text.metrics import Distinct, Entropy, Judging
from tauflow.tasks.text.vocabulary import Vocabulary
from tauflow.train import Trained
from tauflow.untrusted import blame_tokenizer, check_tokenizer, limit_template


class Ids:
    """Which ids are data tokens: token s is the s-th smallest of them, the mask V is the id `mask`."""

    def __init__(self, kept: Iterable[int], num_ids: int, mask: int | None = None):
        self.num_ids = num_ids
        self.mask = mask
        self.kept = torch.tensor(sorted(set(kept)), dtype=torch.long)  # (V,)
        if not len(self.kept) or self.kept[0] < 0 or self.kept[-1] >= num_ids or mask in self.kept.tolist():
            raise CheckpointError(
                f"the data tokens of a model are some of its {num_ids} ids, and not its mask {mask}; got "
                f"{len(self.kept)} from {self.kept[:1].tolist()} to {self.kept[-1:].tolist()}"
            )
        self._tokens = torch.full((num_ids,), -1).scatter(0, self.kept, torch.arange(len(self.kept)))

    @classmethod
    def all_but(cls, mask: int | None, num_ids: int) -> "Ids":
        """Return all ids but the mask."""
        return cls((each for each in range(num_ids) if each != mask), num_ids, mask)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def table(self) -> Tensor:
        """Return the id of each state: (V + 1,) with the mask last, or (V,) without one."""
        return self.kept if self.mask is None else torch.cat([self.kept, torch.tensor([self.mask])])

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Return the data tokens as ranges (begin, end) of ids."""
        breaks = (self.kept.diff() != 1).nonzero().flatten() + 1
        parts = self.kept.tensor_split(breaks.tolist())
        return [(int(part[0]), int(part[-1]) + 1) for part in parts]

    def tokens(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of ids; -1 for an id that is no data token."""
        return [int(self._tokens[each]) if 0 <= each < self.num_ids else -1 for each in ids]

    def of(self, tokens: Sequence[int]) -> list[int]:
        """Return the ids of tokens (and of the mask V)."""
        return self.table[torch.tensor(tokens, dtype=torch.long)].tolist() if len(tokens) else []


class IdNetwork(Network):
    """A network over ids as a network over tokens.

    Coordinates that are not read (`attention`) are taken out before the network sees a sequence, so that each
    sequence of a ragged batch is framed and numbered as if it were alone.

    Args:
        host: a module with hidden(ids (B, L), t (B,), attention (B, L) or None) -> (B, L, W), where attention
            is true up to the end of each sequence, and head(rows (..., W)) -> logits (..., N) of all ids,
            which are written over.
        ids: which of them are data tokens.
        before: ids before a sequence.
        after: ids after it.
        shift: 1 where the row of a token stands at the position before it; the first row has to do for the
            first token too where nothing stands before it.
    """

    attends = True
    table: Tensor

    def __init__(
        self, host: Any, ids: Ids, before: Sequence[int] = (), after: Sequence[int] = (), shift: int = 0
    ):
        super().__init__()
        self.host = host
        self.ids = ids
        self.before = list(before)
        self.after = list(after)
        self.shift = shift
        self._first, self._moves = gathered(ids.runs)
        self.register_buffer("table", ids.table, persistent=False)

    def hidden(  # type: ignore[override]  # it has no conditions
        self, x: Tensor, t: Tensor, attention: Tensor | None = None
    ) -> Tensor:
        ids = self.table[x]
        if attention is not None and not bool(attention.all()):
            return self._ragged(ids, t, attention)
        before, after = (ids.new_tensor(part).expand(len(x), -1) for part in (self.before, self.after))
        rows = self.host.hidden(torch.cat([before, ids, after], 1), t, None)
        first = len(self.before) - self.shift
        if first < 0:
            return torch.cat([rows[:, :1], rows[:, : x.shape[1] - 1]], 1)
        return rows[:, first : first + x.shape[1]]

    def _ragged(self, ids: Tensor, t: Tensor, attention: Tensor) -> Tensor:
        """Return rows (B, D, W) of ids (B, D) that are in part not read; the rows of those mean nothing."""
        numbers = attention.cumsum(1) - 1  # of a coordinate in its sequence
        counts = attention.sum(1, keepdim=True)
        begin, frame = len(self.before), len(self.before) + len(self.after)
        width = int(counts.max()) + frame
        framed = self.table[:1].expand(len(ids), width + 1).clone()  # the last column takes what is not read
        framed[:, :begin] = ids.new_tensor(self.before)
        framed.scatter_(1, torch.where(attention, begin + numbers, width), ids)
        ends = begin + counts + torch.arange(len(self.after), device=ids.device)
        framed.scatter_(1, ends, ids.new_tensor(self.after).expand(len(ids), -1))
        real = torch.arange(width, device=ids.device) < (counts + frame).clamp(min=1)
        rows = self.host.hidden(framed[:, :width], t, real)
        places = (begin + numbers - self.shift).clamp(min=0)
        return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[2]))

    def head(self, rows: Tensor) -> Tensor:
        logits = self.host.head(rows)
        for place, begin, end in self._moves:
            logits[..., place : place + end - begin] = logits[..., begin:end].clone()
        return logits[..., self._first : self._first + len(self.ids)]


def gathered(runs: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int, int]]]:
    """Return how ranges (begin, end) of columns become one without a copy of all.

    The largest stays where it is, and the others are moved next to it: the first column of the result, and
    (place, begin, end) of the moves in order, none of which overwrites what a later one moves.
    """
    sizes = [end - begin for begin, end in runs]
    largest = sizes.index(max(sizes))
    first = runs[largest][0] - sum(sizes[:largest])
    places = [first + sum(sizes[:number]) for number in range(len(runs))]
    moves = [(place, *run) for place, run in zip(places, runs, strict=True)]
    return first, [*reversed(moves[:largest]), *moves[largest + 1 :]]


# Texts to tokens and back, by the tokenizer that lies in the folder of a model.
#
# The tokenizer is of a class of transformers; code that comes with one is never run.


MASK = "_"  # what a mask is shown as


class TextTokens:
    """The tokenizer of a model over tokens of tauflow.

    Args:
        tokenizer: of transformers.
        ids: which ids are data tokens.
        names: of the tokens, where they are all there is: texts are then their names one after the other, as
            those of proteins are. None: a text is what the tokenizer says.
        begin: tokens that a prompt begins with, as the tokenizer puts them there.
    """

    def __init__(
        self,
        tokenizer: Any,
        ids: Ids,
        names: Sequence[str] | None = None,
        begin: Sequence[int] = (),
    ):
        self.tokenizer = tokenizer
        self.ids = ids
        self.begin = list(begin)
        self._mask = None if ids.mask is None else tokenizer.convert_ids_to_tokens(ids.mask)
        self._names = None
        if names is not None:
            numbers = ids.tokens([tokenizer.convert_tokens_to_ids(name) for name in names])
            self._names = dict(zip(names, numbers, strict=True))
            self._shown = {number: name for name, number in self._names.items()}

    @property
    def size(self) -> int:
        """Return V."""
        return len(self.ids)

    @property
    def has_space(self) -> bool:
        """Return whether a space is a token; else it is a part of the word after it."""
        return self._names is None and " " in self.tokenizer.get_vocab()

    def get_vocab(self) -> dict[str, int]:
        """Return the tokens by their names."""
        names = self.tokenizer.convert_ids_to_tokens(self.ids.kept.tolist())
        return {name: token for token, name in enumerate(names)}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; refuse one that samples cannot have."""
        if self._names is not None:
            return [self._named(character) for character in text.strip()]
        try:
            text.encode()
        except UnicodeError:
            raise SettingsError(f"The text must be valid Unicode, got {shorten(text)!a}.") from None
        with blame_tokenizer("The model's tokenizer can't encode the text"):
            ids = self.tokenizer.encode(text, add_special_tokens=False)
        tokens = self.ids.tokens(ids)
        if -1 in tokens:
            name = self.tokenizer.convert_ids_to_tokens(ids[tokens.index(-1)])
            raise SettingsError(
                f"the text has the token {name!r}, which is none of those that the model draws; write it "
                "without"
            )
        return tokens

    def begun(self, tokens: list[int]) -> list[int]:
        """Return the tokens of a prompt with those that it begins with; a chat template writes them."""
        there = tokens[: len(self.begin)] == self.begin
        return tokens if there else self.begin + tokens

    def _named(self, name: str) -> int:
        assert self._names is not None
        if name not in self._names:
            raise SettingsError(
                f"the model has no token {name!r} (it has {' '.join(self._names)}); drop it from the text"
            )
        return self._names[name]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with `_` for each that is no data token, such as a mask."""
        if self._names is not None:
            return "".join(self._shown.get(token, MASK) for token in tokens)
        known = [token if 0 <= token < self.size else self.size for token in tokens]
        if self.ids.mask is None:
            known = [token for token in known if token < self.size]
        with blame_tokenizer("The model's tokenizer can't decode the samples"):
            text = self.tokenizer.decode(self.ids.of(known), skip_special_tokens=False)
        return text.replace(self._mask, MASK) if self._mask else text

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of samples."""
        return [self.decode(row) for row in rows]

    def chat(self, messages: str | Sequence[dict[str, str]]) -> str:
        """Return the text that asks for an answer to a conversation, or to one message of a user."""
        if not self.tokenizer.chat_template:
            raise SettingsError(
                "the tokenizer has no chat template, so the model was not trained to answer; give the text "
                "that is to be continued"
            )
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        with blame_tokenizer("The chat template can't write the messages", SettingsError), limit_template():
            return self.tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)


def read_tokenizer(folder: Path, kind: str) -> Any:
    """Read the tokenizer of a folder into a class of transformers."""
    try:
        import transformers
    except ImportError:
        raise SettingsError(f"a tokenizer needs more packages: {INSTALL}") from None
    with blame_tokenizer(f"{kind} can't read the tokenizer in {folder}"):
        path = folder / "tokenizer.json"
        if path.exists():
            check_tokenizer(path.read_text(encoding="utf-8"))
        settings = folder / "tokenizer_config.json"
        if settings.is_file() and "fast_tokenizer_files" in json.loads(settings.read_text(encoding="utf-8")):
            raise ValueError("tokenizer_config.json chooses other files (fast_tokenizer_files)")
        return getattr(transformers, kind).from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )


def find_mask(loaded: Loaded, tokenizer: Any, num_ids: int) -> int:
    """Return the id of the mask: as config.json, the recipe or the tokenizer says it."""
    own = tokenizer.mask_token_id
    said = loaded.config.get("mask", loaded.recipe.mask)
    found = own if said is None else said
    if found is None:
        raise CheckpointError(
            f"the tokenizer in {loaded.folder} has no mask token, and config.json has no mask_token_id; name "
            "the folder of a masked language model"
        )
    if type(found) is not int or not 0 <= found < num_ids:
        raise CheckpointError(
            f"the mask of {loaded.folder} is {shorten(repr(found))}, which is none of the {num_ids} ids of "
            "the model; correct mask_token_id in config.json, or take the tokenizer that belongs to the model"
        )
    if own is not None and own != found:
        raise CheckpointError(
            f"the tokenizer in {loaded.folder} has the mask {own}, the model {found}; take the one that "
            "belongs to the model"
        )
    return found


def choose_ids(loaded: Loaded, tokenizer: Any, num_ids: int, mask: int) -> Ids:
    """Return which ids are data tokens, as the recipe says."""
    allowed, vocabulary = loaded.recipe.allowed, tokenizer.get_vocab()
    if isinstance(allowed, tuple):
        lacking = [name for name in allowed if name not in vocabulary]
        if lacking:
            raise CheckpointError(
                f"the tokenizer in {loaded.folder} has no token {lacking[0]!r}, which {loaded.recipe.name} "
                "models draw; take the tokenizer that belongs to the model"
            )
        return Ids((vocabulary[name] for name in allowed), num_ids, mask)
    dropped = {mask} | (set(tokenizer.all_special_ids) if allowed == "plain" else set())
    return Ids(
        (each for each in vocabulary.values() if each < num_ids and each not in dropped), num_ids, mask
    )


def find_frame(loaded: Loaded, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids before and after a sequence, as the recipe says."""
    framing, allowed = loaded.recipe.framing, loaded.recipe.allowed
    if framing != "tokenizer":
        vocabulary = tokenizer.get_vocab()
        lacking = [name for part in framing for name in part if name not in vocabulary]
        if lacking:
            raise CheckpointError(
                f"the tokenizer in {loaded.folder} has no token {lacking[0]!r}, which frames a text"
            )
        before, after = ([vocabulary[name] for name in part] for part in framing)
        return before, after
    word = allowed[0] if isinstance(allowed, tuple) else "a"
    inner = tokenizer.encode(word, add_special_tokens=False)
    framed = tokenizer.encode(word, add_special_tokens=True)
    for begin in range(len(framed) - len(inner) + 1):
        if framed[begin : begin + len(inner)] == inner:
            return framed[:begin], framed[begin + len(inner) :]
    raise CheckpointError(f"the tokenizer in {loaded.folder} changes a text when it frames it")


# Language: the texts, or proteins, of a pretrained language model, which comes without its data.
#
# Shapes: B samples, D tokens of a sample, V data tokens.


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


class Language(TextTask):
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
        self.has_space = text.has_space
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
        texts = (text.translate(CONTROL_PICTURES) for text in self.texts(tokens))
        return [f"[{number}] {text}" for number, text in enumerate(texts, start=1)]

    def encode(self, text: str) -> list[int]:
        return self.text.encode(text)

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
