"""Samplers as text and back: options, sets, `auto`, and samplers of one's own."""

import dataclasses
import itertools
import math
import random
import sys
from typing import get_args

import pytest
import torch
from helpers import mixture

import tauflow
from tauflow import Model, Sampler, sampler_from
from tauflow.errors import SamplingError, SettingsError
from tauflow.samplers import SAMPLERS, SETS, split_specs
from tauflow.samplers.leaping import Leaping
from tauflow.samplers.registry import ALIASES, FAMILIES, PRESETS, described, families, options_of
from tauflow.samplers.reveal import Reveal

NUMBERS = [0.0, 0.15, 1.0, 1e-12, 0.1 + 0.2, 1 / 3, 2.5, 1e6, math.inf]
VALUES = {bool: [True, False], int: [1, 2, 7], float: NUMBERS, float | None: [*NUMBERS, None]}


def flat(x, t):
    return torch.zeros(*x.shape, 3)


def model_of(kind, *shape) -> Model:
    return Model(flat, mixture(kind, 3), shape)


# Round trips


def test_every_published_name_is_its_own_spec():
    for name in [*SAMPLERS, *PRESETS]:
        assert str(sampler_from(name)) == name


def variants(name: str, count: int) -> list[Sampler]:
    """Samplers with random options, those that go together."""
    coins, found = random.Random(name), []
    options = options_of(SAMPLERS[name]())
    while options and len(found) < count:
        chosen = coins.sample(sorted(options), coins.randint(1, len(options)))
        values = {
            key: coins.choice(VALUES.get(options[key].kind) or get_args(options[key].kind)) for key in chosen
        }
        try:
            found.append(sampler_from(name, **values))
        except SamplingError:
            continue  # these do not go together
        assert all(getattr(found[-1], key) == value for key, value in values.items())
    return found


def test_random_options_go_there_and_back():
    """40 variants of each: numbers come back to the last bit."""
    for name in SAMPLERS:
        for sampler in variants(name, 40):
            assert sampler_from(str(sampler)) == sampler, str(sampler)


def test_equal_samplers_have_equal_specs_and_others_have_not():
    samplers = [sampler for name in SAMPLERS for sampler in [SAMPLERS[name](), *variants(name, 10)]]
    written = [(sampler, str(sampler)) for sampler in samplers]
    for (one, spec), (other, other_spec) in itertools.combinations(written, 2):
        assert (one == other) == (spec == other_spec)


@pytest.mark.parametrize(
    ("spec", "written"),
    [
        ("tr_cie(grid=tau)", "tr_cie(grid=tau)"),
        ("  TR-CIE ( grid = tau,coins=systematic , ) ", "tr_cie(grid=tau, coins=systematic)"),
        ("tr_cie()", "tr_cie"),
        ("tr_cie(grid=t)", "tr_cie"),
        ("euler(grid=tau)", "euler_tau_grid"),
        ("bridge(coins=systematic)", "bridge_systematic"),
        ("bridge_systematic(gain=none)", "bridge_systematic"),
        ("bridge(gain=1)", "bridge(gain=1)"),
        ("fhs(order=spaced, counts=power)", "spaced"),
        ("spaced_sharp(weight=0, power=2)", "spaced(power=2)"),
        ("tr_cie(cutoff=0.00100, dense=True)", "tr_cie(dense=true)"),
        ("tr_cie(eps_0=1e-3)", "tr_cie(eps_0=0.001)"),
        ("tr_cie_paper(ceiling=inf)", "tr_cie(grid=tau, finish=reuse, jump=one_event, eps_0=1e-12)"),
    ],
)
def test_the_shortest_spec_is_written(spec, written):
    assert str(sampler_from(spec)) == written


