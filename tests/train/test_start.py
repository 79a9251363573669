"""Runs that start from a trained model: fine-tuning on other data."""

import re
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, TINY, assert_equal, load_plain, read_scalars, train_here

import tauflow

TEXT = [
    *("-c", str(ROOT / "configs" / "text_masked.yaml"), "-c", str(ROOT / "configs" / "smoke.yaml")),
    *("--data.length=16", "--data.vocabulary=270", "--model.network.width=16", "--model.network.blocks=1"),
    *("--model.network.heads=2", "--model.optimizer.ema_decay=0.5", "--trainer.gradient_clip_val=null"),
    *(
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--evaluation.every_n_validations=0",
    ),
]
FINE = [word for word in TEXT if not re.match("--data.(length|vocabulary)|--model.network", word)]
STRINGS = [
    *("-c", str(ROOT / "configs" / "sequences.yaml"), "-c", str(ROOT / "configs" / "smoke.yaml")),
    *(
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--evaluation.every_n_validations=0",
    ),
]


def train_failing(*args: str, cwd: Path) -> str:
    with pytest.raises(AssertionError) as raised:
        train_here(*args, cwd=cwd)
    return str(raised.value)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny model of text: words of a small alphabet."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "words.txt").write_text("\n\n".join(f"the cat {n} sat on the mat {n * 7}" for n in range(200)))
    files = [f"--data.files={folder}/words.txt", f"--trainer.default_root_dir={folder}"]
    train_here(*TEXT, *files, "--trainer.max_steps=48", "--model.optimizer.learning_rate=0.01", cwd=folder)
    return folder / "version_0"


@pytest.fixture
def other(tmp_path) -> list[str]:
    text = "\n\n".join(f"the mat {n} sat on the cat {n * 3}" for n in range(200))
    (tmp_path / "other.txt").write_text(text)
    return [f"--data.files={tmp_path}/other.txt", f"--trainer.default_root_dir={tmp_path}/runs"]


def test_fine_tuning_on_other_text(model, other, tmp_path):
    """With the network and the tokenizer of the model; the bound beats training from scratch; it resumes."""
    said = train_here(*FINE, *other, f"--init_from={model}", "--trainer.max_steps=8", cwd=tmp_path)
    assert re.search(
        rf"^start       {model}/best.ckpt, step \d+: its weights, network, length, tokenizer_json$",
        said,
        re.M,
    )
    folder = tmp_path / "runs" / "version_0"
    there, here = tauflow.load(model), tauflow.load(folder)
    assert here.task.tokenizer_json == there.task.tokenizer_json
    assert here.model.shape == (16,)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["init_from"] == str(model)
    assert config["data"]["init_args"]["tokenizer_json"] is None, "a tokenizer is too long to read"

    train_here(*TEXT, *other, "--trainer.max_steps=8", cwd=tmp_path)
    tuned, scratch = (
        read_scalars(tmp_path / "runs" / name)["val/bound"][0][1] for name in ("version_0", "version_1")
    )
    assert tuned < scratch - 0.5, "nats per token"

    resume = ["-c", str(folder / "config.yaml"), f"--ckpt_path={folder}", "--trainer.max_steps=16"]
    again = train_here(*resume, cwd=tmp_path)
    assert "start " not in again
    assert re.findall("^changed +(.*)", again, re.M) == ["trainer.max_steps 8 -> 16 from step 8"]
    assert "steps only" not in said + again, "8 steps more than the model's"
    train_here("-c", str(folder / "config.yaml"), "--trainer.max_steps=16", cwd=tmp_path)
    last = load_plain(tmp_path / "runs" / "version_2" / "last.ckpt")
    assert last["tauflow"]["task"] == load_plain(folder / "last.ckpt")["tauflow"]["task"]


def test_both_weights_start_as_the_averaged_ones():
    trained = tauflow.load("countdown_masked")
    task = tauflow.Countdown()
    module = tauflow.DFMModule(
        task.facts, network=tauflow.networks.TransformerConfig(width=128, blocks=4, heads=4, time=False)
    )
    module.load_weights(trained.model)
    weights = trained.model.denoiser.network.state_dict()
    assert_equal(dict(module.network.state_dict()), dict(weights))
    assert_equal(dict(module.ema.network.state_dict()), dict(weights))


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--data.length=8", "data.length: 16 there, 8 here). Remove --data.length, or --init_from"),
        ("--model.network.width=32", "model.network.width: 16 there, 32 here"),
        ("--model.source=uniform", "states of the source"),
    ],
)
def test_flags_that_do_not_fit_the_model(model, other, tmp_path, flag, expected):
    said = train_failing(*FINE, *other, f"--init_from={model}", flag, "--trainer.max_steps=8", cwd=tmp_path)
    assert expected in said
    assert not (tmp_path / "runs").exists()


