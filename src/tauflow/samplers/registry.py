"""The samplers by name, and specs: a sampler as text, `tr_cie(grid=tau, coins=systematic)`, and back."""

import dataclasses
import difflib
import re
import types
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tauflow.denoise import Model
from tauflow.errors import SamplingError, shorten
from tauflow.imports import import_object
from tauflow.samplers.bridge import Bridge, Renoise
from tauflow.samplers.confident import Confident
from tauflow.samplers.geometry import is_lattice
from tauflow.samplers.gibbs import Gibbs
from tauflow.samplers.independent import Independent
from tauflow.samplers.leaping import Leaping
from tauflow.samplers.remask import Remask
from tauflow.samplers.reveal import Best, Reveal
from tauflow.samplers.sampler import Range, Sampler, check
from tauflow.samplers.theta import Theta
from tauflow.samplers.tweedie import Fudoki, Hazard, Tweedie, TweedieD3PM

FAMILIES: dict[str, str] = {
    "leaping": "tau-leaping and its corrections",
    "tweedie": "exact kernels of a posterior held fixed during a step",
    "theta": "two evaluations per step",
    "reveal": "unmask tokens in an order that doesn't depend on them, for masked sources",
    "independent": "unmask tokens that hardly influence each other, for masked sources",
    "confident": "unmask the most confident tokens first, for masked sources",
    "bridge": "second-order bridges, for sources of data tokens",
    "remask": "take tokens back and draw them again",
    "gibbs": "sweeps that redraw tokens at the noise they have, for sources of data tokens",
}
"""What the samplers of a module of this package do."""

SAMPLERS: dict[str, Callable[..., Sampler[Any, Any]]] = {
    "euler": partial(Leaping, rule="euler"),
    "tr": partial(Leaping, rule="tr"),
    "cie": partial(Leaping, rule="cie"),
    "tr_cie": partial(Leaping, rule="tr_cie"),
    "tr_cie_exact": partial(Leaping, rule="tr_cie_exact"),
    "tweedie": Tweedie,
    "tweedie_d3pm": TweedieD3PM,
    "theta_rk2": partial(Theta, trapezoidal=False),
    "theta_trapezoidal": partial(Theta, trapezoidal=True),
    "fhs": Reveal,
    "ho_fhs": partial(Reveal, extrapolation="hitting"),
    "spaced": partial(Reveal, order="spaced", counts="power"),
    "spaced_even": partial(Reveal, order="even", counts="power"),
    "learned_order": partial(Reveal, order="learned", counts="power"),
    "entropy_budget": partial(Reveal, counts="entropy"),
    "bridge": Bridge,
    "fudoki": Fudoki,
    "confidence": Confident,
    "margin": partial(Confident, order="margin"),
    "entropy_order": partial(Confident, order="entropy"),
    "threshold": partial(Confident, counts="threshold"),
    "entropy_bound": partial(Confident, order="entropy", counts="bound"),
    "klass": partial(Confident, counts="stable"),
    "remdm_cap": partial(Remask, rule="cap", eta=0.008),
    "remdm_rescale": Remask,
    "remdm_loop": partial(Remask, rule="cap", eta=0.02, begin=0.45, end=0.95, hold=0.9),
    "forward_backward": partial(Remask, rule="forward", eta=1.0),
    "psi": partial(Remask, rule="psi", eta=0.05, begin=0.5, end=0.9),
    "renoise": partial(Renoise, coins="systematic"),
    "gibbs": Gibbs,
    "shs": Hazard,
    "best_learned": Best,
    "independent": partial(Independent, counts="power"),
}
"""The samplers by name. To add one, write a class (see sampler.py) and name it here."""

PRESETS: dict[str, str] = {
    "euler_tau_grid": "euler(grid=tau)",
    "tr_cie_paper": "tr_cie(grid=tau, jump=one_event, finish=reuse, eps_0=1e-12, ceiling=1e6)",
    "fhs_pairs": "fhs(weight=1)",
    "spaced_sharp": "spaced(power=3, weight=0.15)",
    "spaced_learned": "spaced(counts=learned, extrapolation=learned)",
    "random_learned": "fhs(counts=learned, extrapolation=learned)",
    "bridge_systematic": "bridge(coins=systematic)",
    "remask_spaced": "forward_backward(coins=systematic)",
    "gibbs_margin": "gibbs(choice=margin)",
}
"""Names of samplers with other options, by their specs: results are labeled with them."""

