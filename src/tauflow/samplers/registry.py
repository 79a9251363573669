"""SAMPLERS: the published names, and SETS of them.

To add a sampler, write a class (see base.py) or an entry with other options of an existing one, and name it
here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tauflow.samplers.base import Sampler
from tauflow.samplers.best import Best
from tauflow.samplers.bridge import Bridge
from tauflow.samplers.confident import Confident
from tauflow.samplers.fudoki import Fudoki
from tauflow.samplers.gibbs import Gibbs
from tauflow.samplers.hazard import Hazard
from tauflow.samplers.independent import Independent
from tauflow.samplers.leaping import Leaping
from tauflow.samplers.remask import Remask
from tauflow.samplers.renoise import Renoise
from tauflow.samplers.reveal import Reveal
from tauflow.samplers.theta import Theta
from tauflow.samplers.tweedie import Tweedie, TweedieD3PM

SAMPLERS: dict[str, Callable[..., Sampler[Any, Any]]] = {
    "euler": partial(Leaping, rule="euler"),
    "euler_tau_grid": partial(Leaping, rule="euler", grid="tau"),
    "tr": partial(Leaping, rule="tr"),
    "cie": partial(Leaping, rule="cie"),
    "tr_cie": partial(Leaping, rule="tr_cie"),
    "tr_cie_exact": partial(Leaping, rule="tr_cie_exact"),
    "tr_cie_paper": partial(
        Leaping, rule="tr_cie", grid="tau", jump="one_event", finish="reuse", eps_0=1e-12, ceiling=1e6
    ),
    "tweedie": Tweedie,
    "tweedie_d3pm": TweedieD3PM,
    "theta_rk2": partial(Theta, trapezoidal=False),
    "theta_trapezoidal": partial(Theta, trapezoidal=True),
    "fhs": Reveal,
    "ho_fhs": partial(Reveal, extrapolation="hitting"),
    "fhs_pairs": partial(Reveal, weight=1.0),
    "spaced": partial(Reveal, order="spaced", counts="power"),
    "spaced_even": partial(Reveal, order="even", counts="power"),
    "spaced_sharp": partial(Reveal, order="spaced", counts="power", power=3.0, weight=0.15),
    "learned_order": partial(Reveal, order="learned", counts="power"),
    "entropy_budget": partial(Reveal, counts="entropy"),
    "bridge": Bridge,
    "bridge_systematic": partial(Bridge, coins="systematic"),
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
    "remask_spaced": partial(Remask, rule="forward", eta=1.0, coins="systematic"),
    "renoise": partial(Renoise, coins="systematic"),
    "gibbs": Gibbs,
    "gibbs_margin": partial(Gibbs, choice="margin"),
    "shs": Hazard,
    "spaced_learned": partial(Reveal, order="spaced", counts="learned", extrapolation="learned"),
    "random_learned": partial(Reveal, counts="learned", extrapolation="learned"),
    "best_learned": Best,
    "independent": partial(Independent, counts="power"),
}

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

EVERY = [name for name in SAMPLERS if name != "fudoki"]  # which is for the metric path

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
