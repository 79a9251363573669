"""The bound, checked with exact denoisers: equal to the entropy for a masked source, never below it for
others.
"""

import math

import pytest
import torch

from benchmarks.theory.laws import EnumerableLaw
from tauflow import Marginal, Masked, Mixture, Uniform
from tauflow.process import spread_kappas
from tauflow.tasks import countdown
from tauflow.tasks.countdown import CountdownItems
from tauflow.train.bound import stratified_mean


def bound(posterior, x_1, process, seed=0):
    """Bound in nats per coordinate and its standard error: one kappa a sequence, as in validation."""
    kappa = spread_kappas(torch.arange(len(x_1)))
    t = process.t_from_share(kappa)
    x_t, _ = process.corrupt(x_1, t, torch.Generator().manual_seed(seed))
    logits = posterior(x_t, t, process).log()
    times = t[:, None].expand(x_1.shape).flatten()
    terms = process.bound(logits.flatten(0, 1), x_t.flatten(), x_1.flatten(), times).view(x_1.shape)
    if process.absorbing:
        terms = terms * process.movable(x_t)
    return stratified_mean(terms.mean(1) / (1 - kappa), kappa)


@pytest.mark.parametrize("name", ["linear", "quadratic", "cosine"])
def test_masked_bound_is_the_entropy(name):
    """40 000 sequences: the estimate lies within four of its standard errors of the truth, and the error is
    below 1 %.
    """
    law = EnumerableLaw.random(num_tokens=3, length=4, spread=1.5)
    x_1 = law.sample(40_000, torch.Generator().manual_seed(1))
    mean, error = bound(law.posterior, x_1, Mixture(Masked(3), name))
    assert abs(mean - law.entropy) < 4 * error
    assert error < 0.01 * law.entropy


@pytest.mark.parametrize("source", [Uniform(3), Marginal([1, 2, 3])], ids=lambda source: source.name)
def test_bound_of_other_sources_is_above_the_entropy_but_near(source):
    law = EnumerableLaw.random(num_tokens=3, length=4, spread=1.5)
    x_1 = law.sample(40_000, torch.Generator().manual_seed(1))
    mean, error = bound(law.posterior, x_1, Mixture(source, "linear"))
    assert law.entropy - 4 * error < mean < 1.5 * law.entropy


@pytest.mark.parametrize(
    "source", [Masked(3), Uniform(3), Marginal([1, 2, 3])], ids=lambda source: source.name
)
def test_a_wrong_denoiser_pays(source):
    """A posterior mixed with 30 % uniform has a larger bound, by more than five standard errors."""
    law = EnumerableLaw.random(num_tokens=3, length=4, spread=1.5)
    x_1 = law.sample(40_000, torch.Generator().manual_seed(1))
    right, error = bound(law.posterior, x_1, Mixture(source, "linear"))
    wrong, _ = bound(lambda *args: 0.7 * law.posterior(*args) + 0.1, x_1, Mixture(source, "linear"))
    assert wrong - right > 5 * error


def test_masked_bound_of_countdown_with_forward_backward():
    items = CountdownItems(64, 8, seed=0, split="val", count=4096)
    x_1 = torch.stack([item["tokens"] for item in items.__getitems__(list(range(4096)))])
    mean, error = bound(countdown.posterior, x_1, Mixture(Masked(8), "quadratic"))
    assert abs(mean - countdown.entropy(64, 8)) < 4 * error
    assert error < 0.01 * mean


def test_standard_error_is_honest():
    """Over 400 stratified sets the spread of the mean and the reported error agree within 20 %; the naive
    error is 3 times larger.
    """
    generator = torch.Generator().manual_seed(0)
    at = (torch.arange(128) + torch.rand(400, 128, generator=generator)) / 128
    values = 3 * at + 0.3 * torch.randn(at.shape, generator=generator)
    results = []
    for v, a in zip(values, at, strict=True):
        order = torch.randperm(128, generator=generator)
        results.append(stratified_mean(v[order], a[order]))
    means, errors = (torch.stack(part) for part in zip(*results, strict=True))
    assert errors.mean() == pytest.approx(means.std().item(), rel=0.2)
    assert values.std(1).mean() / math.sqrt(128) > 2.5 * errors.mean()
