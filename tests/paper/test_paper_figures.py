"""Figures 5 to 8 of the paper from a map's own points."""

from __future__ import annotations

import numpy as np
import pytest
from figures import paper_figure, script
from planted_blocks import linear, planted

from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.cliffmap.build import build_map
from gacprof.core.errors import ReportError
from gacprof.core.points import Environment


@pytest.fixture(scope="module")
def other() -> CliffMap:
    """A map of one curve, at none of the paper's shapes."""
    blocks = planted(linear("K", range(96, 129, 4), M=512, N=1024), "K", lambda k: k / 4)
    return build_map(blocks, Environment("recorded", "other", "none"), name="other")


@pytest.mark.parametrize(("number", "panels"), [(5, 1), (6, 2), (7, 3), (8, 3)])
def test_the_papers_figures_come_from_the_map_and_no_point_is_cut_off(a100, number, panels):
    drawn = paper_figure(a100, number).axes
    assert len(drawn) == panels
    for axes in drawn:
        highest = max(
            float(np.max(line.get_ydata())) for line in axes.lines if len(line.get_ydata())
        )
        assert axes.get_ylim()[1] > 1.03 * highest


def test_a_figure_the_map_cannot_draw(a100, other):
    with pytest.raises(MapLookupError, match="attention over head_dim"):
        paper_figure(other, 5)
    with pytest.raises(ReportError, match="no figure 9"):
        paper_figure(a100, 9)


def test_the_script_draws_what_the_map_has_and_names_the_rest(other, run, tmp_path):
    other.save(tmp_path / "map.json")
    message = run(script, tmp_path / "map.json", "--out", tmp_path / "drawn")
    assert message.code == 0 and "not drawn: figure 5 (attention)" in message.out
    drawn = {path.stem for path in (tmp_path / "drawn").glob("*.png")}
    assert drawn == {"figure-7-gemm-2k", "figure-8-tensor-cores"}
