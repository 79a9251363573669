"""Studies of pictures, on untrained networks: what they measure, keep, refuse and conclude."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import values
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import tauflow
from benchmarks.pages import filled
from benchmarks.studies import STUDIES
from benchmarks.studies.command import main
from benchmarks.studies.images import orders, verdict
from benchmarks.studies.paired import with_differences
from benchmarks.studies.study import records
from tauflow.errors import TauflowError
from tauflow.evaluation.results import REAL, Cell, Measured, Results, Scale
from tauflow.evaluation.tables import Frame
from tauflow.networks import UNetConfig
from tauflow.process import source_from
from tauflow.tasks import Images
from tauflow.train import Trained

V = 8
FEATURES = "test_image_studies.Shades"
NLL, KID, FD16 = "nll_bits_per_dim", "kid_Shades", "fd16_Shades"


class Shades(nn.Module):
    """Features of pictures: the mean levels of their quarters."""

    def forward(self, pictures: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(pictures.float() / 255, 2).flatten(1)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Return what makes files that stand for checkpoints; each loads a model and its task."""
    generator = np.random.default_rng(0)
    sizes = {"images": 40, "test_images": 12}
    pictures = {name: generator.integers(0, 256, (n, 4, 4, 3), dtype=np.uint8) for name, n in sizes.items()}
    labels = {name.replace("images", "labels"): np.arange(n) % 2 for name, n in sizes.items()}
    np.savez(tmp_path / "made.npz", **pictures, **labels)
    known = {}

    def make(name, source="masked", schedule="linear", tokens="grey", time=False, labels=False):
        known[str(tmp_path / name)] = (source, schedule, tokens, time, labels)
        (tmp_path / name).write_text(name)
        return str(tmp_path / name)

    def load(path, data):
        source, schedule, tokens, time, labels = known[str(path)]
        places = {"npz": str(tmp_path / "made.npz"), "cache": str(tmp_path / "cache"), "val_items": 12}
        task = Images(tokens=tokens, levels=V, labels=labels, **places, **data)
        process = tauflow.Mixture(source_from(source, V), schedule)
        config = UNetConfig(8, (1,), 1, attention=False, head="linear", time=time)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = config.build(task.shape, process.num_states, V, task.conditions)
            for parameter in network.parameters():  # many begin as 0
                nn.init.normal_(parameter, std=0.3)
        network.conditions = task.conditions
        return Trained(tauflow.Model(network, process, task.shape, channels=task.channels), task)

    monkeypatch.setattr("benchmarks.studies.study.load", load)
    return make


@pytest.fixture
def no_figure(monkeypatch):
    """Draw nothing, which takes longer than to measure it."""
    monkeypatch.setattr("benchmarks.studies.report.panels_figure", lambda *arguments: Figure())


def run(name, *words, out, ckpt):
    features = ["--data", f"features={FEATURES}"]
    main([name, "--out", str(out), "--ckpt", *ckpt, "--no_progress", *features, *words])
    return Results.read(out)


# images


def test_images_measures_samples_and_likelihoods(models, tmp_path, capsys):
    masked, uniform = models("masked", labels=True), models("uniform", source="uniform", labels=True)
    results = run("images", "--smoke", "--nfes", "8", out=tmp_path / "out", ckpt=[masked, uniform])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {".lock", "figure.png", "pictures.png", "results.csv", "results.json", "results.md"}
    assert "figure.png, pictures.png)" in capsys.readouterr().out
    likely = values(results, NLL, "source", "sampler", "nfe")
    assert {source for source, _, _ in likely} == {"masked"}
    assert {"euler", "theta_rk2", "tr_cie", "fhs", "spaced", "spaced_even"} <= {name for _, name, _ in likely}
    sampled = values(results, KID, "source", "sampler")
    assert {("uniform", "bridge"), ("uniform", REAL), ("masked", "spaced"), ("masked", REAL)} <= set(sampled)
    assert any("uniform: no nll of euler" in note and "masked source" in note for note in results.notes)
    page = (tmp_path / "out" / "results.md").read_text()
    assert f"| masked: {NLL} less that of euler, paired | 8 |" in page
    assert "Each number is of the same 2 real items." in page
    for metric in (FD16, "fid_Shades", "label_accuracy_Shades", "brightness_sd", "quiet_luma"):
        assert f"| uniform: {metric} by NFE |" in page


