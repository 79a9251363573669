"""Studies of samplers at equal entropy, by their transitions, with errors of the denoiser: their maths."""

import math

import pytest
import torch

from benchmarks.studies.bigrams import BigramTask
from benchmarks.studies.correctors import Correctors, constant, early
from benchmarks.studies.frontier import Frontier, Point, excess, excess_table, matched
from benchmarks.studies.laws import ChainTask, exact
from benchmarks.studies.overview import revealed_in
from benchmarks.studies.study import Settings, records
from benchmarks.studies.subjects import Diverse, with_learned
from benchmarks.studies.transitions import (
    SupportViolations,
    TransitionDivergence,
    TransitionEntropy,
    TransitionTotalVariation,
)
from benchmarks.theory.laws import Chain, transition_counts
from tauflow.evaluation.results import REAL, Cell, Measured, Results, Scale
from tauflow.evaluation.tables import Frame
from tauflow.numerics import generator_for
from tauflow.samplers import sampler_from


def point(entropy: float, quality: float, temperature: float = 1.0, errors=(0.0, 0.0)) -> Point:
    return Point(Measured(entropy, errors[0]), Measured(quality, errors[1]), temperature)


# Quality at the entropy of data


def test_excess_at_the_entropy_of_data():
    """By hand: 3/4 of the way from (2, 1) to (4, 5) quality is 4, and the curve has slope 2."""
    curve = [point(2.0, 1.0, 0.8, (0.1, 0.2)), point(4.0, 5.0, 1.2, (0.3, 0.4)), point(5.0, 5.0, 1.4)]
    found = excess(curve, point(3.5, 0.5, errors=(0.05, 0.06)))
    assert found.quality.value == pytest.approx(3.5)
    assert found.temperature == pytest.approx(1.1)
    squares = (0.25 * 0.2) ** 2 + (0.75 * 0.4) ** 2 + 0.06**2  # of qualities
    squares += 2**2 * ((0.25 * 0.1) ** 2 + (0.75 * 0.3) ** 2 + 0.05**2)  # of entropies, times the slope
    assert found.quality.standard_error == pytest.approx(math.sqrt(squares))


def test_the_error_of_an_excess_is_that_of_repeated_measurements():
    """All five numbers drawn anew many times: the spread of the excess is the error that is stated."""
    errors, generator = (0.02, 0.03), torch.Generator().manual_seed(0)

    def once(entropy: float, quality: float, temperature: float = 1.0, scale: float = 1.0) -> Point:
        noise = scale * torch.randn(2, generator=generator, dtype=torch.float64)
        both = (entropy + errors[0] * noise[0].item(), quality + errors[1] * noise[1].item())
        return point(*both, temperature, errors)

    draws = [excess([once(2, 1, 0.8), once(3, 2.5, 1.2)], once(2.4, 1.2)) for _ in range(4000)]
    stated = excess([once(2, 1, 0.8, 0), once(3, 2.5, 1.2, 0)], once(2.4, 1.2, 1, 0)).quality.standard_error
    found = torch.tensor([each.quality.value for each in draws], dtype=torch.float64).std().item()
    assert found == pytest.approx(stated, rel=0.05)  # four standard errors of a deviation of 4000 draws


def test_a_curve_that_never_has_the_entropy_of_data_has_no_excess():
    curve = [point(2.0, 1.0, 0.8), point(3.0, 2.0, 1.2)]
    assert matched(curve, Measured(3.1)) is None
    assert matched(curve[:1], Measured(2.0)) is None


def test_of_several_places_the_one_near_temperature_1_counts():
    """Down to entropy 1 at T = 0.9 and up again: 1.5 is passed at T = 0.7 and at T = 1.1."""
    curve = [point(2.0, 9.0, 0.5), point(1.0, 1.0, 0.9), point(2.0, 3.0, 1.3)]
    assert matched(curve, Measured(1.5)).temperature == pytest.approx(1.1)
    assert matched(curve, Measured(1.5)).quality.value == pytest.approx(2.0)


def frontier_results(
    curves: dict[str, list[tuple[float, float, float]]], data: tuple[float, float]
) -> Results:
    """Return results with (temperature, entropy, perplexity) of samplers at NFE 8, and of real data."""
    place = {"data": "markov law", "source": "masked"}
    cells = []
    for sampler, points in curves.items():
        for temperature, bits, perplexity in points:
            factors = place | {"sampler": sampler, "nfe": 8, "temperature": temperature, "seed": 0}
            found = {"perplexity": Measured(perplexity), "transition_bits": Measured(bits)}
            cells.append(Cell(factors, records(factors, found)))
    factors = place | {"sampler": REAL, "seed": 0}
    found = {"perplexity": Measured(data[1]), "transition_bits": Measured(data[0])}
    cells.append(Cell(factors, records(factors, found)))
    scales = {"perplexity": Scale(), "transition_bits": Scale(None, False)}
    return Results("frontier", {}, cells, scales)


