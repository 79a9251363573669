"""Small modules, networks, and trainers that several tests share."""

from dataclasses import dataclass

import torch
from lightning.pytorch import Trainer

from tauflow.networks import Network, NetworkConfig, TransformerConfig
from tauflow.tasks import DataFacts, Task
from tauflow.tasks.data import TaskData
from tauflow.train import DFMModule

TRAINER = {"accelerator": "cpu", "logger": False} | dict.fromkeys(
    ["enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False
)
NETWORK = TransformerConfig(width=16, blocks=1, heads=2)
FACTS = DataFacts(num_tokens=6, shape=(16,))


def module(facts: DataFacts = FACTS, **options) -> DFMModule:
    torch.manual_seed(0)
    return DFMModule(facts, **({"network": NETWORK} | options))


def perturbed(facts: DataFacts = FACTS, **options) -> DFMModule:
    """A module whose head is not zero any more, so that losses and gradients differ between rows."""
    model = module(facts, **options)
    for parameter in model.network.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


def validate(model: DFMModule, task: Task) -> dict[str, float]:
    trainer = Trainer(**TRAINER)
    trainer.validate(model, TaskData(task), verbose=False)
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


@dataclass(frozen=True)
class Plain(NetworkConfig):
    """A network that takes no condition, as one outside the package may be written."""

    width: int = 4

    def build(self, shape, num_states, num_tokens):
        return PlainNetwork(self.width, num_states, num_tokens)


class PlainNetwork(Network):
    def __init__(self, width, num_states, num_tokens):
        super().__init__()
        self.embedding = torch.nn.Embedding(num_states, width)
        self.output = torch.nn.Linear(width, num_tokens)

    def hidden(self, x, t):
        return self.embedding(x)

    def head(self, rows):
        return self.output(rows)
