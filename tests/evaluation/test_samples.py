"""All samples as data: samples.jsonl, a file per cell, images as PNGs; also of resumed grids."""

import json

import numpy as np
import pytest
import torch
from conftest import sample_here
from PIL import Image

import tauflow
from tauflow.evaluation.evaluate import Sampling, measure_cell
from tauflow.evaluation.results import Results
from tauflow.evaluation.samples import file_name
from tauflow.samplers import sampler_from
from tauflow.train import SHIPPED


def lines(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_out_has_every_sample_of_every_cell(trained, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    grid = ("--out", out, "--num_samples", 10, "--batch_size", 4, "--sampler", "tr_cie(grid=tau)")
    code, printed = sample_here(trained / "best.ckpt", capfd, *grid)
    assert code == 0
    assert "samples.jsonl" in printed
    found = lines(out)
    assert [line["index"] for line in found] == list(range(10))
    assert {(line["sampler"], line["nfe"]) for line in found} == {("tr_cie(grid=tau)", 2)}
    loaded = tauflow.load(trained / "best.ckpt")
    sampling = Sampling(10, 4, nll_items=0)
    sampler = sampler_from("tr_cie(grid=tau)", loaded.model)
    cell = measure_cell(loaded.model, loaded.task, sampler, {"nfe": 2}, sampling, keep=True)
    assert [line["tokens"] for line in found] == cell.samples.tokens.tolist()
    with np.load(out / "samples" / "tr_cie(grid=tau)_NFE_2.npz") as arrays:
        assert np.array_equal(arrays["tokens"], cell.samples.tokens)

    code, _ = sample_here(trained / "best.ckpt", capfd, *grid, "--sampler", "euler")  # the grid grows
    assert code == 0
    assert [line["sampler"] for line in lines(out)] == ["tr_cie(grid=tau)"] * 10 + ["euler"] * 10
    assert lines(out)[:10] == found
    assert not any(cell.samples for cell in Results.read(out).cells)


def test_show_prints_as_many_as_asked(trained, tmp_path, capfd, monkeypatch):
    """More than a batch, and the numbers of the table once."""
    monkeypatch.chdir(tmp_path)
    code, printed = sample_here(
        trained / "best.ckpt", capfd, "--num_samples", 9, "--batch_size", 4, "--show", 7
    )
    assert code == 0
    shown = printed.split("NFE 2\n\n")[1].split("\n\n! marks a value that breaks the rule")[0]
    assert len(shown.split("\n\n")) == 7
    assert "NFE 2: " not in printed, "the numbers are in the table only"


def test_a_barely_trained_model(trained, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed = sample_here(trained / "best.ckpt", capfd, "--num_samples", 2)
    assert code == 0
    assert "steps only: its samples are close to noise" in printed
    assert "a trained model: tauflow sample --task countdown" in printed
    _, printed = sample_here(SHIPPED / "countdown_masked.ckpt", capfd, "--num_samples", 1)
    assert "steps only" not in printed


def test_images_are_files(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ("--num_samples", 3, "--batch_size", 2, "--sampler", "euler", "--out", "out")
    code, _ = sample_here(SHIPPED / "fashion.ckpt", capfd, *few, "--condition", "bag")
    assert code == 0
    with np.load(tmp_path / "out" / "samples" / "euler_NFE_2.npz") as arrays:
        images = arrays["images"]
        assert arrays["tokens"].shape[0] == 3
        assert arrays["condition"].tolist() == [[8]] * 3
    assert images.shape == (3, 28, 28, 3)
    names = sorted(path.name for path in (tmp_path / "out" / "samples" / "euler_NFE_2").iterdir())
    assert names == ["00000.png", "00001.png", "00002.png"]
    read = np.asarray(Image.open(tmp_path / "out" / "samples" / "euler_NFE_2" / "00002.png"))
    assert np.array_equal(read, images[2])
    assert not (tmp_path / "out" / "samples.jsonl").exists()


def test_text_is_text(tmp_path, capfd, monkeypatch):
    """Strings as they are: without numbers, marks, or symbols for what isn't printable."""
    from tauflow.tasks import Sequences
    from tauflow.train import DFMModule, Trained

    (tmp_path / "strings.txt").write_text("".join(f"AB-{n:02}\n" for n in range(40)))
    task = Sequences(files=str(tmp_path / "strings.txt"), cache=str(tmp_path / "cache"), val_share=0.2)
    task.setup()
    trained = Trained(DFMModule(task.facts).model(), task)
    from tauflow.evaluation.evaluate import GridOptions, SamplerGrid
    from tauflow.evaluation.samples import write_lines

    grid = SamplerGrid(trained, "euler", 2, (), Sampling(5, 2, nll_items=0))
    results = grid.run(Results(), GridOptions(tmp_path, samples=True))
    assert write_lines(tmp_path, results, task) == ["samples.jsonl", "samples"]
    tokens = torch.tensor(np.load(tmp_path / "samples" / "euler_NFE_2.npz")["tokens"]).long()
    assert [line["text"] for line in lines(tmp_path)] == task.texts(tokens)


@pytest.mark.parametrize(
    ("factors", "name"),
    [
        ({"sampler": "tr_cie(grid=tau)", "nfe": 8, "guidance": 1.5}, "tr_cie(grid=tau)_NFE_8_guidance_1.5"),
        ({"sampler": "euler", "nfe": 8}, "euler_NFE_8"),
    ],
)
def test_names_of_files(factors, name):
    assert file_name(factors) == name


def test_names_of_files_differ():
    names = {
        file_name({"sampler": f"{folder}/my.py:Mine", "nfe": 8}) for folder in ("a", "a_", "a:", "x" * 200)
    }
    assert len(names) == 4
    assert all(len(name) < 120 and "/" not in name for name in names)