ALIASES: dict[str, str] = {
    "time_corrected": "tr(grid=tau, cutoff=0.05)",  # Wan et al., arXiv 2601.22519
    "cumulative_scalar": "tr",  # FS-DFM, arXiv 2509.20624
    "maximal_coupling": "tweedie",  # arXiv 2605.22765
    "discrete_ddim": "tweedie_d3pm",  # of diffusers
    "dilated": "spaced(counts=doubling)",  # arXiv 2506.19037, with base 2
    "halton": "spaced(counts=arccos)",  # arXiv 2503.17076
}
"""Published names of methods that have another name here, by their specs."""

LATER: dict[str, list[str]] = {
    "users": ["confidence", "margin", "entropy_order", "threshold", "entropy_bound", "klass"],
    "learned": ["spaced_learned", "random_learned", "best_learned"],
    "dependence": ["independent"],
    "correctors": [
        *("remdm_cap", "remdm_rescale", "remdm_loop", "forward_backward", "psi", "remask_spaced"),
        *("renoise", "gibbs", "gibbs_margin", "shs"),
    ],
}
"""Sets whose members are not in `all`."""

EVERY = [name for name in [*SAMPLERS, *PRESETS] if name != "fudoki"]  # which is for the metric path

SETS: dict[str, list[str]] = {
    "all": [name for name in EVERY if not any(name in names for names in LATER.values())],
    "every": EVERY,
    **LATER,
    "paper": [
        *("euler", "tweedie", "theta_rk2", "theta_trapezoidal", "fhs", "ho_fhs", "tr_cie", "tr_cie_paper"),
    ],
    "ablation": ["euler", "euler_tau_grid", "tr", "cie", "tr_cie", "tr_cie_exact"],
    "beyond": [
        *("euler", "tweedie", "tr_cie", "ho_fhs", "fhs_pairs", "spaced", "spaced_even", "spaced_sharp"),
        *("learned_order", "entropy_budget", "bridge", "bridge_systematic"),
    ],
}
"""Samplers by the name of a set; members that cannot sample a model are skipped, with a note."""


# Specs. The name in a spec is one of SAMPLERS, PRESETS, or ALIASES, `auto`, or your own class as
# `package.module.Class` or `path/to/file.py:Class`. Options are the fields of the dataclass.

OWN = "; your own class is path/to/file.py:Class"
SPEC = re.compile(r"(?P<name>[^()]+)(?:\((?P<options>[^()]*)\))?")


def sampler_from(spec: "str | Sampler", model: Model | None = None, /, **options: Any) -> Sampler:
    """Return a sampler from a spec, with further options.

    Use it to build a sampler in code or to check a spec. `tauflow.sample` and `tauflow.evaluate` call it
    for you. A name, option, or value that doesn't exist raises an error that lists what does.

    Args:
        spec: a name with options such as "tr_cie(grid=tau)", your own class as "my_sampler.py:Mine", or a
            Sampler.
        model: the model to sample, which "auto" needs.
        **options: more options, which override those of the spec.

    Returns:
        The sampler.

    Examples:
        >>> import tauflow
        >>> str(tauflow.sampler_from("tr_cie(grid=tau)", cutoff=0.01))
        'tr_cie(grid=tau, cutoff=0.01)'
    """
    if isinstance(spec, Sampler):
        return with_options(spec, type(spec).__name__, options)
    check(
        isinstance(spec, str), f"sampler must be a spec such as 'tr_cie(grid=tau)' or a Sampler, got {spec!r}"
    )
    found = SPEC.fullmatch(spec.strip())
    if found is None:
        raise SamplingError(
            f"cannot read the sampler {spec!r}; write a name with options, such as 'tr_cie(grid=tau)'"
        )
    name = found["name"].strip()
    base = _named(name, model)
    return with_options(base, name, _options(found["options"] or "", spec) | options)


def registered_sampler(spec: str, model: Model | None = None) -> Sampler:
    """Return a sampler from text that a file may have written: only registered names, nothing is imported."""
    name = spec_name(spec)
    if "." in name or ":" in name:
        raise SamplingError(
            f"sampler must be a registered name, got {shorten(spec)!r}. For your own class, pass an object."
        )
    return sampler_from(spec, model)


