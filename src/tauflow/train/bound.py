"""The generalized-KL bound on -ln p(x_1) of fixed items under fixed noise, as validation reports it.

Shapes: b items of a batch, D coordinates, R rows that count, V data tokens.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from tauflow.networks import Network
from tauflow.process import Noise, Process, spread_kappas
from tauflow.seeds import generator_for
from tauflow.tasks.metrics import joined
from tauflow.train.losses import cross_entropy, stratified_mean


def posterior_inputs(network: Network, x: Tensor, t: Tensor, condition: Tensor | None) -> Tensor:
    """Return hidden states (b, D, W); a network without conditions is not given any."""
    return network.hidden(x, t, condition) if network.conditions else network.hidden(x, t)


class Rows(NamedTuple):
    """The coordinates of a batch that count: a revealed one of a masked source has no rate."""

    logits: Tensor  # (R, V)
    x_t: Tensor  # (R,)
    x_1: Tensor  # (R,)
    places: Tensor  # (R,) among the b * D coordinates


class Validated(NamedTuple):
    """What is known of a validation batch."""

    bound: Tensor  # (b,) nats per coordinate, float64
    kappa: Tensor  # (b,) where each item was looked at
    losses: Tensor  # (R,) cross-entropies of the rows that were redrawn
    quarters: Tensor  # (R,) the quarter of kappa, 0 to 3, that each of them is in


@dataclass(frozen=True)
class Validation:
    """Looks at items under noise that is a pure function of their index."""

    process: Process
    length: int  # D

    def noise(self, index: Tensor) -> tuple[Noise, Tensor]:
        """Return the noise (b rows) of validation items, and their kappa (b,), spread evenly."""
        kappa = spread_kappas(index) * (1 - self.process.bound_cutoff)
        t = self.process.t_from_share(kappa).float()
        return self._noise_by_index(t, index, "validation noise"), kappa

    def __call__(self, network: Network, x_1: Tensor, index: Tensor, condition: Tensor | None) -> Validated:
        """Look at the items x_1 (b, D) with their numbers index (b,)."""
        cutoff = self.process.bound_cutoff
        noise, kappa = self.noise(index)
        noise = noise.to(x_1.device)
        rows = self._rows(network, x_1, noise, condition)
        terms = self.process.bound(rows.logits, rows.x_t, rows.x_1).cpu().double()
        total = torch.zeros(x_1.numel(), dtype=torch.float64).index_add(0, rows.places.cpu(), terms)
        # d tau = d kappa / (1 - kappa), and kappa is uniform on [0, 1 - cutoff)
        bound = (1 - cutoff) * total.view(x_1.shape).mean(1) / (1 - kappa)
        if cutoff:
            bound = bound + self._cost_of_the_draw(network, x_1, index, condition)
        quarters = (kappa * 4).long().to(x_1.device).repeat_interleave(self.length)[rows.places]
        redrawn = noise.corrupted.flatten()[rows.places]
        return Validated(bound, kappa, cross_entropy(rows.logits, rows.x_1)[redrawn], quarters[redrawn])

    def _noise_by_index(self, t: Tensor, index: Tensor, name: str) -> Noise:
        parts = [
            self.process.noise(t[i : i + 1], self.length, generator_for(name, number))
            for i, number in enumerate(index.tolist())
        ]
        return Noise(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _rows(self, network: Network, x_1: Tensor, noise: Noise, condition: Tensor | None) -> Rows:
        x_t = noise.corrupt(x_1)
        counted = noise.corrupted if self.process.absorbing else torch.ones_like(noise.corrupted)
        places = counted.flatten().nonzero().squeeze(1)
        hidden = posterior_inputs(network, x_t, noise.t, condition)
        logits = network.head(hidden.flatten(0, 1)[places])
        return Rows(logits, x_t.flatten()[places], x_1.flatten()[places], places)

    def _cost_of_the_draw(
        self, network: Network, x_1: Tensor, index: Tensor, condition: Tensor | None
    ) -> Tensor:
        """Return -ln p(x_1 | x_t) (b,) per coordinate at the cutoff, where the path ends with a draw."""
        end = torch.tensor(1 - self.process.bound_cutoff, dtype=torch.float64)
        t = torch.full((len(index),), self.process.t_from_share(end).item())
        noise = self._noise_by_index(t, index, "validation draw").to(x_1.device)
        rows = self._rows(network, x_1, noise, condition)
        return cross_entropy(rows.logits, rows.x_1).view(x_1.shape).mean(1).cpu().double()


class Bound(Metric):
    """The bound in nats per token, and its standard error, from the bounds of sequences at spread kappas."""

    higher_is_better = False
    values: list[Tensor]
    kappas: list[Tensor]

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("values", [], dist_reduce_fx="cat")
        self.add_state("kappas", [], dist_reduce_fx="cat")

    def update(self, values: Tensor, kappas: Tensor) -> None:
        self.values.append(values.float().to(self.device))
        self.kappas.append(kappas.float().to(self.device))

    def compute(self) -> tuple[Tensor, Tensor]:
        return stratified_mean(joined(self.values).cpu(), joined(self.kappas).cpu())
