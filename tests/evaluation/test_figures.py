"""How lines look: one look for each sampler in all figures, no two alike in one."""

import io
import warnings

import pytest

from tauflow.evaluation.figures import STYLES, quality_figure, styles, text_figure
from tauflow.evaluation.results import Cell, Measured, Record, Results, Scale
from tauflow.evaluation.tables import Frame
from tauflow.samplers import SAMPLERS
from tauflow.samplers.registry import PRESETS, spec_name


def named(labels) -> dict[str, str]:
    """The labels with the names of their samplers, as a frame gives them."""
    return {label: spec_name(label.split(",")[0] if "guidance" in label else label) for label in labels}


def looks(labels) -> dict[str, tuple]:
    return {label: tuple(look.values()) for label, look in styles(named(labels)).items()}


def test_every_sampler_has_an_entry_with_a_colour_of_its_own():
    assert set(STYLES) == {*SAMPLERS, *PRESETS}
    colours = [colour for colour, _ in STYLES.values()]
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_look_does_not_depend_on_the_other_lines(name):
    alone = looks([name])[name]
    others = [*SAMPLERS, "tr_cie(grid=tau)", "euler, guidance 2", "mine.Sampler", "theirs.Sampler(k=2)"]
    assert looks(others)[name] == alone
    assert looks(others[::-1])[name] == alone


def test_no_two_lines_of_a_figure_are_alike():
    variants = [f"{name}(cutoff={number})" for name in ("tr_cie", "euler") for number in range(12)]
    variants += [f"mine.Sampler(stride={number})" for number in range(30)]
    labels = [*STYLES, *variants]
    assert len(labels) >= 40
    found = looks(labels)
    assert len(set(found.values())) == len(labels)
    assert looks(labels[::-1]) == found, "the order of the lines changes nothing"


def test_variants_share_the_colour_of_their_sampler():
    labels = ["tr_cie", "tr_cie(grid=tau)", "tr_cie, guidance 2", "tr_cie(grid=tau), guidance 2"]
    found = styles(named(labels))
    assert {look["color"] for look in found.values()} == {STYLES["tr_cie"][0]}
    assert found["tr_cie"]["linestyle"] == "-"
    assert all(found[label]["linestyle"] != "-" for label in labels[1:])


def test_the_lines_of_a_figure_have_these_looks():
    rows = ["euler", "ho_fhs", "tr_cie", "spaced_sharp"]
    cells = []
    for row, nfe in ((row, nfe) for row in rows for nfe in (4, 8)):
        factors = {"sampler": row, "nfe": nfe}
        cells.append(Cell(factors, [Record(factors, "m", Measured(1 / nfe, 0.01))]))
    axes = quality_figure(Frame(Results(cells=cells, scales={"m": Scale()})), "m").axes[0]
    drawn = {bars.get_label(): bars.lines[0] for bars in axes.containers}
    for row in rows:
        assert (drawn[row].get_color(), drawn[row].get_marker()) == STYLES[row]


def test_a_zero_stands_on_the_lower_edge_of_a_logarithmic_axis():
    """A line does not fall through the floor, and the figure says what the edge is."""
    cells = []
    for nfe, value in ((4, 0.1), (8, 0.0), (16, 0.02)):
        factors = {"sampler": "euler", "nfe": nfe}
        cells.append(Cell(factors, [Record(factors, "m", Measured(value, 0.01))]))
    axes = quality_figure(Frame(Results(cells=cells, scales={"m": Scale()})), "m").axes[0]
    edge = axes.get_ylim()[0]
    assert 0 < edge < 0.02
    assert axes.containers[0].lines[0].get_ydata().tolist() == [0.1, edge, 0.02]
    assert [text.get_text() for text in axes.texts] == ["at the lower edge: 0"]


def test_texts_in_any_script_are_drawn():
    """Matplotlib would warn of each letter that its font lacks."""
    figure = text_figure(["a\tb ␊ ¶ \N{CJK UNIFIED IDEOGRAPH-4E2D}\n\N{GRINNING FACE}"], "euler, NFE 8")
    with warnings.catch_warnings(action="error"):
        figure.savefig(io.BytesIO(), format="png")
    assert figure.texts[1].get_text() == "a   b □ ¶ □\n□"
