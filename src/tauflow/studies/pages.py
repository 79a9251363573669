"""Tables in pages of documentation that are always those of the result files.

    python -m tauflow.studies.pages docs/results/*.md docs/choosing-a-sampler.md

writes them anew. A page says what belongs where, with the folder relative to itself and any of rows, columns and a row to take ratios to:

    <!-- table countdown "masked" error_rate x=8,16,32 rows="euler;tr_cie" ratio=euler -->
    <!-- end -->
"""

import re
import shlex
import sys
from pathlib import Path

from tauflow import files
from tauflow.errors import SettingsError
from tauflow.studies.base import Results
from tauflow.studies.report import table

PLACE = re.compile(r"(<!-- table (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, folder: Path) -> str:
    """The page with every table as the result files in `folder` have it."""
    return PLACE.sub(lambda found: f"{found[1]}\n{_table(found[2], folder)}\n{found[3]}", text)


def _table(place: str, folder: Path) -> str:
    words = shlex.split(place)
    options = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    if len(names) != 3 or set(options) - {"x", "rows", "ratio"}:
        raise SettingsError(f"a place for a table names a folder, a panel and a metric, then x=, rows= or ratio=; got {place!r}")
    results = Results.read(folder / names[0])
    xs = [float(x) for x in options["x"].split(",")] if "x" in options else None
    rows = options["rows"].split(";") if "rows" in options else None
    return table(results, names[1], names[2], xs=xs, rows=rows, ratio=options.get("ratio"))


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        files.write(path, filled(path.read_text(), path.parent))


if __name__ == "__main__":
    main(sys.argv[1:])
