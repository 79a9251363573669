"""Two small towers, one of captions and one of scenes, whose cosine is a caption score: in-house, not CLIP.

`python -m benchmarks towers` trained their weights, which are a file of the package.

Shapes: B pairs, D codes of a scene, C words of a caption, F features.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow.tasks.scenes.captions import CAPTION_WORDS, WORDS
from tauflow.tasks.scenes.data import CODES

FILE = Path(__file__).with_name("towers.npz")
SIZE = 8  # of the canvases that the shipped towers were trained on
FEATURES = 64


class Towers(nn.Module):
    """Features of captions and of scenes of one size, of length 1."""

    def __init__(self, size: int = SIZE):
        super().__init__()
        self.size = size
        self.codes = nn.Embedding(CODES + 1, 16)  # the last one is of tokens that aren't codes
        self.objects = nn.Sequential(nn.Conv2d(16, 64, 2), nn.ReLU(), nn.Conv2d(64, 16, 1), nn.ReLU())
        self.scene = _mlp(16 * (size - 1) ** 2, 128)
        self.words = nn.Embedding(CAPTION_WORDS * len(WORDS), 64)  # per place of a caption
        self.caption = _mlp(64, 128)
        self.logit_scale = nn.Parameter(torch.tensor(2.5))  # a logarithm, as in CLIP

    def scenes(self, tokens: Tensor) -> Tensor:
        """Return features (B, F) of scenes (B, D)."""
        grid = self.codes(tokens.clamp(0, CODES)).view(-1, self.size, self.size, 16).permute(0, 3, 1, 2)
        return F.normalize(self.scene(self.objects(grid).flatten(1)), dim=1)

    def captions(self, condition: Tensor) -> Tensor:
        """Return features (B, F) of captions (B, C)."""
        places = torch.arange(CAPTION_WORDS, device=condition.device) * len(WORDS)
        return F.normalize(self.caption(self.words(condition + places).sum(1)), dim=1)

    @torch.inference_mode()
    def cosines(self, tokens: Tensor, condition: Tensor) -> Tensor:
        """Return the cosine (B,) of each scene (B, D) and its caption (B, C)."""
        return (self.scenes(tokens) * self.captions(condition)).sum(1)


def _mlp(size: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, FEATURES))


def shipped_towers(size: int) -> Towers | None:
    """Return the towers of the package; None for canvases of other sizes."""
    return load_towers(FILE) if size == SIZE else None


@cache
def load_towers(path: Path) -> Towers:
    with torch.device("meta"):  # draws no random numbers
        towers = Towers()
    with np.load(path) as arrays:
        weights = {name: torch.from_numpy(arrays[name]).float() for name in arrays.files}
    towers.load_state_dict(weights, assign=True)
    return towers.eval()