@pytest.mark.usefixtures("no_figure")
def test_pictures_have_a_row_for_each_sampler_of_one_budget(models, tmp_path):
    masked = models("masked", tokens="rgb", labels=True)
    words = ["--samples", "9", "--nll_items", "2", "--samplers", "euler,spaced"]
    results = run("images", *words, "--nfes", "4,8", out=tmp_path / "out", ckpt=[masked])
    shown = {(c.factors["sampler"], c.factors.get("nfe")): c.shown for c in results.cells if c.shown}
    assert list(shown) == [(REAL, None), ("euler", 8), ("spaced", 8)]
    assert all(len(each.tokens) == 8 for each in shown.values())
    assert len({str(each.condition) for each in shown.values()}) == 1, "a column is of one class"
    before = Image.open(tmp_path / "out" / "pictures.png").size
    run("images", *words[:-1], "tweedie", "--nfes", "8", out=tmp_path / "out", ckpt=[masked])
    after = Image.open(tmp_path / "out" / "pictures.png").size
    assert after[0] == before[0]
    assert after[1] - before[1] >= 72, "one more row"


@pytest.mark.usefixtures("no_figure")
def test_a_study_of_pictures_resumes_and_refuses_other_settings(models, tmp_path):
    masked = models("masked")
    words = ["--samples", "3", "--nll_items", "2", "--samplers", "euler"]
    before = run("images", *words, "--nfes", "4", out=tmp_path / "out", ckpt=[masked])
    after = run("images", *words, "--nfes", "4,8", out=tmp_path / "out", ckpt=[masked])
    assert before.cells[1] in after.cells, "none is made again, and items are kept"
    assert before.cells[1].items[NLL]
    with pytest.raises(SystemExit, match="nll_items: 2 there, 3 now"):
        run("images", *words, "--nll_items", "3", "--nfes", "4", out=tmp_path / "out", ckpt=[masked])


def test_features_are_those_asked_for(models, tmp_path, capsys):
    masked = models("masked")
    words = ["images", "--smoke", "--samplers", "euler", "--ckpt", masked, "--no_progress"]
    main([*words, "--data", "features=null", "--nll_items", "0", "--out", str(tmp_path / "none")])
    results = Results.read(tmp_path / "none")
    assert list(results.scales) == ["brightness_sd", "quiet_luma", "unigram_tv"]
    assert not any(cell.items for cell in results.cells)
    with pytest.raises(SystemExit, match="got 'nonsense'"):
        main([*words, "--data", "features=nonsense", "--out", str(tmp_path / "wrong")])
    assert not (tmp_path / "wrong").exists()


# image_schedules


@pytest.mark.usefixtures("no_figure")
def test_one_masked_network_serves_all_schedules(models, tmp_path):
    masked = models("masked")
    results = run("image_schedules", "--smoke", out=tmp_path / "out", ckpt=[masked])
    likely = values(results, NLL, "schedule", "sampler", "nfe")
    assert {schedule for schedule, _, _ in likely} == {"linear", "quadratic", "cubic", "cosine"}
    of_euler = {value for (_, sampler, nfe), value in likely.items() if (sampler, nfe) == ("euler", 8)}
    assert len(of_euler) == 4, "grids differ"
    ours = [value for (_, sampler, nfe), value in likely.items() if (sampler, nfe) == ("spaced", 8)]
    assert len(ours) == 4
    assert len(set(ours)) == 1, "an order knows no schedule"
    page = (tmp_path / "out" / "results.md").read_text()
    assert page.count("## Is TR-CIE best? (masked)") == 1
    for metric in (NLL, KID, FD16):
        table = page.split(f"| {metric}: schedule | NFE |")[1].split("\n\n")[0]
        assert len(table.splitlines()) == 2 + 4 * 2, "a line for each schedule and budget"