def test_the_table_of_excesses_compares_logarithms_of_perplexities():
    e = math.e
    curves = {
        "euler": [(0.8, 2.0, e**2), (1.2, 4.0, e**4)],
        "tr_cie": [(0.8, 2.0, e), (1.2, 4.0, e**2)],
        "confidence": [(0.8, 1.0, e), (1.2, 2.0, e)],
    }
    table = excess_table(Frame(frontier_results(curves, (3.0, e)), Frontier.view), "markov law, masked")
    assert table.splitlines() == [
        "| markov law, masked: excess of ln perplexity | 8 |",
        "|---|---|",
        "| euler | 2.000 (T 1.00) |",
        "| tr_cie | **0.5000 (T 1.00)** |",
        "| confidence | entropy too low |",
    ]


# Transitions


CHAIN = Chain.markov(4, 1.0)


def test_draws_of_a_chain_are_at_the_floor_of_counting():
    """2 n KL is chi-squared with V (V - 1) = 12 degrees of freedom: at most 12 + 5 sqrt(24). Another chain,
    and independent tokens of the same law, are far from it; so are they in total variation."""
    tokens = CHAIN.sample(500, 41, generator_for("draws"))
    count = 500 * 40
    divergence, variation = (
        kind(CHAIN.transition) for kind in (TransitionDivergence, TransitionTotalVariation)
    )
    divergence.update(tokens)
    variation.update(tokens)
    assert 2 * count * divergence.compute()[0] < 12 + 5 * math.sqrt(24)
    assert variation.compute()[0] < 0.02
    shuffled = tokens[:, torch.randperm(41, generator=generator_for("places"))]
    for metric in (divergence, variation):
        metric.reset()
        metric.update(shuffled)
        assert metric.compute()[0] > 0.1


def test_transition_metrics_by_hand():
    """Sequences 0 0 1 and 0 1 1: after 0 comes 0 once and 1 twice; after 1 comes 1."""
    tokens = torch.tensor([[0, 0, 1], [0, 1, 1]])
    transition = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)

    def value(metric) -> float:
        metric.update(tokens)
        return metric.compute()[0].item()

    after = math.log(2 / 3 / 0.5) * 2 / 4 + math.log(1 / 3 / 0.5) / 4 + math.log(1 / 0.75) / 4
    assert value(TransitionDivergence(transition)) == pytest.approx(after)
    assert value(TransitionTotalVariation(transition)) == pytest.approx(0.75 / 6 + 0.25 / 4)
    assert value(TransitionEntropy(2)) == pytest.approx(0.75 * (math.log2(3) - 2 / 3))
    possible = torch.tensor([[False, True], [True, True]])
    assert value(SupportViolations(possible)) == pytest.approx(0.25)  # of 4, 0 -> 0 once


@pytest.mark.parametrize("kind", ["kl", "tv", "bits"])
def test_the_error_of_a_transition_metric_is_that_over_samples(kind):
    """Many sets of samples of another chain than the one they are compared with."""
    other = Chain.markov(4, 1.0, seed=1)
    make = {
        "kl": lambda: TransitionDivergence(CHAIN.transition),
        "tv": lambda: TransitionTotalVariation(CHAIN.transition),
        "bits": lambda: TransitionEntropy(4),
    }[kind]
    found = []
    for tokens in other.sample(200 * 100, 20, generator_for("errors")).split(100):
        metric = make()
        metric.update(tokens)
        found.append(metric.compute())
    values, errors = torch.tensor(found, dtype=torch.float64).T
    assert errors.mean().item() == pytest.approx(values.std().item(), rel=0.2)  # of 200: four times 5 %


