"""Images: sources of images, tokens, the cache, items, and what a checkpoint keeps."""

import gzip
import io
import json
import math
import multiprocessing
import shutil
import struct
import warnings

import numpy as np
import pytest
import torch
from conftest import ROOT, sample_here, train_here
from PIL import Image

import tauflow
from tauflow.errors import SettingsError
from tauflow.tasks.images import Images
from tauflow.tasks.images.tokens import RGB, UNKNOWN, Decorrelated, Grey, Palette
from tauflow.train.module import describe

KINDS = ["grey", "rgb", "decorrelated", "palette"]


def photographs(count=24, height=8, width=8, seed=0):
    """Color images without order, with more than 16 colors."""
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@pytest.fixture
def npz(tmp_path):
    """An .npz of 24 color images for training and 6 for validation, in two classes."""
    path = tmp_path / "data.npz"
    np.savez(
        path,
        images=photographs(),
        labels=np.arange(24) % 2,
        test_images=photographs(6, seed=1),
        test_labels=np.arange(6) % 2,
        class_names=np.array(["Cat", "dog"]),
    )
    return path


def make_task(tmp_path, **settings):
    return Images(cache=str(tmp_path / "cache"), **({"val_items": 4, "batch_size": 2} | settings))


def tokens_of(data, count):
    return torch.stack([data[number]["tokens"] for number in range(count)])


# Tokens


