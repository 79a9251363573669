"""tauflow.evaluate on an exact denoiser and through the public API."""

import json
import math
import time

import pytest
import torch

import tauflow
from tauflow.errors import SamplingError
from tauflow.evaluation import SETS
from tauflow.oracles import countdown_posterior
from tauflow.tables import Cell, Measured, Table

LENGTH, VALUES = 12, 5


class Posterior(tauflow.Denoiser):
    """The exact denoiser of countdown; `fail_after` evaluations it fails."""

    def __init__(self, source, fail_after=math.inf):
        self.source, self.fail_after, self.calls = source, fail_after, 0

    def evaluate(self, x, t):
        from tauflow.denoisers import LogitsEvaluation

        self.calls += 1
        if self.calls > self.fail_after:
            raise RuntimeError("the network is broken")
        return LogitsEvaluation(countdown_posterior(x, t, self.source, tauflow.schedule_from("quadratic"), leak=1e-3).log())


def exact_run(source=None, **kwargs):
    source = source or tauflow.Masked(VALUES)
    task = tauflow.Countdown(length=LENGTH, values=VALUES, val_items=64)
    return tauflow.Run(task, Posterior(source, **kwargs), source, tauflow.schedule_from("quadratic"))


@pytest.fixture(scope="module")
def table():
    return tauflow.evaluate(exact_run(), ["euler", "tr_cie", "ho_fhs"], [2, 8], 50, batch_size=16, show=3)


def test_every_cell_is_measured_counted_and_timed(table):
    assert [(cell.sampler, cell.nfe) for cell in table.cells] == [(name, nfe) for nfe in (2, 8) for name in ("euler", "tr_cie", "ho_fhs")]
    for cell in table.cells:
        assert cell.samples == 50
        assert cell.counted_nfe == cell.nfe
        assert 0 < cell.network_seconds < cell.seconds
        assert torch.tensor(cell.shown).shape == (3, LENGTH)
        assert set(cell.metrics) == {"error_rate", "sequence_error_rate", "unigram_tv"}
        assert 0 <= cell.metrics["error_rate"].value <= 1
    assert table.cell("tr_cie", 8).clamped > 0
    assert table.cell("euler", 8).several_events > 0


def test_values_and_errors_are_those_of_the_samples(table):
    """All 50 samples are drawn again, batch by batch, with the documented seeds; mean and standard error are computed by hand."""
    from tauflow.seeds import seed_of
    from tauflow.tasks.countdown import violations

    run = exact_run()
    sizes = [16, 16, 16, 2]
    parts = [
        tauflow.sample(run.denoiser, run.source, run.schedule, (size, LENGTH), "tr_cie", 8, seed=seed_of("evaluation", 0, i)).tokens
        for i, size in enumerate(sizes)
    ]
    rates = violations(torch.cat(parts), VALUES).double().mean(1)
    found = table.measured("error_rate", "tr_cie", 8)
    assert found.value == pytest.approx(rates.mean().item())
    assert found.standard_error == pytest.approx(rates.std().item() / math.sqrt(50))
    assert table.cell("tr_cie", 8).shown == parts[0][:3].tolist()


def test_all_samplers_begin_from_the_same_noise():
    table = tauflow.evaluate(exact_run(tauflow.Uniform(VALUES)), "euler,tr_cie,tweedie", [3], 4, batch_size=4)
    starts = [cell.states[0] for cell in table.cells]
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0], starts[2])
    for cell in table.cells:
        assert cell.states.shape == (4, LENGTH)  # x_0, two steps, the draw
        assert cell.states[-1].tolist() == cell.shown[0]


def test_real_data_is_the_reference(table):
    assert table.reference["error_rate"].value == 0
    assert 0 < table.reference["unigram_tv"].value < 0.2


def test_standard_error_of_the_unigram_distance_is_its_spread():
    """The distance of 200 independent sets of 50 sequences spreads as the error of one set says.

    The expected ratio is 1; each single estimate of an error varies by about 10 %, their mean over 200 by less than 1 %, and the spread of
    200 values is known to 5 % (one sigma), so 25 % is five sigma.
    """
    task = tauflow.Countdown(length=24, values=4, val_items=10_000)
    task.setup()
    tokens = torch.stack([item["tokens"] for item in task.val_data.__getitems__(list(range(10_000)))])
    tokens = torch.where(torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.5, tokens, 0)  # far from the law
    values, errors = [], []
    for part in tokens.split(50):
        metric = task.sample_metrics()["unigram_tv"]
        metric.update(part)
        value, error = metric.compute()
        values.append(value)
        errors.append(error)
    assert torch.stack(errors).mean().item() == pytest.approx(torch.stack(values).std().item(), rel=0.25)


