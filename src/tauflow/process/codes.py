"""Distances between the codes of a codebook, and the laws p(x) = softmax_x(-beta d(x, y)) that they give.

Shapes: V codes, E numbers of a vector, R rows. A table of all distances is kept for small codebooks alone;
else rows of it are made of the vectors, a few megabytes at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tauflow.devices import precise

SMALL = 256  # codes up to which all distances are kept
ENTRIES = 2**20  # distances that are held at a time
LARGEST = 1e30  # beta that stands for infinity: the law is the code itself
SAMPLED = 64  # codes of a large codebook that beta_0 is estimated from


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes with vectors of length 1; the distance of two is (2 - 2 cos)^2."""

    directions: Tensor  # (V, E) float64

    def __len__(self) -> int:
        return len(self.directions)

    @cached_property
    def table(self) -> Tensor:
        """Return all distances, float64 (V, V)."""
        return self._made(torch.arange(len(self)), torch.float64)

    @cached_property
    def largest(self) -> float:
        """Return a bound on all distances: the largest of a small codebook, 16 for any."""
        return self.table.max().item() if len(self) <= SMALL else 16.0

    def distances(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the distances (R, V) of codes (R,) to all."""
        if len(self) > SMALL:
            return self._made(codes, dtype)
        return self._table(codes.device, dtype).index_select(0, codes)

    def between(self, first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the distances (R,) of codes (R,) from others (R,)."""
        if len(self) <= SMALL:
            return self._table(first.device, dtype)[first, second]
        vectors = self._vectors(first.device, dtype)
        apart = (2 - 2 * (vectors[first] * vectors[second]).sum(-1)).square_()
        return apart.masked_fill_(first == second, 0)

    def _made(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        vectors = self._vectors(codes.device, dtype)
        cosines = vectors.index_select(0, codes) @ vectors.T
        return cosines.mul_(-2).add_(2).square_().scatter_(1, codes[:, None], 0)

    @cached_property
    def _cast(self) -> dict[tuple[str, torch.device, torch.dtype], Tensor]:
        """Return an empty dictionary, which keeps the vectors and the table by device and type."""
        return {}

    def _vectors(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        key = "vectors", device, dtype
        if key not in self._cast:
            self._cast[key] = self.directions.to(device, dtype)
        return self._cast[key]

    def _table(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        key = "table", device, dtype
        if key not in self._cast:
            self._cast[key] = self.table.to(device, dtype)
        return self._cast[key]

    def law(self, codes: Tensor, beta: Tensor) -> Tensor:
        """Return softmax_x(-beta d(x, y)) (R, V) of codes y (R,), at beta (R, 1) or for all of them ()."""
        return law_at(self.distances(codes, beta.dtype), beta)

    def log_partition(self, beta: Tensor) -> Tensor:
        """Return ln sum_x exp(-beta d(x, y)) (V,) of all codes y, at one beta ()."""
        every = torch.arange(len(self), device=beta.device)
        parts = [(self.distances(own, beta.dtype) * -beta).logsumexp(-1) for own in self.parted(every)]
        return torch.cat(parts)

    def draw(self, codes: Tensor, beta: Tensor, coins: Tensor) -> Tensor:
        """Draw tokens (R,) from the laws of codes (R,) at beta (R,) by inverse CDF, from coins (R,)."""
        parts = [
            _at_quantile(self.law(own, when[:, None]), coin)
            for own, when, coin in zip(*(self.parted(each) for each in (codes, beta, coins)), strict=True)
        ]
        return torch.cat(parts) if parts else codes

    def parted(self, rows: Tensor, width: int = 1) -> Sequence[Tensor]:
        """Split rows (R, ...) so that `width` times V distances of each row take a few megabytes."""
        return rows.split(max(1, ENTRIES // (len(self) * width))) if len(rows) else ()

    def origin(self) -> float:
        """Return beta_0 = C / H(0), so that jumps of the path are spread evenly over ln(1 + beta / beta_0).

        H(beta) is the rate of jumps on the path per unit of beta, E max(0, d(x, y) - d(x', y)) over codes y
        and independent x, x' of its law. Where the number of codes within a distance grows like a power of
        it, beta H(beta) is a constant C; here C is the largest value on a grid of beta (ratio sqrt 2, from
        0.01 to 10^4). The mean is over all codes y of a small codebook, else over SAMPLED, evenly apart.
        """
        count = len(self) if len(self) <= SMALL else SAMPLED
        some = torch.arange(count) * len(self) // count
        near = self.distances(some, torch.float64).sort(-1).values
        betas = [0.01 * 2 ** (n / 2) for n in range(41)]
        return max(beta * _hazard(near, beta) for beta in betas) / _hazard(near, 0.0)


def law_at(near: Tensor, beta: Tensor) -> Tensor:
    """Return the laws softmax(-beta d) (R, V) of distances (R, V), at beta (R, 1) or for all of them ()."""
    return (near * -beta.clamp(max=LARGEST)).softmax(-1)


def _hazard(near: Tensor, beta: float) -> float:
    """Return E max(0, d - d') over the laws at beta of distances (R, V), which are sorted."""
    law = (near * -beta).softmax(-1)
    mass, moment = law.cumsum(-1), (law * near).cumsum(-1)  # of what is no farther; ties count 0
    return (law * (near * mass - moment)).sum(-1).mean().item()


def _at_quantile(law: Tensor, coins: Tensor) -> Tensor:
    """Return tokens (R,) where the laws (R, V) reach the coins (R,)."""
    total = law.cumsum(-1, dtype=precise(law.device))
    found = torch.searchsorted(total, (coins.to(total.dtype) * total[:, -1])[:, None], right=True)
    return found.squeeze(1).clamp_(max=law.shape[-1] - 1)
