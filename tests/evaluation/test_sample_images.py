"""Pictures for people: sample.py on the shipped fashion model, completion, samples.png and evolution.png."""

import numpy as np
import pytest
import torch
from conftest import ROOT
from PIL import Image

import tauflow
import tauflow.cli.sample
from tauflow.cli.sample import build_parser
from tauflow.denoise import DROPPED
from tauflow.evaluation.images import (
    CAPTION,
    ImageBlock,
    Strip,
    mosaic,
    reduced,
    samples_figure,
    shortened,
    summary_line,
    text_width,
    wrapped,
)
from tauflow.evaluation.results import REAL, Cell, Measured, Record, Results, Scale, Shown
from tauflow.train import SHIPPED

SIDE = 28  # pixels of a picture of the fashion model
SCALE = 3  # by which it is enlarged


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Runs sample.py's entry point in this process; returns (exit code or message, what it printed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*args):
        with pytest.raises(SystemExit) as stop:
            tauflow.cli.sample.sample([*map(str, args), "--accelerator=cpu", "--no_progress"])
        return stop.value.code, capfd.readouterr().out

    return run


@pytest.fixture(scope="module")
def task():
    return tauflow.load(SHIPPED / "fashion.ckpt").task


@pytest.fixture
def boot(tmp_path):
    """A validation picture of the shipped model as a file; returns its levels (H, W)."""
    with np.load(SHIPPED / "pictures.npz") as arrays:
        levels = arrays["val"][np.flatnonzero(arrays["val_labels"] == 9)[0]]
    Image.fromarray(levels).save(tmp_path / "boot.png")
    return levels


def drawn(path):
    return np.array(Image.open(path).convert("RGB"))


def places(canvas, picture, scale=SCALE):
    """Return where (y, x) an enlarged picture (H, W, 3) stands on a canvas, pixel for pixel."""
    tile = picture.repeat(scale, 0).repeat(scale, 1)
    height, width = tile.shape[:2]
    rarity = np.bincount(canvas[..., 0].ravel(), minlength=256)[tile[..., 0]].ravel()
    shuffled = np.random.default_rng(0).permutation(rarity.size)
    probes = shuffled[rarity[shuffled].argsort(kind="stable")][:300]
    down, across = canvas.shape[0] - height + 1, canvas.shape[1] - width + 1
    y, x = np.divmod(np.arange(down * across), across)
    for row, column in zip(*np.divmod(probes, width), strict=True):
        fits = canvas[y + row, x + column, 0] == tile[row, column, 0]
        y, x = y[fits], x[fits]
    found = zip(y.tolist(), x.tolist(), strict=True)
    return [(y, x) for y, x in found if (canvas[y : y + height, x : x + width] == tile).all()]


def cells(folder):
    return [cell for cell in Results.read(folder).cells if cell.factors["sampler"] != REAL]


def shown(cell, task):
    return task.show(torch.tensor(cell.shown.tokens))


SMALL = ("--task", "fashion", "--nfe", 2, "--nll_items", 0)


