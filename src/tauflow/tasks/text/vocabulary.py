"""Tokenizers: characters or byte-level BPE made from the corpus, a file, or a name on the hub.

A file is a tokenizer.json, or GPT-2's pair of files. A Vocabulary is a `tokenizers.Tokenizer` together with
the token that ends a document.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tauflow.errors import SettingsError, first_line
from tauflow.untrusted import blame_tokenizer, check_tokenizer

EOS, UNKNOWN = "<eos>", "<unk>"
KNOWN_EOS = (EOS, "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos_token>", "[SEP]")
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))  # names of the files of GPT-2's BPE


@dataclass(frozen=True)
class Vocabulary:
    """Text to tokens and back; documents end with `eos`."""

    tokenizer: Tokenizer
    eos: int

    @property
    def size(self) -> int:
        return self.tokenizer.get_vocab_size()

    @property
    def has_space(self) -> bool:
        """Return whether a space is a token; else it is a part of the word after it."""
        return self.tokenizer.token_to_id(" ") is not None

    def encode(self, texts: list[str]) -> list[list[int]]:
        with blame_tokenizer("the tokenizer cannot encode the corpus", SettingsError):
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_strictly(self, text: str) -> list[int]:
        """Return tokens; raise an error for text that the vocabulary can't express."""
        unknown = self.tokenizer.token_to_id(UNKNOWN)
        with blame_tokenizer("the model's tokenizer cannot encode the text", SettingsError):
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token == unknown:
                raise SettingsError(
                    f"the model's vocabulary of characters has no {text[begin:end]!r}; remove it"
                )
        return encoding.ids

    def decode(self, tokens: list[int], eos: str) -> str:
        """Return the text of tokens, with `eos` where documents end."""
        parts: list[list[int]] = []
        part: list[int] = []
        for token in tokens:
            if token == self.eos:
                parts.append(part)
                part = []
            else:
                part.append(token)
        with blame_tokenizer("the model's tokenizer cannot decode samples", SettingsError):
            texts = [self.tokenizer.decode(piece, skip_special_tokens=False) for piece in [*parts, part]]
        return eos.join(texts)

    def texts(self, rows: list[list[int]]) -> list[str]:
        """Return the texts of samples, with an empty line where documents end."""
        return [self.decode(row, eos="\n\n") for row in rows]


def vocabulary_from(text: str) -> Vocabulary:
    """Read the text of a tokenizer.json, which is not trusted."""
    with blame_tokenizer("this is no tokenizer.json that the tokenizers library can read", SettingsError):
        check_tokenizer(text)
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # "<eos>" in a document is text
        known = [name for name in KNOWN_EOS if tokenizer.token_to_id(name) is not None]
        if not known:
            tokenizer.add_special_tokens([EOS])
    ids = sorted(tokenizer.get_vocab().values())
    if len(ids) < 2 or ids != list(range(len(ids))):
        raise SettingsError(
            f"The ids of a tokenizer must be 0 to V - 1 for V > 1 tokens, got {len(ids)} tokens with ids up "
            f"to {ids[-1]}. Use another tokenizer."
        )
    return Vocabulary(tokenizer, tokenizer.get_vocab()[known[0] if known else EOS])


def character_tokenizer(documents: Iterable[str]) -> str:
    """Return a tokenizer.json with a token for every character of the documents."""
    seen = sorted(set().union(*(set(document) for document in documents)))
    vocabulary = {name: number for number, name in enumerate([EOS, UNKNOWN, *seen])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([EOS, UNKNOWN])
    return tokenizer.to_str()


def train_bpe(documents: Iterable[str], size: int) -> str:
    """Return a tokenizer.json of byte-level BPE with `size` tokens, trained on the documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer.to_str()


def load_tokenizer(name: str) -> str:
    """Return the tokenizer.json of a file, a folder (also GPT-2's pair of files) or a name on the hub."""
    path = Path(name).expanduser()
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if path.is_file():
        with blame_tokenizer(f"{path} isn't a tokenizer.json", SettingsError):
            return path.read_text(encoding="utf-8")
    for vocabulary, merges in PAIRS:
        if (path / vocabulary).is_file() and (path / merges).is_file():
            return _read_bpe(path / vocabulary, path / merges)
    if path.is_dir() or name.endswith(".json") or name.count("/") > 1 or name.startswith((".", "/")):
        raise SettingsError(
            f"Tokenizer not found: {name}. Use a tokenizer.json, a folder with one or with "
            f"{' or '.join(' + '.join(pair) for pair in PAIRS)}, a name on the hub, `bpe` or `characters`."
        )
    try:
        return Tokenizer.from_pretrained(name).to_str()
    except Exception as error:
        raise SettingsError(
            f"the tokenizer {name!r} cannot be fetched from the hub ({first_line(error)}); give a "
            "tokenizer.json instead"
        ) from None


def _read_bpe(vocabulary: Path, merges: Path) -> str:
    with blame_tokenizer(f"{vocabulary} and {merges} aren't a readable BPE", SettingsError):
        tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([name for name in KNOWN_EOS if tokenizer.token_to_id(name) is not None])
    return tokenizer.to_str()
