"""The examples in docstrings of the public API run."""

import doctest

import pytest

import tauflow

EXAMPLES = ["Countdown", "Denoiser", "Prompt", "sample"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_public_api_run(name):
    found = doctest.DocTestFinder(recurse=False).find(getattr(tauflow, name), name, globs={})
    assert any(each.examples for each in found), "it has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for each in found:
        assert not runner.run(each).failed