def test_a_task_by_name_shows_a_row_for_each_class(call, task, tmp_path):
    code, printed = call(*SMALL, "--num_samples", 20, "--out", "out")
    assert code == 0
    assert "checkpoints/shipped/fashion.ckpt" in printed
    (cell,) = cells("out")
    assert sorted(row[0] for row in cell.shown.condition) == sorted([*range(10)] * 2), "classes in turn"
    canvas = drawn("out/samples.png")
    rows = {}
    for (label,), picture in zip(cell.shown.condition, shown(cell, task), strict=True):
        ((y, x),) = places(canvas, picture)
        rows.setdefault(y, []).append((label, x))
    assert [{label for label, _ in rows[y]} for y in sorted(rows)] == [{label} for label in range(10)]
    assert all(len({x for _, x in row}) == 2 for row in rows.values())

    assert call(*SMALL, "--num_samples", 20)[0] == 0, "without --out"
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == [
        ".lock",
        ".written",
        "evolution.png",
        "samples.png",
    ]
    for name in ("samples.png", "evolution.png"):
        assert (tmp_path / "samples" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_rows_stand_in_the_order_of_the_classes(task, tmp_path):
    tokens = torch.randint(256, (4, SIDE * SIDE), generator=torch.Generator().manual_seed(0))
    shuffled = Shown(tokens.tolist(), [[3], [1], [3], [1]])
    samples_figure([Cell({"sampler": "euler", "nfe": 2}, shown=shuffled)], task).savefig(tmp_path / "a.png")
    canvas = drawn(tmp_path / "a.png")
    tops = [places(canvas, picture)[0][0] for picture in task.show(tokens)]
    assert tops[1] == tops[3] < tops[0] == tops[2]


def test_samplers_and_budgets_are_rows(call, task):
    grid = ("--sampler", "auto", "euler", "--guidance", 1, 3, "--nfe", 1, 2, "--num_samples", 3)
    assert call("--task", "fashion", *grid, "--nll_items", 0, "--out", "out")[0] == 0
    canvas, found = drawn("out/samples.png"), {}
    for cell in cells("out"):
        tiles = [places(canvas, picture) for picture in shown(cell, task)]
        assert all(len(each) == 1 for each in tiles)
        assert len({y for ((y, _),) in tiles}) == 1, "a cell is a row"
        found[tiles[0][0][0]] = (cell.factors["nfe"], cell.factors["sampler"], cell.factors["guidance"])
    assert [found[y] for y in sorted(found)] == [
        (nfe, sampler, weight)
        for nfe in (1, 2)
        for sampler in ("spaced_even", "euler")
        for weight in (1.0, 3.0)
    ]


def test_weights_of_guidance_are_blocks_of_classes(call, task):
    assert call(*SMALL, "--guidance", 1, 3, "--num_samples", 20, "--out", "out")[0] == 0
    canvas = drawn("out/samples.png")
    left, right = (
        {x for picture in shown(cell, task) for _, x in places(canvas, picture)} for cell in cells("out")
    )
    assert (len(left), len(right)) == (2, 2)
    assert max(left) < min(right), "the blocks stand beside each other"


def test_the_evolution_begins_at_masks_and_ends_at_the_sample(call, task):
    assert call("--task", "fashion", "--nfe", 3, "--num_samples", 1, "--nll_items", 0, "--out", "out")[0] == 0
    canvas, (cell,) = drawn("out/evolution.png"), cells("out")
    ((y, end),) = places(canvas, shown(cell, task)[0])
    masks = task.show(torch.full((1, SIDE * SIDE), task.num_tokens))[0]
    ((top, start),) = places(canvas, masks)
    assert (top, end - start) == (y, 3 * (SIDE * SCALE + 4)), "four states in a line"


@pytest.mark.parametrize(
    ("keep", "rows", "columns"),
    [
        ("left", slice(0, 28), slice(0, 14)),
        ("bottom", slice(14, 28), slice(0, 28)),
        ("3,5,20,10", slice(5, 10), slice(3, 20)),
    ],
)
def test_completion_keeps_what_is_known(call, task, boot, keep, rows, columns):
    flags = ("--complete", "boot.png", "--keep", keep, "--sampler", "auto", "tr_cie", "--num_samples", 3)
    assert call(*SMALL, *flags, "--out", "out")[0] == 0
    canvas = drawn("out/samples.png")
    for cell in cells("out"):
        tokens = torch.tensor(cell.shown.tokens).view(-1, SIDE, SIDE)
        assert (tokens[:, rows, columns] == torch.from_numpy(boot)[rows, columns]).all()
        assert len(tokens.unique(dim=0)) == 3, "the rest is drawn"
        assert cell.shown.condition == [[DROPPED]] * 3, "of any class"
        assert all(places(canvas, picture) for picture in shown(cell, task))
    covered = np.full((SIDE, SIDE), task.num_tokens)
    covered[rows, columns] = boot[rows, columns]
    pair = np.stack([covered, boot]).reshape(2, -1)
    assert [len(places(canvas, picture)) for picture in task.show(torch.from_numpy(pair))] == [1, 1]


def test_a_completion_is_asked_for_a_class_and_resumes_with_its_picture_only(call, boot, tmp_path):
    flags = (*SMALL, "--num_samples", 2, "--out", "out", "--complete")
    assert call(*flags, "boot.png", "--keep", "left", "--condition", "boot")[0] == 0
    assert cells("out")[0].shown.condition == [[9], [9]]
    (tmp_path / "boot.png").rename("moved.png")
    code, printed = call(*flags, "moved.png", "--keep", "left", "--condition", "boot")
    assert code == 0
    assert "1 of 1 cells are there already" in printed
    code, _ = call(*flags, "moved.png", "--keep", "right", "--condition", "boot")
    assert "other settings (keep: left there, right now)" in code
    Image.fromarray(boot[::-1].copy()).save("moved.png")
    code, _ = call(*flags, "moved.png", "--keep", "left", "--condition", "boot")
    assert "other settings (complete_sha256: " in code


def test_a_value_that_starts_with_a_dash(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--keep", "-1,0,5,5"])
    assert "--keep: expected one argument; write FLAG=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--complete", "boot.png"), "--complete PATH, an image, needs --keep"),
        (
            ("--complete", "boot.png", "--keep", "left", "--prompt", "1"),
            "Pass --prompt or --complete, not both",
        ),
        (("--complete", "boot.png", "--keep", "middle"), "keep left, right, top, bottom, or x0,y0,x1,y1"),
        (("--complete", ROOT / "README.md", "--keep", "left"), "README.md must be an image, one of BMP"),
        (("--complete", "small.png", "--keep", "left"), "small.png has 8 x 8 pixels and is not enlarged"),
        (
            ("--task", "fashio"),
            "no shipped model 'fashio'. Shipped models: countdown_masked, countdown_uniform, ",
        ),
        (("--task", "fashion", "--ckpt", "best.ckpt"), "Pass --task or --ckpt, not both"),
        (
            ("--task", "countdown", "--complete", "boot.png", "--keep", "left"),
            "Countdown doesn't support --complete. Remove --complete.",
        ),
    ],
)
def test_requests_that_are_refused(call, boot, tmp_path, words, message):
    Image.new("L", (8, 8)).save("small.png")
    before = sorted(tmp_path.iterdir())
    code, _ = call(*(words if "--task" in words else ("--task", "fashion", *words)))
    assert isinstance(code, str)
    assert message in code
    assert "\n" not in code
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_for_pictures_that_cannot_be_written(call, tmp_path):
    (tmp_path / "samples").write_text("")
    code, _ = call(*SMALL)
    assert "cannot write to samples" in code
    assert "choose another one with --out DIR" in code


