"""Exported folders: complete, replaced as a whole, not trusted; and the Hugging Face Hub."""

import json
import os
from pathlib import Path

import pytest
import torch
from conftest import sample_here
from hub import GATED, serve_hub

import tauflow
from tauflow.cli.commands import main
from tauflow.errors import CheckpointError, SettingsError, TauflowError
from tauflow.files import digest, digest_json
from tauflow.networks import TransformerConfig
from tauflow.tasks.text import Text
from tauflow.train import DFMModule
from tauflow.train.checkpoint import read, save
from tauflow.train.module import FORMAT, KEY, describe


def weights_of(trained: tauflow.Trained) -> dict[str, torch.Tensor]:
    return trained.model.denoiser.network.state_dict()


def assert_same_weights(one: tauflow.Trained, other: tauflow.Trained) -> None:
    torch.testing.assert_close(weights_of(one), weights_of(other), rtol=0, atol=0)


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory) -> Path:
    return tauflow.export(trained, tmp_path_factory.mktemp("exported") / "tiny")


def change_config(folder: Path, change) -> None:
    """Change config.json as someone would who knows the format: with the right digest."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    content = {name: value for name, value in config.items() if name not in ("library_name", "sha256")}
    config["sha256"] = digest_json(content)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """A copy of the exported folder, to change it."""
    (tmp_path / "model").mkdir()
    for path in exported.iterdir():
        (tmp_path / "model" / path.name).write_bytes(path.read_bytes())
    return tmp_path / "model"


# Folders


def test_an_exported_run_is_loaded_as_the_run_is(trained, exported):
    run, loaded = tauflow.load(trained), tauflow.load(exported)
    assert_same_weights(run, loaded)
    assert (loaded.step, describe(loaded.task)) == (run.step, describe(run.task))
    samples = [tauflow.sample(each, "auto", nfe=2, seed=1).tokens for each in (run, loaded)]
    assert samples[0].equal(samples[1])


def test_the_model_card_says_what_it_is_and_how_to_load_it(trained, exported, tmp_path):
    card = (exported / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: tauflow\ntags:")
    assert 'tauflow.load("tiny")' in card
    assert "masked source, quadratic" in card
    assert "24 steps, val/bound" in card
    assert "license" not in card
    licensed = tauflow.export(trained, tmp_path / "licensed", license="apache-2.0")
    assert "\nlicense: apache-2.0\n" in (licensed / "README.md").read_text()


def test_a_model_without_a_task_in_the_current_folder(tmp_path, monkeypatch):
    module = DFMModule(
        tauflow.Countdown(length=8).facts, network=TransformerConfig(width=16, blocks=1, heads=2)
    )
    entry = {"format": FORMAT, "model": describe(module), "task": None}
    save({"state_dict": module.state_dict(), "global_step": 3, KEY: entry}, tmp_path / "mine.ckpt")
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    tauflow.export(tmp_path / "mine.ckpt", ".")
    card = Path("README.md").read_text()
    assert "# my-model\n" in card
    assert "Task" not in card
    assert tauflow.load(".").task is None


def test_what_was_learned_goes_along(tmp_path):
    shipped = tauflow.load("countdown_masked")
    loaded = tauflow.load(tauflow.export("countdown_masked", tmp_path / "model"))
    assert loaded.model.counts == shipped.model.counts
    assert loaded.model.order.equal(shipped.model.order)
    assert loaded.model.influence.equal(shipped.model.influence)


def test_half_of_a_size(trained, exported, tmp_path):
    half = tauflow.export(trained, tmp_path / "half", half=True)
    assert (half / "model.safetensors").stat().st_size < 0.6 * (exported / "model.safetensors").stat().st_size
    weights = weights_of(tauflow.load(half))
    rounded = {name: weight.half().float() for name, weight in weights_of(tauflow.load(exported)).items()}
    torch.testing.assert_close(weights, rounded, rtol=0, atol=0)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """The checkpoint of a text model that wasn't trained, with the statistics of its corpus."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "secret-place").mkdir()
    corpus = folder / "secret-place" / "corpus.txt"
    corpus.write_text("\n\n".join(f"the {number} of spades" for number in range(400)))
    task = Text(files=str(corpus), tokenizer="characters", length=8, cache=str(folder / "cache"))
    task.setup()
    module = DFMModule(task.facts, network=TransformerConfig(width=16, blocks=1, heads=2))
    task.begin_run(folder)
    entry = {"format": FORMAT, "model": describe(module), "task": describe(task)}
    save({"state_dict": module.state_dict(), "global_step": 0, KEY: entry}, folder / "best.ckpt")
    return folder


