"""Merges: tokens that often follow each other as one token, found by byte-pair encoding.

A string is split into the longest names of the vocabulary from left to right: the names alone say how, which
is all that a checkpoint keeps, and there are fewer tokens than by the order of the merges.
"""

import re
from collections.abc import Callable, Iterable, Sequence

FIRST = 0xF0000  # private characters from here on: each stands for a token


def learned(strings: Iterable[Sequence[str]], names: Sequence[str], size: int) -> list[str]:
    """Return `size` names: single tokens and the merges of them that the strings, lists of tokens, have.

    There are fewer if the strings have no more, and two of them may be the same: "aa" as a token, and merged.
    """
    from tokenizers import Tokenizer, models, trainers

    signs = {name: chr(FIRST + number) for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=list(signs.values()), show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(("".join(map(signs.__getitem__, each)) for each in strings), trainer)
    merged = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return ["".join(names[ord(sign) - FIRST] for sign in signed) for signed, _ in merged]


def joiner(
    names: Sequence[str], split: Callable[[str], list[str]]
) -> Callable[[list[str]], list[str]] | None:
    """Return what joins the tokens of a string to the longest names; None if all are single tokens."""
    # a rule may look at what stands around a token, and not find it alone
    parts = [found if "".join(found := split(name)) == name else [name] for name in names]
    if all(len(each) < 2 for each in parts):
        return None
    signs = {
        name: chr(FIRST + number) for number, name in enumerate({part: 0 for each in parts for part in each})
    }
    shown = {sign: name for name, sign in signs.items()}
    signed = sorted(("".join(map(signs.__getitem__, each)) for each in parts), key=len, reverse=True)
    longest = re.compile("|".join(signed))

    def joined(tokens: list[str]) -> list[str]:
        if any(token not in signs for token in tokens):
            return tokens  # the vocabulary lacks one, which is for the caller to say
        found = longest.findall("".join(map(signs.__getitem__, tokens)))
        return ["".join(map(shown.__getitem__, each)) for each in found]

    return joined