def test_countdown_by_name_writes_no_pictures(call, tmp_path):
    code, printed = call("--task", "countdown", "--nfe", 2, "--num_samples", 2)
    assert code == 0
    assert "countdown_masked.ckpt" in printed
    assert not list(tmp_path.iterdir())
    assert "countdown_uniform.ckpt" in call("--task", "countdown_uniform", "--nfe", 1, "--num_samples", 1)[1]


@pytest.mark.parametrize(("side", "scale"), [(4, 18), (16, 5), (32, 3), (72, 1), (100, 1)])
def test_small_pictures_are_enlarged(tmp_path, side, scale):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, side, side, 3), dtype=np.uint8)
    figure = mosaic([ImageBlock([Strip(pictures, "label", ["one", "two", "a long caption"])], "a title")])
    figure.savefig(tmp_path / "a.png", dpi="figure")
    canvas = drawn(tmp_path / "a.png")
    found = [places(canvas, picture, scale) for picture in pictures]
    assert [len(each) for each in found] == [1, 1, 1]
    assert len({y for ((y, _),) in found}) == 1


def test_texts_fit(tmp_path):
    """A caption is cut to the width of its picture; long labels and titles widen the figure."""
    long = "word " * 30
    assert text_width(shortened(long, CAPTION, 84), CAPTION) <= 84
    assert shortened("boot", CAPTION, 84) == "boot"
    pictures = np.zeros((1, 8, 8, 3), np.uint8)
    plain, titled, labelled = (
        mosaic([ImageBlock([Strip(pictures, label)], title)]).get_size_inches()[0] * 100
        for title, label in (("", ""), (long, ""), ("", long))
    )
    assert titled > text_width(long, 11.0) > plain
    assert labelled > text_width(long, 9.0) + 72


def test_captions_are_wrapped():
    """Into lines of the width of the picture, three at most; the pictures stand below the longest."""
    text = "a red circle left of a blue square"
    assert wrapped(text, CAPTION, 1000) == [text]
    lines = wrapped(text, CAPTION, 100)
    assert len(lines) > 1
    assert " ".join(lines) == text
    assert all(text_width(line, CAPTION) <= 100 for line in wrapped("word " * 30, CAPTION, 100))
    assert len(wrapped("word " * 30, CAPTION, 100)) == 3
    assert wrapped("", CAPTION, 100) == [""]


def test_wrapped_captions_cover_no_picture(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    long = "a red circle left of a blue square and more words than three lines hold in all"
    strips = [
        Strip(pictures, captions=["short", long, "a"]),
        Strip(pictures[::-1], captions=["b", "c", long]),
    ]
    mosaic([ImageBlock(strips, "a title")]).savefig(tmp_path / "a.png", dpi="figure")
    canvas = drawn(tmp_path / "a.png")
    found = [places(canvas, picture, 2) for picture in pictures]
    assert [len(each) for each in found] == [2, 2, 2], "pixel for pixel"
    upper, lower = sorted({y for each in found for y, _ in each})
    assert lower - upper > 128 + 3 * 12, "three lines stand between them"


def test_large_pictures_are_reduced_in_a_terminal():
    picture = np.zeros((1, 64, 48, 3), np.uint8)
    picture[0, :2, :2] = 100
    picture[0, 0, 4] = 200
    small = reduced(picture)
    assert small.shape == (1, 32, 24, 3)
    assert small[0, 0, :3, 0].tolist() == [100, 0, 50], "means"
    assert np.array_equal(reduced(picture[:, :28, :28]), picture[:, :28, :28])
    assert reduced(np.zeros((2, 70, 3, 3), np.uint8)).shape == (2, 23, 1, 3)


def test_the_line_on_a_cell_has_no_parts_of_metrics():
    factors = {"sampler": "euler", "nfe": 2}
    names = ("strict", "strict_colors", "geneval", "broken_codes", "lost")
    values = dict.fromkeys(names, 0.5) | {"lost": float("nan")}
    records = [Record(factors, name, Measured(value, 0.1)) for name, value in values.items()]
    results = Results("samples", scales={name: Scale(True, False) for name in names})
    line = summary_line(Cell(factors, records), results)
    assert (
        line == "euler, NFE 2: strict 0.5000 ± 0.1000, geneval 0.5000 ± 0.1000, broken_codes 0.5000 ± 0.1000"
    )
