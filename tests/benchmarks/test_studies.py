"""Studies: each runs and resumes where it was stopped, and pages show the numbers of the committed files."""

import dataclasses
import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import ROOT, paused

import tauflow
from benchmarks.__main__ import SCRIPTS
from benchmarks.studies import STUDIES
from benchmarks.studies.beyond import Laws, variants
from benchmarks.studies.bigrams import Bigrams
from benchmarks.studies.command import main, parser, settings_from
from benchmarks.studies.models import tr_cie_variants
from benchmarks.studies.report import save, to_markdown
from benchmarks.studies.study import Settings, Study, records
from benchmarks.studies.subjects import OnLawsAndModels
from benchmarks.studies.theory import with_schedule
from tauflow import files
from tauflow.denoise.denoiser import Wrapper
from tauflow.errors import SettingsError, TauflowError
from tauflow.evaluation.results import REAL, Cell, Measured, Record, Results, Scale
from tauflow.evaluation.tables import Frame, View, to_csv
from tauflow.process import schedule_from
from tauflow.samplers import sampler_from
from tauflow.tasks.task import parse_settings
from tauflow.train import SHIPPED

RESULTS = ROOT / "benchmarks" / "results"
FILES = ["figure.png", "results.csv", "results.json", "results.md"]
FOLDERS = sorted(
    path.parent for path in RESULTS.rglob("results.json") if Results.read(path.parent).name in STUDIES
)


@pytest.fixture(scope="module")
def checkpoint(trained) -> str:
    return str(trained / "best.ckpt")


