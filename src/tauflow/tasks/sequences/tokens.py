"""Tokens: strings as numbers and back, by a regular expression whose matches are the tokens, or by names.

With merges, tokens that often follow each other are one token, found by byte-pair encoding. A string is then
split into the longest names of the vocabulary from left to right: the names alone say how, which is all that
a checkpoint keeps, and there are fewer tokens than by the order of the merges.
"""

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tauflow.errors import SettingsError, first_line

PAD = "<pad>"  # after the end of a string; token number 0, data like any other
FOREIGN = "\N{REPLACEMENT CHARACTER}"  # shown for what is no data token, such as a mask
MAX_SHOWN = 40  # tokens of a vocabulary that a message lists
PATTERNS = {
    "characters": r"(?s:.)",
    "smiles": r"\[[^\]]*\]|Br|Cl|[BCNOPSFI]|[bcnops]|%\d\d|\d|[-=#$:/\\.()*~<>]",
    "amino_acids": r"[A-Z]",
}
"""Regular expressions by name."""
FIRST = 0xF0000  # private characters from here on: each stands for a token


def find_pattern(rule: str) -> str:
    """Return the regular expression of a rule: that of its name, or itself."""
    pattern = PATTERNS.get(rule, rule)
    check_regex(pattern, f"--data.tokens must be {', '.join(PATTERNS)}, or a regular expression")
    return pattern


def check_regex(pattern: str, rule: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(f"{rule}, got {pattern!r} ({first_line(error)}).") from None


def find_fault(names: Sequence[str]) -> str:
    """Return why names are no vocabulary, and what to do about it; "" if they are one."""
    if names[:1] not in ([PAD], (PAD,)):
        return f"a vocabulary begins with {PAD}, the padding; put it first in --data.token_names"
    if PAD in names[1:]:
        return f"the strings have a token {PAD!r}, which is the name of the padding; change --data.tokens"
    if not all(names):
        return "--data.tokens matches nothing at all in some string, which is no token; change it"
    if len(set(names)) < len(names):
        return "two tokens of the vocabulary have one name; remove one from --data.token_names"
    return ""


def make_splitter(pattern: str) -> Callable[[str], list[str]]:
    compiled = re.compile(pattern)
    if not compiled.groups:
        return compiled.findall
    return lambda text: [match.group() for match in compiled.finditer(text)]


def make_name_splitter(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a function that splits a string into the longest names, as far as names cover it.

    It goes from left to right. A name counts only if names also cover what follows: with C, CC, and Cl, "CCl"
    is C and Cl.
    """
    known = set(names)
    sizes = sorted({len(name) for name in names}, reverse=True)

    def split(text: str) -> list[str]:
        def longest(start: int, ends: Container[int]) -> int:
            fits = (size for size in sizes if text[start : start + size] in known and start + size in ends)
            return next(fits, 0)

        covered = {len(text)}
        for start in reversed(range(len(text))):
            if longest(start, covered):
                covered.add(start)
        ends = covered if 0 in covered else range(len(text) + 1)
        tokens, start = [], 0
        while size := longest(start, ends):
            tokens.append(text[start : start + size])
            start += size
        return tokens

    return split


def describe_uncovered(text: str, tokens: Sequence[str]) -> str:
    """Return where a string has a character that its tokens don't cover, as a part of a sentence."""
    end = 0
    for token in tokens:
        if not text.startswith(token, end):
            break
        end += len(token)
    shown = text if len(text) <= 80 else f"{text[max(0, end - 40) : end + 40]} (a part)"
    return f"no token covers {text[end]!r}, character {end + 1} of {shown!r}"


@dataclass(frozen=True)
class Tokens:
    """A vocabulary, and the rule by which strings are split.

    Args:
        names: of the tokens, the padding first; a name may join several matches (merges).
        pattern: regular expression whose matches are the tokens of a string, before they are joined to the
            longest names. None, as for a model from a file: a string is split by the names alone.
    """

    names: tuple[str, ...]
    pattern: str | None

    def __post_init__(self) -> None:
        if fault := find_fault(self.names):
            raise SettingsError(fault)

    @cached_property
    def find(self) -> Callable[[str], list[str]]:
        if self.pattern is None:
            return make_name_splitter(self.names[1:])
        split = make_splitter(self.pattern)
        join = make_joiner(self.names[1:], split)
        return split if join is None else lambda text: join(split(text))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names) if number}

    @cached_property
    def _names(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    def split(self, text: str) -> list[str]:
        found = self.find(text)
        if "".join(found) != text:
            where = describe_uncovered(text, found)
            raise SettingsError(f"{where}; change it (the vocabulary {self._listed})")
        return found

    def encode(self, text: str) -> list[int]:
        """Return the numbers of the tokens of a string, which the vocabulary must have."""
        names = self.split(text)
        lacking = next((name for name in names if name not in self._numbers), None)
        if lacking is not None:
            raise SettingsError(f"{self.lacks(lacking)}; remove it from {text[:80]!r}")
        return [self._numbers[name] for name in names]

    def lacks(self, name: str) -> str:
        """Say that a token is not in the vocabulary, and what is."""
        return f"the vocabulary has no token {name!r} (it {self._listed})"

    @property
    def _listed(self) -> str:
        more = " ..." if len(self.names) > MAX_SHOWN + 1 else ""
        return f"has {' '.join(self.names[1 : MAX_SHOWN + 1])}{more}"

    def text(self, row: Sequence[int]) -> str:
        """Return the string of a sample (D,): its tokens before the first padding."""
        return self.joined(row[: row.index(0)] if 0 in row else row)

    def joined(self, row: Sequence[int], pad: str = "") -> str:
        """Return the tokens of a row one after the other, with `pad` for padding."""
        return "".join(self._names.get(number, FOREIGN) if number else pad for number in row)


# Merges


def learn_merges(strings: Iterable[Sequence[str]], names: Sequence[str], size: int) -> list[str]:
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


def make_joiner(
    names: Sequence[str], split: Callable[[str], list[str]]
) -> Callable[[list[str]], list[str]] | None:
    """Return a function that joins tokens to the longest names; None if all names are single tokens."""
    # a rule may look at what is around a token, and not find it alone
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
            return tokens  # the vocabulary lacks one; the caller's error says so
        found = longest.findall("".join(map(signs.__getitem__, tokens)))
        return ["".join(map(shown.__getitem__, each)) for each in found]

    return joined