def with_options(sampler: Sampler, name: str, options: dict[str, Any]) -> Sampler:
    """Return the sampler with options, given as values or as text."""
    known = options_of(sampler)
    values = {}
    for key, value in options.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has: {', '.join(known) or 'none'}"
            raise SamplingError(f"sampler {name} has no option {key!r}{hint}")
        values[key] = _value(key, value, known[key].kind)
    return dataclasses.replace(sampler, **values) if values else sampler


def spec_name(spec: str) -> str:
    """Return the name in a spec: "tr_cie" of "tr_cie(grid=tau)"."""
    found = SPEC.fullmatch(spec.strip())
    return found["name"].strip() if found else spec


def split_specs(specs: str | Iterable[str]) -> list[str]:
    """Return single specs from a list or a text, in which commas outside brackets separate them."""
    texts = [specs] if isinstance(specs, str) else list(specs)
    found = [part.strip() for text in texts for part in _parts(text)]
    return [part for part in found if part]


def _parts(text: str) -> list[str]:
    """Return what stands between the commas outside brackets."""
    parts, begin, depth = [], 0, 0
    for found in re.finditer(r"[(),]", text):
        depth += {"(": 1, ")": -1, ",": 0}[found.group()]
        if found.group() == "," and depth <= 0:
            parts.append(text[begin : found.start()])
            begin = found.end()
    return [*parts, text[begin:]]


@lru_cache(maxsize=256)
def written(sampler: Sampler) -> str:
    """Return the spec of a sampler: the name that needs the fewest options, none of them to take one back."""
    defaults = {each.name: each.default for each in dataclasses.fields(sampler)}
    named = {name: make() for name, make in SAMPLERS.items() if getattr(make, "func", make) is type(sampler)}
    named |= {name: preset for name, preset in _presets().items() if type(preset) is type(sampler)}
    fits = [(name, _differences(sampler, each)) for name, each in named.items()]
    possible = [(name, changed) for name, changed in fits if changed is not None]

    def effort(candidate: tuple[str, dict[str, Any]]) -> tuple[int, int]:
        changed = candidate[1]
        return sum(value == defaults[key] for key, value in changed.items()), len(changed)

    if possible:
        name, changed = min(possible, key=effort)
    else:
        name = f"{type(sampler).__module__}.{type(sampler).__qualname__}"
        changed = {key: getattr(sampler, key) for key in defaults if getattr(sampler, key) != defaults[key]}
    options = ", ".join(f"{key}={_text(value)}" for key, value in changed.items())
    return f"{name}({options})" if options else name


@cache
def _presets() -> dict[str, Sampler]:
    return {name: sampler_from(spec) for name, spec in PRESETS.items()}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a sampler, as help and docs show it."""

    name: str
    kind: Any  # its type
    default: Any
    help: str
    range: Range | None = None

    @property
    def choices(self) -> str:
        """Return the values it takes, in words."""
        words = []
        for kind in _alternatives(self.kind):
            if get_origin(kind) is Literal:
                words += [str(value) for value in get_args(kind)]
            else:
                word = {bool: "true or false", int: "whole number", float: "number"}.get(kind, "text")
                words.append(f"{word} {self.range}" if self.range else word)
        optional = ["none"] if type(None) in get_args(self.kind) else []
        return ", ".join([*words, *optional])


def options_of(sampler: "Sampler | type[Sampler]") -> dict[str, Option]:
    """Return the options of a sampler by name; fields that are `fixed` belong to the name."""
    return _options_of(sampler if isinstance(sampler, type) else type(sampler))


@lru_cache(maxsize=256)
def _options_of(cls: type[Sampler]) -> dict[str, Option]:
    hints = get_type_hints(cls)
    fields = [each for each in dataclasses.fields(cls) if each.init and not each.metadata.get("fixed")]
    return {
        each.name: Option(
            each.name,
            hints[each.name],
            each.default,
            each.metadata.get("help", ""),
            each.metadata.get("range"),
        )
        for each in fields
    }


def families() -> dict[str, list[str]]:
    """Return the names in SAMPLERS by what they do."""
    found: dict[str, list[str]] = {line: [] for line in FAMILIES.values()}
    for name, make in SAMPLERS.items():
        module = getattr(make, "func", make).__module__.rpartition(".")[2]
        found.setdefault(FAMILIES.get(module, module), []).append(name)
    return found


def sharpening() -> list[str]:
    """Return the samplers that don't keep the data distribution."""
    presets = [PRESETS[name] for name, sampler in _presets().items() if sampler.sharpens]
    return [*(name for name, make in SAMPLERS.items() if make().sharpens), *presets]


