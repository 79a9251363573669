"""tauflow.evaluate on an exact denoiser and through the public API."""

import errno
import json
import math
import subprocess
import sys
import time

import pytest
import torch
import torchmetrics
from conftest import ENV

import tauflow
from tauflow import Masked, Mixture, Model, Trained, Uniform, files
from tauflow.denoise import LogitsPosterior
from tauflow.errors import FolderInUse, SamplingError, SettingsError, TauflowError, WriteError
from tauflow.evaluation.evaluate import GridOptions, SamplerGrid, Sampling
from tauflow.evaluation.figures import save_report
from tauflow.evaluation.images import samples_of
from tauflow.evaluation.results import REAL, Cell, Measured, Record, Results, Scale, open_results
from tauflow.evaluation.tables import (
    Frame,
    TextTable,
    number_text,
    print_results,
    to_csv,
    to_markdown,
    turned,
)
from tauflow.samplers import SETS
from tauflow.tasks import LabelledCountdown
from tauflow.tasks.countdown import posterior, violations

LENGTH, VALUES = 12, 5
METRICS = ["error_rate", "sequence_error_rate", "unigram_tv"]


class Exact(tauflow.Denoiser):
    """The exact denoiser of countdown; `fail_after` evaluations it fails."""

    def __init__(self, process, fail_after=math.inf, seconds=0.0):
        self.process, self.fail_after, self.seconds, self.calls = process, fail_after, seconds, 0

    def evaluate(self, x, t, condition=None):
        self.calls += 1
        time.sleep(self.seconds)
        if self.calls > self.fail_after:
            raise RuntimeError("the network is broken")
        return LogitsPosterior(posterior(x, t, self.process, leak=1e-3).log())


def exact(source=None, **options) -> Trained:
    process = Mixture(source or Masked(VALUES), "quadratic")
    task = tauflow.Countdown(length=LENGTH, values=VALUES, val_items=64)
    return Trained(Model(Exact(process, **options), process, (LENGTH,)), task)


class Labelled(tauflow.Denoiser):
    """A denoiser of countdown with labels that looks at the two neighbours; without a label it says
    little."""

    conditions = (3,)

    def evaluate(self, x, t, condition=None):
        step = torch.zeros_like(x[:, :1]) if condition is None else condition + 1  # 0: not given
        logits = torch.zeros(*x.shape, VALUES)
        for neighbour, sign in ((x.roll(1, 1), -1), (x.roll(-1, 1), 1)):
            expected = neighbour + sign * step
            sure = (neighbour < VALUES) & (expected >= 0) & (expected < VALUES) & (step > 0)
            logits.scatter_add_(2, expected.clamp(0, VALUES - 1)[..., None], 2.0 * sure[..., None])
        return LogitsPosterior(logits)


def labelled() -> Trained:
    process = Mixture(Masked(VALUES), "linear")
    task = LabelledCountdown(length=LENGTH, values=VALUES, val_items=64)
    return Trained(Model(Labelled(), process, (LENGTH,)), task)


def run(trained, samplers, nfes, sampling, results=None, guidance=(), **options) -> Results:
    grid = SamplerGrid(trained, samplers, nfes, guidance, sampling)
    return grid.run(results or Results(), GridOptions(**options))


def cell_of(results, sampler, nfe, **factors) -> Cell:
    (found,) = [cell for cell in results.cells if cell.factors == {"sampler": sampler, "nfe": nfe, **factors}]
    return found


def value(cell, metric) -> float:
    (found,) = [record.measured.value for record in cell.records if record.metric == metric]
    return found


def sampled(results) -> list[Cell]:
    return [cell for cell in results.cells if cell.factors["sampler"] != REAL]


def names(results) -> set[str]:
    return {cell.factors["sampler"] for cell in sampled(results)}


@pytest.fixture(scope="module")
def results():
    return run(exact(), ["euler", "tr_cie", "ho_fhs"], [2, 8], Sampling(50, 16, show=3))


def test_every_cell_is_measured_counted_and_timed(results):
    order = [{"sampler": name, "nfe": nfe} for nfe in (2, 8) for name in ("euler", "tr_cie", "ho_fhs")]
    assert [cell.factors for cell in sampled(results)] == order
    for cell in sampled(results):
        assert value(cell, "samples") == 50
        assert value(cell, "counted_nfe") == value(cell, "forwards") == cell.factors["nfe"]
        assert 0 < value(cell, "network_share") < 1
        assert 0 < value(cell, "sampler_ms_per_sample") < value(cell, "ms_per_sample")
        assert torch.tensor(cell.shown.tokens).shape == (3, LENGTH)
        assert [record.metric for record in cell.records][:3] == METRICS
        assert 0 <= value(cell, "error_rate") <= 1
    assert value(cell_of(results, "tr_cie", 8), "clamped") > 0
    assert value(cell_of(results, "euler", 8), "several_events") > 0


