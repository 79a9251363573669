"""Error against NFE of every sampler on an enumerable law with its exact denoiser, both sources: docs/images/oracle.png and a table.

    python benchmarks/oracle_figure.py

Leaping and theta samplers, `tweedie` and `bridge` are propagated exactly (tauflow/oracles.py); the others are sampled 400 000
times, so their errors below 0.003 are Monte-Carlo noise. The law has 3 coordinates of 3 tokens with log-probabilities N(0, 1):
coordinates depend on each other enough for the clamp to fire sometimes.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import tauflow
from tauflow.oracles import EnumerableLaw, Propagator
from tauflow.samplers import SAMPLERS
from tauflow.samplers.leaping import Leaping
from tauflow.samplers.theta import Theta

BUDGETS = [2, 4, 8, 16, 32, 64]
SAMPLES = 400_000


def main() -> None:
    law = EnumerableLaw.random(num_tokens=3, length=3, spread=1.0)
    figure, axes = plt.subplots(1, 2, figsize=(15, 5), sharey=True)
    for plot, source in zip(axes, (tauflow.Masked(3), tauflow.Uniform(3)), strict=True):
        schedule = tauflow.schedule_from("linear")
        propagator = Propagator(law, source, schedule)
        data = propagator.marginal(1.0)
        print(f"\n{type(source).__name__}\n\n| sampler | " + " | ".join(f"NFE {n}" for n in BUDGETS) + " |")
        print("|---" * (len(BUDGETS) + 1) + "|")

        def model(x, t, source=source, schedule=schedule):
            return law.posterior(x, t, source, schedule).log()

        for number, name in enumerate(SAMPLERS):
            sampler = SAMPLERS[name]()
            if not isinstance(source, sampler.sources):
                continue
            errors = []
            for nfe in BUDGETS:
                if name == "tweedie":
                    reached = propagator.tweedie_law("t", nfe)
                elif isinstance(sampler, Leaping | Theta) or name == "bridge":
                    reached = propagator.terminal_law(sampler, nfe)
                else:
                    tokens = tauflow.sample(model, source, schedule, (SAMPLES, 3), sampler, nfe, ranks=torch.arange(3)).tokens
                    base = source.num_states
                    code = (tokens * torch.tensor([base**2, base, 1])).sum(1)
                    reached = torch.bincount(code, minlength=base**3).double() / SAMPLES
                errors.append((reached - data).abs().sum().item() / 2)
            print(f"| {name} | " + " | ".join(f"{error:.4f}" for error in errors) + " |", flush=True)
            style = {"color": plt.get_cmap("tab20")(number % 20), "linewidth": 3 if name == "tr_cie" else 1.3}
            plot.loglog(BUDGETS, errors, marker="osv^Dx+*"[number % 8], markersize=5, label=name, **style)
        plot.set(title=f"{type(source).__name__.lower()} source", xlabel="NFE")
        plot.set_xticks(BUDGETS, [str(n) for n in BUDGETS])
        plot.minorticks_off()
        plot.grid(alpha=0.3)
        plot.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes[0].set_ylabel("total variation to the data law")
    figure.tight_layout()
    out = Path(__file__).parents[1] / "docs" / "images" / "oracle.png"
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
