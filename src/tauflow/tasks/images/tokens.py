"""Pixels as tokens, and back.

Shapes: B images of H x W pixels, V data tokens. Images are uint8, (B, H, W) if they are grayscale, else
(B, H, W, 3); tokens are (B, H, W), or (B, H, W, 3) where each channel has its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tauflow.errors import SettingsError
from tauflow.numerics import generator_for

TokensName = Literal["grey", "rgb", "decorrelated", "palette"]
UNKNOWN = 127  # how a token that is no data, such as a mask, is shown
PALETTE_PIXELS = 2**16  # training pixels that a palette is made from, at most
CHUNK = 2**14  # colors compared with a palette together
ROUNDS = 20  # of k-means


class Pixels(ABC):
    """Abstract: how images become tokens; `channels` is (3,) where each channel has its own, else ()."""

    has_color: bool = True  # whether images must have color
    channels: tuple[int, ...] = ()
    num_tokens: int  # V

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Return the tokens, uint8, of images."""

    @abstractmethod
    def decode(self, tokens: Tensor) -> Tensor:
        """Return images (B, H, W, 3); what is no data token is shown as UNKNOWN."""

    def split_data(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
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

    def quantize(self, images: Tensor) -> Tensor:
        return images // (256 // self.num_tokens)

    def dequantize(self, levels: Tensor) -> Tensor:
        """Return bytes of levels, evenly from 0 to 255; `quantize` gives the same levels again."""
        top = self.num_tokens - 1
        return ((2 * 255 * levels + top) // (2 * top)).to(torch.uint8)


class Grey(Levels):
    """One token per pixel: its brightness, for color images by ITU-R 601."""

    has_color = False

    def encode(self, images: Tensor) -> Tensor:
        if images.ndim == 4:
            weighted = images.int() * torch.tensor([299, 587, 114], dtype=torch.int32)
            images = ((weighted.sum(-1) + 500) // 1000).to(torch.uint8)
        return self.quantize(images)

    def decode(self, tokens: Tensor) -> Tensor:
        data, tokens = self.split_data(tokens)
        grey = torch.where(data, self.dequantize(tokens), UNKNOWN)
        return grey[..., None].expand(*grey.shape, 3)


def fewest_levels(values: Sequence[int]) -> int:
    """Return the fewest levels that show images exactly in which these values 0 to 255 occur."""
    images = torch.tensor(values, dtype=torch.uint8)
    kinds = (Grey(2**bits) for bits in range(1, 9))
    return next(k.num_tokens for k in kinds if torch.equal(k.dequantize(k.quantize(images).long()), images))


class RGB(Levels):
    """Three tokens per pixel: red, green and blue."""

    channels = (3,)

    def encode(self, images: Tensor) -> Tensor:
        return self.quantize(images)

    def decode(self, tokens: Tensor) -> Tensor:
        data, tokens = self.split_data(tokens)
        return torch.where(data, self.dequantize(tokens), UNKNOWN)


class Decorrelated(Levels):
    """Three tokens per pixel: G, R - G + V/2 and B - G + V/2 modulo V; RGB follows exactly."""

    channels = (3,)

    def encode(self, images: Tensor) -> Tensor:
        red, green, blue = self.quantize(images).long().unbind(-1)
        half = self.num_tokens // 2
        differences = [(channel - green + half) % self.num_tokens for channel in (red, blue)]
        return torch.stack([green, *differences], -1).to(torch.uint8)

    def decode(self, tokens: Tensor) -> Tensor:
        data, tokens = self.split_data(tokens)
        green, reds, blues = tokens.unbind(-1)
        half = self.num_tokens // 2
        red, blue = ((channel + green - half) % self.num_tokens for channel in (reds, blues))
        colors = self.dequantize(torch.stack([red, green, blue], -1))
        return torch.where(data.all(-1, keepdim=True), colors, UNKNOWN)


class Palette(Pixels):
    """One token per pixel: the nearest of V colors (V, 3), which have no order."""

    def __init__(self, colors: list[list[int]]):
        self.colors = torch.tensor(colors, dtype=torch.uint8).reshape(-1, 3)
        self.num_tokens = len(self.colors)
        self._nearest = torch.zeros(0, dtype=torch.uint8)  # of a color by its number, found when first seen
        self._seen = torch.zeros(0, dtype=torch.bool)

    def encode(self, images: Tensor) -> Tensor:
        if not len(self._seen):
            self._nearest, self._seen = (torch.zeros(2**24, dtype=kind) for kind in (torch.uint8, torch.bool))
        numbers = (images.long() * torch.tensor([2**16, 2**8, 1])).sum(-1)
        for new in numbers[~self._seen[numbers]].unique().split(CHUNK):
            pixels = torch.stack([new >> 16, new >> 8 & 255, new & 255], -1).float()  # exact at this size
            self._nearest[new] = _nearest(pixels, self.colors.float()).to(torch.uint8)
            self._seen[new] = True
        return self._nearest[numbers]

    def decode(self, tokens: Tensor) -> Tensor:
        data, tokens = self.split_data(tokens)
        return torch.where(data[..., None], self.colors.to(tokens.device)[tokens], UNKNOWN)


def find_palette(images: np.ndarray, count: int) -> list[list[int]]:
    """Return `count` colors, dark ones first, found in images (N, H, W, 3) by k-means.

    Only the images it looks at are random. The first center is the most frequent color; the next ones are,
    one after the other, the colors that add most to the squared error.
    """
    order = torch.randperm(len(images), generator=generator_for("palette"))
    rows = order[: max(1, PALETTE_PIXELS // images[0, ..., 0].size)].sort().values
    pixels = torch.from_numpy(np.concatenate([images[row].reshape(-1, 3) for row in rows.tolist()]))
    found, numbers = pixels.unique(dim=0, return_counts=True)
    if len(found) < count:
        raise SettingsError(f"the images have {len(found)} colors, not {count}; lower --data.levels")
    colors, weights = found.float(), numbers.float()
    centers = _add_centers(colors[weights.argmax()][None], colors, weights, count)
    for _ in range(ROUNDS):
        nearest = _nearest(colors, centers)
        sums = torch.zeros_like(centers).index_add_(0, nearest, weights[:, None] * colors)
        totals = torch.zeros(count).index_add_(0, nearest, weights)[:, None]
        centers = torch.where(totals > 0, sums / totals.clamp(min=1), centers)
    # some centers may have become equal
    palette = _add_centers(centers.round().unique(dim=0), colors, weights, count)
    luma = (palette * torch.tensor([299.0, 587.0, 114.0])).sum(1)
    return palette[luma.argsort(stable=True)].long().tolist()


def _nearest(colors: Tensor, centers: Tensor) -> Tensor:
    """Return the numbers (n,) of the centers (k, 3) nearest to colors (n, 3); the first of equal ones."""
    return (centers.square().sum(1) - 2 * colors @ centers.T).argmin(1)


def _add_centers(centers: Tensor, colors: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return `count` centers: the given ones, and colors (n, 3) far from them with large weights (n,)."""
    gaps = (colors - centers[_nearest(colors, centers)]).square().sum(1)
    while len(centers) < count:
        new = colors[(weights * gaps).argmax()]
        centers = torch.cat([centers, new[None]])
        gaps = gaps.minimum((colors - new).square().sum(1))
    return centers


def pixels_from(name: TokensName, levels: int, colors: list[list[int]] | None) -> Pixels:
    if name == "palette":
        return Palette(colors or [])
    kinds: dict[str, type[Grey | RGB | Decorrelated]] = {
        "grey": Grey,
        "rgb": RGB,
        "decorrelated": Decorrelated,
    }
    return kinds[name](levels)