def test_values_and_errors_are_those_of_the_samples(results):
    """All 50 samples are drawn again, batch by batch, with the documented seeds; mean and standard error are
    computed by hand."""
    from tauflow.numerics import generator_for

    model = exact().model
    parts = [
        tauflow.sample(model, "tr_cie", 8, count=size, seed=generator_for("evaluation", 0, number)).tokens
        for number, size in enumerate([16, 16, 16, 2])
    ]
    rates = violations(torch.cat(parts), VALUES).double().mean(1)
    found = Frame(results).measured("", "tr_cie", 8, "error_rate")
    assert found.value == pytest.approx(rates.mean().item())
    assert found.standard_error == pytest.approx(rates.std().item() / math.sqrt(50))
    assert cell_of(results, "tr_cie", 8).shown.tokens == parts[0][:3].tolist()


def test_all_samplers_begin_from_the_same_noise():
    results = tauflow.evaluate(exact(Uniform(VALUES)), "euler,tr_cie,tweedie", [3], 4, batch_size=4)
    starts = [cell.shown.states[0] for cell in sampled(results)]
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0], starts[2])
    for cell in sampled(results):
        assert cell.shown.states.shape == (4, LENGTH)  # x_0, two steps, the draw
        assert cell.shown.states[-1].tolist() == cell.shown.tokens[0]


def test_real_data_is_the_reference(results):
    frame = Frame(results)
    for nfe in (2, 8):
        assert frame.measured("", REAL, nfe, "error_rate").value == 0
        assert 0 < frame.measured("", REAL, nfe, "unigram_tv").value < 0.2


def test_standard_error_of_the_unigram_distance_is_its_spread():
    """The distance of 200 independent sets of 50 sequences spreads as the error of one set says.

    The expected ratio is 1; each single estimate of an error varies by about 10 %, their mean over 200 by
    less than 1 %, and the spread of 200 values is known to 5 % (one sigma), so 25 % is five sigma.
    """
    task = tauflow.Countdown(length=24, values=4, val_items=10_000)
    task.setup()
    tokens = torch.stack([item["tokens"] for item in task.val_data.__getitems__(list(range(10_000)))])
    kept = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    tokens = torch.where(kept, tokens, 0)  # far from the law
    values, errors = [], []
    for part in tokens.split(50):
        metric = task.sample_metrics()["unigram_tv"]
        metric.update(part)
        found, error = metric.compute()
        values.append(found)
        errors.append(error)
    spread = torch.stack(values).std().item()
    assert torch.stack(errors).mean().item() == pytest.approx(spread, rel=0.25)


def test_a_clean_first_batch_does_not_merge_metrics():
    """torchmetrics shares the state of metrics that are equal after their first batch, unless told not to."""
    metrics = tauflow.Countdown(length=4, values=3).sample_metrics()
    metrics.update(torch.tensor([[2, 1, 0, 2]]))
    metrics.update(torch.tensor([[2, 2, 1, 0]]))
    result = metrics.compute()
    assert result["error_rate"][0].item() == pytest.approx(1 / 6)
    assert result["sequence_error_rate"][0].item() == pytest.approx(1 / 2)


def test_a_failing_sampler_is_noted_and_the_others_continue():
    sampling = Sampling(4, 4, nll_items=0)
    results = run(exact(fail_after=6), ["euler", "tr_cie"], [4], sampling, keep_going=True)
    assert Frame(results).measured("", "euler", 4, "error_rate")
    assert cell_of(results, "tr_cie", 4).problem.startswith(
        "failed: RuntimeError: the network is broken (test_"
    )
    assert "| tr_cie | failed |" in to_markdown(results)
    assert "tr_cie, NFE 4: failed: RuntimeError: the network is broken" in to_markdown(results)
    with pytest.raises(RuntimeError, match="the network is broken"):
        tauflow.evaluate(exact(fail_after=2), ["euler"], [4], 4)


def test_what_there_is_no_time_for_is_said():
    asked = iter(["", "", "the time is over"])
    until = lambda: next(asked, "the time is over")  # noqa: E731
    results = run(exact(), ["euler", "tr_cie"], [2, 4], Sampling(4), until=until)
    assert [cell.problem for cell in sampled(results)] == ["", "", *["skipped: the time is over"] * 2]
    assert to_markdown(results).count("skipped: the time is over") == 2


def test_finished_cells_are_not_made_again(results):
    trained = exact(fail_after=0)
    again = Results(cells=list(results.cells))
    again = run(trained, ["euler", "tr_cie", "ho_fhs"], [2, 8], Sampling(50, 16, show=3), results=again)
    assert trained.model.denoiser.calls == 0
    assert to_csv(again) == to_csv(results)


