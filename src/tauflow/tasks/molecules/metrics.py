"""Metrics of sampled molecules: validity, uniqueness, hits of properties, and the metrics of MOSES.

RDKit reads samples once for all metrics. The metrics chosen with `--judge` (fcd, diversity, moses) are of all
samples together. Their standard error is that of the mean over PARTS disjoint parts of the samples, each
measured on its own: the distance of few molecules is biased, its spread over parts isn't.

Shapes: B samples of an update, N samples in all, D tokens, C properties.
"""

import math
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from tauflow.denoise import DROPPED
from tauflow.distributed import rank
from tauflow.errors import SettingsError
from tauflow.tasks.metrics import ConditionalSampleMean, SampleMean, SampleMetric, joined
from tauflow.tasks.molecules.bins import Bins
from tauflow.tasks.molecules.chemistry import PROPERTIES, canonical, parse_valid, properties
from tauflow.tasks.molecules.moses import (
    Filters,
    Fingerprints,
    Reference,
    chemnet_features,
    frechet,
    moments,
    moses_metrics,
)
from tauflow.tasks.sequences.metrics import Unique

NAN = torch.tensor(torch.nan)


class SampledMolecules:
    """Samples as molecules; the newest ones are remembered for all metrics, tables and drawings."""

    def __init__(self, texts: Callable[[Tensor], list[str]]):
        self._texts = texts
        self._last: tuple[Tensor, list[str | None]] | None = None

    def canonical(self, tokens: Tensor) -> list[str | None]:
        """Return the canonical SMILES of samples (B, D); None for invalid ones."""
        if self._last is None or not torch.equal(self._last[0], tokens):
            self._last = tokens.clone(), [canonical(text) for text in self._texts(tokens)]
        return self._last[1]

    def properties(self, tokens: Tensor) -> dict[str, np.ndarray]:
        """Return the properties of samples (B, D), float64 (B,) each; NaN for invalid ones."""
        none = (math.nan,) * len(PROPERTIES)
        rows = [none if each is None else _property_values(each) for each in self.canonical(tokens)]
        columns = np.array(rows, dtype=np.float64).reshape(-1, len(PROPERTIES)).T
        return dict(zip(PROPERTIES, columns, strict=True))


@lru_cache(maxsize=2**16)
def _property_values(smiles: str) -> tuple[float, ...]:
    found = properties([smiles])
    return tuple(float(found[name][0]) for name in PROPERTIES)


