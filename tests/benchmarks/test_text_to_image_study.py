"""Studies of scenes with captions, on untrained networks: what they measure, choose, show and conclude."""

import pytest
import torch
from helpers import values
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

import tauflow
from benchmarks.studies import STUDIES
from benchmarks.studies.command import main
from benchmarks.studies.study import Settings, records
from benchmarks.studies.text_to_image import CHOICE_PROMPTS
from tauflow.errors import SettingsError
from tauflow.evaluation.results import REAL, Cell, Measured, Results, Scale
from tauflow.networks import TransformerConfig
from tauflow.process import Metric, source_from
from tauflow.tasks import Countdown, Scenes
from tauflow.train import Trained

SIZE = 6


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Return what makes files that stand for checkpoints; each loads a model and its task."""

    def make(source):
        (tmp_path / source).write_text(source)
        return str(tmp_path / source)

    def load(path, data):
        name = path.name
        if name == "countdown":
            return Trained(
                tauflow.Model(
                    lambda x, t: torch.zeros(*x.shape, 4), tauflow.Mixture(tauflow.Masked(4), "linear"), (6,)
                ),
                Countdown(6, 4),
            )
        task = Scenes(SIZE, val_items=1106, **data)
        if name == "metric":
            process = Metric(task.codebook())
        else:
            process = tauflow.Mixture(source_from(name, task.num_tokens), "linear")
        config = TransformerConfig(16, 1, 2, condition="tokens", time=name != "masked")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = config.build(task.shape, process.num_states, task.num_tokens, task.conditions)
            nn.init.normal_(network.output.weight, std=0.3)
        return Trained(tauflow.Model(network, process, task.shape), task)

    monkeypatch.setattr("benchmarks.studies.study.load", load)
    monkeypatch.setattr("benchmarks.studies.report.panels_figure", lambda *arguments: Figure())
    return make


def run(name, *words, out, ckpt):
    main([name, "--smoke", "--out", str(out), "--ckpt", *ckpt, "--no_progress", *words])
    return Results.read(out)


def test_text_to_image_measures_every_process(models, tmp_path):
    ckpt = [models(source) for source in ("masked", "uniform", "metric")]
    samplers = ("--samplers", "euler,tr_cie,spaced,bridge", "--nfes", "8")
    results = run("text_to_image", *samplers, "--guidance", "2,1,1", out=tmp_path / "out", ckpt=ckpt)
    strict = values(results, "strict", "source", "rates", "sampler", "nfe")
    cells = {each[:3] for each in strict if each[3] == 8}
    assert ("masked", None, "spaced") in cells
    assert ("uniform", None, "bridge") in cells
    assert {("metric", "metric", "tr_cie"), ("metric", "mixture", "tr_cie")} <= cells
    assert ("metric", "metric", "bridge") not in cells  # it needs a mixture, which the surrogate is
    assert ("metric", "mixture", "bridge") in cells
    assert strict["masked", None, REAL, None] == 1
    ceilings = {each for each in strict if each[3] == SIZE**2}
    assert ("masked", None, "fhs", SIZE**2) in ceilings
    assert ("uniform", None, "tweedie", SIZE**2) in ceilings
    assert len(ceilings) == 4
    forwards = values(results, "forwards", "source", "rates", "sampler", "nfe")
    assert forwards["masked", None, "euler", 8] == 16  # guidance doubles them
    assert forwards["uniform", None, "euler", 8] == 8
    page = (tmp_path / "out" / "results.md").read_text()
    assert "masked, guidance 2, strict, tr_cie: NFE | best of the others" in page
    assert "| TR-CIE | 53.05 | 64.27 | 66.08 | 69.59 |" in page  # what the paper reports
    assert "masked, guidance 2: strict less that of euler, paired" in page
    paired = next(cell for cell in results.cells if cell.factors["sampler"] == "euler")
    assert len(paired.items["strict"]) == 12
    assert sum(paired.items["strict"]) / 12 == pytest.approx(strict["masked", None, "euler", 8], abs=1e-5)
    with Image.open(tmp_path / "out" / "pictures.png") as picture:
        assert picture.width > 8 * 64


def test_guidance_is_chosen_on_prompts_of_its_own(models, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Scenes, "sample_conditions", watched(Scenes.sample_conditions, seen))
    words = ("--guidance", "1,3", "--nfes", "2")
    results = run("guidance", *words, out=tmp_path / "out", ckpt=[models("uniform")])
    strict = values(results, "strict", "sampler", "guidance")
    assert set(strict) == {("tweedie", 1), ("tweedie", 3), (REAL, 1), (REAL, 3)}
    forwards = values(results, "forwards", "sampler", "guidance")
    assert (forwards["tweedie", 1], forwards["tweedie", 3]) == (2, 4)
    assert set(seen) == {CHOICE_PROMPTS}
    assert Scenes().prompts != Scenes(prompt_seed=CHOICE_PROMPTS).prompts


def watched(method, seen):
    def call(self, *arguments, **options):
        seen.append(self.prompt_seed)
        return method(self, *arguments, **options)

    return call


@pytest.mark.parametrize(
    ("words", "ckpt", "message"),
    [
        (["--guidance", "1,2"], ["masked"], "2 weights for 1 models"),
        (["--guidance", "1,x"], ["masked"], "not a list of weights"),
        ([], ["countdown"], "needs a checkpoint of scenes"),
        ([], [], "needs --ckpt"),
        (["--judge", "ngram"], ["masked"], "no use for --judge"),
    ],
)
def test_refused(models, tmp_path, capsys, words, ckpt, message):
    named = ["--ckpt", *(models(each) for each in ckpt)] if ckpt else []
    with pytest.raises(SystemExit) as stop:
        main(["text_to_image", "--smoke", "--out", str(tmp_path / "out"), *named, *words])
    assert message in f"{stop.value} {capsys.readouterr().err}"


def test_other_studies_have_no_guidance(tmp_path):
    with pytest.raises(SystemExit, match="no use for --guidance"):
        main(["countdown", "--smoke", "--out", str(tmp_path), "--guidance", "2"])


def test_the_best_rival_is_the_one_that_tr_cie_is_farthest_behind():
    scales = {"strict": Scale(True, False)}
    shares = {"euler": 0.4, "theta_rk2": 0.6, "tr_cie": 0.5, "spaced": 0.9}
    cells = []
    for sampler, share in shares.items():
        factors = {"source": "masked", "guidance": 1.0, "sampler": sampler, "nfe": 8, "seed": 0}
        cells.append(Cell(factors, records(factors, {"strict": Measured(share, 0.01)})))
    results = Results("text_to_image", {"samples": 4, "seeds": [0]}, cells=cells, scales=scales)
    text = STUDIES["text_to_image"].findings(results)["Is TR-CIE first?"]
    line = next(line for line in text.splitlines() if line.startswith("| 8 |"))
    assert line == "| 8 | theta_rk2 | -0.1000 ± 0.0141 | no | spaced: 0.4000 ± 0.0141 |"
    cells[2] = Cell(cells[2].factors, records(cells[2].factors, {"strict": Measured(0.8, 0.01)}))
    text = STUDIES["text_to_image"].findings(results)["Is TR-CIE first?"]
    assert "| 8 | theta_rk2 | 0.2000 ± 0.0141 | yes | spaced: 0.1000 ± 0.0141 |" in text


def test_a_checkpoint_of_no_scenes_is_named(models):
    study = STUDIES["guidance"]
    with pytest.raises(SettingsError, match="this one is of Countdown"):
        _ = study(settings(models("countdown"))).loaded


def settings(*paths):
    return Settings(samples=2, seeds=(0,), nfes=(2,), samplers=("euler",), checkpoints=paths, guidance=(1.0,))