def test_text_has_its_tokenizer_and_statistics_and_not_where_its_corpus_was(text, tmp_path):
    folder = tauflow.export(text, tmp_path / "model")
    run, loaded = tauflow.load(text), tauflow.load(folder)
    assert loaded.tokenizer.to_str() == run.tokenizer.to_str() == (folder / "tokenizer.json").read_text()
    assert loaded.task.alone == "", "samples can be compared with real data"
    public = (folder / "config.json").read_text() + (folder / "README.md").read_text()
    assert "secret-place" not in public
    assert "corpus.txt" in public


def test_a_failed_export_leaves_nothing(trained, tmp_path):
    with pytest.raises(Exception, match="cannot represent"):
        tauflow.export(trained, tmp_path / "model", license=object())
    assert not list(tmp_path.iterdir())


def test_a_half_written_folder_is_no_model(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no best\.ckpt"):
        tauflow.load(folder)


def test_an_earlier_export_is_replaced_and_nothing_else(folder, tmp_path):
    (folder / ".git").mkdir()
    tauflow.export("countdown_masked", folder)
    assert (folder / "model.counts.json").exists()
    tauflow.export("countdown_uniform", folder)
    assert not (folder / "model.counts.json").exists()
    assert tauflow.load(folder).model.process.name == "uniform"
    assert (folder / ".git").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    (tmp_path / "file").touch()
    for target, said in (("photos", r"other files \(cat\.png\)"), ("file", "is a file")):
        with pytest.raises(SettingsError, match=said):
            tauflow.export("countdown_uniform", tmp_path / target)


def test_sample_py_takes_a_run_and_an_exported_folder(trained, exported, capfd):
    for place in (trained, trained.parent, exported):
        code, printed = sample_here(
            place, capfd, "--num_samples", 2, "--unconditional", place, "--guidance", 1.5
        )
        assert code == 0
        assert "step 24" in printed
    assert f"checkpoint  {exported}/model.safetensors" in printed


# Files of strangers


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def swap_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors")
    sha256 = digest(folder / "model.safetensors")
    change_config(folder, lambda config: config["files"].update({"model.safetensors": sha256}))


def set_width(config: dict) -> None:
    config["model"]["init_args"]["network"]["init_args"]["width"] = 2**16


def set_shape(config: dict) -> None:
    config["model"]["init_args"]["facts"]["init_args"]["shape"] = [2**24]


def name_class(config: dict) -> None:
    config["task"] = {"class_path": "os.system", "init_args": {"command": "touch pwned"}}


def name_file(config: dict) -> None:
    config["files"]["../../secret"] = "0" * 64


def make_pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def link_to_device(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


ATTACKS = {
    "damaged weights": (lambda folder: flip(folder / "model.safetensors"), "sha256 is wrong"),
    "damaged config": (
        lambda folder: (folder / "config.json").write_text(
            (folder / "config.json").read_text().replace("quadratic", "linear").replace("24", "25")
        ),
        r"config\.json is damaged",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "File not found"),
    "a pipe": (make_pipe, "must be a regular file"),
    "a device": (link_to_device, "must be a regular file"),
    "a wide network": (lambda folder: change_config(folder, set_width), "don't fit its settings"),
    "a long sample": (lambda folder: change_config(folder, set_shape), "sizes|fit"),
    "a foreign class": (
        lambda folder: change_config(folder, name_class),
        "names os.system, which",
    ),
    "a file elsewhere": (lambda folder: change_config(folder, name_file), "isn't one of a model"),
    "other weights": (lambda folder: swap_weights(folder, {"a": torch.zeros(3)}), "missing: .*unknown: a"),
    "no numbers": (lambda folder: (folder / "config.json").write_text('{"a": [' * 9999), "can't be read"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_folder_is_not_trusted(folder, tmp_path, monkeypatch, attack):
    monkeypatch.chdir(tmp_path)
    change, said = ATTACKS[attack]
    change(folder)
    with pytest.raises(CheckpointError, match=said):
        tauflow.load(folder)
    assert not (tmp_path / "pwned").exists()


def test_a_tokenizer_of_another_model_is_noticed(text, tmp_path):
    folder = tauflow.export(text, tmp_path / "model")
    flip(folder / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is damaged or belongs to another config"):
        tauflow.load(folder)


# The Hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with serve_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        files = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield hub


def test_a_model_goes_to_the_hub_and_back(exported, tmp_path, hub, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (exported / "notes.txt").write_text("mine")  # not a file of a model
    address = tauflow.push(exported, "me/tiny", private=True)
    assert address == f"{hub.address}/me/tiny"
    assert hub.private == {"me/tiny"}
    assert hub.repos["me/tiny"].keys() == {"config.json", "model.safetensors", "README.md"}
    first = tauflow.load("me/tiny")
    assert_same_weights(first, tauflow.load(exported))
    old = tauflow.train.checkpoint.find_checkpoint("me/tiny").parent.name  # the commit

    tauflow.push(tauflow.export("countdown_uniform", tmp_path / "new"), "me/tiny")
    assert tauflow.load("me/tiny").model.process.name == "uniform"
    assert_same_weights(first, tauflow.load("me/tiny", revision=old))

    here = tauflow.export("countdown_masked", tmp_path / "me" / "tiny")
    assert tauflow.load("me/tiny").step == tauflow.load(here).step == 4096, "what is here comes first"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("me/none", "doesn't have it, or it's private"),
        (GATED, "it's gated. Accept its terms"),
        ("someone/bert", "isn't a model that tauflow exported. Try tauflow.pretrained"),
    ],
)
def test_what_the_hub_does_not_have(hub, name, said):
    hub.repos["someone/bert"] = {"config.json": b'{"model_type": "bert"}', "model.safetensors": b"large"}
    with pytest.raises(CheckpointError, match=said):
        tauflow.load(name)
    assert "model.safetensors" not in hub.served, "the weights of another library may be large"


def test_without_a_network_the_cache_is_enough(exported, hub, monkeypatch):
    from huggingface_hub import constants

    tauflow.push(exported, "me/tiny")
    step = tauflow.load("me/tiny").step
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert tauflow.load("me/tiny").step == step
    with pytest.raises(CheckpointError, match=r"me/other isn't a file or folder here, .*Check the network"):
        tauflow.load("me/other")


def test_what_is_not_uploaded(exported, folder, trained, tmp_path, hub, monkeypatch):
    (tmp_path / "key").write_text("private")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(tmp_path / "key")
    for place, name, said in (
        (folder, "me/tiny", r"has links \(README\.md\)"),
        (trained, "me/tiny", r"has no config\.json. Write the folder with tauflow\.export"),
        (exported, "tiny", "must be user/name, got 'tiny'"),
    ):
        with pytest.raises(TauflowError, match=said):
            tauflow.push(place, name)
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(TauflowError, match="hf auth login"):
        tauflow.push(exported, "me/tiny")
    assert not hub.repos


def test_a_single_file_is_still_written(trained, tmp_path):
    path = tauflow.export(trained, tmp_path / "small.ckpt")
    assert_same_weights(tauflow.load(trained), tauflow.load(path))
    assert read(path).keys() == {"state_dict", "global_step", KEY}


def test_commands_export_and_push(trained, tmp_path, monkeypatch, capsys, hub):
    def run(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["tauflow", *map(str, words)])
        main()
        return capsys.readouterr().out

    assert "model.safetensors" in run("export", trained, tmp_path / "model", "--license", "mit")
    assert "license: mit" in (tmp_path / "model" / "README.md").read_text()
    hint = f"learned counts: tauflow sample --ckpt {tmp_path / 'model'} --learn_counts"
    assert hint in run("export", trained, tmp_path / "model")
    assert "--learn_counts" not in run("export", "countdown_masked", tmp_path / "learned")
    assert run("push", tmp_path / "model", "me/model", "--private") == f"{hub.address}/me/model\n"
    assert hub.private == {"me/model"}
    with pytest.raises(SystemExit, match="error: Checkpoint not found: nowhere"):
        run("export", "nowhere", tmp_path / "other")
