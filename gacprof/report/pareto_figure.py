"""Parameters, predicted latency and energy lost, each against the other, every variant drawn in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from gacprof.report.figures_style import (
    FAINT,
    INK,
    OKABE_ITO,
    QUIET,
    latency_unit,
    new_figure,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Variant = Mapping[str, Any]

WAYS = {"up": "^", "down": "v", "nearest": "s"}
"""Markers of rounding."""

MANY_CELLS = 8
"""A grid of more lines than this has no room for its numbers."""


def pareto_figure(found: Mapping[str, Any]) -> Figure:
    """Time and quality over the parameter count, and quality over time; a fourth panel where a
    grid was asked for. ``found`` is a pareto's ``as_dict()``."""
    grid = found.get("grid")
    figure, panels = new_figure(11.5, 9.6, 2, 2) if grid else new_figure(15.5, 5.4, 1, 3)
    times = [v["latency_us"] for v in found["variants"] if v["latency_us"] is not None]
    factor, unit = latency_unit(times) if times else (1.0, "µs")
    size, time, loss = "parameters [million]", f"predicted latency [{unit}]", "energy lost [%]"
    drawn = [(size, time), (size, loss), (time, loss)]
    values = {size: _millions, time: lambda v: _scaled(v["latency_us"], factor), loss: _lost}
    handles: dict[str, Any] = {}
    for panel, (x, y) in zip(panels, drawn, strict=False):
        for method, variants in _families(found["variants"]).items():
            points = [(values[x](v), values[y](v), v) for v in variants]
            known = [(a, b, v) for a, b, v in points if a is not None and b is not None]
            handles |= {method: handles.get(method)} | _draw(panel, method, known)
        panel.set_xlabel(x, color=INK)
        panel.set_ylabel(y, color=INK)
        panel.margins(0.09)
    tokens = ", ".join(f"{m} × {w:g}" for m, w in found["tokens"].items())
    told = f"{found['device']} · {found['dtype']} · tokens {tokens}"
    title(panels[0], "Time", told)
    title(panels[1], "Quality", "tail of squared singular values, mean over dims; padding loses 0")
    title(panels[2], "Quality for time", "down and left is better")
    if grid:
        _draw_grid(panels[3], grid, factor, unit)
    shown = {method: handle for method, handle in handles.items() if handle is not None}
    legend = figure.legend(
        shown.values(), shown.keys(), loc="outside lower center", ncols=5,
        frameon=False, fontsize=9, title=_missing(found["variants"]), title_fontsize=8.5,
    )  # fmt: skip
    legend.get_title().set_color(QUIET)
    return figure


def _millions(variant: Variant) -> float:
    return float(variant["parameters"]) / 1e6


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _lost(variant: Variant) -> float | None:
    kept = variant["energy_kept"]
    return None if kept is None else 100 * (1 - kept)


def _families(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """All of ours are one line; every other method is its own."""
    found: dict[str, list[Variant]] = {}
    for variant in variants:
        method = variant["method"]
        ours = method.startswith("gacprof")
        found.setdefault(method.partition(",")[0] if ours else method, []).append(variant)
    return found


def _draw(panel: Axes, method: str, points: list[tuple[float, float, Variant]]) -> dict[str, Any]:
    """One method's points, and their handles for the legend. Ours is a line, ringed where it has
    the parameters of the checkpoint as it is."""
    if not points:
        return {}
    ours = method.startswith("gacprof")
    points = sorted(points, key=lambda p: (p[0], p[1]))
    colour, marker = _style(method)
    hollow = method.startswith("nearest") or marker == "D"
    (line,) = panel.plot(
        [x for x, _, _ in points],
        [y for _, y, _ in points],
        color=colour,
        marker=marker,
        linestyle="-" if ours else "none",
        linewidth=1.2,
        markersize=5 if ours else 7,
        # Hollow, for rounding to the nearest often is rounding up, and would hide it; so is a
        # method of its own that chose the same dims as another.
        fillstyle="none" if hollow else "full",
        markeredgewidth=1.6 if hollow else 1.0,
        zorder=2 if ours else 3,
    )
    if method == "as it is":
        panel.axvline(points[0][0], color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    handles = {method: line}
    for x, y, variant in points if ours else ():
        if variant["method"].endswith("today's budget"):
            (ring,) = panel.plot(
                [x], [y], marker="o", markersize=13, color="none", zorder=2, linestyle="none",
                markeredgecolor=colour,
            )  # fmt: skip
            handles[f"{method}, today's budget"] = ring
    return handles


def _style(method: str) -> tuple[str, str]:
    """Colour by kind of method, and for rounding by multiple; the marker says which way."""
    if method.startswith("gacprof"):
        return OKABE_ITO[0], "o"
    way, _, multiple = method.partition(" to ")
    if multiple:
        return OKABE_ITO[1 if multiple == "8" else 2], WAYS[way]
    return (OKABE_ITO[6], "X") if method == "as it is" else (OKABE_ITO[3], "D")


def _missing(variants: Sequence[Variant]) -> str:
    """Which methods a panel cannot show, and why."""
    told = []
    for key, why in (
        ("latency_us", "no predicted time (sizes the map does not hold)"),
        ("energy_kept", "loss not known (a width is cut)"),
    ):
        names = [
            method if len(lacking) == len(all_of_it) else f"{len(lacking)} of {method}"
            for method, all_of_it in _families(variants).items()
            if (lacking := [v for v in all_of_it if v[key] is None])
        ]
        if names:
            told.append(f"{why}: {', '.join(names)}")
    return " · ".join(told)


def _draw_grid(panel: Axes, grid: Mapping[str, Any], factor: float, unit: str) -> None:
    """Each cell's loss, the darker the more; empty where nothing fits."""
    lines = grid["cells"]
    losses = [[nan if c is None else _or_nan(_lost(c)) for c in line] for line in lines]
    worst = max((x for line in losses for x in line if not isnan(x)), default=0.0)
    panel.imshow(losses, origin="lower", cmap="Blues", aspect="auto")
    panel.grid(False)
    for i, line in enumerate(losses):
        for j, loss in enumerate(line):
            if len(lines) <= MANY_CELLS and not isnan(loss):
                panel.text(
                    j, i, f"{loss:.2f}", ha="center", va="center", fontsize=8,
                    color="white" if loss > 0.6 * worst else INK,
                )  # fmt: skip
    columns, rows = range(len(grid["latency_us"])), range(len(grid["parameters"]))
    panel.set_xticks(columns, [f"{t * factor:.3g}" for t in grid["latency_us"]])
    panel.set_yticks(rows, [f"{p / 1e6:.4g}" for p in grid["parameters"]])
    panel.set_xlabel(f"predicted latency at most [{unit}]", color=INK)
    panel.set_ylabel("parameters at most [million]", color=INK)
    title(panel, "Best within both", "energy lost [%], each cell solved exactly")
