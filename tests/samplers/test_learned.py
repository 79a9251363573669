"""Counts of reveals: published rules, and learned ones - their dynamic programming, their forecast of the KL,
their file, and how samplers use them."""

import dataclasses
import itertools
import json
import math
import re

import pytest
import torch
from conftest import sample_here
from helpers import allowed, distance, empirical, mixture

import tauflow
from benchmarks.studies.command import main
from benchmarks.theory.laws import EnumerableLaw
from tauflow import Model
from tauflow.denoise import LearnedCounts
from tauflow.errors import SamplingError
from tauflow.samplers import learned
from tauflow.samplers.reveal import Reveal, extrapolated

# Rules


def reveals(rule: str, free: int, steps: int) -> list[int]:
    done = [int(Reveal(counts=rule).revealed(torch.tensor([free]), n, steps)) for n in range(steps + 1)]
    return [b - a for a, b in itertools.pairwise(done)]


def test_doubling_counts_are_those_of_dilated_unmasking():
    """log2 F evaluations reveal every (F / 2)-th, (F / 4)-th, ... coordinate; more begin with one each."""
    assert reveals("doubling", 64, 6) == [2, 2, 4, 8, 16, 32]
    assert reveals("doubling", 64, 8) == [1, 1, 1, 1, 4, 8, 16, 32]


def test_arccos_counts_are_those_of_the_halton_scheduler():
    wanted = [round(256 * (1 - 2 / math.pi * math.acos(n / 8))) for n in range(9)]
    assert reveals("arccos", 256, 8) == [b - a for a, b in itertools.pairwise(wanted)]


@pytest.mark.parametrize("rule", ["arccos", "doubling"])
def test_rules_leave_no_evaluation_without_a_reveal(rule):
    for steps, free in itertools.product(range(1, 12), (1, 5, 11, 12, 40)):
        if free >= steps:
            found = reveals(rule, free, steps)
            assert min(found) >= 1
            assert sum(found) == free


# Dynamic programming


def splits(length: int, parts: int) -> list[list[int]]:
    """All ways to reveal so many coordinates in so many evaluations."""
    ends = itertools.combinations(range(1, length), parts - 1)
    return [[b - a for a, b in itertools.pairwise([0, *inner, length])] for inner in ends]


@pytest.mark.parametrize("length", [1, 2, 7, 9])
def test_the_best_counts_are_those_of_all_counts(length):
    costs = torch.rand(length, length, generator=torch.Generator().manual_seed(length)).double().triu(1)
    found = learned.Shortest(costs)
    for budget, least in enumerate(found.sums, 1):
        totals = {tuple(each): learned.forecast(costs, each) for each in splits(length, budget)}
        assert totals[found.counts(budget)] == pytest.approx(min(totals.values()))
        assert least == pytest.approx(min(totals.values()), abs=1e-6)


def test_a_large_problem_takes_seconds():
    """D = 256, all budgets; the sums never rise with the budget where costs grow with the distance."""
    apart = torch.arange(256)[None] - torch.arange(256)[:, None]
    costs = apart.double().clamp(min=0)
    found = learned.learned_from("spaced", [costs, costs])
    assert all(a >= b for a, b in itertools.pairwise(found.excess))
    assert found.excess[-1] == 0
    assert {sum(each) for each in found.counts} == {256}
    assert len(found.counts) < 60
    assert set(found.counts[7]) == {32}, "equal counts are best where a cost is the distance"


def test_counts_are_forecast_by_sequences_that_did_not_choose_them():
    """Each half would reveal another token alone, which costs the other half 1 nat."""
    first, second = (torch.zeros(3, 3, dtype=torch.float64) for _ in range(2))
    first[0, 1], second[1, 2] = 1.0, 1.0  # of the counts (2, 1), of the counts (1, 2)
    assert learned.Shortest(first).counts(2) == (1, 2)
    assert learned.Shortest(second).counts(2) == (2, 1)
    assert learned.learned_from("random", [first, second]).excess == (0.5, 1.0, 0.0)


# Weights of the extrapolation


