"""Tables in pages of documentation that are always those of the result files.

    python -m benchmarks pages docs/results/*.md docs/choosing-a-sampler.md

writes them again. A page says what belongs where: a folder of results, a panel and a metric, then any
of rows, columns and a row to take ratios to. Panels and rows have the names that they have in results.md:

    <!-- table countdown "masked" error_rate x=8,16,32 rows="euler;tr_cie" ratio=euler -->
    <!-- end -->

With less=euler in place of ratio=euler the other rows are shown less that one. What a study finds beyond its
tables has a name, the heading in results.md:

    <!-- finding image_schedules "Is TR-CIE best? (masked)" -->
    <!-- end -->

`<!-- options -->` is the table of the samplers' options, as their dataclasses have it.
"""

import re
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.studies import STUDIES
from benchmarks.studies.layout import TableSpec, markdown_table
from benchmarks.studies.paired import difference_table
from tauflow import files
from tauflow.errors import TauflowError
from tauflow.evaluation.results import Results
from tauflow.evaluation.tables import Frame
from tauflow.samplers.registry import SAMPLERS, Option, described, sharpening

RESULTS = Path(__file__).parent / "results"
PLACE = re.compile(r"(<!-- (table|finding|options)(?: (.+?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, folder: Path = RESULTS) -> str:
    """Return the page with every table and finding as the result files have it."""
    make = {"table": _table, "finding": _finding, "options": _options}
    return PLACE.sub(lambda found: f"{found[1]}\n{make[found[2]](found[3], folder)}\n{found[4]}", text)


@cache
def frame_of(folder: Path) -> Frame:
    """Read the results of a folder, seen as the study, or sample.py, that made them sees them."""
    results = Results.read(folder)
    return Frame(results, STUDIES[results.name].view if results.name in STUDIES else None)


def _table(place: str, folder: Path) -> str:
    words = shlex.split(place)
    options = dict(word.split("=", 1) for word in words if re.match(r"[a-z]+=", word))
    names = [word for word in words if not re.match(r"[a-z]+=", word)]
    xs = [float(x) for x in options["x"].split(",")] if "x" in options else []
    rows = options["rows"].split(";") if "rows" in options else []
    spec = TableSpec(names[1], names[2], xs, rows, options.get("ratio", ""))
    frame = frame_of(folder / names[0])
    return (
        difference_table(frame, spec, options["less"]) if "less" in options else markdown_table(frame, spec)
    )


@cache
def findings_of(folder: Path) -> dict[str, str]:
    results = Results.read(folder)
    return STUDIES[results.name].findings(results)


def _finding(place: str, folder: Path) -> str:
    name, finding = shlex.split(place)
    return findings_of(folder / name)[finding]


def _options(place: str, folder: Path) -> str:
    return options_table()


def options_table() -> str:
    """Return a Markdown table with a line for each option of the samplers, and below it which sharpen."""
    lines = ["| option | values | default | meaning | samplers |", "|---|---|---|---|---|"]
    for name, owners in described().items():
        for option in dict.fromkeys(each for _, each in owners):
            samplers = [sampler for sampler, each in owners if each == option]
            words = [f"`{name}`", option.choices, _defaults(option, samplers), option.help, _code(samplers)]
            lines.append(f"| {' | '.join(words)} |")
    lines += ["", f"These sharpen, so they don't keep the data distribution: {_code(sharpening())}."]
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


def main(paths: list[str]) -> None:
    """Write the tables of pages anew."""
    if not paths:
        sys.exit("error: name the pages to write anew, such as docs/results/*.md")
    try:
        for path in map(Path, paths):
            files.write(path, filled(path.read_text(encoding="utf-8")))
    except TauflowError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
