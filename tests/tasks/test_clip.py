"""The CLIP score against cosines computed by hand, as a metric of samples, and out of checkpoints."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import save_clip

from tauflow.errors import SettingsError
from tauflow.tasks.scenes.clip import CaptionScore, ClipScore

CAPTIONS = ["a photo of a red bench", "a person", "two blue person and a white bench", "a black object"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clip") / "tiny.clip")


@pytest.fixture(scope="module")
def pictures():
    """Noise around levels of its own, so that the pictures differ for a network that sees them small."""
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 200, (4, 6, 8, 3)).repeat(8, 1).repeat(8, 2)
    return torch.from_numpy((levels + rng.integers(0, 56, levels.shape)).astype(np.uint8))


@pytest.fixture(scope="module")
def cosines(model, pictures):
    """100 cos of each pair, by the classes of transformers."""
    import transformers

    network = transformers.CLIPModel.from_pretrained(model)
    processor = transformers.CLIPProcessor.from_pretrained(model)
    found = []
    for picture, caption in zip(pictures, CAPTIONS, strict=True):
        inputs = processor(text=caption, images=Image.fromarray(picture.numpy()), return_tensors="pt")
        with torch.no_grad():
            output = network(**inputs)
        image, text = output.image_embeds[0], output.text_embeds[0]
        found.append(100 * (image @ text / image.norm() / text.norm()).item())
    return np.array(found)


def test_scores_are_cosines(model, pictures, cosines):
    score = ClipScore(model)
    assert score.tag == "clip_score_tiny_clip", "no dots in the name of a metric"
    found = score(pictures, CAPTIONS)
    assert found.tolist() == pytest.approx(cosines, rel=1e-4)
    assert len(set(np.round(cosines, 1))) == 4, "which differ"
    assert not found.requires_grad
    assert score(pictures[2:3], CAPTIONS[2:3]).tolist() == pytest.approx(cosines[2:3], rel=1e-4)
    assert score(pictures[:0], []).shape == (0,)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(score(pictures, CAPTIONS), found), "not in the precision of sampling"


def test_only_pixels_from_0_to_255(model, pictures):
    with pytest.raises(SettingsError, match=r"uint8 \(B, H, W, 3\), got torch.float32"):
        ClipScore(model)(pictures / 255, CAPTIONS)
    with pytest.raises(SettingsError, match=r"got torch.uint8 \(4, 3, 48, 64\)"):
        ClipScore(model)(pictures.permute(0, 3, 1, 2), CAPTIONS)
    with pytest.raises(ValueError, match="shorter"):
        ClipScore(model)(pictures, CAPTIONS[:2])


def caption_score(model, pictures):
    """A metric of samples that are numbers of pictures, asked for by the numbers of captions."""
    return CaptionScore(
        ClipScore(model), lambda tokens: pictures[tokens[:, 0]], lambda condition: CAPTIONS[condition[0]]
    )


def test_a_metric_of_samples(model, pictures, cosines):
    metric = caption_score(model, pictures)
    tokens = torch.arange(4)[:, None]
    metric.update(tokens[:3], tokens[:3])
    metric.update(tokens[3:], tokens[3:])
    metric.update(tokens)  # nothing was asked for
    value, error = metric.compute()
    assert value.item() == pytest.approx(max(cosines.mean(), 0), rel=1e-4)
    assert error.item() == pytest.approx(cosines.std(ddof=1) / 2, rel=1e-4)
    assert metric.higher_is_better


def test_a_mean_below_zero_is_zero_as_in_torchmetrics(model, pictures, cosines):
    worst = torch.tensor([[int(cosines.argmin())]] * 2)
    assert cosines.min() < 0
    metric = caption_score(model, pictures)
    metric.update(worst, worst)
    assert metric.compute()[0] == 0


def test_weights_are_in_no_checkpoint(model, pictures):
    metric = caption_score(model, pictures)
    metric.persistent(True)
    assert set(metric.state_dict()) == {"count", "total", "squares"}
    assert not list(metric.parameters())


def test_a_model_that_is_not_there():
    with pytest.raises(
        SettingsError, match=r"cannot load the CLIP model '/no/such': .*; choose a folder"
    ) as error:
        ClipScore("/no/such")
    assert "\n" not in str(error.value)