def test_weights_pay_for_what_was_lost():
    """By hand, counts 2, 2 of D = 4 with E[0] = (0, 1, 3, 5), E[2] = (., ., 0, 2): the first step loses 1,
    the second 2; its tokens are told 3 + 3 nats by the first. A debt of 3 takes half of that."""
    costs = torch.zeros(4, 4, dtype=torch.float64)
    costs[0], costs[2, 3] = torch.tensor([0.0, 1, 3, 5]), 2.0
    assert learned.weights_of(costs, (2, 2)) == (0.0, 0.5)
    assert learned.weights_of(costs, (1, 1, 1, 1)) == (0.0,) * 4, "nothing is lost"
    costs[0] = torch.tensor([0.0, 9, 3, 5])
    assert learned.weights_of(costs, (2, 2)) == (0.0, 1.0), "at most 1"


def test_what_is_paid_is_no_longer_owed():
    """E[c, j] = (j - c) / 2: counts 2, 2, 2 lose 1/2 each; a step tells the next one 2 nats."""
    apart = torch.arange(6)[None] - torch.arange(6)[:, None]
    weights = learned.weights_of(apart.double().clamp(min=0) / 2, (2, 2, 2))
    assert weights == (0.0, 0.5, 0.25)


def weak_law() -> EnumerableLaw:
    """Six tokens of which every two are equal a little more often than not."""
    sequences = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=6)), dtype=torch.float64)
    pairs = (sequences.sum(1) ** 2 - 6) / 2
    return EnumerableLaw((0.1 * pairs).softmax(0), 2, 6)


def test_extrapolation_by_learned_weights_makes_up_for_what_is_lost():
    """In three evaluations of six tokens; `allowed` is twice what 40,000 samples differ by chance."""
    law, count = weak_law(), 40_000
    model = law.model(mixture("masked", 2))
    learned = tauflow.learn_counts(model, "random", contexts=64)
    model = dataclasses.replace(model, counts=learned)

    def reached(spec: str, nfe: int) -> float:
        tokens = tauflow.sample(model, spec, nfe, count=count).tokens
        return distance(empirical(tokens, 2), law.probabilities)

    plain, better = (reached(f"fhs(counts=learned, extrapolation={how})", 3) for how in ("pairs", "learned"))
    assert better < allowed(64, count) < plain
    assert better < plain / 2
    assert reached("random_learned", 6) < allowed(64, count), "exact at one token an evaluation"


def test_one_token_an_evaluation_is_not_extrapolated_with_a_prompt_either():
    """Three of six tokens are free: three evaluations have the likelihood of any order, by any counts."""
    law = weak_law()
    learned = tauflow.learn_counts(law.model(mixture("masked", 2)), "random", contexts=16)
    assert max(map(max, learned.weights[:4])) > 0
    model = dataclasses.replace(law.model(mixture("masked", 2)), counts=learned)
    data, known = law.sequences, torch.arange(6) < 3
    exact, found = (tauflow.nll(model, spec, 3, data, known=known) for spec in ("fhs", "random_learned"))
    torch.testing.assert_close(found, exact)
    fewer = [
        tauflow.nll(model, spec, 2, data, known=known) for spec in ("fhs(counts=learned)", "random_learned")
    ]
    assert not torch.allclose(*fewer), "two tokens at once are"


def test_a_fixed_order_has_no_weights():
    """Along one order no rows have a lower divergence than the network's own; others have lost something."""
    costs = torch.arange(6.0)[None].double().expand(6, -1).triu(1)
    assert set(itertools.chain(*learned.learned_from("learned", [costs, costs]).weights)) == {0.0}
    assert max(map(max, learned.learned_from("spaced", [costs, costs]).weights)) > 0


def test_a_token_that_was_cut_before_is_not_extrapolated():
    """top-p may cut a token of one row and not of the next: its ratio is 1, not the largest one."""
    rows, before = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.6, 0.4, 0.0]])
    found = extrapolated(rows, before, torch.ones(1, 1), "learned")
    torch.testing.assert_close(found, torch.tensor([[0.5 * 5 / 6, 0.3 * 3 / 4, 0.2]]))


# The forecast

STEPS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3])  # of 80: probabilities of 16 sequences
LAW = EnumerableLaw(STEPS / STEPS.sum().double(), 2, 4)
PROCESS = mixture("masked", 2, "quadratic")
ORDER = torch.tensor([2, 0, 3, 1])
EXACT = dataclasses.replace(LAW.model(PROCESS), order=ORDER)
DATA = LAW.sequences.repeat_interleave(STEPS, 0)  # every sequence as often as the law says


