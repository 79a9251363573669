"""Text: a language model's data, its samples as text, and how good they are: perplexity under judges, with diversity beside it.

Shapes: B samples, D tokens of a block, V tokens of the vocabulary.
"""

import hashlib
import re
from collections.abc import Callable
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow import files
from tauflow.errors import SettingsError
from tauflow.judges import DEFINITIONS, ON_IDS, Judge, NgramJudge, bootstrap, causal_judge
from tauflow.tasks.base import Alone, SampleMean, Task, UnigramTotalVariation
from tauflow.tasks.blocks import Fixed, InMemory, Shuffled, Streamed, cached_blocks, first_validation_blocks
from tauflow.tasks.corpus import BuiltIn, Corpus, DocumentName, Files, Hub, in_validation
from tauflow.tasks.statistics import TextStatistics
from tauflow.tasks.vocabulary import byte_level_bpe, characters, existing, vocabulary_from

STATISTICS = "statistics.npz"  # beside the checkpoints of a run


class Text(Task):
    """Text in blocks of tokens: the built-in corpus, local files or a data set of the hub.

    Args:
        files: names or patterns of text files, plain or .gz, separated by commas; without files and hub, CPython's language reference.
        document: what a document of a file is: a block between empty lines, or the whole file.
        hub: name of a data set of the hub.
        hub_config: its configuration.
        hub_split: its split.
        hub_column: the column with the text.
        streaming: read the hub's data set as a stream, without downloading it first.
        tokenizer: `bpe` (byte-level, made from the training documents), `characters`, a tokenizer.json or its folder, or a name of the hub.
        vocabulary: tokens of a `bpe` tokenizer.
        length: tokens of a block, D.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues in the order.
        val_share: share of the documents that are for validation, chosen by their text.
        val_items: blocks of the validation set, at most.
        judges: what perplexity of samples is measured under: ngram, smollm2, or causal models of transformers; separated by commas.
        statistics_tokens: training tokens that the n-gram judge, the unigram law and the memory of 8-grams are made from, at most.
        cache: folder for tokenizers and tokenised blocks.
        seed: of the split and the order.
        num_workers: loader processes for each device.
        tokenizer_json: the tokenizer itself, as a checkpoint keeps it; overrides `tokenizer`.
    """

    def __init__(
        self,
        files: str | None = None,
        document: DocumentName = "block",
        hub: str | None = None,
        hub_config: str | None = None,
        hub_split: str = "train",
        hub_column: str = "text",
        streaming: bool = False,
        tokenizer: str = "bpe",
        vocabulary: int = 1024,
        length: int = 128,
        batch_size: int = 32,
        epoch_items: int = 4096,
        val_share: float = 0.05,
        val_items: int = 512,
        judges: str = "ngram",
        statistics_tokens: int = 5_000_000,
        cache: str = "data",
        seed: int = 0,
        num_workers: int = 0,
        tokenizer_json: str | None = None,
    ):
        if files and hub:
            raise SettingsError("give --data.files or --data.hub, not both")
        if streaming and not hub:
            raise SettingsError("--data.streaming needs a data set of the hub: --data.hub NAME")
        if length < 3 or batch_size < 1 or val_items < 2 or not 0 < val_share < 1:  # 3: the n-gram judge is made of trigrams
            raise SettingsError(
                f"text needs length >= 3, batch_size >= 1, val_items >= 2 and val_share in (0, 1), got {length}, {batch_size}, {val_items} "
                f"and {val_share}"
            )
        super().__init__(batch_size=batch_size, epoch_items=epoch_items, num_workers=num_workers)
        self.files = files
        self.document = document
        self.hub = hub
        self.hub_config = hub_config
        self.hub_split = hub_split
        self.hub_column = hub_column
        self.streaming = streaming
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.length = self.seq_len = length
        self.val_share = val_share
        self.val_items = val_items
        self.judges = judges
        self.statistics_tokens = statistics_tokens
        self.cache = cache
        self.seed = seed
        self.tokenizer_json = tokenizer_json or self._tokenizer_json()
        self.tokens = vocabulary_from(self.tokenizer_json)
        self.num_tokens = self.tokens.size
        self._judge_device: torch.device | None = None  # that of the process, unless told otherwise
        self._scored: dict[tuple[str, bool], tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    # Data

    @property
    def corpus(self) -> Corpus:
        if self.hub:
            return Hub(self.hub, self.hub_config, self.hub_split, self.hub_column, self.streaming)
        return Files(tuple(name.strip() for name in self.files.split(",")), self.document) if self.files else BuiltIn()

    def _tokenizer_json(self) -> str:
        if self.tokenizer not in ("bpe", "characters"):
            return existing(self.tokenizer)
        if self.streaming:
            raise SettingsError(f"--data.tokenizer {self.tokenizer} is made from the whole corpus, which a stream is not; name a tokenizer")
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
                training = [document for document in documents if not in_validation(document, self.val_share, self.seed)]
                text = byte_level_bpe(training or documents, self.vocabulary)
            files.write(path, text)
        return path.read_text()

    def setup(self, stage: str | None = None) -> None:
        self.val_data = self._validation_items(stage)
        if stage in ("fit", None) and not self.streaming:
            self.train_data = Shuffled(self._blocks[0], self.seed)
        if stage == "fit" and self.trainer and (folder := self.trainer.log_dir):
            self.folder = Path(folder)
            if self.trainer.is_global_zero and not (self.folder / STATISTICS).exists():
                self.statistics.save(self.folder / STATISTICS)

    @cached_property
    def _blocks(self):
        return cached_blocks(Path(self.cache), self.corpus, self.tokens, self.length, self.val_share, self.seed, progress=True)

    def _validation_items(self, stage: str | None) -> Fixed:
        if stage != "fit" and self.folder and (self.folder / STATISTICS).exists():
            return Fixed(InMemory({"tokens": self.statistics.validation}), self.val_items)  # saved in their order
        if not self.streaming:
            return Fixed(self._blocks[1], self.val_items, self.seed)
        blocks = first_validation_blocks(self.corpus, self.tokens, self.length, self.val_share, self.seed, self.val_items)
        return Fixed(InMemory(blocks), self.val_items, self.seed)

    def train_dataloader(self):
        if not self.streaming:
            return super().train_dataloader()
        trainer = self.trainer or Alone()
        self._check_split(trainer)
        items = Streamed(
            self.corpus,
            self.tokens,
            self.length,
            self.val_share,
            self.seed,
            self.batch_size,
            self.epoch_items // self.batch_size,
            trainer.accumulate_grad_batches,
            trainer.global_rank,
            trainer.world_size,
            step=lambda: trainer.global_step,
        )
        return self._loader(items, None)

    @cached_property
    def statistics(self) -> TextStatistics:
        """Of the training split: from beside the run where it lies there, else from the corpus."""
        if self.folder and (self.folder / STATISTICS).exists():
            return TextStatistics.load(self.folder / STATISTICS, self.num_tokens)
        if not hasattr(self, "val_data"):
            self.setup("validate")
        rows = max(1, self.statistics_tokens // self.length)
        if self.streaming:
            stream = Streamed(self.corpus, self.tokens, self.length, self.val_share, self.seed, 1, 1, 1, 0, 1, step=lambda: 0, shuffle=0)
            train = np.stack(list(islice(stream.one_pass(), min(rows, 4096))))
        else:
            train = self._blocks[0][: min(rows, len(self._blocks[0]))]["tokens"]
        return TextStatistics.of(np.asarray(train), self.val_data.tokens(), self.num_tokens)

    @cached_property
    def alone(self) -> str:
        """A checkpoint that came without its corpus and without statistics.npz still writes text."""
        try:
            self.statistics  # noqa: B018
        except SettingsError as error:
            if self.folder is None or (self.folder / STATISTICS).exists():
                raise
            lost = "perplexity under ngram, unigram_tv, memorised_8grams and real data are left out"
            return f"{lost}: there is no {STATISTICS} beside the checkpoint to take them from, and no corpus ({error})"
        return ""

    # Samples

    def texts(self, tokens: Tensor) -> list[str]:
        return [self.tokens.decode(row, eos="\n\n") for row in tokens.tolist()]

    def show(self, tokens: Tensor) -> str:
        """`¶` stands where a document ends."""
        return "\n\n".join(f"[{n}] {self.tokens.decode(row, eos=' ¶ ')}" for n, row in enumerate(tokens.tolist(), start=1))

    def prompt(self, text: str) -> tuple[Tensor, Tensor]:
        """The text that every sample begins with."""
        return self._known([self.tokens.encode_strictly(text)])

    def infill(self, text: str) -> tuple[Tensor, Tensor]:
        """Text with blanks: a run of n >= 2 underscores stands for n tokens to be found; so does all that follows the text.

        A space before a blank belongs to the blank where tokens hold the space before their word, as those of byte-level BPE do.
        """
        parts: list[list[int] | int] = []
        *before, last = re.split(r"(_{2,})", text)
        for word in before:
            blank = re.fullmatch(r"_{2,}", word)
            parts.append(len(word) if blank else self.tokens.encode_strictly(word if self.tokens.has_space else word.rstrip(" ")))
        parts.append(self.tokens.encode_strictly(last))
        if not any(isinstance(part, int) for part in parts):
            raise SettingsError("--infill needs a blank: two or more underscores, as many as tokens may stand there")
        return self._known(parts)

    def _known(self, parts: list[list[int] | int]) -> tuple[Tensor, Tensor]:
        tokens, known = [], []
        for part in parts:
            ids = [0] * part if isinstance(part, int) else part
            tokens += ids
            known += [not isinstance(part, int)] * len(ids)
        if len(tokens) > self.length:
            raise SettingsError(f"the text takes {len(tokens)} tokens, the model has {self.length}; shorten it")
        rest = self.length - len(tokens)
        return torch.tensor(tokens + [0] * rest), torch.tensor(known + [False] * rest)

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        self.judges, self._judge_device = names, device
        if "ngram" in self._asked_judges and self.alone:
            raise SettingsError(self.alone)
        self._labels()  # a judge that cannot be loaded is refused now

    @property
    def headline(self) -> str:
        if self._judge_names:
            return f"ppl_corpus_{self.judge(self._judge_names[0]).name}"
        return "entropy_bits" if self.alone else "unigram_tv"

    @property
    def _judge_names(self) -> list[str]:
        return [name for name in self._asked_judges if name != "ngram" or not self.alone]

    @property
    def _asked_judges(self) -> list[str]:
        return [word.strip() for word in self.judges.split(",") if word.strip()]

    def judge(self, name: str) -> Judge:
        """The judge by its name, loaded once."""
        if name not in self._judges:
            self._judges[name] = NgramJudge(self.statistics.ngrams) if name == "ngram" else self._causal_judge(name)
        return self._judges[name]

    def _causal_judge(self, name: str) -> Judge:
        own = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        device = self._judge_device or own
        return causal_judge(name, device, vocabulary=self.tokens.tokenizer.get_vocab(), progress=rank_zero_only.rank == 0)

    def _labels(self) -> dict[str, str]:
        """What the judges are called in tags, with their names."""
        labels: dict[str, str] = {}
        for name in self._judge_names:
            label = self.judge(name).name
            if labels.setdefault(label, name) != name:
                raise SettingsError(f"the judges {labels[label]} and {name} are both called {label}; use one of them, or rename its folder")
        return labels

    @cached_property
    def _judges(self) -> dict[str, Judge]:
        return {}

    def _score(self, name: str, definition: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Of the judge, asked once for the same samples where both definitions of perplexity have the same input."""
        tokens = tokens.cpu()
        if (tokens >= self.num_tokens).any():
            raise SettingsError("samples hold masks, which no judge can read; use --finish draw or reuse")
        judge = self.judge(name)
        on_ids = judge.reads_ids and (definition in ON_IDS or not judge.reads_text)
        last = self._scored.get((name, on_ids))
        if last is None or not torch.equal(last[0], tokens):
            self._scored[name, on_ids] = last = (tokens, judge.score(tokens, self.texts(tokens), on_ids))
        return last[1]

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric] = {}
        for label, name in self._labels().items():
            for definition, function in DEFINITIONS.items():
                metrics[f"{definition}_{label}"] = Perplexity(function, partial(self._score, name, definition))
        metrics |= {"entropy_bits": Entropy(), **{f"distinct_{n}": Distinct(n) for n in (1, 2, 3)}}
        if not self.alone:
            metrics["unigram_tv"] = UnigramTotalVariation(torch.from_numpy(self.statistics.unigrams))
            metrics["memorised_8grams"] = Memorised(self.statistics.memorised)
        return MetricCollection(metrics, compute_groups=False)


class Perplexity(Metric):
    """Perplexity under a judge by one of the two published definitions, with a bootstrap interval and the number of judged tokens."""

    higher_is_better = False

    def __init__(self, definition: Callable, score: Callable[[Tensor], tuple[Tensor, Tensor]], **kwargs):
        super().__init__(**kwargs)
        self.definition, self.score = definition, score
        self.add_state("nll", [], dist_reduce_fx="cat")
        self.add_state("count", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        nll, count = self.score(tokens)
        self.nll.append(nll.double().to(self.device))
        self.count.append(count.long().to(self.device))

    def compute(self) -> tuple:
        nll, count = (torch.cat(part) if isinstance(part, list) else part for part in (self.nll, self.count))
        nll, count = nll.cpu(), count.cpu()
        return (self.definition(nll, count), *(torch.tensor(v) for v in bootstrap(self.definition, nll, count)), count.sum())


class Entropy(SampleMean):
    """Entropy in bits of the tokens of one sample, mean over samples: low where samples repeat themselves."""

    higher_is_better = True

    def of(self, tokens: Tensor) -> Tensor:
        return torch.stack([_entropy(row) for row in tokens]) if len(tokens) else torch.zeros(0)


def _entropy(tokens: Tensor) -> Tensor:
    shares = tokens.unique(return_counts=True)[1] / len(tokens)
    return -(shares * shares.log2()).sum()


class Distinct(SampleMean):
    """Share of the n-grams of a sample that are distinct, mean over samples: does not depend on their number."""

    higher_is_better = True

    def __init__(self, n: int, **kwargs):
        super().__init__(**kwargs)
        self.n = n

    def of(self, tokens: Tensor) -> Tensor:
        grams = tokens.unfold(1, self.n, 1)  # (B, D - n + 1, n)
        shares = [row.unique(dim=0).shape[0] / row.shape[0] for row in grams]
        return torch.tensor(shares, dtype=torch.float64)


class Memorised(SampleMean):
    """Share of the 8-grams of a sample that stand in the training text."""

    def __init__(self, memorised: Callable[[np.ndarray], np.ndarray], **kwargs):
        super().__init__(**kwargs)
        self.memorised = memorised

    def of(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(self.memorised(tokens.cpu().numpy())).to(tokens.device)
