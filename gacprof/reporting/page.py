"""One self-contained HTML page of what the other verbs left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

import gacprof
from gacprof.cliffmap.cliffmap import CliffMap, Curve, load_map
from gacprof.core.errors import GacprofError
from gacprof.core.files import read_json, read_record, write_text
from gacprof.reporting import figures
from gacprof.reporting.sections import RESULTS, kind_of, section_of

CURVES_SHOWN = 4  # of a map, those with the highest penalties


def report(artefacts: Sequence[str | Path], out: str | Path = "report") -> Path:
    """Write one HTML page of what the other verbs left.

    Parameters
    ----------
    artefacts
        Maps, run folders, plans, and files of what other verbs printed with --json, in this order.
    out
        The page's folder: index.html, and figures/ as SVG and PNG.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    GacprofError
        For a file that is none of these.
    """
    folder = Path(out)
    parts = []
    for number, artefact in enumerate(artefacts, 1):
        result = read_artefact(Path(artefact))
        drawn = []
        for letter, figure in enumerate(figures_of(result), 1):
            figures.save_figure(figure, folder / "figures" / f"{number}-{letter}")
            drawn.append(figures.svg_element(figure))
        parts.append((section_of(result), drawn))
    loader = PackageLoader("gacprof.reporting")
    pages = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = folder / "index.html"
    write_text(page, pages.get_template("page.html.j2").render(parts=parts))
    return page


def read_artefact(path: Path) -> Any:
    """A map, a plan, or what another verb printed with ``--json``."""
    if path.is_dir():
        return load_map(path)
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise GacprofError(f"{path} cannot be read as JSON: {error}") from None
    if isinstance(data, list):
        return pd.DataFrame(data)
    schema = data.get("schema") if isinstance(data, dict) else None
    kind = kind_of(str(schema))
    if kind not in RESULTS:
        raise GacprofError(
            f"{path} is nothing that a page shows: name maps, run folders, plans, and what the "
            "other verbs print with --json"
        )
    if kind == "cliffmap":
        return load_map(path)
    return read_record(path, getattr(gacprof, RESULTS[kind][0]), "gacprof VERB … --json")


def figures_of(result: Any) -> list[Figure]:
    """The figures of a result: a map's dearest curves, a bench's ratios, plans over budgets."""
    if isinstance(result, CliffMap):
        timed = [c for c in result.curves if any(v.latency_us for v in c.sizes)]
        dearest = sorted(timed, key=highest_penalty, reverse=True)[:CURVES_SHOWN]
        return [figures.staircase(result, curve) for curve in dearest]
    if isinstance(result, pd.DataFrame) and {"parameters", "loss", "us"} <= {*result.columns}:
        return [figures.pareto_front(result)]
    return [figures.bench_ratios(result)] if hasattr(result, "timings") else []


def highest_penalty(curve: Curve) -> float:
    """The highest penalty that is sure."""
    return max((v.penalty.low for v in curve.sizes if v.penalty), default=0.0)
