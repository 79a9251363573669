"""Tokenizers that are made from a corpus, each cached as a tokenizer.json named by what it was made from."""

from pathlib import Path

from tauflow import files
from tauflow.errors import SettingsError
from tauflow.tasks.caches import key_of
from tauflow.tasks.text.blocks import Split
from tauflow.tasks.text.corpus import Corpus
from tauflow.tasks.text.vocabulary import byte_level_bpe, characters


def cached_tokenizer(root: str | Path, kind: str, size: int, corpus: Corpus, split: Split) -> str:
    """Return the tokenizer.json of kind `bpe`, with `size` tokens, or `characters`; make it if needed."""
    key = key_of(corpus.digest(), kind, size, split.val_share, split.seed)
    path = Path(root) / f"tokenizer-{key}.json"
    if not path.exists():
        files.write(path, _made(kind, size, corpus, split))
    return path.read_text(encoding="utf-8")


def _made(kind: str, size: int, corpus: Corpus, split: Split) -> str:
    documents = list(corpus.documents())
    if not documents:
        raise SettingsError("the corpus is empty: there is no document with any text in it")
    if kind == "characters":
        return characters(documents)
    training = [document for document in documents if not split.validates(document)]
    return byte_level_bpe(training or documents, size)
