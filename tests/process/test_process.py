"""Sources, the mixture path, its evidence and kernel; times of a batch.

Statistics: a share p of n draws has the standard error sqrt(p (1 - p) / n), and tests allow five. Seeds are
fixed.
"""

import numpy as np
import pytest
import torch
from helpers import SOURCES, mixture, mixtures, skewed

from tauflow import Marginal, Masked, Mixture, Process, Source, Uniform
from tauflow.errors import SettingsError
from tauflow.process import source_from, spread_kappas, stratified_times

LAW = (0.1, 0.2, 0.3, 0.4)


def five_errors(share, n):
    return 5 * (share * (1 - share) / n) ** 0.5 + 1e-12


# Sources


def test_sources():
    masked, uniform = Masked(5), Uniform(5)
    assert (masked.num_states, masked.mask_id, uniform.num_states) == (6, 5, 5)
    assert (masked.sample((2, 3)) == 5).all()
    x = torch.tensor([[5, 0, 4]])
    assert masked.movable(x).tolist() == masked.masks(x).tolist() == [[True, False, False]]
    assert uniform.movable(x).all()
    assert not uniform.masks(x).any()
    counts = torch.bincount(uniform.sample((100, 500), torch.Generator().manual_seed(0)).flatten())
    assert ((counts - 10_000).abs() < 5 * (50_000 * 0.2 * 0.8) ** 0.5).all()  # five standard deviations


def test_a_marginal_source_draws_from_its_law():
    source = Marginal([1, 2, 3, 4])
    assert (source.num_tokens, source.num_states, source.name) == (4, 4, "marginal")
    assert source.distribution.tolist() == pytest.approx(LAW)
    assert source == Marginal(torch.tensor(LAW, dtype=torch.float64))
    assert source != Marginal([4, 3, 2, 1])
    assert hash(source) == hash(Marginal([1, 2, 3, 4]))
    x = source.sample((100, 500), torch.Generator().manual_seed(0))
    assert x.shape == (100, 500)
    assert x.dtype == torch.int64
    shares = torch.bincount(x.flatten(), minlength=4) / x.numel()
    assert ((shares - source.distribution).abs() < five_errors(source.distribution, x.numel())).all()
    assert source.movable(x).all()
    assert not source.masks(x).any()


def test_the_tails_of_a_marginal_source_are_drawn():
    """40 tokens of 1e-6 each: of a million draws 40 are expected, outside 12 .. 80 with a probability of
    1e-6."""
    law = torch.full((41,), 1e-6, dtype=torch.float64)
    law[20] = 1 - 40e-6
    x = Marginal(law).sample((1000, 1000), torch.Generator().manual_seed(0))
    assert 12 <= (x != 20).sum() <= 80


