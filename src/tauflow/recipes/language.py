"""Language models: their ids as tauflow's tokens, their tokenizers, and the task of their texts.

Each pretrained model numbers its vocabulary in its own way: the mask can be any id, some ids are never drawn,
frame tokens go around a sequence, and the logits of a token may be at the position before it. In tauflow,
tokens are 0 to V - 1, and the mask, if there is one, is V. `IdNetwork` is the one adapter between the two.

The tokenizer is read by a Transformers class. Code that comes with one never runs.

Shapes: B sequences, D coordinates, V data tokens, N ids, F tokens of the frame, L = D + F positions, W width,
C columns of a condition, P tokens of the longest prompt.
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

from tauflow.denoise import DROPPED
from tauflow.errors import CheckpointError, SettingsError, shorten
from tauflow.networks import Network
from tauflow.recipes.recipe import INSTALL, Loaded
from tauflow.samplers import Prompt
from tauflow.samplers.run import positive_int
from tauflow.samplers.run import unprompted as unprompted
from tauflow.tasks.metrics import SampleMean
from tauflow.tasks.sequences.metrics import Unique
from tauflow.tasks.task import CONTROL_PICTURES, TextTask
from tauflow.tasks.text.metrics import Distinct, Entropy, TextJudges
from tauflow.tasks.text.vocabulary import Vocabulary
from tauflow.train import Trained
from tauflow.untrusted import blame_tokenizer, check_tokenizer, limit_template

LENGTH = 128  # default number of tokens of a sample
MASK = "_"  # how a mask is shown
OTHER_TOKENIZER = "Use the tokenizer that belongs to the model."


# Ids and tokens


class Ids:
    """Which ids are data tokens: token s is the s-th smallest of them, the mask V is the id `mask`."""

    def __init__(self, kept: Iterable[int], num_ids: int, mask: int | None = None):
        self.num_ids = num_ids
        self.mask = mask
        self.kept = torch.tensor(sorted(set(kept)), dtype=torch.long)  # (V,)
        self._tokens = torch.full((num_ids,), -1).scatter(0, self.kept, torch.arange(len(self.kept)))

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

    def to_tokens(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of ids, and -1 for an id that isn't a data token."""
        return [int(self._tokens[each]) if 0 <= each < self.num_ids else -1 for each in ids]


class IdNetwork(Network):
    """A network over ids as a network over tokens.

    Coordinates that the network must not read (`attention`) are taken out before it sees a sequence. So each
    sequence of a ragged batch is framed and numbered as if it were alone.

    Args:
        host: a module with hidden(ids (B, L), t (B,), attention (B, L) or None) -> (B, L, W), where attention
            is true up to the end of each sequence, and head(rows (..., W)) -> logits (..., N) of all ids,
            which are overwritten.
        ids: which ids are data tokens.
        before: ids before a sequence.
        after: ids after it.
        shift: 1 if the row of a token is at the position before it. If nothing is before the first token, it
            shares the first row with the second.
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
        self._first, self._moves = _plan_moves(ids.runs)
        self.register_buffer("table", ids.table, persistent=False)

    def hidden(  # type: ignore[override]  # no conditions
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
        """Return rows (B, D, W) of ids (B, D) that are read in part; the rows of the others mean nothing."""
        numbers = attention.cumsum(1) - 1  # index of a coordinate in its sequence
        counts = attention.sum(1, keepdim=True)
        begin, frame = len(self.before), len(self.before) + len(self.after)
        width = int(counts.max()) + frame
        framed = self.table[:1].expand(len(ids), width + 1).clone()  # the last column takes what isn't read
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


def _plan_moves(runs: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int, int]]]:
    """Return how to make ranges (begin, end) of columns one range without copying everything.

    The largest range stays, and the others move next to it. Return the first column of the result, and the
    moves (place, begin, end) in order, none of which overwrites what a later one moves.
    """
    sizes = [end - begin for begin, end in runs]
    largest = sizes.index(max(sizes))
    first = runs[largest][0] - sum(sizes[:largest])
    places = [first + sum(sizes[:number]) for number in range(len(runs))]
    moves = [(place, *run) for place, run in zip(places, runs, strict=True)]
    return first, [*reversed(moves[:largest]), *moves[largest + 1 :]]


def align_prompts(condition: Tensor | None, nothing: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return prompts (B, P) that end in the last column, and true where they aren't padding.

    A condition (B, C) has the ids of prompts, with -1 after the last one. A row of -1 alone, or no condition,
    is the prompt `nothing` (C,).
    """
    nothing = nothing.to(x.device).expand(len(x), -1)
    if condition is None:
        condition = nothing
    given = condition != DROPPED
    condition = torch.where(given[:, :1], condition, nothing)
    lengths = (condition != DROPPED).sum(1, keepdim=True)
    columns = torch.arange(-int(lengths.max()), 0, device=x.device) + lengths
    return condition.gather(1, columns.clamp(min=0)), columns >= 0


