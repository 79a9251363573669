"""TextToImage: prompts in, pictures out, of a pretrained model that comes without its data.

Shapes: B samples, D image tokens, C columns of a prompt, H x W pixels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError
from tauflow.geneval import ClipScore, records
from tauflow.geneval.pretrained import refuse_same_labels
from tauflow.recipes.framing import Prompts
from tauflow.tasks import Task
from tauflow.tasks.clip_score import CaptionScore
from tauflow.tasks.images.metrics import BrightnessSpread, QuietNoise, chroma, luma
from tauflow.tasks.images.tokens import UNKNOWN

TOGETHER = 8  # pictures that are decoded at once
KEPT = 512  # decoded pictures that are kept, since metrics, tables and figures ask for the same ones


class TextToImage(Task):
    """Pictures of prompts, decoded by a VQ model of transformers with `decode(codes)`.

    Args:
        decoder: gives pictures (B, 3, H, W) in -1 to 1 of codes (B, D).
        prompts: the tokens of prompts.
        shape: of the grid of image tokens.
        guidance: the weight that is recommended.
        texts: prompts of samples that are asked for nothing else; by default those of GenEval.
    """

    primary_metric = "quiet_luma"
    alone = "no numbers of real data: a pretrained model comes without its data"

    def __init__(
        self,
        decoder: Any,
        prompts: Prompts,
        shape: tuple[int, int],
        guidance: float | None = None,
        texts: Sequence[str] = (),
    ):
        self.decoder = decoder
        self.prompts = prompts
        self.shape = shape
        self.guidance = guidance
        self.texts = list(texts)
        self.num_tokens = decoder.quantize.num_embeddings
        self.conditions = prompts.conditions
        self.scores: list[ClipScore] = []
        self._pictures: dict[bytes, np.ndarray] = {}

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of prompts."""
        return self.prompts.tokenizer

    def setup(self, stage: str | None = None) -> None:
        raise SettingsError("a pretrained text-to-image model comes without data to train or validate on")

    def condition(self, text: str) -> Tensor:
        return self.prompts.encode(text)

    def caption(self, condition: Tensor) -> str:
        return self.prompts.decode(condition)

    def sample_conditions(self, count: int, first: int = 0) -> Tensor:
        """Return the prompts (count, C) of the texts from number `first` on."""
        if not self.texts:
            self.texts = [record["prompt"] for record in records()]
        numbers = range(first, first + count)
        return torch.stack([self.condition(self.texts[number % len(self.texts)]) for number in numbers])

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric] = {
            "quiet_luma": QuietNoise(self.decode, luma),
            "quiet_chroma": QuietNoise(self.decode, chroma),
            "brightness_sd": BrightnessSpread(self.decode),
        }
        clip = {score.tag: CaptionScore(score, self.decode, self.caption) for score in self.scores}
        return MetricCollection({**clip, **metrics}, compute_groups=False)

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        """Measure the CLIP score under models of transformers, folders or names of the hub."""
        asked = dict.fromkeys(name.strip() for name in names.split(","))
        refuse_same_labels(asked)
        self.scores = [ClipScore(name, device) for name in asked]
        self.primary_metric = self.scores[0].tag

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        return self.decode(tokens).cpu().numpy()

    def decode(self, tokens: Tensor) -> Tensor:
        """Return pictures uint8 (B, H, W, 3) of tokens (B, D); a token that is no code is grey."""
        keys = [row.tobytes() for row in tokens.long().cpu().numpy()]
        new = {key: row for row, key in enumerate(keys) if key not in self._pictures}
        known = dict(self._pictures)
        for part in torch.tensor(list(new.values()), dtype=torch.long).split(TOGETHER):
            decoded = self._decoded(tokens[part.to(tokens.device)].long())
            known |= zip((keys[row] for row in part.tolist()), decoded, strict=True)
        self._pictures = dict(list(known.items())[-KEPT:])
        if not keys:
            return torch.zeros(0, 1, 1, 3, dtype=torch.uint8, device=tokens.device)
        return torch.from_numpy(np.stack([known[key] for key in keys])).to(tokens.device)

    @torch.no_grad()
    def _decoded(self, tokens: Tensor) -> np.ndarray:
        home = self.decoder.device
        tokens = tokens.to(home)
        data = (tokens >= 0) & (tokens < self.num_tokens)
        with torch.autocast(home.type, enabled=False):  # samples may be drawn in another precision
            levels = self.decoder.decode(tokens * data)
        pictures = ((levels.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        grid = data.view(-1, 1, *self.shape).repeat_interleave(pictures.shape[2] // self.shape[0], 2)
        grid = grid.repeat_interleave(pictures.shape[3] // self.shape[1], 3)
        return torch.where(grid, pictures, UNKNOWN).permute(0, 2, 3, 1).cpu().numpy()