def test_a_kept_grid_grows_and_other_settings_are_refused(tmp_path):
    """More samplers, budgets and weights continue a folder; its finished cells stay. Other settings are
    refused."""
    grows = ("samplers", "nfes")
    settings = {"samplers": ["euler"], "nfes": [2], "seed": 0}
    sampling = Sampling(4, nll_items=0)
    with open_results(tmp_path, "samples", settings, grows) as first:
        run(exact(), "euler", [2], sampling, results=first, folder=tmp_path)
    kept = cell_of(first, "euler", 2)
    trained = exact()
    settings = {"samplers": ["tr_cie", "euler"], "nfes": [4], "seed": 0}
    with open_results(tmp_path, "samples", settings, grows) as more:
        run(trained, ["tr_cie", "euler"], [2, 4], sampling, results=more, folder=tmp_path)
    assert trained.model.denoiser.calls == 2 + 4 + 4, "the finished cell was not made again"
    again = Results.read(tmp_path)
    assert again.settings == {"samplers": ["euler", "tr_cie"], "nfes": [2, 4], "seed": 0}
    assert len(sampled(again)) == 4
    assert cell_of(again, "euler", 2).records == kept.records
    for name, others, said in (
        ("samples", settings | {"seed": 1}, r"\(seed: 0 there, 1 now\); choose another --out"),
        ("another study", settings, "of samples"),
    ):
        with (
            pytest.raises(SettingsError, match=f"other settings.*{said}"),
            open_results(tmp_path, name, others, grows),
        ):
            pass


def test_a_folder_is_written_by_one_at_a_time(tmp_path):
    """A second grid is refused while the first one runs, and adds its cells after it."""
    grows = ("samplers",)
    settings = {"samplers": ["euler"]}
    with open_results(tmp_path, "samples", settings, grows) as first:
        with (
            pytest.raises(FolderInUse, match=r"another process is writing to .*; wait for it or choose"),
            open_results(tmp_path, "samples", {"samplers": ["tr_cie"]}, grows),
        ):
            pass
        run(exact(), "euler", [2], Sampling(4), results=first, folder=tmp_path)
    with open_results(tmp_path, "samples", {"samplers": ["tr_cie"]}, grows) as second:
        run(exact(), "tr_cie", [2], Sampling(4), results=second, folder=tmp_path)
    assert names(Results.read(tmp_path)) == {"euler", "tr_cie"}


RANKS = """
import sys
from pathlib import Path

import torch

import tauflow.evaluation.results as store
from tauflow.errors import TauflowError, WriteError
from tauflow.evaluation.results import open_results
from tauflow.evaluation.evaluate import GridOptions, run_grid
from tauflow.evaluation.results import Cell

rank, folder, free, busy = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)


def refuse(path, text):
    raise WriteError(f"cannot write {path.name}")


try:
    with open_results(busy, "samples", {}):
        print("opened a folder in use")
except TauflowError as error:
    print(type(error).__name__)
with open_results(free, "samples", {}) as results:
    print(len(results.cells))
    run_grid(results, [{"nfe": 1}], Cell, GridOptions(free))
    store.files.write = refuse
    try:
        run_grid(results, [{"nfe": 2}], Cell, GridOptions(free, keep_going=True))
    except TauflowError as error:
        print(error)
"""


@pytest.mark.slow
def test_ranks_share_one_folder_and_end_together(tmp_path):
    """Only rank 0 takes the folder and writes; both have its results, or its error."""
    free, busy = tmp_path / "free", tmp_path / "busy"
    Results("samples", {}, [Cell({"nfe": 3})]).save(free)
    busy.mkdir()
    with files.lock_folder(busy, ""):
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANKS, str(rank), tmp_path, free, busy],
                env=ENV,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        printed = [each.communicate(timeout=120)[0].splitlines() for each in ranks]
    assert printed == [["FolderInUse", "1", "cannot write results.json"]] * 2
    assert len(Results.read(free).cells) == 2


def test_a_full_disk_ends_the_grid_and_the_finished_cells_are_kept(tmp_path, monkeypatch):
    """Also where failing cells are only noted; the second save fails, as does every later one."""
    saves = iter([None])

    def fill(number):
        if next(saves, "full"):
            raise OSError(errno.ENOSPC, "No space left on device")

    trained = exact()
    sampling = Sampling(4, nll_items=0)
    with monkeypatch.context() as patch:
        patch.setattr("tauflow.files.os.fsync", fill)
        with (
            pytest.raises(WriteError) as stop,
            open_results(tmp_path, "samples", {}) as results,
        ):
            run(trained, "euler,tr", [2], sampling, results, folder=tmp_path, keep_going=True)
    assert stop.value.errno == errno.ENOSPC
    said = str(stop.value)
    assert f"cannot write {tmp_path / 'results.json'} (No space left on device)" in said
    assert f"the cells finished before are safe in {tmp_path / 'results.json'}" in said
    assert "the same command resumes" in said
    calls = trained.model.denoiser.calls
    with open_results(tmp_path, "samples", {}) as results:
        assert names(results) == {"euler"}
        run(trained, "euler,tr", [2], sampling, results, folder=tmp_path)
    assert trained.model.denoiser.calls == calls + 2, "only the lost cell is measured again"


