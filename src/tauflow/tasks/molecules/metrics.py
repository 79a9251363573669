"""What RDKit says of samples, asked once for all metrics, tables and drawings.

Shapes: B samples, D tokens.
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
from tauflow.tasks.molecules.chemistry import PROPERTIES, canonical, molecules, properties
from tauflow.tasks.molecules.moses import (
    Filters,
    Fingerprints,
    Reference,
    features,
    frechet,
    moments,
    moses_metrics,
)
from tauflow.tasks.sequences.metrics import Unique

REMEMBERED = 2**16  # molecules whose properties are kept


class Chemist:
    """Looks at samples as molecules; the newest ones are remembered.

    Args:
        texts: turns samples (B, D) into SMILES.
    """

    def __init__(self, texts: Callable[[Tensor], list[str]]):
        self._texts = texts
        self._last: tuple[Tensor, list[str | None]] | None = None

    def canonical(self, tokens: Tensor) -> list[str | None]:
        """Return the canonical SMILES of samples (B, D); None of what is no molecule."""
        if self._last is None or not torch.equal(self._last[0], tokens):
            self._last = tokens.clone(), [canonical(text) for text in self._texts(tokens)]
        return self._last[1]

    def properties(self, tokens: Tensor) -> dict[str, np.ndarray]:
        """Return the properties of samples (B, D), float64 (B,) each; NaN of what is no molecule."""
        none = (math.nan,) * len(PROPERTIES)
        rows = [none if each is None else _numbers(each) for each in self.canonical(tokens)]
        columns = np.array(rows, dtype=np.float64).reshape(-1, len(PROPERTIES)).T
        return dict(zip(PROPERTIES, columns, strict=True))


@lru_cache(maxsize=REMEMBERED)
def _numbers(smiles: str) -> tuple[float, ...]:
    found = properties([smiles])
    return tuple(float(found[name][0]) for name in PROPERTIES)


# How good molecules are: validity, how many are distinct, and whether they are what was asked for.
#
# RDKit looks at samples once for all metrics. Shapes: B samples of an update, D tokens, C properties.


NOTHING = torch.tensor(torch.nan)


class Valid(SampleMean):
    """Share of the samples that are molecules to RDKit; an empty one is none."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, chemist: Chemist, **kwargs: Any):
        super().__init__(**kwargs)
        self.chemist = chemist

    def of(self, tokens: Tensor) -> Tensor:
        found = self.chemist.canonical(tokens)
        return torch.tensor([each is not None for each in found], dtype=torch.bool, device=tokens.device)


class UniqueValid(Unique):
    """Distinct molecules among the valid samples, as a share of them; NaN where none is valid."""

    def compute(self) -> tuple[Tensor, Tensor]:
        return super().compute() if len(joined(self.digests)) else (NOTHING, NOTHING)


