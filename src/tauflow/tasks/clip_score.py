"""The CLIP score of samples that are pictures and were asked for by captions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tauflow.geneval.clip import ClipScore
from tauflow.tasks.metrics import ConditionalSampleMean


class CaptionScore(ConditionalSampleMean):
    """Mean CLIP score of samples and their captions, at least 0 as torchmetrics has it.

    A task names it by the `tag` of the score, which has the name of the model. The model is no part of the
    metric's state.

    Args:
        score: of pictures and captions.
        decode: turns samples (B, D) into pictures uint8 (B, H, W, 3).
        caption: turns what a sample was asked to be (C,) into words.
    """

    higher_is_better = True
    logarithmic = False

    def __init__(
        self,
        score: ClipScore,
        decode: Callable[[Tensor], Tensor],
        caption: Callable[[Tensor], str],
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.score = score
        self.decode = decode
        self.caption = caption

    def of(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is None or not len(tokens):  # without captions there is nothing to compare with
            return torch.zeros(0, device=tokens.device)
        return self.score(self.decode(tokens), [self.caption(row) for row in condition])

    def compute(self) -> tuple[Tensor, Tensor]:
        mean, error = super().compute()
        return mean.clamp(min=0), error
