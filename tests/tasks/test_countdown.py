import math

import pytest
import torch

from benchmarks.theory.laws import EnumerableLaw
from tauflow import Marginal, Masked, Mixture, Uniform
from tauflow.errors import SettingsError
from tauflow.tasks import Countdown, LabelledCountdown
from tauflow.tasks.countdown import (
    CountdownItems,
    entropy,
    posterior,
    stationary_distribution,
    transition_matrix,
    violations,
)


def data(count: int, length: int = 256, values: int = 32, seed: int = 0) -> torch.Tensor:
    items = CountdownItems(length, values, seed, "train", count=2**62)
    return torch.stack([item["tokens"] for item in items.__getitems__(list(range(count)))])


def test_data_follow_the_rule_and_the_chain():
    """Data have no violation; the values after a 0 are uniform (chi-square of 31 degrees below 70: false
    failure 1e-4).
    """
    x = data(500)
    assert x.shape == (500, 256)
    assert not violations(x, 32).any()
    after_zero = torch.bincount(x[:, 1:][x[:, :-1] == 0], minlength=32).double()
    assert ((after_zero - after_zero.mean()) ** 2 / after_zero.mean()).sum() < 70
    first = torch.bincount(x[:, 0], minlength=32).double()
    assert ((first - first.mean()) ** 2 / first.mean()).sum() < 70


def test_an_item_is_a_pure_function_of_seed_and_number():
    items = CountdownItems(64, 8, 3, "train", count=2**62)
    numbers = [5, 2, 10**15]
    for number, item in zip(numbers, items.__getitems__(numbers), strict=True):
        assert torch.equal(items[number]["tokens"], item["tokens"])
    assert torch.equal(items[torch.tensor(5)]["tokens"], items[5]["tokens"])
    assert not torch.equal(items[5]["tokens"], items[6]["tokens"])
    with pytest.raises(IndexError, match="0 to 8"):
        CountdownItems(64, 8, 3, "val", 9)[9]
    assert not torch.equal(items[5]["tokens"], CountdownItems(64, 8, 4, "train", 9)[5]["tokens"])
    assert not torch.equal(items[5]["tokens"], CountdownItems(64, 8, 3, "val", 9)[5]["tokens"])


