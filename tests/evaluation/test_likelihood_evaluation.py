"""nll in evaluations: that of tauflow.nll on validation items, paired over samplers, kept and shown."""

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from test_evaluate import LENGTH, VALUES, cell_of, exact, labelled, run, sampled, value

import tauflow
from tauflow import Masked, Mixture, Model, Trained, Uniform
from tauflow.evaluation.evaluate import SamplerGrid, Sampling
from tauflow.evaluation.figures import quality_figure, save_report
from tauflow.evaluation.results import REAL, Cell, Measured, Record, Results, Scale, open_results
from tauflow.evaluation.tables import Frame, number_text, print_results, to_csv, to_markdown
from tauflow.evaluation.tensorboard import write_grid
from tauflow.numerics import generator_for
from tauflow.samplers.random import sample_categorical
from tauflow.samplers.tweedie import Tweedie


def nats_of(model, task, sampler, nfe, count=16, size=64) -> torch.Tensor:
    """Nats for each coordinate of the first items, in batches with the documented seeds."""
    task.setup()
    items = [task.val_data[number] for number in range(count)]
    found = []
    for number, begin in enumerate(range(0, count, size)):
        part = items[begin : begin + size]
        tokens = torch.stack([item["tokens"] for item in part])
        condition = torch.stack([item["condition"] for item in part]) if task.conditions else None
        seed = generator_for("evaluation", 0, number)
        found.append(tauflow.nll(model, sampler, nfe, tokens, condition=condition, seed=seed))
    return torch.cat(found) / task.length


def test_more_items_than_there_are_means_all_of_them():
    found = tauflow.evaluate(exact(), "euler", 2, 2, nll_items=10**9)
    assert len(found.cells[-1].items["nll"]) == 64
    assert "nll: all 64 validation items" in found.notes


def test_it_is_that_of_the_first_validation_items():
    """Ten items in batches of 4, 4 and 2, whose mean and standard error are computed by hand."""
    trained = exact()
    results = tauflow.evaluate(trained, ["euler", "spaced"], [2, 4], 6, batch_size=4, nll_items=10)
    for cell in sampled(results):
        nats = nats_of(trained.model, trained.task, cell.factors["sampler"], cell.factors["nfe"], 10, 4)
        assert cell.items == {"nll": pytest.approx(nats.tolist())}
        (found,) = [record.measured for record in cell.records if record.metric == "nll"]
        assert found.value == pytest.approx(nats.mean().item())
        assert found.standard_error == pytest.approx(nats.std().item() / math.sqrt(10))
        assert found.count == 10
    assert results.scales["nll"] == Scale(higher_is_better=False, logarithmic=False)
    (real,) = [cell for cell in results.cells if cell.factors["sampler"] == REAL]
    assert "nll" not in {record.metric for record in real.records}


def test_conditions_guidance_and_temperature_count():
    trained = labelled()
    results = run(trained, "spaced", [6], Sampling(2, temperature=0.8), guidance=[1, 2])
    for weight in (1, 2):
        model = trained.model if weight == 1 else trained.model.guided(weight)
        nats = nats_of(model.tempered(0.8), trained.task, "spaced", 6)
        assert cell_of(results, "spaced", 6, guidance=weight).items["nll"] == pytest.approx(nats.tolist())
    assert "minus nll of spaced, guidance 1 on the same items" in to_markdown(results)


def test_differences_are_those_of_the_same_items(capsys):
    trained = exact()
    results = tauflow.evaluate(trained, ["tweedie", "spaced", "fhs"], [2, 4], 2)
    table = (
        to_markdown(results).partition("nll minus nll of tweedie on the same items")[2].partition("Cost")[0]
    )
    for sampler in ("spaced", "fhs"):
        words = []
        for nfe in (2, 4):
            ours, theirs = (nats_of(trained.model, trained.task, name, nfe) for name in (sampler, "tweedie"))
            differences = ours - theirs
            error = differences.std().item() / 4
            words.append(number_text(Measured(differences.mean().item(), error)))
        assert f"| {sampler} | {' | '.join(words)} |" in table
    assert "| tweedie |" not in table
    print_results(results)
    assert (
        "nll minus nll of tweedie on the same items, by NFE, ± one standard error" in capsys.readouterr().out
    )
    assert "on the same items" not in to_markdown(tauflow.evaluate(trained, "tweedie", [2], 2))