@pytest.mark.usefixtures("no_figure")
def test_a_network_that_reads_time_is_told_that_of_its_own_schedule(models, tmp_path):
    timed = [models("timed", time=True), models("uniform", source="uniform", time=True)]
    results = run("image_schedules", "--smoke", out=tmp_path / "out", ckpt=timed)
    names = {"linear", "quadratic", "cubic", "cosine"}
    likely = values(results, NLL, "schedule", "sampler", "nfe")
    ours = [value for (_, sampler, nfe), value in likely.items() if (sampler, nfe) == ("spaced", 8)]
    assert len(ours) == 4
    assert ours == pytest.approx(ours[:1] * 4, rel=1e-5), "reveals are at the same kappa under each"
    found = values(results, KID, "source", "schedule", "sampler")
    assert {schedule for source, schedule, _ in found if source == "uniform"} == names


@pytest.mark.usefixtures("no_figure")
def test_several_checkpoints_of_a_source_have_each_their_own_schedule(models, tmp_path):
    both = [models(name, source="uniform", schedule=name, time=True) for name in ("linear", "cosine")]
    results = run("image_schedules", "--smoke", out=tmp_path / "out", ckpt=both)
    found = values(results, KID, "source", "schedule", "sampler")
    assert {schedule for _, schedule, _ in found} == {"linear", "cosine"}
    assert not values(results, NLL, "schedule")
    assert "uniform: there is no checkpoint of quadratic, cubic" in results.notes
    assert "## Is TR-CIE best? (uniform)" in (tmp_path / "out" / "results.md").read_text()
    again = models("again", source="uniform", schedule="cosine", time=True)
    with pytest.raises(SystemExit, match="two checkpoints are uniform source, cosine; give --ckpt one of"):
        run("image_schedules", "--smoke", out=tmp_path / "twice", ckpt=[*both, again])


def made(items, kids):
    """Return results under one schedule at NFE 8 by sampler: nll of items, and kid with its error."""
    results = Results("image_schedules", {"samples": 4, "seeds": [0]})
    results.scales = {NLL: Scale(logarithmic=False), KID: Scale(logarithmic=False)}
    for sampler in dict.fromkeys([*items, *kids]):
        factors = {"source": "masked", "schedule": "linear", "sampler": sampler, "nfe": 8, "seed": 0}
        found = {KID: Measured(*kids[sampler])} if sampler in kids else {}
        found |= {NLL: Measured.mean(items[sampler])} if sampler in items else {}
        own = {NLL: items[sampler]} if sampler in items else {}
        results.add(Cell(factors, records(factors, found), items=own))
    return results


def test_the_verdict_is_by_paired_errors():
    """Items differ by 10, samplers by 0.1 on each of them: pairs tell what means cannot."""
    items = {"euler": [1.0, 11.0, 21.0], "tweedie": [1.2, 11.2, 21.3], "tr_cie": [1.11, 11.09, 21.1]}
    items["spaced"] = [0.9, 10.91, 20.9]
    kids = {"euler": (2.0, 0.3), "tweedie": (1.0, 0.3), "tr_cie": (0.5, 0.4), "spaced": (0.1, 0.1)}
    text = STUDIES["image_schedules"].findings(made(items, kids))["Is TR-CIE best? (masked)"]
    assert "generally outperforms the baselines" in text
    assert "| linear | 8 | euler | 0.1000 ± 0.0058 | no | spaced: -0.1967 ± 0.0088 |" in text
    assert "| linear | 8 | tweedie | -0.5000 ± 0.5000 | within noise | spaced: -0.4000 ± 0.4123 |" in text
    text = STUDIES["image_schedules"].findings(made({}, kids | {"tr_cie": (-1.0, 0.4)}))[
        "Is TR-CIE best? (masked)"
    ]
    assert "| linear | 8 | tweedie | -2.000 ± 0.500 | yes | spaced: 1.100 ± 0.412 |" in text


