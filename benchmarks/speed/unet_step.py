"""Speed of our U-Net against flow_matching's discrete U-Net at equal parameters, for 32 x 32 RGB pictures.

    git clone https://github.com/facebookresearch/flow_matching ../flow_matching
    python -m benchmarks unet_step --flow_matching ../flow_matching    about ten minutes on one core
    python -m benchmarks unet_step --flow_matching ../flow_matching --rounds 2    to see that it runs

Their network is that of their CIFAR-10 example (examples/image, CC BY-NC: it is run from a clone, nothing of
it is here) with 32 channels instead of 96, 4 blocks instead of 5 and no dropout; ours has as many parameters
within 1 %, once in the layout of configs/cifar10_*.yaml and once in theirs. A training step is the loss that
each project trains with, on the same corrupted pictures, its gradient and AdamW: theirs the cross-entropy of
all coordinates, ours that of the masked ones. An evaluation makes probabilities of all coordinates, or of an
eighth of them, as many as a sampler reads that reveals a picture in 8 steps; their network always makes all.

Float32, one thread, batch 8. The networks take turns, and times are those of the processor, so that ratios
hold even where the machine is busy; reported are medians, with the quartiles of the ratios in a round.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tauflow.networks import UNetConfig
from tauflow.networks.network import Network
from tauflow.tasks import DataFacts
from tauflow.train import DFMModule

V, SHAPE, BATCH = 256, (32, 32, 3), 8
LENGTH = 32 * 32 * 3
LOGISTIC = {"head": "logistic", "mixtures": 10, "anchors": True, "time": False}
LINEAR = {"head": "linear", "time": False}
OURS = {
    "tauflow, logistic head": UNetConfig(72, (1, 2, 2, 2), 4, **LOGISTIC),
    "tauflow, linear head": UNetConfig(72, (1, 2, 2, 2), 4, **LINEAR),
    "tauflow in their layout, logistic head": UNetConfig(56, (3, 4, 4), 2, **LOGISTIC),
    "tauflow in their layout, linear head": UNetConfig(56, (3, 4, 4), 2, **LINEAR),
}
THEIRS = "flow_matching"
CASES = ("training step", "evaluation", "evaluation of 1/8")


class Contender:
    """A network with the three calls that are timed."""

    def __init__(self, network: nn.Module):
        self.network = network
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
        self.parameters = sum(parameter.numel() for parameter in network.parameters())

    def loss(self, x_1: Tensor, noise) -> Tensor:
        raise NotImplementedError

    def probabilities(self, x: Tensor, t: Tensor, places: Tensor | None) -> Tensor:
        """Return the posterior rows of the places among all B * D coordinates, or of all."""
        raise NotImplementedError

    def step(self, x_1: Tensor, noise) -> None:
        self.loss(x_1, noise).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def calls(self, x_1: Tensor, noise) -> dict[str, Callable[[], object]]:
        x, t = noise.corrupt(x_1), noise.t
        eighth = torch.arange(0, x.numel(), 8)
        return {
            "training step": lambda: self.step(x_1, noise),
            "evaluation": lambda: self.probabilities(x, t, None),
            "evaluation of 1/8": lambda: self.probabilities(x, t, eighth),
        }


class Ours(Contender):
    def __init__(self, config: UNetConfig):
        self.module = DFMModule(DataFacts(V, SHAPE), schedule="linear", network=config)
        super().__init__(self.module.network)

    def loss(self, x_1: Tensor, noise) -> Tensor:
        return self.module.loss(x_1, noise, torch.arange(BATCH))

    @torch.no_grad()
    def probabilities(self, x: Tensor, t: Tensor, places: Tensor | None) -> Tensor:
        network: Network = self.module.network
        rows = network.hidden(x, t).flatten(0, 1)
        return network.head(rows if places is None else rows[places]).softmax(-1)


class Theirs(Contender):
    def loss(self, x_1: Tensor, noise) -> Tensor:
        return F.cross_entropy(self.logits(noise.corrupt(x_1), noise.t).flatten(0, -2), x_1.flatten())

    @torch.no_grad()
    def probabilities(self, x: Tensor, t: Tensor, places: Tensor | None) -> Tensor:
        return self.logits(x, t).softmax(-1)

    def logits(self, x: Tensor, t: Tensor) -> Tensor:
        planes = self.network(x.view(-1, *SHAPE).permute(0, 3, 1, 2), t, {})  # (B, C, H, P, V + 1)
        return planes.permute(0, 2, 3, 1, 4)


def their_network(clone: Path) -> nn.Module:
    sys.path.insert(0, str(clone / "examples" / "image"))
    from models.discrete_unet import DiscreteUNetModel
    from models.model_configs import MODEL_CONFIGS

    changed = {"model_channels": 32, "num_res_blocks": 4, "dropout": 0.0}
    return DiscreteUNetModel(vocab_size=V + 1, **MODEL_CONFIGS["cifar10_discrete"] | changed)


def gigaflops(contender: Contender, x: Tensor, t: Tensor) -> float:
    """Return the floating-point operations of an evaluation of one picture, in units of 10^9."""
    with FlopCounterMode(display=False) as counter:
        contender.probabilities(x, t, None)
    return counter.get_total_flops() / len(x) / 1e9


def seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def measure(contenders: dict[str, Contender], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of each contender and case, one for each round after the first, which warms up."""
    noises = DFMModule(DataFacts(V, SHAPE), schedule="linear", network=UNetConfig(8, (1,), 1, time=False))
    found: dict[tuple[str, str], list[float]] = {(name, case): [] for name in contenders for case in CASES}
    for number in range(rounds + 1):
        x_1, noise = torch.randint(V, (BATCH, LENGTH)), noises.training_noise(number, BATCH)
        for name in sorted(contenders, reverse=number % 2 == 1):
            for case, call in contenders[name].calls(x_1, noise).items():
                found[name, case].append(seconds(call))
    return {key: values[1:] for key, values in found.items()}


def report(contenders: dict[str, Contender], found: dict[tuple[str, str], list[float]]) -> None:
    x, t = torch.randint(V, (1, LENGTH)), torch.full((1,), 0.5)
    print("| network | parameters | GFLOP a picture | " + " | ".join(f"{case}, ms" for case in CASES) + " |")
    print("|---" * (3 + len(CASES)) + "|")
    for name, contender in contenders.items():
        cells = []
        for case in CASES:
            own, theirs = found[name, case], found[THEIRS, case]
            cells.append(f"{1e3 * statistics.median(own):.0f}")
            if name != THEIRS:
                ratios = [b / a for a, b in zip(own, theirs, strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                cells[-1] += f", **{middle:.2f}** ({low:.2f} - {high:.2f})"
        size = f"{contender.parameters / 1e6:.2f} M | {gigaflops(contender, x, t):.2f}"
        print(f"| {name} | {size} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flow_matching", type=Path, help="a clone of facebookresearch/flow_matching")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each network (default 11)")
    arguments = parser.parse_args()
    if arguments.flow_matching is None or not (arguments.flow_matching / "examples/image/models").is_dir():
        sys.exit(
            "error: --flow_matching must name a clone of flow_matching with its examples: "
            "git clone https://github.com/facebookresearch/flow_matching"
        )
    if arguments.rounds < 2:
        sys.exit("error: --rounds must be at least 2, for there are quartiles")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    contenders: dict[str, Contender] = {THEIRS: Theirs(their_network(arguments.flow_matching))}
    contenders |= {name: Ours(config) for name, config in OURS.items()}
    report(contenders, measure(contenders, arguments.rounds))


if __name__ == "__main__":
    main()