ELSEWHERE = [name for name, study in STUDIES.items() if study.needs]  # text, and test_image_studies.py
ELSEWHERE += ["antibodies"]  # its model is inside a package: test_antibodies.py
LONG = ("laws", "dependence", "correctors")  # they learn orders, or sample long
QUICK = [name for name in STUDIES if name not in (*ELSEWHERE, *LONG)]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in LONG]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_smoke(name, checkpoint, tmp_path, capsys):
    study = STUDIES[name]
    models = [] if "checkpoints" in study.ignores else ["--ckpt", checkpoint]
    few = ["--samplers", "tr_cie", "--nfes", "3"] if name == "laws" else []
    main([name, "--smoke", "--out", str(tmp_path), *models, *few, "--no_progress"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", *FILES]
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


def test_the_command_says_what_to_do_with_a_folder_in_use_or_damaged(checkpoint, tmp_path):
    words = ["countdown", "--smoke", "--samplers", "euler", "--ckpt", checkpoint, "--out", str(tmp_path)]
    with files.lock_folder(tmp_path, ""), pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code.startswith(f"error: another process is writing to {tmp_path}; wait for it")
    (tmp_path / "results.md").write_text("mine")
    with pytest.raises(SystemExit, match=r"^error: .*/results\.md already exists .* --out DIR\.$"):
        main(words)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(SystemExit, match=r"^error: .*results\.json has no results .*\. Remove it to start"):
        main(words)


@pytest.mark.parametrize("full", ["results.json", "figure.png"])
def test_a_full_disk_says_what_is_safe_and_how_to_resume(full, checkpoint, tmp_path, monkeypatch, capsys):
    """Whichever file does not fit; of results.json it is the third save, after two cells."""
    words = ["countdown", "--smoke", "--samplers", "euler,tr", "--ckpt", checkpoint, "--no_progress"]
    words += ["--out", str(tmp_path)]
    saves = iter(range(2))

    def replace(source, target):
        if target.name == full and (full != "results.json" or next(saves, None) is None):
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(source, target)

    rename = os.replace
    with monkeypatch.context() as patch:
        patch.setattr("tauflow.files.os.replace", replace)
        with pytest.raises(SystemExit) as stop:
            main(words)
    said = str(stop.value.code)
    assert said.startswith(f"error: cannot write {tmp_path / full} (No space left on device); ")
    assert f"cells finished before are safe in {tmp_path / 'results.json'}" in said
    assert said.endswith("the same command resumes")
    assert "\n" not in said
    kept = Results.read(tmp_path).records
    assert len({str(record.factors) for record in kept}) == (2 if full == "results.json" else 5)
    main(words)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", *FILES]
    records = Results.read(tmp_path).records
    assert records[: len(kept)] == kept
    assert len({str(record.factors) for record in records}) == 5  # two samplers, two budgets, real data


@pytest.mark.slow
def test_a_signal_keeps_finished_cells_and_says_how_to_resume(tmp_path, capsys):
    """The command stops itself after its first cell, so it cannot end before the signal comes."""
    out = tmp_path / "out"
    words = ["order", "--nfes", "8,16", "--samplers", "euler,tr", "--out", str(out), "--no_progress"]
    entry = ROOT / "benchmarks" / "__main__.py"
    script = paused(entry, *words, written=out / "results.json", cwd=tmp_path)
    os.kill(script.process.pid, signal.SIGTERM)
    os.kill(script.process.pid, signal.SIGCONT)
    ended = script.finish()
    assert ended.returncode == 143, ended.stderr
    assert ended.stderr.strip() == f"stopped. Finished cells are kept, and the same command resumes ({out})."
    kept = Results.read(out).cells
    assert len(kept) == 1
    main(words)
    assert Results.read(out).cells[0] == kept[0]
    assert len(Results.read(out).cells) == 8


def test_other_settings_are_refused(tmp_path):
    Counting(SETTINGS).run(tmp_path)
    with pytest.raises(SettingsError, match=r"samples: 4 there, 5 now.*--out"):
        Counting(dataclasses.replace(SETTINGS, samples=5)).run(tmp_path)
    with pytest.raises(SettingsError, match=r"nfes: .*8, 16.* there, .*8.* now"):
        Counting(dataclasses.replace(SETTINGS, nfes=(8,))).run(tmp_path)  # its cells may look at all budgets
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(TauflowError, match="Remove it to start again, or choose another folder"):
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
        def posterior(self, query):
            seen.append(query.t)
            return self.denoiser.posterior(query)

    model = dataclasses.replace(trained.model, denoiser=Spy(trained.model.denoiser))
    spied = with_schedule(dataclasses.replace(trained, model=model), schedule_from("linear"))
    spied.model.denoiser.evaluate(torch.zeros(1, 16, dtype=torch.long), torch.tensor([0.25]))
    torch.testing.assert_close(seen[0], torch.tensor([0.5]))  # trained with kappa = t^2
    assert spied.model.process.schedule == schedule_from("linear")


UNIFORM = str(SHIPPED / "countdown_uniform.ckpt")
REFUSED = [
    ("two checkpoints have a masked source", "countdown --smoke --ckpt CKPT CKPT"),
    ("--nfes must be at least 1, got 0", "countdown --nfes 0 --ckpt CKPT"),
    ("unknown sampler 'nonsense'", "countdown --smoke --samplers nonsense --ckpt CKPT"),
    ("bridge.*masked", "countdown --smoke --samplers bridge --ckpt CKPT"),
    ("image_orders needs --ckpt", "image_orders --smoke"),
    ("images needs a checkpoint of pictures.*this one is of Countdown", "images --smoke --ckpt CKPT"),
    ("the study countdown has no use for --nll_items", "countdown --smoke --nll_items 4 --ckpt CKPT"),
    ("the study order has no use for --ckpt", "order --ckpt CKPT"),
    ("the law of tweedie cannot be computed on the oracle", "order --smoke --samplers tweedie"),
    ("from --nfes 3 on", "hamming --smoke --nfes 2,4 --ckpt CKPT"),
    (r"countdown model: seeds x contexts need \d+ items of 12", "dependence --seeds 4 --ckpt CKPT"),
    ("this model has a uniform source", f"dependence --smoke --ckpt {UNIFORM}"),
    ("nowhere/model.ckpt", "countdown --smoke --ckpt nowhere/model.ckpt"),
    ("judge", "countdown --smoke --judge ngram --ckpt CKPT"),
    ("--data must be KEY=VALUE, such as files=corpus.txt, got 'files'", "countdown --data files"),
    ("length.*decided by the checkpoint", "countdown --data length=3 --ckpt CKPT"),
    ("invalid choice: 'nonsense' .*countdown", "nonsense"),
]


@pytest.mark.parametrize(("match", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_bad_requests(match, words, checkpoint, tmp_path, capsys):
    """Each in a few lines without a traceback, before anything is written."""
    arguments = shlex.split(words.replace("CKPT", checkpoint))
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--out", str(tmp_path / "out")])
    written = capsys.readouterr()
    said = written.out + written.err + (stop.value.code if isinstance(stop.value.code, str) else "")
    assert re.search(match, said), said
    assert stop.value.code != 0
    assert len(said.splitlines()) <= 10
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"^error: cannot write to .*file .*; choose another one with --out"):
        main(["order", "--smoke", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit, match="2"):
        main(["order", "--smoke", "--out", ""])
    assert "argument --out: it is empty" in capsys.readouterr().err


def test_settings_of_the_data_are_words_of_the_command_line():
    words = [
        "files=[a.txt, b.txt]",
        "seed=3",
        "text=a=b",
        "empty=",
        "share=0.5",
        "on=true",
        "pattern=[A-Z]{3}",
    ]
    assert parse_settings(words) == {
        "files": ["a.txt", "b.txt"],
        "seed": 3,
        "text": "a=b",
        "empty": None,
        "share": 0.5,
        "on": True,
        "pattern": "[A-Z]{3}",
    }
    with pytest.raises(SettingsError, match="--data"):
        parse_settings(["a-b=1"])


# The committed results


def test_committed_files_belong_together():
    """Written anew with `save(STUDIES[results.name], results, folder)`. Samplers can be named again."""
    for folder in FOLDERS:
        results = Results.read(folder)
        assert set(FILES[1:]) <= {path.name for path in folder.iterdir()}  # figures are in the docs
        assert (folder / "results.csv").read_text() == to_csv(results), folder
        assert (folder / "results.md").read_text() == to_markdown(STUDIES[results.name], results), folder
        for spec in {record.factors.get("sampler", "auto") for record in results.records}:
            if spec not in (REAL, "auto", "flow_matching"):
                sampler_from(spec)


def resumable(folder: Path) -> bool:
    """Models that are not here cannot be tried; studies of laws learn orders first, which takes a while."""
    results = Results.read(folder)
    if results.name == "antibodies":
        return find_spec("antiberty") is not None
    learns = issubclass(STUDIES[results.name], Laws | Bigrams | OnLawsAndModels)
    return not results.settings["checkpoints"] and not learns


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if resumable(folder)], ids=lambda folder: folder.name
)
def test_the_command_of_committed_results_has_nothing_left_to_do(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.studies.study.save", lambda *arguments: [])
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


def test_the_overview_names_everything_without_torch():
    code = "import sys; from benchmarks.__main__ import main; main([]); assert 'torch' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in run.stdout.splitlines() if line.startswith("  ")}
    assert listed == {*STUDIES, *SCRIPTS, "geneval"}