@pytest.mark.parametrize(
    "law", [[1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")], [[1.0, 1.0]], "ab", None]
)
def test_bad_probabilities(law):
    with pytest.raises(ValueError, match="a probability above 0 for each token; add a little to each count"):
        Marginal(law)


@pytest.mark.parametrize("source", [lambda: Masked(1), lambda: Uniform(1), lambda: Marginal([1.0])])
def test_fewer_than_two_tokens(source):
    with pytest.raises(ValueError, match="at least 2"):
        source()


@pytest.mark.parametrize("number", [10**12, 2**24 + 1, 2.5, True, "5", None])
@pytest.mark.parametrize("kind", [Masked, Uniform])
def test_numbers_of_tokens_that_cannot_be(kind, number):
    """Refused before anything of the size of the vocabulary is made."""
    with pytest.raises(SettingsError, match="at least 2 data tokens and at most 16777216"):
        kind(number)


def test_a_number_of_tokens_may_be_a_numpy_integer():
    assert Masked(np.int64(5)) == Masked(5)


@pytest.mark.parametrize("kind", SOURCES)
def test_inverse_law_and_channels(kind):
    source = SOURCES[kind](4)
    assert source.channels == (4 if kind == "masked" else 3)
    assert source.distribution.sum() == pytest.approx(1)
    assert len(source.distribution) == source.num_states
    if kind != "masked":
        x = torch.tensor([[0, 3], [1, 1]])
        found = torch.as_tensor(source.inverse_probability(x), dtype=torch.float64).expand(x.shape)
        torch.testing.assert_close(found, 1 / source.distribution[x])


def test_a_source_by_name():
    assert source_from("masked", 5) == Masked(5)
    assert source_from("uniform", 5) == Uniform(5)
    assert source_from("marginal", 4, lambda: torch.tensor(LAW)) == Marginal(torch.tensor(LAW))
    assert source_from(skewed(4), 4) == skewed(4)
    assert source_from("tauflow.process.sources.Uniform", 5) == Uniform(5)
    with pytest.raises(ValueError, match=r"unknown source 'maskd'; known sources: .*; did you mean masked\?"):
        source_from("maskd", 5)
    with pytest.raises(SettingsError, match="needs the unigram distribution of the data"):
        source_from("marginal", 5)
    with pytest.raises(SettingsError, match="made for 4 tokens, the data has 5"):
        source_from(Masked(4), 5)
    with pytest.raises(SettingsError, match="is not a Source"):
        source_from("tauflow.process.schedules.Cosine", 5)


class Ends(Source):
    """A source of one's own, outside the package: the first and the last token."""

    @property
    def distribution(self):
        law = torch.full((self.num_tokens,), 0.1 / (self.num_tokens - 2), dtype=torch.float64)
        law[[0, -1]] = 0.45
        return law


def test_a_source_of_ones_own_states_its_law_alone():
    source = source_from(f"{__name__}.Ends", 6)
    assert source == Ends(6)
    assert source != Uniform(6)
    process = Mixture(source, "linear")
    assert (process.name, process.recommended, process.channels) == ("ends", "renoise", 5)
    x = process.start((200, 100), torch.Generator().manual_seed(0))
    shares = torch.bincount(x.flatten(), minlength=6) / x.numel()
    assert ((shares - source.distribution).abs() < five_errors(source.distribution, x.numel())).all()


# The mixture path


def test_a_mixture_has_the_facts_of_its_source():
    masked, uniform, marginal = mixtures(4, "quadratic")
    assert (masked.absorbing, uniform.absorbing, marginal.absorbing) == (True, False, False)
    assert (masked.loss_on, uniform.loss_on, marginal.loss_on) == ("corrupted", "all", "all")
    assert (masked.recommended, uniform.recommended) == ("spaced_even", "renoise")
    assert (masked.num_states, uniform.num_states, marginal.num_states) == (5, 4, 4)
    assert (masked.bound_cutoff, uniform.bound_cutoff) == (0.0, 1e-3)
    assert mixture("marginal", 4, "quadratic") == marginal
    assert len({masked, uniform, marginal}) == 3
    with pytest.raises(ValueError, match=r"source must be tauflow\.Masked"):
        Mixture("masked", "linear")
    with pytest.raises(ValueError, match="unknown schedule 'quadrat'"):
        Mixture(Masked(4), "quadrat")


def test_a_process_is_short_to_read():
    """A law of many tokens does not fill messages and records."""
    process = Mixture(Marginal(torch.ones(50_000)), "quadratic")
    assert str(process) == "marginal source, quadratic"
    assert len(repr(process)) < 100


@pytest.mark.parametrize("process", mixtures(4, "cosine"), ids=lambda process: process.name)
def test_the_clock_of_a_mixture(process):
    assert isinstance(process, Process)
    t = torch.linspace(0, 0.99, 100, dtype=torch.float64)
    kappa = process.schedule.kappa(t)
    torch.testing.assert_close(process.clock(t), -torch.log1p(-kappa))
    torch.testing.assert_close(process.t_from_clock(process.clock(t)), t)
    torch.testing.assert_close(process.t_from_share(kappa), t)
    h = 1e-5
    ends = process.clock(torch.tensor([0.3 - h, 0.3 + h], dtype=torch.float64))
    assert process.rate_factor(0.3) == pytest.approx(ends.diff().item() / (2 * h), rel=1e-8)


@pytest.mark.parametrize("process", mixtures(4, "quadratic"), ids=lambda process: process.name)
def test_corrupt_follows_the_mixture(process):
    """Shares of kept and of each redrawn token at t = 0.6, kappa = 0.36, over 400 000 coordinates: within
    five standard deviations."""
    count = 400_000
    x_1 = torch.full((count // 100, 100), 2)
    x_t, corrupted = process.corrupt(x_1, torch.full((len(x_1),), 0.6), torch.Generator().manual_seed(1))
    law = {
        "masked": torch.eye(5)[4],
        "uniform": torch.full((4,), 0.25),
        "marginal": torch.tensor([0.1, 0.2, 0.3, 0.4]),
    }[process.name]
    expected = 0.64 * law
    expected[2] += 0.36
    seen = torch.bincount(x_t.flatten(), minlength=process.num_states) / count
    assert (seen - expected).abs().max() < 5 * (0.25 / count) ** 0.5
    assert abs(corrupted.double().mean() - 0.64) < 5 * (0.25 / count) ** 0.5
    assert torch.equal(x_t[~corrupted], x_1[~corrupted])


@pytest.mark.parametrize("process", mixtures(4), ids=lambda process: process.name)
def test_ends_of_the_path(process):
    x_1 = torch.randint(4, (8, 50), generator=torch.Generator().manual_seed(0))
    generators = (torch.Generator().manual_seed(2) for _ in range(2))
    noise = process.noise(torch.zeros(8), 50, next(generators))
    assert noise.corrupted.all()
    assert torch.equal(process.corrupt(x_1, torch.zeros(8), next(generators))[0], noise.x_0)
    assert torch.equal(process.corrupt(x_1, torch.ones(8))[0], x_1)
    assert torch.equal(noise.rows(torch.tensor([3, 1])).x_0, noise.x_0[[3, 1]])


@pytest.mark.parametrize("process", mixtures(4), ids=lambda process: process.name)
def test_a_start_has_the_start_law(process):
    x = process.start((400, 100), torch.Generator().manual_seed(3))
    law = process.start_distribution()
    assert law.dtype == torch.float64
    assert law.shape == (process.num_states,)
    shares = torch.bincount(x.flatten(), minlength=process.num_states) / x.numel()
    assert ((shares - law).abs() < five_errors(law, x.numel())).all()


@pytest.mark.parametrize("process", mixtures(4, "quadratic"), ids=lambda process: process.name)
def test_evidence_is_the_likelihood_of_a_state(process):
    """By brute force from the definition: p(x | x_1 = s) = kappa 1{x = s} + (1 - kappa) p_src(x), up to a
    factor without s."""
    x = torch.arange(process.num_states)[None].expand(3, -1)
    t = torch.tensor([0.0, 0.3, 0.9])
    evidence = process.evidence(x, t)
    assert evidence.dtype == torch.float64
    law = process.start_distribution().tolist()
    for b, time in enumerate(t.tolist()):
        kappa = time**2
        for state in range(process.num_states):
            likelihood = torch.tensor([kappa * (state == s) + (1 - kappa) * law[state] for s in range(4)])
            if likelihood.sum() == 0:
                continue  # a revealed token at t = 0 cannot be seen
            found = evidence[b, state] / evidence[b, state].sum()
            torch.testing.assert_close(found, (likelihood / likelihood.sum()).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("process", mixtures(4), ids=lambda process: process.name)
def test_the_kernel_is_the_flow_of_the_frozen_rates(process):
    """In tau a coordinate that may move jumps to s at rate p(s), s != x, whatever it is at by then: exp(dtau
    Q) with Q over the S states. A revealed coordinate of a masked source stays."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(process.num_states, 4, generator=generator, dtype=torch.float64)
    rows = rows / rows.sum(-1, keepdim=True)
    tokens = torch.arange(process.num_states)
    for step in (0.0, 0.05, 0.7, 4.0):
        kernel = process.kernel(rows, tokens, 0.3, 0.3 + step)
        torch.testing.assert_close(kernel.sum(-1), torch.ones(process.num_states, dtype=torch.float64))
        for state in tokens.tolist():
            generator_matrix = torch.zeros(process.num_states, process.num_states, dtype=torch.float64)
            for now in tokens.tolist():
                if process.movable(torch.tensor([now])):
                    generator_matrix[now, :4] = rows[state]
                generator_matrix[now, now] = 0
                generator_matrix[now, now] = -generator_matrix[now].sum()
            exact = torch.linalg.matrix_exp(step * generator_matrix)[state]
            torch.testing.assert_close(kernel[state], exact, atol=1e-12, rtol=0)


@pytest.mark.parametrize("process", mixtures(4), ids=lambda process: process.name)
def test_intensities_are_rows_without_what_is_no_jump(process):
    rows = torch.full((process.num_states, 4), 0.25)
    tokens = torch.arange(process.num_states)
    intensity = process.intensity(rows.clone(), tokens, 0.3)
    if process.absorbing:
        expected = torch.cat([torch.zeros(4, 4), torch.full((1, 4), 0.25)])
    else:
        expected = 0.25 * (1 - torch.eye(4))
    assert torch.equal(intensity, expected)
    assert (intensity.sum(-1) <= process.mass(0.3)).all()
    assert (intensity > 0).sum(-1)[process.movable(tokens)].unique().tolist() == [process.channels]


@pytest.mark.parametrize("kind", ["uniform", "marginal"])
def test_own_odds_are_a_ratio_of_evidence(kind):
    process = mixture(kind, 4)
    x, t = torch.arange(4)[None], 0.3
    evidence = process.evidence(x, torch.tensor([t], dtype=torch.float64))[0]
    own, other = evidence.diagonal(), evidence.roll(1, 1).diagonal()
    odds = torch.as_tensor(process.own_odds(x, t), dtype=torch.float64).expand(x.shape)
    torch.testing.assert_close(odds[0], own / other)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_bound_is_a_divergence_of_rates(kind):
    """By brute force: sum over s != x_t of u ln(u / v) - u + v with u = 1{s = x_1} and v = p(s); nothing
    where a coordinate may not move is asked for."""
    process = mixture(kind, 4)
    logits = torch.randn(16, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x_1, x_t = torch.arange(4).repeat(4), torch.arange(4).repeat_interleave(4)
    if kind == "masked":
        x_t = torch.full((16,), 4)
    p = logits.softmax(-1)
    for row, (now, data) in enumerate(zip(x_t.tolist(), x_1.tolist(), strict=True)):
        v = p[row]
        expected = sum(v[s] - (s == data) * (1 + v[s].log()) for s in range(4) if s != now)
        found = process.bound(logits[[row]], x_t[[row]], x_1[[row]], torch.tensor([0.5]))
        assert found.item() == pytest.approx(expected.item())


# Times


def test_stratified_times_cover_every_stratum():
    for seed in range(20):
        t = stratified_times(64, torch.Generator().manual_seed(seed))
        assert torch.equal((t * 64).long(), torch.arange(64))
        assert t.max() < 1


def test_spread_kappas_are_stratified_on_every_leading_part_and_fixed():
    kappa = spread_kappas(torch.arange(512))
    for k in (8, 64, 512):
        assert torch.equal((kappa[:k] * k).long().sort().values, torch.arange(k))
    index = torch.tensor([300, 7, 41])
    assert torch.equal(spread_kappas(index), kappa[index])
    assert abs(kappa.mean() - 0.5) < 1 / 512  # not all at the left ends of their strata


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.5, 0.5], [0.5, 0.5, 0.0]])
def test_a_distribution_needs_probabilities(values):
    class Own(Source):  # `law` is the old name
        law = torch.tensor(values, dtype=torch.float64)

    with pytest.raises(ValueError, match="must be 3 probabilities with the sum 1, above 0"):
        Mixture(Own(3), "linear")


def test_a_law_of_probabilities_stays_as_it_is():
    """Rebuilt from its own law, as from a checkpoint, a marginal source is the same to the last bit."""
    law = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    once = Marginal(law)
    assert Marginal(once.distribution) == once
