"""Examples in docstrings of the public names run as they're printed."""

import doctest

import pytest

import tauflow

NAMES = ["Process.loss", "Results.to_frame", "Trained", "evaluate", "load"]
"""Public names whose examples run. Add yours."""


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name):
    found = tauflow
    for part in name.split("."):
        found = getattr(found, part)
    (example,) = doctest.DocTestFinder(recurse=False).find(found, name, globs={"tauflow": tauflow})
    assert example.examples, f"{name} has no example"
    outcome = doctest.DocTestRunner().run(example)
    assert outcome.failed == 0
