"""Studies: each runs, resumes where it was stopped, and the pages show the numbers of the committed result files."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import tauflow
from tauflow.errors import SettingsError, TauflowError
from tauflow.runs import SHIPPED, load
from tauflow.schedules import schedule_from
from tauflow.studies import STUDIES
from tauflow.studies.__main__ import main
from tauflow.studies.base import Job, Record, Results, Settings, Study, run
from tauflow.studies.pages import filled
from tauflow.studies.report import figure, save, table
from tauflow.studies.theory import with_schedule
from tauflow.tables import Measured

ROOT = Path(__file__).parents[1]
FILES = ["figure.png", "results.csv", "results.json", "results.md"]


@pytest.fixture(scope="module")
def checkpoint(trained) -> str:
    return str(trained / "best.ckpt")


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "text"])
def test_smoke(name, checkpoint, tmp_path, capsys):
    models = [] if "checkpoints" in STUDIES[name].ignores else ["--ckpt", checkpoint]
    main([name, "--smoke", "--out", str(tmp_path), *models, "--no_progress"])
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    results = Results.read(tmp_path)
    assert results.study == name
    assert {record.metric for record in results.records} & set(STUDIES[name].shown)
    printed = capsys.readouterr().out
    for panel in results.panels():
        assert f"| {panel}: " in printed
    assert len((tmp_path / "results.csv").read_text().splitlines()) == len(results.records) + 1


class Counting(Study):
    """Counts its own calls."""

    seeds = (0, 1)
    shown = ("calls",)

    def __init__(self, settings, stop_at=99):
        super().__init__(settings)
        self.calls, self.stop_at = [], stop_at

    def jobs(self):
        return [Job("panel", "row", nfe, seed) for nfe in self.settings.nfes for seed in self.settings.seeds]

    def measure(self, job):
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append(job)
        return self.record(job, {"calls": Measured(job.x + job.seed, 0.5)})


SETTINGS = Settings(samples=4, seeds=(0, 1), nfes=(8, 16))


def test_an_interrupted_study_goes_on_where_it_stopped(tmp_path):
    first = Counting(SETTINGS, stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        run(first, tmp_path, progress=False)
    second = Counting(SETTINGS)
    results = run(second, tmp_path, progress=False)
    assert first.calls + second.calls == first.jobs()
    assert [(record.x, record.seed) for record in results.records] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    assert run(Counting(SETTINGS, stop_at=0), tmp_path, progress=False).records == results.records  # nothing is left to do


def test_other_settings_are_refused(tmp_path):
    run(Counting(SETTINGS), tmp_path, progress=False)
    with pytest.raises(SettingsError, match=r"samples: 4 there, 5 now.*--out"):
        run(Counting(Settings(samples=5, seeds=(0, 1), nfes=(8, 16))), tmp_path, progress=False)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(TauflowError, match="choose another --out"):
        run(Counting(SETTINGS), tmp_path, progress=False)


def test_more_budgets_and_samplers_are_added_to_what_is_there(checkpoint, tmp_path, capsys):
    common = ["countdown", "--ckpt", checkpoint, "--samples", "2", "--seeds", "0", "--no_progress", "--out", str(tmp_path)]
    main([*common, "--samplers", "euler,tr_cie", "--nfes", "3"])
    before = Results.read(tmp_path).records
    main([*common, "--samplers", "euler,fhs", "--nfes", "3,5"])
    results = Results.read(tmp_path)
    assert results.records[: len(before)] == before  # none is made again
    cells = {(each.row, each.x) for each in results.records} - {("(real data)", 3), ("(real data)", 5)}
    assert cells == {("euler", 3), ("tr_cie", 3), ("fhs", 3), ("euler", 5), ("fhs", 5)}
    assert (results.settings["samplers"], results.settings["nfes"]) == (["euler", "tr_cie", "fhs"], [3, 5])
    assert [command.split("--samplers ")[1] for command in results.commands] == ["euler,tr_cie --nfes 3", "euler,fhs --nfes 3,5"]
    page = (tmp_path / "results.md").read_text()
    assert all(command in page for command in results.commands)
    assert "| tr_cie |" in page
    with pytest.raises(SystemExit, match=r"seeds: .*0.* there, .*1.* now"):
        main([*common, "--samplers", "euler", "--nfes", "3", "--seeds", "0,1"])
    run(Counting(SETTINGS), tmp_path / "counting", progress=False)
    with pytest.raises(SettingsError, match=r"nfes: .*8, 16.* there, .*8.* now"):  # a study whose jobs may look at all budgets
        run(Counting(Settings(samples=4, seeds=(0, 1), nfes=(8,))), tmp_path / "counting", progress=False)


def test_seeds_are_pooled(tmp_path):
    results = run(Counting(SETTINGS), tmp_path, progress=False)
    found = results.measured("panel", "row", 8, "calls")
    assert found.value == 8.5
    assert found.standard_error == pytest.approx(0.5 / 2**0.5)  # of two equally precise, independent means
    assert "| row | 8.500 ± 0.354 | 16.5 ± 0.4 |" in table(results, "panel", "calls")


def test_ratios_and_choices_of_a_table():
    records = [Record("p", row, x, 0, "m", value * x, 0.0) for row, value in (("a", 2.0), ("b", 3.0)) for x in (1, 2)]
    results = Results("s", {}, records)
    assert table(results, "p", "m", xs=[2], rows=["b"], ratio="a").splitlines()[-1] == "| b | 1.500 |"
    for wrong, name in (({"rows": ["c"]}, "c"), ({"ratio": "d"}, "d"), ({"xs": [2, 3]}, "3")):
        with pytest.raises(TauflowError, match=f"has no m of p for {name}$"):
            table(results, "p", "m", **wrong)
    with pytest.raises(TauflowError, match=r"has no other of p for a$"):
        table(results, "p", "other", rows=["a"], xs=[])


def test_ratios_have_errors():
    """Of two independent means: the relative errors add in squares."""
    results = Results("s", {}, [Record("p", "a", 1, 0, "m", 10.0, 0.3), Record("p", "b", 1, 0, "m", 5.0, 0.2)])
    assert table(results, "p", "m", ratio="a").splitlines()[-2:] == ["| a | 1.000 |", "| b | 0.500 ± 0.025 |"]


def test_counts_and_intervals_are_kept_and_patterns_show_every_judge(tmp_path):
    study = Counting(SETTINGS)
    study.shown = ("ppl_*",)
    results = Results("counting", {})
    for seed, count in ((0, 90.0), (1, 110.0)):
        job, measured = Job("panel", "row", 8, seed), Measured(7.0, 0.5, 6.0, 8.5, count)
        results.add(job, study.record(job, {"ppl_a": measured, "ppl_b": measured, "other": Measured(1.0, 0.0)}))
        results.add(Job("panel", "(real data)", 8, seed), study.record(job._replace(row="(real data)"), {"ppl_a": Measured(0.5, 0.1)}))
    save(study, results, tmp_path, "the command")
    again = Results.read(tmp_path)
    assert again.records == results.records
    assert again.measured("panel", "row", 8, "ppl_a").count == 200
    assert "panel,row,8,0,ppl_a,7.0,0.5,6.0,8.5,90.0" in (tmp_path / "results.csv").read_text().splitlines()
    page = (tmp_path / "results.md").read_text()
    assert "Each number is of 90 to 110 judged tokens a seed." in page
    assert "ppl_b" in page
    assert "other" not in page
    place = figure(study, results).axes[0]
    (real,) = (line for line in place.lines if line.get_label() == "(real data)")
    assert place.get_ylim()[0] < real.get_ydata()[0] < place.get_ylim()[1], "real data is in the picture, however far away"


def test_not_a_number_survives_the_file(tmp_path):
    Results("s", {}, [Record("p", "r", 1, 0, "m", float("nan"), float("nan"))]).save(tmp_path)
    assert "NaN" not in (tmp_path / "results.json").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["records"] == [["p", "r", 1, 0, "m", None, None, None, None, None]]
    assert Results.read(tmp_path).records[0].value != Results.read(tmp_path).records[0].value


def test_a_translated_model_sees_its_own_times(trained):
    """A time of the other schedule becomes the one with the same kappa."""
    run = load(trained / "best.ckpt")
    seen = []

    class Spy(tauflow.Denoiser):
        def evaluate(self, x, t):
            seen.append(t)
            return run.denoiser.evaluate(x, t)

    spied = with_schedule(dataclasses.replace(run, denoiser=Spy()), schedule_from("linear"))
    spied.denoiser.evaluate(torch.zeros(1, 16, dtype=torch.long), torch.tensor([0.25]))
    torch.testing.assert_close(seen[0], torch.tensor([0.5]))  # trained with kappa = t^2


def test_bad_requests(checkpoint, tmp_path, capsys):
    with pytest.raises(SystemExit, match="two checkpoints have a masked source"):
        main(["countdown", "--smoke", "--out", str(tmp_path / "a"), "--ckpt", checkpoint, checkpoint])
    with pytest.raises(SystemExit, match="whole numbers"):
        main(["countdown", "--nfes", "0", "--out", str(tmp_path / "b"), "--ckpt", checkpoint])
    with pytest.raises(SystemExit, match="unknown sampler 'nonsense'"):
        main(["countdown", "--smoke", "--samplers", "nonsense", "--out", str(tmp_path / "c"), "--ckpt", checkpoint])
    with pytest.raises(SystemExit, match="--samples, --batch_size and --nfes"):
        main(["countdown", "--samples", "0", "--out", str(tmp_path / "d"), "--ckpt", checkpoint])
    with pytest.raises(SystemExit, match="text needs --ckpt"):
        main(["text", "--smoke", "--out", str(tmp_path / "e")])
    with pytest.raises(SystemExit, match="the study order has no use for --ckpt"):
        main(["order", "--out", str(tmp_path / "f"), "--ckpt", checkpoint])
    with pytest.raises(SystemExit, match="the law of tweedie cannot be computed on the oracle"):
        main(["order", "--smoke", "--samplers", "tweedie", "--out", str(tmp_path / "g")])
    with pytest.raises(SystemExit, match="from --nfes 3 on"):
        main(["hamming", "--smoke", "--nfes", "2,4", "--out", str(tmp_path / "h"), "--ckpt", checkpoint])
    with pytest.raises(SystemExit, match=r"countdown model: seeds x contexts need \d+ items, there are 12; lower them"):
        main(["dependence", "--samples", "4", "--seeds", "4", "--out", str(tmp_path / "i"), "--ckpt", checkpoint])
    with pytest.raises(SystemExit, match="this model has a uniform source"):
        main(["dependence", "--smoke", "--out", str(tmp_path / "j"), "--ckpt", str(SHIPPED / "countdown_uniform.ckpt")])
    with pytest.raises(SystemExit):
        main(["nonsense", "--out", str(tmp_path)])
    assert "countdown" in capsys.readouterr().err


PAGES = sorted([*(ROOT / "docs" / "results").glob("*.md"), ROOT / "docs" / "choosing-a-sampler.md", ROOT / "README.md"])


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_show_the_committed_numbers(page):
    """Written anew with `python -m tauflow.studies.pages PAGE`."""
    assert filled(page.read_text(), page.parent) == page.read_text()


def test_a_page_with_an_old_number_is_found(tmp_path):
    Results("s", {}, [Record("p", "r", 1, 0, "m", 0.25, 0.0)]).save(tmp_path / "folder")
    page = '<!-- table folder "p" m -->\n\n| p: m | 1 |\n|---|---|\n| r | 0.3500 |\n\n<!-- end -->\n'
    assert "| r | 0.2500 |" in filled(page, tmp_path)
    assert filled(filled(page, tmp_path), tmp_path) == filled(page, tmp_path)


def test_committed_figures_and_results_belong_together():
    folders = [path.parent for path in (ROOT / "docs" / "results").rglob("results.json")]
    for folder in folders:
        assert set(FILES) <= {path.name for path in folder.iterdir()}, folder
