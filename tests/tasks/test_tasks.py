"""What holds for every task."""

import inspect

import pytest

from tauflow.tasks import Task
from tauflow.train.checkpoint import CLASSES

FROM_A_FILE = {
    ("Text", "tokenizer"): "unused: a checkpoint must have tokenizer_json, which overrides it",
    ("Text", "tokenizer_json"): "the tokenizer itself",
    ("Molecules", "properties"): "compared with a list of known names",
}
"""Texts that a checkpoint decides, and why they open, run, and build nothing."""


@pytest.mark.parametrize("task", [cls for cls in CLASSES if issubclass(cls, Task)])
def test_texts_come_from_the_user_and_never_from_a_file(task):
    parameters = inspect.signature(task).parameters.items()
    texts = {name for name, parameter in parameters if parameter.annotation in (str, str | None)}
    assert texts - set(task.local) == {name for cls, name in FROM_A_FILE if cls == task.__name__}
