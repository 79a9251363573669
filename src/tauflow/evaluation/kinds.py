"""Plain data out of a file: whether it is of the kinds that it should be."""

import sys
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

LARGEST = {int: 2**63 - 1, float: sys.float_info.max}


def check_kinds(values: dict[str, Any], kinds: dict[str, Any], place: str, more: bool = False) -> None:
    """Raise ValueError if a value is of another kind than its name says, or a name is not known.

    A kind is a type such as dict[str, list[int]]; a value that may be None may be missing. With `more`, other
    names are fine.
    """
    for name, kind in kinds.items():
        if not _fits(values.get(name), kind):
            raise ValueError(f"{place}: its {name} is missing or damaged")
    if not more and values.keys() - kinds:
        raise ValueError(f"{place}: it holds more than {', '.join(kinds)}")


def _fits(value: Any, kind: Any) -> bool:
    """Return whether plain data is of a type; true and false are no numbers."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    if kind in (int, float):
        numeric = isinstance(value, kind | int) and not isinstance(value, bool)
        return numeric and abs(value) <= LARGEST[kind]
    return isinstance(value, kind)
