"""Text: documents as blocks of tokens, samples as text, and how good they are.

Shapes: B samples, D tokens of a block, V tokens of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from torchmetrics import Metric, MetricCollection

from tauflow.errors import CheckpointError, SettingsError
from tauflow.tasks.metrics import UnigramTotalVariation
from tauflow.tasks.task import (
    CONTROL_PICTURES,
    UNIGRAM_ITEMS,
    InMemory,
    Share,
    Shuffled,
    TableItems,
    TextTask,
    ValidationItems,
    unigram_distribution,
)
from tauflow.tasks.text.blocks import (
    Streamed,
    TextSplit,
    cached_blocks,
    cached_tokenizer,
    first_validation_blocks,
)
from tauflow.tasks.text.corpus import BuiltIn, Corpus, DocumentName, HubCorpus, TextFiles, split_patterns
from tauflow.tasks.text.metrics import Distinct, Entropy, Memorized, TextJudge, TextJudges
from tauflow.tasks.text.statistics import TextStatistics
from tauflow.tasks.text.vocabulary import load_tokenizer, vocabulary_from

STATISTICS = "statistics.npz"  # next to the checkpoints of a run
STREAMED_STATISTICS = 4096  # blocks of a stream, at most
NO_CORPUS = (
    "a checkpoint's corpus is never opened by itself; pass it: `sample.py --data files=...` or "
    "`tauflow.load(path, data={'files': ...})`, or hub=..., or built_in=true"
)


@dataclass(eq=False, repr=False)
class Text(TextTask):
    """Text in blocks of tokens: the built-in corpus, local files or a data set on the hub.

    Args:
        files: names or patterns of text files, plain or .gz, separated by commas.
        built_in: without files and hub, take CPython's language reference.
        document: what a document of a file is: a block between empty lines, or the file.
        hub: name of a data set on the hub.
        hub_config: its configuration.
        hub_split: its split.
        hub_column: the column with the text.
        streaming: read the hub's data set as a stream, without downloading it first.
        tokenizer: `bpe` (byte-level, made from the training documents), `characters`, a tokenizer.json or its
            folder, or a name on the hub.
        vocabulary: tokens of a `bpe` tokenizer, at least 257.
        length: tokens of a block, D, at least 3.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues in the order.
        val_share: share of the documents that are for validation, chosen by their text.
        val_items: blocks of the validation set, at most.
        judges: what perplexity of samples is measured under: ngram, smollm2, or Transformers causal LMs;
            separated by commas.
        statistics_tokens: training tokens that the n-gram judge, the unigram distribution and the memory of
            8-grams are made from, at most.
        cache: folder for tokenizers and tokenized blocks.
        seed: of the split and the order.
        num_workers: loader processes per device.
        tokenizer_json: the tokenizer itself, as a checkpoint keeps it; overrides `tokenizer`.
    """

    shared_files = (STATISTICS,)
    local: ClassVar[tuple[str, ...]] = (
        *("files", "built_in", "hub", "hub_config", "hub_split", "hub_column", "streaming"),
        *("judges", "cache"),
    )

    may_change = (  # files may have moved; the tokenizer itself is compared, not its name
        *("files", "built_in", "tokenizer", "judges", "statistics_tokens", "cache"),
        *TextTask.may_change,
    )

    positional = False  # a block starts anywhere in the text

    sample_settings = ("tokenizer_json", "length")

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
    built_in: bool = True

    def __post_init__(self) -> None:
        if self.files is not None and self.hub is not None:
            raise SettingsError("Give --data.files or --data.hub, not both.")
        self.tokenizer_json = self.tokenizer_json or self._make_tokenizer()
        self.tokens = vocabulary_from(self.tokenizer_json)
        self.num_tokens = self.tokens.size
        self.has_space = self.tokens.has_space
        self.shape = (self.length,)
        self._judge_device: torch.device | None = None  # that of the process, unless told otherwise

    @classmethod
    def rebuilt(cls, init_args: Mapping[str, Any], data: Mapping[str, Any]) -> Self:
        """Rebuild the task from a file that is not trusted: with its tokenizer, and without its corpus.

        It opens no corpus, cache, hub or judge but those in the user's `data`.
        """
        if not isinstance(init_args.get("tokenizer_json"), str) or not init_args["tokenizer_json"]:
            raise CheckpointError("the checkpoint has no tokenizer: its data.tokenizer_json isn't text")
        return super().rebuilt(init_args, {"built_in": False, **data})

    # Data

    @property
    def corpus(self) -> Corpus:
        if self.hub is not None:
            return self._hub
        if self.files is not None:
            return TextFiles(split_patterns(self.files), self.document)
        if self.built_in:
            return BuiltIn()
        raise SettingsError(NO_CORPUS)

    @property
    def _hub(self) -> HubCorpus:
        return HubCorpus(self.hub or "", self.hub_config, self.hub_split, self.hub_column, self.streaming)

    @property
    def _split(self) -> TextSplit:
        return TextSplit(self.length, self.val_share, self.seed)

    def _make_tokenizer(self) -> str:
        if self.tokenizer not in ("bpe", "characters"):
            return load_tokenizer(self.tokenizer)
        if self.streaming:
            raise SettingsError(
                f"--data.tokenizer {self.tokenizer} is made from all of the corpus, which a stream is not; "
                "choose another tokenizer"
            )
        return cached_tokenizer(self.cache, self.tokenizer, self.vocabulary, self.corpus, self._split)

    def setup(self, stage: str | None = None) -> None:
        if stage != "fit" and self._saved:
            saved = InMemory({"tokens": self.statistics.validation})  # in their order
            self.val_data = ValidationItems(saved, self.val_items)
        elif self.streaming:
            blocks = first_validation_blocks(self._hub, self.tokens, self._split, self.val_items)
            self.val_data = ValidationItems(InMemory({"tokens": blocks}), self.val_items, self.seed)
        else:
            self.val_data = ValidationItems(self._blocks[1], self.val_items, self.seed)
        if stage in ("fit", None) and not self.streaming:
            self.train_data = Shuffled(TableItems(self._blocks[0]), self.seed, name="text order")

    def stream(self, share: Share) -> IterableDataset | None:
        return Streamed(self._hub, self.tokens, self._split, share) if self.streaming else None

    def origin(self) -> str:
        if self.streaming:
            return f"{self.corpus.describe()}, streamed"
        tokens = sum(map(len, self._blocks)) * self.length
        return f"{self.corpus.describe()}, {tokens:,} tokens in blocks of {self.length}"

    def begin_run(self, folder: Path) -> None:
        """Save the statistics that samples are measured against, so that a checkpoint needs no corpus."""
        if not (folder / STATISTICS).exists():
            self.statistics.save(folder / STATISTICS)

    @cached_property
    def _blocks(self) -> Any:
        return cached_blocks(Path(self.cache), self.corpus, self.tokens, self._split, progress=True)

    def _first_blocks(self, count: int) -> np.ndarray:
        """Return at most `count` training blocks (N, D) in the order of the corpus."""
        if self.streaming:
            alone = Share(batch_size=1, steps_per_epoch=1)
            blocks = Streamed(self._hub, self.tokens, self._split, alone, shuffle=0).one_pass()
            return np.stack(list(islice(blocks, min(count, STREAMED_STATISTICS))))
        return np.asarray(self._blocks[0][: min(count, len(self._blocks[0]))]["tokens"])

    def unigrams(self) -> Tensor:
        return unigram_distribution(torch.from_numpy(self._first_blocks(UNIGRAM_ITEMS)), self.num_tokens)

    @property
    def _saved(self) -> Path | None:
        return self.folder / STATISTICS if self.folder and (self.folder / STATISTICS).exists() else None

    @cached_property
    def statistics(self) -> TextStatistics:
        if self._saved:
            return TextStatistics.load(self._saved, self.num_tokens, self.length)
        if not hasattr(self, "val_data"):
            self.setup("validate")
        train = self._first_blocks(max(1, self.statistics_tokens // self.length))
        return TextStatistics.of(train, self.val_data.columns()["tokens"], self.num_tokens)

    @property
    def alone(self) -> str:  # type: ignore[override]  # the base class has a plain default
        if self._saved or self.hub or self.files or self.built_in:
            return ""
        lost = "perplexity under ngram, unigram_tv, memorised_8grams and real data are skipped"
        return f"{lost}: there is no {STATISTICS} next to the checkpoint, and {NO_CORPUS}"

    # Samples

    def texts(self, tokens: Tensor) -> list[str]:
        return self.tokens.texts(tokens.tolist())

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return numbered texts, with `¶` where a document ends and visible control characters."""
        texts = (self.tokens.decode(row, eos=" ¶ ").translate(CONTROL_PICTURES) for row in tokens.tolist())
        return [f"[{number}] {text}" for number, text in enumerate(texts, start=1)]

    def encode(self, text: str) -> list[int]:
        return self.tokens.encode_strictly(text)

    # Judges

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        self.judges = names
        self._judge_device = device
        self.__dict__.pop("_judges", None)
        if "ngram" in self._asked_judges and self.alone:
            raise SettingsError(self.alone)
        self._judges.labels()  # a judge that can't be loaded fails now

    @property
    def primary_metric(self) -> str:  # type: ignore[override]  # depends on the judges
        if self._judges.names:
            return f"ppl_corpus_{self.judge(self._judges.names[0]).name}"
        return "entropy_bits" if self.alone else "unigram_tv"

    @property
    def _asked_judges(self) -> list[str]:
        return [word.strip() for word in self.judges.split(",") if word.strip()]

    @cached_property
    def _judges(self) -> TextJudges:
        names = [name for name in self._asked_judges if name != "ngram" or not self.alone]
        return TextJudges(names, self.tokens, lambda: self.statistics.ngrams, self._judge_device)

    def judge(self, name: str) -> TextJudge:
        return self._judges.judge(name)

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {**self._judges.metrics(), "entropy_bits": Entropy()}
        metrics |= {f"distinct_{n}": Distinct(n) for n in (1, 2, 3)}
        if not self.alone:
            metrics["unigram_tv"] = UnigramTotalVariation(torch.from_numpy(self.statistics.unigrams))
            metrics["memorised_8grams"] = Memorized(self.statistics.memorized)
        return MetricCollection(metrics, compute_groups=False)
