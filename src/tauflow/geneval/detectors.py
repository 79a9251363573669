"""Detectors: the objects of a picture, from Mask2Former of transformers."""

from collections.abc import Sequence
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from tauflow.geneval.pretrained import loaded, own_device
from tauflow.geneval.records import CLASSES
from tauflow.geneval.rules import Box, Detection, GenEvalError, Objects

MASK2FORMER = "facebook/mask2former-swin-small-coco-instance"
SIZE = {"shortest_edge": 800, "longest_edge": 1333}  # pixels that the published detector gets to see
CERTAIN = 0.3  # score above which an object counts
CERTAIN_TO_COUNT = 0.9  # the same where objects are counted
MOST = 16  # objects of a class


class Detector(Protocol):
    """What finds the objects of a picture; `classes` are those that it knows."""

    classes: Sequence[str]

    def __call__(self, picture: Image.Image) -> Objects:
        """Return the objects of an RGB picture by class."""


def confident(objects: Objects, tag: str) -> dict[str, list[Detection]]:
    """Return the objects that count for a task, the most certain ones of each class first."""
    least = CERTAIN_TO_COUNT if tag == "counting" else CERTAIN
    found = {}
    for name, detections in objects.items():
        kept = sorted((each for each in detections if each.score > least), key=lambda each: -each.score)
        if kept:
            found[name] = kept[:MOST]
    return found


class Mask2Former:
    """Mask2Former of transformers with the classes of COCO; boxes are the extents of its masks.

    Args:
        name: a folder, or a name of the hub.
    """

    classes = CLASSES

    def __init__(self, name: str = MASK2FORMER):
        self.name = name
        parts = ("Mask2FormerForUniversalSegmentation", "Mask2FormerImageProcessor")
        self._model, self._processor = loaded("the detector", name, *parts)
        if self._model.config.num_labels != len(CLASSES):
            raise GenEvalError(
                f"the detector {name!r} knows {self._model.config.num_labels} classes instead of the "
                f"{len(CLASSES)} of COCO; name one that ends in coco-instance"
            )

    def __call__(self, picture: Image.Image) -> dict[str, list[Detection]]:
        """Return the objects with a score of at least CERTAIN."""
        device = own_device()
        inputs = self._processor(images=picture, size=SIZE, return_tensors="pt")
        with torch.inference_mode():
            outputs = self._model.to(device)(**inputs.to(device))
        for logits in ("class_queries_logits", "masks_queries_logits"):
            setattr(outputs, logits, getattr(outputs, logits).cpu())  # where the masks are put together
        (segments,) = self._processor.post_process_instance_segmentation(
            outputs,
            threshold=CERTAIN,
            target_sizes=[(picture.height, picture.width)],
            return_binary_maps=True,
        )
        found: dict[str, list[Detection]] = {}
        for number, segment in enumerate(segments["segments_info"]):  # none: there are no masks either
            mask = segments["segmentation"][number].bool()
            detection = Detection(segment["score"], _extent(mask), mask=mask.numpy())
            found.setdefault(CLASSES[segment["label_id"]], []).append(detection)
        return found


def _extent(mask: Tensor) -> Box:
    """Return the box of a mask (H, W); its end is the first pixel after it."""
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    corners = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    x1, y1, x2, y2 = (float(corner) for corner in corners)
    return x1, y1, x2, y2
