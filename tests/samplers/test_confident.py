"""What users run: confidence, margin and entropy order, counts that adapt; top-k and top-p.

Statistics: with n samples over k cells the total variation of an empirical law to its own is about sqrt(k /
(2 pi n)); tests allow twice that (helpers.allowed). Seeds are fixed.
"""

import itertools
import math

import language_models as tiny
import pytest
import torch
from helpers import allowed, distance, empirical, mixture
from language_models import Spelling

import tauflow
import tauflow.cli.sample
from benchmarks.pages import options_table
from benchmarks.studies.laws import JointTask, exact
from benchmarks.theory.laws import EnumerableLaw
from tauflow import Model, Trained
from tauflow.cli.help import describe_samplers
from tauflow.errors import SamplingError
from tauflow.evaluation.evaluate import Sampling, measure_cell
from tauflow.evaluation.tables import to_markdown
from tauflow.recipes import pretrained
from tauflow.samplers import SETS, sampler_from
from tauflow.samplers.registry import recommended, sharpening

MASKED = mixture("masked", 3)
LAW = EnumerableLaw.random(num_tokens=3, length=3, spread=1.5)
LONGER = EnumerableLaw.random(num_tokens=3, length=4, spread=1.5)
COUNT = 10_000
SURE = (0.99, 0.6, 0.97, 0.5, 0.92, 0.34)  # of the likeliest token at each place


def rows_of(chances) -> torch.Tensor:
    """Rows (D, 3) whose token 0 has these chances; the rest is shared in the ratio 2 to 1."""
    first = torch.tensor(chances, dtype=torch.float64)[:, None]
    return torch.cat([first, (1 - first) * torch.tensor([2 / 3, 1 / 3])], 1)


def fixed_model(chances=SURE) -> Model:
    """A model with the same rows whatever is known."""
    logits = rows_of(chances).log()
    return Model(lambda x, t: logits.expand(len(x), -1, -1), MASKED, (len(chances),))


def sets(model, spec, nfe, **options) -> list[list[list[int]]]:
    """The coordinates that each step revealed, of each sample."""
    states = [None]
    tauflow.sample(model, spec, nfe, observer=lambda info, state: states.append(state.x == 3), **options)
    states[0] = torch.ones_like(states[1])
    steps = [before & ~after for before, after in itertools.pairwise(states)]
    return [[row.nonzero().squeeze(1).tolist() for row in step] for step in steps]


@pytest.mark.parametrize(
    ("spec", "nfe", "expected"),
    [
        ("confidence(temperature=0)", 3, [[0, 2], [1, 4], [3, 5]]),
        ("confidence(temperature=0)", 4, [[0, 2], [1, 4], [3], [5]]),  # the first ones have one more
        ("margin", 6, [[0], [2], [4], [1], [3], [5]]),
        ("entropy_order", 3, [[0, 2], [1, 4], [3, 5]]),
        ("threshold(temperature=0)", 6, [[0, 2, 4], [1], [3], [5]]),
        ("threshold(temperature=0, level=0.45)", 6, [[0, 1, 2, 3, 4], [5]]),
        ("threshold(temperature=0)", 2, [[0, 2, 4], [1, 3, 5]]),  # the last step reveals what is left
        # (k + 1) (1 - p) of the k-th best: 0.02, 0.09, 0.32, 2, ...
        ("threshold(temperature=0, counts=factor, level=0.3)", 6, [[0, 2], [4], [1], [3], [5]]),
        ("threshold(temperature=0, counts=factor, level=0)", 6, [[0], [2], [4], [1], [3], [5]]),
        # entropies 0.06, 0.15, 0.33, 0.93, 1.04, 1.10: sums without the largest 0, 0.06, 0.21, 0.54
        ("entropy_bound", 6, [[0, 2], [4], [1], [3], [5]]),
        ("entropy_bound(level=0.3)", 6, [[0, 2, 4], [1], [3], [5]]),
        ("entropy_bound(level=0)", 6, [[0], [2], [4], [1], [3], [5]]),
        # rows never move, so from the third evaluation on all above the level are revealed
        ("klass(temperature=0, level=0.55)", 6, [[0], [2], [1, 4], [3], [5]]),
        ("klass(temperature=0)", 6, [[0], [2], [4], [1], [3], [5]]),
    ],
)
def test_what_is_revealed_when(spec, nfe, expected):
    found = sets(fixed_model(), spec, nfe)
    assert [step[0] for step in found] == expected


