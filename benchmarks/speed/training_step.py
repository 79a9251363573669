"""Speed of tauflow's training step against a plain stack of torch.nn.TransformerEncoderLayer, and of
Trainer.fit against a bare loop.

    python -m benchmarks training_step            about ten minutes on two cores; prints a Markdown table
    python -m benchmarks training_step --quick    two repetitions, to see that it runs

Both models have width 256, 4 blocks, 4 heads, MLP 1024 and GELU, see the same batches with the same noise in
float32, and step the same AdamW. The plain one has learned positions, adds a time embedding to its input and
applies its head to all coordinates. Repetitions alternate between the two in one process, so that the ratios
hold even where the machine is busy; speeds are of the median step, with the quartiles of the ratios of
neighbours.
"""

import argparse
import copy
import statistics
import tempfile
import time

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from tauflow.networks import TransformerConfig
from tauflow.tasks import Countdown, DataFacts
from tauflow.tasks.data import TaskData
from tauflow.tasks.task import items_of
from tauflow.train import DFMModule
from tauflow.train.callbacks import Throughput

LENGTH, WIDTH, BLOCKS, HEADS = 256, 256, 4, 4


class PlainStack(nn.Module):
    """What a user would write by hand."""

    def __init__(self, num_tokens: int):
        super().__init__()
        self.embedding = nn.Embedding(num_tokens + 1, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.time = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, BLOCKS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.head = nn.Linear(WIDTH, num_tokens)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x) + self.position + self.time(t[:, None])[:, None]))


def compare_step(num_tokens: int, batch_size: int, loss_on: str, repetitions: int) -> dict:
    torch.manual_seed(0)
    network = TransformerConfig(width=WIDTH, blocks=BLOCKS, heads=HEADS)
    module = DFMModule(DataFacts(num_tokens, (LENGTH,)), schedule="linear", loss_on=loss_on, network=network)
    plain = PlainStack(num_tokens)
    rows = torch.arange(batch_size)

    def plain_loss(x_1: Tensor, noise) -> Tensor:
        logits = plain(noise.corrupt(x_1), noise.t)
        if loss_on == "corrupted":
            return F.cross_entropy(logits[noise.corrupted], x_1[noise.corrupted])
        return F.cross_entropy(logits.flatten(0, 1), x_1.flatten())

    losses = {"tauflow": lambda x_1, noise: module.loss(x_1, noise, rows), "plain": plain_loss}
    models = {"tauflow": module.network, "plain": plain}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-4) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for step in range(repetitions + 1):
        x_1, noise = torch.randint(num_tokens, (batch_size, LENGTH)), module.training_noise(step, batch_size)
        for name in sorted(models, reverse=step % 2 == 1):
            begin = time.perf_counter()
            losses[name](x_1, noise).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            seconds[name].append(time.perf_counter() - begin)
    # the first step warms up
    ratios = [b / a for a, b in zip(seconds["tauflow"][1:], seconds["plain"][1:], strict=True)]
    sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    tokens = batch_size * LENGTH
    return {name: tokens / statistics.median(values[1:]) for name, values in seconds.items()} | {
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
        "parameters": sizes["tauflow"] / sizes["plain"],
    }


class BareSteps(Callback):
    """After every step of Trainer.fit makes a bare one with the same batch on a copy, and times both."""

    def __init__(self, module: DFMModule, task: Countdown):
        self.module = module
        self.optimizer = torch.optim.AdamW(module.network.parameters(), lr=1e-4)
        task.setup()
        self.items = task.train_data
        self.fit, self.bare, self.begin = [], [], None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        now = time.perf_counter()
        if self.begin is not None:
            self.fit.append(now - self.begin)
        step = trainer.global_step - 1
        items = items_of(self.items, list(range(16 * step, 16 * step + 16)))
        tokens = torch.stack([item["tokens"] for item in items])
        self.module.loss(tokens, self.module.training_noise(step, 16), torch.arange(16)).backward()
        torch.nn.utils.clip_grad_norm_(self.module.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.begin = time.perf_counter()
        self.bare.append(self.begin - now)


def compare_trainer(steps: int) -> dict:
    """Time steps of Trainer.fit (EMA, clipping, logging) and of a bare loop, alternating."""
    torch.manual_seed(0)
    task = Countdown(batch_size=16, epoch_items=16 * 1024)
    module = DFMModule(task.facts, network=TransformerConfig(time=False))
    bare = BareSteps(copy.deepcopy(module), task)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_steps=steps + 1,
            accelerator="cpu",
            logger=TensorBoardLogger(folder),
            log_every_n_steps=16,
            gradient_clip_val=1.0,
            callbacks=[Throughput(), bare],
            enable_checkpointing=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        trainer.fit(module, TaskData(task))
    ratios = [a / b for a, b in zip(bare.fit, bare.bare[1:], strict=True)]
    return {
        "fit": statistics.median(bare.fit),
        "bare": statistics.median(bare.bare[1:]),
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two repetitions")
    arguments = parser.parse_args()

    print(
        "| V | B | loss on | threads | tauflow, tokens/s | plain, tokens/s | ratio | quartiles "
        "| parameters, ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for num_tokens, batch_size in ((32, 32), (50257, 4)):
        for loss_on in ("corrupted", "all"):
            for threads in (1, 2):
                torch.set_num_threads(threads)
                row = compare_step(num_tokens, batch_size, loss_on, repetitions=2 if arguments.quick else 10)
                speeds = f"{row['tauflow']:.0f} | {row['plain']:.0f} | **{row['ratio']:.2f}**"
                low, high = row["quartiles"]
                print(
                    f"| {num_tokens} | {batch_size} | {loss_on} | {threads} | {speeds} "
                    f"| {low:.2f} - {high:.2f} | {row['parameters']:.3f} |",
                    flush=True,
                )
    torch.set_num_threads(2)
    row = compare_trainer(4 if arguments.quick else 120)
    low, high = row["quartiles"]
    print(f"\nTrainer.fit {row['fit'] * 1e3:.0f} ms/step, bare loop {row['bare'] * 1e3:.0f} ms/step")
    print(f"ratio of neighbours {row['ratio']:.3f}, quartiles {low:.3f} - {high:.3f}")


if __name__ == "__main__":
    main()
