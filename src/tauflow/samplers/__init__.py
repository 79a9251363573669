"""How jumps are made: Sampler, the one loop, specs, and the samplers by their published names."""

from tauflow.samplers.leaping import GridSampler
from tauflow.samplers.likelihood import nll
from tauflow.samplers.registry import SAMPLERS, SETS, sampler_from, split_specs
from tauflow.samplers.run import Prompt, sample
from tauflow.samplers.sampler import Info, Problem, Result, Sampler, State, StepInfo, fixed, option

__all__ = [
    "SAMPLERS",
    "SETS",
    "GridSampler",
    "Info",
    "Problem",
    "Prompt",
    "Result",
    "Sampler",
    "State",
    "StepInfo",
    "fixed",
    "nll",
    "option",
    "sample",
    "sampler_from",
    "split_specs",
]
