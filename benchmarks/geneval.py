"""GenEval on images: folders as GenEval has them, Mask2Former as the detector, and colors by CLIP.

The rules are in `tauflow.tasks.scenes.rules`; `python -m benchmarks geneval` scores a folder.
"""

import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from tauflow import files
from tauflow.errors import SettingsError
from tauflow.tasks.scenes.clip import CLIP, Clip, default_device, load_pretrained
from tauflow.tasks.scenes.rules import CLASSES, COLORS, Box, Detection, Objects, Record

MASK2FORMER = "facebook/mask2former-swin-small-coco-instance"
SIZE = {"shortest_edge": 800, "longest_edge": 1333}  # pixels, as in the published protocol
MIN_SCORE = 0.3  # above it an object counts
MIN_SCORE_COUNTING = 0.9  # the same in prompts that ask for a number of objects
MAX_OBJECTS = 16  # per class
RECORD = "metadata.jsonl"
SAMPLES = "samples"
BACKGROUND = "#999"  # around an object whose color is asked for
TEMPLATES = (
    "a photo of a {color} {name}",
    "a photo of a {color}-colored {name}",
    "a photo of a {color} object",
)

# Folders


@dataclass(frozen=True)
class PromptImages:
    """The images made for one prompt."""

    number: str  # name of its folder
    record: dict[str, Any]
    images: list[str]  # paths relative to the folder of all prompts


def write_folder(
    images: Iterable[Sequence[np.ndarray]], records: Iterable[Record], folder: str | Path
) -> None:
    """Write the images of each record, uint8 (H, W, 3), to NNNNN/samples/NNNNN.png, and the records.

    Both arguments are read one by one, so a generator may draw the images of the next record on demand.
    """
    for number, (group, record) in enumerate(zip(images, records, strict=True)):
        place = Path(folder) / f"{number:05d}"
        files.write(place / RECORD, json.dumps(record) + "\n")
        for sample, image in enumerate(group):
            file = io.BytesIO()
            Image.fromarray(np.asarray(image)).save(file, format="png")
            with files.atomic(place / SAMPLES / f"{sample:05d}.png") as target:
                target.write(file.getvalue())


def read_folder(folder: str | Path) -> list[PromptImages]:
    """Return the prompts of such a folder with their records and images, in order."""
    found = []
    try:
        for place in sorted(Path(folder).iterdir()):
            if not place.name.isdigit():
                continue
            record = json.loads((place / RECORD).read_bytes())
            names = sorted(file.name for file in (place / SAMPLES).iterdir())
            images = [f"{place.name}/{SAMPLES}/{name}" for name in names if re.fullmatch(r"\d+\.png", name)]
            found.append(PromptImages(place.name, record, images))
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"cannot read the images in {folder} ({error}); each NNNNN/{RECORD} holds the record of the "
            f"images in NNNNN/{SAMPLES}"
        ) from None
    empty = [each.number for each in found if not each.images]
    if empty or not found:
        raise SettingsError(
            f"{folder} has no images {empty[0] if empty else 'NNNNN'}/{SAMPLES}/*.png; "
            "benchmarks.geneval.write_folder writes them"
        )
    return found


# Detectors


class Detector(Protocol):
    """Finds the objects of an image."""

    def __call__(self, image: Image.Image) -> Objects:
        """Return the objects of an RGB image by class."""


def confident_objects(objects: Objects, tag: str) -> dict[str, list[Detection]]:
    """Return the objects that count for a task, the most confident ones of each class first."""
    least = MIN_SCORE_COUNTING if tag == "counting" else MIN_SCORE
    found = {}
    for name, detections in objects.items():
        kept = sorted((each for each in detections if each.score > least), key=lambda each: -each.score)
        if kept:
            found[name] = kept[:MAX_OBJECTS]
    return found


class Mask2Former:
    """Mask2Former of Transformers with the classes of COCO; boxes are the extents of its masks.

    Args:
        name: a folder, or a name on the hub.
    """

    def __init__(self, name: str = MASK2FORMER):
        self.name = name
        parts = ("Mask2FormerForUniversalSegmentation", "Mask2FormerImageProcessor")
        self._model, self._processor = load_pretrained("the detector", name, *parts)
        if self._model.config.num_labels != len(CLASSES):
            raise SettingsError(
                f"the detector {name!r} has {self._model.config.num_labels} classes instead of the "
                f"{len(CLASSES)} of COCO; choose one that ends in coco-instance"
            )

    def __call__(self, image: Image.Image) -> dict[str, list[Detection]]:
        """Return the objects with a score of at least MIN_SCORE."""
        device = default_device()
        inputs = self._processor(images=image, size=SIZE, return_tensors="pt")
        with torch.inference_mode():
            outputs = self._model.to(device)(**inputs.to(device))
        # the masks are assembled on the CPU
        outputs.class_queries_logits = outputs.class_queries_logits.cpu()
        outputs.masks_queries_logits = outputs.masks_queries_logits.cpu()
        (segments,) = self._processor.post_process_instance_segmentation(
            outputs,
            threshold=MIN_SCORE,
            target_sizes=[(image.height, image.width)],
            return_binary_maps=True,
        )
        found: dict[str, list[Detection]] = {}
        for number, segment in enumerate(segments["segments_info"]):  # empty: there are no masks either
            mask = segments["segmentation"][number].bool()
            detection = Detection(segment["score"], _extent(mask), mask=mask.numpy())
            found.setdefault(CLASSES[segment["label_id"]], []).append(detection)
        return found


def _extent(mask: Tensor) -> Box:
    """Return the box of a mask (H, W); it ends at the first pixel after the mask."""
    rows = mask.any(1).nonzero()
    columns = mask.any(0).nonzero()
    corners = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    x1, y1, x2, y2 = (float(corner) for corner in corners)
    return x1, y1, x2, y2


# Colors


class ClipColors:
    """Colors of objects by CLIP: which of COLORS fits best to an object alone on gray."""

    def __init__(self, name: str = CLIP):
        self.clip = Clip(name)
        self._classifier = cache(self._color_features)

    def __call__(self, image: Image.Image, name: str, found: Sequence[Detection]) -> list[str]:
        """Return the colors of objects of one class in an RGB image."""
        crops = [_crop(image, each) for each in found]
        device = default_device()
        with torch.inference_mode():
            inputs = self.clip.processor(images=crops, return_tensors="pt")
            features = self.clip.to(device).get_image_features(inputs["pixel_values"].to(device))
            best = (features @ self._classifier(name).T).argmax(1)
        return [COLORS[number] for number in best.tolist()]

    def _color_features(self, name: str) -> Tensor:
        """Return the text features (10, F) of the colors of a class, averaged over the templates."""
        texts = [each.format(color=color, name=name) for color in COLORS for each in TEMPLATES]
        device = default_device()
        inputs = self.clip.processor(text=texts, return_tensors="pt", padding=True).to(device)
        with torch.inference_mode():
            features = self.clip.to(device).get_text_features(**inputs)
        features = normalize(features, dim=-1).view(len(COLORS), len(TEMPLATES), -1)
        return normalize(features.mean(1), dim=-1)


def _crop(image: Image.Image, found: Detection) -> Image.Image:
    """Return the box of an object, with gray around its mask."""
    if found.mask is not None:
        mask = Image.fromarray(np.where(found.mask, 255, 0).astype(np.uint8))
        image = Image.composite(image, Image.new("RGB", image.size, BACKGROUND), mask)
    x1, y1, x2, y2 = found.box
    return image.crop((round(x1), round(y1), round(x2), round(y2)))
