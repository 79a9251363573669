"""Metrics of pictures: what needs no network, and distances and classes in the features of one.

Features are compared with those of training pictures, REFERENCE of them unless the task says how many. Real
validation pictures, which are none of these, are measured like samples: that row is the floor, and the
target, of every number here.

Shapes: B samples of an update, N in all, D coordinates, H x W pixels, F features, C classes.
"""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torchmetrics import Metric

from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.tasks.images.distances import (
    NOTHING,
    Classifier,
    RealFeatures,
    frechet_distance,
    kernel_distance,
)
from tauflow.tasks.images.features import FeatureNetwork, label_of
from tauflow.tasks.metrics import (
    ConditionalSampleMean,
    SampleMean,
    SampleMetric,
    UnigramTotalVariation,
    joined,
    standard_error,
)

if TYPE_CHECKING:
    from tauflow.tasks.images.task import Images

REFERENCE = 1000  # training pictures whose features samples are compared with
PATCH = 4  # pixels of a side of the patches whose noise is measured
T = TypeVar("T")


def picture_metrics(task: "Images") -> dict[str, Metric]:
    """Return fresh metrics of an image task; those that compare with real pictures only where it has some."""
    metrics: dict[str, Metric] = {
        "brightness_sd": BrightnessSpread(task.decode),
        "quiet_luma": QuietNoise(task.decode, luma),
    }
    if task.pixels.coloured:
        metrics["quiet_chroma"] = QuietNoise(task.decode, chroma)
    if task.alone:
        return metrics
    metrics["unigram_tv"] = UnigramTotalVariation(_once(task, "unigrams", task.unigrams))
    return metrics | feature_metrics(task, task.features) if task.features else metrics


def feature_metrics(task: "Images", name: str) -> dict[str, Metric]:
    """Return those in the features of a network, whose name is in their tags."""
    seen = SampleFeatures(task, FeatureNetwork(name))
    label = label_of(name)
    metrics: dict[str, Metric] = {
        f"kid_{label}": KernelDistance(seen),
        f"fd16_{label}": ShortFrechetDistance(seen),
        f"fid_{label}": FrechetDistance(seen),
    }
    if task.conditions:
        metrics[f"label_accuracy_{label}"] = LabelAccuracy(seen)
        metrics[f"class_entropy_bits_{label}"] = ClassEntropy(seen)
    return metrics


def primary_metric_of(task: "Images") -> str:
    """Return the name of the metric that comes first: the distance that has no bias at few samples."""
    return f"kid_{label_of(task.features)}" if task.features and not task.alone else "quiet_luma"


_KNOWN: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # of real data, by task: tensors only


def _once(task: "Images", what: str, make: Callable[[], T]) -> T:
    """Make something of the task's real data, once."""
    known = _KNOWN.setdefault(task, {})
    if what not in known:
        known[what] = make()
    return known[what]


# Without a network


def luma(pictures: Tensor) -> Tensor:
    """Return the mean level (B, H, W) of the channels of pictures (B, H, W, 3)."""
    return pictures.float().mean(-1)


def chroma(pictures: Tensor) -> Tensor:
    """Return the levels (B, H, W) by which red is above green."""
    return pictures[..., 0].float() - pictures[..., 1].float()