def test_verdicts_without_numbers():
    inf = float("inf")
    items = {"euler": [1.0, 2.0], "tr_cie": [inf, 2.0]}
    text = STUDIES["image_schedules"].findings(made(items, {}))["Is TR-CIE best? (masked)"]
    assert "| linear | 8 | euler | inf | no |  |" in text
    assert verdict([None]) == verdict([Measured(float("nan"))]) == "unknown"
    assert verdict([Measured(-1.0, float("nan"))]) == "within noise", "one item says nothing of noise"


def test_a_verdict_is_on_all_rivals():
    clear, faint = Measured(-1.0, 0.1), Measured(-0.1, 0.1)
    assert verdict([clear, clear]) == "yes"
    assert verdict([clear, faint]) == "within noise", "not below each of them"
    assert verdict([clear, Measured(0.22, 0.1)]) == "within noise", "the best of several is lower by chance"
    assert verdict([clear, Measured(0.26, 0.1)]) == "no"


def test_there_is_no_verdict_without_tr_cie():
    assert STUDIES["image_schedules"].findings(made({"euler": [1.0, 2.0]}, {})) == {}


# image_orders


@pytest.mark.parametrize("tokens", ["rgb", "decorrelated", "grey"])
def test_orders_are_compared_on_the_same_items(models, tmp_path, tokens):
    checkpoint = models("masked", tokens=tokens, labels=True)
    results = run_orders(checkpoint, tmp_path / "out", "--nfes", "4,8", "--nll_items", "3")
    found = values(results, NLL, "tokens", "order", "nfe")
    named = list(dict.fromkeys(order for _, order, _ in found))
    grids = ["one dimension", "3 dimensions", "channels together", "channels apart"]
    if tokens == "grey":
        grids = ["one dimension", "2 dimensions"]
    spaced = [f"{name}, {grid}" for name in ("spaced", "spaced_even") for grid in grids]
    assert named == ["random", "random, growing counts", *spaced]
    page = (tmp_path / "out" / "results.md").read_text()
    assert f"| {tokens}: {NLL} less that of random, paired | 4 | 8 |" in page
    frame = Frame(results, STUDIES["image_orders"].view)
    less = frame.difference(tokens, spaced[0], "random", 8, NLL)
    cells = {cell.factors["order"]: cell.items[NLL] for cell in results.cells if cell.factors["nfe"] == 8}
    by_hand = np.subtract(cells[spaced[0]], cells["random"])
    assert less.value == pytest.approx(by_hand.mean())
    assert less.standard_error == pytest.approx(by_hand.std(ddof=1) / 3**0.5)


def run_orders(checkpoint, out, *words):
    main(["image_orders", "--out", str(out), "--ckpt", checkpoint, "--no_progress", *words])
    return Results.read(out)


@pytest.mark.usefixtures("no_figure")
def test_an_order_is_measured_by_tauflow_nll(models, tmp_path, monkeypatch):
    """By hand: the same items and seeds with channels that are said to be apart."""
    from benchmarks.studies import study
    from tauflow.evaluation.evaluate import Sampling

    checkpoint = models("masked", tokens="decorrelated")
    results = run_orders(checkpoint, tmp_path / "out", "--nfes", "8", "--nll_items", "3")
    trained = study.load(checkpoint, data={})
    trained.task.setup("validate")
    tokens = torch.stack([trained.task.val_data[number]["tokens"].flatten() for number in range(3)]).long()
    apart = dataclasses.replace(trained.model, channels="apart")
    nats = tauflow.nll(apart, "spaced", 8, tokens, seed=Sampling().generator_for(0))
    bits = (nats / trained.task.length / np.log(2)).tolist()
    (cell,) = (cell for cell in results.cells if cell.factors["order"] == "spaced, channels apart")
    assert cell.items[NLL] == pytest.approx(bits)
    together = next(cell for cell in results.cells if cell.factors["order"] == "spaced, channels together")
    assert together.items[NLL] != pytest.approx(bits)