# Texts and tokens


class TextTokens:
    """A model's tokenizer over tauflow's tokens.

    Args:
        tokenizer: a Transformers tokenizer.
        ids: which ids are data tokens.
        names: names of the tokens, if texts are these names one after another, as proteins are. None: the
            tokenizer decodes texts.
        begin: tokens that the tokenizer puts before a prompt.
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
            tokens = ids.to_tokens([tokenizer.convert_tokens_to_ids(name) for name in names])
            self._names = dict(zip(names, tokens, strict=True))
            self._shown = {token: name for name, token in self._names.items()}

    @property
    def size(self) -> int:
        return len(self.ids)

    @property
    def has_space(self) -> bool:
        """Return whether a space is a token; else it is a part of the word after it."""
        return self._names is None and " " in self.tokenizer.get_vocab()

    def get_vocab(self) -> dict[str, int]:
        names = self.tokenizer.convert_ids_to_tokens(self.ids.kept.tolist())
        return {name: token for token, name in enumerate(names)}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; raise an error if the model can't draw one of them."""
        if self._names is not None:
            text = text.strip()
            for name in text:
                if name not in self._names:
                    raise SettingsError(
                        f"The model has no token {name!r}, only {' '.join(self._names)}. Remove it from the "
                        "text."
                    )
            return [self._names[name] for name in text]
        with blame_tokenizer("The model's tokenizer can't encode the text"):
            ids = self.tokenizer.encode(text, add_special_tokens=False)
        tokens = self.ids.to_tokens(ids)
        if -1 in tokens:
            name = self.tokenizer.convert_ids_to_tokens(ids[tokens.index(-1)])
            raise SettingsError(f"The text has the token {name!r}, which the model can't draw. Remove it.")
        return tokens

    def add_begin(self, tokens: list[int]) -> list[int]:
        """Return a prompt with the tokens that go before it; a chat template has them already."""
        has_begin = tokens[: len(self.begin)] == self.begin
        return tokens if has_begin else self.begin + tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with `_` for each that isn't a data token, such as a mask."""
        if self._names is not None:
            return "".join(self._shown.get(token, MASK) for token in tokens)
        known = [token if 0 <= token < self.size else self.size for token in tokens]
        if self.ids.mask is None:
            known = [token for token in known if token < self.size]
        with blame_tokenizer("The model's tokenizer can't decode the samples"):
            ids = self.ids.table[torch.tensor(known, dtype=torch.long)].tolist()
            text = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text.replace(self._mask, MASK) if self._mask else text


def read_tokenizer(folder: Path, kind: str) -> Any:
    """Read the tokenizer of a folder into a Transformers class."""
    try:
        import transformers
    except ImportError:
        raise SettingsError(f"A tokenizer needs more packages: {INSTALL}") from None
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
    """Return the id of the mask from config.json, the recipe, or the tokenizer."""
    own = tokenizer.mask_token_id
    said = loaded.config.get("mask", loaded.recipe.mask)
    found = own if said is None else said
    if found is None:
        raise CheckpointError(
            f"{loaded.folder} must be a masked language model: its tokenizer has no mask token, and "
            "config.json has no mask_token_id."
        )
    if type(found) is not int or not 0 <= found < num_ids or own not in (None, found):
        raise CheckpointError(
            f"The mask of {loaded.folder} must be one of its {num_ids} ids and the mask of its tokenizer "
            f"({own}), got {shorten(repr(found))}. Fix mask_token_id in config.json. {OTHER_TOKENIZER}"
        )
    return found