class BrightnessSpread(SampleMetric):
    """Standard deviation over pictures of their mean level: low where first steps draw too many tokens."""

    higher_is_better = None  # near that of real pictures
    logarithmic = False
    means: list[Tensor]

    def __init__(self, decode: Callable[[Tensor], Tensor], **kwargs: Any):
        super().__init__(**kwargs)
        self.decode = decode
        self.add_state("means", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.means.append(luma(self.decode(tokens)).mean((1, 2)))

    def compute(self) -> tuple[Tensor, Tensor]:
        means = joined(self.means).cpu().double()
        if len(means) < 2:
            return NOTHING, NOTHING
        spread = means.std()
        slopes = (means - means.mean()).square() / (2 * spread.clamp(min=1e-9))  # of first order
        return spread, standard_error(slopes)


class QuietNoise(SampleMean):
    """Standard deviation of levels within the quarter of a picture's patches that is quietest in luma."""

    logarithmic = False

    def __init__(self, decode: Callable[[Tensor], Tensor], levels: Callable[[Tensor], Tensor], **kwargs: Any):
        super().__init__(**kwargs)
        self.decode = decode
        self.levels = levels

    def of(self, tokens: Tensor) -> Tensor:
        if not len(tokens):  # of a rank without samples
            return torch.empty(0)
        pictures = self.decode(tokens)
        order = _patch_noise(luma(pictures)).argsort(dim=1, stable=True)
        noise = _patch_noise(self.levels(pictures)).gather(1, order)
        return noise[:, : max(1, noise.shape[1] // 4)].mean(1)


def _patch_noise(levels: Tensor) -> Tensor:
    """Return the standard deviation within each patch of levels (B, H, W); an incomplete patch is skipped."""
    height, width = (min(PATCH, side) for side in levels.shape[1:])
    return levels.unfold(1, height, height).unfold(2, width, width).flatten(3).std(-1).flatten(1)


# In features


class SampleFeatures:
    """Features of samples, found once for all metrics, and those of the task's real pictures."""

    def __init__(self, task: "Images", network: FeatureNetwork):
        self.task = task
        self.network = network
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the features (B, F) of samples (B, D)."""
        if self._last is None or not torch.equal(self._last[0], tokens):
            if ((tokens < 0) | (tokens >= self.task.num_tokens)).any():
                raise SettingsError(
                    "samples hold masks, of which features say nothing; finish them with draw or reuse"
                )
            self._last = tokens.clone(), self.network(self.task.decode(tokens))
        return self._last[1]

    @property
    def real(self) -> RealFeatures:
        """Return what is known of the features of the reference pictures."""

        def make() -> RealFeatures:
            pictures = self.task.reference_pictures(self.task.reference_items)
            if len(pictures) < 2:
                raise SettingsError("features need two training pictures or more to compare with")
            return RealFeatures(self.network.cached(pictures, Path(self.task.cache)).double())

        return _once(self.task, f"features of {self.network.name}", make)

    @property
    def classifier(self) -> Classifier:
        """Return what tells the classes of the reference pictures apart."""

        def make() -> Classifier:
            labels = self.task.reference_labels(self.task.reference_items)
            return Classifier.fitted(self.real.features, labels, self.task.conditions[0])

        return _once(self.task, f"classifier of {self.network.name}", make)

    def classes(self, tokens: Tensor) -> Tensor:
        """Return the classes (B,) that samples look like."""
        return self.classifier(self(tokens).cpu()).to(tokens.device)


class FeatureMetric(SampleMetric):
    """Abstract: compares the features of all samples with real ones."""

    features: list[Tensor]

    def __init__(self, seen: SampleFeatures, **kwargs: Any):
        super().__init__(**kwargs)
        self.seen = seen
        self.add_state("features", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.features.append(self.seen(tokens))

    def compute(self) -> tuple[Tensor, Tensor]:
        return self.distance(self.seen.real, joined(self.features).cpu().double())

    @abstractmethod
    def distance(self, real: RealFeatures, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distance of features (N, F) from the real ones, and its standard error."""


class FrechetDistance(FeatureMetric):
    """FID: in all features. At few samples most of it is bias: compare it at equal numbers only."""

    def distance(self, real: RealFeatures, features: Tensor) -> tuple[Tensor, Tensor]:
        return frechet_distance(real.gaussian, features)


class ShortFrechetDistance(FeatureMetric):
    """The same in the first 16 principal directions of the real features, with little bias."""

    def distance(self, real: RealFeatures, features: Tensor) -> tuple[Tensor, Tensor]:
        return frechet_distance(real.principal.gaussian, features @ real.directions)


class KernelDistance(FeatureMetric):
    """KID: without bias at any number of samples, so around 0, and below it too, for real pictures."""

    logarithmic = False

    def distance(self, real: RealFeatures, features: Tensor) -> tuple[Tensor, Tensor]:
        return kernel_distance(real, features)


class LabelAccuracy(ConditionalSampleMean):
    """Share of samples that look like the class asked for; that of real pictures is the classifier's own."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, seen: SampleFeatures, **kwargs: Any):
        super().__init__(**kwargs)
        self.seen = seen

    def of(self, tokens: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is None:
            return torch.zeros(0, device=tokens.device)
        asked = condition[:, 0]
        return (self.seen.classes(tokens) == asked)[asked != DROPPED]


class ClassEntropy(SampleMetric):
    """Entropy in bits of the classes that samples look like: low where some classes never come."""

    higher_is_better = None  # near that of real pictures
    logarithmic = False
    classes: list[Tensor]

    def __init__(self, seen: SampleFeatures, **kwargs: Any):
        super().__init__(**kwargs)
        self.seen = seen
        self.add_state("classes", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.classes.append(self.seen.classes(tokens))

    def compute(self) -> tuple[Tensor, Tensor]:
        classes = joined(self.classes).cpu()
        shares = torch.bincount(classes).double() / len(classes)
        bits = -shares.log2()[classes]  # of each sample, (N,); their mean is the entropy
        return bits.mean(), standard_error(bits)
