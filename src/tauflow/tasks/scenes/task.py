"""Scenes: captions in, a canvas of codes out, and an exact detector that says whether they agree.

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
from tauflow.tasks.scenes.captions import CAPTION_WORDS, WORDS, Caption, condition_of, parsed, words_of
from tauflow.tasks.scenes.data import CODES, SceneItems, codebook, pictures, prompt_list
from tauflow.tasks.scenes.metrics import scene_metrics
from tauflow.tasks.task import ENDLESS, Task

LEAST = {"size": 6, "val_items": 2, "lesson": 0}


@dataclass(eq=False)
class Scenes(Task):
    """Text-to-image in small: scenes of colored shapes with captions, endless and made on the fly.

    A caption such as "two red circles and a blue square" asks for objects, and an object is a block of four
    codes that must agree. The captions of validation are those of mini-GenEval: 553 prompts of GenEval's six
    tasks, judged by GenEval's rules.

    Args:
        size: codes of a side of the canvas.
        batch_size: items of an optimizer step over all devices and accumulated batches together.
        epoch_items: training items called an epoch; the next epoch continues with new items.
        val_items: items of the fixed validation set; 1106 are two of each prompt.
        lesson: training begins with this many items of two objects in a relation. What "left of" means is
            learnt among such captions within a few hundred steps, and among all kinds not within many
            thousand.
        seed: which scenes; item i is a pure function of the seed and i.
        prompt_seed: which 553 prompts; another number gives prompts to choose settings by.
        num_workers: loader processes for each device; 0 makes items in the training process.
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
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise SettingsError(f"--data.{name} must be at least {least}, got {getattr(self, name)}.")
        self.shape = (self.size, self.size)

    @cached_property
    def prompts(self) -> list[Caption]:
        """Return the 553 captions of mini-GenEval."""
        return prompt_list(self.prompt_seed)

    def setup(self, stage: str | None = None) -> None:
        self.train_data = SceneItems(self.size, self.seed, "train", ENDLESS, lesson=self.lesson)
        self.val_data = SceneItems(self.size, self.seed, "val", self.val_items, self.prompts)

    def codebook(self) -> Tensor:
        """Return a vector for each code (V, E), for a path between codes that are alike."""
        return codebook()

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {**scene_metrics(self.size)}
        return MetricCollection(metrics, compute_groups=False)

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        """Return scenes as pictures uint8 (B, 8 H, 8 W, 3); what is no code is gray."""
        return pictures(tokens, self.size)

    def caption(self, condition: Tensor) -> str:
        """Return the words of a caption."""
        return words_of(condition) or "any scene"

    def condition(self, text: str) -> Tensor:
        """Read a caption: "two red circles and a blue square"."""
        return torch.tensor(condition_of(parsed(text)))
