"""Texts to tokens and back, by the tokenizer that lies in the folder of a model.

The tokenizer is of a class of transformers; code that comes with one is never run.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tauflow.errors import CheckpointError, SettingsError, shorten
from tauflow.recipes.base import INSTALL, Loaded
from tauflow.recipes.language.ids import Ids
from tauflow.untrusted import blame_tokenizer, check_tokenizer, limit_template

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


def mask_of(loaded: Loaded, tokenizer: Any, num_ids: int) -> int:
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


def ids_of(loaded: Loaded, tokenizer: Any, num_ids: int, mask: int) -> Ids:
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


def frame_of(loaded: Loaded, tokenizer: Any) -> tuple[list[int], list[int]]:
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