def law_of(order: torch.Tensor, plan: list[int]) -> torch.Tensor:
    """The probability of each sequence if they are revealed by this plan, from marginals of the law."""
    table, places = LAW.probabilities.view(2, 2, 2, 2), order.argsort().tolist()

    def marginal(known: list[int]) -> torch.Tensor:  # of each sequence, (16,)
        hidden = [axis for axis in range(4) if axis not in known]
        return (table.sum(hidden, keepdim=True) if hidden else table).expand_as(table).flatten()

    found, done = torch.ones(16, dtype=torch.float64), 0
    for count in plan:
        known = places[:done]
        for place in places[done : done + count]:
            found = found * marginal([*known, place]) / marginal(known)
        done += count
    return found


@pytest.mark.parametrize("plan", [plan for parts in range(1, 5) for plan in splits(4, parts)], ids=str)
def test_the_forecast_is_the_divergence_of_the_samplers_law(plan):
    """For a fixed order, an exact denoiser and data in the proportions of its law: KL(data || sampler)."""
    costs = learned.excess(EXACT, "learned", data=DATA)
    exact = (LAW.probabilities * (LAW.probabilities / law_of(ORDER, plan)).log()).sum().item()
    assert learned.forecast(costs, plan) == pytest.approx(exact, abs=1e-6)


def test_the_forecast_of_random_orders_is_their_mean():
    """20 times the data, each sequence in an order of its own: five standard errors of a mean below 0.5."""
    ranks = [torch.tensor(each) for each in itertools.permutations(range(4))]
    each = [(LAW.probabilities * (LAW.probabilities / law_of(order, [2, 2])).log()).sum() for order in ranks]
    found = learned.forecast(learned.excess(EXACT, "random", data=DATA.repeat(20, 1)), [2, 2])
    assert found == pytest.approx(float(torch.stack(each).mean()), rel=5 * 0.5 / 40)


def test_orders_are_compared_without_sampling():
    """Two pairs of equal tokens: an order that splits the pairs loses nothing with two evaluations."""
    table = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    for a, b in itertools.product(range(2), repeat=2):
        table[a, a, b, b] = 0.25
    law = EnumerableLaw(table.flatten(), 2, 4)
    data = law.sequences[law.probabilities > 0]
    good, bad = (
        learned.learn_counts(
            dataclasses.replace(law.model(PROCESS), order=torch.tensor(ranks)), "learned", data=data
        )
        for ranks in ([0, 2, 1, 3], [0, 1, 2, 3])
    )
    assert good.excess == pytest.approx((2 * math.log(2), 0, 0, 0), abs=1e-6)
    assert good.counts[1] == (2, 2)
    assert bad.excess == pytest.approx((2 * math.log(2), math.log(2), 0, 0), abs=1e-6)
    assert (good.evaluations(0.1), bad.evaluations(0.1), bad.evaluations(1.0), bad.evaluations(-1)) == (
        2,
        3,
        2,
        4,
    )


# Learned counts in samplers


def flat(x, t):
    return torch.zeros(*x.shape, 3)


LEARNED = LearnedCounts(
    "spaced", ((16,), (3, 13), (1, 3, 12), (1, 2, 4, 9)), tuple(map(float, range(15, -1, -1)))
)


def steps_of(sampler: str, nfe: int, prompt=None, order: str = "spaced") -> list[list[int]]:
    """How many masks each sequence of two has lost after each evaluation."""
    left = []

    def model(x, t):
        left.append((x == 3).sum(1))
        return flat(x, t)

    learned = dataclasses.replace(LEARNED, order=order)
    made = Model(model, mixture("masked", 3), (16,), torch.arange(16), counts=learned)
    result = tauflow.sample(made, sampler, nfe, count=2, prompt=prompt)
    assert result.nfe == len(left) <= nfe
    return (left[0] - torch.stack([*left[1:], torch.zeros_like(left[0])])).T.tolist()


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        ("spaced_learned", "spaced"),
        ("random_learned", "random"),
        ("spaced_even(counts=learned)", "random"),
        ("learned_order(counts=learned)", "learned"),
    ],
)
def test_samplers_reveal_by_learned_counts(sampler, order):
    assert steps_of(sampler, 2, order=order) == [[3, 16]] * 2
    assert steps_of(sampler, 4, order=order) == [[1, 3, 7, 16]] * 2
    assert steps_of(sampler, 16, order=order) == [list(range(1, 17))] * 2, "one each"