def test_options_may_be_given_beside_a_spec_or_a_sampler():
    expected = Leaping(grid="tau", coins="systematic", cutoff=0.01)
    assert sampler_from("tr_cie(grid=tau)", coins="systematic", cutoff=0.01) == expected
    assert sampler_from("tr_cie(grid=t)", grid="tau", coins="systematic", cutoff="0.01") == expected
    assert sampler_from(SAMPLERS["tr_cie"](grid="tau"), coins="systematic", cutoff=0.01) == expected
    assert sampler_from(expected) is expected


def test_the_result_names_its_sampler():
    result = tauflow.sample(model_of("masked", 4), "tr-cie(grid=tau, cutoff=0.010)", 3)
    assert result.info.settings["sampler"] == "tr_cie(grid=tau, cutoff=0.01)"
    assert tauflow.sample(model_of("masked", 4), nfe=3).info.settings["sampler"] == "spaced_even"


# What cannot be read


@pytest.mark.parametrize("spec", ["", "tr_cie(grid=tau", "tr_cie(a=1)b"])
def test_text_that_is_no_spec(spec):
    with pytest.raises(SamplingError, match=r"cannot read the sampler .* such as 'tr_cie"):
        sampler_from(spec)


@pytest.mark.parametrize("spec", ["tr_cie(grid=)", "tr_cie(grid=tau, cutoff)"])
def test_options_that_are_no_pairs(spec):
    with pytest.raises(SamplingError, match=r"cannot read the options of .*; write them as name=value"):
        sampler_from(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tr_ci", r"unknown sampler 'tr_ci'; did you mean tr_cie\?; known samplers: auto, euler, "),
        ("autos", r"did you mean auto\?"),
        ("zzz", "your own class is path.to.file.py:Class"),
        ("ablation", "'ablation' is a set of samplers. Choose one of them: euler, euler_tau_grid, tr, cie"),
        ("auto", "the sampler auto needs a model to choose for"),
        ("tr_cie(gird=tau)", r"sampler tr_cie has no option 'gird'; did you mean grid\?"),
        ("tr_cie(rule=euler)", "sampler tr_cie has no option 'rule'; it has: grid"),
        ("tr_cie(grid=sigma)", "grid must be one of t, tau, early, got 'sigma'"),
        ("tr_cie(eps_0=small)", "eps_0 must be a number, got 'small'"),
        ("tr_cie(dense=1)", "dense must be true or false, got '1'"),
        ("bridge(gain=much)", "gain must be a number or none, got 'much'"),
    ],
)
def test_refused_specs_get_a_sentence(spec, message):
    with pytest.raises(SamplingError, match=message):
        sampler_from(spec)


def test_what_is_neither_text_nor_sampler():
    with pytest.raises(SamplingError, match="sampler must be a spec such as 'tr_cie"):
        sampler_from(3)


# Lists of specs, sets


def test_commas_outside_brackets_separate_specs():
    assert split_specs("tr_cie") == ["tr_cie"]
    assert split_specs("tr_cie(grid=tau, coins=systematic), fhs,bridge(gain=1)") == [
        "tr_cie(grid=tau, coins=systematic)",
        "fhs",
        "bridge(gain=1)",
    ]
    assert split_specs(["a(b=1,c=2),d", " e ", "f(g=1)", ""]) == ["a(b=1,c=2)", "d", "e", "f(g=1)"]
    assert split_specs(",, a ,,") == ["a"]
    assert split_specs("") == []
    assert split_specs("a(b=1, c") == ["a(b=1, c"]


def test_published_names_are_samplers_of_ours():
    for published, ours in ALIASES.items():
        assert published not in {*SAMPLERS, *PRESETS, *SETS}
        assert str(sampler_from(published)) == ours
        assert sampler_from(published.upper().replace("_", "-")) == sampler_from(ours)


def test_a_preset_is_a_sampler_with_options():
    assert not PRESETS.keys() & SAMPLERS.keys()
    for name, spec in PRESETS.items():
        assert sampler_from(name) == sampler_from(spec)
        assert sampler_from(name.upper().replace("_", "-")) == sampler_from(spec)
    assert sampler_from("euler_tau_grid(cutoff=0.1)") == sampler_from("euler(grid=tau, cutoff=0.1)")