class Hit(ConditionalSampleMean):
    """Share of the valid samples whose properties lie in the bins asked for, all of them or one.

    Args:
        chemist: looks at samples.
        bins: of the properties, the columns of a condition.
        column: of the property that counts; None: all must hit.
    """

    higher_is_better = True
    logarithmic = False

    def __init__(self, chemist: Chemist, bins: Bins, column: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.chemist = chemist
        self.bins = bins
        self.column = column

    def of(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is None:  # nothing was asked for
            return torch.zeros(0, device=tokens.device)
        there = torch.from_numpy(self.bins.of(self.chemist.properties(tokens)))  # (B, C)
        asked = condition.cpu()
        if self.column is not None:
            there, asked = there[:, [self.column]], asked[:, [self.column]]
        counted = (there != DROPPED).all(1) & (asked != DROPPED).any(1)
        return ((there == asked) | (asked == DROPPED)).all(1)[counted].to(tokens.device)


# The judges of molecules: ChemNet's distance, internal diversity, and all metrics of MOSES.
#
# Samples are judged together, once for all metrics of a judge. A standard error is that of the mean over
# PARTS
# disjoint parts of the samples, each judged on its own: the distance of few molecules is biased, its spread
# over parts is not.
#
# Shapes: N samples, D tokens.


JudgeName = Literal["fcd", "diversity", "moses"]
PARTS = 5
UNIQUE_AT = (1000, 10000)
DISTANCES = ("fcd", "logp", "sa", "qed", "weight")  # what is better when it is small
Scores = dict[str, tuple[float, float]]  # value and standard error by name


class Yardstick:
    """What samples are compared with, made when it is first asked for.

    Args:
        moses: take the statistics and filters of MOSES; else those of real molecules of the task.
        smiles: gives these, canonical.
        known: says whether a canonical SMILES is of the training data, where that is known.
    """

    def __init__(
        self, moses: bool, smiles: Callable[[], list[str]], known: Callable[[str], bool] | None = None
    ):
        self.moses = moses
        self._smiles = smiles
        self.train = None if known is None else Known(known)

    @cached_property
    def test(self) -> Reference:
        """Return statistics of real molecules."""
        return Reference.shipped("test") if self.moses else Reference.of(self._smiles())

    @cached_property
    def scaffolds(self) -> Reference | None:
        """Return those of real molecules with scaffolds that the training data has not, if there are some."""
        return Reference.shipped("test_scaffolds") if self.moses else None

    @cached_property
    def filters(self) -> Filters | None:
        """Return filters of molecules that a chemist would not make, where there are some."""
        return Filters.shipped() if self.moses else None


class Known(Container[str]):
    """The training molecules, of which digests are known and no list."""

    def __init__(self, known: Callable[[str], bool]):
        self._known = known

    def __contains__(self, smiles: object) -> bool:
        return self._known(str(smiles))


class Judge:
    """Judges samples, the newest ones once.

    Args:
        name: which metrics.
        texts: turns samples (N, D) into SMILES.
        yardstick: what they are compared with.
        device: of ChemNet.
    """

    def __init__(
        self,
        name: JudgeName,
        texts: Callable[[Tensor], list[str]],
        yardstick: Yardstick,
        device: torch.device | str = "cpu",
    ):
        self._name = name
        self._judge = {"fcd": self._fcd, "diversity": self._diversity, "moses": self._moses}[name]
        self._texts = texts
        self._yardstick = yardstick
        self._device = device
        self._last: tuple[Tensor, Scores] | None = None

    def __call__(self, tokens: Tensor) -> Scores:
        """Return the metrics of samples (N, D)."""
        if self._last is None or not torch.equal(self._last[0], tokens):
            texts = self._texts(tokens)
            if not any(map(canonical, texts)) and rank() == 0:
                warnings.warn(f"no sample is valid: {self._name} cannot be measured", stacklevel=2)
            self._last = tokens, self._judge(texts)
        return self._last[1]

    def _fcd(self, texts: Sequence[str]) -> Scores:
        test = self._yardstick.test
        found = features(_valid(texts), self._device)
        parts = [{"fcd_test": _distance(part, test)} for part in _parts(found)]
        return with_errors({"fcd_test": _distance(found, test)}, parts)

    def _diversity(self, texts: Sequence[str]) -> Scores:
        packed = Fingerprints.of(molecules(_valid(texts))).packed
        everything, *parts = (
            dict(zip(("intdiv", "intdiv2"), Fingerprints(each).diversity(), strict=True))
            for each in (packed, *_parts(packed))
        )
        return with_errors(everything, parts)

    def _moses(self, texts: Sequence[str]) -> Scores:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="unique@")  # a note says how many samples there are
            everything = self._measured(texts, UNIQUE_AT)
        return with_errors(everything, [self._measured(part, ()) for part in _parts(texts) if len(part)])

    def _measured(self, texts: Sequence[str], unique_at: Sequence[int]) -> dict[str, float]:
        rule = self._yardstick
        against = (rule.train, rule.test, rule.scaffolds, rule.filters)
        found = moses_metrics(texts, *against, unique_at=unique_at, device=self._device)
        return {name_of(name): value for name, value in found.items()}


def name_of(name: str) -> str:
    """Return our name of a metric of MOSES: "FCD/Test" is fcd_test."""
    return name.lower().replace("/", "_").replace("@", "_")


def with_errors(everything: Mapping[str, float], parts: Sequence[Mapping[str, float]]) -> Scores:
    """Return numbers with their standard errors from those of parts; NaN where parts say nothing."""
    found: Scores = {}
    for name, value in everything.items():
        numbers = np.array([part[name] for part in parts if name in part])
        enough = len(numbers) > 1 and np.isfinite(numbers).all()
        found[name] = value, float(numbers.std(ddof=1) / len(numbers) ** 0.5) if enough else np.nan
    return found


def _valid(texts: Sequence[str]) -> list[str]:
    return [smiles for smiles in map(canonical, texts) if smiles is not None]


def _distance(found: np.ndarray, test: Reference) -> float:
    return frechet(*moments(found), test.mean, test.covariance)


def _parts(values: Any) -> list[Any]:
    """Return every PARTS-th value, from each of the first on."""
    return [values[first::PARTS] for first in range(PARTS)]


class Judged(SampleMetric):
    """One metric of a judge.

    Args:
        judge: of all samples together.
        name: of the metric.
    """

    higher_is_better = True
    logarithmic = False
    tokens: list[Tensor]

    def __init__(self, judge: Judge, name: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.judge = judge
        self.name = name
        self.add_state("tokens", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.tokens.append(tokens)

    def compute(self) -> tuple[Tensor, Tensor]:
        value, error = self.judge(joined(self.tokens).cpu())[self.name]
        return torch.tensor(value), torch.tensor(error)


class JudgedDistance(Judged):
    """A distance from real molecules."""

    higher_is_better = False
    logarithmic = True


def judged(judge: Judge, names: Sequence[str]) -> dict[str, Judged]:
    """Return metrics of a judge by their names."""
    return {name: (JudgedDistance if name.startswith(DISTANCES) else Judged)(judge, name) for name in names}


def names_of(judge: JudgeName, yardstick: Yardstick) -> list[str]:
    """Return the metrics of a judge, given what there is to compare with."""
    if judge == "fcd":
        return ["fcd_test"]
    if judge == "diversity":
        return ["intdiv", "intdiv2"]
    kinds = ("fcd", "snn", "frag", "scaf")
    names = [f"unique_{count}" for count in UNIQUE_AT]
    names += [f"{kind}_test" for kind in kinds]
    if yardstick.moses:
        names += [f"{kind}_testsf" for kind in kinds] + ["filters"]
    names += ["intdiv", "intdiv2", *DISTANCES[1:]]
    return [*names, "novelty"] if yardstick.train is not None else names


def judges_of(text: str) -> list[JudgeName]:
    """Return the judges of a setting such as "fcd,diversity"."""
    names: list[Any] = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [name for name in names if name not in get_args(JudgeName)]
    if unknown:
        raise SettingsError(
            f"there is no judge {unknown[0]!r} of molecules; there are {', '.join(get_args(JudgeName))}"
        )
    return list(dict.fromkeys(names))
