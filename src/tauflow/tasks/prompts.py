"""Prompts: what the user wrote, as tokens that are known and places that are not."""

import re
from collections.abc import Callable

import torch

from tauflow.errors import SettingsError
from tauflow.samplers import Prompt

Encode = Callable[[str], list[int]]  # text to tokens; refuses what the vocabulary lacks
BLANK = re.compile(r"(_{2,})")
SHORT_BLANK = re.compile(r"(_+)")  # where an underscore is no token


class Written(Prompt):
    """A prompt of a text, which says how many places the text takes, a blank at its end included."""

    places: int


def places(prompt: Prompt) -> int:
    """Return how many places a prompt takes: those of its text, or else those up to the last known one."""
    if isinstance(prompt, Written):
        return prompt.places
    return 1 + max(prompt.known.nonzero().flatten().tolist(), default=-1)


def beginning(text: str, encode: Encode, length: int) -> Prompt:
    """Return the text that every sample of `length` tokens begins with."""
    return _known([encode(text)], length)


def with_blanks(text: str, encode: Encode, length: int, has_space: bool = True) -> Prompt:
    """Read text with blanks: n underscores stand for n tokens to be found.

    A blank has two underscores or more; one will do where `_` is no token. All that follows the text is to be
    found too. A space before a blank belongs to the blank where a space is no token but a part of the word
    after it, as in byte-level BPE.
    """
    parts: list[list[int] | int] = []
    blank = BLANK if _can_encode("_", encode) else SHORT_BLANK
    *before, last = blank.split(text)
    for word in before:
        if blank.fullmatch(word):
            parts.append(len(word))
        else:
            parts.append(encode(word if has_space else word.rstrip(" ")))
    parts.append(encode(last))
    if not any(isinstance(part, int) for part in parts):
        raise SettingsError(
            "--infill needs a blank: two or more underscores, as many as tokens may stand there"
        )
    return _known(parts, length)


def _can_encode(text: str, encode: Encode) -> bool:
    try:
        encode(text)
    except SettingsError:
        return False
    return True


def _known(parts: list[list[int] | int], length: int) -> Prompt:
    """Return a prompt of tokens, and numbers of places to be found."""
    taken = sum(part if isinstance(part, int) else len(part) for part in parts)
    if taken > length:
        raise SettingsError(f"the text takes {taken} tokens, the model has {length}; shorten it")
    tokens: list[int] = []
    known: list[bool] = []
    for part in [*parts, length - taken]:
        ids = [0] * part if isinstance(part, int) else part
        tokens += ids
        known += [not isinstance(part, int)] * len(ids)
    prompt = Written(torch.tensor(tokens), torch.tensor(known))
    prompt.places = taken
    return prompt
