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
    """Ranges of properties: bin k of a property starts at edge k - 1 and ends below edge k.

    Args:
        names: of the properties, one per column of a condition.
        edges: between the bins of each property, ascending.
    """

    names: tuple[str, ...]
    edges: tuple[tuple[float, ...], ...]

    @classmethod
    def fitted(cls, names: Sequence[str], found: Mapping[str, np.ndarray], count: int) -> "Bins":
        """Return `count` bins of each property, each with the same number of the found values (N,)."""
        edges = []
        for name in names:
            quantiles = np.quantile(found[name], np.arange(1, count) / count)
            edges.append(tuple(float(f"{edge:.{DIGITS}g}") for edge in quantiles))
            if not _is_ascending(edges[-1], count - 1):
                raise SettingsError(
                    f"the {name} of the training molecules takes too few values for {count} bins; lower "
                    "--data.bins, or train on more molecules"
                )
        return cls(tuple(names), tuple(edges))

    @classmethod
    def given(cls, names: Sequence[str], edges: object, count: int) -> "Bins":
        """Return the bins stored in a checkpoint, which isn't trusted."""
        rows = edges if isinstance(edges, list | tuple) else []
        if len(rows) != len(names) or not all(_is_ascending(row, count - 1) for row in rows):
            raise SettingsError(
                f"--data.edges must be {count - 1} ascending numbers for each of {', '.join(names)}, got "
                f"{edges!r}; remove them: they are computed from the training data"
            )
        return cls(tuple(names), tuple(tuple(float(edge) for edge in row) for row in rows))

    def of(self, found: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the bins (N, C) of molecules with these properties (N,); a NaN is in no bin, -1."""
        columns = []
        for name, edges in zip(self.names, self.edges, strict=True):
            numbers = np.asarray(found[name], dtype=np.float64)
            columns.append(np.where(np.isnan(numbers), DROPPED, np.searchsorted(edges, numbers, "right")))
        return np.stack(columns, axis=1).astype(np.int64)

    def caption(self, row: Sequence[int]) -> str:
        """Return the bins of one condition (C,) in words, such as "logp 2.1 to 3.2, qed above 0.87"."""
        words = zip(self.names, self.edges, row, strict=True)
        return ", ".join(f"{name} {_range_text(edges, number)}" for name, edges, number in words)

    def read(self, text: str) -> list[int]:
        """Read a condition: "logp=high qed=0.8" gives each property as low, high, or a value in its bin."""
        words = [word.partition("=") for word in text.lower().replace(",", " ").split()]
        values = {name: {"low": "-inf", "high": "inf"}.get(value, value) for name, _, value in words}
        try:
            # all of them: the network never saw a part of a condition
            numbers = [float(values.pop(name)) for name in self.names]
            readable = not values and len(words) == len(numbers) and not any(map(math.isnan, numbers))
        except (KeyError, ValueError):
            readable = False
        if not readable:
            example = " ".join(f"{name}=high" for name in self.names)
            ranges = "; ".join(
                f"{name}: {', '.join(_range_text(edges, number) for number in range(len(edges) + 1))}"
                for name, edges in zip(self.names, self.edges, strict=True)
            )
            raise SettingsError(
                f"a condition gives each of {', '.join(self.names)} once, as low, high or a value, such as "
                f"{example!r}, or the numbers of their bins from 0; got {text!r} (bins of {ranges})"
            )
        pairs = zip(self.edges, numbers, strict=True)
        return [int(np.searchsorted(edges, number, "right")) for edges, number in pairs]


def property_names(text: str) -> tuple[str, ...]:
    names = tuple(word.strip().lower() for word in text.split(","))
    if not set(names) <= set(PROPERTIES) or len(set(names)) < len(names):
        raise SettingsError(
            f"--data.properties must be some of {', '.join(PROPERTIES)}, separated by commas, got {text!r}"
        )
    return names


def _is_ascending(row: object, count: int) -> bool:
    if not isinstance(row, list | tuple) or len(row) != count:
        return False
    numbers = all(isinstance(each, int | float) and math.isfinite(each) for each in row)
    return numbers and all(low < high for low, high in pairwise(row))


def _range_text(edges: Sequence[float], number: int) -> str:
    if number == DROPPED or not edges:
        return "any"
    if number == 0:
        return f"below {edges[0]:g}"
    if number == len(edges):
        return f"above {edges[-1]:g}"
    return f"{edges[number - 1]:g} to {edges[number]:g}"
