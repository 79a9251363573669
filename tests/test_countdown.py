import math

import pytest
import torch

from tauflow import Masked, Uniform, schedule_from
from tauflow.oracles import countdown_posterior
from tauflow.tasks import Countdown
from tauflow.tasks.countdown import CountdownItems, entropy, stationary_law, transition_matrix, violations


def data(count: int, length: int = 256, values: int = 32, seed: int = 0) -> torch.Tensor:
    items = CountdownItems(length, values, seed, "train", count=2**62, name="position")
    return torch.stack([item["tokens"] for item in items.__getitems__(list(range(count)))])


def test_data_follow_the_rule_and_the_chain():
    """Data have no violation; the values after a 0 are uniform (chi-square of 31 degrees below 70: false failure 1e-4)."""
    x = data(500)
    assert x.shape == (500, 256)
    assert not violations(x, 32).any()
    after_zero = torch.bincount(x[:, 1:][x[:, :-1] == 0], minlength=32).double()
    assert ((after_zero - after_zero.mean()) ** 2 / after_zero.mean()).sum() < 70
    first = torch.bincount(x[:, 0], minlength=32).double()
    assert ((first - first.mean()) ** 2 / first.mean()).sum() < 70


def test_an_item_is_a_pure_function_of_seed_and_number():
    items = CountdownItems(64, 8, 3, "train", count=2**62, name="position")
    batch = items.__getitems__([5, 2, 10**15])
    for item in batch:
        alone = items[item["position"].item()]
        assert torch.equal(alone["tokens"], item["tokens"])
    assert torch.equal(items[torch.tensor(5)]["tokens"], items[5]["tokens"])
    assert not torch.equal(items[5]["tokens"], items[6]["tokens"])
    with pytest.raises(IndexError, match="0 to 8"):
        CountdownItems(64, 8, 3, "val", 9, "index")[9]
    assert not torch.equal(items[5]["tokens"], CountdownItems(64, 8, 4, "train", 9, "position")[5]["tokens"])
    assert not torch.equal(items[5]["tokens"], CountdownItems(64, 8, 3, "val", 9, "index")[5]["tokens"])


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
    assert result["unigram_tv"][0] == pytest.approx(sum(abs(a - b) for a, b in zip(law, seen, strict=True)) / 2)


def test_foreign_tokens_count_against_the_unigram_law():
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


def test_stationary_law_and_entropy():
    law, transition = stationary_law(32), transition_matrix(32)
    torch.testing.assert_close(law @ transition, law)
    torch.testing.assert_close(transition.sum(1), torch.ones(32, dtype=torch.float64))
    assert entropy(10**4, 32) == pytest.approx(law[0].item() * math.log(32), rel=2e-3)  # the start is worth a few coordinates
    # by hand, V = 2, D = 3: the first value is free, the second if the first is 0 (1/2), the third if the second is 0 (3/4)
    assert entropy(3, 2) == pytest.approx((1 + 1 / 2 + 3 / 4) * math.log(2) / 3)


@pytest.mark.parametrize("source", [Masked(4), Uniform(4)])
def test_forward_backward_equals_enumeration(source):
    from tauflow.oracles import EnumerableLaw

    law = EnumerableLaw(torch.zeros(4**4, dtype=torch.float64), 4, 4)
    transition = transition_matrix(4)
    probabilities = torch.full((4**4,), 0.25, dtype=torch.float64)
    for d in range(3):
        probabilities = probabilities * transition[law.sequences[:, d], law.sequences[:, d + 1]]
    law = EnumerableLaw(probabilities, 4, 4)
    schedule, t = schedule_from("quadratic"), torch.tensor([0.3, 0.8])
    x = torch.tensor([[3, 2, 0, 3], [0, 1, 0, 3]])
    if isinstance(source, Masked):
        x = torch.tensor([[4, 2, 4, 4], [4, 4, 0, 4]])
    torch.testing.assert_close(countdown_posterior(x, t, source, schedule), law.posterior(x, t, source, schedule))


def test_show_marks_violations():
    shown = Countdown(length=4, values=12).show(torch.tensor([[2, 1, 0, 11], [2, 2, 11, 10]]))
    assert shown.split("\n")[0].split() == ["2", "1", "0", "11"]
    assert shown.split("\n\n")[1].split() == ["2", "!2", "!11", "10"]


def test_prompts():
    tokens, known = Countdown(length=6, values=12).prompt("11 _ 9")
    assert tokens[known].tolist() == [11, 9]
    assert known.tolist() == [True, False, True, False, False, False]


@pytest.mark.parametrize("bad", [{"length": 1}, {"values": 1}, {"batch_size": 0}])
def test_bad_sizes(bad):
    with pytest.raises(ValueError, match="countdown needs"):
        Countdown(**bad)
