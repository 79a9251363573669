"""One training step and one sampling step at the paper's size (GPT-2's vocabulary, 1024 tokens, 12 blocks of
width 768), for the record.

    python -m benchmarks gpt2_step        a few minutes and 5 GB on two cores

Prints parameters, peak memory, tokens a second of training at batch 1, the bare forward, and a whole tr_cie
step with the split head.
"""

import argparse
import resource
import time

import torch

import tauflow
from tauflow.networks import TransformerConfig
from tauflow.tasks import DataFacts
from tauflow.train import DFMModule

LENGTH, TOKENS, NFE = 1024, 50257, 8


def timed(function) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.manual_seed(0)
    network = TransformerConfig(width=768, blocks=12, heads=12, time=False)
    model = DFMModule(DataFacts(TOKENS, (LENGTH,)), source="masked", schedule="linear", network=network)
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=3e-4)
    x_1, rows = torch.randint(TOKENS, (1, LENGTH)), torch.tensor([0])

    def step(number: int) -> None:
        loss = model.loss(x_1, model.training_noise(number, 1), rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.ema.update(model.network, number + 1)

    step(0)
    seconds = [timed(lambda n=n: step(n)) for n in (1, 2, 3)]
    print(f"parameters          {sum(p.numel() for p in model.network.parameters()) / 1e6:.1f} M")
    rate = LENGTH / sorted(seconds)[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"training step       {min(seconds):.1f} - {max(seconds):.1f} s, {LENGTH} tokens: {rate:.0f} tokens/s"
    )
    print(f"peak memory         {peak / 2**20:.1f} GiB with AdamW and averaged weights")
    averaged = model.ema.network
    with torch.no_grad():
        x, t = torch.full((1, LENGTH), TOKENS), torch.zeros(1)
        forward = min(timed(lambda: averaged(x, t)) for _ in range(3))
    seconds = timed(lambda: tauflow.sample(model.model(), "tr_cie", NFE)) / NFE
    print(f"bare forward        {forward:.2f} s with all logits")
    print(f"tr_cie step         {seconds:.2f} s at NFE {NFE}, {seconds / forward:.2f} of a bare forward")


if __name__ == "__main__":
    main()
