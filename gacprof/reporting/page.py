"""One self-contained HTML page of what other verbs left: tables, figures, and what to do next."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from matplotlib import rc_context

import gacprof
from gacprof.cliffmap.cliffmap import CliffMap, load_map, shipped_maps
from gacprof.core.errors import ConfigError, GacprofError
from gacprof.core.files import read_json, read_record, replacing, write_text
from gacprof.core.formatting import counted
from gacprof.hardware.datasheet import GPUS, NO_GPUS, gpu_facts
from gacprof.reporting.figures import FAINT, INK, QUIET, STYLES, figures_of
from gacprof.reporting.sections import RESULTS, WORDS, first_of, kind_of, section_of, steps_after

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# colours that a page draws in its own light or dark mode
PAGE_COLOURS = {INK: "var(--ink)", QUIET: "var(--quiet)", FAINT: "var(--line)"}
WHICH_CURVES = "of each operator, dim and type the one most like a prefill. The table has all."
MAX_NAMES = 3  # of models and devices in a title
JUDGING = ("cliffmap", "Diagnosis", "Explanation", "plan")  # results whose words a legend explains


def report(artefacts: Sequence[str | Path], out: str | Path = "report") -> Path:
    """Make one HTML page from maps, plans and saved --json results.

    Parameters
    ----------
    artefacts
        What to show, in this order: maps, run folders, plans, and files of what other verbs printed
        with --json.
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
    OSError
        For one that is not there.

    Examples
    --------
    >>> gacprof.plan("tests/fixtures/checkpoints/asvd_mha_r1", "h100").save("plan.json")
    >>> str(gacprof.report(["cpu-example", "plan.json"], out="page"))
    'page/index.html'
    """
    folder = Path(out)
    results = {str(artefact): read_artefact(Path(artefact)) for artefact in artefacts}
    parts = []
    for number, (name, result) in enumerate(results.items(), 1):
        section = section_of(result)
        drawn = []
        for letter, figure in enumerate(figures_of(result), 1):
            drawn.append(drawn_figure(figure, folder / "figures" / f"{number}-{letter}"))
        caption = ""
        if drawn and isinstance(result, CliffMap):
            curves = counted(len(result.curves), "curve")
            which = f": {WHICH_CURVES}" if len(drawn) < len(result.curves) else "."
            caption = f"{len(drawn)} of {curves} drawn{which}"
        parts.append((replace(section, title=section.title or Path(name).name), drawn, caption))
    kinds = [result_kind(result) for result in results.values()]
    loader = PackageLoader("gacprof.reporting")
    pages = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = pages.get_template("page.html.j2").render(
        title=title_of(results.values()),
        origin=f"{date.today()}, by gacprof {gacprof.__version__} from {', '.join(results)}.",
        parts=parts,
        legend=any(kind in JUDGING for kind in kinds),
        steps=next_steps(results),
        styles=STYLES,
    )
    page = folder / "index.html"
    write_text(page, text)
    return page


def read_artefact(path: Path) -> Any:
    """A map, a plan, or what another verb printed with ``--json``."""
    if path.is_dir() or str(path) in shipped_maps():
        return load_map(path)
    try:
        data = read_json(path)
    except ValueError as error:
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


def result_kind(result: Any) -> str:
    """The kind in a result's schema; empty for a table."""
    return "" if isinstance(result, pd.DataFrame) else kind_of(result.schema)


def title_of(results: Iterable[Any]) -> str:
    """The models and devices that results are of: ``svd on NVIDIA H200``."""
    models: list[str] = []
    devices: list[str] = []
    for result in filter(result_kind, results):
        names = [getattr(result, "checkpoint", ""), getattr(result, "model", "")]
        names += [getattr(model, "model", model) for model in getattr(result, "models", ())]
        models += [Path(name).name for name in names]
        devices.append(device_of(result))
    parts = (dict.fromkeys(filter(None, names)) for names in (models, devices))
    return " on ".join(first_of([*part], MAX_NAMES) for part in parts if part) or "gacprof report"


def device_of(result: Any) -> str:
    """The device that a result is of, by its name in the data sheet; empty where it has none."""
    environment = getattr(result, "environment", None)
    name = environment.name if environment else getattr(result, "gpu", "")
    try:
        return gpu_facts(name or getattr(result, "source", "")).name
    except ConfigError:
        return "" if name in NO_GPUS else str(name)


def next_steps(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is left to do after the furthest result, each with its command."""
    steps = [*WORDS["steps"]]
    names: dict[str, Any] = {}
    furthest = ""
    for path, result in results.items():
        kind = result_kind(result)
        furthest = max(kind, furthest, key=["", *steps].index) if kind in steps else furthest
        source = getattr(result, "source", None)  # of a table a column
        if kind == "plan":
            names["plan"] = path
        if kind == "cliffmap":
            names["source"] = path
        elif isinstance(source, str) and source in (*GPUS, *shipped_maps()):
            names["source"] = source
        if kind in ("Diagnosis", "plan", "Verification"):
            names["checkpoint"] = result.checkpoint
    return steps_after(furthest, **names)


def drawn_figure(figure: Figure, path: Path) -> tuple[list[str], str]:
    """Write a figure as SVG and PNG, ``path`` with either suffix; return the lines of its title,
    which the page sets itself, and the rest as an SVG element."""
    for suffix in (".svg", ".png"):
        with replacing(path.with_suffix(suffix)) as temporary:
            figure.savefig(temporary, format=suffix[1:], dpi=150)
    title = figure.get_suptitle()
    figure.suptitle("")
    buffer = io.StringIO()
    # a salt and no date: the same text for the same figure
    with rc_context({"svg.hashsalt": "gacprof", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    for colour, variable in PAGE_COLOURS.items():
        svg = svg.replace(colour.lower(), variable)
    return title.split("\n", 1), svg[svg.index("<svg") :]
