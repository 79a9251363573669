"""Molecules as SMILES or SELFIES strings: data, samples, conditions, and metrics.

Shapes: B samples, D tokens, C properties of a condition.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError
from tauflow.numerics import seed_of
from tauflow.tasks.molecules.bins import Bins, property_names
from tauflow.tasks.molecules.chemistry import canonical, dataset, draw, optional_module, properties
from tauflow.tasks.molecules.metrics import (
    Benchmark,
    Hit,
    RealMolecules,
    SampledMolecules,
    UniqueValid,
    Valid,
    read_judges,
)
from tauflow.tasks.sequences.metrics import Novel
from tauflow.tasks.sequences.sources import Entry, SequenceSource, StringFiles
from tauflow.tasks.sequences.task import STATISTICS, Sequences
from tauflow.tasks.sequences.tokens import FOREIGN, PAD
from tauflow.tasks.text.corpus import is_validation

Representation = Literal["smiles", "selfies"]
SELFIES_TOKENS = r"\[[^\]]*\]|\."  # a symbol, or the dot between two molecules
MOSES_TOKENS = (
    *(PAD, "#", "(", ")", "-", "1", "2", "3", "4", "5", "6", "=", "Br", "C", "Cl", "F", "N", "O", "S"),
    *("[H]", "[nH]", "c", "n", "o", "s"),
)
MOSES_LENGTH = 56  # the longest molecule has 54 tokens
EDGE_ITEMS = 4096  # training molecules from which the edges of bins are computed
SIZE = (128, 160)  # height and width of a drawing
DIGITS = 4  # decimals of a property in a table


def from_smiles(smiles: str, representation: Representation) -> str | None:
    """Return a molecule in a representation; None if SELFIES can't express it."""
    if representation == "smiles":
        return smiles
    selfies = optional_module("selfies")
    try:
        return selfies.encoder(smiles)
    except selfies.EncoderError:
        return None


def to_smiles(text: str, representation: Representation) -> str:
    """Return the SMILES of a string; a string that isn't well formed stays as it is."""
    if representation == "smiles" or FOREIGN in text:
        return text
    selfies = optional_module("selfies")
    try:
        return selfies.decoder(text)
    except selfies.DecoderError:
        return text


@dataclass(frozen=True)
class MoleculeSource(SequenceSource):
    """The SMILES of a source in a representation."""

    source: SequenceSource
    representation: Representation
    trusted: bool  # whether the SMILES are canonical already; others are checked and made canonical
    share: float = 1.0  # of the molecules that is used, chosen by their text
    seed: int = 0

    def entries(self) -> Iterator[Entry]:
        for entry in self.source.entries():
            # the key makes the choice independent of the split into training and validation
            if self.share < 1 and not is_validation(f"share of {entry.text}", self.share, self.seed):
                continue
            smiles = entry.text if self.trusted else canonical(entry.text)
            text = None if smiles is None else from_smiles(smiles, self.representation)
            if text is None:
                problem = "RDKit can't read" if smiles is None else "SELFIES can't express"
                raise SettingsError(
                    f"{entry.where}: {problem} the molecule {entry.text[:80]!r}; fix or remove it"
                )
            yield entry._replace(text=text)

    def describe(self) -> str:
        return self.source.describe()

    def digest(self) -> str:
        return f"{self.source.digest()} {self.representation} {self.trusted} {self.share} {self.seed}"


