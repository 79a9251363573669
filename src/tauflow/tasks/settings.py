"""Settings of a task as words of a command line: KEY=VALUE."""

from collections.abc import Iterable
from typing import Any

import yaml

from tauflow.errors import SettingsError


def parsed(words: Iterable[str]) -> dict[str, Any]:
    """Return the settings that words such as "files=corpus.txt" give; a value is YAML."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise SettingsError(f"--data takes KEY=VALUE, such as files=corpus.txt, not {word!r}")
        try:
            found[name] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            raise SettingsError(f"the value of --data {word!r} is no YAML; put quotes around text") from None
    return found