def choose_ids(loaded: Loaded, tokenizer: Any, num_ids: int, mask: int) -> Ids:
    allowed = loaded.recipe.allowed
    vocabulary = tokenizer.get_vocab()
    if isinstance(allowed, tuple):
        return Ids(_look_up(allowed, vocabulary, loaded), num_ids, mask)
    dropped = {mask} | (set(tokenizer.all_special_ids) if allowed == "plain" else set())
    kept = (each for each in vocabulary.values() if each < num_ids and each not in dropped)
    return Ids(kept, num_ids, mask)


def find_frame(loaded: Loaded, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids before and after a sequence."""
    framing = loaded.recipe.framing
    if framing != "tokenizer":
        before, after = framing
        vocabulary = tokenizer.get_vocab()
        return _look_up(before, vocabulary, loaded), _look_up(after, vocabulary, loaded)
    allowed = loaded.recipe.allowed
    word = allowed[0] if isinstance(allowed, tuple) else "a"
    inner = tokenizer.encode(word, add_special_tokens=False)
    framed = tokenizer.encode(word, add_special_tokens=True)
    for begin in range(len(framed) - len(inner) + 1):
        if framed[begin : begin + len(inner)] == inner:
            return framed[:begin], framed[begin + len(inner) :]
    raise CheckpointError(f"The tokenizer in {loaded.folder} changes a text when it frames it.")


def _look_up(names: Sequence[str], vocabulary: dict[str, int], loaded: Loaded) -> list[int]:
    for name in names:
        if name not in vocabulary:
            raise CheckpointError(
                f"The tokenizer in {loaded.folder} has no token {name!r}, which {loaded.recipe.name} models "
                f"need. {OTHER_TOKENIZER}"
            )
    return [vocabulary[name] for name in names]


# The task


class MeanTextLength(SampleMean):
    """Tokens of a sample before its end, mean over samples."""

    higher_is_better = None
    logarithmic = False

    def __init__(self, task: "Language", **kwargs: Any):
        super().__init__(**kwargs)
        self.task = task

    def of(self, tokens: Tensor) -> Tensor:
        return self.task.lengths(tokens)


class UpToEnd(SampleMean):
    """A measure of diversity of the tokens of a sample up to its end, mean over samples.

    `diversity` measures samples (B, D). Samples with fewer than `min_tokens` tokens don't count.
    """

    higher_is_better = None
    logarithmic = False

    def __init__(
        self, task: "Language", diversity: Callable[[Tensor], Tensor], min_tokens: int, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.task = task
        self.diversity = diversity
        self.min_tokens = min_tokens

    def of(self, tokens: Tensor) -> Tensor:
        rows = zip(tokens, self.task.lengths(tokens).tolist(), strict=True)
        found = [self.diversity(row[None, :end]) for row, end in rows if end >= self.min_tokens]
        return torch.cat(found) if found else torch.zeros(0)


class Language(TextTask):
    """Texts, or proteins, of a pretrained language model, which comes without its data.

    `begin` is where the known part of its samples ends (`knowing`): an end token before it doesn't count.

    Args:
        text: texts to tokens and back.
        length: tokens of a sample, D.
        ends: tokens that end a text.
        context: maximum number of tokens of a sample.
        block: tokens sampled together, if the model was trained so.
    """

    primary_metric = "entropy_bits"
    alone = "real data: none, because a pretrained model comes without its data"

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
        self._judging: TextJudges | None = None

    @property
    def tokenizer(self) -> Any:
        return self.text.tokenizer

    def sized(self, length: int) -> Self:
        """Return the task of samples of another length."""
        positive_int(length, "length")
        if self.context is not None and length > self.context:
            raise SettingsError(
                f"length must be at most {self.context}, which is what the model can read, got {length}."
            )
        result = copy.copy(self)
        result.shape = (length,)
        result.begin = 0
        return result

    def knowing(self, prompt: Prompt) -> Self:
        """Return the task of samples that start with a prompt, or have one in them."""
        rows = torch.atleast_2d(prompt.known).cpu()
        begins = (rows * torch.arange(1, rows.shape[1] + 1)).amax(1)
        if self.ends and begins.min() != begins.max():
            raise SettingsError(
                "Prompts that are measured together must end at the same place. Evaluate prompts of "
                "different lengths separately."
            )
        result = copy.copy(self)
        result.begin = int(begins.max())
        return result

    def new_tokens(self, taken: int) -> int:
        """Return how many tokens follow a prompt of `taken` tokens by default."""
        return self.block or max(1, min(LENGTH, (self.context or taken + LENGTH) - taken))

    def setup(self, stage: str | None = None) -> NoReturn:
        raise SettingsError("A pretrained language model comes without data to train or validate on.")

    # Texts

    def lengths(self, tokens: Tensor, begin: int = 0) -> Tensor:
        """Return how many tokens (B,) samples have before their end.

        The end is the first end token after the known part, at or after the place `begin`.
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
        """Return numbered texts, each up to its end; `_` is a mask, control characters are symbols."""
        texts = (text.translate(CONTROL_PICTURES) for text in self.texts(tokens))
        return [f"[{number}] {text}" for number, text in enumerate(texts, start=1)]

    def encode(self, text: str) -> list[int]:
        return self.text.encode(text)

    def chat(self, messages: str | list[dict[str, str]]) -> str:
        """Return the text that asks for an answer to a conversation, or to one message of a user."""
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        for message in said:
            if not {"role", "content"} <= message.keys():
                raise SettingsError(
                    'A message must have a role and a content, such as {"role": "user", "content": "Hi"}, '
                    f"got {shorten(repr(message))}."
                )
        if not self.tokenizer.chat_template:
            raise SettingsError(
                "The tokenizer has no chat template, so the model wasn't trained to answer. Pass a text to "
                "continue."
            )
        with blame_tokenizer("The chat template can't write the messages", SettingsError), limit_template():
            return self.tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)

    # Metrics

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {"entropy_bits": UpToEnd(self, Entropy().of, 0)}
        sizes = [n for n in (1, 2, 3) if n <= self.shape[0]]
        metrics |= {f"distinct_{n}": UpToEnd(self, Distinct(n).of, n) for n in sizes}
        metrics["unique"] = Unique(self.texts)
        if self.ends:
            metrics["mean_length"] = MeanTextLength(self)
        judged = {} if self._judging is None else self._judging.reading(_as_vocabulary(self)).metrics()
        return MetricCollection({**judged, **metrics}, compute_groups=False)

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        """Measure the perplexity under Transformers causal LMs."""
        asked = list(dict.fromkeys(name.strip() for name in names.split(",")))
        judging = TextJudges(asked, _as_vocabulary(self), self._no_ngrams, device)
        self.primary_metric = f"ppl_corpus_{next(iter(judging.labels()))}"
        self._judging = judging

    def _no_ngrams(self) -> NoReturn:
        raise SettingsError(
            "The judge ngram needs training text, and a pretrained model comes without. Use another."
        )


class TextsUpToEnd:
    """What judges read instead of a `Vocabulary`: the texts of samples up to their end."""

    def __init__(self, task: Language):
        self.size = task.num_tokens
        self.tokenizer = self
        self._task = task

    def texts(self, rows: list[list[int]]) -> list[str]:
        return self._task.texts(torch.tensor(rows)) if rows else []

    def get_vocab(self) -> dict[str, int]:
        """Return the tokens that judges may read as they are: none, if some follow an end."""
        return {} if self._task.ends else self._task.text.get_vocab()


def _as_vocabulary(task: Language) -> Vocabulary:
    return cast(Vocabulary, TextsUpToEnd(task))


def resized(trained: Trained, length: int) -> Trained:
    """Return a language model whose samples have another length."""
    if not isinstance(trained.task, Language):
        raise SettingsError(
            f"length works for language models only; samples of this model have the shape "
            f"{trained.model.shape}."
        )
    task = trained.task.sized(length)
    return dataclasses.replace(trained, model=dataclasses.replace(trained.model, shape=task.shape), task=task)
