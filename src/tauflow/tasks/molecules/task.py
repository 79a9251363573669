"""Molecules: strings that RDKit reads, their properties and drawings, and the metrics of MOSES.

Shapes: B samples, D tokens, C properties that are asked for.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError
from tauflow.numerics import seed_of
from tauflow.tasks.molecules.bins import Bins, property_names
from tauflow.tasks.molecules.chemistry import canonical, dataset, draw, needed, properties
from tauflow.tasks.molecules.metrics import (
    Chemist,
    Hit,
    Judge,
    UniqueValid,
    Valid,
    Yardstick,
    judged,
    judges_of,
    names_of,
)
from tauflow.tasks.molecules.written import SELFIES, MoleculeSource, Representation, smiles_of, written
from tauflow.tasks.sequences.metrics import Novel
from tauflow.tasks.sequences.sources import Source, StringFiles
from tauflow.tasks.sequences.task import STATISTICS, Sequences
from tauflow.tasks.sequences.tokens import PAD

MOSES_TOKENS = (
    *(PAD, "#", "(", ")", "-", "1", "2", "3", "4", "5", "6", "=", "Br", "C", "Cl", "F", "N", "O", "S"),
    *("[H]", "[nH]", "c", "n", "o", "s"),
)
MOSES_LENGTH = 56  # the longest molecule has 54 tokens
EDGE_ITEMS = 4096  # training molecules that the edges of bins are found from
SIZE = (128, 160)  # height and width of a drawing
DIGITS = 4  # of a property in a table, after the point


@dataclass(eq=False, repr=False)
class Molecules(Sequences):
    """Molecules as SMILES or SELFIES: those of the MOSES benchmark, or files with a SMILES in each line.

    The data of MOSES is inside the package `molsets`. SMILES of files are made canonical. All settings of
    `Sequences` are settings here too.

    Args:
        representation: smiles, or selfies, whose every string is a molecule.
        moses: take the data of MOSES; by default where no files and no hub are named.
        share: of the molecules that is used, chosen by their text.
        properties: that a molecule can be asked for, some of logp, qed, sa and weight, separated by commas.
        bins: of each of these properties; training molecules are equally often in each.
        edges: between the bins, as a checkpoint keeps them; by default quantiles of training molecules.
        judges: of samples besides validity: fcd, diversity (internal), moses (all metrics of MOSES).
    """

    local: ClassVar[tuple[str, ...]] = (*Sequences.local, "moses", "judges")
    may_change = (*Sequences.may_change, "judges")

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

    def __post_init__(self) -> None:
        needed("rdkit.Chem")
        if not 0 < self.share <= 1 or self.bins < 2:
            raise SettingsError(
                f"molecules need share in (0, 1] and bins >= 2, got {self.share} and {self.bins}"
            )
        judges_of(self.judges)
        if self.moses is None:
            self.moses = not (self.files or self.hub)
        if self.representation == "selfies":
            needed("selfies")
            self.tokens = SELFIES if self.tokens == "smiles" else self.tokens
        elif self.moses and self.tokens == "smiles" and self.merges is None:
            self.token_names = self.token_names or list(MOSES_TOKENS)
            self.length = self.length or MOSES_LENGTH
        super().__post_init__()
        self._judge_device: torch.device | str = "cpu"
        names = property_names(self.properties) if self.properties is not None else ()
        self.conditions = (self.bins,) * len(names)
        if names:
            self._bins = self._found_bins(names)
            self.edges = [list(row) for row in self._bins.edges]

    @classmethod
    def rebuilt(cls, init_args: Mapping[str, Any], data: Mapping[str, Any]) -> Self:
        """Rebuild the task from a file that is not trusted: it opens the data of MOSES only if asked to."""
        return super().rebuilt(init_args, {"moses": False, **data})

    def _found_bins(self, names: Sequence[str]) -> Bins:
        """Return the bins that the settings give, or those of some training molecules."""
        if self.edges is not None:
            return Bins.given(names, self.edges, self.bins)
        texts = self.strings("train")
        generator = np.random.Generator(np.random.Philox(seed_of("edges", self.seed)))
        some = generator.permutation(len(texts))[:EDGE_ITEMS]
        found = properties([self._smiles(texts[int(row)]) for row in some], names)
        return Bins.fitted(names, found, self.bins)

    # Data

    @property
    def _from_moses(self) -> bool:
        return bool(self.moses) and not (self.files or self.hub)

    @property
    def source(self) -> Source:
        return self._written(StringFiles(str(dataset("train"))) if self._from_moses else super().source)

    @property
    def val_source(self) -> Source | None:
        plain = StringFiles(str(dataset("test"))) if self._from_moses else super().val_source
        return self._written(plain) if plain else None

    def _written(self, plain: Source) -> Source:
        """Return the SMILES of a source as this task writes them."""
        return MoleculeSource(plain, self.representation, self._from_moses, self.share, self.seed)

    @property
    def alone(self) -> str:  # type: ignore[override]  # as in the base class
        """Say why a checkpoint without its data and statistics.npz can be measured in part only."""
        if self._from_moses or not super().alone:
            return ""
        bins = "bins are drawn uniformly unless --condition names some; " if self.conditions else ""
        return f"{bins}{super().alone}, or moses=true"

    def labels(self, text: str) -> list[int]:
        """Return the bins (C,) that the properties of a molecule lie in."""
        return self._bins.of(properties([self._smiles(text)], self._bins.names))[0].tolist()

    @property
    def labelled_by(self) -> str:
        """Return what decides the labels: the properties and the edges of their bins."""
        return f"{super().labelled_by} {self.properties} {self.edges}"

    def _smiles(self, text: str) -> str:
        """Return the canonical SMILES of a string of the data."""
        found = canonical(smiles_of(text, self.representation))
        if found is None:
            raise SettingsError(f"RDKit knows no molecule {text[:80]!r}, which the data has; remove it")
        return found

    # Samples

    @cached_property
    def _chemist(self) -> Chemist:
        return Chemist(self.texts)

    def texts(self, tokens: Tensor) -> list[str]:
        """Return samples (B, D) as SMILES: a string ends at the first padding."""
        return [smiles_of(text, self.representation) for text in super().texts(tokens)]

    def valid(self, tokens: Tensor) -> list[str]:
        """Return the canonical SMILES of those samples (B, D) that are molecules."""
        return [smiles for smiles in self._chemist.canonical(tokens) if smiles is not None]

    def _valid_strings(self, tokens: Tensor) -> list[str]:
        """Return the same as the data writes them."""
        return [written(smiles, self.representation) or smiles for smiles in self.valid(tokens)]

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> list[str]:
        """Return numbered SMILES; a cross stands after what is no molecule, `·` for padding inside."""
        shown = super().show(tokens, condition)
        if self.representation == "selfies":
            shown = [f"[{number}] {text}" for number, text in enumerate(self.texts(tokens), start=1)]
        found = self._chemist.canonical(tokens)
        return [f"{text}{'' if each else '  ✗'}" for text, each in zip(shown, found, strict=True)]

    def pictures(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        """Return drawings uint8 (B, H, W, 3) of samples; what is no molecule is crossed out."""
        return draw(self.texts(tokens), SIZE)

    def table(self, tokens: Tensor, condition: Tensor | None = None) -> dict[str, list]:
        """Return the SMILES of samples, canonical where they are valid, and what is known of them."""
        found = zip(self._chemist.canonical(tokens), self.texts(tokens), strict=True)
        columns: dict[str, list] = {"smiles": [smiles or text for smiles, text in found]}
        columns["valid"] = [smiles is not None for smiles in self._chemist.canonical(tokens)]
        for name, numbers in self._chemist.properties(tokens).items():
            columns[name] = numbers.round(DIGITS).tolist()
        if condition is not None:
            columns["condition"] = [self.caption(row) for row in condition.cpu()]
        return columns

    def caption(self, condition: Tensor) -> str:
        """Return the bins that a molecule is asked to lie in."""
        return self._bins.caption(condition.tolist())

    def condition(self, text: str) -> Tensor:
        """Read a condition: "logp=high qed=0.8", or the numbers of the bins."""
        if not self.conditions or "=" not in text:
            return super().condition(text)
        return torch.tensor(self._bins.read(text))

    def sample_conditions(self, count: int, first: int = 0) -> Tensor | None:
        """Return those of validation items; without any, bins at random: molecules are equally in each."""
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
        if not judges_of(names):
            raise SettingsError("--judge names no judge; there are fcd, diversity and moses")
        if "fcd" in judges_of(names) or "moses" in judges_of(names):
            _ = self._yardstick.test  # what is missing is refused now
            if not (self.files or self.hub or self.moses):
                warnings.warn(
                    "samples are compared with the validation molecules of the run; for a model trained on "
                    "MOSES, pass --data moses=true to compare them with its test set",
                    stacklevel=2,
                )
        if "moses" in judges_of(names) and self._part_of_moses:
            warnings.warn("novelty is skipped: that of MOSES is against all of its molecules", stacklevel=2)

    @cached_property
    def _yardstick(self) -> Yardstick:
        known = None if self.alone or self._part_of_moses else self._known
        return Yardstick(self._from_moses, self._real_smiles, known)

    @property
    def _part_of_moses(self) -> bool:
        """Return whether the training molecules are some of those of MOSES."""
        return self._from_moses and self.share < 1

    def _known(self, smiles: str) -> bool:
        text = written(smiles, self.representation)
        return text is not None and bool(self.statistics.known([text])[0])

    def _real_smiles(self) -> list[str]:
        """Return validation molecules."""
        return self.valid(self.real_tokens(f"--judge {self.judges}"))

    def real_tokens(self, user: str) -> Tensor:
        """Return validation molecules (N, D); where there are none, say that the user of them needs some."""
        if self.alone:
            raise SettingsError(
                f"{user} needs real molecules. Pass --data files=... or --data moses=true, or put the run's "
                f"{STATISTICS} next to the checkpoint."
            )
        return torch.from_numpy(self.statistics.validation.astype(np.int64))

    def _judged(self) -> dict[str, Metric | MetricCollection]:
        """Return the metrics of the judges."""
        found: dict[str, Metric | MetricCollection] = {}
        for name in judges_of(self.judges):
            judge = Judge(name, self.texts, self._yardstick, self._judge_device)
            found = judged(judge, names_of(name, self._yardstick)) | found
        return found

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {"valid": Valid(self._chemist)}
        metrics |= {str(name): metric for name, metric in super().sample_metrics().items()}
        metrics["unique"] = UniqueValid(self.valid)
        if not self.alone:
            metrics["novel"] = Novel(self._valid_strings, self.statistics.known)
        if self.conditions:
            metrics["hit"] = Hit(self._chemist, self._bins)
            names = self._bins.names if len(self._bins.names) > 1 else ()
            metrics |= {f"hit_{name}": Hit(self._chemist, self._bins, n) for n, name in enumerate(names)}
        metrics |= self._judged()
        return MetricCollection(metrics, compute_groups=False)
