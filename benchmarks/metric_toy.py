"""Samplers on a metric path with an exact denoiser: total variation to the data law against NFE.

Two coordinates of 48 codes on a sphere, of which 80 pairs are data. `python -m benchmarks metric_toy` prints
a table; `--samplers` takes specs, `--beta` where the tau grids end, `--count` the number of samples, whose
own total variation to an exact law is about sqrt(80 / (2 pi count)).
"""

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

import tauflow
from tauflow import Metric, Model
from tauflow.denoise import CallableDenoiser

CODES, PAIRS = 48, 80
SPECS = [
    *("fudoki", "euler", "tr", "tr_cie", "tweedie", "euler(grid=tau)", "tr(grid=tau)", "tr_cie(grid=tau)"),
    *("tweedie(grid=tau)", "theta_trapezoidal", "tweedie(grid=early)", "tr_cie(grid=early)"),
]
NFES = (4, 8, 16, 32)


@dataclass(frozen=True)
class Pairs:
    """A data law over a few pairs of tokens."""

    pairs: Tensor  # (P, 2)
    weights: Tensor  # (P,) float64

    @classmethod
    def random(cls, seed: int = 0) -> "Pairs":
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(CODES**2, generator=generator)[:PAIRS]
        weights = torch.rand(PAIRS, generator=generator, dtype=torch.float64) + 0.1
        return cls(torch.stack([chosen // CODES, chosen % CODES], 1), weights / weights.sum())

    def posterior(self, x: Tensor, t: Tensor, process: Metric) -> Tensor:
        """Return the exact posterior (B, 2, V)."""
        seen = process.evidence(x, t)
        joint = self.weights * seen[:, 0, self.pairs[:, 0]] * seen[:, 1, self.pairs[:, 1]]  # (B, P)
        rows = torch.zeros_like(seen)
        for d in range(2):
            rows[:, d].index_add_(1, self.pairs[:, d], joint)
        return rows / rows.sum(-1, keepdim=True)

    def distance(self, tokens: Tensor) -> float:
        """Return the total variation of samples (B, 2) to the law."""
        law = torch.zeros(CODES**2, dtype=torch.float64)
        law[self.pairs[:, 0] * CODES + self.pairs[:, 1]] = self.weights
        seen = torch.bincount(tokens[:, 0] * CODES + tokens[:, 1], minlength=CODES**2) / len(tokens)
        return (law - seen).abs().sum().item() / 2


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samplers", nargs="+", default=SPECS)
    parser.add_argument("--beta", type=float, default=100.0)
    parser.add_argument("--count", type=int, default=60_000)
    options = parser.parse_args()
    codebook = torch.randn(CODES, 3, generator=torch.Generator().manual_seed(0))
    process, data = Metric(codebook), Pairs.random()
    denoiser = CallableDenoiser(lambda x, t: data.posterior(x, t, process).log(), CODES)
    model = Model(denoiser, process, (2,))
    cutoff = process.beta_0 / (process.beta_0 + options.beta)
    print(f"beta_0 = {process.beta_0:.3f}; tau grids end at 1 - share = {cutoff:.2g}")
    for spec in options.samplers:
        sampler = tauflow.sampler_from(spec, cutoff=cutoff)
        errors = [
            data.distance(tauflow.sample(model, sampler, nfe, count=options.count).tokens) for nfe in NFES
        ]
        print(f"{spec:24}" + "".join(f"{error:8.3f}" for error in errors), flush=True)


if __name__ == "__main__":
    main()