class Bits(tauflow.Countdown):
    """Countdown whose bound is in bits too."""

    units: ClassVar = {"bits": 1 / math.log(2)}


def test_units_of_the_task():
    trained = Trained(exact().model, Bits(length=LENGTH, values=VALUES, val_items=64))
    results = tauflow.evaluate(trained, ["tweedie", "spaced"], [4], 2)
    cell = cell_of(results, "spaced", 4)
    assert value(cell, "nll_bits") == pytest.approx(value(cell, "nll") / math.log(2))
    table = to_markdown(results)
    assert "| nll ↓ | nll_bits ↓ |" in table
    assert (
        table.count("on the same items")
        == table.count("nll_bits minus nll_bits of tweedie on the same items")
        == 1
    )


def test_a_mean_over_seeds_is_one_over_items():
    """Seeds look at the same items: two of them are no more items, and their error is that over items."""
    cells = []
    for sampler, shift in (("a", 0.0), ("b", 1.0)):
        for seed, numbers in enumerate(([1.0, 3.0], [2.0, 6.0])):
            factors = {"sampler": sampler, "nfe": 4, "seed": seed}
            items = [number + shift * seed for number in numbers]
            cells.append(Cell(factors, [Record(factors, "nll", Measured.mean(items))], items={"nll": items}))
    frame = Frame(Results(cells=cells, scales={"nll": Scale()}))
    assert frame.measured("", "a", 4, "nll") == Measured(3.0, 1.5, count=2.0)
    assert frame.difference("", "b", "a", 4, "nll") == Measured(0.5, 0.0, count=2.0)
    assert frame.difference("", "b", "a", 8, "nll") is None


@dataclass(frozen=True)
class Own(Tweedie):
    """Draws tokens with a function of its own."""

    def step(self, problem, state, plan, n, generator):
        state, info = super().step(problem, state, plan, n, generator)
        drawn = sample_categorical(torch.ones(state.x.numel(), VALUES), generator).view_as(state.x)
        return type(state)(torch.where(state.x < VALUES, drawn, state.x), state.posterior), info


class Without(tauflow.Countdown):
    alone = "the corpus is lost"


PROMPT = (torch.zeros(LENGTH, dtype=torch.long), torch.arange(LENGTH) < 2)


@pytest.mark.parametrize(
    ("trained", "arguments", "note"),
    [
        (exact(Uniform(VALUES)), {}, "no nll: the likelihood needs a masked source"),
        (
            exact(),
            {"prompt": PROMPT},
            "no nll: it is measured on validation items, which don't have your condition",
        ),
        (labelled(), {"condition": torch.tensor([1])}, "no nll: it is measured on validation items"),
        (
            Trained(exact().model, Without(length=LENGTH, values=VALUES)),
            {},
            "no nll: there is no real data",
        ),
        (exact(), {"samplers": "tr_cie(finish=none)"}, "no nll: finish=none leaves masks"),
        (exact(), {"samplers": Own()}, "draws tokens itself"),
        (exact(), {"nll_items": 0}, ""),
    ],
)
def test_where_there_is_none_a_note_says_why(trained, arguments, note):
    results = tauflow.evaluate(trained, **{"samplers": "tr_cie", "nfes": [2], "num_samples": 2} | arguments)
    (cell,) = sampled(results)
    assert not cell.items
    assert "nll" not in {record.metric for record in cell.records}
    said = [line for line in results.notes if "nll" in line]
    assert len(said) == bool(note)
    assert not said or note in said[0]
    assert "| nll" not in to_markdown(results)


def test_the_other_samplers_have_theirs():
    results = tauflow.evaluate(exact(), ["tr_cie(finish=none)", Own(), "tweedie", "fhs"], [2], 2)
    assert [bool(cell.items) for cell in sampled(results)] == [False, False, True, True]
    said = [line for line in results.notes if line.startswith("no nll of ")]
    assert [line.split()[3].rstrip(":") for line in said] == ["tr_cie(finish=none)", str(Own())]
    assert "minus nll of tweedie on the same items" in to_markdown(results)


