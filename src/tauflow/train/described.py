"""Objects as plain data: {"class_path": ..., "init_args": {...}}, as in a configuration file."""

import inspect
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from tauflow.errors import SettingsError

KINDS: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
"""The types of a value that a constructor may be given for one that it asks for."""


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
    cls, arguments = class_of(spec, allowed), arguments_of(spec, allowed)
    refuse_other_types(cls, arguments)
    return cls(**arguments)


def class_of(spec: dict[str, Any], allowed: Iterable[type]) -> type:
    """Return the class of a described object, one of those that are allowed."""
    classes = {path_of(cls): cls for cls in allowed}
    name = str(spec.get("class_path"))
    if name not in classes:
        raise ValueError(f"class {name[:120]!r} is not one of {', '.join(sorted(classes))}")
    return classes[name]


def arguments_of(spec: dict[str, Any], allowed: Iterable[type]) -> dict[str, Any]:
    """Return the constructor arguments of a described object, built of allowed classes."""
    arguments = spec.get("init_args")
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise ValueError("an object without init_args")
    return {name: build(item, allowed) for name, item in arguments.items()}


def refuse_other_types(cls: type, arguments: dict[str, Any]) -> None:
    """Raise if a constructor asks for a plain type, and an argument has another one."""
    parameters = inspect.signature(cls).parameters
    for name, value in arguments.items():
        wanted = KINDS.get(parameters[name].annotation) if name in parameters else None
        if wanted is not None and type(value) not in wanted:
            asked, found = parameters[name].annotation.__name__, type(value).__name__
            raise ValueError(f"{name} of {cls.__name__} must be of type {asked}, not {found}")


def path_of(cls: type) -> str:
    """Return the name by which a class is described."""
    return f"{cls.__module__}.{cls.__qualname__}"