def test_a_budget_without_counts_takes_the_shape_of_the_next_smaller_one():
    """Of 4: shares 1/16, 3/16, 7/16, 1 at 1/4, 2/4, ...; between them straight lines, at least one each."""
    assert steps_of("spaced_learned", 8)[0] == [1, 2, 3, 4, 5, 7, 12, 16]


@pytest.mark.parametrize(("free", "wanted"), [(16, [1, 3, 7, 16]), (4, [1, 2, 3, 4]), (1, [0, 0, 0, 1])])
def test_with_a_prompt_the_counts_are_in_proportion(free, wanted):
    """8 coordinates of the first sequence are free, and so many of the second."""
    known = torch.zeros(2, 16, dtype=torch.bool)
    known[0, 4:12] = True
    known[1, free:] = True
    found = steps_of("spaced_learned", 4, prompt=(torch.zeros(2, 16).long(), known))
    assert found == [[1, 2, 4, 8], wanted]


@pytest.mark.parametrize("order", ["spaced", "random", "even", "learned"])
def test_without_counts_for_its_order_a_sampler_is_refused(order):
    other = dataclasses.replace(LEARNED, order="random" if order == "spaced" else "spaced")
    model = Model(flat, mixture("masked", 3), (16,), torch.arange(16), counts=other)
    message = (
        rf"no learned counts for the order {order}: make them with tauflow.learn_counts\(model, '{order}'\)"
    )
    sampler = tauflow.sampler_from(f"spaced(order={order}, counts=learned)")
    assert re.search(message, sampler.unsupported_reason(model)), "so that a set skips it"
    with pytest.raises(SamplingError, match=message):
        tauflow.sample(model, sampler, 4)


def test_on_a_grid_even_has_counts_of_its_own():
    model = Model(flat, mixture("masked", 3), (2, 4))
    assert learned.learn_counts(model, "even", contexts=2).order == "even"
    assert learned.learn_counts(dataclasses.replace(model, shape=(8,)), "even", contexts=2).order == "random"


@pytest.mark.parametrize(
    ("learned", "message"),
    [
        (3, "counts must be learned for 16 coordinates, once for each order"),
        ([LEARNED, LEARNED], "once for each order"),
        (LearnedCounts("spaced", ((2,), (1, 1)), (1.0, 0.0)), "for 16 coordinates"),
    ],
)
def test_counts_that_do_not_fit_a_model_are_refused(learned, message):
    with pytest.raises(SamplingError, match=message):
        Model(flat, mixture("masked", 3), (16,), counts=learned)


@pytest.mark.parametrize(
    "broken", [(), ((1, 1),), ((2,), (2, 0)), ((2,), (1.0, 1.0)), ((2,), (1, 2)), ((2,), (1, 1), (1, 1))]
)
def test_counts_that_mean_nothing_are_refused(broken):
    with pytest.raises(SamplingError, match="learned counts must be positive, for budgets that rise from 1"):
        LearnedCounts("spaced", broken, (1.0, 0.0))


def test_counts_are_learned_from_masks_along_an_order_that_exists():
    with pytest.raises(SamplingError, match="need a masked source, this model has a uniform one"):
        tauflow.learn_counts(Model(flat, mixture("uniform", 3), (4,)))
    model = Model(flat, mixture("masked", 3), (4,))
    with pytest.raises(SamplingError, match="order must be one of random, spaced, even, learned"):
        tauflow.learn_counts(model, "sorted")
    with pytest.raises(SamplingError, match="there is no learned order"):
        tauflow.learn_counts(model, "learned")
    with pytest.raises(SamplingError, match=r"data must be a tensor of the shape \(C, 4\)"):
        tauflow.learn_counts(model, data=torch.zeros(2, 3).long())