def test_a_folder_from_before_is_continued(tmp_path):
    """Cells without nll stay as they are, with a note; new ones have it."""
    settings = {"samplers": ["tweedie"]}
    with open_results(tmp_path, "samples", settings, ("samplers",)) as results:
        run(exact(), "tweedie", [2], Sampling(4, nll_items=0), results, folder=tmp_path)
    before = cell_of(results, "tweedie", 2).records
    path = tmp_path / "results.json"
    old = json.loads(path.read_text())
    del old["scales"]["nll"]
    assert all("items" not in cell for cell in old["cells"]), "as it was written then"
    path.write_text(json.dumps(old))
    settings = {"samplers": ["tweedie", "spaced", "fhs"], "nll_items": 16}
    with open_results(tmp_path, "samples", settings, ("samplers",)) as results:
        run(exact(), ["tweedie", "spaced", "fhs"], [2], Sampling(4), results, folder=tmp_path)
    again = Results.read(tmp_path)
    assert cell_of(again, "tweedie", 2).records == before
    assert not cell_of(again, "tweedie", 2).items
    assert cell_of(again, "fhs", 2).items == cell_of(results, "fhs", 2).items
    assert len(cell_of(again, "fhs", 2).items["nll"]) == 16
    assert any("some cells have no nll" in note for note in again.notes)
    assert "nll minus nll of spaced on the same items" in to_markdown(again)


def clamped() -> Trained:
    """A model under which the extrapolated row of most tokens is clamped to 0 in the second step."""

    def denoiser(x, t):
        revealed = (x != VALUES).any(1)[:, None, None]
        sure = torch.full((VALUES,), -9.0)
        sure[0] = 0
        return torch.where(revealed, sure, torch.zeros(VALUES)).expand(*x.shape, VALUES)

    model = Model(denoiser, Mixture(Masked(VALUES), "linear"), (LENGTH,))
    return Trained(model, exact().task)


def test_infinite_values_are_shown_and_break_nothing(tmp_path, capsys):
    from conftest import read_scalars

    trained = clamped()
    results = tauflow.evaluate(trained, ["fhs", "fhs_pairs"], [3, 4], 2)
    assert value(cell_of(results, "fhs_pairs", 3), "nll") == math.inf
    assert math.isfinite(value(cell_of(results, "fhs", 3), "nll"))
    save_report(results, tmp_path / "kept", trained.task)
    again = Results.read(tmp_path / "kept")
    assert [cell.items for cell in again.cells] == [cell.items for cell in results.cells]
    assert to_csv(again) == to_csv(results)
    assert to_markdown(again).count("| fhs_pairs | inf | inf |") == 2, "the table and the differences"
    print_results(again)
    assert "│ fhs_pairs │" in capsys.readouterr().out
    quality_figure(Frame(again), "nll").canvas.draw()
    write_grid(results, tmp_path / "board", trained.task, 7)
    assert read_scalars(tmp_path / "board" / "fhs_pairs")["nll/nfe_3"] == [(7, math.inf)]
    assert [nfe for nfe, _ in read_scalars(tmp_path / "board" / "fhs")["nll_vs_nfe"]] == [3, 4]
    alone = tauflow.evaluate(trained, ["fhs_pairs"], [3], 2)
    quality_figure(Frame(alone), "nll").canvas.draw()


def test_the_progress_bar_counts_its_batches():
    from rich.progress import Progress

    seen = []

    class Bar(Progress):
        def update(self, task_id, **changes):
            super().update(task_id, **changes)
            seen.append((self.tasks[-1].completed, self.tasks[-1].total))

    grid = SamplerGrid(exact(), "spaced", [2], (), Sampling(6, 4, nll_items=10))
    with Bar(disable=True) as bar:
        grid.measure({"sampler": "spaced", "nfe": 2}, bar)
    assert seen == [(done, 5) for done in range(1, 6)], "two batches of samples, three of items"