def test_every_sampler_is_in_a_family():
    found = families()
    assert list(found) == list(FAMILIES.values())
    assert sorted(name for names in found.values() for name in names) == sorted(SAMPLERS)


def test_a_published_name_takes_options():
    assert sampler_from("time_corrected(cutoff=0.1)") == sampler_from("tr(grid=tau, cutoff=0.1)")


def test_sets_name_samplers():
    assert {*SETS["every"], "fudoki"} == {*SAMPLERS, *PRESETS}, "that one is for the metric path"
    later = {*SETS["users"], *SETS["correctors"], *SETS["learned"], *SETS["dependence"]}
    assert {*SETS["all"]} == {*SETS["every"]} - later, "results of `all` are complete as they are"
    for names in SETS.values():
        assert len(set(names)) == len(names)
        assert set(names) <= {*SAMPLERS, *PRESETS}
    assert not set(SETS) & {*SAMPLERS, *PRESETS}


# auto


@pytest.mark.parametrize(
    ("kind", "shape", "name"),
    [
        ("masked", (12,), "spaced_even"),
        ("masked", (3, 4), "spaced_even"),
        ("masked", (4, 8), "spaced"),
        ("uniform", (12,), "renoise"),
        ("marginal", (12,), "renoise"),
    ],
)
def test_auto_is_recommended_for_the_process_and_the_shape(kind, shape, name):
    model = model_of(kind, *shape)
    assert str(sampler_from("auto", model)) == name
    assert str(sampler_from("Auto", model)) == name
    by_default, by_name = (tauflow.sample(model, *sampler, nfe=4, count=3) for sampler in ((), (name,)))
    assert torch.equal(by_default.tokens, by_name.tokens)
    assert by_default.info == by_name.info


@pytest.mark.parametrize(("channels", "name"), [(None, "spaced_even"), ("together", "spaced")])
def test_auto_looks_at_pixels_not_at_channels(channels, name):
    model = dataclasses.replace(model_of("masked", 4, 4, 3), channels=channels)
    assert str(sampler_from("auto", model)) == name


def test_auto_takes_options():
    assert str(sampler_from("auto(power=3)", model_of("masked", 12))) == "spaced_even(power=3)"
    with pytest.raises(SamplingError, match="sampler auto has no option 'coins'"):
        sampler_from("auto(coins=systematic)", model_of("masked", 12))


# Help


def test_every_option_has_help_and_says_what_it_takes():
    for name, owners in described().items():
        for sampler, option in owners:
            assert option.help, f"{name} of {sampler}"
            assert option.choices
    options = options_of(SAMPLERS["tr_cie"]())
    assert options["grid"].choices == "t, tau, early"
    assert options["dense"].choices == "true or false"
    assert options["cutoff"].choices == "number above 0 and below 1, none"
    assert options["cutoff"].default == 1e-3
    assert options_of(Reveal)["power"].choices == "number above 0, none"
    assert "rule" not in options


# Samplers of one's own

OWN = """
from dataclasses import dataclass
from typing import Literal

from tauflow.samplers import State, option
from tauflow.samplers.reveal import Reveal


@dataclass(frozen=True)
class Twice(Reveal):
    k: int = option(1, "how many coordinates an evaluation reveals")
    mood: Literal["calm", "wild"] = option("calm", "nothing at all")
    label: str = option("plain", "a text")

    def revealed(self, free, n, steps):
        return free.clamp(max=self.k * n) if n < steps else free


@dataclass(frozen=True, kw_only=True)
class NeedsValue(Reveal):
    k: int


class Nothing:
    pass


def function():
    return 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file outside the package; its name is its own in every test."""
    stem = f"own_{tmp_path.name.replace('-', '_')}"
    path = tmp_path / f"{stem}.py"
    path.write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop(stem, None)