def test_a_clean_first_batch_does_not_merge_metrics():
    """torchmetrics shares the state of metrics that are equal after their first batch, unless told not to."""
    metrics = tauflow.Countdown(length=4, values=3).sample_metrics()
    metrics.update(torch.tensor([[2, 1, 0, 2]]))
    metrics.update(torch.tensor([[2, 2, 1, 0]]))
    result = metrics.compute()
    assert result["error_rate"][0].item() == pytest.approx(1 / 6)
    assert result["sequence_error_rate"][0].item() == pytest.approx(1 / 2)


def test_a_failing_sampler_is_noted_and_the_others_go_on():
    run = exact_run(fail_after=6)
    table = tauflow.evaluate(run, ["euler", "tr_cie"], [4], 4, batch_size=4, keep_going=True)
    assert table.measured("error_rate", "euler", 4)
    assert table.cell("tr_cie", 4).problem == "failed: RuntimeError: the network is broken"
    assert "tr_cie at NFE 4: failed: RuntimeError: the network is broken" in table.to_markdown()
    with pytest.raises(RuntimeError, match="the network is broken"):
        tauflow.evaluate(exact_run(fail_after=2), ["euler"], [4], 4)


def test_what_there_is_no_time_for_is_said():
    asked = iter(["", "", "the time is over"])
    table = tauflow.evaluate(exact_run(), ["euler", "tr_cie"], [2, 4], 4, until=lambda: next(asked, "the time is over"))
    assert [cell.problem for cell in table.cells] == ["", "", *["skipped: the time is over"] * 2]
    assert table.to_markdown().count("skipped: the time is over") == 2


def test_finished_cells_are_not_made_again(table):
    run = exact_run(fail_after=0)
    again = tauflow.evaluate(run, ["euler", "tr_cie", "ho_fhs"], [2, 8], 50, batch_size=16, show=3, done=table.cells)
    assert run.denoiser.calls == 0
    assert again.to_csv() == table.to_csv()


def test_sets_leave_out_what_the_source_does_not_support():
    table = tauflow.evaluate(exact_run(tauflow.Uniform(VALUES)), "paper", [4], 2)
    assert set(table.samplers) == set(SETS["paper"]) - {"fhs", "ho_fhs"}
    assert any("ho_fhs is left out" in note for note in table.notes)
    table, uniform_only = tauflow.evaluate(exact_run(), "all", [4], 2), {"tweedie_d3pm", "bridge", "bridge_systematic"}
    assert set(table.samplers) == set(tauflow.SAMPLERS) - uniform_only - {"learned_order"}
    assert "learned_order is left out: this run has no learned order; make one with tauflow.learn_order" in table.notes


def test_options_go_to_the_samplers_that_have_them():
    table = tauflow.evaluate(exact_run(), "tr_cie,fhs", [4], 2, cutoff=0.2, temperature=0.5)
    assert table.cell("tr_cie", 4).settings["cutoff"] == 0.2
    assert "cutoff=0.2 does not apply to fhs" in table.notes


def test_options_that_a_member_of_a_set_cannot_have_are_left_to_the_others():
    table = tauflow.evaluate(exact_run(), "beyond", [4], 2, power=3.0)
    assert table.cell("spaced", 4).settings["power"] == 3
    assert table.cell("fhs_pairs", 4).settings["power"] is None
    assert any(note.startswith("fhs_pairs keeps its own options: power belongs to counts=") for note in table.notes)
    with pytest.raises(SamplingError, match="fhs_pairs: power belongs to counts="):
        tauflow.evaluate(exact_run(), "spaced,fhs_pairs", [4], 2, power=3.0)
    with pytest.raises(SamplingError, match="weight must be in"):
        tauflow.evaluate(exact_run(), "beyond", [4], 2, weight=-3.0)
    with pytest.raises(SamplingError, match="dense is the literal algorithm of samplers that leap, not of Reveal"):
        tauflow.evaluate(exact_run(), "euler,fhs", [4], 2, dense=True)


