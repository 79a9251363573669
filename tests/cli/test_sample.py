"""sample.py: what it prints, what it writes, what it refuses."""

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import ENV, ROOT, load_plain, paused, read_scalars
from forked import run_script
from lightning.pytorch import Trainer

import tauflow
import tauflow.cli.sample
from tauflow import files
from tauflow.evaluation.results import REAL, Results, replace_samples
from tauflow.networks import TransformerConfig
from tauflow.samplers import SAMPLERS
from tauflow.tasks import Scenes
from tauflow.tasks.data import TaskData
from tauflow.train import DFMModule

FILES = [
    *(".lock", "quality_vs_nfe.png", "results.csv", "results.json", "results.md"),
    *("samples", "samples.jsonl", "samples.txt"),
]
SHIPPED = ROOT / "checkpoints" / "shipped" / "countdown_masked.ckpt"


def command(*args):
    return [sys.executable, str(ROOT / "sample.py"), *map(str, args)]


def run(*args, **options):
    return run_script(ROOT / "sample.py", *map(str, args), **{"cwd": Path.cwd(), "env": ENV} | options)


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Runs sample.py's entry point in this process; returns (exit code or message, what it printed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*args):
        where = [] if "--device" in args else ["--accelerator=cpu"]
        with pytest.raises(SystemExit) as stop:
            tauflow.cli.sample.sample([*map(str, args), *where])
        return stop.value.code, capfd.readouterr().out

    return run


def cells(folder):
    """Return {(sampler, nfe): cell} of a folder's results, without real data, in their order."""
    found = [cell for cell in Results.read(folder).cells if cell.factors["sampler"] != REAL]
    return {(cell.factors["sampler"], cell.factors["nfe"]): cell for cell in found}


def numbers(cell):
    """Return {metric: measured} of a cell, without what was timed."""
    timed = ("ms_per_sample", "sampler_ms_per_sample", "network_share")
    return {record.metric: record.measured for record in cell.records if record.metric not in timed}


