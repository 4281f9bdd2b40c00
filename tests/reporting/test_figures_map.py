"""Figures hold what they promise, in colours that can be told apart, and are written whole."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from planted_blocks import linear, numbered, planted

from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.cliffmap.build import build_map
from gacprof.core.errors import ReportError
from gacprof.core.points import Environment
from gacprof.reporting.figures import runs, side_by_side, staircase
from gacprof.reporting.figures_style import OKABE_ITO, save, to_svg

WIDTHS = (1000, 1024, 1100, 1152)
DEPTHS = range(96, 129, 4)


@pytest.fixture(scope="module")
def grid() -> CliffMap:
    """K × N at M = 512, slower where either is no multiple of 8."""

    def us(k, n):
        return k * n / 4000 * (1 if k % 8 == 0 else 1.5) * (1 if n % 8 == 0 else 1.2)

    def over_k(n):
        points = linear("K", DEPTHS, M=512, N=n)
        return planted(points, "K", lambda k: us(k, n), timer="events")

    def over_n(k):
        points = linear("N", WIDTHS, M=512, K=k)
        return planted(points, "N", lambda n: us(k, n), timer="events")

    blocks = numbered(*map(over_k, WIDTHS), *map(over_n, DEPTHS))
    return build_map(blocks, Environment("recorded", "grid", "none"), name="grid")


def legend(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_staircase_shows_every_point_classes_frontier_and_tolerance(a100):
    curve = a100.curve("attention", "head_dim")
    (axes,) = staircase(a100, curve).axes
    assert legend(axes) == [
        "head_dim % 8 = 0", "head_dim % 8 ≠ 0", "envelope", "safe: 2 % above the envelope",
        "frontier",
    ]  # fmt: skip
    assert [t.get_text() for t in axes.texts if t.get_text().isdigit()] == [
        "64", "96", "128", "160", "192", "256",
    ]  # fmt: skip
    assert axes.get_xlabel() == "head_dim" and axes.get_ylabel() == "latency [ms]"
    assert axes.get_ylim()[0] == 0
    drawn = sorted(
        (int(x), round(float(y) * 1000, 2))
        for line in axes.lines
        if line.get_marker() in ("o", "s") and line.get_label().startswith("head_dim %")
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    )
    assert drawn == sorted(curve.latencies.items())


def test_undecided_dims_are_drawn_with_their_intervals(grid):
    points = linear("K", range(96, 128))
    noisy = planted(points, "K", lambda k: 20.0, count=8, spread=0.03)
    built = build_map(noisy, Environment("recorded", "noisy", "none"), name="noisy")
    (curve,) = built.curves
    (axes,) = staircase(built, curve).axes
    assert "undecided (95 %)" in legend(axes)
    (bars,) = (c for c in axes.containers if c.get_label() == "undecided (95 %)")
    _, _, (lines,) = bars.lines
    drawn = {int(low[0]): (low[1], high[1]) for low, high in lines.get_segments()}
    p = curve.points
    wanted = zip(p.d, p.low_us, p.high_us, strict=True)
    assert drawn == {
        d: pytest.approx((low, high)) for d, low, high in wanted if d in curve.undecided
    }
    assert len(drawn) > 10
    sure = grid.curve("linear", "K", N=1024)
    assert not any("undecided" in text for text in legend(*staircase(grid, sure).axes))


def test_the_envelope_is_drawn_no_further_than_it_is_settled(a100):
    curve = a100.curve("linear", "K", M=512)
    (axes,) = staircase(a100, curve).axes
    (line,) = [line for line in axes.lines if line.get_label() == "envelope"]
    assert max(line.get_xdata()) == 4096 < curve.points.d[-1]


def test_two_devices_share_the_dims_and_keep_their_own_times(a100):
    device = a100.file.device.model_copy(update={"name": "another"})
    other = CliffMap(a100.file.model_copy(update={"name": "b", "device": device}))
    figure = side_by_side([a100, other], "attention", "head_dim")
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["NVIDIA A100 80GB", "another"]
    with pytest.raises(MapLookupError):
        side_by_side([a100, other], "attention", "q_len")
    with pytest.raises(ReportError, match="no maps"):
        side_by_side([], "attention", "q_len")


def test_svg_and_png_are_written_and_the_same_every_time(a100, tmp_path):
    curve = a100.curve("attention", "head_dim")
    svg, png = save(staircase(a100, curve), tmp_path / "figures" / "attention")
    assert (svg.name, png.name) == ("attention.svg", "attention.png")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert to_svg(staircase(a100, curve)) == svg.read_text()


def test_a_figure_that_cannot_be_written_leaves_nothing_behind(a100, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot write the figure"):
        save(staircase(a100, a100.curve("attention", "head_dim")), tmp_path / "file" / "figure")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_drawing_leaves_no_global_state_behind():
    code = (
        "import matplotlib as m;"  # reading 'backend' would choose one, and import pyplot
        "now = lambda: {k: m.rcParams[k] for k in m.rcParams if k != 'backend'}; before = now();"
        "from gacprof.cliffmap import CliffMap; from gacprof.reporting.figures import staircase;"
        "from gacprof.reporting.figures_style import to_svg; a = CliffMap.load('a100-published');"
        "to_svg(staircase(a, a.curves[0]));"
        "import sys; print('matplotlib.pyplot' in sys.modules, now() == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


NORMAL = np.eye(3)
DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
PROTANOPIA = np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])


@pytest.mark.parametrize("view", [NORMAL, DEUTERANOPIA, PROTANOPIA])
def test_colours_of_classes_stay_apart_for_colour_blind_readers(view):
    """Simulated as Machado et al. (2009) do, severity 1.0, in linear RGB."""
    linear = [np.array(to_rgb(colour)) ** 2.2 for colour in OKABE_ITO[:4]]
    seen = [np.clip(view @ colour, 0, 1) ** (1 / 2.2) for colour in linear]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 0.15


def test_no_line_joins_dims_that_stand_far_apart():
    dims = [40, 48, 56, 64, 256, 512, 640, 648, 656, 664]
    assert runs(dims, dims) == [[40, 48, 56, 64], [256], [512], [640, 648, 656, 664]]
    assert runs([64, 128, 192], [64, 128, 192]) == [[64, 128, 192]]
