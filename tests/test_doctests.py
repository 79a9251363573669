"""Public names are documented, and their examples run as printed."""

import doctest
import inspect

import pytest

import tauflow

EXAMPLES = [
    "Beta",
    "Codebook",
    "Cosine",
    "CosineSquared",
    "Countdown",
    "Denoiser",
    "GridSampler",
    "Marginal",
    "Masked",
    "Metric",
    "Mixture",
    "Model",
    "Network",
    "Polynomial",
    "Process",
    "Process.loss",
    "Prompt",
    "Result",
    "Results.to_frame",
    "Sampler",
    "Schedule",
    "Source",
    "Task",
    "TauflowError",
    "Trained",
    "Uniform",
    "evaluate",
    "from_probabilities",
    "learn_counts",
    "learn_influence",
    "learn_order",
    "load",
    "nll",
    "sample",
    "sampler_from",
    "schedule_from",
]
"""Names whose examples run. Add yours."""

TABLES = {"SAMPLERS", "SCHEDULES", "SOURCES"}  # dictionaries, which can't have a docstring


def find(name):
    found = tauflow
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name):
    (example,) = doctest.DocTestFinder(recurse=False).find(find(name), name, globs={"tauflow": tauflow})
    assert example.examples, f"{name} has no example"
    assert all(doctest.SKIP not in each.options for each in example.examples), f"{name}'s example is skipped"
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


def test_every_public_name_is_documented():
    for name in set(tauflow.__all__) - TABLES:
        found = getattr(tauflow, name)
        summary, _, rest = inspect.getdoc(found).partition("\n")
        assert summary.endswith("."), f"{name} needs a summary line"
        assert "Example" in rest, f"{name} needs an example"
        if inspect.signature(found).parameters:
            assert "Args:\n" in rest, f"{name} needs an Args section"
        if inspect.isfunction(found) and inspect.signature(found).return_annotation is not None:
            assert "Returns:\n" in rest, f"{name} needs a Returns section"
