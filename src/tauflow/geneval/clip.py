"""CLIP of transformers: how well pictures fit captions, and what colour an object has.

A model belongs to no module of ours, so its weights get into no checkpoint.

Shapes: B pictures, H x W pixels, F features.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tauflow.geneval.pretrained import label_of, loaded, own_device
from tauflow.geneval.records import COLOURS
from tauflow.geneval.rules import Detection, GenEvalError

CLIP = "openai/clip-vit-large-patch14"
BACKGROUND = "#999"  # of an object that is looked at alone
TEMPLATES = (
    "a photo of a {colour} {name}",
    "a photo of a {colour}-colored {name}",
    "a photo of a {colour} object",
)


class Clip:
    """CLIP by folder or name of the hub; its features are tensors in every version of transformers."""

    def __init__(self, name: str = CLIP):
        self.name = name
        self.label = label_of(name)
        self.model, self.processor = loaded("the CLIP model", name, "CLIPModel", "CLIPProcessor")
        self.config = self.model.config

    def to(self, device: torch.device) -> "Clip":
        self.model.to(device)
        return self

    def get_image_features(self, *args: Any, **inputs: Any) -> Tensor:
        return _tensor(self.model.get_image_features(*args, **inputs))

    def get_text_features(self, *args: Any, **inputs: Any) -> Tensor:
        return _tensor(self.model.get_text_features(*args, **inputs))


def _tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


class ClipScore:
    """CLIP score of torchmetrics, 100 cos of the features of a picture and its caption, of each picture.

    Args:
        name: of the model, a folder or a name of the hub.
        device: where it runs; by default the GPU of this process, if there is one.
    """

    def __init__(self, name: str = CLIP, device: torch.device | None = None):
        from torchmetrics.multimodal import CLIPScore

        self.clip = Clip(name)
        self.device = device
        self.tag = f"clip_score_{self.clip.label}"
        model: Any = lambda: (self.clip, self.clip.processor)  # noqa: E731 - CLIPScore calls it
        self._metric = CLIPScore(model)

    def __call__(self, pictures: Tensor, captions: Sequence[str]) -> Tensor:
        """Return the scores (B,), below 0 too, of pictures uint8 (B, H, W, 3) on their device."""
        if pictures.dtype != torch.uint8 or pictures.ndim != 4 or pictures.shape[-1] != 3:
            raise GenEvalError(
                "a CLIP score is of pictures uint8 (B, H, W, 3) with values 0 to 255, got "
                f"{pictures.dtype} {tuple(pictures.shape)}"
            )
        device = self.device or own_device()
        scores = torch.zeros(len(pictures), dtype=torch.float64)
        # samples may be drawn in another precision
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            self._metric.to(device)
            for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
                self._metric.reset()
                self._metric.update(picture.permute(2, 0, 1).to(device), caption)
                scores[number] = self._metric.score.item()
        return scores.to(pictures.device)


class ClipColours:
    """Colours of objects: which of COLOURS fits best to an object, alone on grey, by CLIP."""

    names = COLOURS

    def __init__(self, name: str = CLIP):
        self.clip = Clip(name)
        self._classifier = cache(self._texts)

    def __call__(self, picture: Image.Image, name: str, found: Sequence[Detection]) -> list[str]:
        """Return the colours of objects of a class in an RGB picture."""
        crops = [_alone(picture, each) for each in found]
        device = own_device()
        with torch.inference_mode():
            inputs = self.clip.processor(images=crops, return_tensors="pt")
            features = self.clip.to(device).get_image_features(inputs["pixel_values"].to(device))
            best = (features @ self._classifier(name).T).argmax(1)
        return [COLOURS[number] for number in best.tolist()]

    def _texts(self, name: str) -> Tensor:
        """Return the features (10, F) of the colours for a class: the mean of those of the templates."""
        texts = [each.format(colour=colour, name=name) for colour in COLOURS for each in TEMPLATES]
        device = own_device()
        inputs = self.clip.processor(text=texts, return_tensors="pt", padding=True).to(device)
        with torch.inference_mode():
            features = self.clip.to(device).get_text_features(**inputs)
        features = torch.nn.functional.normalize(features, dim=-1).view(len(COLOURS), len(TEMPLATES), -1)
        return torch.nn.functional.normalize(features.mean(1), dim=-1)


def _alone(picture: Image.Image, found: Detection) -> Image.Image:
    """Return the box of an object, with grey around its mask."""
    if found.mask is not None:
        mask = Image.fromarray(np.where(found.mask, 255, 0).astype(np.uint8))
        picture = Image.composite(picture, Image.new("RGB", picture.size, BACKGROUND), mask)
    x1, y1, x2, y2 = found.box
    return picture.crop((round(x1), round(y1), round(x2), round(y2)))