def test_a_sampler_in_a_file_has_options_like_any_other(own):
    sampler = sampler_from(f"{own}:Twice(k=3, mood=wild)")
    assert (type(sampler).__name__, sampler.k, sampler.mood) == ("Twice", 3, "wild")
    assert str(sampler) == f"{own.stem}.Twice(k=3, mood=wild)"
    assert sampler_from(str(sampler)) == sampler, "the spec that results name is readable"
    assert sampler_from(f"{own}:Twice", k="3", mood="wild") == sampler
    assert options_of(sampler)["k"].help == "how many coordinates an evaluation reveals"
    counts = []

    def network(x, t):
        counts.append(int((x == 3).sum(1)[0]))
        return torch.zeros(*x.shape, 3)

    result = tauflow.sample(Model(network, mixture("masked", 3), (12,)), f"{own}:Twice(k=3)", 5)
    assert counts == [12, 9, 6, 3]
    assert result.info.settings["sampler"] == f"{own.stem}.Twice(k=3)"


def test_a_sampler_by_its_module(own, monkeypatch):
    monkeypatch.chdir(own.parent)
    assert sampler_from(f"{own.stem}.Twice(k=2)").k == 2
    assert sampler_from("tauflow.samplers.leaping.Leaping(grid=tau)") == SAMPLERS["tr_cie"](grid="tau")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{file}:Twice(moods=wild)", r"has no option 'moods'; did you mean mood\?"),
        ("{file}:Twice(k=2.5)", "k must be a whole number, got '2.5'"),
        ("{file}:Twice(mood=sad)", "mood must be one of calm, wild, got 'sad'"),
        ("{file}:NeedsValue", "cannot make the sampler .*NeedsValue: .*argument: 'k'; options need defaults"),
        (
            "tauflow.samplers.sampler.Sampler",
            "cannot make the sampler tauflow.samplers.sampler.Sampler: .*abstract",
        ),
        ("{file}:Nothing", "Nothing is not a Sampler"),
        ("{file}:Missing", "cannot import .*:Missing: .* has no class Missing"),
        ("{folder}/none.py:Twice", r"there is no Python file .*none.py; write path/to/file.py:Twice"),
        ("no_such_module.Twice", "cannot import no_such_module.Twice: ModuleNotFoundError"),
    ],
)
def test_samplers_of_ones_own_that_cannot_be_used(own, spec, message):
    with pytest.raises((SamplingError, SettingsError), match=message):
        sampler_from(spec.format(file=own, folder=own.parent))


def test_a_file_that_does_not_import(own):
    own.write_text("import nothing_of_this_name\n")
    with pytest.raises(
        SettingsError, match=r"cannot import .*:Twice: ModuleNotFoundError: No module named 'nothing_of"
    ):
        sampler_from(f"{own}:Twice")
    own.write_text("x = 1 / 0\n")
    with pytest.raises(SettingsError, match="ZeroDivisionError"):
        sampler_from(f"{own}:Twice")


def test_a_file_with_the_name_of_another_module(own):
    path = own.parent / "random.py"
    path.write_text(OWN)
    with pytest.raises(SettingsError, match="there is another module named random; rename the file"):
        sampler_from(f"{path}:Twice")


def test_whole_numbers_are_not_cut_off(own):
    with pytest.raises(SamplingError, match=r"k must be a whole number, got 2\.5"):
        sampler_from(f"{own}:Twice", k=2.5)
    assert sampler_from(f"{own}:Twice", k=2.0).k == 2
    assert sampler_from(f"{own}:Twice(label=3)").label == "3"


def test_a_sampler_is_compared_by_its_options():
    assert dataclasses.replace(SAMPLERS["tr_cie"](), grid="tau") == sampler_from("tr_cie(grid=tau)")
    assert len({sampler_from("tr_cie"), sampler_from("tr_cie(grid=t)"), sampler_from("tr")}) == 2