class Valid(SampleMean):
    """Share of samples that RDKit reads as molecules; an empty one isn't a molecule."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, molecules: SampledMolecules, **kwargs: Any):
        super().__init__(**kwargs)
        self.molecules = molecules

    def of(self, tokens: Tensor) -> Tensor:
        found = self.molecules.canonical(tokens)
        return torch.tensor([each is not None for each in found], dtype=torch.bool, device=tokens.device)


class UniqueValid(Unique):
    """Distinct molecules as a share of the valid samples; NaN if none is valid."""

    def compute(self) -> tuple[Tensor, Tensor]:
        return super().compute() if len(joined(self.digests)) else (NAN, NAN)


class Hit(ConditionalSampleMean):
    """Share of the valid samples whose properties lie in the requested bins, all of them or one column's."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, molecules: SampledMolecules, bins: Bins, column: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.molecules = molecules
        self.bins = bins
        self.column = column

    def of(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is None:
            return torch.zeros(0, device=tokens.device)
        there = torch.from_numpy(self.bins.of(self.molecules.properties(tokens)))  # (B, C)
        wanted = condition.cpu()
        if self.column is not None:
            there = there[:, [self.column]]
            wanted = wanted[:, [self.column]]
        counted = (there != DROPPED).all(1) & (wanted != DROPPED).any(1)
        return ((there == wanted) | (wanted == DROPPED)).all(1)[counted].to(tokens.device)


JudgeName = Literal["fcd", "diversity", "moses"]
PARTS = 5
UNIQUE_AT = (1000, 10000)
DISTANCES = ("fcd", "logp", "sa", "qed", "weight")  # smaller is better
Scores = dict[str, tuple[float, float]]  # value and standard error by name


def read_judges(text: str) -> list[JudgeName]:
    names: list[Any] = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [name for name in names if name not in get_args(JudgeName)]
    if unknown:
        raise SettingsError(
            f"there is no judge {unknown[0]!r} of molecules; choose from {', '.join(get_args(JudgeName))}"
        )
    return list(dict.fromkeys(names))


class RealMolecules:
    """The molecules that samples are compared with; their statistics are computed on first use.

    Args:
        moses: use the statistics and filters of MOSES; otherwise those of the task's validation molecules.
        smiles: returns the validation molecules as canonical SMILES.
        is_known: tells whether a canonical SMILES is in the training data; None if that isn't known.
    """

    def __init__(
        self, moses: bool, smiles: Callable[[], list[str]], is_known: Callable[[str], bool] | None = None
    ):
        self.moses = moses
        self.train = None if is_known is None else TrainingMolecules(is_known)
        self._smiles = smiles

    @cached_property
    def test(self) -> Reference:
        return Reference.shipped("test") if self.moses else Reference.of(self._smiles())

    @cached_property
    def scaffolds(self) -> Reference | None:
        """Return statistics of molecules with scaffolds that training molecules don't have, if any."""
        return Reference.shipped("test_scaffolds") if self.moses else None

    @cached_property
    def filters(self) -> Filters | None:
        return Filters.shipped() if self.moses else None


class TrainingMolecules(Container[str]):
    """The training molecules, of which only digests are known."""

    def __init__(self, is_known: Callable[[str], bool]):
        self._is_known = is_known

    def __contains__(self, smiles: object) -> bool:
        return self._is_known(str(smiles))


class Benchmark:
    """Computes all metrics of a judge, once for the newest samples; `device` is that of ChemNet."""

    def __init__(
        self,
        name: JudgeName,
        texts: Callable[[Tensor], list[str]],
        real: RealMolecules,
        device: torch.device | str = "cpu",
    ):
        self.name = name
        self._texts = texts
        self._real = real
        self._device = device
        self._last: tuple[Tensor, Scores] | None = None

    def __call__(self, tokens: Tensor) -> Scores:
        if self._last is None or not torch.equal(self._last[0], tokens):
            texts = self._texts(tokens)
            if not any(map(canonical, texts)) and rank() == 0:
                warnings.warn(f"no sample is valid: {self.name} cannot be measured", stacklevel=2)
            self._last = tokens, self._measure(texts)
        return self._last[1]

    def metrics(self) -> "dict[str, BenchmarkMetric]":
        return {
            name: (BenchmarkDistance if name.startswith(DISTANCES) else BenchmarkMetric)(self, name)
            for name in self._metric_names()
        }

    def _metric_names(self) -> list[str]:
        if self.name == "fcd":
            return ["fcd_test"]
        if self.name == "diversity":
            return ["intdiv", "intdiv2"]
        kinds = ("fcd", "snn", "frag", "scaf")
        names = [f"unique_{count}" for count in UNIQUE_AT]
        names += [f"{kind}_test" for kind in kinds]
        if self._real.moses:
            names += [f"{kind}_testsf" for kind in kinds]
            names.append("filters")
        names += ["intdiv", "intdiv2", "logp", "sa", "qed", "weight"]
        if self._real.train is not None:
            names.append("novelty")
        return names

    def _measure(self, texts: Sequence[str]) -> Scores:
        if self.name == "moses":
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="unique@")  # results say how many samples there are
                everything = self._moses(texts, UNIQUE_AT)
            return with_errors(everything, [self._moses(part, ()) for part in _split(texts) if len(part)])
        valid = [smiles for smiles in map(canonical, texts) if smiles is not None]
        if self.name == "fcd":
            features = chemnet_features(valid, self._device)
            return with_errors(self._fcd(features), [self._fcd(part) for part in _split(features)])
        packed = Fingerprints.of(parse_valid(valid)).packed
        return with_errors(_diversity(packed), [_diversity(part) for part in _split(packed)])

    def _fcd(self, features: np.ndarray) -> dict[str, float]:
        test = self._real.test
        return {"fcd_test": frechet(*moments(features), test.mean, test.covariance)}

    def _moses(self, texts: Sequence[str], unique_at: Sequence[int]) -> dict[str, float]:
        real = self._real
        found = moses_metrics(
            texts,
            real.train,
            real.test,
            real.scaffolds,
            real.filters,
            unique_at=unique_at,
            device=self._device,
        )
        # "FCD/Test" is our fcd_test
        return {name.lower().replace("/", "_").replace("@", "_"): value for name, value in found.items()}


def _diversity(packed: np.ndarray) -> dict[str, float]:
    first, second = Fingerprints(packed).diversity()
    return {"intdiv": first, "intdiv2": second}


def _split(values: Any) -> list[Any]:
    return [values[first::PARTS] for first in range(PARTS)]


def with_errors(everything: Mapping[str, float], parts: Sequence[Mapping[str, float]]) -> Scores:
    """Return values with their standard errors from those of parts; NaN if parts lack a finite value."""
    scores: Scores = {}
    for name, value in everything.items():
        values = np.array([part[name] for part in parts if name in part])
        error = np.nan
        if len(values) > 1 and np.isfinite(values).all():
            error = float(values.std(ddof=1) / len(values) ** 0.5)
        scores[name] = value, error
    return scores


class BenchmarkMetric(SampleMetric):
    """One metric of a benchmark of all samples together."""

    higher_is_better = True
    logarithmic = False
    tokens: list[Tensor]

    def __init__(self, benchmark: Benchmark, name: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.benchmark = benchmark
        self.name = name
        self.add_state("tokens", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.tokens.append(tokens)

    def compute(self) -> tuple[Tensor, Tensor]:
        value, error = self.benchmark(joined(self.tokens).cpu())[self.name]
        return torch.tensor(value), torch.tensor(error)


class BenchmarkDistance(BenchmarkMetric):
    """A distance from real molecules."""

    higher_is_better = False
    logarithmic = True