def described() -> dict[str, list[tuple[str, Option]]]:
    """Return who has each option of the samplers in the package: {name: [(sampler, option), ...]}."""
    found: dict[str, list[tuple[str, Option]]] = {}
    for name, make in SAMPLERS.items():
        for key, each in options_of(make()).items():
            found.setdefault(key, []).append((name, each))
    return found


def _named(name: str, model: Model | None) -> Sampler:
    plain = name.lower().replace("-", "_")
    if plain == "auto":
        check(model is not None, "the sampler auto needs a model to choose for")
        assert model is not None
        return recommended(model)
    if plain in PRESETS or plain in ALIASES:
        return sampler_from(PRESETS.get(plain) or ALIASES[plain])
    if plain in SAMPLERS:
        return SAMPLERS[plain]()
    if "." in name or ":" in name:
        return _built(name)
    members = ", ".join(SETS.get(plain, []))
    check(not members, f"{name!r} is a set of samplers. Choose one of them: {members}")
    near = difflib.get_close_matches(plain, [*SAMPLERS, *PRESETS, *ALIASES, "auto"], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise SamplingError(f"unknown sampler {name!r}{hint}; known samplers: auto, {', '.join(SAMPLERS)}{OWN}")


def _built(name: str) -> Sampler:
    """Return a sampler of one's own with its default options."""
    kind = import_object(name, Sampler)
    try:
        return kind()
    except TypeError as error:  # an option without a default, or a method that is missing
        raise SamplingError(f"cannot make the sampler {name}: {error}; options need defaults") from None


def recommended(model: Model) -> Sampler:
    """Return the sampler `auto` of a model: what its process recommends, if that can sample it.

    A model with learned counts is sampled with them. Where all sides of a grid are powers of two the order of
    `spaced` is a perfect lattice, and measures better than `spaced_even` (docs/choosing-a-sampler.md).
    """
    learned = SAMPLERS["best_learned"]()
    if model.counts and not learned.unsupported_reason(model):
        return learned
    first = sampler_from(model.process.recommended)
    if first == SAMPLERS["spaced_even"]() and is_lattice(model.grid):
        return SAMPLERS["spaced"]()
    if not first.unsupported_reason(model):
        return first
    return SAMPLERS["spaced" if model.process.absorbing else "tr_cie"]()


def _options(text: str, spec: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for key, sign, value in pairs:
        check(
            bool(sign) and bool(key.strip()) and bool(value.strip()),
            f"cannot read the options of {spec!r}; write them as name=value, such as 'tr_cie(grid=tau)'",
        )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _alternatives(kind: Any) -> list[Any]:
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return [each for each in kinds if each is not type(None)]


def _value(name: str, value: Any, kind: Any) -> Any:
    """Return a value of an option's type from itself or from text."""
    if type(None) in get_args(kind) and value in (None, "none", "None"):
        return None
    for each in _alternatives(kind):
        if get_origin(each) is Literal:
            matching = [choice for choice in get_args(each) if str(choice) == str(value)]
            if matching:
                return matching[0]
            raise SamplingError(f"{name} must be one of {', '.join(map(str, get_args(each)))}, got {value!r}")
        if each is bool and str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        if each is str:
            return str(value)
        if each in (int, float) and not isinstance(value, bool):
            try:
                number = each(value)
            except (TypeError, ValueError):
                continue
            if isinstance(value, str) or number == value or number != number:
                return number
    words = Option(name, kind, None, "").choices.replace(", none", " or none")
    raise SamplingError(f"{name} must be {'' if words.startswith('true') else 'a '}{words}, got {value!r}")


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _differences(sampler: Sampler, preset: Sampler) -> dict[str, Any] | None:
    """Return the options in which a sampler differs from a preset; None if a fixed field does."""
    changed = {
        each.name: each
        for each in dataclasses.fields(sampler)
        if getattr(sampler, each.name) != getattr(preset, each.name)
    }
    if any(each.metadata.get("fixed") for each in changed.values()):
        return None
    return {name: getattr(sampler, name) for name in changed}