def test_a_prompt_holds_in_every_sample():
    run = exact_run()
    tokens, known = run.task.prompt("4 3 _ 1")
    table = tauflow.evaluate(run, "tr_cie", [4], 6, batch_size=4, show=6, prompt=tokens, prompt_mask=known)
    (cell,) = table.cells
    assert all((row[0], row[1], row[3]) == (4, 3, 1) for row in cell.shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samplers": "fhs"}, "fhs does not support the uniform source of this model; try one of euler"),
        ({"samplers": "eulr"}, "unknown sampler 'eulr'; known samplers: euler"),
        ({"samplers": ""}, "unknown sampler ''"),
        ({"nfes": [2.5]}, "whole number of at least 1, got 2.5"),
        ({"temperature": math.nan}, "temperature must be above 0"),
        ({"nfes": [0]}, "whole number of at least 1"),
        ({"nfes": []}, "a budget"),
        ({"num_samples": 0}, "num_samples >= 1"),
        ({"samplers": "euler", "theta": 0.3}, "none of euler has the option theta"),
        ({"samplers": "theta_rk2", "nfes": [4, 1], "finish": "none"}, "theta_rk2 at NFE 1: 1 evaluations are not enough"),
    ],
)
def test_bad_requests_are_refused_before_any_work(arguments, message):
    run = exact_run(tauflow.Uniform(VALUES))
    with pytest.raises(SamplingError, match=message):
        tauflow.evaluate(run, **arguments)
    assert run.denoiser.calls == 0


def test_table_as_markdown_csv_json_and_plot(table, tmp_path):
    markdown = table.to_markdown()
    (best,) = table.best("error_rate", 8)
    assert f"| {best} |" in markdown
    assert f"**{table.measured('error_rate', best, 8)}**" in markdown
    assert min(table.measured("error_rate", name, 8).value for name in table.samplers) == table.measured("error_rate", best, 8).value
    lines = table.to_csv().splitlines()
    assert len(lines) == 1 + 6 * 3 + 3
    assert lines[0].startswith("sampler,nfe,counted_nfe,forwards,samples,seconds")
    again = Table.from_json(table.to_json())
    assert again.to_csv() == table.to_csv()
    assert again.versions["torch"] == torch.__version__.split("+")[0] or again.versions["torch"] == torch.__version__
    axes = table.plot("error_rate").axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == table.samplers
    table.save(tmp_path / "new", exact_run().task)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        *("quality_vs_nfe.png", "results.csv", "results.json", "results.md", "samples.txt"),
    ]
    assert (tmp_path / "new" / "quality_vs_nfe.png").read_bytes().startswith(b"\x89PNG")


def test_one_sample_has_no_standard_error_and_json_says_null():
    table = tauflow.evaluate(exact_run(), "tr_cie", [4], 1)
    assert math.isnan(table.measured("error_rate", "tr_cie", 4).standard_error)
    assert json.loads(table.to_json())["cells"][0]["metrics"]["error_rate"]["standard_error"] is None
    assert math.isnan(Table.from_json(table.to_json()).measured("error_rate", "tr_cie", 4).standard_error)
    table.plot()


def test_guidance_is_counted_and_timed():
    """Two forwards an evaluation, and the time of both models is the network's."""
    run = exact_run()

    class Slow(Posterior):
        def evaluate(self, x, t):
            time.sleep(0.02)
            return super().evaluate(x, t)

    table = tauflow.evaluate(run, "tr_cie", [4], 2, guidance=(Slow(run.source), 1.5))
    (cell,) = table.cells
    assert (cell.counted_nfe, cell.forwards) == (4, 8)
    assert cell.network_seconds > 4 * 0.02


def test_best_ignores_what_is_no_number_and_ties_of_all():
    def table(*values):
        cells = [Cell(f"s{n}", 4, metrics={"m": Measured(value, 0.1)}) for n, value in enumerate(values)]
        return Table(cells, {"m": False})

    assert table(math.nan, 0.2, 0.1).best("m", 4) == ["s2"]
    assert table(0.1, 0.1, 0.2).best("m", 4) == ["s0", "s1"]
    assert table(1.0, 1.0).best("m", 4) == []


def test_evaluation_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    tauflow.evaluate(exact_run(), "tr_cie,fhs", [4], 4)
    assert torch.equal(before, torch.get_rng_state())
