"""Two towers, one for captions and one for scenes, whose cosine says how well they fit: in-house, not CLIP.

Their weights are a file of the package, which `fit_towers` makes.

Shapes: B pairs, D codes of a scene, C words of a caption, F features.
"""

import warnings
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tauflow import files
from tauflow.tasks.scenes.captions import CAPTION_WORDS, WORDS
from tauflow.tasks.scenes.data import CODES
from tauflow.untrusted import read_arrays

FILE = Path(__file__).with_name("towers.npz")
MAKE = f"`python -m tauflow.tasks.scenes.fit_towers --out {FILE}` makes it"
SIZE = 8  # of the canvases that the shipped towers know
FEATURES = 64


class Towers(nn.Module):
    """Features of captions and of scenes of one size, of length 1."""

    def __init__(self, size: int = SIZE):
        super().__init__()
        self.size = size
        self.codes = nn.Embedding(CODES + 1, 16)  # the last one is of what is no code
        self.objects = nn.Sequential(nn.Conv2d(16, 64, 2), nn.ReLU(), nn.Conv2d(64, 16, 1), nn.ReLU())
        self.scene = _mlp(16 * (size - 1) ** 2, 128)
        self.words = nn.Embedding(CAPTION_WORDS * len(WORDS), 64)  # of each place of a caption
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


# The file


def shipped(size: int) -> Towers | None:
    """Return the towers of the package; None for canvases of another size than they know."""
    if size != SIZE:
        return None
    if not FILE.is_file():
        warnings.warn(f"caption_score_towers is skipped: there is no {FILE}; {MAKE}", stacklevel=2)
        return None
    return loaded(FILE)


@cache
def loaded(path: Path) -> Towers:
    """Read towers from a file, once."""
    with torch.device("meta"):  # draws nothing
        towers = Towers()
    weights = {name: torch.from_numpy(array).float() for name, array in read_arrays(path).items()}
    towers.load_state_dict(weights, assign=True)
    return towers.eval()


def save(towers: Towers, path: Path) -> None:
    """Write the weights in half precision, atomically."""
    with files.atomic(path) as file:
        np.savez(file, **{name: weight.half().numpy() for name, weight in towers.state_dict().items()})
