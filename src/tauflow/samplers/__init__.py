"""The samplers: SAMPLERS maps the published names to constructors of frozen dataclasses.

To add one, write a Sampler (see base.py) or an entry with other options of an existing one, and name it here.
"""

from functools import partial

from tauflow.samplers.base import Info, Problem, Result, Sampler, State, StepInfo
from tauflow.samplers.first_hitting import FirstHitting
from tauflow.samplers.leaping import Leaping
from tauflow.samplers.theta import Theta
from tauflow.samplers.tweedie import Tweedie, TweedieD3PM

SAMPLERS = {
    "euler": partial(Leaping, rule="euler"),
    "euler_tau_grid": partial(Leaping, rule="euler", grid="tau"),
    "tr": partial(Leaping, rule="tr"),
    "cie": partial(Leaping, rule="cie"),
    "tr_cie": partial(Leaping, rule="tr_cie"),
    "tr_cie_exact": partial(Leaping, rule="tr_cie_exact"),
    "tr_cie_paper": partial(Leaping, rule="tr_cie", grid="tau", jump="one_event", finish="reuse", eps_0=1e-12, ceiling=1e6),
    "tweedie": Tweedie,
    "tweedie_d3pm": TweedieD3PM,
    "theta_rk2": partial(Theta, trapezoidal=False),
    "theta_trapezoidal": partial(Theta, trapezoidal=True),
    "fhs": partial(FirstHitting, high_order=False),
    "ho_fhs": partial(FirstHitting, high_order=True),
}

__all__ = ["SAMPLERS", "Info", "Problem", "Result", "Sampler", "State", "StepInfo"]
