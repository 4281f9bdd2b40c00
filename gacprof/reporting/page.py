"""One self-contained HTML page of what the other verbs left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

import gacprof
from gacprof.cliffmap.cliffmap import CliffMap, Curve, load_map
from gacprof.core.errors import GacprofError
from gacprof.core.files import read_json, read_record, write_text
from gacprof.reporting.figures import (
    bench_ratios,
    pareto_front,
    save_figure,
    staircase,
    svg_element,
)
from gacprof.reporting.sections import RESULTS, kind_of, section_of

CURVES_SHOWN = 4
"""Of a map, those with the highest penalties."""


def report(artefacts: Sequence[str | Path], out: str | Path = "report") -> Path:
    """Write one HTML page of what the other verbs left.

    Parameters
    ----------
    artefacts
        Maps, run folders, plans, and files of what other verbs printed with --json; the page has
        them in this order.
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
        drawn = list(figures_of(result))
        for letter, figure in enumerate(drawn, 1):
            save_figure(figure, folder / "figures" / f"{number}-{letter}")
        parts.append((section_of(result), [svg_element(figure) for figure in drawn]))
    environment = Environment(
        loader=PackageLoader("gacprof.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.j2").render(parts=parts)
    write_text(folder / "index.html", page)
    return folder / "index.html"


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


def figures_of(result: Any) -> Iterator[Figure]:
    """The figures of a result: a map's dearest curves, a bench's ratios, plans over budgets."""
    if isinstance(result, CliffMap):
        timed = [c for c in result.curves if any(v.latency_us for v in c.sizes)]
        for curve in sorted(timed, key=highest_penalty, reverse=True)[:CURVES_SHOWN]:
            yield staircase(result, curve)
    elif isinstance(result, pd.DataFrame):
        if {"parameters", "loss", "us"} <= set(result.columns):
            yield pareto_front(result)
    elif hasattr(result, "timings"):
        yield bench_ratios(result)


def highest_penalty(curve: Curve) -> float:
    """The highest penalty that is sure."""
    return max((v.penalty.low for v in curve.sizes if v.penalty), default=0.0)