def test_the_fitted_chain_of_a_text():
    """Of "abab" and "aca": a is followed by b twice and c once. Unseen transitions have the smoothing only,
    and the support is that of the counts."""
    task = BigramTask("ababaca", length=6, smoothing=0.01)
    assert task.characters == ["a", "b", "c"]
    assert task.support.tolist() == [[False, True, True], [True, False, False], [True, False, False]]
    law = torch.tensor([3, 2, 1], dtype=torch.float64) / 6  # of what follows
    rows = torch.tensor([[0, 2 / 3, 1 / 3], [1, 0, 0], [1, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(task.chain.transition, 0.99 * rows + 0.01 * law)
    assert task.show(torch.tensor([[0, 1, 0, 2, 0, 1]])) == ["abacab"]


def test_a_token_that_nothing_follows_is_followed_by_the_law_of_tokens():
    counts = transition_counts(torch.tensor([[0, 1, 0, 2]]), 3)
    torch.testing.assert_close(
        Chain.fitted(counts, 0.0).transition[2], torch.tensor([1, 1, 1], dtype=torch.float64) / 3
    )


# Subjects


def test_errors_of_an_exact_denoiser():
    """All masked, the posterior is the stationary law; the share of any token is mixed in, and it falls."""
    task = ChainTask(CHAIN, 3)
    x = torch.full((2, 3), 4)
    t = torch.tensor([0.25, 0.75])
    rows = [
        exact(task, "masked", wrong=wrong).model.denoiser.evaluate(x, t).dense().double()
        for wrong in (None, constant, early)
    ]
    torch.testing.assert_close(rows[1], 0.98 * rows[0] + 0.02 / 4, atol=1e-6, rtol=0)
    share = torch.tensor([0.15, 0.05], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(rows[2], (1 - share) * rows[0] + share / 4, atol=1e-6, rtol=0)


def test_the_error_is_in_what_the_context_says():
    """One coordinate from noise: its context is the law of tokens, and its own evidence stays as it is."""
    trained = exact(ChainTask(CHAIN, 1), "uniform", wrong=constant)
    x, t = torch.tensor([[2]]), torch.tensor([0.9])
    rows = trained.model.process.evidence(x, t) * (0.98 * CHAIN.start + 0.02 / 4)
    found = trained.model.denoiser.evaluate(x, t).dense().double()
    torch.testing.assert_close(found, rows / rows.sum(-1, keepdim=True), atol=1e-6, rtol=0)


def test_budgets_of_correctors_end_at_four_evaluations_a_token():
    class Short(Correctors):
        laws = ()

        def named_models(self):
            trained = exact(ChainTask(CHAIN, 4), "masked")
            return [({"data": "x", "source": "masked"}, self.law(trained))]

    study = Short(Settings(samples=2, seeds=(0,), nfes=(8, 16, 17, 64), samplers=("euler",)))
    assert [cell["nfe"] for cell in study.cells() if cell["sampler"] != REAL] == [8, 16]


def test_samplers_are_measured_where_they_can_be_used():
    class Tiny(Frontier):
        def named_models(self):
            models = [exact(ChainTask(CHAIN, 4), source) for source in ("masked", "uniform")]
            return [({"data": "x", "source": each.model.process.name}, each) for each in models]

    study = Tiny(Settings(samples=2, seeds=(0,), nfes=(2,), samplers=("spaced", "bridge", "users")))
    chosen = {subject.factors["source"]: set(subject.samplers) for subject in study.subjects}
    assert {"spaced", "confidence"} <= chosen["masked"]
    assert chosen["uniform"] == {"bridge"}
    assert any(note.startswith("spaced is skipped: ") for note in study.notes)
    only = Tiny(Settings(samples=2, seeds=(0,), nfes=(2,), samplers=("spaced",)))
    assert {cell["source"] for cell in only.cells()} == {"masked"}


def test_samplers_get_what_they_ask_for():
    trained = exact(ChainTask(CHAIN, 8), "masked")
    plain = with_learned(trained, ["euler", "spaced"], 2).model
    assert (plain.order, plain.influence, plain.counts) == (None, None, ())
    learned = with_learned(trained, ["every"], 2).model
    assert not sampler_from("learned_order").unsupported_reason(learned)
    assert not sampler_from("independent").unsupported_reason(learned)
    assert {each.order for each in learned.counts} == {"spaced", "random", "learned"}
    auto = with_learned(trained, ["euler", "auto"], 2).model
    assert {each.order for each in auto.counts} == {"spaced", "random", "learned"}, "to choose from"
    assert {each.order for each in with_learned(trained, ["spaced_learned"], 2).model.counts} == {"spaced"}


def test_entropy_and_repetition_stand_beside_the_metrics_of_a_task():
    task = Diverse(ChainTask(CHAIN, 8))
    names = set(task.sample_metrics())
    assert names == {"perplexity", "unigram_tv", "entropy_bits", "transition_bits", "distinct_2"}
    assert task.primary_metric == "perplexity"


def test_which_position_is_revealed_when():
    model = exact(ChainTask(CHAIN, 8), "masked").model
    steps = revealed_in(model, sampler_from("spaced(counts=equal)"), 4, 0)
    assert steps.bincount().tolist() == [0, 2, 2, 2, 2]
    first = (steps == 1).nonzero().flatten()
    assert first.diff().tolist() == [4], "half a sequence apart"