def test_violations_by_hand():
    tokens = torch.tensor([[3, 2, 1, 0, 3], [3, 3, 2, 0, 0], [0, 4, 3, 2, 1], [4, 3, 2, 1, 0]])
    expected = [[0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]  # 4 is the mask: foreign
    assert violations(tokens, 4).int().tolist() == expected


def test_metrics_by_hand():
    task = Countdown(length=5, values=4)
    metrics = task.sample_metrics()
    metrics.update(torch.tensor([[3, 2, 1, 0, 3]]))
    metrics.update(torch.tensor([[3, 3, 2, 0, 0]]))
    result = metrics.compute()
    assert result["error_rate"][0] == pytest.approx(2 / 8)
    assert result["error_rate"][1] == pytest.approx(1 / 4)  # 0 and 1/2: variance 1/8, over two samples
    assert result["sequence_error_rate"][0] == pytest.approx(1 / 2)
    law, seen = [0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.2, 0.4]
    assert result["unigram_tv"][0] == pytest.approx(
        sum(abs(a - b) for a, b in zip(law, seen, strict=True)) / 2
    )


def test_foreign_tokens_count_against_the_unigram_distribution():
    metric = Countdown(length=4, values=2).sample_metrics()["unigram_tv"]
    metric.update(torch.tensor([[-1, 2, 0, 0]]))
    assert metric.compute()[0] == pytest.approx((abs(0.5 - 2 / 3) + 1 / 3 + 0.5) / 2)


def test_metrics_of_real_data():
    metrics = Countdown().sample_metrics()
    metrics.update(data(500))
    result = metrics.compute()
    assert result["error_rate"][0] == 0
    assert result["sequence_error_rate"][0] == 0
    assert result["unigram_tv"][0] < 0.03


def test_stationary_distribution_and_entropy():
    law, transition = stationary_distribution(32), transition_matrix(32)
    torch.testing.assert_close(law @ transition, law)
    torch.testing.assert_close(transition.sum(1), torch.ones(32, dtype=torch.float64))
    per_token = law[0].item() * math.log(32)
    assert entropy(10**4, 32) == pytest.approx(per_token, rel=2e-3)  # the start is worth a few coordinates
    # by hand, V = 2, D = 3: the first value is free, the second after a 0 (1/2), the third after a 0 (3/4)
    assert entropy(3, 2) == pytest.approx((1 + 1 / 2 + 3 / 4) * math.log(2) / 3)


@pytest.mark.parametrize(
    "source", [Masked(4), Uniform(4), Marginal([1, 2, 3, 4])], ids=lambda source: source.name
)
def test_forward_backward_equals_enumeration(source):
    law = EnumerableLaw(torch.zeros(4**4, dtype=torch.float64), 4, 4)
    transition = transition_matrix(4)
    probabilities = torch.full((4**4,), 0.25, dtype=torch.float64)
    for d in range(3):
        probabilities = probabilities * transition[law.sequences[:, d], law.sequences[:, d + 1]]
    law = EnumerableLaw(probabilities, 4, 4)
    process, t = Mixture(source, "quadratic"), torch.tensor([0.3, 0.8])
    x = torch.tensor([[3, 2, 0, 3], [0, 1, 0, 3]])
    if process.absorbing:
        x = torch.tensor([[4, 2, 4, 4], [4, 4, 0, 4]])
    torch.testing.assert_close(posterior(x, t, process), law.posterior(x, t, process))


def test_show_marks_violations():
    shown = Countdown(length=4, values=12).show(torch.tensor([[2, 1, 0, 11], [2, 2, 11, 10]]))
    assert [text.split() for text in shown] == [["2", "1", "0", "11"], ["2", "!2", "!11", "10"]]


@pytest.mark.parametrize("columns", ["40", "200"])
def test_shown_lines_fit_and_do_not_depend_on_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    (shown,) = Countdown(length=256, values=32).show(torch.full((1, 256), 31))
    assert {len(line) for line in shown.splitlines()} == {63}


def test_prompts():
    tokens, known = Countdown(length=6, values=12).prompt("11 _ 9")
    assert tokens[known].tolist() == [11, 9]
    assert known.tolist() == [True, False, True, False, False, False]


def test_the_unigram_distribution_counts_the_first_items_and_has_no_zero():
    """4096 items of 64 values: shares within 0.01 of the law (six standard errors; runs of a chain count as
    one draw).
    """
    law = Countdown(length=64, values=8).unigrams()
    assert law.sum() == 1, "exactly: a source that is rebuilt from it is the same"
    assert (law - stationary_distribution(8)).abs().max() < 0.01
    assert torch.equal(law, Countdown(length=64, values=8).unigrams())
    assert not torch.equal(law, Countdown(length=64, values=8, seed=1).unigrams())
    tokens = torch.stack(
        [item["tokens"] for item in CountdownItems(64, 8, 0, "train", 4096).__getitems__(range(4096))]
    )
    by_hand = torch.bincount(tokens.flatten(), minlength=8).double() + 1
    torch.testing.assert_close(law, by_hand / by_hand.sum(), atol=1e-10, rtol=0)


# With labels


@pytest.fixture
def labelled() -> LabelledCountdown:
    task = LabelledCountdown(length=32, values=8, val_items=90)
    task.setup()
    return task


def test_the_label_says_the_step(labelled):
    """All three labels are met, about equally often: 30 of 90 expected, 4 sigma are 18."""
    items = labelled.val_data.__getitems__(range(90))
    tokens = torch.stack([item["tokens"] for item in items])
    labels = torch.stack([item["condition"] for item in items])
    assert labels.shape == (90, 1)
    assert not violations(tokens, 8, labels + 1).any()
    assert violations(tokens, 8, (labels + 1) % 3 + 1).float().mean() > 0.3, "another step is another rule"
    assert all(12 <= count <= 48 for count in torch.bincount(labels.flatten()).tolist())
    assert torch.equal(labelled.val_data[7]["tokens"], items[7]["tokens"])
    assert torch.equal(labelled.sample_conditions(4, first=88), labels[[88, 89, 0, 1]])


def test_labelled_metrics_by_hand():
    metrics = LabelledCountdown(length=4, values=8).sample_metrics()
    tokens = torch.tensor([[7, 6, 5, 4], [7, 5, 3, 1], [7, 5, 3, 2], [7, 6, 5, 4]])
    metrics.update(tokens, condition=torch.tensor([[0], [1], [1], [2]]))
    result = {name: value[0].item() for name, value in metrics.compute().items()}
    assert result["error_rate"] == pytest.approx((0 + 0 + 1 / 3 + 1) / 4)
    assert result["error_rate_step_1"] == 0
    assert result["error_rate_step_2"] == pytest.approx(1 / 6)
    assert result["error_rate_step_3"] == 1
    assert result["sequence_error_rate"] == 1 / 2
    law = (stationary_distribution(8) + 2 * stationary_distribution(8, 2) + stationary_distribution(8, 3)) / 4
    seen = torch.bincount(tokens.flatten(), minlength=8) / 16
    assert result["unigram_tv"] == pytest.approx((seen - law).abs().sum().item() / 2)


def test_real_labelled_data_has_no_error(labelled):
    metrics = labelled.sample_metrics()
    items = labelled.val_data.__getitems__(range(90))
    metrics.update(torch.stack([item["tokens"] for item in items]), condition=labelled.sample_conditions(90))
    result = metrics.compute()
    assert all(result[name][0] == 0 for name in result if "error_rate" in name)
    assert result["unigram_tv"][0] < 0.05


def test_samples_that_were_asked_for_no_step_are_refused(labelled):
    tokens = torch.zeros(2, 32, dtype=torch.long)
    for condition in (None, torch.tensor([[0], [-1]])):
        with pytest.raises(SettingsError, match="sample with a condition, a step from 1 to 3"):
            labelled.sample_metrics().update(tokens, condition=condition)


def test_captions_and_conditions_in_words(labelled):
    assert labelled.condition("2").tolist() == labelled.condition("step 2").tolist() == [1]
    assert labelled.caption(torch.tensor([1])) == "step 2"
    shown = LabelledCountdown(length=3, values=8).show(
        torch.tensor([[5, 3, 2], [5, 4, 3]]), torch.tensor([[1], [1]])
    )
    assert [text.split() for text in shown] == [["5", "3", "!2"], ["5", "!4", "!3"]]
    for text in ("0", "4", "x", "1 2"):
        with pytest.raises(SettingsError, match="its step, 1 to 3"):
            labelled.condition(text)
    with pytest.raises(SettingsError, match="Countdown has no conditions; drop --condition"):
        Countdown().condition("2")
    assert Countdown().sample_conditions(3) is None


def test_metrics_say_how_their_axis_is():
    metrics = LabelledCountdown().sample_metrics()
    assert {name for name, metric in metrics.items() if not metric.logarithmic} == {"sequence_error_rate"}
