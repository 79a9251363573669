"""The Kneser-Ney model: normalised, and equal to a case worked out by hand."""

import itertools

import numpy as np
import pytest

from tauflow.tasks.text.statistics import KneserNey


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_sum_to_one(order):
    """After every context that is seen, half seen or unseen."""
    generator = np.random.default_rng(0)
    v = 5
    model = KneserNey.fit(generator.choice(v, size=(30, 12), p=[0.5, 0.3, 0.15, 0.05, 0]), v, order)
    contexts = np.array(list(itertools.product(range(v), repeat=order - 1))).reshape(
        v ** (order - 1), order - 1
    )
    for k in range(order):
        used = contexts[:, :k]
        total = sum(model.probabilities(used, np.full(len(used), token)) for token in range(v))
        np.testing.assert_allclose(total, 1, rtol=1e-12)


def test_bigrams_by_hand():
    """a b a c a b: bigrams ab 2, ba 1, ac 1, ca 1, so d = 3 / (3 + 2 * 1) = 0.6; continuations a 2 (after b,
    c), b 1, c 1, so d = 0.5.

    P(a) = (2 - 0.5) / 4 + 0.5 * 3 / 4 / 3 = 0.5; P(b) = P(c) = 0.5 / 4 + 0.125 = 0.25 P(b | a) = (2 - 0.6) /
    3 + 0.6 * 2 / 3 * 0.25 = 0.56667; P(c | a) = 0.4 / 3 + 0.1 = 0.23333; P(a | a) = 0.4 * 0.5 = 0.2
    """
    model = KneserNey.fit(np.array([[0, 1, 0, 2, 0, 1]]), 3, order=2)
    unigrams = model.probabilities(np.empty((3, 0), dtype=int), np.arange(3))
    np.testing.assert_allclose(unigrams, [0.5, 0.25, 0.25])
    after_a = model.probabilities(np.zeros((3, 1), dtype=int), np.arange(3))
    np.testing.assert_allclose(after_a, [0.2, 1.4 / 3 + 0.1, 0.4 / 3 + 0.1])
    logs = model.log_probabilities(np.array([[0, 1]]))
    np.testing.assert_allclose(logs, np.log([[0.5, 1.4 / 3 + 0.1]]))


def test_a_longer_context_helps_on_text_that_depends_on_it():
    """x_i = x_{i-1} + x_{i-2} mod 5: two tokens determine the third, one does not."""
    rows = []
    for first in range(5):
        for second in range(1, 5):
            row = [first, second]
            while len(row) < 20:
                row.append((row[-1] + row[-2]) % 5)
            rows.append(row)
    blocks = np.array(rows)
    losses = [-KneserNey.fit(blocks, 5, order).log_probabilities(blocks)[:, 3:].mean() for order in (1, 2, 3)]
    assert losses[2] < 0.1 < losses[1]


def test_arrays_give_the_same_model(tmp_path):
    blocks = np.random.default_rng(1).integers(7, size=(20, 9))
    model = KneserNey.fit(blocks, 7, 3)
    np.savez(tmp_path / "model.npz", **model.arrays())
    with np.load(tmp_path / "model.npz", allow_pickle=False) as saved:
        again = KneserNey.from_arrays(saved)
    np.testing.assert_array_equal(again.log_probabilities(blocks), model.log_probabilities(blocks))