@pytest.mark.slow
def test_no_arguments_take_the_best_of_the_newest_run(trained, tmp_path):
    for version, age in ((0, 100), (1, 0)):
        folder = tmp_path / "checkpoints" / "countdown" / f"version_{version}"
        shutil.copytree(trained, folder)
        for path in folder.iterdir():
            os.utime(path, (time.time() - age, time.time() - age))
    result = run(cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "checkpoints/countdown/version_1/best.ckpt" in result.stdout
    assert "\nauto = spaced_even, NFE 32\n" in result.stdout
    assert result.stdout.count("┏") == 1, "one table, with the metrics as columns"
    assert "error_rate ↓" in result.stdout
    shown = result.stdout.split("NFE 32\n\n")[1].split("\n\n")
    assert len(shown[0].split()) == 16


def test_a_grid_is_written(call, trained, tmp_path):
    out = tmp_path / "new" / "out"
    grid = ["--ckpt", trained / "best.ckpt", "--sampler", "tr-cie,euler", "--batch_size", 4, "--out", out]
    code, printed = call(*grid, "--nfe", "4,2", "--num_samples", 10)
    assert code == 0
    assert sorted(path.name for path in out.iterdir()) == FILES
    results = Results.read(out)
    assert list(cells(out)) == [("tr_cie", 2), ("euler", 2), ("tr_cie", 4), ("euler", 4)]
    for (_, nfe), cell in cells(out).items():
        found = {record.metric: record.measured for record in cell.records}
        assert (found["samples"].value, found["counted_nfe"].value) == (10, nfe)
        assert found["ms_per_sample"].value > 0
        assert found["error_rate"].standard_error > 0
    assert results.settings["seed"] == 0
    assert results.versions["torch"]
    assert results.commands[0].startswith("tauflow sample --ckpt ")
    assert "| tr_cie |" in (out / "results.md").read_text()
    assert (out / "samples.txt").read_text().count("over 10 samples") == 4
    assert printed.count("±") >= 4
    assert f"written to  {out}" in printed

    before = cells(out)
    code, printed = call(*grid, "--nfe", "2", "4", "--num_samples", 10)
    assert code == 0
    assert "4 of 4 cells are there already" in printed
    code, printed = call(*grid, "--nfe", "4", "8", "--num_samples", 10)  # it grows
    assert code == 0
    assert "2 of 4 cells are there already" in printed
    assert len(cells(out)) == 6
    assert all(cells(out)[key].records == cell.records for key, cell in before.items())
    code, _ = call(*grid, "--nfe", "4", "--num_samples", 11)
    assert "holds results with other settings (num_samples: 10 there, 11 now); choose another --out" in code


def test_a_repeated_flag_adds_to_the_first(call, trained, tmp_path):
    args = ["--ckpt", trained / "best.ckpt", "--num_samples", 2, "--nll_items", 0, "--out", tmp_path / "out"]
    assert call(*args, "--sampler", "euler", "--sampler", "tweedie", "--nfe", 2, "--nfe", 3)[0] == 0
    assert list(cells(tmp_path / "out")) == [("euler", 2), ("tweedie", 2), ("euler", 3), ("tweedie", 3)]


def test_variants_of_one_method_stand_in_one_table(call, trained, tmp_path):
    specs = ["tr_cie", "tr_cie(grid=tau)", "spaced_even(power=3)"]
    args = ["--ckpt", trained / "best.ckpt", "--nfe", 4, 8, "--num_samples", 4, "--out", tmp_path / "out"]
    code, printed = call(*args, "--sampler", *specs)
    assert code == 0
    for spec in specs:
        assert f"│ {spec} " in printed
        assert f"| {spec} |" in (tmp_path / "out" / "results.md").read_text()


def test_auto_is_that_of_the_library(call, trained, tmp_path):
    code, _ = call("--ckpt", trained / "best.ckpt", "--nfe", 4, "--num_samples", 4, "--out", tmp_path / "out")
    assert code == 0
    loaded = tauflow.load(trained / "best.ckpt")
    alone = tauflow.evaluate(loaded, nfes=4, num_samples=4)
    (key,) = cells(tmp_path / "out")
    assert key == (loaded.model.process.recommended, 4)
    assert numbers(cells(tmp_path / "out")[key]) == numbers(alone.cells[-1])


@pytest.mark.slow
def test_an_interrupted_grid_resumes_where_it_stopped(trained, tmp_path):
    """Ctrl-C in the middle: complete files with the finished cells remain; the same command ends with the
    numbers of an undisturbed run."""
    args = ["--ckpt", trained / "best.ckpt", "--sampler", "euler,tr_cie,tweedie", "--nfe", "8,16,32,64"]
    args += ["--num_samples", 60, "--batch_size", 30]
    out = tmp_path / "a"
    script = paused(ROOT / "sample.py", *args, "--out", out, written=out / "results.json", cwd=tmp_path)
    os.kill(script.process.pid, signal.SIGINT)
    os.kill(script.process.pid, signal.SIGCONT)
    ended = script.finish()
    assert ended.returncode == 130, ended.stderr
    assert "The same command resumes" in ended.stderr
    finished = list(cells(out))
    assert 1 <= len(finished) < 12

    result = run(*args, "--out", out)
    assert result.returncode == 0, result.stderr
    assert f"{len(finished)} of 12 cells are there already" in result.stdout
    assert (out / "samples.jsonl").read_text().count("\n") == 12 * 60, "those before the stop, too"
    found = cells(out)
    assert len(found) == 12
    loaded = tauflow.load(trained / "best.ckpt")
    other = next(key for key in found if key not in finished)
    for name, nfe in (finished[0], other):
        alone = tauflow.evaluate(loaded, name, [nfe], 60, batch_size=30)
        assert numbers(found[name, nfe]) == numbers(alone.cells[-1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_its_code_and_how_to_resume(
    trained, tmp_path, capfd, monkeypatch, request, number, code
):
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by jobs in the background
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, inherited))
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "tauflow.evaluation.evaluate.SamplerGrid.run", lambda *args: signal.raise_signal(number)
    )
    words = ["--ckpt", str(trained / "best.ckpt"), "--nfe", "4", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stop:
        tauflow.cli.sample.sample(words)
    assert stop.value.code == code
    assert "The same command resumes" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_two_devices_draw_the_same_samples(trained, tmp_path):
    args = ["--ckpt", trained / "best.ckpt", "--sampler", "tr_cie,fhs", "--nfe", "4", "--num_samples", 7]
    args += ["--batch_size", 2, "--accelerator", "cpu"]
    for devices in (1, 2):
        result = run(*args, "--devices", devices, "--out", tmp_path / str(devices))
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("written to") == 1
    lines = [(tmp_path / devices / "samples.jsonl").read_text() for devices in ("1", "2")]
    assert lines[0].count("\n") == 14
    assert lines[0] == lines[1]
    one, two = cells(tmp_path / "1"), cells(tmp_path / "2")
    assert list(one) == list(two)
    for key, left in one.items():
        assert left.shown == two[key].shown
        found = numbers(two[key])
        assert numbers(left)["samples"].value == found["samples"].value == 7
        for metric, measured in numbers(left).items():
            assert found[metric].value == pytest.approx(measured.value), metric
            assert found[metric].standard_error == pytest.approx(measured.standard_error), metric


def test_prompt_temperature_guidance_and_precision(call, trained, tmp_path):
    best = trained / "best.ckpt"
    prompt = ["--show", 3, "--prompt", "5 4 _ 2", "--temperature", 0.7]
    code, printed = call("--ckpt", best, "--nfe", 4, "--num_samples", 3, *prompt)
    assert code == 0
    samples, warmer = (
        text.split("NFE 4\n\n")[1].split("\n\n")[:3]
        for text in (printed, call("--ckpt", best, "--nfe", 4, "--num_samples", 3, *prompt[:-2])[1])
    )
    assert samples != warmer
    for sample in samples:
        words = [word.strip("!") for word in sample.split()]
        assert (words[0], words[1], words[3]) == ("5", "4", "2")
    small = ["--ckpt", best, "--nfe", 4, "--num_samples", 2]
    out = tmp_path / "out"
    assert call(*small, "--unconditional", best, "--guidance", "1,1.5", "--out", out)[0] == 0
    forwards = {
        cell.factors["guidance"]: numbers(cell)["forwards"].value
        for cell in Results.read(out).cells
        if "guidance" in cell.factors
    }
    assert forwards == {1.0: 4, 1.5: 8}
    assert call(*small, "--precision", "bf16-mixed", "--device", "cpu")[0] == 0


def test_tensorboard_stands_beside_the_run(call, trained, tmp_path):
    """A finished grid as runs of TensorBoard; a second call replaces the first. Without a run it goes where
    --out says."""
    folder = tmp_path / "version_0"
    shutil.copytree(trained, folder)
    small = ["--num_samples", 4, "--tensorboard"]
    args = ["--ckpt", folder / "best.ckpt", "--sampler", "tr_cie(grid=tau)", "euler", *small]
    for nfes in ((2, 4), (4, 8)):
        code, printed = call(*args, "--nfe", *nfes)
        assert code == 0
        assert f"watch it    tensorboard --logdir {tmp_path}" in printed
        scalars = read_scalars(folder / "sampled" / "tr_cie(grid=tau)")
        assert [step for step, _ in scalars["error_rate_vs_nfe"]] == list(nfes)
        assert {tag for tag in scalars if tag.startswith("error_rate/")} == {
            f"error_rate/nfe_{nfe}" for nfe in nfes
        }
        assert [step for step, _ in scalars[f"error_rate/nfe_{nfes[0]}"]] == [24], (
            "at the step of the checkpoint"
        )
    assert "error_rate_vs_nfe" in read_scalars(folder / "sampled" / "euler")

    alone = tmp_path / "alone.ckpt"
    shutil.copy(trained / "best.ckpt", alone)
    code, _ = call("--ckpt", alone, "--nfe", 2, *small)
    assert "isn't in the folder of a run. Pass --out DIR" in code
    code, _ = call("--ckpt", alone, "--nfe", 2, 4, "--sampler", "euler", *small, "--out", tmp_path / "out")
    assert code == 0
    assert "error_rate_vs_nfe" in read_scalars(tmp_path / "out" / "tensorboard" / "euler")


def test_finished_cells_are_never_lost(call, trained, tmp_path, monkeypatch):
    """A failed cell is made again; an interruption right then leaves the finished ones that come after it."""
    out = tmp_path / "out"
    args = ["--ckpt", trained / "best.ckpt", "--sampler", "euler,tr_cie", "--nfe", "2,3"]
    args += ["--num_samples", 2, "--out", out]
    good = SAMPLERS["euler"]

    def finished():
        return [name for (name, _), cell in cells(out).items() if not cell.problem]

    with monkeypatch.context() as patch:
        patch.setattr(type(good()), "step", _fail_for_euler(RuntimeError("unlucky")))
        assert call(*args)[0] == 1
    assert finished() == ["tr_cie", "tr_cie"]
    with monkeypatch.context() as patch:
        patch.setattr(type(good()), "step", _fail_for_euler(KeyboardInterrupt()))
        assert call(*args)[0] == 130
    assert finished() == ["tr_cie", "tr_cie"]
    assert call(*args)[0] == 0
    assert sorted(finished()) == ["euler", "euler", "tr_cie", "tr_cie"]


def _fail_for_euler(error):
    from tauflow.samplers.leaping import Leaping

    step = Leaping.step

    def failing(self, *args):
        if self.rule == "euler":
            raise error
        return step(self, *args)

    return failing


def test_infinite_options_can_be_resumed(call, trained, tmp_path):
    args = ["--ckpt", trained / "best.ckpt", "--sampler", "tr_cie_paper(ceiling=inf)", "--nfe", 2]
    args += ["--num_samples", 2, "--out", tmp_path / "out"]
    assert call(*args)[0] == 0
    code, printed = call(*args)
    assert code == 0
    assert "1 of 1 cells are there already" in printed


def test_bad_requests(call, trained, tmp_path, monkeypatch):
    best = trained / "best.ckpt"
    for args, expected in [
        (["--ckpt", best, "--prompt", "1 " * 17], "at most 16 values"),
        (["--ckpt", best, "--guidance", "2"], "this network takes no condition"),
        (["--ckpt", best, "--unconditional", best], "--unconditional needs --guidance W"),
    ]:
        code, _ = call(*args)
        assert isinstance(code, str), args
        assert expected in code, (args, code)
    monkeypatch.setattr("tauflow.cli.sample.ROOT", tmp_path)  # else a run beside sample.py would be found
    monkeypatch.setattr("tauflow.train.checkpoint.SHIPPED", tmp_path)
    assert "No checkpoint found under checkpoints/" in call()[0]


def test_an_unreadable_checkpoint_is_blamed(call, trained, monkeypatch):
    opened = open

    def refusing(path, *args, **options):
        if str(path).endswith("best.ckpt"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr("builtins.open", refusing)
    code, _ = call("--ckpt", trained / "best.ckpt")
    assert code == f"error: cannot read or write a file: [Errno 13] Permission denied: '{trained}/best.ckpt'"


def test_a_folder_of_another_process_is_left_alone(call, trained, tmp_path):
    args = ["--ckpt", trained / "best.ckpt", "--num_samples", 2, "--out", tmp_path / "out"]
    assert call(*args, "--nfe", 2)[0] == 0
    before = (tmp_path / "out" / "results.json").read_text()
    with files.lock_folder(tmp_path / "out", "wait"):
        code, _ = call(*args, "--nfe", 4)
    assert code.startswith(f"error: another process is writing to {tmp_path}/out; ")
    assert "\n" not in code
    assert (tmp_path / "out" / "results.json").read_text() == before


FASHION = ["--task", "fashion", "--nfe", 2, "--num_samples", 2, "--show", 2, "--nll_items", 0]


def test_each_call_replaces_the_images_of_the_last_one(call, tmp_path):
    folder = tmp_path / "samples"
    replace_samples(folder, {"samples.csv": b"of a task with a table"})
    assert call(*FASHION)[0] == 0
    assert not (folder / "samples.csv").exists()
    first = (folder / "samples.png").read_bytes()
    (folder / "own.txt").write_text("mine")
    code, printed = call(*FASHION, "--seed", 1)
    assert code == 0
    assert "written to  samples  (samples.png, evolution.png)" in printed
    assert (folder / "samples.png").read_bytes() != first
    with files.lock_folder(folder, ""):
        code, _ = call(*FASHION)
    assert code.startswith("error: another process is writing to samples; wait for it or choose")
    assert (folder / "own.txt").read_text() == "mine"


def test_a_file_that_a_user_put_in_place_of_ours_is_not_replaced(call, tmp_path):
    assert call(*FASHION)[0] == 0
    (tmp_path / "samples" / "samples.png").write_bytes(b"mine")
    code, _ = call(*FASHION)
    assert "samples/samples.png already exists" in code
    assert (tmp_path / "samples" / "samples.png").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [("samples/samples.csv", FASHION), ("out/results.md", ["--ckpt", SHIPPED, "--out", "out"])],
)
def test_the_users_own_files_are_never_touched(call, tmp_path, monkeypatch, name, words):
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text("mine")
    monkeypatch.setattr("tauflow.evaluation.evaluate.SamplerGrid.run", lambda *args: pytest.fail("work"))
    code, _ = call(*words)
    assert code == (
        f"error: {name} already exists and could be overwritten. Move it away, or choose another folder with "
        "--out DIR."
    )
    assert path.read_text() == "mine"


def test_sampling_beside_a_run_that_saves(call, trained, tmp_path):
    """The file is replaced ten times a second; what is sampled is one of its versions, with its digest."""
    path = tmp_path / "last.ckpt"
    versions = {}
    for step in range(4):
        version = tmp_path / f"{step}.ckpt"
        torch.save(load_plain(trained / "best.ckpt") | {"global_step": step}, version)
        versions[files.digest(version)] = step
    shutil.copy(tmp_path / "0.ckpt", path)
    over = threading.Event()

    def save():
        number = 0
        while not over.wait(0.1):
            number += 1
            with files.atomic(path) as file:
                file.write((tmp_path / f"{number % 4}.ckpt").read_bytes())

    thread = threading.Thread(target=save)
    thread.start()
    try:
        for number in range(8):
            out = tmp_path / f"out{number}"
            code, _ = call("--ckpt", path, "--nfe", 2, "--num_samples", 2, "--out", out)
            assert code == 0, code
            found = Results.read(out).settings
            assert versions[found["checkpoint_sha256"]] == found["step"]
    finally:
        over.set()
        thread.join()


PLACED = """
from dataclasses import dataclass
from tauflow.tasks import Countdown

@dataclass(eq=False)
class Placed(Countdown):
    place: str = "nowhere"

    local = ("place",)

    def __post_init__(self):
        super().__post_init__()
        print("placed at", self.place)
"""


def test_where_data_lies_comes_from_the_command_line(call, trained, tmp_path):
    (tmp_path / "placed.py").write_text(PLACED)
    checkpoint = load_plain(trained / "best.ckpt")
    task = checkpoint["tauflow"]["task"]
    task["class_path"] = "placed.Placed"
    task["init_args"]["place"] = "the file's own"
    torch.save(checkpoint, tmp_path / "placed.ckpt")
    args = ["--ckpt", tmp_path / "placed.ckpt", "--classes", "placed.py:Placed"]
    args += ["--nfe", 2, "--num_samples", 2]
    assert "placed at nowhere" in call(*args)[1]
    assert "placed at here" in call(*args, "--data", "place=here")[1]
    code, _ = call(*args, "--data", "values=3")
    assert "values" in code


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--grid", "tau"], "grid is a sampler option. Write --sampler 'euler(grid=tau)'"),
        (["--sampler", "spaced", "--power", "3"], "Write --sampler 'spaced(power=3)'"),
        (["--guidance_weight", "2"], "Unknown argument --guidance_weight. It's now --guidance W"),
        (
            ["--samplr", "euler"],
            "Unknown argument --samplr. Did you mean --sampler? See tauflow sample --help.",
        ),
    ],
)
def test_removed_flags_get_the_sentence(call, args, expected):
    code, _ = call(*args)
    assert expected in code


