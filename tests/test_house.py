"""The verbs that docstrings start with, and words that nobody should use."""

import ast
import re
from pathlib import Path

import pytest
from conftest import ROOT

SRC = ROOT / "src" / "tauflow"
SOURCES = sorted(SRC.rglob("*.py"))
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
RUN = 6  # lines of code that stand nowhere else

VERBS = {
    *(
        "Adapt",
        "Add",
        "Ask",
        "Average",
        "Build",
        "Check",
        "Choose",
        "Compile",
        "Compute",
        "Count",
        "Declare",
        "Do",
    ),
    *("Draw", "Drop", "End", "Evaluate", "Exit", "Feed", "Give", "Hold", "Ignore", "Import", "Invert"),
    *("Leap", "Learn", "Let", "Load", "Look", "Make", "Measure", "Move", "Open", "Plan", "Print", "Raise"),
    *("Read", "Rebuild", "Refuse", "Rename", "Return", "Run", "Sample", "Save", "Say", "Set", "Show"),
    *("Split", "Stop", "Time", "Train", "Warn", "Write", "Yield"),
}
UNWANTED = re.compile(
    r"\b(mend(s|ed|ing)?|rooms?|(leave|leaves|leaving|left) out|(go|goes|going|went) on)\b", re.IGNORECASE
)
"""Unusual words for fix, module, skip or omit, and continue or resume."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTIONS)]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_only_the_process_knows_its_noise(path):
    if path.parent.name != "process":
        assert not re.search(r"isinstance\([^)]*(Masked|Uniform|Marginal)\b", path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_docstrings_of_functions_start_with_a_verb(path):
    """In the imperative; add a verb to VERBS where none of them says it."""
    for function in functions(path):
        text = ast.get_docstring(function)
        if text:
            first = re.match(r"\w*", text)[0]
            assert first in VERBS, f"{function.name}: {text.splitlines()[0]}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_the_summary_of_a_docstring_is_one_line(path):
    """Of a study the docstring is the question that its report begins with, and may be longer."""
    tree = ast.parse(path.read_text())
    kinds = (
        (FUNCTIONS, ast.Module) if path.parent.name == "studies" else (FUNCTIONS, ast.ClassDef, ast.Module)
    )
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text:
            summary, _, rest = text.partition("\n")
            assert summary.endswith((".", ":")), summary
            assert not rest or rest.startswith("\n"), f"{summary} ... the summary runs over two lines"


@pytest.mark.parametrize("path", [*SOURCES, *GUIDES], ids=name_of)
def test_usual_words(path):
    found = [line for line in path.read_text().splitlines() if UNWANTED.search(line)]
    assert not found


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Return the numbered lines of code of a file, without blanks, comments, imports, docstrings."""
    text = path.read_text()
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= set(range(node.lineno, node.end_lineno + 1))
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    return [(n, line) for n, line in lines if n not in skipped and line and not line.startswith("#")]


def test_no_block_of_code_stands_twice():
    seen: dict[tuple[str, ...], str] = {}
    twice = []
    for path in SOURCES:
        lines = code_lines(path)
        for begin in range(len(lines) - RUN + 1):
            block = tuple(line for _, line in lines[begin : begin + RUN])
            place = f"{name_of(path)}:{lines[begin][0]}"
            if block in seen:
                twice.append(f"{seen[block]} and {place}")
            seen.setdefault(block, place)
    assert not twice


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
