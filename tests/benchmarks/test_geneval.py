"""GenEval on images: detectors, colors by CLIP, and the study on a folder."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_models import save_clip, save_mask2former

from benchmarks.geneval import ClipColors, Mask2Former, confident_objects, read_folder, write_folder
from benchmarks.studies.command import main
from tauflow.errors import SettingsError
from tauflow.tasks.scenes.rules import COLORS, Detection

# Detectors


def seen(*scores):
    return [Detection(score, (10.0, 10.0, 12.0, 12.0)) for score in scores]


def test_only_confident_detections_count():
    objects = {"cat": seen(0.3, 0.95, 0.5), "dog": seen(0.2)}
    assert [each.score for each in confident_objects(objects, "colors")["cat"]] == [0.95, 0.5]
    assert [each.score for each in confident_objects(objects, "counting")["cat"]] == [0.95]
    assert "dog" not in confident_objects(objects, "colors")
    many = {"cat": seen(*(0.4 + n / 100 for n in range(20)))}
    kept = [each.score for each in confident_objects(many, "position")["cat"]]
    assert len(kept) == 16
    assert (kept[0], kept[-1]) == pytest.approx((0.59, 0.44))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a CLIP, of a detector that sees a person in every image, and one that sees nothing."""
    folder = tmp_path_factory.mktemp("models")
    return SimpleNamespace(
        clip=save_clip(folder / "tiny-clip"),
        person=save_mask2former(folder / "person", label=0),
        blind=save_mask2former(folder / "blind"),
    )