@pytest.mark.parametrize(("kind", "levels"), [(RGB, 8), (RGB, 256), (Decorrelated, 8), (Decorrelated, 256)])
def test_channels_lose_low_bits_only(kind, levels):
    images = torch.from_numpy(photographs(40))
    tokens = kind(levels).encode(images)
    assert tokens.max() == levels - 1
    shown = kind(levels).decode(tokens)
    step = 256 // levels
    assert torch.equal(shown // step, images // step), "every pixel has its level again"
    assert (shown.min(), shown.max()) == (0, 255), "black stays black and white stays white"
    assert torch.equal(kind(levels).encode(shown), tokens)
    if levels == 256:
        assert torch.equal(shown, images)


def test_decorrelated_tokens_are_a_bijection_of_colors():
    levels = torch.arange(8)
    every = torch.cartesian_prod(levels, levels, levels)
    images = RGB(8).decode(every[None])
    tokens = Decorrelated(8).encode(images)[0]
    assert len(tokens.unique(dim=0)) == 8**3
    red, green, blue = (every[:, channel] for channel in range(3))
    by_hand = torch.stack([green, (red - green + 4) % 8, (blue - green + 4) % 8], -1)
    assert torch.equal(tokens.long(), by_hand)
    assert torch.equal(Decorrelated(8).decode(tokens[None]), images)


def test_grey_of_colors_is_their_luma():
    pure = torch.tensor([[[[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]]]], dtype=torch.uint8)
    by_pillow = np.array(Image.fromarray(pure[0].numpy()).convert("L"))
    assert Grey(256).encode(pure)[0].tolist() == by_pillow.tolist() == [[76, 150, 29, 9]]
    assert Grey(256).encode(pure[..., 0])[0].tolist() == [[255, 0, 0, 9]]


def test_palette_takes_the_nearest_color():
    colors = photographs(1, 4, 4)[0].reshape(-1, 3)
    palette = Palette(colors.tolist())
    images = photographs(5, seed=1)
    distances = ((images[..., None, :].astype(int) - colors.astype(int)) ** 2).sum(-1)
    expected = torch.from_numpy(distances.argmin(-1))
    assert torch.equal(palette.encode(torch.from_numpy(images)).long(), expected)
    assert torch.equal(palette.encode(torch.from_numpy(images)).long(), expected), "colors seen before too"
    assert np.array_equal(palette.decode(expected).numpy(), colors[expected.numpy()])


@pytest.mark.parametrize("tokens", KINDS)
def test_masks_are_shown_in_grey(npz, tmp_path, tokens):
    task = make_task(tmp_path, npz=str(npz), tokens=tokens, levels=16)
    sample = torch.zeros(2, task.length, dtype=torch.long)
    sample[0] = task.num_tokens
    shown = task.show(sample)
    assert shown.dtype == np.uint8
    assert shown.shape == (2, 8, 8, 3)
    assert (shown[0] == UNKNOWN).all()
    assert (shown[1] != UNKNOWN).any()


def test_the_palette_fits_the_training_images(tmp_path):
    """Sixteen colors of which each pixel has one, with noise of 3 levels: k-means finds them."""
    centers = np.stack(np.meshgrid([30, 220], [20, 90, 160, 230], [40, 210]), -1).reshape(-1, 3)
    generator = np.random.default_rng(0)
    chosen = centers[generator.integers(len(centers), size=(64, 8, 8))]
    noisy = np.clip(chosen + generator.integers(-3, 4, chosen.shape), 0, 255).astype(np.uint8)
    np.savez(tmp_path / "a.npz", images=noisy)
    task = make_task(tmp_path, npz=str(tmp_path / "a.npz"), tokens="palette", levels=16)
    found = np.array(task.palette_colours)
    off = np.abs(found[:, None] - centers[None]).max(-1)
    assert (off.min(0) <= 1).all(), "the mean of 250 pixels is off by 0.13"
    again = make_task(tmp_path / "elsewhere", npz=str(tmp_path / "a.npz"), tokens="palette", levels=16)
    assert again.palette_colours == task.palette_colours
    luma = found @ np.array([299, 587, 114])
    assert (np.diff(luma) >= 0).all()


# Sources


def test_an_npz_with_images_for_validation(npz, tmp_path):
    task = make_task(tmp_path, npz=str(npz), labels=True)
    assert (task.shape, task.num_tokens, task.conditions, task.size) == ((8, 8, 3), 256, (2,), 8)
    assert task.class_names == ["Cat", "dog"]
    task.setup("fit")
    training = {bytes(each) for each in photographs()}
    seen = [task.train_data[position] for position in range(24)]
    assert {bytes(item["tokens"].numpy().astype(np.uint8)) for item in seen} == training
    by_pixels = {bytes(each): number % 2 for number, each in enumerate(photographs())}
    for item in seen:
        assert item["condition"].tolist() == [by_pixels[bytes(item["tokens"].numpy().astype(np.uint8))]]
    validation = {bytes(each) for each in photographs(6, seed=1)}
    assert len(task.val_data) == 4
    assert {bytes(each.numpy().astype(np.uint8)) for each in tokens_of(task.val_data, 4)} <= validation


def test_without_images_for_validation_a_share_is_chosen_by_pixels(tmp_path):
    twice = np.concatenate([photographs(100), photographs(100)])
    np.savez(tmp_path / "a.npz", images=twice[..., :1])
    task = make_task(tmp_path, npz=str(tmp_path / "a.npz"), tokens="grey", val_share=0.3, val_items=200)
    task.setup("fit")
    count = len(task.val_data)
    assert count % 2 == 0, "copies are on the same side"
    assert abs(count / 200 - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 100)
    validation = {bytes(each.numpy()) for each in tokens_of(task.val_data, count)}
    training = {bytes(each.numpy()) for each in tokens_of(task.train_data, 200 - count)}
    assert not validation & training
    assert len(validation | training) == 100


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize(("end", "dot"), [("", "-"), (".gz", ".")])
def test_files_of_mnist(tmp_path, end, dot):
    images, labels = photographs(20)[..., 0], np.arange(20, dtype=np.uint8) % 10
    for stem, array in (("images", images), ("labels", labels)):
        for split, part in (("train", array[:15]), ("t10k", array[15:])):
            data = idx(np.ascontiguousarray(part))
            name = f"{split}-{stem}{dot}idx{array.ndim}-ubyte{end}"
            (tmp_path / name).write_bytes(gzip.compress(data) if end else data)
    task = make_task(tmp_path, idx=str(tmp_path), tokens="grey", labels=True)
    assert (task.shape, task.conditions, task.class_names) == ((8, 8), (10,), [str(n) for n in range(10)])
    task.setup("fit")
    assert {bytes(each.numpy().astype(np.uint8)) for each in tokens_of(task.train_data, 15)} == {
        bytes(each) for each in np.ascontiguousarray(images[:15])
    }
    named = make_task(tmp_path, idx=str(tmp_path), tokens="grey", labels=True, class_names=list("abcdefghij"))
    named.setup("fit")
    assert named.condition("j").tolist() == [9]
    with pytest.raises(SettingsError, match="labels of 2 classes, got 10"):
        make_task(tmp_path, idx=str(tmp_path), tokens="grey", labels=True, class_names=["a", "b"])


@pytest.fixture
def folder(tmp_path):
    """Images in two subfolders, in several formats and sizes."""
    for number, image in enumerate(photographs(30, 12, 16)):
        path = (
            tmp_path
            / "set"
            / ("hot" if number % 3 else "cold")
            / f"{number}.{('png', 'bmp', 'ppm')[number % 3]}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return tmp_path / "set"


def test_a_folder_with_classes(folder, tmp_path):
    (folder / "notes.txt").write_text("no image")
    task = make_task(tmp_path, pictures=str(folder), labels=True, val_share=0.2)
    assert task.class_names == ["cold", "hot"]
    assert (task.shape, task.size) == ((12, 16, 3), [12, 16])
    task.setup("fit")
    wanted = {bytes(each): min(1, number % 3) for number, each in enumerate(photographs(30, 12, 16))}
    for position in range(20):
        item = task.train_data[position]
        assert item["condition"].tolist() == [wanted[bytes(item["tokens"].numpy().astype(np.uint8))]]


def write_folder(folder, images):
    for number, image in enumerate(images):
        path = folder / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def test_what_a_folder_holds_decides_the_settings(tmp_path):
    """Two levels of gray, flat; gray stored as color; large; mixed sizes and colors; few and many images."""
    bits = np.random.default_rng(0).integers(0, 2, (40, 20, 20)).astype(np.uint8)
    flat = make_task(tmp_path, pictures=str(write_folder(tmp_path / "flat", bits * 255)))
    assert (flat.shape, flat.tokens, flat.levels, flat.labels) == ((20, 20), "grey", 2, False)
    assert flat.val_share == 0.4, "16 of 40"
    flat.setup("fit")
    assert torch.equal(flat.decode(flat.train_data[0]["tokens"][None]).unique(), torch.tensor([0, 255]))
    stored = np.repeat(bits[:4, ..., None] * 85, 3, axis=-1)
    as_color = make_task(tmp_path, pictures=str(write_folder(tmp_path / "stored", stored)))
    assert (as_color.tokens, as_color.levels, as_color.val_share) == ("grey", 4, 0.5)
    large = make_task(tmp_path, pictures=str(write_folder(tmp_path / "large", photographs(9, 70, 90))))
    assert (large.shape, large.tokens, large.levels) == ((32, 32, 3), "rgb", 256)
    mixed = [*photographs(9, 30, 25), *photographs(9, 21, 37)[..., 0]]
    task = make_task(tmp_path, pictures=str(write_folder(tmp_path / "mixed", mixed)))
    assert (task.shape, task.tokens) == ((21, 21, 3), "rgb")
    with pytest.raises(SettingsError, match=r"is not enlarged to 28 x 28.*smaller --data.size"):
        make_task(tmp_path, pictures=str(tmp_path / "mixed"), size=28)


def test_colors_as_gray_keep_their_levels(tmp_path):
    """Channels have two levels, pure red is dark gray."""
    red = np.zeros((40, 8, 8, 3), dtype=np.uint8)
    red[..., 0] = np.random.default_rng(0).integers(0, 2, (40, 8, 8)) * 255
    folder = write_folder(tmp_path / "red", red)
    assert make_task(tmp_path, pictures=str(folder)).levels == 2
    task = make_task(tmp_path, pictures=str(folder), tokens="grey")
    task.setup("fit")
    assert set(task.decode(task.train_data[0]["tokens"][None]).unique().tolist()) == {0, 76}


def test_no_share_for_validation_is_an_error(folder, tmp_path):
    with pytest.raises(SettingsError, match=r"30 images for training and 0 for validation \(0.0%"):
        make_task(tmp_path, pictures=str(folder), val_share=0.0)


def test_hidden_files_of_a_folder_are_no_images(tmp_path):
    folder = tmp_path / "folder"
    for name in ("cats", "dogs", ".ipynb_checkpoints"):
        write_folder(folder / name, photographs(20))
    (folder / "cats" / "._0.png").write_bytes(b"what macOS knows of 0.png")
    task = make_task(tmp_path, pictures=str(folder))
    assert task.class_names == ["cats", "dogs"]
    assert task.origin().startswith(f"{folder}, 40 images")


@pytest.mark.parametrize("kind", ["flat", "classes"])
def test_a_folder_alone_trains_and_samples(tmp_path, kind, capfd):
    """With evaluations, from which the run ends with tables; the checkpoint then needs no folder."""
    images = photographs(40, 9, 9)
    if kind == "flat":
        write_folder(tmp_path / "flat", images[..., 0])
    else:
        write_folder(tmp_path / "classes" / "cats", images[:20])
        write_folder(tmp_path / "classes" / "dogs", images[20:])
    small = ["--model.network.width=16", "--model.network.multipliers=[1]", "--model.network.blocks=1"]
    evaluated = ["--evaluation.samplers=[euler]", "--evaluation.num_samples=4", "--evaluation.batch_size=4"]
    options = [*small, *evaluated, "--evaluation.nfes=[2]", f"--trainer.default_root_dir={tmp_path}"]
    options += ["--trainer.max_steps=4", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    options += ["--data.epoch_items=32", "--data.val_items=8", f"--data.pictures={kind}"]
    config = str(ROOT / "configs" / "images.yaml")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the sampler evaluation")
        train_here("-c", config, *options, cwd=tmp_path)
    run = tmp_path / "version_0"
    assert (run / "evaluation" / "samples.png").exists()
    if kind == "classes":
        resumed = ["--trainer.max_steps=6", f"--ckpt_path={run}/last.ckpt"]
        train_here("-c", config, *options, *resumed, "--evaluation.every_n_validations=0", cwd=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        code, _ = sample_here(run / "best.ckpt", capfd, "--data", f"pictures={kind}", "--num_samples", 2)
    assert code == 0
    shutil.rmtree(tmp_path / kind)
    task = tauflow.load(run / "last.ckpt").task
    if kind == "flat":
        assert (task.shape, task.tokens, task.conditions) == ((9, 9), "grey", ())
    else:
        assert (task.shape, task.class_names, task.conditions) == ((9, 9, 3), ["cats", "dogs"], (2,))
    assert not task.alone


def test_a_changed_folder_is_read_again(folder, tmp_path):
    before = make_task(tmp_path, pictures=str(folder), val_share=0.2)
    path = folder / "cold" / "0.png"
    Image.fromarray(photographs(1, 12, 16, seed=9)[0]).save(path)
    after = make_task(tmp_path, pictures=str(folder), val_share=0.2)
    assert before.reference_images(99).double().mean() != after.reference_images(99).double().mean()
    Image.fromarray(photographs(1, 10, 14)[0]).save(folder / "cold" / "new.png")
    assert make_task(tmp_path, pictures=str(folder), val_share=0.2).shape == (10, 10, 3)


def test_sizes_are_reduced_by_area_from_the_middle(folder, tmp_path):
    task = make_task(tmp_path, pictures=str(folder), size=6, val_share=0.2)
    task.setup("fit")
    middle = photographs(30, 12, 16)[:, :, 2:14].astype(float)
    means = middle.reshape(30, 6, 2, 6, 2, 3).mean((2, 4))
    for tokens in tokens_of(task.train_data, 20):
        off = np.abs(means - tokens.numpy()).max((1, 2, 3))
        assert off.min() <= 1, "rounded twice, along rows and along columns"
    with pytest.raises(
        SettingsError, match=r"12 x 16 pixels and is not enlarged to 32 x 32; give a larger image"
    ):
        make_task(tmp_path, pictures=str(folder), size=32).setup("fit")


@pytest.fixture
def hub_folder(tmp_path):
    """A local data set of the datasets library, in two splits, with two columns of classes."""
    from datasets import ClassLabel, Dataset, Features, Value
    from datasets import Image as Pictures

    folder = tmp_path / "hub"
    folder.mkdir()
    kinds = Features(
        {
            "img": Pictures(),
            "fine": ClassLabel(names=["cat", "dog", "elk"]),
            "coarse": ClassLabel(names=["tame", "wild"]),
            "text": Value("string"),
        }
    )
    for split, count, seed in (("train", 9, 0), ("test", 6, 1)):
        columns = {
            "img": [Image.fromarray(each) for each in photographs(count, seed=seed)],
            "fine": [number % 3 for number in range(count)],
            "coarse": [number % 2 for number in range(count)],
            "text": ["no"] * count,
        }
        Dataset.from_dict(columns, features=kinds).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def test_a_data_set_of_the_hub(hub_folder, tmp_path):
    task = make_task(tmp_path, hub=str(hub_folder), labels=True, label_column="fine", size=8)
    assert task.class_names == ["cat", "dog", "elk"]
    task.setup("fit")
    wanted = {bytes(each): number % 3 for number, each in enumerate(photographs(9))}
    for position in range(9):
        item = task.train_data[position]
        assert item["condition"].tolist() == [wanted[bytes(item["tokens"].numpy().astype(np.uint8))]]
    validation = {bytes(each) for each in photographs(6, seed=1)}
    assert {bytes(each.numpy().astype(np.uint8)) for each in tokens_of(task.val_data, 4)} <= validation
    swapped = make_task(tmp_path, hub=str(hub_folder), hub_split="test", hub_val_split="train", val_items=99)
    swapped.setup("fit")
    assert len(swapped.val_data) == 9
    alone = make_task(tmp_path, hub=str(hub_folder), hub_split="test", val_share=0.5, val_items=99)
    alone.setup("fit")
    assert len(alone.val_data) < 6, "what is trained on is no validation set"
    assert swapped.conditions == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": True}, "label_column must be a column .*fine, coarse.* got None"),
        ({"labels": True, "label_column": "text"}, "type ClassLabel of .*fine, coarse.* got text"),
        ({"image_column": "text"}, "type Image of .*img.* got text"),
        ({"hub_split": "extra"}, "has no split 'extra'; it has: train, test"),
        ({"hub": "/no/such/set"}, "cannot load the images '/no/such/set'"),
    ],
)
def test_columns_and_splits_that_are_not_there(hub_folder, tmp_path, settings, message):
    with pytest.raises(SettingsError, match=message):
        make_task(tmp_path, **({"hub": str(hub_folder)} | settings))


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "choose the images: --data.hub, --data.pictures, --data.npz, --data.idx"),
        ({"npz": "a", "idx": "b"}, "one source of images, not --data.npz and --data.idx"),
        ({"npz": "none.npz", "tokens": "grey", "levels": 100}, "power of two from 2 to 256, got 100"),
        ({"npz": "none.npz"}, "none.npz must be an .npz file of plain arrays .File not found"),
        ({"idx": "nowhere"}, "nowhere is no folder with train-images-idx3-ubyte"),
        ({"pictures": "nowhere"}, "Folder with images .* not found: nowhere"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path, settings, message):
    with pytest.raises(SettingsError, match=message):
        make_task(tmp_path, **settings)


def grey_npz(tmp_path, **arrays):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    return {"npz": str(path), "tokens": "grey"}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros(3)}, "must be uint8 .* The file has: pictures float64"),
        ({"images": np.zeros((9, 8, 8))}, "must be uint8 .* images float64 .* save them as uint8"),
        ({"images": np.array([{}], dtype=object)}, "Object arrays cannot be loaded"),
        (
            {"images": np.zeros((9, 8, 8), np.uint8), "labels": np.zeros(8, int)},
            "one for each of the 9 images",
        ),
        (
            {"images": np.zeros((9, 8, 8), np.uint8), "labels": np.full(9, 10**9)},
            "must be whole numbers 0 to",
        ),
        (
            {"images": np.zeros((9, 8, 8), np.uint8), "labels": np.arange(9), "class_names": np.array(["a"])},
            "has the label 1, the classes are 0 to 0",
        ),
        (
            {"images": np.zeros((9, 8, 8), np.uint8)},
            "9 images for training and 0 for validation|0 images",
        ),
    ],
)
def test_npz_files_that_are_none(tmp_path, arrays, message):
    with pytest.raises(SettingsError, match=message):
        make_task(tmp_path, **grey_npz(tmp_path, **arrays))
    assert not list((tmp_path / "cache").glob("*")), "no half-built cache is left"