def test_rows_that_move_are_not_stable():
    """Rows exchange their unlikely tokens: that of place 0 with every second reveal, the others with each.

    None is still at two evaluations in a row, so that one is revealed at a time, the surest first.
    """

    def logits(x, t):
        known = (x != 3).sum(1)
        rows = rows_of((0.8, 0.9, 0.85, 0.88, 0.86)).log().repeat(len(x), 1, 1)
        turned = torch.stack([known // 2, known, known, known, known], 1) % 2 == 1
        return torch.where(turned[..., None], rows[..., [0, 2, 1]], rows)

    model = Model(logits, MASKED, (5,))
    found = sets(model, "klass(temperature=0, level=0.5)", 5)
    assert [step[0] for step in found] == [[1], [3], [4], [2], [0]]
    loose = sets(model, "klass(temperature=0, level=0.5, drift=9)", 5)
    assert [step[0] for step in loose] == [[1], [3], [0, 2, 4]]


class Mood:
    """Sure rows behind a prompt 0, unsure ones behind a prompt 1."""

    def __call__(self, x, t):
        both = torch.stack([rows_of((0.96,) * 5), rows_of((0.4,) * 5)]).log()
        return both[(x[:, 0] == 1).long()]


def test_evaluations_of_each_sample():
    """A sure and an unsure sample, one with fewer free coordinates, and one that is all prompt."""
    model = Model(Mood(), MASKED, (5,))
    tokens = torch.tensor([[0] * 5, [1] * 5, [1] * 5, [0] * 5])
    known = torch.tensor([[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1] * 5]).bool()
    result = tauflow.sample(model, "threshold(temperature=0)", 8, count=4, prompt=(tokens, known))
    assert (result.nfe, result.info.forwards) == (4, 4), "the run ends when all samples are finished"
    assert result.evaluations.tolist() == [1, 4, 2, 0]
    assert result.tokens_per_evaluation == 10 / 7
    assert torch.equal(result.tokens[known], tokens[known])
    capped = tauflow.sample(model, "threshold(temperature=0)", 2, count=4, prompt=(tokens, known))
    assert capped.evaluations.tolist() == [1, 2, 2, 0]
    assert (capped.tokens < 3).all()
    alike = tauflow.sample(fixed_model(), "confidence", 3, count=2)
    assert (alike.evaluations, alike.tokens_per_evaluation) == (None, 2.0)


# The law


@pytest.mark.parametrize("spec", ["entropy_order", "margin(noise=0.2)", "entropy_bound(level=0)"])
def test_an_order_by_rows_is_exact_at_one_token_an_evaluation(spec):
    model = LAW.model(MASKED)
    result = tauflow.sample(model, spec, 3, count=COUNT, seed=1)
    assert result.nfe == 3
    assert distance(empirical(result.tokens, 3), LAW.probabilities) < allowed(27, COUNT)
    assert torch.allclose(tauflow.nll(model, spec, 3, LAW.sequences), -LAW.probabilities.log(), atol=1e-5)


@pytest.mark.parametrize("spec", ["confidence", "threshold", "klass", "margin(temperature=0.5)"])
def test_the_law_is_lost_at_one_token_an_evaluation(spec):
    """Where the token decides whether it is kept, or is drawn from a colder row: at as many evaluations as
    tokens, where reveals are exact."""
    tokens = tauflow.sample(LAW.model(MASKED), spec, 3, count=COUNT, seed=1).tokens
    assert distance(empirical(tokens, 3), LAW.probabilities) > 5 * allowed(27, COUNT)


def test_a_random_set_keeps_the_law():
    tokens = tauflow.sample(LAW.model(MASKED), "confidence(noise=1e6)", 3, count=COUNT, seed=1).tokens
    assert distance(empirical(tokens, 3), LAW.probabilities) < allowed(27, COUNT)


def test_samples_are_less_varied_than_those_of_reveals():
    """Half as many evaluations as tokens, in which `fhs` loses some dependence and nothing else."""
    found = {}
    for spec in ("fhs", "confidence", "margin(temperature=0)"):
        shares = empirical(tauflow.sample(LONGER.model(MASKED), spec, 2, count=COUNT, seed=2).tokens, 3)
        found[spec] = distance(shares, LONGER.probabilities), torch.special.entr(shares).sum().item()
    assert found["confidence"][0] > 1.5 * found["fhs"][0]
    assert found["confidence"][1] < found["fhs"][1] - 0.2
    assert found["margin(temperature=0)"][1] == 0


def test_noise_draws_the_set_by_its_scores():
    """The first of six coordinates is drawn by softmax(margin / noise)."""
    noise, shares = 0.5, []
    margins = rows_of(SURE).topk(2).values.diff().neg().squeeze(1)

    def watch(info, state):
        shares.append((state.x != 3).double().mean(0))

    tauflow.sample(fixed_model(), f"margin(noise={noise})", 6, count=COUNT, observer=watch)
    assert distance(shares[0], (margins / noise).softmax(0)) < allowed(6, COUNT)


def test_a_temperature_of_tokens_alone():
    """The tokens are those of a colder row, the scores those of the row itself."""
    model, count = fixed_model((0.6, 0.5)), COUNT
    shares = empirical(tauflow.sample(model, "margin(temperature=0.5)", 2, count=count).tokens, 3)
    squared = rows_of((0.6, 0.5)).square()
    squared /= squared.sum(1, keepdim=True)
    assert distance(shares, torch.outer(*squared).flatten()) < allowed(9, count)
    assert [step[0] for step in sets(model, "margin(temperature=0.01)", 2)] == [[0], [1]]


# Likelihood, refusals, labels


def test_the_likelihood_of_a_token_that_decides_is_refused():
    model = LAW.model(MASKED)
    for spec in ("confidence", "threshold", "klass"):
        with pytest.raises(SamplingError, match="keeps a token or not by what was drawn"):
            tauflow.nll(model, spec, 2, LAW.sequences[:2])
    shares = empirical(tauflow.sample(model, "entropy_order", 2, count=COUNT, seed=3).tokens, 3)
    found = (-tauflow.nll(model, "entropy_order", 2, LAW.sequences)).exp()
    assert found.sum().item() == pytest.approx(1)
    assert distance(shares, found) < allowed(27, COUNT)
    assert tauflow.nll(model, "margin(temperature=0)", 3, LAW.sequences).isinf().sum() == 26


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("confidence(level=0.9)", "equal counts have none"),
        ("threshold(level=-1)", "level must be at least 0, got -1.0"),
        ("threshold(drift=0.1)", "drift belongs to counts=stable"),
        ("klass(drift=0)", "drift must be above 0"),
        ("threshold(order=entropy)", "needs a score from 0 to 1"),
        ("threshold(noise=0.1)", "noise belongs to equal counts"),
        ("margin(noise=-1)", "at least 0"),
    ],
)
def test_options_that_say_nothing_are_refused(spec, message):
    with pytest.raises(SamplingError, match=message):
        sampler_from(spec)


