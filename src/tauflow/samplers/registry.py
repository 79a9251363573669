"""SAMPLERS: the published names, and SETS of them.

To add a sampler, write a class (see base.py) or an entry with other options of an existing one, and name it
here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tauflow.samplers.base import Sampler
from tauflow.samplers.bridge import Bridge
from tauflow.samplers.fudoki import Fudoki
from tauflow.samplers.leaping import Leaping
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
}

SETS: dict[str, list[str]] = {
    "all": [name for name in SAMPLERS if name != "fudoki"],  # which is for the metric path
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
