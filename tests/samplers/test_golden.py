"""Golden digests: the tokens, NFE and step infos of every sampler, and the training noise, as first recorded
in golden.json.

The denoiser is made of small integers, so its logits are exact on every machine. A digest that changes means
that samples of a given seed have changed for every user. Only a deliberate change of a sampler may do that:
`python tests/samplers/test_golden.py` records the digests again.
"""

import hashlib
import json
from pathlib import Path

import pytest
import torch

import tauflow
from tauflow import Masked, Mixture, Model, Uniform
from tauflow.denoise import LearnedCounts
from tauflow.numerics import generator_for
from tauflow.process import spread_kappas, stratified_times
from tauflow.samplers import SAMPLERS, sampler_from
from tauflow.samplers.registry import PRESETS

FILE = Path(__file__).parents[1] / "golden.json"
V, B, D = 6, 4, 24
BUDGETS = (3, 8, 21)
ORDER = (7 * torch.arange(D)) % D
PLANS = ((24,), (4, 20), (1, 3, 20), (1, 1, 2, 3, 5, 6, 6))
COUNTS = [LearnedCounts(order, PLANS, (1.0,) * D) for order in ("random", "spaced", "learned")]
INFLUENCE = 1 / (1 + (torch.arange(D) - torch.arange(D)[:, None]).abs())
PROCESSES = {"masked": Mixture(Masked(V), "quadratic"), "uniform": Mixture(Uniform(V), "quadratic")}


class Arithmetic:
    """A split network without weights: logits are multiples of 1/4, of token, neighbours, place, time."""

    def __init__(self, factor: int = 1):
        self.factor = factor

    def hidden(self, x, t):
        left, right = x.roll(1, 1), x.roll(-1, 1)
        place = torch.arange(x.shape[1])
        context = 3 * x + 7 * left + 13 * right + 5 * place + (8 * t.double()).floor().long()[:, None]
        return ((context[..., None] * self.factor + 11 * torch.arange(V)) % 17).float() / 4

    def head(self, rows):
        return rows


def draw(sampler: str, source: str, nfe: int, variant: str = "", **options):
    """One run of a golden case."""
    shape = (4, 6) if variant == "grid" else (D,)
    model = Model(Arithmetic(), PROCESSES[source], shape, ORDER, counts=COUNTS, influence=INFLUENCE)
    prompt = None
    if variant == "prompt":
        tokens = (torch.arange(B * D).view(B, D) * 5) % V
        prompt = (tokens, torch.arange(B * D).view(B, D) % 5 < 2)
    if variant == "guided":
        model = model.guided(2.0, Arithmetic(3)).tempered(0.8)
    return tauflow.sample(model, sampler_from(sampler, **options), nfe, count=B, prompt=prompt, seed=nfe)


NAMES = [*SAMPLERS, *PRESETS]


def supported(sampler: str, source: str) -> bool:
    model = Model(Arithmetic(), PROCESSES[source], (D,), ORDER, counts=COUNTS, influence=INFLUENCE)
    return not sampler_from(sampler).unsupported_reason(model)


def cases() -> dict[str, dict]:
    plain = [(name, source) for name in NAMES for source in PROCESSES if supported(name, source)]
    found = {
        f"{name} {source} {nfe}": {"sampler": name, "source": source, "nfe": nfe}
        for name, source in plain
        for nfe in BUDGETS
    }
    for name, source in plain:
        for variant in ("prompt", "guided"):
            found[f"{name} {source} {variant}"] = {
                "sampler": name,
                "source": source,
                "nfe": 8,
                "variant": variant,
            }
    options = [
        *(
            {"grid": grid, "coins": coins}
            for grid in ("tau", "early")
            for coins in ("independent", "systematic")
        ),
        *({"jump": "one_event", "finish": finish} for finish in ("draw", "reuse", "none")),
        *({"eps_0": 0.01, "ceiling": 2.0}, {"dense": True}, {"cutoff": 0.1, "grid": "tau"}),
    ]
    for source in PROCESSES:
        for number, option in enumerate(options):
            found[f"tr_cie {source} options {number}"] = {
                "sampler": "tr_cie",
                "source": source,
                "nfe": 8,
                **option,
            }
        found[f"theta_rk2 {source} theta"] = {
            "sampler": "theta_rk2",
            "source": source,
            "nfe": 9,
            "theta": 0.7,
        }
        found[f"tweedie {source} tau"] = {
            "sampler": "tweedie",
            "source": source,
            "nfe": 9,
            "grid": "tau",
            "finish": "none",
        }
    for order in ("random", "spaced", "learned"):
        for counts in ("equal", "power", "entropy", "arccos", "doubling", "learned"):
            found[f"reveal {order} {counts}"] = {
                "sampler": "fhs",
                "source": "masked",
                "nfe": 7,
                "order": order,
                "counts": counts,
            }
    found["spaced grid"] = {"sampler": "spaced", "source": "masked", "nfe": 7, "variant": "grid"}
    found["bridge gain"] = {"sampler": "bridge", "source": "uniform", "nfe": 7, "gain": 0.5}
    return found


def digest(value) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def measured(case: dict) -> dict:
    result = draw(**case)
    names = ("n", "t", "t_next", "moved", "clamped", "several", "masks")
    steps = [[f"{getattr(step, name):.6g}" for name in names] for step in result.info.steps]
    facts = {
        "nfe": result.nfe,
        "forwards": result.info.forwards,
        "leftover": f"{result.info.leftover_masks:.6g}",
    }
    return facts | {"tokens": digest(result.tokens.tolist()), "steps": digest(steps)}


def noise_of(source: str) -> str:
    """The training noise of a step and the validation noise of an item, which resumed runs need unchanged."""
    path = PROCESSES[source]
    generator = generator_for("training noise", 0, 17)
    noise = path.noise(stratified_times(B, generator), D, generator)
    kappa = spread_kappas(torch.arange(9))
    parts = [
        noise.t.tolist(),
        noise.corrupted.tolist(),
        noise.x_0.tolist(),
        [f"{value:.9g}" for value in kappa.tolist()],
    ]
    return digest(parts)


CASES = cases()
GOLDEN = json.loads(FILE.read_text()) if FILE.exists() else {}


@pytest.mark.parametrize("sampler", NAMES)
def test_samples_are_those_of_the_first_recording(sampler):
    for name, case in CASES.items():
        if case["sampler"] == sampler:
            assert measured(case) == GOLDEN["samples"][name], name


def test_every_recorded_case_is_still_tested():
    assert set(CASES) == set(GOLDEN["samples"])


@pytest.mark.parametrize("source", PROCESSES)
def test_noise_is_that_of_the_first_recording(source):
    assert noise_of(source) == GOLDEN["noise"][source]


if __name__ == "__main__":
    recorded = {
        "samples": {name: measured(case) for name, case in cases().items()},
        "noise": {name: noise_of(name) for name in PROCESSES},
    }
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"recorded {len(recorded['samples'])} cases")