@pytest.mark.usefixtures("no_figure")
def test_orders_need_masks_and_one_checkpoint_of_a_kind(models, tmp_path):
    uniform = models("uniform", source="uniform")
    with pytest.raises(SystemExit, match="the likelihood needs a masked source"):
        run_orders(uniform, tmp_path / "out")
    words = ["image_orders", "--out", str(tmp_path / "out"), "--ckpt", models("a"), models("b")]
    with pytest.raises(SystemExit, match="two checkpoints have grey tokens"):
        main(words)
    assert not (tmp_path / "out").exists()


def test_a_network_of_the_channels_is_not_touched():
    model = tauflow.Model(
        lambda x, t: torch.zeros(*x.shape, V), tauflow.Mixture(tauflow.Masked(V), "linear"), (4, 4)
    )
    assert {seen.shape for _, seen in orders(model).values()} == {(4, 4), (16,)}


# Differences


def test_differences_of_several_seeds_are_over_items():
    """Two seeds see the same items: their sets differ, the items are no new ones."""
    results = Results("image_orders", {}, scales={NLL: Scale(logarithmic=False)})
    numbers = {"random": ([1.0, 2.0], [3.0, 4.0]), "spaced": ([0.5, 1.0], [2.5, 2.0])}
    for order, seeds in numbers.items():
        for seed, items in enumerate(seeds):
            factors = {"tokens": "grey", "order": order, "nfe": 8, "seed": seed}
            results.add(Cell(factors, records(factors, {NLL: Measured.mean(items)}), items={NLL: items}))
    view = STUDIES["image_orders"].view
    drawn = Frame(with_differences(results, view), view)
    assert drawn.metrics() == [NLL, f"{NLL} less random"]
    found = drawn.measured("grey", "spaced", 8, f"{NLL} less random")
    assert (found.value, found.standard_error) == pytest.approx((-1.0, 0.5))  # -0.5 and -1.5
    assert drawn.measured("grey", "random", 8, f"{NLL} less random").value == 0


def test_pages_show_differences_and_findings(tmp_path):
    items = {"euler": [1.0, 11.0], "tr_cie": [1.5, 11.7]}
    made(items, {"euler": (2.0, 0.3), "tr_cie": (1.0, 0.4)}).save(tmp_path / "folder")
    place = '<!-- table folder "masked, linear" {} less=euler -->\n<!-- end -->\n'
    assert "| masked, linear: nll_bits_per_dim less that of euler, paired | 8 |" in filled(
        place.format(NLL), tmp_path
    )
    assert "| tr_cie | 0.6000 ± 0.1000 |" in filled(place.format(NLL), tmp_path)
    by_kid = filled(place.format(KID), tmp_path)
    assert f"| masked, linear: {KID} less that of euler | 8 |" in by_kid
    assert "| tr_cie | -1.000 ± 0.500 |" in by_kid
    finding = '<!-- finding folder "Is TR-CIE best? (masked)" -->\n<!-- end -->\n'
    assert "| linear | 8 | euler | 0.6000 ± 0.1000 | no |  |" in filled(finding, tmp_path)
    assert filled(filled(finding, tmp_path), tmp_path) == filled(finding, tmp_path)
    with pytest.raises(TauflowError, match="no kid_Shades of masked, linear for tweedie"):
        filled(place.format(KID).replace("less=euler", "less=tweedie"), tmp_path)
