"""Objects as plain data: {"class_path": ..., "init_args": {...}}, as in a configuration file."""

import inspect
from typing import Any

from torch import Tensor

from tauflow.errors import SettingsError
from tauflow.untrusted import path_of


def describe(value: Any) -> Any:
    """Return plain data from which `untrusted.build` makes the same object.

    An object keeps each constructor argument as an attribute of its name, or says them all in `init_args`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Tensor):
        return value.tolist()
    arguments = value.init_args if hasattr(value, "init_args") else _arguments(value)
    return {
        "class_path": path_of(type(value)),
        "init_args": {name: describe(argument) for name, argument in arguments.items()},
    }


def _arguments(value: Any) -> dict[str, Any]:
    names = list(inspect.signature(type(value)).parameters)
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise SettingsError(
            f"a checkpoint cannot describe {type(value).__name__}: keep its constructor argument "
            f"{missing[0]!r} as an attribute of that name"
        )
    return {name: getattr(value, name) for name in names}
