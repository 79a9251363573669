"""The configurations that come with the package, by name: `-c countdown`."""

import re
import textwrap
from pathlib import Path

from tauflow.cli.messages import suggest
from tauflow.errors import SettingsError

PACKAGE = Path(__file__).parents[1]
CONFIGS = next(folder for folder in (PACKAGE / "configs", PACKAGE.parents[1] / "configs") if folder.is_dir())
"""Inside an installed package, or at the top of the repository."""


def known_configs() -> dict[str, Path]:
    """Return the configurations by name."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """Return a configuration file: a local one, or by name one that comes with the package."""
    path = Path(name)
    if path.is_file():
        return path
    known = known_configs()
    if name in known:
        return known[name]
    if path.stem in known:
        meant = f"-c {path.stem} is the one that comes with tauflow."
    else:
        meant = f"Pass a YAML file, or a name: {', '.join(known)}."
    raise SettingsError(f"Configuration file not found: {name}.{suggest(name, known, '-c ')} {meant}")


def describe_configs() -> str:
    """Return a line per configuration: its name, and the first sentence of its file."""
    lines = []
    for name, path in known_configs().items():
        comment = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                break
            comment.append(line.removeprefix("#").strip())
        (sentence, *_) = re.split(r"\. |\.$", " ".join(comment), maxsplit=1)
        lines.append(textwrap.fill(f"{name:<22}{sentence}", 100, subsequent_indent=" " * 22))
    return "\n".join(lines)
