"""Scenes: captions in, a canvas of codes out, and an exact detector that tells whether they agree.

Shapes: B samples of H x W codes, D = H * W, C words of a caption.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError
from tauflow.tasks.scenes.captions import (
    CAPTION_WORDS,
    WORDS,
    Caption,
    caption_text,
    encode_caption,
    read_caption,
)
from tauflow.tasks.scenes.data import CODES, SceneItems, codebook, draw_prompts, render
from tauflow.tasks.scenes.metrics import scene_metrics
from tauflow.tasks.task import ENDLESS, Task

MIN_SIZE = 6  # five objects fit on it


@dataclass(eq=False)
class Scenes(Task):
    """Text-to-image in small: scenes of colored shapes with captions, endless and generated on the fly.

    A caption such as "two red circles and a blue square" asks for objects, and an object is a block of four
    codes that must agree. Validation uses the captions of mini-GenEval: 553 prompts of GenEval's six tasks,
    scored by GenEval's rules.

    Args:
        size: codes of a side of the canvas.
        batch_size: items per optimizer step, over all devices and accumulated batches.
        epoch_items: training items that make an epoch; the next epoch continues with new items.
        val_items: items of the fixed validation set; 1106 are two per prompt.
        lesson: training starts with this many items of two objects in a relation. The network learns the
            meaning of "left of" within a few hundred steps of such captions, and not within many thousand
            steps of all kinds.
        seed: of the scenes; item i is a pure function of the seed and i.
        prompt_seed: of the 553 prompts; use another one to choose settings.
        num_workers: loader processes per device; 0 generates items in the training process.
    """

    size: int = 8
    batch_size: int = 64
    epoch_items: int = 16384
    val_items: int = 1106
    lesson: int = 0
    seed: int = 0
    prompt_seed: int = 0
    num_workers: int = 0

    primary_metric = "strict"
    num_tokens = CODES
    conditions = (len(WORDS),) * CAPTION_WORDS
    may_change = (*Task.may_change, "prompt_seed")
    local: ClassVar[tuple[str, ...]] = ("prompt_seed",)

    def __post_init__(self) -> None:
        if self.size < MIN_SIZE:
            raise SettingsError(f"--data.size must be at least {MIN_SIZE}, got {self.size}.")
        self.shape = (self.size, self.size)

    @cached_property
    def prompts(self) -> list[Caption]:
        return draw_prompts(self.prompt_seed)

    def setup(self, stage: str | None = None) -> None:
        self.train_data = SceneItems(self.size, self.seed, "train", ENDLESS, lesson=self.lesson)
        self.val_data = SceneItems(self.size, self.seed, "val", self.val_items, self.prompts)

    def codebook(self) -> Tensor:
        return codebook()

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {**scene_metrics(self.size)}
        return MetricCollection(metrics, compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        """Return scenes as images uint8 (B, 8 H, 8 W, 3); tokens that aren't codes are gray."""
        return render(tokens, self.size)

    def caption(self, condition: Tensor) -> str:
        return caption_text(condition) or "any scene"

    def condition(self, text: str) -> Tensor:
        """Read a caption: "two red circles and a blue square"."""
        return torch.tensor(encode_caption(read_caption(text)))