def test_what_cannot_be_written_is_no_failed_cell():
    """Such as a cache that a task or a judge keeps: of a cell, and of real data."""

    def refuse(*arguments):
        raise WriteError("cannot write the cache")

    trained = exact()
    grid = SamplerGrid(trained, "euler", [2], (), Sampling(2))
    trained.model.denoiser.evaluate = refuse
    with pytest.raises(WriteError, match="cannot write the cache"):
        grid.run(Results(), GridOptions(keep_going=True))
    trained = exact()
    trained.task.setup = refuse
    with pytest.raises(WriteError, match="cannot write the cache"):
        run(trained, "euler", [2], Sampling(2), keep_going=True)


def _head(**changes) -> str:
    head = {"format": 2, "name": "samples", "settings": {}, "scales": {}, "notes": [], "commands": []}
    return json.dumps(head | {"versions": {}, "cells": []} | changes)


def _cell(**changes) -> str:
    cell = {"factors": {"sampler": "euler", "nfe": 2}, "records": [["error_rate", 0.5, 0.1]]}
    return _head(cells=[cell | changes])


DAMAGED = {
    "cut": _cell()[:-20],
    "another format": _head(format=1),
    "keys are missing": '{"format": 2}',
    "a key too many": _head(more=1),
    "a record of too many numbers": _cell(records=[["m", *[0.5] * 6]]),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named_and_untouched(text, tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(text.encode("latin-1"))
    with (
        pytest.raises(TauflowError) as refused,
        open_results(tmp_path, "samples", {"samplers": ["euler"]}, ("samplers",)),
    ):
        pass
    said = str(refused.value)
    assert said.startswith(f"{path} has no results that this version can read (")
    assert said.endswith("). Remove it to start again, or choose another folder.")
    assert "\n" not in said
    assert path.read_bytes() == text.encode("latin-1")


def test_a_folder_without_results(tmp_path):
    with pytest.raises(TauflowError, match=r"File not found: .*results\.json\. Choose a folder"):
        Results.read(tmp_path)


def test_infinite_numbers_survive_the_file(tmp_path):
    factors = {"sampler": "euler", "nfe": 2}
    record = Record(factors, "m", Measured(math.inf, 1.0, -math.inf, math.inf))
    Results(cells=[Cell(factors, [record])]).save(tmp_path)
    assert Results.read(tmp_path).records == [record]


def test_two_variants_of_one_method_in_one_table():
    specs = ["tr_cie", "tr_cie(grid=tau)", "tr_cie(coins=systematic, grid=tau)"]
    results = tauflow.evaluate(exact(), specs, [4, 8], 20)
    rows = Frame(results).rows("", "error_rate")
    assert rows == [REAL, "tr_cie", "tr_cie(grid=tau)", "tr_cie(grid=tau, coins=systematic)"]
    values = [Frame(results).measured("", row, 4, "error_rate").value for row in rows[1:]]
    assert len(set(values)) == 3, "each was run with its own options"
    table = to_markdown(results)
    for row in rows[1:]:
        assert f"| {row} |" in table
    assert "tr_cie(grid=tau),4,error_rate," in to_csv(results)


def test_auto_is_the_recommended_sampler():
    """The same in the library, in an evaluation, and for each process."""
    for source, expected in ((Masked(VALUES), "spaced_even"), (Uniform(VALUES), "renoise")):
        trained = exact(source)
        assert trained.model.process.recommended == expected
        assert names(tauflow.evaluate(trained, nfes=4, num_samples=2)) == {expected}
        assert tauflow.sample(trained.model, nfe=4).info.settings["sampler"] == expected
        direct = tauflow.sample(trained.model, nfe=4, count=3).tokens
        assert torch.equal(direct, tauflow.sample(trained.model, expected, nfe=4, count=3).tokens)


def test_sets_skip_what_cannot_sample_the_model():
    results = tauflow.evaluate(exact(Uniform(VALUES)), "paper", [4], 2)
    assert names(results) == set(SETS["paper"]) - {"fhs", "ho_fhs"}
    assert any("ho_fhs is skipped: " in note for note in results.notes)
    results = tauflow.evaluate(exact(), "all", [4], 2)
    uniform_only = {"tweedie_d3pm", "bridge", "bridge_systematic"}
    assert names(results) == set(SETS["all"]) - uniform_only - {"learned_order"}
    assert any(
        note.startswith("learned_order is skipped: ") and "learn_order" in note for note in results.notes
    )


def test_options_go_to_the_sampler_that_has_them():
    results = tauflow.evaluate(exact(), "tr_cie(cutoff=0.2), fhs", [4], 2)
    assert names(results) == {"tr_cie(cutoff=0.2)", "fhs"}
    with pytest.raises(SamplingError, match="sampler fhs has no option 'cutoff'; it has: order, counts"):
        tauflow.evaluate(exact(), "fhs(cutoff=0.2)", [4], 2)
    with pytest.raises(SamplingError, match="power belongs to counts="):
        tauflow.evaluate(exact(), "fhs_pairs(power=3)", [4], 2)
    with pytest.raises(SamplingError, match="weight must be at least 0 and at most 1"):
        tauflow.evaluate(exact(), "spaced(weight=-3)", [4], 2)


def test_a_prompt_holds_in_every_sample():
    trained = exact()
    prompt = trained.task.prompt("4 3 _ 1")
    (cell,) = sampled(run(trained, "tr_cie", [4], Sampling(6, 4, show=6, prompt=prompt)))
    assert all((row[0], row[1], row[3]) == (4, 3, 1) for row in cell.shown.tokens)


@pytest.mark.parametrize("shared", [False, True], ids=["rows known", "one row known"])
def test_a_prompt_for_each_sample(shared):
    """Sample i begins with token i: over batches of 4, 4 and 2, each with the seed of its batch."""
    trained = exact(Uniform(VALUES))
    drawn = []

    class Keeping(type(trained.task)):
        def sample_metrics(self):
            metrics = super().sample_metrics()
            update = metrics.update
            metrics.update = lambda tokens: (drawn.append(tokens), update(tokens))
            return metrics

    task = Keeping(length=LENGTH, values=VALUES, val_items=64)
    tokens = torch.zeros(10, LENGTH, dtype=torch.long)
    tokens[:, 0] = torch.arange(10) % VALUES
    known = torch.zeros(LENGTH if shared else (10, LENGTH), dtype=torch.bool)
    known[..., 0] = True
    results = tauflow.evaluate(
        Trained(trained.model, task), "tr_cie", [4], 10, batch_size=4, prompt=(tokens, known)
    )
    (cell,) = sampled(results)
    found = torch.cat([part for part in drawn[1:] if len(part) <= 4])
    assert found[:, 0].tolist() == tokens[:, 0].tolist()
    assert cell.shown.states[0, 0] == 0, "the first state has the prompt too"


def test_a_prompt_of_another_number_of_rows_is_refused():
    trained = exact()
    tokens, known = torch.zeros(4, LENGTH, dtype=torch.long), torch.zeros(4, LENGTH, dtype=torch.bool)
    with pytest.raises(SamplingError, match=r"shape \(10, 12\) of the samples or \(12,\), got \(4, 12\)"):
        tauflow.evaluate(trained, "tr_cie", [4], 10, batch_size=4, prompt=(tokens, known))
    with pytest.raises(SamplingError, match="pair of tensors"):
        tauflow.evaluate(trained, "tr_cie", [4], 10, prompt=tokens)
    assert trained.model.denoiser.calls == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"samplers": "fhs"},
            "fhs: .* need a masked source, this model has a uniform one; try renoise",
        ),
        ({"samplers": "eulr"}, "unknown sampler 'eulr'; did you mean euler.; known samplers: auto, euler"),
        ({"samplers": ""}, "no samplers to evaluate; name some of euler"),
        ({"samplers": "euler(theta=0.3)"}, "sampler euler has no option 'theta'"),
        ({"nfes": [2.5]}, "nfe must be a whole number of at least 1, got 2.5"),
        ({"nfes": []}, "no budget"),
        ({"num_samples": 0}, "num_samples must be a whole number"),
        ({"nll_items": -1}, "nll_items must be at least 0"),
        ({"seed": 2**32}, "seed must be a whole number"),
        ({"guidance": 2.0}, "this network takes no condition"),
        ({"guidance": [math.inf], "samplers": "euler"}, "guidance weight must be a finite number"),
        ({"condition": torch.tensor([1])}, "this network takes no condition"),
        (
            {"samplers": "theta_rk2(finish=none)", "nfes": [4, 1]},
            r"theta_rk2\(finish=none\) at NFE 1: 1 evaluations are not enough",
        ),
    ],
)
def test_bad_requests_are_refused_before_any_work(arguments, message):
    trained = exact(Uniform(VALUES))
    with pytest.raises(SamplingError, match=message):
        tauflow.evaluate(trained, **arguments)
    assert trained.model.denoiser.calls == 0


