"""Studies: each runs and resumes where it was stopped, and pages show the numbers of the committed files."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
import torch

import tauflow
from tauflow.denoise.denoiser import Wrapper
from tauflow.errors import SettingsError, TauflowError
from tauflow.evaluation.store import REAL, Cell, Measured, Record, Results, Scale
from tauflow.evaluation.tables import to_csv
from tauflow.evaluation.views import Frame, View
from tauflow.process import schedule_from
from tauflow.samplers import sampler_from
from tauflow.studies import STUDIES
from tauflow.studies.__main__ import main, parser, settings_from
from tauflow.studies.base import Settings, Study, records
from tauflow.studies.beyond import variants
from tauflow.studies.models import tr_cie_variants
from tauflow.studies.pages import filled
from tauflow.studies.report import save, to_markdown
from tauflow.studies.theory import with_schedule
from tauflow.train import SHIPPED

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
FILES = ["figure.png", "results.csv", "results.json", "results.md"]
FOLDERS = sorted(
    path.parent for path in RESULTS.rglob("results.json") if Results.read(path.parent).name in STUDIES
)


@pytest.fixture(scope="module")
def checkpoint(trained) -> str:
    return str(trained / "best.ckpt")


QUICK = [name for name in STUDIES if name not in ("text", "laws", "dependence")]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("laws", "dependence")]  # they learn orders


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_smoke(name, checkpoint, tmp_path, capsys):
    study = STUDIES[name]
    models = [] if "checkpoints" in study.ignores else ["--ckpt", checkpoint]
    main([name, "--smoke", "--out", str(tmp_path), *models, "--no_progress"])
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    results = Results.read(tmp_path)
    assert results.name == name
    assert results.scales
    printed = capsys.readouterr().out
    frame = Frame(results, study.view)
    for panel in frame.panels:
        assert f"| {panel}: " in printed
    for record in results.records:
        if record.metric in results.scales and record.factors.get("sampler") != REAL:
            named = {study.view.x, *study.view.row, *study.view.panel}
            assert named <= set(record.factors), "the view has no gaps"
    assert len((tmp_path / "results.csv").read_text().splitlines()) == len(results.records) + 1


class Counting(Study):
    """Counts its own calls."""

    seeds = (0, 1)
    view = View(row=("sampler",), panel=("source",))

    def __init__(self, settings, stop_at=99):
        super().__init__(settings)
        self.calls = []
        self.stop_at = stop_at

    def paths(self):
        return []

    def scales(self):
        return {"calls": Scale()}

    def cells(self):
        nfes, seeds = self.settings.nfes, self.settings.seeds
        return [
            {"source": "masked", "sampler": "tr", "nfe": nfe, "seed": seed} for nfe in nfes for seed in seeds
        ]

    def measure(self, factors):
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append(factors)
        return Cell(factors, records(factors, {"calls": Measured(factors["nfe"] + factors["seed"], 0.5)}))


SETTINGS = Settings(samples=4, seeds=(0, 1), nfes=(8, 16))


def test_an_interrupted_study_resumes_where_it_stopped(tmp_path):
    first = Counting(SETTINGS, stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        first.run(tmp_path)
    second = Counting(SETTINGS)
    results = second.run(tmp_path)
    assert first.calls + second.calls == first.cells()
    found = [(record.factors["nfe"], record.factors["seed"]) for record in results.records]
    assert found == [(8, 0), (8, 1), (16, 0), (16, 1)]
    assert Counting(SETTINGS, stop_at=0).run(tmp_path).records == results.records, "nothing is left to do"


def test_other_settings_are_refused(tmp_path):
    Counting(SETTINGS).run(tmp_path)
    with pytest.raises(SettingsError, match=r"samples: 4 there, 5 now.*--out"):
        Counting(dataclasses.replace(SETTINGS, samples=5)).run(tmp_path)
    with pytest.raises(SettingsError, match=r"nfes: .*8, 16.* there, .*8.* now"):
        Counting(dataclasses.replace(SETTINGS, nfes=(8,))).run(tmp_path)  # its cells may look at all budgets
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(TauflowError, match="choose another folder"):
        Counting(SETTINGS).run(tmp_path)


def test_a_replaced_model_is_refused(tmp_path):
    model = tmp_path / "model.ckpt"

    class OnFile(Counting):
        def paths(self):
            return [model]

    model.write_text("old weights")
    OnFile(SETTINGS).run(tmp_path / "out")
    model.write_text("new weights")
    with pytest.raises(SettingsError, match="sha256"):
        OnFile(SETTINGS).run(tmp_path / "out")


def test_more_budgets_and_samplers_are_added_to_what_is_there(checkpoint, tmp_path, capsys):
    common = ["countdown", "--ckpt", checkpoint, "--samples", "2", "--seeds", "0", "--no_progress"]
    common += ["--out", str(tmp_path)]
    main([*common, "--samplers", "euler,tr_cie(grid=tau, coins=systematic)", "--nfes", "3"])
    before = {repr(record) for record in Results.read(tmp_path).records}
    main([*common, "--samplers", "euler,fhs", "--nfes", "3,5"])
    results = Results.read(tmp_path)
    after = [repr(record) for record in results.records]
    assert before <= set(after), "none is made again"
    assert len(after) == len(set(after))
    variant = "tr_cie(grid=tau, coins=systematic)"
    cells = {(each.factors["sampler"], each.factors.get("nfe")) for each in results.records}
    assert cells == {("euler", 3), (variant, 3), ("fhs", 3), ("euler", 5), ("fhs", 5), (REAL, None)}
    assert results.settings["samplers"] == ["euler", variant, "fhs"]
    assert results.settings["nfes"] == [3, 5]
    given = [shlex.split(command)[-3:] for command in results.commands]
    assert given == [[f"euler,{variant}", "--nfes", "3"], ["euler,fhs", "--nfes", "3,5"]]
    page = (tmp_path / "results.md").read_text()
    assert all(command in page for command in results.commands)
    assert f"| {variant} |" in page
    with pytest.raises(SystemExit, match=r"seeds: .*0.* there, .*1.* now"):
        main([*common, "--samplers", "euler", "--nfes", "3", "--seeds", "0,1"])


def test_skipped_samplers_are_noted(checkpoint, tmp_path, capsys):
    places = ("--ckpt", checkpoint, "--out", str(tmp_path))
    main(["countdown", "--smoke", "--samplers", "beyond", *places, "--no_progress"])
    notes = [note for note in Results.read(tmp_path).notes if "skipped" in note]
    assert {note.split(" ")[0] for note in notes} == {"bridge", "bridge_systematic", "learned_order"}
    assert all(f"- {note}\n" in (tmp_path / "results.md").read_text() for note in notes)


def test_a_number_follows_from_the_seed_alone(checkpoint):
    """No cell depends on what was measured before it: a resumed study has the numbers of one that was not."""
    settings = Settings(
        samples=3, seeds=(0, 1), nfes=(3, 4), samplers=("euler", "spaced"), checkpoints=(checkpoint,)
    )
    first, second = (STUDIES["countdown"](settings) for _ in range(2))
    forwards = [first.measure(factors) for factors in first.cells()]
    backwards = [second.measure(factors) for factors in reversed(second.cells())]
    assert list(map(repr, forwards)) == list(map(repr, backwards[::-1]))
    found: dict[tuple, list[float]] = {}
    for record in (record for cell in forwards for record in cell.records if record.metric == "unigram_tv"):
        row = record.factors["sampler"], record.factors.get("nfe")
        found.setdefault(row, []).append(record.measured.value)
    assert len(found) == 5  # two samplers at two budgets, and real data
    assert all(len(set(values)) == 2 for values in found.values()), (
        "each seed has samples and items of its own"
    )


def test_counts_patterns_and_real_data_are_in_the_report(tmp_path):
    scales = {"ppl_a": Scale(), "ppl_b": Scale()}
    results = Results("text", {"samples": 4, "seeds": [0, 1]}, scales=scales)
    for seed, count in ((0, 90.0), (1, 110.0)):
        factors = {"source": "masked", "sampler": "tr", "nfe": 8, "seed": seed}
        measured = Measured(7.0, 0.5, 6.0, 8.5, count)
        results.add(
            Cell(factors, records(factors, {"ppl_a": measured, "ppl_b": measured, "other": Measured(1.0)}))
        )
        real = {"source": "masked", "sampler": REAL, "seed": seed}
        results.add(Cell(real, records(real, {"ppl_a": Measured(0.5, 0.1)})))
    save(STUDIES["text"], results, tmp_path, "the command")
    assert Results.read(tmp_path).records == results.records
    assert "masked,tr,8,0,ppl_a,7.0,0.5,6.0,8.5,90.0" in (tmp_path / "results.csv").read_text().splitlines()
    page = (tmp_path / "results.md").read_text()
    assert "```bash\nthe command\n```" in page
    assert "4 samples of each of 2 seeds" in page
    assert "Each number is of 90 to 110 judged tokens per seed." in page
    assert "| (real data) | 0.5000 ± 0.0707 |" in page
    assert "ppl_b" in page
    assert "other" not in page


def test_variants_are_specs_that_differ():
    """Rows are named by what can be typed again, and no two rows are one sampler."""
    for source in (tauflow.Masked(4), tauflow.Uniform(4)):
        process = tauflow.Mixture(source, "linear")
        found = variants(tauflow.Model(lambda x, t: torch.zeros(*x.shape, 4), process, (8,)))
        assert all(sampler_from(spec) == sampler for spec, sampler in found.items())
        assert len(set(found.values())) == len(found)
        tuned = STUDIES["tuned"].reveals if process.absorbing else STUDIES["tuned"].bridges
        assert set(tuned) <= set(found), "what is reported was tuned"
    samplers = [sampler_from(spec) for spec in tr_cie_variants()]
    # 2 grids x 2 jumps x 2 finishes x 2 cutoffs, less 2 without
    assert len(set(samplers)) == len(samplers) == 14


def test_a_translated_model_sees_its_own_times(checkpoint):
    """A time of the other schedule becomes the one with the same kappa."""
    trained = tauflow.load(checkpoint)
    seen = []

    class Spy(Wrapper):
        def evaluate(self, x, t, condition=None):
            seen.append(t)
            return self.denoiser.evaluate(x, t, condition)

    model = dataclasses.replace(trained.model, denoiser=Spy(trained.model.denoiser))
    spied = with_schedule(dataclasses.replace(trained, model=model), schedule_from("linear"))
    spied.model.denoiser.evaluate(torch.zeros(1, 16, dtype=torch.long), torch.tensor([0.25]))
    torch.testing.assert_close(seen[0], torch.tensor([0.5]))  # trained with kappa = t^2
    assert spied.model.process.schedule == schedule_from("linear")


def test_bad_requests(checkpoint, tmp_path, capsys):
    def refused(match: str, *words: str) -> None:
        with pytest.raises(SystemExit, match=match):
            main([*words, "--out", str(tmp_path / "out")])
        assert not (tmp_path / "out" / "results.json").exists()

    ckpt = ("--ckpt", checkpoint)
    uniform = str(SHIPPED / "countdown_uniform.ckpt")
    refused("two checkpoints have a masked source", "countdown", "--smoke", *ckpt, checkpoint)
    refused("whole numbers", "countdown", "--nfes", "0", *ckpt)
    refused("unknown sampler 'nonsense'", "countdown", "--smoke", "--samplers", "nonsense", *ckpt)
    refused("bridge.*masked", "countdown", "--smoke", "--samplers", "bridge", *ckpt)
    refused("--samples, --batch_size and --nfes", "countdown", "--samples", "0", *ckpt)
    refused("text needs --ckpt", "text", "--smoke")
    refused("the study order has no use for --ckpt", "order", *ckpt)
    refused("has no use for --samplers", "tuning", "--smoke", "--samplers", "euler", *ckpt)
    refused(
        "the law of tweedie cannot be computed on the oracle", "order", "--smoke", "--samplers", "tweedie"
    )
    refused("from --nfes 3 on", "hamming", "--smoke", "--nfes", "2,4", *ckpt)
    refused(r"countdown model: seeds x contexts need \d+ items of 12", "dependence", "--seeds", "4", *ckpt)
    refused("this model has a uniform source", "dependence", "--smoke", "--ckpt", uniform)
    with pytest.raises(SystemExit):
        main(["nonsense", "--out", str(tmp_path)])
    assert "countdown" in capsys.readouterr().err


# The committed results


PAGES = sorted([*RESULTS.glob("*.md"), ROOT / "docs" / "choosing-a-sampler.md", ROOT / "README.md"])


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.exists()], ids=lambda page: str(page.relative_to(ROOT))
)
def test_pages_show_the_committed_numbers(page):
    """Written anew with `python -m tauflow.studies.pages PAGE`."""
    assert filled(page.read_text(), page.parent) == page.read_text()


def test_a_page_with_an_old_number_is_found(tmp_path):
    factors = {"source": "masked", "sampler": "tr", "nfe": 8}
    Results("countdown", {}, [Cell(factors, records(factors, {"m": Measured(0.25)}))]).save(
        tmp_path / "folder"
    )
    page = (
        '<!-- table folder "masked" m -->\n\n| masked: m | 8 |\n|---|---|\n| tr | 0.3500 |\n\n<!-- end -->\n'
    )
    assert "| tr | 0.2500 |" in filled(page, tmp_path)
    assert filled(filled(page, tmp_path), tmp_path) == filled(page, tmp_path)
    with pytest.raises(TauflowError, match="no m of masked for euler"):
        filled(page.replace(" m -->", " m rows=euler -->"), tmp_path)
    with pytest.raises(SettingsError, match="a folder, a panel and a metric"):
        filled(page.replace(" m -->", " m row=tr -->"), tmp_path)


def test_a_row_of_a_page_may_be_a_spec(tmp_path):
    factors = {"source": "masked", "sampler": "tr_cie(grid=tau)", "nfe": 8}
    Results("countdown", {}, [Cell(factors, records(factors, {"m": Measured(0.5)}))]).save(
        tmp_path / "folder"
    )
    page = '<!-- table folder masked m rows="tr_cie(grid=tau)" ratio="tr_cie(grid=tau)" -->\n<!-- end -->\n'
    assert "| tr_cie(grid=tau) | 1.000 |" in filled(page, tmp_path)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_committed_files_belong_together(folder):
    """Written anew with `save(STUDIES[results.name], results, folder)`."""
    results = Results.read(folder)
    assert set(FILES) <= {path.name for path in folder.iterdir()}
    assert (folder / "results.csv").read_text() == to_csv(results)
    assert (folder / "results.md").read_text() == to_markdown(STUDIES[results.name], results)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_committed_samplers_can_be_named_again(folder):
    results = Results.read(folder)
    specs = {str(record.factors.get("sampler", "auto")) for record in results.records} - {
        REAL,
        "auto",
        "flow_matching",
    }
    for spec in specs:
        sampler_from(spec)


def resumable(folder: Path) -> bool:
    """Models that are not shipped cannot be tried; `laws` learns orders first, which takes a while."""
    return not Results.read(folder).settings["checkpoints"] and not folder.name.startswith("laws")


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if resumable(folder)], ids=lambda folder: folder.name
)
def test_the_command_of_committed_results_has_nothing_left_to_do(folder, tmp_path):
    results = Results.read(folder)
    results.save(tmp_path)
    arguments = parser().parse_args(shlex.split(results.commands[-1])[3:])
    study_class = STUDIES[arguments.name]

    class Idle(study_class):
        name = arguments.name

        def measure(self, factors):
            raise AssertionError(f"measures {factors} again")

    again = Idle(settings_from(arguments, study_class)).run(tmp_path)
    assert {repr(cell) for cell in again.cells} == {repr(cell) for cell in results.cells}
    assert again.scales == results.scales


def test_not_a_number_survives_the_file(tmp_path):
    factors = {"source": "masked"}
    nothing = Record(factors, "m", Measured(float("nan"), float("nan")))
    Results("s", {}, [Cell(factors, [nothing])]).save(tmp_path)
    assert "NaN" not in (tmp_path / "results.json").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["cells"][0]["records"] == [["m", None, None]]
    value = Results.read(tmp_path).records[0].measured.value
    assert value != value