def test_a_sampler_that_cannot_sample_the_model(call):
    uniform = SHIPPED.with_name("countdown_uniform.ckpt")
    code, _ = call("--ckpt", uniform, "--sampler", "fhs")
    assert "need a masked source, this model has a uniform one; try renoise" in code
    code, printed = call("--ckpt", uniform, "--sampler", "paper", "--nfe", "2", "--num_samples", "2")
    assert code == 0
    assert "ho_fhs is skipped: " in printed


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A tiny text-to-image model with random weights, as others would publish it."""
    import fudoki

    return fudoki.write(tmp_path_factory.mktemp("pretrained") / "fudoki", fudoki.weights())


def test_a_pretrained_model_is_sampled_like_a_checkpoint(call, released, tmp_path):
    out = tmp_path / "out"
    args = ["--pretrained", released, "--condition", "a photo of a red cube", "--nfe", 3, "--show", 2]
    args += ["--num_samples", 3, "--batch_size", 2, "--out", out]
    code, printed = call(*args, "--sampler", "fudoki, tr_cie(grid=tau)", "--guidance", 1, 6)
    assert code == 0
    assert f"pretrained  {released}  (TextToImage, metric source)" in printed
    assert "recommended" not in printed
    names = {path.name for path in out.iterdir()}
    assert {"samples.png", "evolution.png", "results.md", "samples.txt"} <= names
    results = Results.read(out)
    assert len(results.cells) == 4
    for cell in results.cells:
        found = numbers(cell)
        assert found["counted_nfe"].value == cell.factors["nfe"]
        assert found["forwards"].value == cell.factors["nfe"] * (2 if cell.factors["guidance"] == 6 else 1)
    text = (out / "results.md").read_text()
    assert "condition of all samples: a photo of a red cube" in text
    assert "sampled with metric rates" in text
    assert "a pretrained model comes without its data" in text
    code, printed = call(*args, "--sampler", "fudoki, tr_cie(grid=tau)", "--guidance", 1, 6)
    assert "4 of 4 cells are there already" in printed
    code, _ = call(*args, "--sampler", "euler", "--guidance", 6, "--rates", "mixture")
    assert "rates: metric there, mixture now" in code


def test_rates_of_a_checkpoint_on_a_metric_path(call, tmp_path):
    task = Scenes(size=6, batch_size=2, val_items=2)
    model = DFMModule(task.facts, source="metric", schedule="beta", network=TransformerConfig(8, 1, 1))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    few = {"max_steps": 1, "limit_val_batches": 0, "accelerator": "cpu", "enable_checkpointing": False}
    trainer = Trainer(**quiet, **few)
    trainer.fit(model, datamodule=TaskData(task))
    trainer.save_checkpoint("metric.ckpt")
    args = ["--ckpt", "metric.ckpt", "--sampler", "euler", "--nfe", 2, "--num_samples", 2, "--nll_items", 0]
    for rates, source in (("mixture", "uniform"), ("metric", "metric")):
        code, printed = call(*args, "--rates", rates, "--out", rates)
        assert code == 0
        assert f"Scenes, {source} source)" in printed
        assert f"sampled with {rates} rates" in (tmp_path / rates / "results.md").read_text()
    assert call(*args, "--out", "metric")[0] == 0, "metric rates are the default"
    guided = ("--unconditional", "metric.ckpt", "--guidance", 2)
    assert call(*args, "--rates", "mixture", *guided)[0] == 0, "both models have them"
    for more, expected in (
        (["--out", "mixture"], "rates: mixture there, metric now"),
        (["--rates", "tau"], "rates must be mixture or metric, got 'tau'"),
        (["--rates", "mixture", "--ckpt", SHIPPED], "Remove --rates"),
    ):
        code, _ = call(*args, *more)
        assert expected in code
        assert "\n" not in code


def test_mixture_rates_and_the_guidance_that_is_recommended(call, released):
    args = ["--pretrained", released, "--rates", "mixture", "--sampler", "euler", "--nfe", 2]
    code, printed = call(*args, "--num_samples", 2)
    assert code == 0
    assert "(TextToImage, uniform source)" in printed
    assert "--guidance 6 is recommended" in printed
    for more, expected in (
        (["--condition", " "], "The prompt must not be empty"),
        (["--condition", "x" * 600], "must have at most 500 tokens"),
        (["--rates", "tau"], "rates must be metric or mixture"),
        (["--prompt", "a cat"], "TextToImage doesn't support --prompt. Remove --prompt."),
        (["--judge", "no/such/clip"], "no/such/clip"),
    ):
        code, _ = call(*args, *more)
        assert isinstance(code, str), more
        assert expected in code
        assert "\n" not in code