def noise(*size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def test_mask2former_as_it_is(models):
    found = Mask2Former(models.person)(Image.fromarray(noise(40, 60)))
    assert set(found) == {"person"}
    assert len(found["person"]) == 4, "queries"
    assert Mask2Former(models.blind)(Image.fromarray(noise(40, 60))) == {}


def test_boxes_are_those_of_masks(models, monkeypatch):
    """Of the image: the detector sees one of 100 x 105 pixels as 800 x 864."""
    import transformers

    shapes = []

    def forward(self, pixel_values, pixel_mask):
        shapes.append(tuple(pixel_values.shape[2:]))
        classes = torch.full((1, 4, 81), -9.0)
        classes[0, 0, 65] = classes[0, 1, 0] = 9.0  # a tv remote, a person
        classes[0, 2:, 80] = 9.0
        masks = torch.full((1, 4, *(side // 4 for side in shapes[0])), -9.0)
        masks[0, 0, 50:100, 108:] = 9.0  # the second quarter of the rows, the right half of the columns
        masks[0, 1, :, :72] = 9.0  # the left third
        return SimpleNamespace(class_queries_logits=classes, masks_queries_logits=masks)

    monkeypatch.setattr(transformers.Mask2FormerForUniversalSegmentation, "forward", forward)
    found = Mask2Former(models.person)(Image.fromarray(noise(100, 105)))
    assert shapes == [(800, 864)]
    (remote,), (person,) = found.pop("tv remote"), found.pop("person")
    assert not found
    assert remote.box == pytest.approx((52.5, 25, 105, 50), abs=0.51)
    assert person.box == pytest.approx((0, 0, 35, 100), abs=0.51)
    assert remote.score > 0.99
    x1, y1, x2, y2 = map(int, remote.box)
    inside = np.zeros((100, 105), bool)
    inside[y1:y2, x1:x2] = True
    assert np.array_equal(remote.mask, inside)


def test_colors_are_those_of_the_nearest_words(models):
    """Of the object alone: by hand with the classes of transformers, one text and one image at a time."""
    import transformers

    model = transformers.CLIPModel.from_pretrained(models.clip)
    processor = transformers.CLIPProcessor.from_pretrained(models.clip)
    unit = torch.nn.functional.normalize

    def text(words):
        return unit(
            model.get_text_features(**processor(text=words, return_tensors="pt")).pooler_output[0], dim=0
        )

    image, found = Image.fromarray(noise(40, 60)), []
    for number, (x1, y1, x2, y2) in enumerate(
        [(0, 0, 30, 30), (20, 10, 60, 40), (5, 5, 9, 40), (0, 0, 60, 40)]
    ):
        mask = np.zeros((40, 60), bool)
        mask[y1:y2, x1:x2] = noise(y2 - y1, x2 - x1, seed=number)[..., 0] < 128
        found.append(Detection(1.0, (x1, y1, x2, y2), mask=mask))
    expected = []
    with torch.no_grad():
        sets = [
            [
                text(f"a photo of a {c} bench"),
                text(f"a photo of a {c}-colored bench"),
                text(f"a photo of a {c} object"),
            ]
            for c in COLORS
        ]
        classifier = torch.stack([unit(sum(each) / 3, dim=0) for each in sets])
        for each in found:
            pixels = np.where(each.mask[..., None], np.array(image), 0x99).astype(np.uint8)
            x1, y1, x2, y2 = map(int, each.box)
            crop = processor(images=Image.fromarray(pixels[y1:y2, x1:x2]), return_tensors="pt")
            features = model.get_image_features(**crop).pooler_output[0]
            expected.append(COLORS[int((classifier @ features).argmax())])
    assert ClipColors(models.clip)(image, "bench", found) == expected


def test_models_that_are_not_there(models, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        SettingsError, match=r"cannot load the detector 'nobody/none': .*cache.*; choose a folder"
    ):
        Mask2Former("nobody/none")
    with pytest.raises(
        SettingsError, match=r"cannot load the detector '/no/such': .*; choose a folder"
    ) as error:
        Mask2Former("/no/such")
    assert "\n" not in str(error.value)
    with pytest.raises(SettingsError, match=r"cannot load the CLIP model '/no/such': .*; choose a folder"):
        ClipColors("/no/such")
    with pytest.raises(SettingsError, match="has 7 classes instead of the 80 of COCO"):
        Mask2Former(save_mask2former(tmp_path / "seven", labels=7))
    shutil.copytree(models.clip, tmp_path / "part")
    weights = load_file(tmp_path / "part" / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, tmp_path / "part" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SettingsError, match="some weights of a CLIPModel are missing"):
        ClipColors(str(tmp_path / "part"))


# The study


RECORDS = [
    {"tag": "single_object", "include": [{"class": "person", "count": 1}], "prompt": "a photo of a person"},
    {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"},
    {
        "tag": "counting",
        "include": [{"class": "person", "count": 2}],
        "exclude": [{"class": "person", "count": 3}],
        "prompt": "a photo of two persons",
    },
]


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A folder of six images, which the detector sees small: that is faster."""
    monkeypatch.setattr("benchmarks.geneval.SIZE", {"shortest_edge": 128, "longest_edge": 256})
    folder = tmp_path / "images"
    write_folder([[noise(40, 60, seed=n), noise(48, 48, seed=n + 9)] for n in range(3)], RECORDS, folder)
    return folder


def study(images, models, *words):
    main(["geneval", "--images", str(images), "--detector", models.person, "--no_progress", *words])


def lines(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_folder_is_read_as_it_was_written(images):
    found = read_folder(images)
    assert [each.record for each in found] == RECORDS
    assert found[1].images == ["00001/samples/00000.png", "00001/samples/00001.png"]
    assert np.array_equal(np.array(Image.open(images / found[2].images[1])), noise(48, 48, seed=11))


def test_the_study_end_to_end(images, models, capsys):
    study(images, models, "--colors", models.clip, "--clip", models.clip)
    printed = capsys.readouterr().out
    assert "\nGenEval protocol, transformers detector\n" in printed
    assert "These aren't GenEval's 553 prompts" in printed
    results = lines(images)
    assert [each["correct"] for each in results] == [True, True, False, False, False, False]
    assert results[2]["reason"] == "expected 1 bench, found 0"
    assert results[4]["reason"] == "expected 2 person, found 0", "scores are below 0.9"
    assert json.loads(results[0]["metadata"]) == RECORDS[0]
    assert results[0]["filename"] == "00000/samples/00000.png"
    assert len(json.loads(results[0]["details"])["person"]) == 4
    rows = {
        line.split(" | ")[0]: line.split(" | ")[1:] for line in printed.splitlines() if line.startswith("| ")
    }
    assert rows["| task"] == ["correct", "clip_score_tiny-clip", "images", "prompts |"]
    assert rows["| single_object"][0] == "0.5000 ± 0.5000"
    assert rows["| counting"][0] == "0.0000"
    assert rows["| overall (mean of the tasks)"][0] == "0.2500"
    assert rows["| all images"][0] == "0.3333 ± 0.3333"
    assert rows["| all images"][2:] == ["6", "3 |"]
    assert rows["| prompts with a correct image"][0] == "0.3333 ± 0.3333"
    mean = np.mean([each["clip_scores"][models.clip] for each in results])
    assert float(rows["| all images"][1].split(" ")[0]) == pytest.approx(max(mean, 0), abs=0.06)
    report = (images / "results.md").read_text()
    assert report in printed
    assert f"Detector {models.person}, colors by {models.clip}." in report


def test_what_is_done_is_not_done_again(images, models, monkeypatch, capsys):
    """Stopped in the third prompt, continued, given a CLIP score, a changed image, one that is gone."""
    calls = []
    detect = Mask2Former.__call__

    def counting(self, image):
        if len(calls) == 5:
            raise KeyboardInterrupt
        calls.append(image)
        return detect(self, image)

    monkeypatch.setattr(Mask2Former, "__call__", counting)
    with pytest.raises(SystemExit) as stop:
        study(images, models)
    assert stop.value.code == 130
    assert "stopped. Finished images are kept, and the same command resumes" in capsys.readouterr().err
    assert [each["correct"] is None for each in lines(images)] == [False] * 4 + [True] * 2
    assert not (images / "results.md").exists()
    monkeypatch.setattr(Mask2Former, "__call__", lambda *args: calls.append(args) or detect(*args))
    calls.clear()
    study(images, models)
    assert len(calls) == 2, "the images of the third prompt"
    before = lines(images)
    assert all(each["correct"] is not None for each in before)
    study(images, models, "--clip", models.clip)
    assert len(calls) == 2
    after = lines(images)
    assert all(models.clip in each["clip_scores"] for each in after)
    assert [each | {"clip_scores": {}} for each in after] == before
    Image.fromarray(noise(30, 30)).save(images / "00001/samples/00001.png")
    (images / "00002/samples/00000.png").unlink()
    study(images, models)
    assert len(calls) == 3, "the one that changed"
    kept = {each["filename"]: each for each in lines(images)}
    assert len(kept) == 5
    assert kept["00001/samples/00001.png"]["clip_scores"] == {}
    study(images, models)
    assert len(calls) == 3


def test_only_the_clip_score(images, models, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["geneval", "--images", str(images), "--out", str(out), "--detector", "none", "--no_progress"]
    main([*words, "--clip", models.clip])
    printed = capsys.readouterr().out
    assert "| task | clip_score_tiny-clip | images | prompts |" in printed
    assert "correct" not in printed
    assert "detector\n" not in printed
    assert not (images / "results.jsonl").exists()
    with pytest.raises(SystemExit, match="error: without a detector there is only the CLIP score"):
        main(words)


def test_two_clip_models_of_one_tag_are_refused(images, models, tmp_path):
    words = ["geneval", "--images", str(images), "--detector", "none", "--no_progress", "--clip"]
    main([*words, models.clip])
    before = lines(images)
    other = shutil.copytree(models.clip, tmp_path / "other" / Path(models.clip).name)
    with pytest.raises(SystemExit, match=r"error: .* are both called tiny-clip; use one"):
        main([*words, str(other)])
    assert lines(images) == before


FAULTS = {
    "no folder": (shutil.rmtree, r"cannot read the images in .*No such file or directory"),
    "empty": (lambda images: [shutil.rmtree(each) for each in images.iterdir()], r"has no images NNNNN"),
    "no images": (
        lambda images: shutil.rmtree(images / "00001/samples"),
        r"cannot read the images in .*00001/samples",
    ),
    "no metadata": (
        lambda images: (images / "00001/metadata.jsonl").unlink(),
        r"cannot read the images in .*No such.*00001/metadata.jsonl",
    ),
    "no image": (
        lambda images: (images / "00001/samples/00001.png").write_text("x"),
        r"00001.png must be an image",
    ),
    "no results": (
        lambda images: (images / "results.jsonl").write_text('{"filename": 3}'),
        r"results.jsonl is damag",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said_in_a_line(fault, images, models):
    spoil, said = FAULTS[fault]
    spoil(images)
    with pytest.raises(SystemExit, match=rf"^error: .*{said}") as stop:
        study(images, models, "--colors", models.clip)
    assert "\n" not in str(stop.value.code)
    assert not (images / "results.md").exists()


def test_missing_models_are_refused_before_any_work(images, models, monkeypatch):
    monkeypatch.setattr(Mask2Former, "__call__", None)
    with pytest.raises(SystemExit, match="error: cannot load the detector '/no/such'"):
        main(["geneval", "--images", str(images), "--detector", "/no/such", "--no_progress"])
    with pytest.raises(SystemExit, match="error: cannot load the CLIP model '/no/such'"):
        study(images, models, "--clip", "/no/such")
    red = {"class": "bench", "count": 1, "color": "red"}
    (images / "00001" / "metadata.jsonl").write_text(json.dumps(RECORDS[1] | {"include": [red]}))
    with pytest.raises(SystemExit, match="error: cannot load the CLIP model '/no/such'"):
        study(images, models, "--colors", "/no/such")


def test_images_of_other_models_are_refused(images, models):
    study(images, models)
    with pytest.raises(
        SystemExit, match=r"error: .*results.jsonl is of the detector .*; choose the same ones, or"
    ):
        main(["geneval", "--images", str(images), "--detector", models.blind, "--no_progress"])


def test_flags_of_geneval_come_after_its_name(images, tmp_path, capsys):
    with pytest.raises(SystemExit, match="error: geneval has flags of its own, which come after its name"):
        main(["--out", str(tmp_path), "geneval"])
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Do images show what their prompts ask for?" in " ".join(capsys.readouterr().out.split())
