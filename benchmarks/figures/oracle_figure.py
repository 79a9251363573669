"""Draw error against NFE of every sampler on an enumerable law with its exact denoiser.

    python -m benchmarks oracle_figure

Writes docs/images/oracle.png, from masks and from noise, and prints a table. Leaping and theta samplers,
`tweedie` and `bridge` are propagated exactly (benchmarks.theory.propagator); the others are sampled 400 000
times, so their errors below 0.003 are Monte-Carlo noise. The law has 3 coordinates of 3 tokens with
log-probabilities N(0, 1): coordinates depend on each other enough for the clamp to fire sometimes.
"""

import dataclasses
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import tauflow
from benchmarks.theory.laws import EnumerableLaw
from benchmarks.theory.propagator import PROPAGATED, Propagator
from tauflow.evaluation.figures import styles
from tauflow.samplers import SETS, Sampler, sampler_from

BUDGETS = [2, 4, 8, 16, 32, 64]
SAMPLES = 400_000
SIZE = 3  # coordinates, and tokens of each


def reached(propagator: Propagator, model: tauflow.Model, name: str, sampler: Sampler, nfe: int) -> Tensor:
    """Return the law over all states that a sampler ends in, computed where it can be, else from samples."""
    if name == "tweedie":
        return propagator.tweedie_law("t", nfe)
    if isinstance(sampler, PROPAGATED) and getattr(sampler, "coins", "independent") == "independent":
        return propagator.terminal_law(sampler, nfe)
    tokens = tauflow.sample(model, sampler, nfe, count=SAMPLES).tokens
    base = model.process.num_states
    code = (tokens * torch.tensor([base**2, base, 1])).sum(1)
    return torch.bincount(code, minlength=base**SIZE).double() / SAMPLES


def errors_of(process: tauflow.Process) -> dict[str, list[float]]:
    """Return the total variation to the data law of every sampler at every budget, and print it."""
    propagator = Propagator(EnumerableLaw.random(SIZE, SIZE, spread=1.0), process)
    model = dataclasses.replace(propagator.model, order=torch.arange(SIZE))
    data = propagator.marginal(1.0)
    print(f"\n| {process.name} | " + " | ".join(f"NFE {nfe}" for nfe in BUDGETS) + " |")
    print("|---" * (len(BUDGETS) + 1) + "|")
    found = {}
    for name in SETS["every"]:
        sampler = sampler_from(name)
        if sampler.unsupported_reason(model):
            continue
        laws = [reached(propagator, model, name, sampler, nfe) for nfe in BUDGETS]
        found[name] = [(law - data).abs().sum().item() / 2 for law in laws]
        print(f"| {name} | " + " | ".join(f"{error:.4f}" for error in found[name]) + " |", flush=True)
    return found


def main() -> None:
    figure = Figure(figsize=(15, 5), layout="constrained")
    places = figure.subplots(1, 2, sharey=True)
    for place, source in zip(places, (tauflow.Masked(SIZE), tauflow.Uniform(SIZE)), strict=True):
        found = errors_of(tauflow.Mixture(source, tauflow.schedule_from("linear")))
        looks = styles({name: name for name in found})
        for name, errors in found.items():
            width = 3 if name == "tr_cie" else 1.3
            place.loglog(BUDGETS, errors, markersize=5, label=name, linewidth=width, **looks[name])
        place.set(title=f"{source.name} source", xlabel="NFE")
        place.set_xticks(BUDGETS, [str(nfe) for nfe in BUDGETS])
        place.minorticks_off()
        place.grid(alpha=0.3)
        place.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    places[0].set_ylabel("total variation to the data law")
    figure.savefig(Path(__file__).parents[2] / "docs" / "images" / "oracle.png", dpi=110)


if __name__ == "__main__":
    main()