def test_another_task_with_other_sizes(model, trained, tmp_path):
    place = f"--trainer.default_root_dir={tmp_path}/runs"
    said = train_failing(*TINY, place, f"--init_from={model}", cwd=tmp_path)
    assert "tokens 270 there, 6 here" in said
    assert "The model's task is Text, that of the run Countdown." in said
    said = train_failing(place, "--init_from=fashion", cwd=tmp_path)
    assert "for images of shape (H, W) or (H, W, C), not (256,). The model's task is Images" in said
    said = train_failing(*TINY, place, f"--init_from={trained}", "--data.length=8", cwd=tmp_path)
    assert "shape (16,) there, (8,) here" in said
    assert not (tmp_path / "runs").exists()


def test_a_task_of_another_class_than_the_configuration(model, other, tmp_path):
    """The tokenizer goes to the class that a flag chooses."""
    flags = [*TINY, "--data.class_path=tauflow.tasks.Text", *other, f"--init_from={model}"]
    flags = [flag for flag in flags if not re.match("--data.(length|values)|--model.network", flag)]
    train_here(*flags, "--trainer.max_steps=8", cwd=tmp_path)
    here, there = tauflow.load(tmp_path / "runs" / "version_0").task, tauflow.load(model).task
    assert (type(here), here.tokenizer_json) == (tauflow.tasks.Text, there.tokenizer_json)


def test_a_configuration_without_a_network(model, other, tmp_path):
    (tmp_path / "own.yaml").write_text("data: {class_path: tauflow.tasks.Text, init_args: {val_items: 4}}")
    flags = ["-c", "own.yaml", *other, f"--init_from={model}", "--trainer.max_steps=2"]
    train_here(*flags, "--trainer.accelerator=cpu", "--evaluation.every_n_validations=0", cwd=tmp_path)
    assert tauflow.load(tmp_path / "runs" / "version_0").model.denoiser.network.config.width == 16


@pytest.mark.parametrize("places", ["true", "false"])
def test_positions_are_learned_if_the_model_has_learned_them(tmp_path, places):
    (tmp_path / "ab.txt").write_text("".join(f"{'a' * (1 + n % 3)}{'b' * (1 + n % 5)}\n" for n in range(300)))
    common = [*STRINGS, f"--trainer.default_root_dir={tmp_path}/runs", f"--data.files={tmp_path}/ab.txt"]
    train_here(*common, f"--model.network.places={places}", cwd=tmp_path)
    train_here(*common, f"--init_from={tmp_path}/runs/version_0", cwd=tmp_path)
    network = tauflow.load(tmp_path / "runs" / "version_1").model.denoiser.network
    assert (network.places is not None) == (places == "true")


def test_strings_with_tokens_that_the_model_lacks(tmp_path):
    (tmp_path / "ab.txt").write_text("".join(f"{'a' * (1 + n % 3)}{'b' * (1 + n % 5)}\n" for n in range(300)))
    (tmp_path / "ba.txt").write_text("".join(f"{'b' * (1 + n % 3)}a\n" for n in range(300)))
    (tmp_path / "ac.txt").write_text("".join(f"a{'c' * (1 + n % 5)}\n" for n in range(300)))
    place = [*STRINGS, f"--trainer.default_root_dir={tmp_path}/runs", "--data.val_share=0.3"]
    train_here(*place, f"--data.files={tmp_path}/ab.txt", cwd=tmp_path)
    start = f"--init_from={tmp_path}/runs/version_0"
    train_here(*place, start, f"--data.files={tmp_path}/ba.txt", cwd=tmp_path)
    here = tauflow.load(tmp_path / "runs" / "version_1")
    assert here.model.shape == (8,), "the length of the model's strings, though the new ones are shorter"
    said = train_failing(*place, start, f"--data.files={tmp_path}/ac.txt", cwd=tmp_path)
    assert "'c'" in said
