"""Objects as plain data: {"class_path": ..., "init_args": {...}}, as in a configuration file."""

import inspect
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from tauflow.errors import CheckpointError, SettingsError


def describe(value: Any) -> Any:
    """Return plain data from which `build` makes the same object.

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


def build(spec: Any, allowed: Iterable[type]) -> Any:
    """Return the object that `describe` described; its class must be an allowed one, none is imported."""
    if isinstance(spec, list):
        return [build(item, allowed) for item in spec]
    if not isinstance(spec, dict):
        return spec
    classes = {path_of(cls): cls for cls in allowed}
    if spec.get("class_path") not in classes:
        raise CheckpointError(f"class {spec.get('class_path')!r} is not one of {', '.join(sorted(classes))}")
    arguments = {name: build(item, allowed) for name, item in spec["init_args"].items()}
    return classes[spec["class_path"]](**arguments)


def path_of(cls: type) -> str:
    """Return the name by which a class is described."""
    return f"{cls.__module__}.{cls.__qualname__}"
