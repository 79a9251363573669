"""Pages of the docs show the committed numbers and the options that the samplers have."""

import re

import pytest
from conftest import ROOT

from benchmarks.pages import filled
from benchmarks.studies.study import records
from tauflow.errors import TauflowError
from tauflow.evaluation.results import Cell, Measured, Results

PAGES = [
    page
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    if re.search("<!-- (table|finding|options)", page.read_text())
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_show_the_committed_numbers(page):
    text = page.read_text()
    assert filled(text) == text, f"run: python -m benchmarks pages {page.relative_to(ROOT)}"


def test_a_page_with_an_old_number_is_found(tmp_path):
    factors = {"source": "masked", "sampler": "tr", "nfe": 8}
    Results("countdown", {}, [Cell(factors, records(factors, {"m": Measured(0.25)}))]).save(
        tmp_path / "folder"
    )
    page = (
        '<!-- table folder "masked" m -->\n\n| masked: m | 8 |\n|---|---|\n| tr | 0.3500 |\n\n<!-- end -->\n'
    )
    assert "| tr | 0.2500 |" in filled(page, tmp_path)
    assert filled(filled(page, tmp_path), tmp_path) == filled(page, tmp_path)
    with pytest.raises(TauflowError, match="no m of masked for euler"):
        filled(page.replace(" m -->", " m rows=euler -->"), tmp_path)


def test_a_row_of_a_page_may_be_a_spec(tmp_path):
    factors = {"source": "masked", "sampler": "tr_cie(grid=tau)", "nfe": 8}
    Results("countdown", {}, [Cell(factors, records(factors, {"m": Measured(0.5)}))]).save(
        tmp_path / "folder"
    )
    page = '<!-- table folder masked m rows="tr_cie(grid=tau)" ratio="tr_cie(grid=tau)" -->\n<!-- end -->\n'
    assert "| tr_cie(grid=tau) | 1.000 |" in filled(page, tmp_path)


def test_the_table_of_options_comes_from_the_samplers():
    page = filled("before\n<!-- options -->\nstale words\n<!-- end -->\nafter\n")
    assert page.startswith("before\n<!-- options -->\n\n| option |")
    assert "|\n\nThese sharpen" in page
    assert page.endswith("`gibbs(choice=margin)`.\n\n<!-- end -->\nafter\n")
    assert "stale words" not in page
    grid = next(line for line in page.splitlines() if line.startswith("| `grid` |"))
    assert "| t, tau, early | t |" in grid
    assert "`theta_trapezoidal`, `fudoki`" in grid