def test_a_trained_model_is_sampled_as_its_model():
    trained = exact()
    samples = [tauflow.sample(each, "euler", 4, count=2).tokens for each in (trained, trained.model)]
    assert torch.equal(*samples)
    with pytest.raises(
        SamplingError, match=r"model must be a tauflow\.Model, got int\. Pass what tauflow\.load"
    ):
        tauflow.sample(3)


def test_a_model_is_measured_with_a_function():
    def first_token(tokens):
        return tokens[:, 0].double()

    model = exact().model
    results = tauflow.evaluate(model, ["euler", "tr_cie"], [2, 4], 6, metric=first_token, batch_size=4)
    frame = results.to_frame()
    mine = frame[frame.metric == "first_token"].set_index(["sampler", "nfe"])
    assert list(mine.index) == [("euler", 2), ("tr_cie", 2), ("euler", 4), ("tr_cie", 4)]
    assert results.scales["first_token"].higher_is_better
    again = tauflow.evaluate(
        exact(), "euler", [2], 6, metric=lambda tokens: tokens[:, 0], higher_is_better=False, batch_size=4
    )
    assert not again.scales["metric"].higher_is_better
    (record,) = (each for each in again.records if each.metric == "metric")
    assert record.measured.value == mine.value["euler", 2]
    assert record.measured.standard_error == mine.standard_error["euler", 2]
    assert again.to_frame().nfe.tolist() == [2] * len(again.records), "no real data"
    with pytest.raises(SamplingError, match=r"one number per sample, shape \(4,\), got shape \(4, \d+\)"):
        tauflow.evaluate(model, "euler", 2, 6, metric=lambda tokens: tokens, batch_size=4)


