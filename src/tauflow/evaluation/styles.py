"""How lines look: a sampler has one colour and marker in all figures, and no two lines of one are alike.

A new sampler gets an entry of its own in STYLES, so nothing is recoloured. A variant such as
tr_cie(grid=tau) has the colour of its sampler, with a dashed line and a marker of its own.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

STYLES: dict[str, tuple[str, str]] = {
    "euler": ("#4477aa", "o"),
    "euler_tau_grid": ("#99bbdd", "s"),
    "tr": ("#228833", "^"),
    "cie": ("#ccbb44", "v"),
    "tr_cie": ("#d62728", "D"),
    "tr_cie_exact": ("#ff9896", "P"),
    "tr_cie_paper": ("#7b1113", "X"),
    "tweedie": ("#66ccee", "*"),
    "tweedie_d3pm": ("#117777", "d"),
    "theta_rk2": ("#aa7744", "<"),
    "theta_trapezoidal": ("#774411", ">"),
    "fhs": ("#777777", "p"),
    "ho_fhs": ("#bbbbbb", "h"),
    "fhs_pairs": ("#444444", "H"),
    "spaced": ("#aa3377", "s"),
    "spaced_even": ("#000000", "o"),
    "spaced_sharp": ("#dd88bb", "^"),
    "learned_order": ("#ee8866", "v"),
    "entropy_budget": ("#aaaa00", "D"),
    "bridge": ("#9467bd", "P"),
    "bridge_systematic": ("#332288", "X"),
    "fudoki": ("#e6a000", "s"),
    "confidence": ("#0b5394", "o"),
    "margin": ("#3d85c6", "v"),
    "entropy_order": ("#6fa8dc", "^"),
    "threshold": ("#b45f06", "D"),
    "entropy_bound": ("#f6b26b", "P"),
    "klass": ("#783f04", "X"),
    "remdm_cap": ("#38761d", "o"),
    "remdm_rescale": ("#6aa84f", "s"),
    "remdm_loop": ("#b6d7a8", "^"),
    "forward_backward": ("#0f9d8a", "v"),
    "psi": ("#45818e", "D"),
    "remask_spaced": ("#00b050", "*"),
    "renoise": ("#e6007e", "*"),
    "gibbs": ("#674ea7", "P"),
    "gibbs_margin": ("#b4a7d6", "X"),
    "shs": ("#8e7cc3", "d"),
    "spaced_learned": ("#cc0011", "*"),
    "random_learned": ("#ff7766", "<"),
    "best_learned": ("#cc3300", "P"),
    "independent": ("#0000cc", "*"),
}
"""Colour and marker of each sampler."""

OTHERS = [
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#e377c2", "#8c564b", "#17becf", "#bcbd22", "#9edae5"),
    *("#f7b6d2", "#c49c94", "#98df8a", "#ffbb78", "#c5b0d5", "#393b79", "#637939", "#8c6d31"),
]
MARKERS = "os^vDP*Xd<>"  # none of the polygons that look like a circle when they are small
LINES = ("--", ":", "-.")


def styles(names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return colour, marker and line of each label of one figure, from the name of its sampler."""
    found: dict[str, dict[str, Any]] = {}
    taken: set[tuple[str, str, str]] = set()
    for label in sorted(names, key=lambda each: (each not in STYLES, each)):
        free = (each for each in _looks(label, names[label]) if each not in taken)
        # beyond 33 variants of one sampler some must share a look
        look = next(free, next(_looks(label, names[label])))
        taken.add(look)
        found[label] = dict(zip(("color", "marker", "linestyle"), look, strict=True))
    return found


def _looks(label: str, base: str) -> Iterator[tuple[str, str, str]]:
    """Yield the looks that a label may have; the first of them depends on nothing but the label."""
    if label in STYLES:
        yield (*STYLES[label], "-")
    number = hashlib.blake2b(label.encode(), digest_size=4).digest()[0]
    if base in STYLES:
        colours = [STYLES[base][0]]
        turn = number % len(LINES)
        lines: tuple[str, ...] = (*LINES[turn:], *LINES[:turn])  # variants differ by their line first
    else:
        shift = number % len(OTHERS)
        colours = OTHERS[shift:] + OTHERS[:shift]
        lines = ("-", *LINES)
    for step in range(len(MARKERS)):
        for line in lines:
            for colour in colours:
                yield colour, MARKERS[(number // 16 + step) % len(MARKERS)], line