def test_labels_that_are_missing(tmp_path):
    images = photographs(60)[..., 0]
    with pytest.raises(SettingsError, match=r"must have labels of some classes, got 0"):
        make_task(tmp_path, **grey_npz(tmp_path, images=images), labels=True)


def test_grey_images_where_colors_are_needed(tmp_path):
    grey = grey_npz(tmp_path, images=photographs(60)[..., 0])
    with pytest.raises(
        SettingsError, match=r"--data.tokens rgb needs color images, these are grayscale; use grey"
    ):
        make_task(tmp_path, **(grey | {"tokens": "rgb"}))


def test_a_palette_larger_than_the_colors(tmp_path):
    few = np.repeat(photographs(60, 8, 1), 8, axis=2) // 128 * 128
    np.savez(tmp_path / "few.npz", images=few)
    with pytest.raises(SettingsError, match=r"have 8 colors, not 9; lower --data.levels"):
        make_task(tmp_path, npz=str(tmp_path / "few.npz"), tokens="palette", levels=9)
    task = make_task(tmp_path, npz=str(tmp_path / "few.npz"), tokens="palette", levels=8)
    assert {tuple(each) for each in task.palette_colours} == {tuple(each) for each in few.reshape(-1, 3)}


def test_a_cut_gzip_file(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(photographs(9)[..., 0].copy()))[:-20])
    with pytest.raises(SettingsError, match=r"idx3-ubyte.gz must be an idx file .* Replace it"):
        make_task(tmp_path, idx=str(tmp_path), tokens="grey")