@dataclass(eq=False, repr=False)
class Molecules(Sequences):
    """Molecules as SMILES or SELFIES: those of the MOSES benchmark, or files with one SMILES per line.

    The MOSES data are inside the package `molsets`. SMILES from files are made canonical. All settings of
    `Sequences` work here too.

    Args:
        representation: smiles, or selfies, in which every string is a molecule.
        moses: use the MOSES data; the default if you give no files and no hub dataset.
        share: of the molecules that is used, chosen by their text.
        properties: for conditions, some of logp, qed, sa and weight, separated by commas.
        bins: per property; each has the same number of training molecules.
        edges: between the bins, as a checkpoint stores them; by default quantiles of the training molecules.
        judges: more metrics of samples: fcd, diversity (internal), moses (all metrics of MOSES).
    """

    local: ClassVar[tuple[str, ...]] = (*Sequences.local, "moses", "judges")
    may_change = (*Sequences.may_change, "judges")
    sample_settings = (*Sequences.sample_settings, "representation")

    tokens: str = "smiles"
    batch_size: int = 64
    epoch_items: int = 32768
    val_items: int = 1024
    representation: Representation = "smiles"
    moses: bool | None = None
    share: float = 1.0
    properties: str | None = None
    bins: int = 4
    edges: list[list[float]] | None = None
    judges: str = ""

    marks = MappingProxyType({"✗": "marks what isn't a molecule"})

    def __post_init__(self) -> None:
        optional_module("rdkit.Chem")
        read_judges(self.judges)
        if self.moses is None:
            self.moses = not (self.files or self.hub)
        if self.representation == "selfies":
            optional_module("selfies")
            if self.tokens == "smiles":
                self.tokens = SELFIES_TOKENS
        elif self.moses and self.tokens == "smiles" and self.merges is None:
            self.token_names = self.token_names or list(MOSES_TOKENS)
            self.length = self.length or MOSES_LENGTH
        super().__post_init__()
        self._judge_device: torch.device | str = "cpu"
        self.conditions = ()
        if self.properties is not None:
            names = property_names(self.properties)
            self.conditions = (self.bins,) * len(names)
            self._bins = self._make_bins(names)
            self.edges = [list(row) for row in self._bins.edges]

    @classmethod
    def rebuilt(cls, init_args: Mapping[str, Any], data: Mapping[str, Any]) -> Self:
        """Rebuild the task from an untrusted file; it opens the MOSES data only if `data` says so."""
        return super().rebuilt(init_args, {"moses": False, **data})

    def _make_bins(self, names: Sequence[str]) -> Bins:
        if self.edges is not None:
            return Bins.given(names, self.edges, self.bins)
        texts = self.strings("train")
        generator = np.random.Generator(np.random.Philox(seed_of("edges", self.seed)))
        some = generator.permutation(len(texts))[:EDGE_ITEMS]
        found = properties([self._canonical(texts[int(row)]) for row in some], names)
        return Bins.fitted(names, found, self.bins)

    # Data

    @property
    def _from_moses(self) -> bool:
        return bool(self.moses) and not (self.files or self.hub)

    @property
    def source(self) -> SequenceSource:
        source = StringFiles(str(dataset("train"))) if self._from_moses else super().source
        return self._in_representation(source)

    @property
    def val_source(self) -> SequenceSource | None:
        source = StringFiles(str(dataset("test"))) if self._from_moses else super().val_source
        return self._in_representation(source) if source else None

    def _in_representation(self, source: SequenceSource) -> SequenceSource:
        return MoleculeSource(source, self.representation, self._from_moses, self.share, self.seed)

    @property
    def alone(self) -> str:  # type: ignore[override]  # as in the base class
        if self._from_moses or not super().alone:
            return ""
        bins = "bins are drawn uniformly unless --condition names some; " if self.conditions else ""
        return f"{bins}{super().alone}, or moses=true"

    def labels(self, text: str) -> list[int]:
        return self._bins.of(properties([self._canonical(text)], self._bins.names))[0].tolist()

    @property
    def labelled_by(self) -> str:
        return f"{super().labelled_by} {self.properties} {self.edges}"

    def _canonical(self, text: str) -> str:
        smiles = to_smiles(text, self.representation)
        return canonical(smiles) or smiles

    # Samples

    @cached_property
    def _molecules(self) -> SampledMolecules:
        return SampledMolecules(self.texts)

    def texts(self, tokens: Tensor) -> list[str]:
        return [to_smiles(text, self.representation) for text in super().texts(tokens)]

    def valid(self, tokens: Tensor) -> list[str]:
        """Return the canonical SMILES of the valid ones of samples (B, D)."""
        return [smiles for smiles in self._molecules.canonical(tokens) if smiles is not None]

    def _valid_strings(self, tokens: Tensor) -> list[str]:
        """Return the valid ones of samples (B, D) in the representation of the data."""
        return [from_smiles(smiles, self.representation) or smiles for smiles in self.valid(tokens)]

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return numbered SMILES; invalid ones end with a cross, `·` is padding inside a string."""
        shown = super().show(tokens, condition)
        if self.representation == "selfies":
            shown = [f"[{number}] {text}" for number, text in enumerate(self.texts(tokens), start=1)]
        found = self._molecules.canonical(tokens)
        return [text if smiles else f"{text}  ✗" for text, smiles in zip(shown, found, strict=True)]

    def draw(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        """Return drawings uint8 (B, H, W, 3) of samples; invalid ones are crossed out."""
        return draw(self.texts(tokens), SIZE)

    def table(self, tokens: Tensor, condition: Tensor | None = None) -> dict[str, list]:
        """Return columns: the SMILES of samples, canonical if valid, their validity, and properties."""
        found = self._molecules.canonical(tokens)
        columns: dict[str, list] = {
            "smiles": [smiles or text for smiles, text in zip(found, self.texts(tokens), strict=True)],
            "valid": [smiles is not None for smiles in found],
        }
        for name, numbers in self._molecules.properties(tokens).items():
            columns[name] = numbers.round(DIGITS).tolist()
        if condition is not None:
            columns["condition"] = [self.caption(row) for row in condition.cpu()]
        return columns

    # Conditions

    def caption(self, condition: Tensor) -> str:
        return self._bins.caption(condition.tolist())

    def condition(self, text: str) -> Tensor:
        """Read a condition: "logp=high qed=0.8", or the numbers of the bins."""
        if not self.conditions or "=" not in text:
            return super().condition(text)
        return torch.tensor(self._bins.read(text))

    def sample_conditions(self, count: int, first: int = 0) -> Tensor | None:
        """Return the conditions of validation items; without any, random bins, which are equally likely."""
        if not self.conditions or not self.alone:
            return super().sample_conditions(count, first)
        draws = (np.random.Philox(seed_of("bins", number)) for number in range(first, first + count))
        rows = [np.random.Generator(each).integers(self.conditions) for each in draws]
        return torch.from_numpy(np.array(rows, np.int64).reshape(-1, len(self.conditions)))

    # Metrics

    @property
    def primary_metric(self) -> str:  # type: ignore[override]  # as in the base class
        return "valid"

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        self._judge_device = device or "cpu"
        self.judges = names
        asked = read_judges(names)
        if "fcd" in asked or "moses" in asked:
            _ = self._real.test  # errors about missing data come now
            if not (self.files or self.hub or self.moses):
                warnings.warn(
                    "samples are compared with the validation molecules of the run; for a model trained on "
                    "MOSES, pass --data moses=true to compare them with its test set",
                    stacklevel=2,
                )
        if "moses" in asked and self._is_part_of_moses:
            warnings.warn("novelty is skipped: that of MOSES is against all of its molecules", stacklevel=2)

    @cached_property
    def _real(self) -> RealMolecules:
        is_known = None if self.alone or self._is_part_of_moses else self._is_known

        def validation_smiles() -> list[str]:
            return self.valid(self.real_tokens(f"--judge {self.judges}"))

        return RealMolecules(self._from_moses, validation_smiles, is_known)

    @property
    def _is_part_of_moses(self) -> bool:
        return self._from_moses and self.share < 1

    def _is_known(self, smiles: str) -> bool:
        text = from_smiles(smiles, self.representation)
        return text is not None and bool(self.statistics.known([text])[0])

    def real_tokens(self, user: str) -> Tensor:
        """Return validation molecules (N, D); without any, the error says that the user needs some."""
        if self.alone:
            raise SettingsError(
                f"{user} needs real molecules. Pass --data files=... or --data moses=true, or put the run's "
                f"{STATISTICS} next to the checkpoint."
            )
        return torch.from_numpy(self.statistics.validation.astype(np.int64))

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {"valid": Valid(self._molecules)}
        metrics |= {str(name): metric for name, metric in super().sample_metrics().items()}
        metrics["unique"] = UniqueValid(self.valid)
        if not self.alone:
            metrics["novel"] = Novel(self._valid_strings, self.statistics.known)
        if self.conditions:
            metrics["hit"] = Hit(self._molecules, self._bins)
        if len(self.conditions) > 1:
            for column, name in enumerate(self._bins.names):
                metrics[f"hit_{name}"] = Hit(self._molecules, self._bins, column)
        judged: dict[str, Metric | MetricCollection] = {}
        for judge in read_judges(self.judges):
            benchmark = Benchmark(judge, self.texts, self._real, self._judge_device)
            judged = {**benchmark.metrics(), **judged}
        return MetricCollection(metrics | judged, compute_groups=False)