def test_a_model_is_measured_by_a_task():
    def numbers(results):
        return [each for each in results.records if each.metric == "error_rate"]

    trained = exact()
    alone = tauflow.evaluate(trained.model, "euler", [2], 6, task=trained.task, batch_size=4)
    loaded = tauflow.evaluate(trained, "euler", [2], 6, batch_size=4)
    assert numbers(alone) == numbers(loaded)
    with pytest.raises(SamplingError, match=r"Pass task=, such as tauflow.Countdown\(\), or metric="):
        tauflow.evaluate(trained.model)
    with pytest.raises(SamplingError, match="task or a metric, got both"):
        tauflow.evaluate(trained.model, task=trained.task, metric=lambda tokens: tokens[:, 0])


def test_a_plain_torchmetrics_metric_has_no_standard_error():
    class Number(torchmetrics.SumMetric):
        def update(self, tokens):
            super().update(len(tokens))

    class Task(tauflow.Countdown):
        def sample_metrics(self):
            return torchmetrics.MetricCollection({"number": Number()})

    trained = Trained(exact().model, Task(LENGTH, VALUES))
    results = tauflow.evaluate(trained, "euler", 2, 6, nll_items=0)
    assert "| euler |" in results.to_markdown()
    (record,) = (each for each in results.records if each.metric == "number" and each.factors.get("nfe"))
    assert record.measured.value == 6
    assert math.isnan(record.measured.standard_error)


def test_a_data_frame_has_a_row_per_cell_and_metric(results):
    frame = results.to_frame()
    assert len(frame) == len(results.records)
    assert list(frame)[:2] == ["sampler", "nfe"]
    assert list(frame)[-6:] == ["metric", "value", "standard_error", "low", "high", "count"]
    assert frame.nfe[frame.sampler == REAL].isna().all()
    record = results.records[-1]
    assert frame.iloc[-1].value == record.measured.value
    assert frame.iloc[-1].nfe == record.factors["nfe"]


def test_a_bad_temperature_and_a_missing_task_are_refused():
    with pytest.raises(SamplingError, match="temperature must be above 0"):
        run(exact(), "euler", [2], Sampling(2, temperature=math.nan))
    with pytest.raises(SamplingError, match="Pass task="):
        tauflow.evaluate(Trained(exact().model, None), "euler", [2], 2)


