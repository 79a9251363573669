"""Properties of molecules in bins: the columns of a condition, in words and numbers.

Shapes: N molecules, C properties.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.tasks.molecules.chemistry import PROPERTIES

DIGITS = 4  # of an edge


@dataclass(frozen=True)
class Bins:
    """Ranges of properties: bin k of a property is from edge k - 1 on and below edge k.

    Args:
        names: of the properties, one for each column of a condition.
        edges: those between the bins of each property, ascending.
    """

    names: tuple[str, ...]
    edges: tuple[tuple[float, ...], ...]

    @classmethod
    def fitted(cls, names: Sequence[str], found: Mapping[str, np.ndarray], count: int) -> "Bins":
        """Return `count` bins of each property that equally many of the found numbers (N,) lie in."""
        edges = []
        for name in names:
            quantiles = np.quantile(found[name], np.arange(1, count) / count)
            edges.append(tuple(float(f"{edge:.{DIGITS}g}") for edge in quantiles))
            if not _ascending(edges[-1], count - 1):
                raise SettingsError(
                    f"the {name} of the training molecules takes too few values for {count} bins; lower "
                    "--data.bins, or train on more molecules"
                )
        return cls(tuple(names), tuple(edges))

    @classmethod
    def given(cls, names: Sequence[str], edges: object, count: int) -> "Bins":
        """Return the bins that a checkpoint keeps; refuse edges that are none."""
        rows = edges if isinstance(edges, list | tuple) else []
        fits = len(rows) == len(names) and all(_ascending(row, count - 1) for row in rows)
        if not fits:
            raise SettingsError(
                f"--data.edges are {count - 1} ascending numbers for each of {', '.join(names)}, got "
                f"{edges!r}; drop them: they are found from the training data"
            )
        return cls(tuple(names), tuple(tuple(float(edge) for edge in row) for row in rows))

    @property
    def counts(self) -> tuple[int, ...]:
        """Return how many bins each property has."""
        return tuple(len(edges) + 1 for edges in self.edges)

    def of(self, found: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the bins (N, C) of molecules with these properties (N,), where a NaN is in no bin, -1."""
        columns = []
        for name, edges in zip(self.names, self.edges, strict=True):
            numbers = np.asarray(found[name], dtype=np.float64)
            columns.append(np.where(np.isnan(numbers), DROPPED, np.searchsorted(edges, numbers, "right")))
        return np.stack(columns, axis=1).astype(np.int64)

    def caption(self, row: Sequence[int]) -> str:
        """Return the bins of one condition (C,) in words, such as "logp 2.1 to 3.2, qed above 0.87"."""
        words = zip(self.names, self.edges, row, strict=True)
        return ", ".join(f"{name} {_range(edges, number)}" for name, edges, number in words)

    def read(self, text: str) -> list[int]:
        """Read a condition: "logp=high qed=0.8" gives each property as low, high, or a value in its bin."""
        asked: dict[str, int] = {}
        for word in text.replace(",", " ").split():
            name, equals, value = word.partition("=")
            if not equals or name.lower() not in self.names or name.lower() in asked:
                raise self._bad(text)
            asked[name.lower()] = self._bin(name.lower(), value.lower(), text)
        if len(asked) < len(self.names):  # the network has never seen a part of a condition
            raise self._bad(text)
        return [asked[name] for name in self.names]

    def _bin(self, name: str, value: str, text: str) -> int:
        edges = self.edges[self.names.index(name)]
        if value in ("low", "high"):
            return len(edges) if value == "high" else 0
        try:
            number = float(value)
        except ValueError:
            raise self._bad(text) from None
        if not math.isfinite(number):
            raise self._bad(text)
        return int(np.searchsorted(edges, number, "right"))

    def _bad(self, text: str) -> SettingsError:
        example = " ".join(f"{name}=high" for name in self.names)
        ranges = "; ".join(
            f"{name}: {', '.join(_range(edges, number) for number in range(len(edges) + 1))}"
            for name, edges in zip(self.names, self.edges, strict=True)
        )
        return SettingsError(
            f"a condition gives each of {', '.join(self.names)} once, as low, high or a value, such as "
            f"{example!r}, or the numbers of their bins from 0; got {text!r} (bins of {ranges})"
        )


def property_names(text: str) -> tuple[str, ...]:
    """Return the properties of a setting such as "logp,qed"."""
    names = tuple(word.strip().lower() for word in text.split(","))
    unknown = [name for name in names if name not in PROPERTIES]
    if unknown or len(set(names)) < len(names):
        wrong = f"there is no {unknown[0]!r}" if unknown else "each can stand there once"
        raise SettingsError(
            f"--data.properties are some of {', '.join(PROPERTIES)}, separated by commas; {wrong}"
        )
    return names


def _ascending(row: object, count: int) -> bool:
    if not isinstance(row, list | tuple) or len(row) != count:
        return False
    numbers = all(isinstance(each, int | float) and math.isfinite(each) for each in row)
    return numbers and all(low < high for low, high in pairwise(row))


def _range(edges: Sequence[float], number: int) -> str:
    """Return a bin in words."""
    if number == DROPPED or not edges:
        return "any"
    if number == 0:
        return f"below {edges[0]:g}"
    if number == len(edges):
        return f"above {edges[-1]:g}"
    return f"{edges[number - 1]:g} to {edges[number]:g}"
