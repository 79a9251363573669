"""Text: a language model's data, its samples as text, and how good they are.

Shapes: B samples, D tokens of a block, V tokens of the vocabulary.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from torchmetrics import Metric, MetricCollection

from tauflow import files as atomic_files
from tauflow.errors import SettingsError
from tauflow.samplers import Prompt
from tauflow.tasks.base import UNIGRAM_ITEMS, Task, unigram_law
from tauflow.tasks.items import Share, Shuffled
from tauflow.tasks.metrics import UnigramTotalVariation
from tauflow.tasks.text.blocks import Blocks, Fixed, InMemory, Split, cached_blocks
from tauflow.tasks.text.corpus import BuiltIn, Corpus, DocumentName, Files, Hub
from tauflow.tasks.text.judges import Judge
from tauflow.tasks.text.judging import Judging
from tauflow.tasks.text.metrics import Distinct, Entropy, Memorised
from tauflow.tasks.text.statistics import TextStatistics
from tauflow.tasks.text.streams import Streamed, first_training_blocks, first_validation_blocks
from tauflow.tasks.text.vocabulary import byte_level_bpe, characters, existing, vocabulary_from

STATISTICS = "statistics.npz"  # beside the checkpoints of a run
STREAMED_STATISTICS = 4096  # blocks of a stream, at most


@dataclass(eq=False, repr=False)
class Text(Task):
    """Text in blocks of tokens: the built-in corpus, local files or a data set of the hub.

    Args:
        files: names or patterns of text files, plain or .gz, separated by commas; without files and hub,
            CPython's language reference.
        document: what a document of a file is: a block between empty lines, or the file.
        hub: name of a data set of the hub.
        hub_config: its configuration.
        hub_split: its split.
        hub_column: the column with the text.
        streaming: read the hub's data set as a stream, without downloading it first.
        tokenizer: `bpe` (byte-level, made from the training documents), `characters`, a tokenizer.json or its
            folder, or a name of the hub.
        vocabulary: tokens of a `bpe` tokenizer.
        length: tokens of a block, D.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues in the order.
        val_share: share of the documents that are for validation, chosen by their text.
        val_items: blocks of the validation set, at most.
        judges: what perplexity of samples is measured under: ngram, smollm2, or causal models of
            transformers; separated by commas.
        statistics_tokens: training tokens that the n-gram judge, the unigram law and the memory of 8-grams
            are made from, at most.
        cache: folder for tokenizers and tokenised blocks.
        seed: of the split and the order.
        num_workers: loader processes for each device.
        tokenizer_json: the tokenizer itself, as a checkpoint keeps it; overrides `tokenizer`.
    """

    files: str | None = None
    document: DocumentName = "block"
    hub: str | None = None
    hub_config: str | None = None
    hub_split: str = "train"
    hub_column: str = "text"
    streaming: bool = False
    tokenizer: str = "bpe"
    vocabulary: int = 1024
    length: int = 128
    batch_size: int = 32
    epoch_items: int = 4096
    val_share: float = 0.05
    val_items: int = 512
    judges: str = "ngram"
    statistics_tokens: int = 5_000_000
    cache: str = "data"
    seed: int = 0
    num_workers: int = 0
    tokenizer_json: str | None = None

    def __post_init__(self) -> None:
        if self.files and self.hub:
            raise SettingsError("give --data.files or --data.hub, not both")
        if self.streaming and not self.hub:
            raise SettingsError("--data.streaming needs a data set of the hub: --data.hub NAME")
        possible = self.length >= 3 and self.batch_size >= 1 and self.val_items >= 2  # 3: judged by trigrams
        if not possible or not 0 < self.val_share < 1:
            raise SettingsError(
                "text needs length >= 3, batch_size >= 1, val_items >= 2 and val_share in (0, 1), got "
                f"{self.length}, {self.batch_size}, {self.val_items} and {self.val_share}"
            )
        self.tokenizer_json = self.tokenizer_json or self._tokenizer_json()
        self.tokens = vocabulary_from(self.tokenizer_json)
        self.num_tokens = self.tokens.size
        self.shape = (self.length,)
        self._judge_device: torch.device | None = None  # that of the process, unless told otherwise

    # Data

    @property
    def corpus(self) -> Corpus:
        if self.hub:
            return self._hub
        if self.files:
            return Files(tuple(name.strip() for name in self.files.split(",")), self.document)
        return BuiltIn()

    @property
    def _hub(self) -> Hub:
        return Hub(self.hub or "", self.hub_config, self.hub_split, self.hub_column, self.streaming)

    @property
    def _split(self) -> Split:
        return Split(self.length, self.val_share, self.seed)

    def _tokenizer_json(self) -> str:
        if self.tokenizer not in ("bpe", "characters"):
            return existing(self.tokenizer)
        if self.streaming:
            raise SettingsError(
                f"--data.tokenizer {self.tokenizer} is made from all of the corpus, which a stream is not; "
                "name a tokenizer"
            )
        corpus = self.corpus
        facts = (corpus.digest(), self.tokenizer, self.vocabulary, self.val_share, self.seed)
        path = Path(self.cache) / f"tokenizer-{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.json"
        if not path.exists():
            documents = list(corpus.documents())
            if not documents:
                raise SettingsError("the corpus is empty: there is no document with any text in it")
            if self.tokenizer == "characters":
                text = characters(documents)
            else:
                training = [document for document in documents if not self._split.validates(document)]
                text = byte_level_bpe(training or documents, self.vocabulary)
            atomic_files.write(path, text)
        return path.read_text()

    def setup(self, stage: str | None = None) -> None:
        self.val_data = self._validation_items(stage)
        if stage in ("fit", None) and not self.streaming:
            self.train_data = Shuffled(Blocks(self._blocks[0]), self.seed, name="text order")

    def stream(self, share: Share) -> IterableDataset | None:
        return Streamed(self._hub, self.tokens, self._split, share) if self.streaming else None

    def begin_run(self, folder: Path) -> None:
        """Save the statistics that samples are measured against, so that a checkpoint needs no corpus."""
        if not (folder / STATISTICS).exists():
            self.statistics.save(folder / STATISTICS)

    @cached_property
    def _blocks(self) -> Any:
        return cached_blocks(Path(self.cache), self.corpus, self.tokens, self._split, progress=True)

    def _validation_items(self, stage: str | None) -> Fixed:
        if stage != "fit" and self.folder and (self.folder / STATISTICS).exists():
            saved = InMemory({"tokens": self.statistics.validation})  # in their order
            return Fixed(saved, self.val_items)
        if not self.streaming:
            return Fixed(self._blocks[1], self.val_items, self.seed)
        blocks = first_validation_blocks(self._hub, self.tokens, self._split, self.val_items)
        return Fixed(InMemory(blocks), self.val_items, self.seed)

    def _first_blocks(self, count: int) -> np.ndarray:
        """Return at most `count` training blocks (N, D) in the order of the corpus."""
        if self.streaming:
            return first_training_blocks(self._hub, self.tokens, self._split, min(count, STREAMED_STATISTICS))
        return np.asarray(self._blocks[0][: min(count, len(self._blocks[0]))]["tokens"])

    def unigrams(self) -> Tensor:
        """Return the law of the first UNIGRAM_ITEMS training blocks, with one added to every count."""
        return unigram_law(torch.from_numpy(self._first_blocks(UNIGRAM_ITEMS)), self.num_tokens)

    @cached_property
    def statistics(self) -> TextStatistics:
        """Return statistics of the training split: from beside the run where they lie there, else counted."""
        if self.folder and (self.folder / STATISTICS).exists():
            return TextStatistics.load(self.folder / STATISTICS, self.num_tokens)
        if not hasattr(self, "val_data"):
            self.setup("validate")
        train = self._first_blocks(max(1, self.statistics_tokens // self.length))
        return TextStatistics.of(train, self.val_data.tokens(), self.num_tokens)

    @cached_property
    def alone(self) -> str:  # type: ignore[override]  # the base class has a plain default
        """Say why a checkpoint without its corpus and statistics.npz can be measured in part only."""
        try:
            self.statistics  # noqa: B018
        except SettingsError as error:
            if self.folder is None or (self.folder / STATISTICS).exists():
                raise
            lost = "perplexity under ngram, unigram_tv, memorised_8grams and real data are skipped"
            return f"{lost}: there is no {STATISTICS} beside the checkpoint, and no corpus ({error})"
        return ""

    # Samples

    def texts(self, tokens: Tensor) -> list[str]:
        """Return samples (B, D) as plain text."""
        return self.tokens.texts(tokens.tolist())

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return numbered texts; `¶` stands where a document ends."""
        rows = enumerate(tokens.tolist(), start=1)
        return [f"[{number}] {self.tokens.decode(row, eos=' ¶ ')}" for number, row in rows]

    def prompt(self, text: str) -> Prompt:
        """Return the text that every sample begins with."""
        return self._known([self.tokens.encode_strictly(text)])

    def infill(self, text: str) -> Prompt:
        """Read text with blanks: n >= 2 underscores stand for n tokens to be found.

        All that follows the text is to be found too. A space before a blank belongs to the blank where tokens
        hold the space before their word, as those of byte-level BPE do.
        """
        parts: list[list[int] | int] = []
        *before, last = re.split(r"(_{2,})", text)
        for word in before:
            if re.fullmatch(r"_{2,}", word):
                parts.append(len(word))
            else:
                parts.append(self.tokens.encode_strictly(word if self.tokens.has_space else word.rstrip(" ")))
        parts.append(self.tokens.encode_strictly(last))
        if not any(isinstance(part, int) for part in parts):
            raise SettingsError(
                "--infill needs a blank: two or more underscores, as many as tokens may stand there"
            )
        return self._known(parts)

    def _known(self, parts: list[list[int] | int]) -> Prompt:
        tokens: list[int] = []
        known: list[bool] = []
        for part in parts:
            ids = [0] * part if isinstance(part, int) else part
            tokens += ids
            known += [not isinstance(part, int)] * len(ids)
        if len(tokens) > self.length:
            raise SettingsError(
                f"the text takes {len(tokens)} tokens, the model has {self.length}; shorten it"
            )
        rest = self.length - len(tokens)
        return Prompt(torch.tensor(tokens + [0] * rest), torch.tensor(known + [False] * rest))

    # Judges

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        self.judges = names
        self._judge_device = device
        self.__dict__.pop("_judging", None)
        if "ngram" in self._asked_judges and self.alone:
            raise SettingsError(self.alone)
        self._judging.labels()  # a judge that cannot be loaded is refused now

    @property
    def headline(self) -> str:  # type: ignore[override]  # depends on the judges
        if self._judging.names:
            return f"ppl_corpus_{self.judge(self._judging.names[0]).name}"
        return "entropy_bits" if self.alone else "unigram_tv"

    @property
    def _asked_judges(self) -> list[str]:
        return [word.strip() for word in self.judges.split(",") if word.strip()]

    @cached_property
    def _judging(self) -> Judging:
        names = [name for name in self._asked_judges if name != "ngram" or not self.alone]
        return Judging(names, self.tokens, lambda: self.statistics.ngrams, self._judge_device)

    def judge(self, name: str) -> Judge:
        """Return the judge of a name, loaded once."""
        return self._judging.judge(name)

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {**self._judging.metrics(), "entropy_bits": Entropy()}
        metrics |= {f"distinct_{n}": Distinct(n) for n in (1, 2, 3)}
        if not self.alone:
            metrics["unigram_tv"] = UnigramTotalVariation(torch.from_numpy(self.statistics.unigrams))
            metrics["memorised_8grams"] = Memorised(self.statistics.memorised)
        return MetricCollection(metrics, compute_groups=False)