def test_results_as_markdown_csv_json_and_figure(results, tmp_path):
    from tauflow.evaluation.figures import quality_figure

    frame = Frame(results)
    markdown = to_markdown(results)
    (best,) = frame.best("", 8, "error_rate")
    best_value = frame.measured("", best, 8, "error_rate")
    assert f"| {best} |" in markdown
    assert f"**{number_text(best_value)}**" in markdown
    rows = [row for row in frame.rows("", "error_rate") if row != REAL]
    assert min(frame.measured("", row, 8, "error_rate").value for row in rows) == best_value.value
    lines = to_csv(results).splitlines()
    assert len(lines) == 1 + 3 + 6 * (3 + 11 + 1), "real data; six cells with metrics, details and nll"
    assert lines[0] == "sampler,nfe,metric,value,standard_error,low,high,count"
    results.save(tmp_path / "kept")
    again = Results.read(tmp_path / "kept")
    assert to_csv(again) == to_csv(results)
    assert again.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert again.scales["error_rate"] == Scale(False, True)
    axes = quality_figure(frame, "error_rate").axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert sorted(text.get_text() for text in axes.get_legend().get_texts()) == sorted([*rows, REAL])
    save_report(results, tmp_path / "new", exact().task)
    expected = ["quality_vs_nfe.png", "results.csv", "results.json", "results.md", "samples.txt"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == expected
    assert (tmp_path / "new" / "quality_vs_nfe.png").read_bytes().startswith(b"\x89PNG")


def test_one_budget_is_one_table_with_the_metrics_as_columns(results, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    single = Results(
        cells=[cell for cell in results.cells if cell.factors.get("nfe", 8) == 8], scales=results.scales
    )
    print_results(single)
    printed = capsys.readouterr().out
    assert printed.count("┏") == 2, "and one of differences"
    header = next(line for line in printed.splitlines() if "┃ sampler" in line)
    assert [word.strip() for word in header.split("┃")[1:-1]] == [
        "sampler",
        *(f"{name} ↓" for name in (*METRICS, "nll")),
    ]
    assert printed.count("tr_cie") == 2
    assert "| sampler | error_rate ↓ | sequence_error_rate ↓ | unigram_tv ↓ | nll ↓ |" in to_markdown(single)
    print_results(results)
    printed = capsys.readouterr().out
    assert printed.count("┏") == 5, "several budgets: a table for each metric, and differences"
    assert "error_rate by NFE, lower is better, ± one standard error" in printed


def test_one_sample_has_no_standard_error_and_json_says_null(tmp_path):
    from tauflow.evaluation.figures import quality_figure

    results = tauflow.evaluate(exact(), "tr_cie", [4], 1)
    results.save(tmp_path)
    for each in (results, Results.read(tmp_path)):
        assert math.isnan(Frame(each).measured("", "tr_cie", 4, "error_rate").standard_error)
    entry = json.loads((tmp_path / "results.json").read_text())["cells"][1]
    assert entry["factors"] == {"sampler": "tr_cie", "nfe": 4}
    assert {name: numbers[1] for name, *numbers in entry["records"]}["error_rate"] is None
    quality_figure(Frame(results), "error_rate")


def test_guidance_is_counted_and_timed():
    """Two forwards an evaluation, and the time of both models is the network's."""
    trained = exact()
    slow = Model(Exact(trained.model.process, seconds=0.02), trained.model.process, (LENGTH,))
    results = run(trained, "tr_cie", [4], Sampling(2, unconditional=slow), guidance=[1.5])
    (cell,) = sampled(results)
    assert (value(cell, "counted_nfe"), value(cell, "forwards")) == (4, 8)
    seconds = value(cell, "ms_per_sample") * value(cell, "network_share") * 2 / 1000
    assert seconds > 4 * 0.02


def test_guidance_weights_are_rows_of_one_table():
    """Weight 1 is the model itself, at one forward an evaluation; any other takes two.

    Guidance helps: a weight of 3 makes the logits of 2 that the denoiser gives to what it expects into 6. The
    error rates are some 0.4 and 0.2, the standard error of one over 200 samples below 0.02.
    """
    trained = labelled()
    results = tauflow.evaluate(trained, "spaced_even", [12], 200, guidance=[1, 3])
    plain, guided = (cell_of(results, "spaced_even", 12, guidance=weight) for weight in (1, 3))
    assert (value(plain, "forwards"), value(guided, "forwards")) == (12, 24)
    assert value(plain, "counted_nfe") == value(guided, "counted_nfe") == 12
    rows = Frame(results).rows("", "error_rate")
    assert rows[1:] == ["spaced_even, guidance 1", "spaced_even, guidance 3"]
    without = tauflow.evaluate(trained, "spaced_even", [12], 200)
    assert value(plain, "error_rate") == value(cell_of(without, "spaced_even", 12), "error_rate")
    assert value(guided, "error_rate") < value(plain, "error_rate") - 0.1
    assert "| spaced_even, guidance 3 |" in to_markdown(results)


def test_conditions_are_those_of_validation_items_or_the_one_asked_for():
    trained = labelled()
    trained.task.setup()
    results = run(trained, "spaced", [12], Sampling(48, 32, show=3))
    (cell,) = sampled(results)
    first = [trained.task.val_data[number]["condition"].tolist() for number in range(3)]
    assert cell.shown.condition == first
    assert value(cell, "error_rate") < 0.5, "measured under the steps that were asked for"
    for label in range(3):
        assert not math.isnan(value(cell, f"error_rate_step_{label + 1}"))

    asked = tauflow.evaluate(trained, "spaced", [4, 12], 32, condition=trained.task.condition("2"))
    cell = cell_of(asked, "spaced", 12)
    assert cell.shown.condition == [[1]] * 4
    assert value(cell, "error_rate") == value(cell, "error_rate_step_2")
    assert math.isnan(value(cell, "error_rate_step_1"))
    assert "condition of all samples: step 2" in asked.notes
    table = to_markdown(asked)
    assert "error_rate_step_2 by NFE" in table
    assert "error_rate_step_1" not in table, "nobody was asked for step 1"
    assert samples_of(cell, trained.task)[0].startswith("step 2\n")
    with pytest.raises(SamplingError, match=r"holds 0 \.\. 2"):
        tauflow.evaluate(trained, "spaced", [4], 2, condition=torch.tensor([7]))


def test_later_batches_have_the_conditions_of_later_items():
    task = labelled().task
    task.setup()
    found = Sampling(5, 2).conditions_for(1, task)
    assert found.tolist() == [task.val_data[number]["condition"].tolist() for number in (2, 3)]


def test_real_data_of_a_condition_are_the_items_that_have_it():
    """Step 1 and step 3 have different unigram laws: real data of one condition are at the distance of that
    law."""
    trained = labelled()
    trained.task.setup()
    asked = tauflow.evaluate(trained, "spaced", [2], 64, condition=trained.task.condition("3"))
    (real,) = [cell for cell in asked.cells if cell.factors["sampler"] == REAL]
    items = [
        item for item in (trained.task.val_data[i] for i in range(64)) if item["condition"].tolist() == [2]
    ]
    metrics = trained.task.sample_metrics()
    condition = torch.full((len(items), 1), 2)
    metrics.update(torch.stack([item["tokens"] for item in items]), condition=condition)
    assert value(real, "unigram_tv") == pytest.approx(metrics.compute()["unigram_tv"][0].item())
    assert f"real data: all {len(items)} validation items, fewer than samples" in asked.notes


def test_best_ignores_what_is_no_number_and_ties_of_all():
    def frame(*values):
        factors = [{"sampler": f"s{number}", "nfe": 4} for number in range(len(values))]
        cells = [
            Cell(each, [Record(each, "m", Measured(found, 0.1))])
            for each, found in zip(factors, values, strict=True)
        ]
        return Frame(Results(cells=cells, scales={"m": Scale(False)}))

    assert frame(math.nan, 0.2, 0.1).best("", 4, "m") == ["s2"]
    assert frame(0.1, 0.1, 0.2).best("", 4, "m") == ["s0", "s1"]
    assert frame(1.0, 1.0).best("", 4, "m") == []


def test_evaluation_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    tauflow.evaluate(exact(), "tr_cie,fhs", [4], 4)
    assert torch.equal(before, torch.get_rng_state())


def test_a_table_that_is_too_wide_is_turned():
    """Nine metrics of one sampler do not fit side by side: they become rows, and nothing is wrapped."""
    header = ["sampler", *(f"a_metric_with_a_long_name_{n}" for n in range(9))]
    table = TextTable(
        "NFE 8",
        header,
        [["spaced_even", *["[bold]0.1234 ± 0.0123[/bold]"] * 9], ["(real data)", *["0.1"] * 9]],
    )
    narrow = turned(table, 120)
    assert narrow.header == ["metric", "spaced_even", "(real data)"]
    assert narrow.rows[2] == ["a_metric_with_a_long_name_2", "[bold]0.1234 ± 0.0123[/bold]", "0.1"]
    assert turned(table, 400) is table


def test_a_model_that_does_not_fit_its_task_is_refused():
    for values, length, match in (
        (VALUES + 1, LENGTH, "tokens of the task"),
        (VALUES, LENGTH + 1, "shape of the task"),
    ):
        task = tauflow.Countdown(length=length, values=values)
        with pytest.raises(SamplingError, match=match):
            tauflow.evaluate(tauflow.Trained(exact().model, task), "euler", [2], 2)
    labelled = LabelledCountdown(length=LENGTH, values=VALUES)
    with pytest.raises(SamplingError, match="conditions of the task"):
        tauflow.evaluate(tauflow.Trained(exact().model, labelled), "euler", [2], 2)


def test_notes_of_a_file_write_no_control_characters(tmp_path, capsys):
    results = Results("samples", {}, notes=["\x1b[2Jgone"])
    results.save(tmp_path)
    print_results(Results.read(tmp_path))
    assert "gone" in (printed := capsys.readouterr().out)
    assert "\x1b" not in printed


def test_masks_left_in_samples_are_noted():
    results = run(exact(), ["tr_cie(finish=none, cutoff=0.5)", "tr_cie"], [2], Sampling(4, show=4))
    (note,) = [note for note in results.notes if "leaves masks in its samples" in note]
    assert note.startswith("tr_cie(cutoff=0.5, finish=none) leaves masks in its samples: ")