def test_learning_takes_one_evaluation_a_coordinate_and_follows_from_the_seed():
    calls = []

    def model(x, t):
        calls.append(len(x))
        return LAW.posterior(x, t, PROCESS).log()

    made = Model(model, PROCESS, (4,))
    learned = tauflow.learn_counts(made, data=DATA)
    assert calls == [len(DATA) // 2] * 8, "each half in D evaluations"
    assert learned == tauflow.learn_counts(made, data=DATA)
    own = [tauflow.learn_counts(made, contexts=5, seed=seed) for seed in (0, 0, 1)]
    assert own[0] == own[1] != own[2]
    assert calls[16:28] == [5] * 4 + [3] * 4 + [2] * 4, "samples of one token an evaluation, and the matrix"
    with pytest.raises(SamplingError, match="at least 2 sequences: one half of them chooses"):
        tauflow.learn_counts(made, data=DATA[:1])


# The best of the orders that have counts


def two_orders() -> Model:
    """A model whose order `spaced` is forecast to be best below three evaluations, `random` from then on."""
    plans = ((16,), (8, 8), (5, 5, 6))
    falling = [float(16 - n) for n in range(1, 17)]
    late = tuple(nats + (number < 2) for number, nats in enumerate(falling))
    early = tuple(nats + (number >= 2) for number, nats in enumerate(falling))
    weights = ((0.0,), (0.0, 0.5), (0.0, 0.5, 0.5))
    learned = tuple(
        LearnedCounts(order, plans, excess, weights)
        for order, excess in (("random", late), ("spaced", early))
    )

    def network(x, t):  # the more zeros are known, the likelier is one
        zeros = (x == 0).sum(1).double()[:, None, None] * torch.tensor([0.5, 0.0, 0.0])
        return zeros.expand(-1, 16, -1).float()

    return Model(network, mixture("masked", 3), (16,), counts=learned)


@pytest.mark.parametrize(("nfe", "same"), [(2, "spaced_learned"), (3, "random_learned")])
def test_the_order_that_is_forecast_to_lose_least_is_taken(nfe, same):
    model = two_orders()
    best, wanted = (tauflow.sample(model, spec, nfe, count=4, seed=1) for spec in ("best_learned", same))
    assert torch.equal(best.tokens, wanted.tokens)
    assert best.nfe == nfe
    likelihoods = [tauflow.nll(model, spec, nfe, best.tokens) for spec in ("best_learned", same)]
    assert torch.equal(*likelihoods)
    plain = f"fhs(order={same.partition('_')[0]}, counts=learned)"
    assert not torch.allclose(likelihoods[0], tauflow.nll(model, plain, nfe, best.tokens)), "extrapolates"
    prompt = (torch.zeros(16).long(), torch.arange(16) < 13)
    known = tauflow.sample(model, "best_learned", 3, count=4, prompt=prompt)
    assert (known.tokens[:, :13] == 0).all()
    assert known.nfe == 3


def test_auto_takes_learned_counts_where_there_are_some():
    def taken(model: Model) -> str:
        return tauflow.sample(model, nfe=2).info.settings["sampler"]

    assert taken(two_orders()) == "best_learned"
    assert taken(dataclasses.replace(two_orders(), counts=())) == "spaced_even"
    only = dataclasses.replace(two_orders(), counts=dataclasses.replace(LEARNED, order="learned"))
    assert taken(only) == "spaced_even", "an order that the model does not have"
    for order in ("even", "sorted"):  # of grids, and of nothing
        other = dataclasses.replace(LEARNED, order=order)
        assert taken(dataclasses.replace(two_orders(), counts=other)) == "spaced_even"
    with pytest.raises(
        SamplingError, match="there are no learned counts for an order of this model: make them"
    ):
        tauflow.sample(only, "best_learned", 2)


def test_weights_of_other_sets_are_refused():
    model = dataclasses.replace(two_orders(), influence=torch.zeros(16, 16))
    with pytest.raises(SamplingError, match="extrapolation=learned has weights of other sets than"):
        tauflow.sampler_from("independent(extrapolation=learned, counts=learned)")
    with pytest.raises(SamplingError, match=r"the counts of the order random, whose weights are not its own"):
        tauflow.sample(model, "spaced_even(counts=learned, extrapolation=learned)", 4)
    with pytest.raises(SamplingError, match=r"extrapolation=learned .* counts=learned"):
        tauflow.sampler_from("fhs(extrapolation=learned)")


# Files, commands, the study


def test_counts_lie_beside_their_checkpoint(tmp_path):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    assert learned.read_counts(checkpoint, 16) == ()
    both = (LEARNED, dataclasses.replace(LEARNED, order="random"))
    path = learned.save_counts(checkpoint, both)
    assert path == tmp_path / "best.counts.json"
    assert learned.read_counts(checkpoint, 16) == both
    saved = json.loads(path.read_text())
    del saved["sha256"]  # as in files of version 0.2
    others = [{"counts": [[16], [3, 14]]}, {"counts": 3}, {"counts": [[16], "ab"]}, {"excess": [1.0]}]
    others += [{"excess": [each] * 16} for each in (math.nan, 10**400, "0", -1.0)]
    others += [{"order": []}, {"order": "sorted"}, {"weights": [[0.0]]}, {"weights": 3}]
    others += [{"weights": [[each], [0, 0], [0, 0, 0], [0, 0, 0, 0]]} for each in (2.0, -1.0, math.nan, "0")]
    contents = [saved | {"learned": [saved["learned"][0] | other]} for other in others]
    contents += [saved | {"learned": 3}, saved | {"learned": [3]}, {"learned": []}, []]
    for text in (*map(json.dumps, contents), "no json", "[" * 10**5, " " * 10**6):
        path.write_text(text)
        message = r"doesn't contain counts for 16 coordinates .*, so it isn't used\. Learn it again"
        with pytest.warns(UserWarning, match=message):
            assert learned.read_counts(checkpoint, 16) == ()
    learned.save_counts(checkpoint, both)
    with pytest.warns(UserWarning, match="counts for 5 coordinates"):
        assert learned.read_counts(checkpoint, 5) == ()
    checkpoint.write_bytes(b"trained further")
    with pytest.warns(UserWarning, match=r"was learned from other weights than .*best\.ckpt has now"):
        assert learned.read_counts(checkpoint, 16) == ()


def test_sample_learns_counts_and_keeps_them(trained, tmp_path, capfd):
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes((trained / "best.ckpt").read_bytes())
    words = ("--num_samples", 2, "--batch_size", 2, "--show", 0)
    code, printed = sample_here(checkpoint, capfd, "--learn_counts", *words)
    assert code == 0
    assert f"counts      {tmp_path / 'best.counts.json'}" in printed
    assert "auto = best_learned" in printed
    assert [each.order for each in tauflow.load(checkpoint).model.counts] == ["spaced", "random"]
    code, printed = sample_here(checkpoint, capfd, "--learn_counts", "learned", "--learn_order", *words)
    assert code == 0
    kept = [each.order for each in tauflow.load(checkpoint).model.counts]
    assert kept == ["spaced", "random", "learned"]
    code, _ = sample_here(checkpoint, capfd, "--learn_order", *words)
    kept = [each.order for each in tauflow.load(checkpoint).model.counts]
    assert kept == ["spaced", "random"], "that order is gone"
    assert learned.order_path(checkpoint).exists()


SPECS = "spaced,spaced(counts=learned),spaced_even,fhs,spaced_learned"


def test_the_study_says_how_many_evaluations_are_needed(trained, tmp_path, capsys):
    """Two sequences of 16 tokens; no sampler needs more than 16 evaluations, learned counts never more than
    equal ones by much."""
    words = ["--ckpt", str(trained / "best.ckpt"), "--nfes", "1,4,16,99", "--samples", "4", "--no_progress"]
    main(["forecast", "--out", str(tmp_path), "--samplers", SPECS, *words])
    printed = capsys.readouterr().out
    assert "## Evaluations needed for an excess of at most" in printed
    assert "no forecast of spaced_even: " in printed
    assert "no forecast of spaced_learned: " in printed
    lines = [
        line.split("|")[1:-1]
        for line in printed.splitlines()
        if line.startswith("| spaced(counts=learned) |")
    ]
    (one, four, sixteen), needed = [[float(cell.strip(" *")) for cell in line[1:]] for line in lines]
    assert one > four > sixteen == 0
    model, task = (found := tauflow.load(trained / "best.ckpt")).model, found.task
    task.setup("validate")
    data = torch.stack([task.val_data[number]["tokens"] for number in range(4)])
    first, second = (learned.excess(model, "spaced", half) for half in data.chunk(2))
    plans = [learned.Shortest(other).counts(4) for other in (second, first)]
    wanted = (learned.forecast(first, plans[0]) + learned.forecast(second, plans[1])) / 2
    assert four == pytest.approx(wanted, rel=0.01), "counts of one half are forecast on the other"
    assert needed == sorted(needed)
    assert needed[-1] <= 16
