"""The CLIP score: 100 cos of the CLIP features of an image and its caption.

A metric refers to the CLIP model by its name: the weights aren't part of a checkpoint.

Shapes: B images, H x W pixels, D tokens of a sample, C columns of a condition.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tauflow.errors import SettingsError, first_line
from tauflow.tasks.metrics import ConditionalSampleMean

CLIP = "openai/clip-vit-large-patch14"


@cache
def load_pretrained(what: str, name: str, model: str, processor: str) -> tuple[Any, Any]:
    """Load a Transformers model and its processor once, by the names of their classes.

    Args:
        what: the model in words, for error messages.
        name: a folder, or a name on the hub.
        model: class of the model.
        processor: class of its processor.
    """
    try:
        import transformers

        network, info = getattr(transformers, model).from_pretrained(
            name, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
        prepared = getattr(transformers, processor).from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # Transformers raises many kinds
        advice = f"choose a folder with a Transformers {model}, or one on the hub that can be downloaded"
        if isinstance(error, ImportError):
            advice = "it needs more packages: pip install -c constraints.txt -e '.[geneval]'"
        raise SettingsError(f"cannot load {what} {name!r}: {first_line(error)}; {advice}") from None
    if info["missing_keys"]:
        raise SettingsError(
            f"cannot load {what} {name!r}: some weights of a {model} are missing; choose another"
        )
    return network.eval(), prepared


def model_label(name: str) -> str:
    """Return the name of a model in metric tags: its last part, without dots."""
    return re.sub(r"[^\w-]", "_", Path(name).name)


def check_distinct_labels(names: Iterable[str]) -> None:
    """Raise an error if two models would share one metric tag."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(model_label(name), name)
        if other != name:
            raise SettingsError(
                f"{other} and {name} are both called {model_label(name)}; use one, or rename its folder"
            )


def default_device() -> torch.device:
    """Return the GPU of this process if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


class Clip:
    """CLIP from a folder or the hub; its features are tensors in every version of Transformers."""

    def __init__(self, name: str = CLIP):
        self.name = name
        self.model, self.processor = load_pretrained("the CLIP model", name, "CLIPModel", "CLIPProcessor")
        self.config = self.model.config

    def to(self, device: torch.device) -> "Clip":
        self.model.to(device)
        return self

    def get_image_features(self, *args: Any, **inputs: Any) -> Tensor:
        return _as_tensor(self.model.get_image_features(*args, **inputs))

    def get_text_features(self, *args: Any, **inputs: Any) -> Tensor:
        return _as_tensor(self.model.get_text_features(*args, **inputs))


def _as_tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


class ClipScore:
    """CLIP score of each image, by torchmetrics.

    Args:
        name: the CLIP model, a folder or a name on the hub.
        device: where it runs; by default the GPU of this process, if there is one.
    """

    def __init__(self, name: str = CLIP, device: torch.device | None = None):
        from torchmetrics.multimodal import CLIPScore

        clip = Clip(name)
        self.device = device
        self.tag = f"clip_score_{model_label(name)}"
        model: Any = lambda: (clip, clip.processor)  # noqa: E731 - CLIPScore calls it
        self._metric = CLIPScore(model)

    def __call__(self, images: Tensor, captions: Sequence[str]) -> Tensor:
        """Return the scores (B,), which may be negative, of images uint8 (B, H, W, 3) on their device."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise SettingsError(
                f"Images must be uint8 (B, H, W, 3), got {images.dtype} {tuple(images.shape)}. Convert them."
            )
        device = self.device or default_device()
        scores = torch.zeros(len(images), dtype=torch.float64)
        # samples may be drawn in another precision
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            self._metric.to(device)
            for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
                self._metric.reset()
                self._metric.update(image.permute(2, 0, 1).to(device), caption)
                scores[number] = self._metric.score.item()
        return scores.to(images.device)


class CaptionScore(ConditionalSampleMean):
    """Mean CLIP score of samples and their captions; a negative mean is shown as 0, as in torchmetrics.

    A task lists it under the `tag` of the score, which contains the name of the model.

    Args:
        score: of images and captions.
        decode: turns samples (B, D) into images uint8 (B, H, W, 3).
        caption: turns the condition (C,) of a sample into words.
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
        if condition is None or not len(tokens):  # nothing to compare with
            return torch.zeros(0, device=tokens.device)
        return self.score(self.decode(tokens), [self.caption(row) for row in condition])

    def compute(self) -> tuple[Tensor, Tensor]:
        mean, error = super().compute()
        return mean.clamp(min=0), error
