"""Objects by name, from the user's own command line or configuration, never from a file."""

import difflib
import importlib
import sys
from pathlib import Path

from tauflow.errors import SettingsError


def import_object(name: str, kind: type) -> type:
    """Import a class by `package.module.Class` or `path/to/file.py:Class`; it must be a subclass of `kind`.

    The current folder, or that of the file, is put on the import path, so a class keeps one name everywhere.
    """
    file, colon, attribute = name.partition(":")
    if colon:
        path = Path(file).expanduser()
        if path.suffix != ".py" or not path.is_file():
            raise SettingsError(
                f"there is no Python file {file}; write path/to/file.py:{attribute or 'Class'}"
            )
        folder, module = path.parent.resolve(), path.stem
    elif name.endswith(".py") or "." not in name:
        raise SettingsError(f"{name} names no class; write module.Class or path/to/file.py:Class")
    else:
        module, _, attribute = name.rpartition(".")
        folder = Path.cwd()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # whatever the user's own module raises
        raise SettingsError(f"cannot import {name}: {type(error).__name__}: {error}") from None
    if colon and Path(imported.__file__ or "").resolve() != path.resolve():
        raise SettingsError(f"cannot import {name}: there is another module named {module}; rename the file")
    found = getattr(imported, attribute, None)
    if found is None:
        near = difflib.get_close_matches(attribute, dir(imported), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"cannot import {name}: {module} has no class {attribute}{hint}")
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise SettingsError(f"{name} is not a {kind.__name__}")
    return found
