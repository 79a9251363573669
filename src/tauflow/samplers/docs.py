"""The table of the samplers' options in a page of documentation, always as the dataclasses have it.

    python -m tauflow.samplers.docs docs/samplers.md

writes it anew between the lines `<!-- options -->` and `<!-- end -->` of the page.
"""

import re
import sys
from pathlib import Path
from typing import Any

from tauflow import files
from tauflow.samplers.registry import SAMPLERS, Option, described

PLACE = re.compile(r"(<!-- options -->\n).*?(<!-- end -->)", re.DOTALL)


def options_table() -> str:
    """Return a Markdown table with a line for each option of the samplers, and below it which sharpen."""
    lines = ["| option | values | default | meaning | samplers |", "|---|---|---|---|---|"]
    for name, owners in described().items():
        for option in dict.fromkeys(each for _, each in owners):
            samplers = [sampler for sampler, each in owners if each == option]
            words = [f"`{name}`", option.choices, _defaults(option, samplers), option.help, _code(samplers)]
            lines.append(f"| {' | '.join(words)} |")
    sharp = _code([name for name, make in SAMPLERS.items() if make().sharpens])
    lines += ["", f"These sharpen, and do not keep the law of the data: {sharp}."]
    return "\n".join(lines) + "\n"


def _defaults(option: Option, samplers: list[str]) -> str:
    """Return the default of the class, then those of the names that stand for another one."""
    own: dict[str, list[str]] = {}
    for sampler in samplers:
        value = getattr(SAMPLERS[sampler](), option.name)
        if value != option.default:
            own.setdefault(_value(value), []).append(sampler)
    others = [f"{value} in {_code(names)}" for value, names in own.items()]
    return "; ".join([_value(option.default), *others])


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def filled(text: str) -> str:
    """Return a page with its table of options as the samplers have them now."""
    return PLACE.sub(lambda found: f"{found[1]}\n{options_table()}\n{found[2]}", text)


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        files.write(path, filled(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
