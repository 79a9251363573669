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

"""

import re
import shlex
import sys
from pathlib import Path

from benchmarks.studies import STUDIES
from benchmarks.studies.paired import difference_table
from tauflow import files
from tauflow.errors import TauflowError
from tauflow.evaluation.store import Results
from tauflow.evaluation.tables import Frame, TableSpec, markdown_table

RESULTS = Path(__file__).parent / "results"
PLACE = re.compile(r"(<!-- (table|finding) (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, folder: Path = RESULTS) -> str:
    """Return the page with every table and finding as the result files have it."""
    make = {"table": _table, "finding": _finding}
    return PLACE.sub(lambda found: f"{found[1]}\n{make[found[2]](found[3], folder)}\n{found[4]}", text)


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


def _finding(place: str, folder: Path) -> str:
    name, finding = shlex.split(place)
    results = Results.read(folder / name)
    return STUDIES[results.name].findings(results)[finding]


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