def saved(image, form="PNG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


RANDOM = Image.fromarray(photographs(1, 32, 32)[0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (saved(RANDOM)[:-500], "bad.png must be an image, one of BMP, JPEG, PNG"),
        (
            saved(Image.new("I;16", (8, 8))),
            "bad.png must be grayscale or RGB with 8 bits per channel, got I;16",
        ),
        (
            saved(Image.new("RGBA", (8, 8), (1, 2, 3, 4))),
            "bad.png must be .* got transparent pixels",
        ),
    ],
)
def test_images_that_are_refused(tmp_path, data, message):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "bad.png").write_bytes(data)
    with pytest.raises(SettingsError, match=message) as error:
        make_task(tmp_path, pictures=str(tmp_path / "set"))
    assert len(str(error.value).splitlines()) == 1


def test_kinds_of_images_that_have_one_meaning(tmp_path):
    """Opaque alpha, palettes, black and white, and what a camera says about up and down."""
    red = Image.new("RGB", (8, 8), (200, 0, 0))
    half = Image.new("RGB", (8, 4), (200, 0, 0))
    half.paste((0, 0, 200), (0, 0, 4, 4))
    turned = Image.Exif()
    turned[0x0112] = 6  # turn by 90 degrees
    task = Images(size=8, tokens="rgb", levels=256)
    for image in (red, red.convert("RGBA"), red.quantize(4)):
        image.save(tmp_path / "a.png")
        assert task.complete(tmp_path / "a.png", "left").tokens.view(8, 8, 3).unique(dim=1).numel() == 24
    half.save(tmp_path / "b.png", exif=turned)
    tall = (
        Images(size=[8, 4], tokens="rgb", levels=256)
        .complete(tmp_path / "b.png", "left")
        .tokens.view(8, 4, 3)
    )
    assert tall[0, 0].tolist() == tall[0, 3].tolist() == [0, 0, 200]
    assert tall[7, 0].tolist() == [200, 0, 0]
    Image.new("1", (8, 8), 1).save(tmp_path / "c.png")
    white = Images(size=8, tokens="grey", levels=256).complete(tmp_path / "c.png", "left")
    assert set(white.tokens.tolist()) == {255}


