"""Pixels as tokens, and back.

Shapes: B pictures of H x W pixels, V data tokens. Pictures are uint8, (B, H, W) if they are grey, else
(B, H, W, 3); tokens are (B, H, W), or (B, H, W, 3) where each channel has its own.
"""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tauflow.errors import SettingsError
from tauflow.numerics import generator_for

TokensName = Literal["grey", "rgb", "decorrelated", "palette"]
UNKNOWN = 127  # how a token that is no data, such as a mask, is shown
PALETTE_PIXELS = 2**16  # training pixels that a palette is made from, at most
TOGETHER = 2**14  # colours that are compared with a palette at once
ROUNDS = 20  # of k-means


class Pixels(ABC):
    """Abstract: how pictures become tokens; `channels` is (3,) where each channel has its own, else ()."""

    coloured: bool = True  # whether pictures must be
    channels: tuple[int, ...] = ()
    num_tokens: int  # V

    @abstractmethod
    def encode(self, pictures: Tensor) -> Tensor:
        """Return the tokens, uint8, of pictures."""

    @abstractmethod
    def decode(self, tokens: Tensor) -> Tensor:
        """Return pictures (B, H, W, 3); what is no data token is shown as UNKNOWN."""

    def known(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return which tokens are data, and the tokens with 0 for all others."""
        tokens = tokens.long()  # a byte is never less than 256
        data = (tokens >= 0) & (tokens < self.num_tokens)
        return data, tokens * data


class Levels(Pixels):
    """Abstract: tokens are levels 0 to V - 1 of brightness, the high bits of a byte."""

    def __init__(self, levels: int):
        if levels not in (2, 4, 8, 16, 32, 64, 128, 256):
            raise SettingsError(
                f"--data.levels drops low bits of 8, so it must be a power of two from 2 to 256, got {levels}"
            )
        self.num_tokens = levels

    def lower(self, pictures: Tensor) -> Tensor:
        """Return levels of bytes."""
        return pictures // (256 // self.num_tokens)

    def restore(self, levels: Tensor) -> Tensor:
        """Return bytes of levels, evenly from 0 to 255; `lower` gives the same levels again."""
        top = self.num_tokens - 1
        return ((2 * 255 * levels + top) // (2 * top)).to(torch.uint8)


class Grey(Levels):
    """One token for each pixel: its brightness, that of a coloured picture by ITU-R 601."""

    coloured = False

    def encode(self, pictures: Tensor) -> Tensor:
        if pictures.ndim == 4:
            weighted = pictures.int() * torch.tensor([299, 587, 114], dtype=torch.int32)
            pictures = ((weighted.sum(-1) + 500) // 1000).to(torch.uint8)
        return self.lower(pictures)

    def decode(self, tokens: Tensor) -> Tensor:
        data, tokens = self.known(tokens)
        grey = torch.where(data, self.restore(tokens), UNKNOWN)
        return grey[..., None].expand(*grey.shape, 3)


class RGB(Levels):
    """Three tokens for each pixel: red, green and blue."""

    channels = (3,)

    def encode(self, pictures: Tensor) -> Tensor:
        return self.lower(pictures)

    def decode(self, tokens: Tensor) -> Tensor:
        data, tokens = self.known(tokens)
        return torch.where(data, self.restore(tokens), UNKNOWN)


class Decorrelated(Levels):
    """Three tokens for each pixel: G, R - G + V/2 and B - G + V/2 modulo V; RGB follows exactly."""

    channels = (3,)

    def encode(self, pictures: Tensor) -> Tensor:
        red, green, blue = self.lower(pictures).long().unbind(-1)
        half = self.num_tokens // 2
        differences = [(channel - green + half) % self.num_tokens for channel in (red, blue)]
        return torch.stack([green, *differences], -1).to(torch.uint8)

    def decode(self, tokens: Tensor) -> Tensor:
        data, tokens = self.known(tokens)
        green, reds, blues = tokens.unbind(-1)
        half = self.num_tokens // 2
        red, blue = ((channel + green - half) % self.num_tokens for channel in (reds, blues))
        colours = self.restore(torch.stack([red, green, blue], -1))
        return torch.where(data.all(-1, keepdim=True), colours, UNKNOWN)


class Palette(Pixels):
    """One token for each pixel: the nearest of V colours (V, 3), which have no order."""

    def __init__(self, colours: list[list[int]]):
        try:
            given = np.array(colours)
            fits = given.ndim == 2 and given.shape[1] == 3 and given.dtype.kind == "i"
        except ValueError:  # rows of unequal lengths
            fits = False
        if not fits or not 2 <= len(given) <= 256 or given.min() < 0 or given.max() > 255:
            raise SettingsError(
                "--data.palette_colours is a list of 2 to 256 colours [red, green, blue], 0 to 255"
            )
        self.colours = torch.from_numpy(given.astype(np.uint8))
        self.num_tokens = len(given)
        self._nearest = torch.zeros(0, dtype=torch.uint8)  # of a colour by its number, found when first seen
        self._seen = torch.zeros(0, dtype=torch.bool)

    def encode(self, pictures: Tensor) -> Tensor:
        if not len(self._seen):
            self._nearest, self._seen = (torch.zeros(2**24, dtype=kind) for kind in (torch.uint8, torch.bool))
        numbers = (pictures.long() * torch.tensor([2**16, 2**8, 1])).sum(-1)
        for new in numbers[~self._seen[numbers]].unique().split(TOGETHER):
            self._nearest[new] = self._find(new)
            self._seen[new] = True
        return self._nearest[numbers]

    def _find(self, numbers: Tensor) -> Tensor:
        """Return the nearest colours, the first of equally near ones; floats are exact at this size."""
        pixels = torch.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], -1).float()
        return _nearest(pixels, self.colours.float()).to(torch.uint8)

    def decode(self, tokens: Tensor) -> Tensor:
        data, tokens = self.known(tokens)
        return torch.where(data[..., None], self.colours.to(tokens.device)[tokens], UNKNOWN)


def palette_of(pictures: np.ndarray, count: int) -> list[list[int]]:
    """Return `count` colours, dark ones first, found in pictures (N, H, W, 3) by k-means.

    Nothing is drawn but which pictures are looked at: the centres begin with the most frequent colour, and
    one after the other those that add most to the squared error.
    """
    order = torch.randperm(len(pictures), generator=generator_for("palette"))
    rows = order[: max(1, PALETTE_PIXELS // pictures[0, ..., 0].size)].sort().values
    pixels = torch.from_numpy(np.concatenate([pictures[row].reshape(-1, 3) for row in rows.tolist()]))
    found, numbers = pixels.unique(dim=0, return_counts=True)
    if len(found) < count:
        raise SettingsError(f"the pictures have {len(found)} colours, not {count}; lower --data.levels")
    colours, weights = found.float(), numbers.float()
    centres = _extended(colours[weights.argmax()][None], colours, weights, count)
    for _ in range(ROUNDS):
        nearest = _nearest(colours, centres)
        sums = torch.zeros_like(centres).index_add_(0, nearest, weights[:, None] * colours)
        totals = torch.zeros(count).index_add_(0, nearest, weights)[:, None]
        centres = torch.where(totals > 0, sums / totals.clamp(min=1), centres)
    palette = _extended(centres.round().unique(dim=0), colours, weights, count)  # some may have become equal
    luma = (palette * torch.tensor([299.0, 587.0, 114.0])).sum(1)
    return palette[luma.argsort(stable=True)].long().tolist()


def _nearest(colours: Tensor, centres: Tensor) -> Tensor:
    """Return the numbers (n,) of the centres (k, 3) that are nearest to colours (n, 3)."""
    return (centres.square().sum(1) - 2 * colours @ centres.T).argmin(1)


def _extended(centres: Tensor, colours: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return `count` centres: those there are, and colours (n, 3) far from them that weigh (n,) much."""
    gaps = (colours - centres[_nearest(colours, centres)]).square().sum(1)
    while len(centres) < count:
        new = colours[(weights * gaps).argmax()]
        centres = torch.cat([centres, new[None]])
        gaps = gaps.minimum((colours - new).square().sum(1))
    return centres


def pixels_from(name: TokensName, levels: int, colours: list[list[int]] | None) -> Pixels:
    """Return how pictures become tokens; colours are those of a palette."""
    if name == "palette":
        assert colours is not None
        return Palette(colours)
    kinds: dict[str, type[Grey | RGB | Decorrelated]] = {
        "grey": Grey,
        "rgb": RGB,
        "decorrelated": Decorrelated,
    }
    return kinds[name](levels)
