"""Framing: the tokens around a prompt, and prompts as conditions.

Shapes: B prompts, C columns. A prompt is a row of token ids with -1 after the last one.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.errors import CheckpointError, SettingsError
from tauflow.untrusted import blame_tokenizer, check_tokenizer


@dataclass(frozen=True)
class Framing:
    """How a prompt is written: first, template with the prompt, last; then what is sampled; then after.

    Args:
        template: text around the prompt, with {prompt} in it.
        first: the token that begins a sequence.
        last: the token before what is sampled.
        after: the token after it.
        null: the token that replaces every one between first and last where a prompt says nothing.
        null_id: its id, checked where the vocabulary is that large; None is not checked.
        length: tokens that a prompt may have, its frame included.
    """

    template: str
    first: str
    last: str
    after: str
    null: str
    null_id: int | None = None
    length: int = 500


class Prompts:
    """Prompts as rows of token ids, and back."""

    def __init__(self, tokenizer: Tokenizer, framing: Framing, num_ids: int):
        self.tokenizer = tokenizer
        self.framing = framing
        self.num_ids = num_ids
        self.first, self.last, self.after, self.null = (
            self._id(token) for token in (framing.first, framing.last, framing.after, framing.null)
        )
        if framing.null_id is not None and num_ids > framing.null_id != self.null:
            raise CheckpointError(
                f"the tokenizer has the id {self.null} for {framing.null}, the model {framing.null_id}; take "
                "the tokenizer.json that belongs to the model"
            )
        self.nothing = self.emptied(self.row(self._ids("")))

    @classmethod
    def read(cls, path: Path, framing: Framing, num_ids: int) -> "Prompts":
        """Read a tokenizer.json."""
        if not path.is_file():
            raise CheckpointError(f"{path.parent} has no {path.name}, which prompts need; get it again")
        with blame_tokenizer(f"{path} can't be read"):
            text = path.read_text(encoding="utf-8")
            check_tokenizer(text)
            tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # "<begin_of_image>" in a prompt is text
        return cls(tokenizer, framing, num_ids)

    @property
    def conditions(self) -> tuple[int, ...]:
        """Return how many values each column has."""
        return (self.num_ids,) * self.framing.length

    def encode(self, text: str) -> Tensor:
        """Return the row (C,) of a prompt; refuse one that is empty or too long."""
        if not text.strip():
            raise SettingsError("the prompt is empty; say what the picture shows, such as a red cube")
        try:
            text.encode()
        except UnicodeError:
            raise SettingsError(f"The prompt must be valid Unicode (UTF-8), got {text!a}.") from None
        with blame_tokenizer("The model's tokenizer can't encode the prompt"):
            ids = self._ids(text.strip())
        if len(ids) > self.framing.length:
            raise SettingsError(
                f"the prompt takes {len(ids)} tokens with its frame, at most {self.framing.length} are "
                "allowed; shorten it"
            )
        if max(ids) >= self.num_ids:
            raise SettingsError(
                f"the tokenizer gives the id {max(ids)}, the model has {self.num_ids}; take the "
                "tokenizer.json that belongs to the model"
            )
        return self.row(ids)

    def decode(self, row: Tensor) -> str:
        """Return the text of a prompt (C,); nothing for one that says nothing."""
        inner = [each for each in row.tolist() if each != DROPPED][1:-1]
        text = self.tokenizer.decode([each for each in inner if each != self.null], skip_special_tokens=False)
        before, after = self.framing.template.split("{prompt}")
        return text.removeprefix(before).removesuffix(after)

    def emptied(self, rows: Tensor) -> Tensor:
        """Return rows (..., C) of the same lengths with the null token between first and last."""
        given = rows != DROPPED
        place = torch.arange(rows.shape[-1], device=rows.device)
        inner = given & (place > 0) & (place < given.sum(-1, keepdim=True) - 1)
        return torch.where(inner, self.null, rows)

    def row(self, ids: list[int]) -> Tensor:
        """Return ids as a row (C,) with -1 after them."""
        return torch.tensor(ids + [DROPPED] * (self.framing.length - len(ids)))

    def _ids(self, prompt: str) -> list[int]:
        text = self.framing.template.format(prompt=prompt)
        return [self.first, *self.tokenizer.encode(text, add_special_tokens=False).ids, self.last]

    def _id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None or found >= self.num_ids:
            raise CheckpointError(
                f"the tokenizer has no token {token} among the {self.num_ids} of the model; take the "
                "tokenizer.json that belongs to the model"
            )
        return found