def test_they_need_masks():
    with pytest.raises(SamplingError, match="need a masked source"):
        tauflow.sample(LAW.model(mixture("uniform", 3)), "confidence", 2)


def test_who_sharpens_is_said_everywhere():
    sharp = set(sharpening())
    assert set(SETS["users"]) <= sharp
    assert not any(sampler_from(name).sharpens for name in SETS["all"])
    assert "gibbs(choice=margin)" in sharp
    for kind in ("masked", "uniform"):
        assert not recommended(LAW.model(mixture(kind, 3))).sharpens
    for text in (describe_samplers(), options_table()):
        line = text[text.index("hese sharpen") :].split("published names")[0]
        assert all(name in line for name in sharp)
        assert "spaced_even" not in line


# Tables


def test_tables_show_evaluations_of_a_sample_and_who_sharpens():
    trained = exact(JointTask(LAW), "masked")
    results = tauflow.evaluate(trained, "threshold(level=0.3), spaced", [2, 3], 16, batch_size=8, nll_items=0)
    found = {
        (each.factors.get("sampler"), each.factors.get("nfe"), each.metric): each.measured
        for each in results.records
    }
    name = "threshold(level=0.3)"
    for nfe in (2, 3):
        assert found[name, nfe, "evaluations"].value <= found[name, nfe, "counted_nfe"].value <= nfe
        per = found[name, nfe, "tokens_per_evaluation"].value
        assert per == pytest.approx(3 / found[name, nfe, "evaluations"].value)
        assert ("spaced", nfe, "evaluations") not in found
    assert found[name, 3, "evaluations"].standard_error > 0
    text = to_markdown(results)
    assert "tokens_per_evaluation by NFE, higher is better" in text
    assert f"these sharpen, so they don't keep the data distribution: {name}" in text
    plain = tauflow.evaluate(trained, "spaced", [2], 8, batch_size=8, nll_items=0)
    assert "sharpen" not in to_markdown(plain)
    assert "evaluations" not in plain.scales


