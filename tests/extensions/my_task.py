"""A custom task with images and labels: stripes that lie (label 0) or stand (label 1)."""

from dataclasses import dataclass

import numpy as np
import torch
from torchmetrics import MetricCollection

from tauflow.tasks import ConditionalSampleMean, Shuffled, Task


class Wrong(ConditionalSampleMean):
    """Share of the pixels that differ from the first one of their stripe."""

    def of(self, tokens, condition=None):
        images = tokens.view(-1, 4, 4)
        lying = torch.where(condition[:, 0, None, None] == 1, images.transpose(1, 2), images)
        return (lying != lying[:, :, :1]).double().mean((1, 2))


@dataclass
class Stripes(Task):
    batch_size: int = 8
    epoch_items: int = 64

    num_tokens = 3
    shape = (4, 4)
    conditions = (2,)
    primary_metric = "wrong"

    def setup(self, stage=None):
        stripes = torch.randint(3, (64, 4, 1), generator=torch.Generator().manual_seed(0)).expand(64, 4, 4)
        items = [{"tokens": row.T if i % 2 else row, "condition": [i % 2]} for i, row in enumerate(stripes)]
        self.train_data, self.val_data = Shuffled(items[16:], seed=0), items[:16]

    def sample_metrics(self):
        return MetricCollection({"wrong": Wrong()}, compute_groups=False)

    def show(self, tokens, condition=None):
        return np.repeat((tokens.view(-1, 4, 4, 1).numpy() * 100).astype(np.uint8), 3, axis=-1)