def test_folders_that_hold_something_else(tmp_path):
    (tmp_path / "set").mkdir()
    with pytest.raises(SettingsError, match=r"Folder with images .* not found"):
        make_task(tmp_path, pictures=str(tmp_path / "set"))
    for split in ("train", "test"):
        (tmp_path / "set" / split).mkdir()
        RANDOM.save(tmp_path / "set" / split / "a.png")
    with pytest.raises(SettingsError, match=r"are splits \(test, train\), not classes; give .* --data.hub"):
        make_task(tmp_path, pictures=str(tmp_path / "set"))


# Cache


def build(path, cache, barrier, out):
    barrier.wait()
    task = Images(npz=path, tokens="palette", levels=16, cache=cache, val_items=4)
    task.setup("fit")
    out.put((task.palette_colours, task.train_data[0]["tokens"].tolist()))


def test_two_processes_build_one_cache(npz, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, out = context.Barrier(2), context.Queue()
    arguments = (str(npz), str(tmp_path / "cache"), barrier, out)
    both = [context.Process(target=build, args=arguments) for _ in range(2)]
    for each in both:
        each.start()
    first, second = out.get(timeout=60), out.get(timeout=60)
    for each in both:
        each.join()
    assert first == second
    assert [path.name[:7] for path in (tmp_path / "cache").iterdir()] == ["images-"], "one, and no leftovers"


def test_the_cache_is_read_instead_of_the_source(npz, tmp_path, monkeypatch):
    before = make_task(tmp_path, npz=str(npz), tokens="palette", levels=16)
    monkeypatch.setattr("tauflow.tasks.images.sources.Npz.read", None)
    after = make_task(tmp_path, npz=str(npz), tokens="palette", levels=16)
    assert after.palette_colours == before.palette_colours
    with pytest.raises(TypeError):
        make_task(tmp_path, npz=str(npz), tokens="palette", levels=16, seed=1)


# Items


def test_items_are_a_pure_function_of_the_position(npz, tmp_path):
    task, other = (make_task(tmp_path, npz=str(npz), flips=True, seed=3) for _ in range(2))
    task.setup("fit")
    other.setup("fit")
    straight = tokens_of(task.train_data, 60)
    jumped = other.train_data.__getitems__([59, 7, 30])
    for position, item in zip((59, 7, 30), jumped, strict=True):
        assert torch.equal(item["tokens"], straight[position])


def test_flips_mirror_about_half_of_the_training_images(npz, tmp_path):
    plain, flipped = (make_task(tmp_path, npz=str(npz), flips=flips) for flips in (False, True))
    plain.setup("fit")
    flipped.setup("fit")
    one, two = tokens_of(plain.train_data, 240), tokens_of(flipped.train_data, 240)
    mirrored = (one.flip(2) == two).flatten(1).all(1)
    assert ((one == two).flatten(1).all(1) ^ mirrored).all(), "as it is, or mirrored from left to right"
    assert abs(mirrored.double().mean() - 0.5) < 5 * 0.5 / math.sqrt(240)
    passes = mirrored.view(10, 24)
    assert len(passes.unique(dim=0)) == 10, "every pass has its own"
    assert torch.equal(tokens_of(plain.val_data, 4), tokens_of(flipped.val_data, 4))


def test_unigrams_are_those_of_the_training_images(npz, tmp_path):
    task = make_task(tmp_path, npz=str(npz), levels=8)
    counts = np.bincount((photographs() // 32).ravel(), minlength=8)
    law = task.unigrams()
    assert law.sum() == 1
    assert law.numpy() == pytest.approx(counts / counts.sum(), abs=2e-3)


def test_a_model_of_classes_that_differ_by_case_is_loaded_and_sampled(tmp_path, capfd, monkeypatch):
    """Also one with a control character, which never reaches the terminal."""
    for number, name in enumerate(("A", "a", "b\x1b[2J")):
        (tmp_path / "set" / name).mkdir(parents=True)
        for seed, image in enumerate(photographs(8, seed=number)[..., 0]):
            Image.fromarray(image).save(tmp_path / "set" / name / f"{seed}.png")
    flags = ["-c", str(ROOT / "configs" / "fashion.yaml"), "-c", str(ROOT / "configs" / "smoke.yaml")]
    flags += ["--data.hub=null", "--data.pictures=set", "--data.size=8", "--data.class_names=null"]
    flags += ["--data.val_share=0.3", "--model.network.multipliers=[1,2]", "--trainer.max_steps=1"]
    flags += ["--trainer.accelerator=cpu", "--evaluation.every_n_validations=0"]
    train_here(*flags, "--trainer.default_root_dir=runs", cwd=tmp_path)
    checkpoint = tmp_path / "runs" / "version_0" / "last.ckpt"
    assert tauflow.load(checkpoint).task.class_names == ["A", "a", "b\x1b[2J"]
    monkeypatch.chdir(tmp_path)
    words = ("--condition", "2", "--num_samples", 2, "--batch_size", 2, "--out", "out")
    code, printed = sample_here(checkpoint, capfd, *words)
    assert code == 0
    assert "condition of all samples: b\N{REPLACEMENT CHARACTER}[2J" in printed
    assert "\x1b" not in printed + (tmp_path / "out" / "results.md").read_text()


# Samples


def test_classes_by_name_or_number(npz, tmp_path):
    task = make_task(tmp_path, npz=str(npz), labels=True)
    assert [task.condition(text).item() for text in ("cat", " Dog", "1", "0")] == [0, 1, 1, 0]
    assert task.caption(torch.tensor([1])) == "dog"
    for text in ("cow", "2", "-1", "cat, dog", ""):
        with pytest.raises(SettingsError, match=r"a class by name or number \(0 Cat, 1 dog\), got"):
            task.condition(text)
    with pytest.raises(SettingsError, match="drop --condition"):
        make_task(tmp_path, npz=str(npz)).condition("cat")
    task.class_names = ["A", "a", "Dog"]
    assert [task.condition(text).item() for text in ("A", "a", "dog")] == [0, 1, 2]
    task.class_names = ["Cat", "CAT"]
    with pytest.raises(SettingsError, match="a class by name or number"):
        task.condition("cat")


@pytest.mark.parametrize(
    ("keep", "rows", "columns"),
    [
        ("left", slice(0, 8), slice(0, 4)),
        ("right", slice(0, 8), slice(4, 8)),
        ("top", slice(0, 4), slice(0, 8)),
        ("bottom", slice(4, 8), slice(0, 8)),
        ("1, 2,5,8", slice(2, 8), slice(1, 5)),
    ],
)
def test_a_part_of_an_image_is_a_prompt(npz, tmp_path, keep, rows, columns):
    task = make_task(tmp_path, npz=str(npz), levels=16)
    image = photographs(1, seed=5)[0]
    Image.fromarray(image).save(tmp_path / "a.png")
    prompt = task.complete(tmp_path / "a.png", keep)
    known = torch.zeros(task.shape, dtype=torch.bool)
    known[rows, columns] = True
    assert torch.equal(prompt.known.view(task.shape), known)
    assert torch.equal(prompt.tokens, task.encode(torch.from_numpy(image)[None])[0])


def test_prompts_that_are_refused(npz, tmp_path):
    task = make_task(tmp_path, npz=str(npz))
    RANDOM.resize((8, 8)).save(tmp_path / "a.png")
    for keep in ("middle", "0,0,9,8"):
        with pytest.raises(SettingsError, match="keep left, right, top, bottom, or x0,y0,x1,y1 within 8 x 8"):
            task.complete(tmp_path / "a.png", keep)
    with pytest.raises(SettingsError, match=r"b.png must be an image, .*No such file"):
        task.complete(tmp_path / "b.png", "left")
    RANDOM.convert("L").save(tmp_path / "c.png")
    with pytest.raises(SettingsError, match=r"c.png is grayscale, the model has colors"):
        task.complete(tmp_path / "c.png", "left")


@pytest.mark.parametrize("tokens", KINDS)
def test_images_of_real_data_are_measured(npz, tmp_path, tokens):
    task = make_task(tmp_path, npz=str(npz), tokens=tokens, levels=16)
    task.setup("fit")
    metrics = task.sample_metrics()
    assert task.primary_metric in metrics
    metrics.update(tokens_of(task.train_data, 24).flatten(1))
    assert metrics.compute()["unigram_tv"][0] < 0.01, "they are the data of the law"
    assert task.channels == {"rgb": "apart", "decorrelated": "together"}.get(tokens)


# Checkpoints


def rebuilt(task, **data):
    return Images.rebuilt(describe(task)["init_args"], data)


def test_a_task_rebuilt_from_a_checkpoint_needs_no_images(npz, tmp_path, monkeypatch):
    task = make_task(
        tmp_path, npz=str(npz), tokens="palette", levels=16, labels=True, features="some.Network"
    )
    plain = json.loads(json.dumps(describe(task)))
    npz.unlink()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    again = Images.rebuilt(plain["init_args"], {})
    assert again.facts == task.facts
    assert (again.npz, again.cache, again.features) == (None, "data", None), "a file names no places"
    sample = torch.randint(16, (3, task.length), generator=torch.Generator().manual_seed(0))
    assert np.array_equal(again.show(sample), task.show(sample))
    assert again.condition("dog").tolist() == [1]
    assert again.sample_conditions(3, first=1).tolist() == [[1], [0], [1]]
    assert "no pictures.npz next to the checkpoint" in again.alone
    assert "unigram_tv" not in again.sample_metrics()
    assert again.primary_metric in again.sample_metrics()
    with pytest.raises(SettingsError, match="choose the images"):
        again.setup("validate")
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"


def test_a_run_keeps_what_samples_are_measured_against(npz, tmp_path):
    task = make_task(tmp_path, npz=str(npz), labels=True)
    task.setup("fit")
    task.begin_run(tmp_path / "run")
    again = rebuilt(task)
    again.folder = tmp_path / "run"
    assert again.alone == ""
    again.setup("validate")
    assert torch.equal(tokens_of(again.val_data, 4), tokens_of(task.val_data, 4))
    assert torch.equal(again.sample_conditions(4), task.sample_conditions(4))
    assert torch.equal(again.unigrams(), task.unigrams())
    assert torch.equal(again.reference_images(9), task.reference_images(9))
    assert torch.equal(again.reference_labels(9), task.reference_labels(9))
    again.reference_items = 2000
    with pytest.raises(SettingsError, match=r"needs the training images, pictures\.npz has"):
        again.reference_images(2000)
    validation = {bytes(each.numpy().astype(np.uint8)) for each in tokens_of(task.val_data, 4)}
    assert not validation & {bytes(each.numpy()) for each in task.reference_images(24)}
    named = rebuilt(task, npz=str(npz), cache=str(tmp_path / "cache"))
    named.setup("fit")
    assert torch.equal(tokens_of(named.train_data, 24), tokens_of(task.train_data, 24))


def kept_arrays(path):
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("val"),
        lambda arrays: arrays.update(val=arrays["val"][:, :4]),
        lambda arrays: arrays.update(val_labels=arrays["val_labels"] + 2),
        lambda arrays: arrays.update(unigrams=arrays["unigrams"] * np.nan),
    ],
)
def test_kept_images_that_do_not_fit_are_refused(npz, tmp_path, change):
    task = make_task(tmp_path, npz=str(npz), labels=True, levels=128)
    task.setup("fit")
    task.begin_run(tmp_path)
    path = tmp_path / "pictures.npz"  # next to the checkpoint
    arrays = kept_arrays(path)
    change(arrays)
    np.savez(path, **arrays)
    again = rebuilt(task)
    again.folder = tmp_path
    with pytest.raises(SettingsError, match="does not hold what the run of this checkpoint kept"):
        again.setup("validate")


def test_a_damaged_file_of_kept_images_is_named(npz, tmp_path):
    task = make_task(tmp_path, npz=str(npz))
    task.setup("fit")
    task.begin_run(tmp_path / "run")
    path = tmp_path / "run" / "pictures.npz"
    path.write_bytes(path.read_bytes()[:-30])
    again = rebuilt(task)
    again.folder = tmp_path / "run"
    with pytest.raises(SettingsError, match=r"run/pictures.npz must be an .npz file of plain arrays"):
        again.setup("validate")