def test_batches_of_a_cell_are_counted_alike():
    """Evaluations of each sample: their mean and its error do not depend on which batch they were in."""
    trained, sampler = exact(JointTask(LAW), "masked"), sampler_from("threshold(level=0.3)")
    cell = measure_cell(trained.model, trained.task, sampler, {"nfe": 3}, Sampling(12, 4, show=0))
    model, taken = trained.model, []
    for batch in range(3):
        result = tauflow.sample(model, sampler, 3, count=4, seed=Sampling(12, 4).generator_for(batch))
        taken += [result.nfe] * 4 if result.evaluations is None else result.evaluations.tolist()
    found = {record.metric: record.measured for record in cell.records}["evaluations"]
    assert found.value == pytest.approx(sum(taken) / 12)
    spread = torch.tensor(taken).double().std(correction=0).item()
    assert found.standard_error == pytest.approx(spread / math.sqrt(12))
    assert spread > 0


# Blocks with end tokens


@pytest.fixture(scope="module")
def llada(tmp_path_factory):
    weights = tiny.llama_weights(tiny.LLADA_NAMES, bias=False)
    return pretrained(tiny.write(tmp_path_factory.mktemp("language") / "llada", tiny.LLADA, weights))


class Wavering(Spelling):
    """A Spelling that is unsure of what follows a prompt that does not begin with "e" or "a"."""

    def __call__(self, x, t, attention=None):
        read = torch.ones_like(x, dtype=torch.bool) if attention is None else attention
        first = x.gather(1, read.int().argmax(1, keepdim=True))
        sure = (first == self.stop) | (first == self.sure)
        return torch.where(sure, 1.0, 0.1)[..., None] * super().__call__(x, t, attention)


def test_blocks_end_early_and_at_the_end_of_a_text(llada):
    """Of the four evaluations that a block may take a sure sample takes one, an unsure one all of them; the
    first text ends in its first block."""
    network = Wavering(llada.task)
    network.sure = llada.task.text.encode("a")[0]
    process = tauflow.Mixture(tauflow.Masked(llada.task.num_tokens), "linear")
    trained = Trained(Model(network, process, llada.model.shape), llada.task)
    prompts, sizes = ["e", "ab", "hello"], {"max_new_tokens": 12, "nfe": 12, "block": 4}
    found = tauflow.generate(trained, prompts, sampler="threshold(temperature=0)", **sizes)
    assert found.texts == ["", "x" * 12, "x" * 12]
    assert (found.taken, found.evaluations) == ([1, 3, 12], 12)
    assert found.tokens_per_evaluation == 1.5
    fixed = tauflow.generate(trained, prompts, sampler="confidence(temperature=0)", **sizes)
    assert (fixed.texts, fixed.taken, fixed.evaluations) == (found.texts, [4, 12, 12], 12)
