"""Stage ``figures``: the papers' figures 5 to 8 where the map holds them, and staircases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.cliffmap import CliffMap, MapMiss
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import GacprofError
from gacprof.core.files import write_text
from gacprof.report.figures import staircase
from gacprof.report.figures_map import FIGURES, paper_figure
from gacprof.report.figures_style import to_svg
from gacprof.report.page import remove_old, telling_curves
from gacprof.survey.setting import Setting
from gacprof.survey.state import SKIPPED, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "figures"
MOST_TELLING = 6
LARGE = 8192
"""GEMMs of this size show what the papers' 2k ones hide: tiles and waves without launch costs."""

NAMES = {5: "attention", 6: "gemv", 7: "gemm-2k", 8: "tensor-cores"}


def draw(setting: Setting) -> Outcome:
    """Write each figure as SVG; those that the map lacks are named in the notes."""
    cliff_map = setting.cliff_map()
    written: list[str] = []
    notes: list[str] = []
    for number in FIGURES:
        try:
            figure = paper_figure(cliff_map, number)
        except MapMiss as miss:
            notes.append(
                f"figure {number} ({NAMES.get(number, number)}): not measured: {_first(miss)}"
            )
            continue
        except GacprofError as error:
            notes.append(f"figure {number}: {error}")
            continue
        written.append(_write(setting, f"figure-{number}-{NAMES.get(number, number)}", figure))
    for name, curve in _own(cliff_map):
        written.append(_write(setting, name, staircase(cliff_map, curve)))
    remove_old(setting.folder / FOLDER, {Path(name).stem for name in written})
    if not written:
        return Outcome(SKIPPED, "the map has no curve to draw", notes=tuple(notes))
    return Outcome(artefacts=tuple(written), notes=tuple(notes))


def _own(cliff_map: CliffMap) -> Iterator[tuple[str, Curve]]:
    """The large GEMMs, then the curves that tell most."""
    drawn = set()
    large = [
        c for c in cliff_map.curves
        if c.operator == "linear" and LARGE in c.fixed.values() and len(c.points.d) >= 4
    ]  # fmt: skip
    for curve in large[:3]:
        drawn.add(curve.identity)
        yield f"gemm-8k-{curve.axis}", curve
    for i, curve in enumerate(telling_curves(cliff_map, MOST_TELLING), start=1):
        if curve.identity not in drawn:
            yield f"{i}-{curve.operator}-{curve.axis}", curve


def _write(setting: Setting, name: str, figure: Figure) -> str:
    write_text(setting.folder / FOLDER / f"{name}.svg", to_svg(figure))
    return f"{FOLDER}/{name}.svg"


def _first(miss: MapMiss) -> str:
    return str(miss).partition("\n")[0]
